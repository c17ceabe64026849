"""Whether an object is whole on media: each slot that its head lists must say that it belongs to it."""

from __future__ import annotations

from collections.abc import Iterable

from blockdev import layout
from blockdev.errors import DeviceError, IntegrityError, Unavailable
from blockdev.ground import Ground
from blockdev.publication import extent_length
from blockdev.scan import Scan
from blockdev.types import Descriptor, ExtentRef, Kind, RegionId, SlotRef


class Wholeness:
    """Judges heads by what a scan has found, and by the media where it has not looked."""

    def __init__(self, ground: Ground, scan: Scan) -> None:
        self._media = ground.media
        self._reader = ground.reader
        self._scan = scan

    async def is_whole(self, head: Descriptor) -> bool:
        """Whether every slot that a head lists says that it belongs to it. What is out of reach is believed."""
        count = -(-head.size // self._reader.extent_size) if not head.inline else 0
        if head.indexed:
            indexes = -(-count // layout.entries_per_index(layout.index_class(count)))
            if len(head.extents) != indexes or not await self._all_belong(head, head.extents, Kind.INDEX):
                return False
            if not self._media.reachable(head):
                return True
            try:
                extents = await self._reader.extents(head)
            except IntegrityError:
                return False
            except (DeviceError, Unavailable):
                return True
        else:
            extents = head.extents
        return len(extents) == count and await self._all_belong(head, extents, Kind.BODY)

    async def _all_belong(self, head: Descriptor, extents: Iterable[ExtentRef], kind: Kind) -> bool:
        """Media are not trusted: a slot that is listed may not exist, or be too small."""
        count = -(-head.size // self._reader.extent_size)
        for index, extent in enumerate(extents):
            if extent.is_hole or not self._media.reaches(extent):
                continue
            used = extent_length(head.size, index, self._reader.extent_size)
            if kind is Kind.INDEX:
                used = layout.index_class(count).payload_size
            if not self._has_slot(extent, used):
                return False
            if extent.ref != head.ref and not await self._belongs(head, extent.ref, kind):
                return False
        return True

    def _has_slot(self, extent: ExtentRef, used: int) -> bool:
        header = self._media.header(RegionId(extent.device, extent.region))
        geometry = self._media.class_geometry(extent.device, header.slot_class)
        return extent.slot < geometry.slots and used <= header.slot_class.payload_size

    async def _belongs(self, head: Descriptor, ref: SlotRef, kind: Kind) -> bool:
        if self._scan.has_read(ref.address):
            part = self._scan.found.get(ref)
        else:
            try:
                part = await self._media.read_descriptor(ref.address)
            except (DeviceError, Unavailable):
                return True
        return part is not None and (part.kind, part.object_id, part.generation) == (
            kind,
            head.object_id,
            ref.generation,
        )
