"""In-band authentication by DH-HMAC-CHAP: what is sent, and what is computed from secrets. Pure.

NVMe Base 2.0, section 8.13.5. Whoever connects proves that it knows a secret, by an HMAC over a challenge and both names;
with a Diffie-Hellman exchange beside it, so that who listened cannot try secrets later. Five messages:

    negotiate   host → controller   hashes and groups that we know
    challenge   controller → host   a hash, a group, random bytes, its half of the exchange
    reply       host → controller   the proof, our half, and a challenge in turn if it is to prove itself
    success 1   controller → host   its proof, if that was asked for
    success 2   host → controller   we believe it

Instead of any of them: failure, with a reason. All numbers are little-endian.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import ClassVar, Final

from rdma.errors import WireError

MESSAGE_MAX: Final = 4096
_COMMON, _DHCHAP = 0x00, 0x01
_NAMED: Final = b"NVMe-over-Fabrics"


class Kind(IntEnum):
    """Message ids."""

    NEGOTIATE = 0x00
    CHALLENGE = 0x01
    REPLY = 0x02
    SUCCESS_1 = 0x03
    SUCCESS_2 = 0x04
    FAILURE_2 = 0xF0
    FAILURE_1 = 0xF1


class Failure(IntEnum):
    """Why authentication failed (8.13.5.5.1)."""

    FAILED = 0x01
    PROTOCOL_NOT_USABLE = 0x02
    CONCATENATION_MISMATCH = 0x03
    HASH_NOT_USABLE = 0x04
    GROUP_NOT_USABLE = 0x05
    INCORRECT_PAYLOAD = 0x06
    INCORRECT_MESSAGE = 0x07


class Hash(IntEnum):
    """Hash functions (8.13.5.2)."""

    SHA256 = 1
    SHA384 = 2
    SHA512 = 3

    @property
    def size(self) -> int:
        """Bytes of its digests."""
        return {Hash.SHA256: 32, Hash.SHA384: 48, Hash.SHA512: 64}[self]

    def digest(self, data: bytes) -> bytes:
        return hashlib.new(self.name.lower(), data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.name.lower())


class Group(IntEnum):
    """Diffie-Hellman groups (8.13.5.2), those of RFC 7919."""

    NONE = 0
    FFDHE2048 = 1
    FFDHE3072 = 2
    FFDHE4096 = 3
    FFDHE6144 = 4
    FFDHE8192 = 5

    @property
    def size(self) -> int:
        """Bytes of a number of it."""
        return 0 if self is Group.NONE else int(self.name.removeprefix("FFDHE")) // 8

    @property
    def prime(self) -> int:
        return _prime(8 * self.size)

    def public(self, private: int) -> bytes:
        """Our half of the exchange."""
        return pow(2, private, self.prime).to_bytes(self.size, "big")

    def shared(self, private: int, theirs: bytes) -> bytes:
        """What both sides know then. :raises WireError: theirs gives it away"""
        other = int.from_bytes(theirs, "big")
        if len(theirs) != self.size or not 1 < other < self.prime - 1:
            raise WireError("half of a Diffie-Hellman exchange that is none")
        return pow(other, private, self.prime).to_bytes(self.size, "big")


_FILLERS: Final = {2048: 560316, 3072: 2625351, 4096: 5736041, 6144: 15705020, 8192: 10965728}


@cache
def _prime(bits: int) -> int:
    """RFC 7919, appendix A: 2^b − 2^(b−64) + (⌊2^(b−130)·e⌋ + X)·2^64 − 1."""
    guard = 64
    term = total = 1 << (bits - 130 + guard)
    divisor = 0
    while term:
        divisor += 1
        term //= divisor
        total += term
    return (1 << bits) - (1 << (bits - 64)) + (((total >> guard) + _FILLERS[bits]) << 64) - 1


PRIVATE_BYTES: Final = 64
"""Of the private half: more than the strength of the largest group asks for (RFC 7919, section 5.2)."""


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, in the form that tools write: DHHC-1:hash:base64 of key and checksum: (8.13.5.8).

    :ivar bound: the hash by which it is bound to its owner's name before it is used; None if it is used as it is
    """

    key: bytes = field(repr=False)
    bound: Hash | None

    @classmethod
    def parse(cls, text: str) -> Secret:
        """:raises ValueError: it is no such secret, or was mistyped; does not repeat it"""
        parts = text.strip().split(":")
        if len(parts) != 4 or parts[0] != "DHHC-1" or parts[3] or parts[1] not in ("00", "01", "02", "03"):
            raise ValueError("not a secret: DHHC-1:… is wanted, as 'nvme gen-dhchap-key' prints it")
        try:
            raw = base64.b64decode(parts[2], validate=True)
        except binascii.Error:
            raise ValueError("not a secret: it is not base64") from None
        key, checksum = raw[:-4], raw[-4:]
        if len(key) not in (32, 48, 64) or zlib.crc32(key).to_bytes(4, "little") != checksum:
            raise ValueError("not a secret: its checksum is wrong, so it was changed or cut off")
        number = int(parts[1])
        return cls(key, Hash(number) if number else None)

    def of(self, owner: str) -> bytes:
        """The key that its owner's proofs are made with."""
        if self.bound is None:
            return self.key
        return self.bound.hmac(self.key, owner.encode() + _NAMED)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def kind_of(data: bytes) -> Kind:
    """:raises WireError:"""
    if len(data) < 8 or data[0] not in (_COMMON, _DHCHAP) or data[1] not in Kind.__members__.values():
        raise WireError(f"an authentication message that begins with {data[:2].hex()}")
    return Kind(data[1])


