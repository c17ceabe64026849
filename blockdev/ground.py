"""What a recovery works on: media, catalogues, and a space that knows which regions there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blockdev.catalogs import Catalogs
from blockdev.media import Media
from blockdev.reading import Reader
from blockdev.region import Region
from blockdev.slots import Slots
from blockdev.space import Space
from blockdev.types import DeviceNo, RegionHeader, RegionId, RegionNo, RegionState


@dataclass(frozen=True, slots=True)
class Ground:
    """What a recovery works on.

    :ivar view: what all members know, `catalog` among it
    :ivar space: has the regions that `catalog` speaks for, and perhaps others
    :ivar slots: how garbage is made invalid; None for a pool that is only read
    """

    media: Media
    view: Catalogs
    space: Space
    reader: Reader
    slots: Slots | None


def fill_space(
    media: Media, space: Space, devices: int, is_ours: Callable[[RegionHeader], bool] = lambda _: True
) -> int:
    """Tell `space` of our regions and of those in no use; returns how many have a damaged header and are not used.

    :param devices: how many the pool has, the missing ones included
    """
    damaged = 0
    for number in range(devices):
        if not media.available(DeviceNo(number)):
            space.drop_device(DeviceNo(number))
    for number, attached in media.devices.items():
        for region in range(attached.geometry.regions):
            region_id = RegionId(number, RegionNo(region))
            header = media.known_header(region_id)
            if header is None:
                damaged += 1
                space.drop_region(region_id)
            elif header.state is not RegionState.ACTIVE:
                space.add_unused(region_id)
            elif is_ours(header):
                space.add_region(region_of(media, region_id))
    return damaged


def region_of(media: Media, region_id: RegionId) -> Region:
    """An active region, of whose slots nothing is known. :raises Unavailable:"""
    header = media.header(region_id)
    return Region(region_id, header.slot_class, header.epoch, media.geometry(region_id).slots)
