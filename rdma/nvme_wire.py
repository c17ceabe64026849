"""What a host and a controller send each other over RDMA: capsules, their data descriptors, connection data. Pure.

Everything is little-endian. Numbers without a word are sections; they, and figures, are those of NVM Express Base 2.0
("Base"), NVM Command Set 1.0 ("NVM") and the RDMA Transport 1.0 ("RDMA").

A command is 64 bytes (Base 3.3.3.1), and one layout does for all of them: a Fabrics command has its type where others
have the first byte of the namespace, and its fields begin where others have command dword 10 (Base 3.3.2.1.1).

      0  opcode            4  namespace, or Fabrics type     24  SGL 1
      1  flags: 40h        8  reserved                       40  command dwords 10 to 15
      2  command id       16  metadata pointer, unused

The flags say that data are described by an SGL (PSDT 01b), as Fabrics demand, also where there are no data: then it is a
keyed one of no bytes, without which the kernel's target refuses the command.

Numbers that do not fit their fields are the caller's mistake, ValueError; bytes that are not what they should be are the
peer's, WireError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple

from rdma.errors import WireError
from rdma.nvme_status import SUCCESS, Status

COMMAND_SIZE = 64
COMPLETION_SIZE = 16
CONNECT_DATA_SIZE = 1024
NQN_MAX = 223
"""Bytes (Base, "NVMe Qualified Names")."""
KEYED_MAX = (1 << 24) - 1
"""Most bytes that one keyed descriptor can name: its length has 24 bits."""
ADMIN_QUEUE = 0
ANY_CONTROLLER = 0xFFFF
"""Controller id with which an admin queue asks for a new controller."""

_USES_SGL = 0x40
_FABRICS = 0x7F


class Admin(IntEnum):
    """Opcodes of the admin queue (Base 5)."""

    IDENTIFY = 0x06
    ABORT = 0x08
    SET_FEATURES = 0x09
    KEEP_ALIVE = 0x18
    FABRICS = _FABRICS


class Io(IntEnum):
    """Opcodes of an I/O queue (Base 7, NVM 3.2)."""

    FLUSH = 0x00
    WRITE = 0x01
    READ = 0x02
    WRITE_ZEROES = 0x08
    DATASET_MANAGEMENT = 0x09


class Fabrics(IntEnum):
    """Types of Fabrics commands (Base 6)."""

    PROPERTY_SET = 0x00
    CONNECT = 0x01
    PROPERTY_GET = 0x04
    AUTHENTICATION_SEND = 0x05
    AUTHENTICATION_RECEIVE = 0x06
    DISCONNECT = 0x08


class Property(IntEnum):
    """Offsets of a controller's properties (Base 3.1.3)."""

    CAP = 0x00
    VS = 0x08
    CC = 0x14
    CSTS = 0x1C


class Feature(IntEnum):
    """What Set Features sets (Base 5.27.1)."""

    NUMBER_OF_QUEUES = 0x07
    KEEP_ALIVE_TIMER = 0x0F


class Cns(IntEnum):
    """What Identify tells (Base 5.17.1)."""

    NAMESPACE = 0x00
    CONTROLLER = 0x01
    ACTIVE_NAMESPACES = 0x02
    DESCRIPTORS = 0x03


# ── where data are ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Keyed:
    """A Keyed SGL Data Block descriptor (Base, under that title): registered memory that the controller reads or writes by RDMA.

    :ivar address: of the memory, in the space that it was registered in
    :ivar length: bytes, at most `KEYED_MAX`
    :ivar key: the registration's remote key
    :ivar invalidate: the controller gives the key back with its answer (RDMA figure 10)
    """

    address: int = 0
    length: int = 0
    key: int = 0
    invalidate: bool = False

    def pack(self) -> bytes:
        _within("length of a keyed descriptor", self.length, KEYED_MAX)
        head = struct.pack("<QII", self.address, self.length, 0)[:11]
        return head + struct.pack("<IB", self.key, 0x4F if self.invalidate else 0x40)


@dataclass(frozen=True, slots=True)
class InCapsule:
    """An SGL Data Block descriptor with an offset (Base, under that title): data that follow the command in its capsule.

    :ivar offset: bytes from where the capsule's data begin
    """

    offset: int
    length: int

    def pack(self) -> bytes:
        return struct.pack("<QI3xB", self.offset, self.length, 0x01)


