"""Reading the records of the regions that one catalogue speaks for: which, and what they say."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from blockdev.catalog import Trust
from blockdev.errors import DeviceError, Unavailable
from blockdev.ground import Ground
from blockdev.seat_catalogs import SeatCatalogs
from blockdev.tasks import for_each
from blockdev.types import CHUNK_SLOTS, NAMED_KINDS, Descriptor, DirtyChunk, RegionId, SlotAddress, SlotRef

log = logging.getLogger(__name__)


def chunk_of(address: SlotAddress) -> DirtyChunk:
    """The chunk of descriptors that a slot is in."""
    return DirtyChunk(address.device, address.region, address.slot // CHUNK_SLOTS)


class Scan:
    """What was read of the media.

    :ivar chunks: what was read
    :ivar found: the records in use there, by where they are
    """

    def __init__(self, ground: Ground, catalog: SeatCatalogs) -> None:
        self._media = ground.media
        self._space = ground.space
        self._notes_failures = ground.slots is not None
        self._catalog = catalog
        self._regions = catalog.regions
        self.chunks: frozenset[DirtyChunk] = frozenset()
        self.found: dict[SlotRef, Descriptor] = {}

    async def run(self, trusts: Mapping[int, Trust]) -> int:
        """Read what catalogues of this trust may not know; returns how many regions could not be read."""
        return await self._read(self._chunks(trusts))

    def has_read(self, address: SlotAddress) -> bool:
        """Whether a slot is in one of the chunks."""
        return chunk_of(address) in self.chunks

    def is_mine(self, ref: SlotRef) -> bool:
        """Whether a slot is in one of the regions. Those out of reach are nobody else's."""
        return RegionId(ref.device, ref.region) in self._regions or not self._media.reaches(ref)

    def is_outside(self, ref: SlotRef) -> bool:
        """Whether a slot that a record lists exists and was not looked at. Media are not trusted."""
        if not self._media.reaches(ref) or self.has_read(ref.address):
            return False
        return (
            not self.is_mine(ref) or ref.slot < self._media.geometry(RegionId(ref.device, ref.region)).slots
        )

    async def read_record(self, ref: SlotRef) -> Descriptor | None:
        """The record of a name in this use of a slot; None if that is over, or cannot be read."""
        region = RegionId(ref.device, ref.region)
        try:
            if not self.is_mine(ref):
                await self._media.reload_header(region)
            if self._media.header(region).epoch != ref.generation >> 32:
                return None
            if ref.slot >= self._media.geometry(region).slots:
                return None
            record = await self._media.read_descriptor(ref.address)
        except (DeviceError, Unavailable):
            return None
        if record is None or record.generation != ref.generation or record.kind not in NAMED_KINDS:
            return None
        return record

    def _chunks(self, trusts: Mapping[int, Trust]) -> list[DirtyChunk]:
        regions = {region.id: region for region in self._space.regions() if region.id in self._regions}
        chunks = {
            DirtyChunk(*region_id, chunk)
            for region_id in regions
            if self._catalog.is_to_be_read(region_id, trusts)
            for chunk in range(self._media.geometry(region_id).chunks)
        }
        if Trust.CRASHED in trusts.values():
            chunks |= {
                chunk
                for chunk in self._catalog.dirty_chunks()
                if (region := regions.get(chunk.where)) and chunk.chunk * CHUNK_SLOTS < region.slots
            }
        return sorted(chunks, key=lambda c: (c.device, c.region, c.chunk))

    async def _read(self, chunks: Collection[DirtyChunk]) -> int:
        """Read the records in these chunks; returns how many regions could not be."""
        self.chunks = frozenset(chunks)
        unread: set[RegionId] = set()

        async def read(chunk: DirtyChunk) -> None:
            region_id = RegionId(chunk.device, chunk.region)
            try:
                records = await self._media.read_chunk(region_id, chunk.chunk)
            except (DeviceError, Unavailable) as error:
                if self._media.reaches(region_id):
                    log.warning(
                        "region %d of device %d cannot be read (%s): its objects are misses",
                        *region_id[::-1],
                        error,
                    )
                self._space.drop_region(region_id)
                self._media.give_up(region_id)
                unread.add(region_id)
                return
            for record in self._space.load_chunk(region_id, chunk.chunk, records):
                self.found[record.ref] = record

        await for_each(chunks, read, at_once=16)
        self.found = {ref: record for ref, record in self.found.items() if self._media.reaches(ref)}
        if unread and self._notes_failures:  # to be looked at the next time, whatever else is clean
            again = [c for c in chunks if RegionId(c.device, c.region) in unread]
            self._catalog.mark_dirty(*again)
        return len(unread)
