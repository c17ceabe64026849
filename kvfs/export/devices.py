"""What may be exported: looks at devices and files, changes nothing but `allocate`, which gives a file its blocks."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from blockdev.errors import BadSuperblock, DeviceError, ForeignSignature, UnknownVersion
from blockdev.file_device import open_file_device
from blockdev.memory import page_buffer
from blockdev.raw_file import refuse_if_held
from blockdev.signatures import REACH, foreign_signature, signature_in
from blockdev.superblocks import read_superblock
from kvfs.errors import DeviceHeld, ExportedElsewhere, MissingDevice
from kvfs.export import held
from kvfs.provision import refuse_in_use

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from kvfs.state import StateDirectory

_NO_DRIVE: Final = (errno.ENOENT, errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM)


@dataclass(frozen=True, slots=True)
class Found:
    """A device that is there and that the node itself does not use.

    :ivar identity: the same for all its names
    :ivar touching: the identities of all that shares bytes with it: itself, and for a disk its partitions
    :ivar is_file: not a block device
    :ivar buffered: a file whose file system cannot do O_DIRECT
    """

    path: Path
    identity: Hashable
    touching: frozenset[Hashable]
    is_file: bool
    buffered: bool
    wwid: str | None


def find(path: Path) -> Found:
    """See that it is there, can be exported, and is not in use.

    :raises MissingDevice, DeviceHeld, DeviceError:
    """
    try:
        status = path.stat()
        holder = held.holder_of(path)
        if holder is None and stat.S_ISBLK(status.st_mode):
            refuse_if_held(path)  # file systems of several devices do not show in what is mounted
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise DeviceHeld(
                f"{path} is in use on this node: mounted, or part of a volume; free it first, or export another device"
            ) from None
        if error.errno in _NO_DRIVE:
            hint = "see that the drive is connected"
            if not path.is_relative_to("/dev"):
                hint = "make a file with 'fallocate -l 4G', for instance"
            raise MissingDevice(f"{path} does not exist: {hint}") from None
        raise DeviceError(str(path), error.errno or errno.EIO, error.strerror or "cannot be used") from error
    if holder is not None:
        raise DeviceHeld(f"{path} is in use on this node: {holder}; free it first, or export another device")
    if stat.S_ISBLK(status.st_mode):
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        touching: frozenset[Hashable] = frozenset(held.related(number))
        return Found(path, number, touching, is_file=False, buffered=False, wwid=held.wwid_of(number))
    if not stat.S_ISREG(status.st_mode):
        raise DeviceError(str(path), errno.ENOTBLK, "neither a file nor a block device")
    if not status.st_size:
        raise DeviceError(str(path), errno.EINVAL, "it is empty")
    identity = (status.st_dev, status.st_ino)
    return Found(path, identity, frozenset({identity}), is_file=True, buffered=_lacks_direct(path), wwid=None)


def is_buffered(path: Path) -> bool:
    """`Found.buffered` of what may not be there: then not.

    :raises DeviceError: it may not be opened
    """
    return path.is_file() and _lacks_direct(path)


def _lacks_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise DeviceError(str(path), error.errno or errno.EIO, str(error.strerror)) from error
        return True
    return False


def identity_of(path: Path) -> Hashable:
    """`Found.identity` of what may not be there; None then."""
    try:
        number = held.device_number(path)
        status = path.stat()
    except OSError:
        return None
    return number or (status.st_dev, status.st_ino)


@dataclass(frozen=True, slots=True)
class Offer:
    """A namespace of an export, in the kernel or remembered."""

    nqn: str
    number: int
    path: Path


def refuse_exported(found: Found, offers: Iterable[Offer]) -> None:
    """A device in two namespaces would be two drives to hosts, which then write over each other.

    :raises ExportedElsewhere:
    """
    for offer in offers:
        if identity_of(offer.path) in found.touching:
            raise ExportedElsewhere(
                f"{found.path} is exported already, as namespace {offer.number} of {offer.nqn}; remove it there first"
            )


async def refuse_contents(found: Found, state: StateDirectory, *, force: bool) -> None:
    """What the device holds would be in reach of hosts. A kvfs pool is what exports are for, unless a mount of this node
    has it open.

    :param force: hosts may overwrite what it holds
    :raises ForeignSignature, PoolBusy, DeviceError:
    """
    if found.buffered:
        holds = await trio.to_thread.run_sync(_holds_buffered, found.path)
    else:
        holds = await _holds(found)
        await refuse_in_use(state, found.path)
    if holds is not None and not force:
        raise ForeignSignature(
            f"{found.path} is not empty, it holds: {holds}; take another device, or --force to let hosts overwrite it"
        )


async def _holds(found: Found) -> str | None:
    # A block device is opened for writing: only then is the kernel asked whether somebody has it for himself.
    device = await open_file_device(found.path, writable=not found.is_file)
    try:
        try:
            await read_superblock(device)
        except UnknownVersion:
            return None
        except BadSuperblock:
            return await foreign_signature(device)
        return None
    finally:
        with trio.CancelScope(shield=True):
            await device.aclose()


def _holds_buffered(path: Path) -> str | None:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        head, tail = page_buffer(min(REACH, size)), page_buffer(min(REACH, size))
        file.seek(0)
        file.readinto(head)
        file.seek(size - len(tail))
        file.readinto(tail)
    return signature_in(size, head, tail)


async def allocate(found: Found) -> None:
    """Give every byte of a file its block, so that no write of a host fails for want of space.

    :raises DeviceError: ENOSPC, for instance
    """
    if found.is_file and not found.buffered:
        device = await open_file_device(found.path)
        await device.aclose()