Sgl = Keyed | InCapsule
NO_DATA = Keyed()


def unpack_sgl(data: bytes) -> Sgl:
    """:raises WireError: a descriptor of a kind that is not used here"""
    kind = data[15]
    if kind in (0x40, 0x4F):
        address, low, key = struct.unpack_from("<Q3sI", data)
        return Keyed(address, int.from_bytes(low, "little"), key, kind == 0x4F)
    if kind == 0x01:
        return InCapsule(*struct.unpack_from("<QI", data))
    raise WireError(f"SGL descriptor of kind {kind:02x}h")


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Command:
    """One command, without the id that the queue gives it. Made by the functions below.

    :ivar nsid: the namespace; of a Fabrics command: its type
    :ivar words: command dwords 10 to 15
    """

    opcode: int
    nsid: int = 0
    data: Sgl = NO_DATA
    words: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)

    @property
    def is_fabrics(self) -> bool:
        return self.opcode == _FABRICS

    def pack(self, command_id: int) -> bytes:
        """The 64 bytes."""
        head = struct.pack("<BBHI16x", self.opcode, _USES_SGL, command_id, self.nsid)
        return head + self.data.pack() + struct.pack("<6I", *self.words)


def unpack_command(data: bytes | memoryview) -> tuple[int, Command]:
    """Command id and command, as a controller sees them. :raises WireError:"""
    _sized("a command", data, COMMAND_SIZE)
    opcode, flags, command_id, nsid, sgl = struct.unpack_from("<BBHI16x16s", data)
    if flags != _USES_SGL:
        raise WireError(f"a command with flags {flags:02x}h, not {_USES_SGL:02x}h")
    return command_id, Command(opcode, nsid, unpack_sgl(sgl), struct.unpack_from("<6I", data, 40))


def connect(queue: int, depth: int, data: Sgl, *, keep_alive_ms: int = 0) -> Command:
    """Connect (Base 6.3), which makes a queue; what it is for is in a `ConnectData`.

    :param depth: entries of the submission queue
    :param keep_alive_ms: of an admin queue: silence after which the controller gives us up; 0 never
    """
    _within("queue", queue, 0xFFFF)
    _within("depth", depth - 1, 0xFFFF)
    return Command(Admin.FABRICS, Fabrics.CONNECT, data, (queue << 16, depth - 1, keep_alive_ms, 0, 0, 0))


def property_get(which: Property) -> Command:
    """Property Get (Base 6.5); the value is the completion's result."""
    wide = 1 if which is Property.CAP else 0
    return Command(Admin.FABRICS, Fabrics.PROPERTY_GET, words=(wide, which, 0, 0, 0, 0))


def property_set(which: Property, value: int) -> Command:
    """Property Set (Base 6.6), of a property of 4 bytes."""
    return Command(Admin.FABRICS, Fabrics.PROPERTY_SET, words=(0, which, value, 0, 0, 0))


def authentication_send(data: Sgl, length: int) -> Command:
    """Authentication Send (Base 6.2) of a message of `length` bytes; see `rdma.nvme_auth`."""
    return _authentication(Fabrics.AUTHENTICATION_SEND, data, length)


def authentication_receive(data: Sgl, length: int) -> Command:
    """Authentication Receive (Base 6.1) of a message of at most `length` bytes."""
    return _authentication(Fabrics.AUTHENTICATION_RECEIVE, data, length)


def _authentication(kind: Fabrics, data: Sgl, length: int) -> Command:
    protocol, specific = 0xE9, 0x01  # NVMe authentication, and both bytes of what is specific to it
    word = protocol << 24 | specific << 16 | specific << 8
    return Command(Admin.FABRICS, kind, data, (word, length, 0, 0, 0, 0))


def disconnect() -> Command:
    """Disconnect (Base 6.4): the end of an I/O queue."""
    return Command(Admin.FABRICS, Fabrics.DISCONNECT)


def identify(what: Cns, data: Sgl, nsid: int = 0) -> Command:
    """Identify (Base 5.17); 4096 bytes."""
    return Command(Admin.IDENTIFY, nsid, data, (what, 0, 0, 0, 0, 0))


