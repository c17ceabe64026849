"""Who uses a block device or file on this node, and what a drive says of itself; from /proc and /sys."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvfs.mountpoint import parse_mountinfo, unescaped

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path("/")
"""Where proc and sys are."""
_WWIDS: Final = ("wwid", "device/wwid", "dm/uuid", "md/uuid", "serial")
"""Where drives say who they are, the best first."""


def device_number(path: Path) -> str | None:
    """`major:minor` of a block device; None of anything else.

    :raises OSError: it is not there
    """
    found = path.stat()
    if not stat.S_ISBLK(found.st_mode):
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def holder_of(path: Path, root: Path = ROOT) -> str | None:
    """What the node itself does with a device or file, for people: "mounted on /data", "swap"; None if nothing.

    A disk is also held by what is on its partitions, and a partition by what has the whole disk.

    :raises OSError: it is not there
    """
    number = device_number(path)
    return _holder_of_file(path, root) if number is None else holder_of_block(number, path, root)


def holder_of_block(number: str, path: Path, root: Path = ROOT) -> str | None:
    """The same for a block device, by its `major:minor` and by its name."""
    family = list(_family(_folder(number, root)))
    numbers = {number} | {_text(folder / "dev") for folder in family}
    for entry in parse_mountinfo((root / "proc/self/mountinfo").read_bytes()):
        if entry.device in numbers:
            return f"mounted on {entry.mount_point}"
    names = {os.path.realpath(path)} | {f"/dev/{folder.name}" for folder in family}
    if names & set(_swaps(root)):
        return "swap"
    for folder in family:
        for holder in sorted(os.listdir(folder / "holders")) if (folder / "holders").is_dir() else ():  # noqa: PTH208
            called = _text(folder / "holders" / holder / "dm/name")
            return f"part of {holder}" + (f" ({called})" if called else "")
    return None


def _holder_of_file(path: Path, root: Path) -> str | None:
    name = os.path.realpath(path)
    if name in _swaps(root):
        return "swap"
    for backing in sorted((root / "sys/block").glob("loop*/loop/backing_file")):
        if _text(backing) == name:
            return f"attached to /dev/{backing.parent.parent.name}"
    return None


def wwid_of(number: str, root: Path = ROOT) -> str | None:
    """What identifies a drive, whichever name it has after the next boot; None if it says nothing."""
    folder = _folder(number, root)
    part = _text(folder / "partition")
    drive = folder.parent if part else folder
    for place in _WWIDS:
        found = _text(drive / place)
        if found:
            return f"{found}-part{part}" if part else found
    return None


def related(number: str, root: Path = ROOT) -> set[str]:
    """The numbers of all devices that share bytes with this one: itself, its partitions, or the disk that it is on."""
    return {number} | {_text(folder / "dev") for folder in _family(_folder(number, root))}


def _folder(number: str, root: Path) -> Path:
    return (root / "sys/dev/block" / number).resolve()


def _family(folder: Path) -> Iterator[Path]:
    yield folder
    if (folder / "partition").exists():
        yield folder.parent
    for inside in sorted(folder.glob("*/partition")):
        yield inside.parent


def _swaps(root: Path) -> list[str]:
    try:
        lines = (root / "proc/swaps").read_bytes().splitlines()[1:]
    except FileNotFoundError:  # a kernel without swap
        return []
    return [os.path.realpath(unescaped(line.split()[0])) for line in lines]


def _text(path: Path) -> str:
    """What a file of sysfs says; empty if it is not there or cannot be asked."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
