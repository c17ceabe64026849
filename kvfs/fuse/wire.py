"""The kernel's FUSE messages, as far as the data lane reads and writes them itself. Pure.

Every message begins with its length. A request is a header of 40 bytes and its arguments; an answer is a header of 16
bytes and what was asked for. Numbers are in the machine's byte order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple, Protocol

IN_HEADER = struct.Struct("=IIQQIIIHH")
"""length, opcode, unique, nodeid, uid, gid, pid, length of extensions, padding"""
READ_ARGUMENTS = struct.Struct("=QQIIQII")
"""fh, offset, size, flags of the request, lock owner, flags of the file, padding; WRITE's are the same"""
OUT_HEADER = struct.Struct("=IiQ")
"""length, negative errno, unique"""
WRITE_OUT = struct.Struct("=IiQII")
"""with the header: size, padding"""
INIT_ARGUMENTS = struct.Struct("=IIII")
"""major, minor, max_readahead, flags; newer kernels say more"""
INIT_MORE = struct.Struct("=16xI")
"""flags2, if the flags say that there are"""
INIT_OUT = struct.Struct("=IIIIHHIIHHIIHH20x")
"""major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran, max_pages,
map_alignment, flags2, max_stack_depth, request_timeout, and nothing"""
INVALIDATE_INODE = struct.Struct("=IiQQqq")
"""with the header: inode, offset, length"""
ATTRIBUTES_OUT = struct.Struct("=IiQQI4xQQQQQQIIIIIIIIII")
"""with the header: seconds and nanoseconds of validity, then inode, size, blocks, atime, mtime, ctime, their nanoseconds,
mode, nlink, uid, gid, rdev, blksize, flags"""
ENTRY_OUT = struct.Struct("=IiQQQQQIIQQQQQQIIIIIIIIII")
"""with the header: inode, generation, seconds of validity of the name and of the attributes, their nanoseconds, then as
above"""
OPEN_OUT = struct.Struct("=QIi")
"""fh, flags, number of the file that the kernel reads by itself"""
CALLER = struct.Struct("=24xIII")
"""of a request's header: uid, gid, pid"""
RENAME_ARGUMENTS = struct.Struct("=Q")
"""the new directory; then come the old name, a zero, the new name, and a zero"""
CREATE_ARGUMENTS = struct.Struct("=IIII")
"""flags, mode, umask, flags of the request; then comes the name, and a zero"""
OPEN_ARGUMENTS = struct.Struct("=II")
"""flags, flags of the request"""
XATTR_ARGUMENTS = struct.Struct("=I4x")
"""size; then comes the name, and a zero"""

DATA_HEADER = IN_HEADER.size + READ_ARGUMENTS.size
"""Bytes before the payload of a WRITE."""
DIRECTORY_BYTES = 32 << 10
"""Most that a listing is asked for at once: what the C library's readdir takes."""

_REQUEST = struct.Struct("=IIQQ16xQQI")
_SIZE = struct.Struct("=I")
_SIZE_AT = IN_HEADER.size + 16
_MAJOR = 7
_NARROW_MINOR = 13
_NARROW_OUT = struct.Struct("=IIIIHHI")
_NOTIFY_INVALIDATE_INODE = 2


class Opcode(IntEnum):
    """The requests that the lane knows."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    GETXATTR = 22
    FLUSH = 25
    INIT = 26
    READDIR = 28
    CREATE = 35
    INTERRUPT = 36
    BATCH_FORGET = 42
    READDIRPLUS = 44


class InitFlag(IntFlag):
    """What the two sides can do, as far as the lane cares."""

    MAX_PAGES = 1 << 22
    HANDLE_KILLPRIV_V2 = 1 << 28
    INIT_EXT = 1 << 30
    PASSTHROUGH = 1 << 37


class OpenFlag(IntFlag):
    """How the kernel is to treat an open file."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    PASSTHROUGH = 1 << 7


