"""What can be known of a mount point from outside: who is mounted there, whether we may mount, who keeps it busy.

Nothing here asks the mounted file system itself, which may be dead or stuck: /proc tells.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvfs.errors import (
    AllowOtherRefused,
    MountError,
    MountFailed,
    MountPointBusy,
    MountPointMissing,
    MountPointUnusable,
    NoFuse,
    UnmountBusy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FSTYPE = "fuse.kvfs"
DEV_FUSE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")
_MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A line of /proc/self/mountinfo."""

    mount_point: str
    fstype: str
    source: str
    device: str
    """`major:minor`."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses a mount."""

    pid: int
    command: str


def parse_mountinfo(text: bytes) -> Iterator[MountEntry]:
    """The mounts, in the order in which they were made; of several on one directory the last is visible."""
    for line in text.splitlines():
        front, _, back = line.partition(b" - ")
        before, after = front.split(b" "), back.split(b" ")
        yield MountEntry(unescaped(before[4]), unescaped(after[0]), unescaped(after[1]), unescaped(before[2]))


def unescaped(text: bytes) -> str:
    """A path as /proc writes it, with `\\040` for a blank."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), text))


def mounted_at(path: str) -> MountEntry | None:
    """What is mounted on exactly this directory, if anything."""
    found = None
    for entry in parse_mountinfo(_MOUNTINFO.read_bytes()):
        if entry.mount_point == path:
            found = entry
    return found


def is_dead(path: str) -> bool:
    """Whether the process behind a mount is gone. Asks the mount, so it takes as long as that does to answer."""
    try:
        os.statvfs(path)  # not stat: the kernel may still know the root's attributes, and answer for the dead
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def resolve(path: Path) -> str:
    """The absolute path without symlinks. Does not fail for what is mounted by a dead process."""
    return os.path.realpath(path)


def check_mount_point(path: str) -> None:
    """See that something can be mounted on the (resolved) directory.

    :raises MountPointMissing, MountPointUnusable, MountPointBusy:
    """
    there = mounted_at(path)
    if there is not None and there.fstype == FSTYPE:
        raise MountPointBusy(
            f"{path}: already a mount of {there.source}; unmount it with 'kvfs umount {path}'"
        )
    try:
        with os.scandir(path) as entries:
            if next(entries, None) is not None:
                raise MountPointUnusable(
                    f"{path}: not empty; what is in it would be hidden: take an empty directory"
                )
    except FileNotFoundError:
        raise MountPointMissing(f"{path}: no such directory; make it with 'mkdir -p {path}'") from None
    except NotADirectoryError:
        raise MountPointUnusable(
            f"{path}: not a directory; a volume is mounted on an empty directory"
        ) from None
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise MountPointBusy(
                f"{path}: a mount whose process is gone; remove it with 'umount {path}'"
            ) from None
        raise


def check_fuse(*, allow_other: bool) -> None:
    """See that this process may mount at all.

    :raises NoFuse, AllowOtherRefused:
    """
    try:
        os.close(os.open(DEV_FUSE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise NoFuse(
            f"{DEV_FUSE} is missing: load the module with 'modprobe fuse', or give the container the device"
        ) from None
    except OSError as error:
        raise NoFuse(
            f"{DEV_FUSE} cannot be opened ({error.strerror}): run as a user who may, or allow the container the device"
        ) from None
    if os.geteuid() == 0:
        return
    if shutil.which("fusermount3") is None:
        raise NoFuse(
            "fusermount3 is missing, which lets users other than root mount: install the package fuse3"
        )
    if allow_other and not _user_allow_other():
        raise AllowOtherRefused(
            f"--allow-other is not permitted: add the line 'user_allow_other' to {FUSE_CONF}, or mount as root"
        )


def _user_allow_other() -> bool:
    try:
        return "user_allow_other" in FUSE_CONF.read_text().split("\n")
    except OSError:
        return False


def unmount_command(path: str, *, lazy: bool) -> list[str]:
    """The program that takes a mount away; `lazy` also one that is busy, or whose process is gone."""
    if os.geteuid() == 0:
        return ["umount", *(["-l"] if lazy else []), "--", path]
    return ["fusermount3", "-u", *(["-z"] if lazy else []), "--", path]


def unmount_refused(path: str, said: str) -> MountError:
    """Why `unmount_command` failed, from what it said on stderr (in the C locale)."""
    if "busy" not in said:
        return MountFailed(f"{path}: cannot be unmounted: {' '.join(said.split())}")
    users = ", ".join(f"{holder.command} (process {holder.pid})" for holder in holders(path))
    return UnmountBusy(
        f"{path}: in use{f' by {users}' if users else ''}; close what is open there and unmount again"
    )


def holders(path: str, limit: int = 5) -> list[Holder]:
    """Processes that have a file of the mount open or work in it: at most `limit` of those that we may look into."""
    found: list[Holder] = []
    for process in Path("/proc").iterdir():
        if len(found) == limit:
            break
        if (
            process.name.isdigit()
            and int(process.name) != os.getpid()
            and any(_inside(target, path) for target in _links(process))
        ):
            found.append(Holder(int(process.name), _command(process)))
    return found


def _inside(target: str, path: str) -> bool:
    return target == path or target.startswith(path.rstrip("/") + "/")


def _links(process: Path) -> Iterator[str]:
    """What a process's files, and its own directories, are called. Nothing for one that is gone or not ours."""
    try:
        names = [process / "cwd", process / "root", *(process / "fd").iterdir()]
    except OSError:
        return
    for name in names:
        try:
            yield str(name.readlink())
        except OSError:
            continue


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"
