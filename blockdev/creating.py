"""Creating pools, and changing what they consist of: new devices, another domain. Nobody may have them open.

Order when a pool is made: region headers, flush, superblocks, flush. Without a superblock it is not a pool.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from blockdev import layout
from blockdev.device import Device
from blockdev.errors import DeviceMismatch, NoSpace
from blockdev.memory import page_buffer
from blockdev.superblocks import attach, device_table, geometry_of, read_superblock, write_superblock
from blockdev.types import (
    EXTENT_CLASSES,
    MIB,
    PAGE,
    DeviceEntry,
    DeviceNo,
    Epoch,
    RegionHeader,
    RegionNo,
    RegionState,
    SlotClass,
    Superblock,
)

_REGIONS_MIN = 4
"""One for directories and small files, and some for extents."""


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """How a pool is to be.

    :ivar domain: who coordinates it, `local:<uuid>` or `etcd:<cluster id>`
    :ivar region_size: bytes; None chooses by the devices' sizes
    """

    name: str
    domain: str
    extent_class: SlotClass = SlotClass.MIB4
    region_size: int | None = None


async def create_pool(devices: Sequence[Device], options: CreateOptions) -> Superblock:
    """Make a pool of these devices, whatever they hold. Returns the first one's superblock.

    :raises NoSpace: a device is too small
    :raises DeviceMismatch: two of them are one; none is a pool's then
    :raises ValueError: no devices, too many, no such extent size, or regions that hold no extent
    :raises DeviceError:
    """
    if not 1 <= len(devices) <= layout.DEVICES_MAX:
        raise ValueError(f"a pool has 1 to {layout.DEVICES_MAX} devices")
    if options.extent_class not in EXTENT_CLASSES:
        raise ValueError(f"no extent size: {options.extent_class.name}")
    sizes = [device.size for device in devices]
    region_size = options.region_size or layout.default_region_size(sizes, options.extent_class)
    if region_size % PAGE or not layout.RegionGeometry(region_size, options.extent_class).slots:
        raise ValueError(f"a region of {region_size} bytes does not hold one extent, or is not whole pages")
    table = tuple(DeviceEntry(_new_uuid(), size) for size in sizes)
    first = Superblock(
        pool=_new_uuid(),
        device=table[0].uuid,
        device_no=DeviceNo(0),
        domain=options.domain,
        name=options.name,
        region_size=region_size,
        data_offset=layout.DEFAULT_DATA_OFFSET,
        extent_class=options.extent_class,
        devices=table,
        sequence=1,
    )
    for device in devices:
        check_size(device, region_size)
    superblocks = [replace(first, device=e.uuid, device_no=DeviceNo(n)) for n, e in enumerate(table)]
    for device, superblock in zip(devices, superblocks, strict=True):
        await _prepare(device, superblock)
    for device, superblock in zip(devices, superblocks, strict=True):
        await _introduce(device, superblock)
    await _refuse_shared(devices, table)
    return first


async def _refuse_shared(devices: Sequence[Device], table: Sequence[DeviceEntry]) -> None:
    """Two of them may be one drive by two ways, which the system does not know: then both show what was written last."""
    for device, entry in zip(devices, table, strict=True):
        shown = await read_superblock(device)
        if shown.device != entry.uuid:
            other = devices[shown.device_no]
            for one in devices:
                await erase(one)
            raise DeviceMismatch(
                f"{device.name} and {other.name} are the same drive by two names: give one of them"
            )


def check_size(device: Device, region_size: int) -> None:
    """:raises NoSpace: the device holds too few regions"""
    least = layout.DEFAULT_DATA_OFFSET + _REGIONS_MIN * region_size
    if device.size < least:
        raise NoSpace(
            f"{device.name} has {device.size // MIB} MiB; at least {-(-least // MIB)} MiB are needed"
        )


async def _prepare(device: Device, superblock: Superblock) -> None:
    """Erase old superblocks and write both pages of every region header."""
    zero = page_buffer(PAGE)
    for sequence in (0, 1):
        await device.write_from(layout.superblock_offset(sequence), zero)
    geometry = geometry_of(superblock)
    pair = page_buffer(layout.PAIR)
    for number in range(geometry.regions):
        for sequence in (2, 3):
            header = RegionHeader(
                pool=superblock.pool,
                device_no=superblock.device_no,
                region=RegionNo(number),
                state=RegionState.UNUSED,
                writer=UUID(int=0),
                epoch=Epoch(0),
                slot_class=SlotClass.INLINE,
                unproven=False,
                sequence=sequence,
            )
            start = sequence % 2 * PAGE
            pair[start : start + PAGE] = layout.encode_region_header(header)
        await device.write_from(geometry.region_offset(RegionNo(number)), pair)
    await device.flush()


async def _introduce(device: Device, superblock: Superblock) -> None:
    """Write both pages of a device's superblock."""
    for sequence in (superblock.sequence, superblock.sequence + 1):
        await write_superblock(device, replace(superblock, sequence=sequence))
    await device.flush()


async def add_device(present: Sequence[Device], new: Device, *, degraded: bool = False) -> Superblock:
    """Add `new` to the pool of which `present` are all devices; nobody may have it open. Returns its superblock.

    The new device knows of itself before the others know of it: after a crash in between, the longer table counts.

    :param degraded: others may be missing. One that comes back learns of the new one from the others, unless it was
        given a device of its own meanwhile: then they do not agree any more
    :raises DeviceMismatch: devices of the pool are missing
    :raises NoSpace: it is too small
    :raises ValueError: the pool has as many devices as it can have
    :raises FormatError, DeviceError:
    """
    attached = await attach(present)
    table = device_table(attached)
    if len(attached) != len(table) and not degraded:
        raise DeviceMismatch(
            "a device can be added only while all others are there, unless one is lost for good and that is forced"
        )
    if len(table) >= layout.DEVICES_MAX:
        raise ValueError(f"a pool has at most {layout.DEVICES_MAX} devices")
    first = attached[0].superblock
    check_size(new, first.region_size)
    entry = DeviceEntry(_new_uuid(), new.size)
    grown = (*table, entry)
    superblock = replace(first, device=entry.uuid, device_no=DeviceNo(len(table)), devices=grown, sequence=1)
    await _prepare(new, superblock)
    await _introduce(new, superblock)
    for one in attached:
        known = replace(one.superblock, devices=grown, sequence=one.superblock.sequence + 1)
        await write_superblock(one.device, known)
        await one.device.flush()
    return superblock


async def set_domain(devices: Sequence[Device], domain: str) -> None:
    """Take a pool over into another coordination domain; nobody may have it open. :raises FormatError, DeviceError:"""
    for one in await attach(devices):
        taken = replace(one.superblock, domain=domain, sequence=one.superblock.sequence + 1)
        await write_superblock(one.device, taken)
        await one.device.flush()


async def erase(device: Device) -> None:
    """Make a device no device of a pool any more. :raises DeviceError:"""
    zero = page_buffer(PAGE)
    for sequence in (0, 1):
        await device.write_from(layout.superblock_offset(sequence), zero)
    await device.flush()


def _new_uuid() -> UUID:
    return UUID(bytes=secrets.token_bytes(16), version=4)