def set_features(feature: Feature, value: int) -> Command:
    """Set Features (Base 5.27)."""
    return Command(Admin.SET_FEATURES, words=(feature, value, 0, 0, 0, 0))


def set_queues(count: int) -> Command:
    """Ask for `count` I/O queues (Base 5.27.1, figures 322 and 323); see `granted_queues`."""
    return set_features(Feature.NUMBER_OF_QUEUES, (count - 1) << 16 | (count - 1))


def granted_queues(result: int) -> int:
    """How many I/O queues the answer to `set_queues` allows."""
    return min(result & 0xFFFF, result >> 16 & 0xFFFF) + 1


def keep_alive() -> Command:
    """Keep Alive (Base 5.18)."""
    return Command(Admin.KEEP_ALIVE)


def abort(queue: int, command_id: int) -> Command:
    """Abort (Base 5.1) a command of a queue; bit 0 of the result says that it was not."""
    return Command(Admin.ABORT, words=(command_id << 16 | queue, 0, 0, 0, 0, 0))


def read(nsid: int, block: int, count: int, data: Sgl) -> Command:
    """Read (NVM 3.2.4) `count` logical blocks."""
    return _transfer(Io.READ, nsid, block, count, data)


def write(nsid: int, block: int, count: int, data: Sgl) -> Command:
    """Write (NVM 3.2.6) `count` logical blocks."""
    return _transfer(Io.WRITE, nsid, block, count, data)


def write_zeroes(nsid: int, block: int, count: int, *, deallocate: bool = False) -> Command:
    """Write Zeroes (NVM 3.2.8).

    :param deallocate: the blocks may be deallocated, if they read as zeros then
    """
    return _transfer(Io.WRITE_ZEROES, nsid, block, count, NO_DATA, deallocate << 25)


def flush(nsid: int) -> Command:
    """Flush (Base 7.1)."""
    return Command(Io.FLUSH, nsid)


def deallocate(nsid: int, ranges: int, data: Sgl) -> Command:
    """Dataset Management (NVM 3.2.3) that deallocates; `data` are `ranges` packed by `pack_ranges`."""
    _within("ranges", ranges - 1, 0xFF)
    return Command(Io.DATASET_MANAGEMENT, nsid, data, (ranges - 1, 1 << 2, 0, 0, 0, 0))


def _transfer(opcode: Io, nsid: int, block: int, count: int, data: Sgl, flags: int = 0) -> Command:
    _within("blocks", count - 1, 0xFFFF)
    return Command(opcode, nsid, data, (block & 0xFFFFFFFF, block >> 32, count - 1 | flags, 0, 0, 0))


class BlockRange(NamedTuple):
    """Blocks for Dataset Management (NVM 3.2.3)."""

    block: int
    blocks: int


def pack_ranges(ranges: Iterable[BlockRange]) -> bytes:
    return b"".join(struct.pack("<IIQ", 0, one.blocks, one.block) for one in ranges)


