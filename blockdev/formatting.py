"""Gives regions a slot class, or gives them up.

A file's blocks that were allocated and never written cost 1.9 times as much at their first write. To write a region
through when it is formatted would pay that in advance, and then once more for the bytes themselves: the first fill of a
pool took three times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import trio

from blockdev import layout
from blockdev.media import PAIR, Media
from blockdev.region import FORMATTED_SEQUENCE
from blockdev.types import (
    CHUNK_SLOTS,
    PAGE,
    Descriptor,
    Epoch,
    Generation,
    Kind,
    RegionHeader,
    RegionId,
    RegionState,
    SlotAddress,
    SlotClass,
    SlotNo,
)


async def format_region(
    media: Media, region: RegionId, slot_class: SlotClass, writer: UUID, is_awaited: Callable[[], bool]
) -> RegionHeader:
    """Give a region a slot class, with every slot free.

    Order: a RETIRED header with a new epoch, so that no old descriptor is believed from here on; all descriptor
    pairs; a flush; the ACTIVE header. A crash in between leaves a region that is simply formatted again. The
    ACTIVE header then takes both pages: with a RETIRED one beside it, damage to one page would empty the region.

    :param is_awaited: whether somebody waits for it; else it gives way to those who read
    :raises Unavailable, DeviceError:
    """
    old = media.header(region)
    retired = replace(
        old,
        state=RegionState.RETIRED,
        writer=writer,
        epoch=Epoch(old.epoch + 1),
        slot_class=slot_class,
        unproven=False,
        sequence=old.sequence + 1,
    )
    await media.write_header(retired)
    await media.flush([region.device])
    await _wipe_descriptors(media, region, retired, is_awaited)
    await media.flush([region.device])
    active = replace(retired, state=RegionState.ACTIVE, sequence=retired.sequence + 1)
    await media.write_header(active)
    await media.flush([region.device])
    active = replace(active, sequence=active.sequence + 1)
    await media.write_header(active)
    return active


async def retire_region(media: Media, region: RegionId) -> None:
    """Make a region nobody's. Nothing in it is believed from here on. :raises Unavailable, DeviceError:"""
    old = media.header(region)
    retired = replace(
        old,
        state=RegionState.RETIRED,
        writer=UUID(int=0),
        epoch=Epoch(old.epoch + 1),
        sequence=old.sequence + 1,
    )
    await media.write_header(retired)
    await media.flush([region.device])
    await media.write_header(replace(retired, sequence=retired.sequence + 1))


async def _wipe_descriptors(
    media: Media, region: RegionId, header: RegionHeader, is_awaited: Callable[[], bool]
) -> None:
    geometry = media.class_geometry(region.device, header.slot_class)
    generation = _first_generation(header.epoch)
    for chunk in range(geometry.chunks):
        first, count = geometry.chunk_span(chunk)
        with media.buffers.take(CHUNK_SLOTS * PAIR) as buffer:
            for i in range(count):
                address = SlotAddress(region.device, region.region, SlotNo(first + i))
                free = Descriptor(Kind.FREE, address, header.epoch, generation, FORMATTED_SEQUENCE)
                buffer[i * PAIR : i * PAIR + PAGE] = layout.encode_descriptor(media.pool, free)
                buffer[i * PAIR + PAGE : (i + 1) * PAIR] = bytes(PAGE)
            began = trio.current_time()
            await media.write_in_region(region, geometry.descriptor_offset(first), buffer[: count * PAIR])
        if not is_awaited():
            await media.pace.rest(trio.current_time() - began)


def _first_generation(epoch: Epoch) -> Generation:
    """The generation of a slot's first use after its region was formatted: no generation ever comes twice."""
    return Generation(epoch << 32)
