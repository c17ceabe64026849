"""What a device holds already, so that nobody's file system is overwritten by mistake.

The first and last 2 MiB, where everything that is known has its marks, are read through the Device, laid into a
sparse file in memory of the same size, and shown to blkid: its list of signatures is the longest there is, and it never
touches the device itself. A short list of our own is asked too: for hosts without blkid, and for partition
tables of disks with 4 KiB blocks, which blkid does not find in a file.
"""

from __future__ import annotations

import logging
import os
import shutil
from typing import Final

import sh
import trio

from blockdev import layout
from blockdev.device import Device
from blockdev.errors import BadSuperblock, UnknownVersion
from blockdev.memory import page_buffer
from blockdev.types import KIB, MIB, PAGE

log = logging.getLogger(__name__)

REACH: Final = 2 * MIB
"""Bytes at each end that are looked at, and wiped."""
_BLKID_SECONDS: Final = 20
_NOTHING, _AMBIVALENT = 2, 8  # exit codes of blkid
_CONTROL: Final = b"LUKS\xba\xbe\x00\x01"
_POOR: Final = "without blkid only the commonest file systems and volumes are recognised: %s"

_USAGE: Final = {
    "filesystem": "file system",
    "raid": "RAID or volume group member",
    "crypto": "encrypted volume",
    "other": "signature",
}
_OWN_TABLE: Final = (
    (0, b"LUKS\xba\xbe", "encrypted volume"),
    (0, b"XFSB", "xfs file system"),
    (0, b"bluestore block device", "ceph bluestore device"),
    (3, b"NTFS    ", "ntfs file system"),
    (512, b"EFI PART", "gpt partition table"),
    (512, b"LABELONE", "LVM physical volume"),
    (PAGE, b"EFI PART", "gpt partition table"),
    (PAGE, (0xA92B4EFC).to_bytes(4, "little"), "Linux RAID member"),
    (PAGE - 10, b"SWAPSPACE2", "swap area"),
    (KIB, (0xF2F52010).to_bytes(4, "little"), "f2fs file system"),
    (KIB + 56, b"\x53\xef", "ext2, ext3 or ext4 file system"),
    (32 * KIB + 1, b"CD001", "iso9660 file system"),
    (64 * KIB + 64, b"_BHRfS_M", "btrfs file system"),
    (510, b"\x55\xaa", "boot sector or dos partition table"),
    (-512, b"EFI PART", "gpt partition table (its copy at the end)"),
    (-PAGE, b"EFI PART", "gpt partition table (its copy at the end)"),
)
"""Offset in bytes, from the end if negative; mark; what it means."""


async def foreign_signature(device: Device) -> str | None:
    """What the device holds, for people: "ext4 file system 'data'", "gpt partition table", "kvfs pool 'a' (its
    UUID)"; None if nothing that is known.

    :raises DeviceError: it cannot be read
    """
    head, tail = await _ends(device)
    return await trio.to_thread.run_sync(signature_in, device.size, head, tail)


def signature_in(size: int, head: memoryview, tail: memoryview) -> str | None:
    """The same of bytes that were read already: the first and last `REACH` of `size`, or all if it is smaller. Takes
    as long as blkid does.
    """
    return _kvfs(head) or _ask_blkid(size, head, tail) or _ask_own_table(head, tail)


async def wipe_signatures(device: Device) -> None:
    """Overwrite both ends with zeros, durably. Whatever the device held is lost.

    :raises DeviceError:
    """
    length = min(REACH, device.size)
    zeros = page_buffer(length)
    await device.write_from(0, zeros)
    await device.write_from(device.size - length, zeros)
    await device.flush()


async def _ends(device: Device) -> tuple[memoryview, memoryview]:
    length = min(REACH, device.size)
    head, tail = page_buffer(length), page_buffer(length)
    await device.read_into(0, head)
    await device.read_into(device.size - length, tail)
    return head, tail


def _kvfs(head: memoryview) -> str | None:
    pages = [
        head[offset : offset + PAGE] for offset in layout.SUPERBLOCK_OFFSETS if offset + PAGE <= len(head)
    ]
    try:
        superblock = layout.pick_superblock(pages)
    except UnknownVersion as error:
        return f"kvfs pool of a newer version ({error})"
    except BadSuperblock:
        return None
    return f"kvfs pool {superblock.name!r} ({superblock.pool})"


def _ask_blkid(size: int, head: memoryview, tail: memoryview) -> str | None:
    program = _find_blkid()
    if program is None:
        log.warning(_POOR, "it is not installed")
        return None
    fd = os.memfd_create("kvfs-probe", 0)  # no MFD_CLOEXEC: blkid inherits it
    try:
        os.ftruncate(fd, size)
        os.pwrite(fd, head, 0)
        os.pwrite(fd, tail, size - len(tail))
        found = _run_blkid(program, fd)
        if found is None:
            # It also finds nothing, without a word, in what it cannot open: see that it finds what is there.
            os.pwrite(fd, _CONTROL, 0)
            if _run_blkid(program, fd) is None:
                log.warning(_POOR, "it does not find what is there")
        return found
    except (sh.ErrorReturnCode, sh.TimeoutException) as error:
        log.warning(_POOR, f"it failed with exit code {error.exit_code}")
        return None
    finally:
        os.close(fd)


def _find_blkid() -> str | None:
    """Users' search paths often lack the folders of system programs."""
    return shutil.which("blkid", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def _run_blkid(program: str, fd: int) -> str | None:
    """
    :raises sh.ErrorReturnCode, sh.TimeoutException: it does not work
    """
    result = sh.Command(program)(
        "--probe", "--output", "export", f"/proc/self/fd/{fd}",
        _pass_fds={fd}, _ok_code=[0, _NOTHING, _AMBIVALENT], _return_cmd=True, _timeout=_BLKID_SECONDS,
    )  # fmt: skip
    if result.exit_code == _AMBIVALENT:
        return "signatures of more than one kind"
    return _describe(str(result))


def _describe(export: str) -> str | None:
    """blkid's KEY=value lines in words."""
    values = dict(line.split("=", 1) for line in export.splitlines() if "=" in line)
    found = []
    if "PTTYPE" in values:
        found.append(f"{values['PTTYPE']} partition table")
    if "TYPE" in values:
        label = f" {values['LABEL']!r}" if "LABEL" in values else ""
        found.append(f"{values['TYPE']} {_USAGE.get(values.get('USAGE', ''), 'signature')}{label}")
    return " and ".join(found) or None


def _ask_own_table(head: memoryview, tail: memoryview) -> str | None:
    for offset, mark, meaning in _OWN_TABLE:
        end, start = (head, offset) if offset >= 0 else (tail, len(tail) + offset)
        if end[start : start + len(mark)] == mark:
            return meaning
    return None
