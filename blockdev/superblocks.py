"""What devices say of themselves and of their pool: superblocks read, written, and held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blockdev import layout
from blockdev.device import Device
from blockdev.errors import BadSuperblock, DeviceMismatch, FormatError, PoolBusy, WrongDomain
from blockdev.media import Attached, Media
from blockdev.memory import page_buffer
from blockdev.types import PAGE, DeviceEntry, Superblock


async def read_superblock(device: Device) -> Superblock:
    """The device's current superblock.

    :raises BadSuperblock: not a kvfs device, or both pages are damaged
    :raises UnknownVersion: written by a newer kvfs
    :raises DeviceError:
    """
    if device.size < layout.superblock_offset(1) + PAGE:
        raise BadSuperblock(f"{device.name} is too small to be a kvfs device")
    pages = [page_buffer(PAGE), page_buffer(PAGE)]
    for sequence, page in enumerate(pages):
        await device.read_into(layout.superblock_offset(sequence), page)
    try:
        return layout.pick_superblock(pages)
    except FormatError as error:
        raise type(error)(f"{device.name}: {error}") from error


async def write_superblock(device: Device, superblock: Superblock) -> None:
    page = page_buffer(PAGE)
    page[:] = layout.encode_superblock(superblock)
    await device.write_from(layout.superblock_offset(superblock.sequence), page)


def geometry_of(superblock: Superblock) -> layout.DeviceGeometry:
    size = superblock.devices[superblock.device_no].size
    return layout.DeviceGeometry(size, superblock.data_offset, superblock.region_size)


async def attach(devices: Sequence[Device]) -> list[Attached]:
    """
    :raises DeviceMismatch: of different pools, given twice, smaller than recorded, or not of the pool any more
    :raises FormatError, DeviceError:
    """
    if not devices:
        raise DeviceMismatch("no device of the pool is there")
    attached: list[Attached] = []
    for device in devices:
        superblock = await read_superblock(device)
        size = superblock.devices[superblock.device_no].size
        if device.size < size:
            raise DeviceMismatch(f"{device.name} has shrunk: {device.size} bytes, the pool uses {size}")
        for other in attached:
            if other.superblock.pool != superblock.pool:
                raise DeviceMismatch(f"{device.name} belongs to another pool than {other.device.name}")
            if other.superblock.device == superblock.device:
                raise DeviceMismatch(f"{device.name} and {other.device.name} are the same device of the pool")
        attached.append(Attached(device, superblock, geometry_of(superblock)))
    _check_agreement(attached)
    return attached


def device_table(attached: Sequence[Attached]) -> tuple[DeviceEntry, ...]:
    """The pool's devices: where adding one was cut off, some know of it and others do not yet."""
    return max((a.superblock.devices for a in attached), key=len)


def _check_agreement(attached: Sequence[Attached]) -> None:
    """See that the devices tell of one and the same pool.

    :raises DeviceMismatch: one was being added when that was cut off, and its number went to another since; or media
        of different pools were mixed
    """
    table = device_table(attached)
    first = attached[0].superblock
    for one in attached:
        its = one.superblock
        shape = (its.region_size, its.data_offset, its.extent_class)
        if its.devices != table[: len(its.devices)] or shape != (
            first.region_size,
            first.data_offset,
            first.extent_class,
        ):
            raise DeviceMismatch(
                f"{one.device.name} does not agree with the other devices about what the pool consists of: "
                "it is not used by the pool any more"
            )


def check_domain(attached: Sequence[Attached], ours: str) -> None:
    """Devices differ where taking the pool over was cut off: then nobody may have it before it is taken again.

    :raises WrongDomain:
    """
    for one in attached:
        its = one.superblock
        if its.domain != ours:
            raise WrongDomain(
                f"pool {its.name!r} is coordinated by {its.domain}, this host's domain is {ours}"
            )


async def read_again(media: Media, table: tuple[DeviceEntry, ...]) -> None:
    """See how often the pool was opened since its devices were attached.

    :param table: its devices, as they were known then
    :raises PoolBusy: it was changed meanwhile
    :raises FormatError, DeviceError:
    """
    for attached in media.devices.values():
        known, now = attached.superblock, await read_superblock(attached.device)
        same = replace(now, devices=known.devices, sequence=known.sequence) == known
        if not same or now.devices != table[: len(now.devices)]:
            raise PoolBusy(f"pool {known.name!r} was changed while it was being opened: open it again")
        attached.superblock = now


async def next_sequences(media: Media, table: tuple[DeviceEntry, ...]) -> None:
    for attached in media.devices.values():
        known = attached.superblock
        await media.write_superblock(replace(known, devices=table, sequence=known.sequence + 1))
    await media.flush(media.devices)
