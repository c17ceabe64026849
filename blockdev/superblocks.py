"""What a device says of itself: reading its pair of superblocks."""

from __future__ import annotations

from blockdev import layout
from blockdev.device import Device
from blockdev.errors import BadSuperblock, FormatError
from blockdev.memory import page_buffer
from blockdev.types import PAGE, Superblock


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
