"""What controllers and namespaces say of themselves, as far as an initiator needs it. Pure.

Base is NVM Express Base 2.0, NVM is NVM Command Set 1.0; numbers beside the fields are byte offsets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from rdma.errors import WireError
from rdma.nvme_wire import unpack_text

IDENTIFY_SIZE: Final = 4096
ACTIVE_MAX: Final = IDENTIFY_SIZE // 4
"""Ids in an active namespace list that is full: more may follow."""

_NGUID, _UUID = 2, 3
"""Types of identifiers of a namespace."""
_DESCRIPTOR = struct.Struct("<BBxx")

_ONCS_DEALLOCATE = 1 << 2
_ONCS_ZEROES = 1 << 3
_SGLS_KEYED = 1 << 2


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The property CAP (Base 3.1.3.1).

    :ivar queue_depth: most entries of a queue
    :ivar ready_seconds: how long the controller may take to become ready
    """

    queue_depth: int
    ready_seconds: float

    @classmethod
    def unpack(cls, value: int) -> Capabilities:
        return cls((value & 0xFFFF) + 1, (value >> 24 & 0xFF) / 2)

    def pack(self) -> int:
        return self.queue_depth - 1 | int(self.ready_seconds * 2) << 24


ENABLE: Final = 1 | 6 << 16 | 4 << 20
"""Value of the property CC (Base 3.1.3.5): enabled, commands of 2^6 bytes, completions of 2^4."""
SHUT_DOWN: Final = ENABLE | 1 << 14
"""The same, asking for a normal shutdown."""


@dataclass(frozen=True, slots=True)
class ControllerState:
    """The property CSTS (Base 3.1.3.6)."""

    ready: bool
    failed: bool

    @classmethod
    def unpack(cls, value: int) -> ControllerState:
        return cls(bool(value & 1), bool(value & 2))


@dataclass(frozen=True, slots=True)
class Controller:
    """Identify Controller (Base 5.17.2.1).

    :ivar transfer_limit: most bytes that a command may move; 0 for no limit (MDTS, 77, in units of `page`)
    :ivar capsule_data: bytes of data that a command's capsule may carry (IOCCSZ, 1792, less the command)
    """

    serial: str
    model: str
    firmware: str
    transfer_limit: int
    controller: int
    commands: int
    """Most commands that it wants at once (MAXCMD, 514); 0 if it does not say."""
    namespaces: int
    can_deallocate: bool
    can_zero: bool
    takes_keyed: bool
    volatile_cache: bool
    subsystem: str
    capsule_data: int

    @classmethod
    def unpack(cls, data: bytes | memoryview, *, page: int = 4096) -> Controller:
        """:param page: the smallest that the controller knows, in bytes (CAP.MPSMIN). :raises WireError:"""
        _check(data)
        (mdts, controller) = struct.unpack_from("<BH", data, 77)
        commands, namespaces, oncs = struct.unpack_from("<HIH", data, 514)
        (sgls,) = struct.unpack_from("<I", data, 536)
        (capsule,) = struct.unpack_from("<I", data, 1792)
        return cls(
            serial=unpack_text(bytes(data[4:24])),
            model=unpack_text(bytes(data[24:64])),
            firmware=unpack_text(bytes(data[64:72])),
            transfer_limit=page << mdts if mdts else 0,
            controller=controller,
            commands=commands,
            namespaces=namespaces,
            can_deallocate=bool(oncs & _ONCS_DEALLOCATE),
            can_zero=bool(oncs & _ONCS_ZEROES),
            takes_keyed=bool(sgls & _SGLS_KEYED),
            volatile_cache=bool(data[525] & 1),
            subsystem=unpack_text(bytes(data[768:1024])),
            capsule_data=max(0, capsule * 16 - 64),
        )


@dataclass(frozen=True, slots=True)
class Namespace:
    """Identify Namespace (NVM 4.1.5.1).

    :ivar size: logical blocks (NSZE, 0)
    :ivar block_size: bytes, without metadata
    :ivar metadata: bytes of metadata with each block
    :ivar protected: blocks carry protection information (DPS, 29)
    """

    size: int
    block_size: int
    metadata: int
    protected: bool
    nguid: bytes

    @property
    def exists(self) -> bool:
        """A namespace that is not active is described by zeros."""
        return self.size > 0

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Namespace:
        """:raises WireError: its blocks are of no size that there is"""
        _check(data)
        (size,) = struct.unpack_from("<Q", data, 0)
        if not size:
            return cls(0, 0, 0, protected=False, nguid=bytes(16))
        flbas = data[26]
        form = flbas & 0xF | (flbas >> 5 & 3) << 4
        metadata, shift, _ = struct.unpack_from("<HBB", data, 128 + 4 * form)
        if not 9 <= shift <= 16:
            raise WireError(f"blocks of 2^{shift} bytes")
        protected = bool(data[29] & 7)
        return cls(size, 1 << shift, metadata, protected, bytes(data[104:120]))


def unpack_active(data: bytes | memoryview) -> list[int]:
    """The ids of an active namespace list (Base, "Active Namespace ID list"), ascending. :raises WireError:"""
    _check(data)
    return [nsid for (nsid,) in struct.iter_unpack("<I", data) if nsid]


def unpack_uuid(data: bytes | memoryview) -> UUID | None:
    """By which UUID a namespace is known, of its descriptors (Base, "Namespace Identification Descriptor
    list"): where it has none, by its globally unique identifier, as the kernel has it. None if it has neither.

    :raises WireError:
    """
    _check(data)
    found: dict[int, bytes] = {}
    at = 0
    while at + _DESCRIPTOR.size <= len(data):
        kind, length = _DESCRIPTOR.unpack_from(data, at)
        if not length:
            break
        at += _DESCRIPTOR.size + length
        found[kind] = bytes(data[at - length : at])
    value = found.get(_UUID) or found.get(_NGUID)
    if value is not None and len(value) != 16:
        raise WireError(f"an identifier of a namespace that has {len(value)} bytes, not 16")
    return UUID(bytes=value) if value is not None and any(value) else None


def pack_uuid(uuid: UUID) -> bytes:
    """The descriptors of a namespace that has no other identifier."""
    return (_DESCRIPTOR.pack(_UUID, 16) + uuid.bytes).ljust(IDENTIFY_SIZE, b"\0")


def _check(data: bytes | memoryview) -> None:
    if len(data) != IDENTIFY_SIZE:
        raise WireError(f"{len(data)} bytes are no answer to Identify, which has {IDENTIFY_SIZE}")
