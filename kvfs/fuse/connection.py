"""The kernel's end of a mount: /dev/fuse, opened and mounted by ourselves.

As root by mount(2). Others ask fusermount3, which may, and which sends the open device through a socket.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import shutil
import socket
import stat
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import trio

from blockdev import forks
from kvfs.errors import MountFailed
from kvfs.fuse import wire
from kvfs.mountpoint import DEV_FUSE, FSTYPE

log = logging.getLogger(__name__)

_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH = 2
_MAX_PAGES_LIMIT = Path("/proc/sys/fs/fuse/max_pages_limit")
_FD = struct.Struct("=i")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Connection:
    """A mount's open device.

    :ivar fd: of /dev/fuse; it does not block
    """

    def __init__(self, fd: int, path: str) -> None:
        os.set_blocking(fd, False)
        forks.close_in_children(fd)  # or who waits for an answer would wait for as long as one lives
        self.fd = fd
        self._path = path

    def forget_attributes(self, inode: int) -> None:
        """Have the kernel forget an inode's attributes. From any thread.

        :raises OSError: FileNotFoundError if it does not know the inode
        """
        os.write(self.fd, wire.invalidate_attributes(inode))

    def close(self) -> None:
        """End the connection: who waits for an answer gets ENOTCONN; and take the mount away, if it is there still."""
        waiting = select.poll()
        waiting.register(self.fd, 0)
        gone = bool(waiting.poll(0))  # an error condition: unmounted from outside
        forks.forget(self.fd)
        os.close(self.fd)
        if gone:
            return
        if _LIBC.umount2(os.fsencode(self._path), _MNT_DETACH):
            program = shutil.which("fusermount3")
            if program is not None:
                subprocess.run(
                    [program, "-u", "-q", "-z", "--", self._path], check=False, capture_output=True
                )


async def connect(path: str, source: str, *, allow_other: bool) -> Connection:
    """Mount on a directory.

    :param source: what the mount is of, as tables of mounts show it
    :raises MountFailed:
    """
    options = ["default_permissions", *(["allow_other"] if allow_other else [])]
    if os.geteuid() == 0:
        try:
            return Connection(_mount(path, source, options), path)
        except PermissionError as error:
            log.info("mount(2): %s; trying fusermount3", error.strerror)  # root of a container, perhaps
        except OSError as error:
            raise MountFailed(f"{path}: the system refused the mount: {error.strerror}") from error
    options += ["nosuid", "nodev", f"fsname={source}", f"subtype={FSTYPE.partition('.')[2]}"]
    return Connection(await _fusermount(path, options), path)


def _mount(path: str, source: str, options: list[str]) -> int:
    fd = os.open(DEV_FUSE, os.O_RDWR | os.O_CLOEXEC)
    own = [f"fd={fd}", f"rootmode={stat.S_IFDIR:o}", f"user_id={os.geteuid()}", f"group_id={os.getegid()}"]
    data = ",".join(own + options).encode()
    names = source.encode(), os.fsencode(path), FSTYPE.encode()
    if _LIBC.mount(*names, _MS_NOSUID | _MS_NODEV, data):
        number = ctypes.get_errno()
        os.close(fd)
        raise OSError(number, os.strerror(number))
    return fd


async def _fusermount(path: str, options: list[str]) -> int:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        result = await trio.run_process(
            ["fusermount3", "-o", ",".join(options), "--", path],
            env=os.environ | {"_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            check=False,
            capture_stderr=True,
        )
        if result.returncode:
            said = " ".join(result.stderr.decode(errors="replace").split())
            raise MountFailed(f"{path}: the system refused the mount: {said}")
        return _received(ours)


def _received(end: socket.socket) -> int:
    """The descriptor that was sent. Not socket.recv_fds, which drops its flags."""
    room = socket.CMSG_LEN(_FD.size)
    _, messages, _, _ = end.recvmsg(1, room, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    fd: int = _FD.unpack_from(messages[0][2])[0]
    return fd


def allow_pages(count: int) -> int:
    """How many pages a request may have: up to `count`, which needs a system-wide setting raised; root may."""
    with suppress(OSError, ValueError):
        if int(_MAX_PAGES_LIMIT.read_text()) < count:
            _MAX_PAGES_LIMIT.write_text(str(count))
    try:
        return min(count, int(_MAX_PAGES_LIMIT.read_text()))
    except (OSError, ValueError):
        return min(count, 256)  # kernels without the setting have this limit


ENDED = frozenset({errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN})
"""What the device says when the mount is gone."""
