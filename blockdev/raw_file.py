"""The blocking half of a file device: opening, and system calls on one descriptor."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import threading
import time
from pathlib import Path
from typing import Final

from blockdev.types import PAGE

# linux/fs.h; the numbers are the same on every architecture that has NVMe.
_BLKSSZGET: Final = 0x1268
_BLKDISCARD: Final = 0x1277
_BLOCKS: Final = 512
"""Bytes; the unit of st_blocks, whatever the file system's own is."""
_HELD_ATTEMPTS: Final = 4
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_NO_DISCARD: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL})


class RawFile:
    """The blocking half: system calls on one descriptor, from any thread.

    The descriptor is closed when `close` was called and the last call on it has returned: a number that is closed
    under a running call could by then name another file.

    :ivar fd: its number, for who has entered
    :ivar in_memory: it is a file whose file system keeps it there
    """

    def __init__(
        self, fd: int, *, size: int, block_size: int, is_file: bool, in_memory: bool = False
    ) -> None:
        self.in_memory = in_memory
        self.size = size
        self.block_size = block_size
        self.is_file = is_file
        self.fd = fd
        self._lock = threading.Lock()
        self._users = 1  # the open device itself

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self.fd)

    def has_holes(self) -> bool:
        return self.is_file and os.fstat(self.fd).st_blocks * _BLOCKS < self.size

    def allocate(self) -> None:
        """Give every byte of the file its block; what is written stays."""
        _check_room(self.fd, self.size - os.fstat(self.fd).st_blocks * _BLOCKS)
        os.posix_fallocate(self.fd, 0, self.size)

    def read(self, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < buffer.nbytes:
            count = os.preadv(self.fd, [buffer[done:]], offset + done)
            done += self._whole_blocks(count, "read")

    def write(self, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < buffer.nbytes:
            count = os.pwritev(self.fd, [buffer[done:]], offset + done)
            done += self._whole_blocks(count, "write")

    def flush(self) -> None:
        os.fdatasync(self.fd)

    def discard(self, offset: int, length: int) -> None:
        # A file keeps its blocks: a hole would let a later write fail for want of space.
        if self.is_file or not length:
            return
        try:
            fcntl.ioctl(self.fd, _BLKDISCARD, struct.pack("=QQ", offset, length))
        except OSError as error:
            if error.errno not in _NO_DISCARD:
                raise

    def _whole_blocks(self, count: int, what: str) -> int:
        """The kernel may split a long transfer; it never ends one inside a block unless the media ended there."""
        if count <= 0 or count % self.block_size:
            raise OSError(errno.EIO, f"short {what}: {count} bytes")
        return count


def open_raw(path: Path, *, writable: bool) -> RawFile:
    """Open what may be a device.

    :raises OSError: with a reason for people
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise OSError(errno.ENOTBLK, "neither a file nor a block device")
    if writable and stat.S_ISBLK(mode):
        refuse_if_held(path)
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OSError(errno.EINVAL, "its file system does not support O_DIRECT") from error
        raise
    try:
        return _examine(fd)
    except OSError:
        os.close(fd)
        raise


def refuse_if_held(path: Path) -> None:
    """O_EXCL on a block device asks whether the kernel itself uses it.

    Only asked, not kept: other members of a pool open the same device. Who asks at the same moment is in the
    way for microseconds, so a refusal counts only when it stays.

    :raises OSError: EBUSY
    """
    for attempt in range(_HELD_ATTEMPTS):
        time.sleep(attempt * 0.01)
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return
    raise OSError(errno.EBUSY, "in use: mounted, or part of another volume")


def _examine(fd: int) -> RawFile:
    is_file = stat.S_ISREG(os.fstat(fd).st_mode)
    block_size = PAGE
    if not is_file:
        (block_size,) = struct.unpack("=i", fcntl.ioctl(fd, _BLKSSZGET, bytes(4)))
        if block_size > PAGE:
            raise OSError(errno.EINVAL, f"its blocks of {block_size} bytes are larger than {PAGE}")
    size = os.lseek(fd, 0, os.SEEK_END) // block_size * block_size
    if not size:
        raise OSError(errno.EINVAL, "it is empty")
    in_memory = is_file and _file_system(fd) in _IN_MEMORY
    return RawFile(fd, size=size, block_size=block_size, is_file=is_file, in_memory=in_memory)


def _file_system(fd: int) -> str:
    """The type of the file system that an open file is on; empty if the system does not say."""
    try:
        [mount] = re.findall(r"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.MULTILINE)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.startswith(f"{mount} "):
                return line.partition(" - ")[2].partition(" ")[0]
    except (OSError, ValueError):
        pass
    return ""


def create_allocated(path: Path, size: int) -> None:
    """Make a file of `size` bytes, all of them allocated, durably.

    :raises OSError: nothing is left of the file
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _check_room(fd, size)
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
        _sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _check_room(fd: int, wanted: int) -> None:
    """Ask before allocating: file systems find out only when they have filled themselves up, to everyone's harm.

    :raises OSError: ENOSPC
    """
    room = os.fstatvfs(fd)
    free = room.f_bavail * room.f_frsize
    if wanted > free:
        raise OSError(errno.ENOSPC, f"needs {wanted} bytes, its file system has {free}")


def _sync_folder(folder: Path) -> None:
    """A new name is durable only with its folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