@dataclass(frozen=True, slots=True)
class Negotiate:
    """:ivar transaction: names this authentication in all its messages"""

    transaction: int
    hashes: tuple[Hash, ...] = tuple(Hash)
    groups: tuple[Group, ...] = tuple(Group)

    def pack(self) -> bytes:
        head = struct.pack("<BB2xHBB", _COMMON, Kind.NEGOTIATE, self.transaction, 0, 1)
        names = struct.pack("<BxBB", _DHCHAP, len(self.hashes), len(self.groups))
        return head + names + bytes(self.hashes).ljust(30, b"\0") + bytes(self.groups).ljust(30, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Negotiate:
        """:raises WireError:"""
        _expect(data, Kind.NEGOTIATE, 72)
        hashes, groups = data[12 : 12 + data[10]], data[42 : 42 + data[11]]
        return cls(_transaction(data), tuple(map(Hash, hashes)), tuple(map(Group, groups)))


@dataclass(frozen=True, slots=True)
class Challenge:
    """:ivar sequence: goes into the proof, so that none is good twice
    :ivar value: random bytes, as many as the hash has
    :ivar exchange: the controller's half
    """

    HEAD: ClassVar[struct.Struct] = struct.Struct("<BB2xHBxBBHI")

    transaction: int
    hash: Hash
    group: Group
    sequence: int
    value: bytes
    exchange: bytes = b""

    def pack(self) -> bytes:
        head = self.HEAD.pack(
            _DHCHAP,
            Kind.CHALLENGE,
            self.transaction,
            len(self.value),
            self.hash,
            self.group,
            len(self.exchange),
            self.sequence,
        )
        return head + self.value + self.exchange

    @classmethod
    def unpack(cls, data: bytes) -> Challenge:
        """:raises WireError:"""
        _expect(data, Kind.CHALLENGE, cls.HEAD.size)
        _, _, transaction, size, hash_id, group_id, exchange_size, sequence = cls.HEAD.unpack_from(data)
        try:
            found = cls(transaction, Hash(hash_id), Group(group_id), sequence, b"")
        except ValueError as error:
            raise WireError(f"a challenge that cannot be answered: {error}") from None
        rest = data[cls.HEAD.size :]
        if size != found.hash.size or exchange_size != found.group.size or len(rest) < size + exchange_size:
            raise WireError(f"a challenge of {size} and {exchange_size} bytes")
        value, exchange = rest[:size], rest[size : size + exchange_size]
        return cls(transaction, found.hash, found.group, sequence, value, exchange)


@dataclass(frozen=True, slots=True)
class Reply:
    """:ivar proof: that we know the secret
    :ivar challenge: for the controller; None if it need not prove itself
    """

    HEAD: ClassVar[struct.Struct] = struct.Struct("<BB2xHBxBxHI")

    transaction: int
    proof: bytes
    exchange: bytes = b""
    challenge: bytes | None = None
    sequence: int = 0

    def pack(self) -> bytes:
        size, asked = len(self.proof), self.challenge is not None
        head = self.HEAD.pack(
            _DHCHAP, Kind.REPLY, self.transaction, size, asked, len(self.exchange), self.sequence
        )
        return head + self.proof + (self.challenge or bytes(size)) + self.exchange

    @classmethod
    def unpack(cls, data: bytes) -> Reply:
        """:raises WireError:"""
        _expect(data, Kind.REPLY, cls.HEAD.size)
        _, _, transaction, size, asked, exchange_size, sequence = cls.HEAD.unpack_from(data)
        rest = data[cls.HEAD.size :]
        if len(rest) < 2 * size + exchange_size:
            raise WireError(f"a reply of {len(data)} bytes")
        challenge = rest[size : 2 * size] if asked else None
        return cls(transaction, rest[:size], rest[2 * size : 2 * size + exchange_size], challenge, sequence)


@dataclass(frozen=True, slots=True)
class Success:
    """Success 1. :ivar proof: of the controller; None if none was asked for"""

    HEAD: ClassVar[struct.Struct] = struct.Struct("<BB2xHBxB7x")

    transaction: int
    proof: bytes | None = None

    def pack(self) -> bytes:
        proof = self.proof or b""
        return (
            self.HEAD.pack(_DHCHAP, Kind.SUCCESS_1, self.transaction, len(proof), self.proof is not None)
            + proof
        )

    @classmethod
    def unpack(cls, data: bytes) -> Success:
        """:raises WireError:"""
        _expect(data, Kind.SUCCESS_1, cls.HEAD.size)
        _, _, transaction, size, proves = cls.HEAD.unpack_from(data)
        return cls(transaction, data[cls.HEAD.size : cls.HEAD.size + size] if proves else None)


def pack_success_2(transaction: int) -> bytes:
    return struct.pack("<BB2xH10x", _DHCHAP, Kind.SUCCESS_2, transaction)


def pack_failure(kind: Kind, transaction: int, why: Failure) -> bytes:
    """:param kind: which of both failures"""
    return struct.pack("<BB2xHBB", _DHCHAP, kind, transaction, 1, why)


def unpack_failure(data: bytes) -> str:
    """Why, in words."""
    reason = data[7]
    known = reason in Failure.__members__.values()
    return Failure(reason).name.lower().replace("_", " ") if known else f"reason {reason:02x}h"


def _expect(data: bytes, kind: Kind, size: int) -> None:
    if len(data) < size or kind_of(data) is not kind:
        raise WireError(f"{len(data)} bytes that begin with {data[:2].hex()} instead of {kind.name.lower()}")


def _transaction(data: bytes) -> int:
    (transaction,) = struct.unpack_from("<H", data, 4)
    return int(transaction)


# ── proofs ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Parties:
    """Who authenticates to whom, by their NQNs."""

    host: str
    subsystem: str


def augmented(hash_: Hash, value: bytes, shared: bytes) -> bytes:
    """A challenge, made one that only who took part in the exchange knows; as it is if there was none."""
    return hash_.hmac(hash_.digest(shared), value) if shared else value


def host_proof(hash_: Hash, key: bytes, value: bytes, sequence: int, transaction: int, who: Parties) -> bytes:
    """That the host knows its key. :param value: the challenge, augmented"""
    names = b"HostHost" + who.host.encode() + b"\0" + who.subsystem.encode()
    return hash_.hmac(key, value + struct.pack("<IHB", sequence, transaction, 0) + names)


def controller_proof(
    hash_: Hash, key: bytes, value: bytes, sequence: int, transaction: int, who: Parties
) -> bytes:
    """The same of the controller."""
    names = b"Controller" + who.subsystem.encode() + b"\0" + who.host.encode()
    return hash_.hmac(key, value + struct.pack("<IHB", sequence, transaction, 0) + names)
