"""System calls that Python has no function for, or wraps in others that the tests must not make."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_AT_FDCWD = -100
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
UTIME_NOW = 0x3FFFFFFF
UTIME_OMIT = 0x3FFFFFFE


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def renameat2(old: os.PathLike[str], new: os.PathLike[str], flags: int) -> None:
    _check(_LIBC.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags))


class _Times(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def utimensat(path: os.PathLike[str], atime: int, mtime: int) -> None:
    """Set the times by the special values UTIME_NOW and UTIME_OMIT."""
    times = (_Times * 2)(_Times(0, atime), _Times(0, mtime))
    _check(_LIBC.utimensat(_AT_FDCWD, os.fsencode(path), times, 0))


def fallocate(descriptor: int, length: int) -> None:
    """Without glibc's emulation."""
    _check(_LIBC.fallocate64(descriptor, 0, ctypes.c_long(0), ctypes.c_long(length)))


class Mapping:
    """Shared, writable memory of a file. Python's own mmap keeps a duplicate of the descriptor open; this does not."""

    def __init__(self, address: int, length: int) -> None:
        self._address = address
        self._length = length

    def load(self, start: int, stop: int) -> bytes:
        return ctypes.string_at(self._address + start, stop - start)

    def store(self, start: int, data: bytes) -> None:
        ctypes.memmove(self._address + start, data, len(data))

    def sync(self) -> None:
        _check(_LIBC.msync(self._address, self._length, 4))


@contextmanager
def mapped(descriptor: int, length: int) -> Iterator[Mapping]:
    """Map a file; the descriptor may be closed before the mapping goes."""
    flags, protection = mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
    address = _LIBC.mmap(None, length, protection, flags, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        _check(1)
    try:
        yield Mapping(address, length)
    finally:
        _check(_LIBC.munmap(address, length))
