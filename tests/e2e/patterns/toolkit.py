"""What the patterns share: contents that can be told apart, aligned memory, errnos as words, and the few system
calls that Python does not have. Standard library only, so that a bare machine can run the suite."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PAGE = 4096
WHOLE_MAX = 64 << 20
"""Bytes; nobody wants to read more of a sparse file."""
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
DT_DIR, DT_REG = 4, 8

Outcome = dict[str, object]
"""What a pattern saw, by step: the same on every file system that the engine can use, whatever its speed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How big a pattern's files are; bytes."""

    block: int
    count: int
    slab: int = 1 << 40

    @property
    def aligned(self) -> int:
        """A block as an engine pads it for O_DIRECT."""
        return -(-self.block // PAGE) * PAGE


@dataclass(frozen=True, slots=True)
class Pattern:
    """One engine's sequence of file calls.

    `on_kvfs` are the documented exceptions: the steps whose outcome on kvfs differs from a local file system's.
    """

    name: str
    run: Callable[[Path, Sizes], Outcome]
    on_kvfs: Mapping[str, object] = field(default_factory=dict)


def content(seed: str, size: int) -> bytes:
    """Bytes that no other seed has, the same in every process."""
    return random.Random(seed).randbytes(size)


def digest(data: bytes | bytearray | memoryview) -> str:
    """Short enough to read in a failed assertion."""
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def key_of(seed: str) -> str:
    """64 hexadecimal digits, as engines name a block by its hash."""
    return hashlib.sha256(seed.encode()).hexdigest()


# one number, two names: the one of the manual pages
_NAMES: dict[int, str] = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP", errno.EAGAIN: "EAGAIN"}


def attempt(call: Callable[[], object]) -> str:
    """ "OK", or the name of the errno that `call` failed with."""
    try:
        call()
    except OSError as error:
        return _NAMES.get(error.errno or 0, f"errno {error.errno}")
    return "OK"


def aligned(size: int, data: bytes = b"") -> memoryview:
    """`size` bytes of page-aligned memory that begin with `data`, free when nothing refers to them."""
    memory = mmap.mmap(-1, max(size, 1))
    memory[: len(data)] = data
    return memoryview(memory)[:size]


@contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int]:
    """A descriptor as open(2) gives it, closed at the end."""
    fd = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def write_direct(path: Path, flags: int, data: bytes, mode: int = 0o644) -> int:
    """Open with O_DIRECT as well, one write of `data` from aligned memory, close. Bytes written."""
    view = aligned(len(data), data)
    with opened(path, flags | os.O_DIRECT, mode) as fd:
        return os.write(fd, view)


def read_direct(path: Path, size: int) -> bytes:
    """Open with O_DIRECT, one read of `size` bytes into aligned memory, close."""
    view = aligned(size)
    with opened(path, os.O_RDONLY | os.O_DIRECT) as fd:
        return bytes(view[: os.readv(fd, [view])])


def write_all(path: Path, data: bytes, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
    """Open, one buffered write, close. Bytes written."""
    with opened(path, flags) as fd:
        return os.write(fd, data)


def read_once(path: Path, size: int) -> bytes:
    """Open, one buffered read of up to `size` bytes, close."""
    with opened(path, os.O_RDONLY) as fd:
        return os.read(fd, size)


def present(paths: Iterable[Path]) -> list[bool]:
    """access(F_OK) of each."""
    return [os.access(path, os.F_OK) for path in paths]


def tree(root: Path) -> dict[str, tuple[int, str]]:
    """Every file below `root`, by relative path: its size and digest, of a symbolic link its target."""
    found: dict[str, tuple[int, str]] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            size = path.lstat().st_size
            if path.is_symlink():
                found[str(path.relative_to(root))] = (size, str(path.readlink().name))
                continue
            data = read_once(path, size) if size <= WHOLE_MAX else b"sparse"
            found[str(path.relative_to(root))] = (size, digest(data))
    return dict(sorted(found.items()))


# --- system calls ---------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value
_GETDENTS64 = {"x86_64": 217, "aarch64": 61}


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def system_call(number: int, *arguments: object) -> int:
    """syscall(2); the result. Plain integers are passed as longs.

    :raises OSError: it failed
    """
    longs = (ctypes.c_long(value) if isinstance(value, int) else value for value in arguments)
    return _check(_libc.syscall(ctypes.c_long(number), *longs))


def fallocate(fd: int, length: int) -> None:
    """fallocate(2) with mode 0, without glibc's emulation.

    :raises OSError: EOPNOTSUPP where the file system has no such thing
    """
    _check(_libc.fallocate(fd, 0, 0, length))


@contextmanager
def mapped(fd: int, size: int, flags: int) -> Iterator[memoryview]:
    """mmap(2), readable and writable. Unlike Python's own it keeps no duplicate of the descriptor, whose close would
    be one more for the file system to see.

    :raises OSError:
    """
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == _MAP_FAILED:
        _check(-1)
    try:
        yield memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    finally:
        _check(_libc.munmap(address, size))


def msync(view: memoryview) -> None:
    """msync(2) of a whole mapping, MS_SYNC."""
    _check(_libc.msync(ctypes.addressof(ctypes.c_char.from_buffer(view)), len(view), 4))


def touch_atime(path: Path) -> None:
    """utimensat(2): access time to now, modification time left alone."""
    times = struct.pack("=qqqq", 0, UTIME_NOW, 0, UTIME_OMIT)
    _check(_libc.utimensat(-100, os.fsencode(path), times, 0))


def entry_types(folder: Path) -> dict[str, int]:
    """d_type of each entry as getdents64(2) has it, "." and ".." left out: 0 would cost engines a stat each."""
    found: dict[str, int] = {}
    buffer = ctypes.create_string_buffer(1 << 16)
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        number = _GETDENTS64[os.uname().machine]
        while filled := system_call(number, fd, buffer, len(buffer)):
            at = 0
            while at < filled:
                _, _, length, kind = struct.unpack_from("=QqHB", buffer, at)
                name = buffer.raw[at + 19 : at + length].split(b"\0", 1)[0]
                found[os.fsdecode(name)] = kind
                at += length
    return {name: kind for name, kind in sorted(found.items()) if name not in (".", "..")}