def unpack_ranges(data: bytes | memoryview) -> list[BlockRange]:
    """:raises WireError:"""
    if len(data) % 16:
        raise WireError(f"{len(data)} bytes of block ranges, which have 16 each")
    return [BlockRange(block, count) for _, count, block in struct.iter_unpack("<IIQ", data)]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to a command (Base 3.3.3.2, and 3.3.2.1.2 for Fabrics).

    :ivar result: 8 bytes whose meaning the command has
    :ivar head: where the controller is in the submission queue
    """

    command_id: int
    result: int = 0
    head: int = 0
    queue: int = 0
    status: Status = SUCCESS

    def pack(self) -> bytes:
        return struct.pack("<QHHHH", self.result, self.head, self.queue, self.command_id, self.status.pack())


def unpack_completion(data: bytes | memoryview) -> Completion:
    """:raises WireError:"""
    _sized("a completion", data, COMPLETION_SIZE)
    result, head, queue, command_id, status = struct.unpack("<QHHHH", data)
    return Completion(command_id, result, head, queue, Status.unpack(status))


# ── connecting ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ConnectData:
    """What Connect carries (Base 6.3): who connects to what.

    :ivar host_id: 16 bytes
    :ivar controller: `ANY_CONTROLLER` for an admin queue, then the id that this was answered with
    """

    host_id: bytes
    controller: int
    subsystem: str
    host: str

    def pack(self) -> bytes:
        """:raises ValueError: a name is too long or not ASCII, or the host id not 16 bytes"""
        if len(self.host_id) != 16:
            raise ValueError(f"a host id of {len(self.host_id)} bytes, not 16")
        names = _pack_nqn(self.subsystem) + _pack_nqn(self.host)
        return struct.pack("<16sH238x512s256x", self.host_id, self.controller, names)


def unpack_connect_data(data: bytes | memoryview) -> ConnectData:
    """:raises WireError:"""
    _sized("connect data", data, CONNECT_DATA_SIZE)
    host_id, controller, subsystem, host = struct.unpack("<16sH238x256s256s256x", data)
    return ConnectData(host_id, controller, unpack_text(subsystem), unpack_text(host))


@dataclass(frozen=True, slots=True)
class CmRequest:
    """Private data of the request for a connection (RDMA figure 5).

    :ivar receive: entries of our receive queue: answers that we can take at once
    :ivar send: entries of our send queue
    :ivar controller: whose I/O queue it will be; 0 for an admin queue
    """

    SIZE: ClassVar[int] = 32

    queue: int
    receive: int
    send: int
    controller: int = 0

    def pack(self) -> bytes:
        # The send queue's size counts from 0, the receive queue's does not: so the specification has it.
        return struct.pack("<HHHHH22x", 0, self.queue, self.receive, self.send - 1, self.controller)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> CmRequest:
        """:raises WireError:"""
        _sized("a connection request", data, cls.SIZE)
        form, queue, receive, send, controller = struct.unpack("<HHHHH22x", data)
        _form(form)
        return cls(queue, receive, send + 1, controller)


@dataclass(frozen=True, slots=True)
class CmAccept:
    """Private data of the answer that accepts (RDMA figure 6).

    :ivar receive: entries of the controller's receive queue: commands that it can take at once
    """

    SIZE: ClassVar[int] = 32

    receive: int

    def pack(self) -> bytes:
        return struct.pack("<HH28x", 0, self.receive)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> CmAccept:
        """:param data: of which a transport may add bytes of its own at the end. :raises WireError:"""
        if len(data) < cls.SIZE:
            raise WireError(f"{len(data)} bytes are no accepted connection, which has {cls.SIZE}")
        form, receive = struct.unpack_from("<HH", data)
        _form(form)
        return cls(receive)


class CmReject(IntEnum):
    """Why a connection was refused (RDMA figure 7)."""

    INVALID_LENGTH = 0x01
    INVALID_FORMAT = 0x02
    INVALID_QUEUE = 0x03
    INVALID_SEND_SIZE = 0x04
    INVALID_RECEIVE_SIZE = 0x05
    NO_RESOURCES = 0x06
    INVALID_RESPONDER_RESOURCES = 0x07
    INVALID_INITIATOR_DEPTH = 0x08
    INVALID_CONTROLLER = 0x09

    def pack(self) -> bytes:
        return struct.pack("<HH", 0, self)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> CmReject:
        """:raises WireError: not a refusal by a controller: something in between refused"""
        if len(data) < 4:
            raise WireError(f"{len(data)} bytes say no reason, which has 4")
        form, status = struct.unpack_from("<HH", data)
        _form(form)
        try:
            return cls(status)
        except ValueError:
            raise WireError(f"refused for reason {status:02x}h, which is unknown") from None


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────


def unpack_text(field: bytes) -> str:
    """ASCII that zeros or spaces fill up; what is not ASCII is shown as escapes."""
    return field.split(b"\0")[0].decode("ascii", "backslashreplace").rstrip()


def _pack_nqn(name: str) -> bytes:
    if not name.isascii() or not 0 < len(name) <= NQN_MAX or "\0" in name:
        raise ValueError(f"{name!r} is not a qualified name of 1 to {NQN_MAX} characters of ASCII")
    return name.encode("ascii").ljust(256, b"\0")


def _sized(what: str, data: bytes | memoryview, size: int) -> None:
    if len(data) != size:
        raise WireError(f"{len(data)} bytes are not {what}, which has {size}")


def _form(form: int) -> None:
    if form:
        raise WireError(f"connection data of format {form}; only 0 is known")


def _within(what: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise ValueError(f"{what} {value} is not between 0 and {most}")
