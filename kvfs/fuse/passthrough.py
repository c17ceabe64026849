"""Files in the kernel's memory that it reads by itself where one of ours is open: FUSE's passthrough, since Linux 6.9.

FUSE's page cache has single pages, and read(2) pays for each. A tmpfs with large pages is read four times as fast. It is
mounted nowhere, its files have no names, and all of it is gone with the process.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import struct
from contextlib import suppress

log = logging.getLogger(__name__)

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC = 1
_SET_STRING, _CREATE = 1, 6
_BACKING_MAP = struct.Struct("=iIQ")
_BACKING_ID = struct.Struct("=I")
_BACKING_OPEN = 1 << 30 | _BACKING_MAP.size << 16 | 229 << 8 | 1
_BACKING_CLOSE = 1 << 30 | _BACKING_ID.size << 16 | 229 << 8 | 2
_LIBC = ctypes.CDLL(None, use_errno=True)


class Passthrough:
    """Of one connection. Root of the machine only.

    :param fuse: the connection's open device
    :raises OSError: the system does not have it, or we may not
    """

    def __init__(self, fuse: int) -> None:
        self._fuse = fuse
        self._mount = _tmpfs()

    def new_file(self) -> int:
        """An empty file in memory, open. From any thread. :raises OSError:"""
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, dir_fd=self._mount)

    def back(self, fd: int) -> int:
        """Let the kernel read a file for us; returns the number under which opens may name it. :raises OSError:"""
        number: int = fcntl.ioctl(self._fuse, _BACKING_OPEN, bytearray(_BACKING_MAP.pack(fd, 0, 0)))
        return number

    def let_go(self, number: int) -> None:
        """No open will name it any more; those that did go on."""
        with suppress(OSError):  # the mount is gone
            fcntl.ioctl(self._fuse, _BACKING_CLOSE, _BACKING_ID.pack(number))

    def close(self) -> None:
        os.close(self._mount)


def passthrough_of(fuse: int) -> Passthrough | None:
    """That of a connection, if the system has it and we may."""
    try:
        return Passthrough(fuse)
    except OSError as error:
        log.info("the kernel reads nothing by itself: %s", error.strerror)
        return None


def _tmpfs() -> int:
    """A tmpfs that is mounted nowhere."""
    context = _call(_FSOPEN, b"tmpfs", _CLOEXEC)
    try:
        for key, value in ((b"source", b"kvfs"), (b"huge", b"always"), (b"size", b"0"), (b"mode", b"700")):
            _call(_FSCONFIG, context, _SET_STRING, key, value, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)


def _call(number: int, *arguments: object) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