class StatLike(Protocol):
    """What stat(2) says."""

    @property
    def st_ino(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_blocks(self) -> int: ...
    @property
    def st_atime_ns(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...
    @property
    def st_mode(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_gid(self) -> int: ...
    @property
    def st_rdev(self) -> int: ...
    @property
    def st_blksize(self) -> int: ...


class EntryLike(StatLike, Protocol):
    """And for how many seconds the kernel may believe it."""

    @property
    def attr_timeout(self) -> float: ...
    @property
    def entry_timeout(self) -> float: ...


class Request(NamedTuple):
    """A request; the last three fields are those of READ and WRITE, and mean nothing in others, but that FLUSH and
    RELEASE have a handle too.
    """

    length: int
    opcode: int
    unique: int
    inode: int
    handle: int
    offset: int
    size: int


def parse(message: bytes | bytearray | memoryview) -> Request:
    """The beginning of a request, from at least `DATA_HEADER` bytes."""
    return Request._make(_REQUEST.unpack_from(message))


def data_answer(unique: int, length: int) -> bytes:
    """What goes before `length` bytes of an answer to READ."""
    return OUT_HEADER.pack(OUT_HEADER.size + length, 0, unique)


def write_answer(unique: int, size: int) -> bytes:
    """The answer to a WRITE that was taken."""
    return WRITE_OUT.pack(WRITE_OUT.size, 0, unique, size, 0)


def attributes_answer(unique: int, seconds: float, attributes: StatLike) -> bytes:
    """The answer to GETATTR.

    :param seconds: for how long they are true
    """
    whole = int(seconds)
    return ATTRIBUTES_OUT.pack(
        ATTRIBUTES_OUT.size, 0, unique, whole, int((seconds - whole) * 1e9), *_attributes(attributes)
    )


def entry_answer(unique: int, entry: EntryLike, opened: bytes = b"") -> bytes:
    """The answer to LOOKUP: what a name stands for, or with inode 0 that it stands for nothing.

    :param opened: what CREATE is answered with besides, see `opened`
    """
    name, attributes = int(entry.entry_timeout), int(entry.attr_timeout)
    return (
        ENTRY_OUT.pack(
            ENTRY_OUT.size + len(opened), 0, unique, entry.st_ino, 0, name, attributes,
            int((entry.entry_timeout - name) * 1e9), int((entry.attr_timeout - attributes) * 1e9),
            *_attributes(entry),
        )
        + opened
    )  # fmt: skip


def _attributes(of: StatLike) -> tuple[int, ...]:
    (atime, a), (mtime, m), (ctime, c) = (
        divmod(ns, 10**9) for ns in (of.st_atime_ns, of.st_mtime_ns, of.st_ctime_ns)
    )
    return (
        of.st_ino, of.st_size, of.st_blocks, atime, mtime, ctime, a, m, c,
        of.st_mode, of.st_nlink, of.st_uid, of.st_gid, of.st_rdev, of.st_blksize, 0,
    )  # fmt: skip


def opened(handle: int, flags: OpenFlag, backing: int = 0) -> bytes:
    """How a file is open. :param backing: what the kernel reads by itself, 0 for nothing"""
    return OPEN_OUT.pack(handle, OpenFlag.PASSTHROUGH if backing else flags, backing)


def open_answer(unique: int, handle: int, flags: OpenFlag, backing: int = 0) -> bytes:
    """The answer to OPEN."""
    return OUT_HEADER.pack(OUT_HEADER.size + OPEN_OUT.size, 0, unique) + opened(handle, flags, backing)


def with_backing(answer: bytes | memoryview, backing_of: Callable[[int], int]) -> bytes | memoryview:
    """An answer to OPEN or CREATE that says what the kernel may read by itself, if there is anything.

    :param backing_of: says it of a file handle
    """
    error = OUT_HEADER.unpack_from(answer)[1]
    if error:
        return answer
    at = len(answer) - OPEN_OUT.size
    handle, flags, _ = OPEN_OUT.unpack_from(answer, at)
    backing = backing_of(handle)
    return bytes(answer[:at]) + opened(handle, flags, backing) if backing else answer


def names_at(message: bytes, at: int) -> tuple[bytes, bytes]:
    """Two names behind `at` bytes of a request's arguments."""
    first, second, _ = message[IN_HEADER.size + at :].split(b"\0", 2)
    return first, second


def name_at(message: bytes | memoryview, at: int) -> bytes:
    """A name behind `at` bytes of a request's arguments."""
    return bytes(message[IN_HEADER.size + at :]).partition(b"\0")[0]


def xattr_name(message: bytes | memoryview) -> bytes:
    """Which attribute a GETXATTR asks for."""
    return name_at(message, XATTR_ARGUMENTS.size)


def error_answer(unique: int, number: int) -> bytes:
    """The answer that fails a request with a (positive) errno; with 0, that there is nothing to say but that it was
    done.
    """
    return OUT_HEADER.pack(OUT_HEADER.size, -number, unique)


def invalidate_attributes(inode: int) -> bytes:
    """Have the kernel forget an inode's attributes, and keep its pages."""
    return INVALIDATE_INODE.pack(INVALIDATE_INODE.size, _NOTIFY_INVALIDATE_INODE, 0, inode, -1, 0)


def unique_of(answer: bytes | bytearray | memoryview) -> int:
    """Which request an answer is for."""
    unique: int = OUT_HEADER.unpack_from(answer)[2]
    return unique


def is_answered(opcode: int) -> bool:
    """Whether the kernel waits for an answer to such a request."""
    return opcode not in (Opcode.FORGET, Opcode.BATCH_FORGET)


def limited_listing(message: bytes) -> bytes:
    """A READDIR or READDIRPLUS that asks for no more than `DIRECTORY_BYTES`."""
    (size,) = _SIZE.unpack_from(message, _SIZE_AT)
    return message[:_SIZE_AT] + _SIZE.pack(min(size, DIRECTORY_BYTES)) + message[_SIZE_AT + _SIZE.size :]


@dataclass(frozen=True, slots=True)
class Handshake:
    """What the kernel said in INIT.

    :ivar flags: what it can do
    """

    unique: int
    max_readahead: int
    flags: int

    @classmethod
    def of(cls, message: bytes | bytearray | memoryview) -> Handshake:
        """:raises ValueError: a kernel that speaks another protocol"""
        major, _, max_readahead, flags = INIT_ARGUMENTS.unpack_from(message, IN_HEADER.size)
        if flags & InitFlag.INIT_EXT:
            flags |= INIT_MORE.unpack_from(message, IN_HEADER.size)[0] << 32
        if major != _MAJOR:
            raise ValueError(f"the kernel speaks version {major} of the FUSE protocol, not {_MAJOR}")
        return cls(parse_unique(message), max_readahead, flags)

    def narrowed(self) -> bytes:
        """INIT for libfuse: as from a kernel of the time before it would splice every request through a pipe, which
        takes three calls where one does; the messages that it gets are the same.
        """
        length = IN_HEADER.size + INIT_ARGUMENTS.size
        header = IN_HEADER.pack(length, Opcode.INIT, self.unique, 0, 0, 0, 0, 0, 0)
        flags = self.flags & 0xFFFFFFFF & ~InitFlag.INIT_EXT
        return header + INIT_ARGUMENTS.pack(_MAJOR, _NARROW_MINOR, self.max_readahead, flags)

    def widened(
        self,
        answer: bytes | memoryview,
        *,
        max_pages: int,
        page: int,
        max_background: int,
        passthrough: bool = False,
    ) -> bytes:
        """The answer for the kernel, from libfuse's to `narrowed`: its flags, and what the lane can do besides.

        :param max_pages: most pages of a READ or WRITE
        """
        if len(answer) < OUT_HEADER.size + _NARROW_OUT.size:
            return bytes(answer)  # it refused
        major, minor, max_readahead, flags, _, _, _ = _NARROW_OUT.unpack_from(answer, OUT_HEADER.size)
        if not self.flags & InitFlag.MAX_PAGES:
            max_pages = 32
        flags |= self.flags & (InitFlag.MAX_PAGES | InitFlag.HANDLE_KILLPRIV_V2)
        depth = 0
        if passthrough and self.flags & InitFlag.PASSTHROUGH:
            flags |= InitFlag.INIT_EXT | InitFlag.PASSTHROUGH
            depth = 1
        body = INIT_OUT.pack(
            major, minor, max_readahead, flags & 0xFFFFFFFF, max_background, max_background * 3 // 4,
            max_pages * page, 1, max_pages, 0, flags >> 32, depth, 0, 0,
        )  # fmt: skip
        return OUT_HEADER.pack(OUT_HEADER.size + len(body), 0, self.unique) + body


def parse_unique(message: bytes | bytearray | memoryview) -> int:
    """Which request it is."""
    unique: int = IN_HEADER.unpack_from(message)[2]
    return unique
