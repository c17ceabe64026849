"""The slots of our regions as they are on media: records written, marked as changing, invalidated, reused after limbo."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

import trio

from blockdev.device import Begun
from blockdev.errors import DeviceError, DeviceTimeout, Unavailable, WriteFailed
from blockdev.leasing import Everything, Leasing
from blockdev.limbo import Limbo
from blockdev.media import Media
from blockdev.space import Space
from blockdev.types import (
    CHUNK_SLOTS,
    Descriptor,
    DeviceNo,
    DirtyChunk,
    Epoch,
    Generation,
    Kind,
    ObjectId,
    RegionId,
    SlotAddress,
    SlotClass,
    SlotRef,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RoomCounters:
    formatted: int = 0
    """Regions formatted."""
    formatted_ahead: int = 0
    """Of these, before anybody waited for one."""
    repurposed: int = 0
    """Regions emptied and given another slot class."""
    given: int = 0
    """Regions given up for other members."""
    failed: int = 0
    """Slots that could not be freed on media."""


class DirtyNotes(Protocol):
    """Where it is noted which chunks may differ from the catalogue; see `Catalog`."""

    def mark_dirty(self, *chunks: DirtyChunk) -> None: ...

    def dirty_chunks(self) -> set[DirtyChunk]: ...


@dataclass(frozen=True, slots=True)
class SlotOptions:
    """How slots are handed out.

    :ivar member: who writes, recorded in the headers of formatted regions
    :ivar flush: freed slots are reused only after their invalidation was flushed (`durability: flush`)
    :ivar grace: seconds between the invalidation of a slot and its reuse, asked at each; 0 while no other member may
        be reading
    """

    member: UUID
    extent_class: SlotClass
    flush: bool
    grace: Callable[[], float]


class Slots:
    """What can be done with slots that are there. `Room` is the one that also makes them free for new bytes."""

    def __init__(
        self,
        media: Media,
        space: Space,
        catalog: DirtyNotes,
        options: SlotOptions,
        leasing: Leasing | None = None,
    ) -> None:
        self._media = media
        self._space = space
        self._catalog = catalog
        self.options = options
        self._leasing = leasing or Everything()
        self._dirty = set(catalog.dirty_chunks())
        self._late: set[SlotAddress] = set()
        """Slots whose descriptor may yet change, since a write was given up: not to be written again."""
        self.limbo = Limbo(media, space, options.grace, flush=options.flush)
        self.counters = RoomCounters()

    def absorb(self, other: Slots) -> None:
        """Take over what was done for regions that are in our space now."""
        self._dirty |= other._dirty
        self.limbo.absorb(other.limbo)
        self._late |= other._late
        self.counters.failed += other.counters.failed

    @property
    def flushes(self) -> bool:
        """Whether publications are made durable against power loss."""
        return self.options.flush

    def is_reserved(self, ref: SlotRef) -> bool:
        """Whether it was given by `reserve` and is nothing else yet."""
        return self._space.is_reserved(ref)

    def has_failed(self, ref: SlotRef) -> bool:
        """Whether the slot is not used any more: it failed, or its region or device did."""
        return self._space.has_failed(ref)

    def quarantine(self, ref: SlotRef) -> None:
        """Do not use a slot again, if it is in this use."""
        self._space.quarantine(ref)

    def reaches(self, ref: SlotRef) -> bool:
        """Whether a slot is where it can be read."""
        return self._media.reaches(ref)

    def classes(self, refs: Iterable[SlotRef]) -> frozenset[SlotClass]:
        """The classes of those of these slots that can be read."""
        return self._media.classes(refs)

    async def write_payload(self, ref: SlotRef, data: memoryview, at: int = 0) -> None:
        """Write `data` (whole pages) into a reserved slot's payload, from its byte `at` on.

        :raises DeviceTimeout: the slot is not used again, since the write may still arrive
        :raises WriteFailed: nor is it then
        :raises Unavailable, DeviceError:
        """
        try:
            await self._media.write_payload(ref.address, data, at)
        except (DeviceTimeout, WriteFailed):
            self._space.quarantine(ref.address)
            raise

    def begin_payload(self, ref: SlotRef, data: memoryview) -> Begun | None:
        """As `write_payload` from the payload's beginning; see `Device.begin_write`. :raises Unavailable, DeviceError:"""
        begun = self._media.begin_payload(ref.address, data)
        return begun and begun._replace(land=partial(self._land, begun, ref))

    async def _land(self, begun: Begun, ref: SlotRef) -> None:
        try:
            await begun.land()
        except (DeviceTimeout, WriteFailed):
            self._space.quarantine(ref.address)
            raise

    async def sequence_of(self, address: SlotAddress) -> int:
        """The sequence of the slot's current record. :raises Unavailable, DeviceError:"""
        try:
            known = self._space.sequence(address)
        except Unavailable:  # its region gives no slots any more, but may be readable
            known = 0
        if known:
            return known
        record = await self._media.read_descriptor(address)
        return record.sequence if record is not None else 2

    async def place(self, ref: SlotRef) -> tuple[Epoch, int]:
        """Epoch of the slot's region and sequence of its current record. :raises Unavailable, DeviceError:"""
        epoch = self._media.header(RegionId(ref.device, ref.region)).epoch
        return epoch, await self.sequence_of(ref.address)

    def publish(self, ref: SlotRef, owner: ObjectId) -> None:
        """The record of `owner` was written into a reserved slot. Nothing if that has failed meanwhile."""
        if self._space.has_failed(ref):
            return
        self._space.publish(ref, owner)
        self._space.touch(ref, trio.current_time())

    async def write_record(self, descriptor: Descriptor) -> None:
        """Write a slot's next record, the chunk marked first so that a crash cannot hide it from the catalogue.

        :raises DeviceTimeout: the slot is not used again, since the record may still arrive
        :raises Unavailable, DeviceError: whether it was written is unknown
        """
        self.mark(descriptor.address)
        try:
            await self._media.write_descriptor(descriptor)
        except DeviceTimeout:
            self.note_late(descriptor.address)
            raise
        self.note_written(descriptor)

    def note_written(self, descriptor: Descriptor) -> None:
        """A record is there after all."""
        self._space.set_sequence(descriptor.address, descriptor.sequence)

    def note_late(self, address: SlotAddress) -> None:
        """It is not known whether a record was written, or will be: the slot is not used again."""
        self._late.add(address)
        self._space.quarantine(address)

    def late_on(self, device: DeviceNo) -> list[SlotAddress]:
        """Slots of a device whose record may yet change, since a write was given up."""
        return [address for address in self._late if address.device == device]

    def forget_late(self, address: SlotAddress) -> None:
        """Whatever was given up there counts for nothing any more."""
        self._late.discard(address)

    async def invalidate(self, refs: Iterable[SlotRef], held: Callable[[], bool] | None = None) -> bool:
        """Free slots, one after the other; they are reused after their limbo.

        :param held: says whether somebody still reads them; asked until it is false
        :returns: whether the first of them is invalid on media now
        """
        done = [await self._invalidate_one(ref, held) for ref in refs]
        return all(done[:1])

    async def _invalidate_one(self, ref: SlotRef, held: Callable[[], bool] | None) -> bool:
        if not self.is_ours(ref):
            return False
        self.mark(ref.address)  # also when it fails: then the media say other than the catalogue
        generation = Generation(ref.generation + 1)
        try:
            if ref.address in self._late:
                raise Unavailable("a write to it was given up")
            if await self._is_over(ref):
                return True
            epoch, sequence = await self.place(ref)
            free = Descriptor(Kind.FREE, ref.address, epoch, generation, sequence + 1)
            await self.write_record(free)
        except (DeviceError, Unavailable) as error:
            if self._media.reaches(ref):
                log.warning(
                    "slot %s could not be freed (%s): not used until the pool is scanned", tuple(ref), error
                )
                self.counters.failed += 1
                self._space.quarantine(ref.address)
            return False
        if self._space.generation(ref.address) == generation:
            return True  # somebody else freed it meanwhile, with the same record
        await self.limbo.enter(ref, generation, free.sequence, held)
        return True

    async def _is_over(self, ref: SlotRef) -> bool:
        """Whether a slot is known to be in another use by now, or in none. :raises Unavailable, DeviceError:"""
        if self._media.header(RegionId(ref.device, ref.region)).epoch != ref.generation >> 32:
            return True
        known = self._space.generation(ref.address)
        if known is None:
            record = await self._media.read_descriptor(ref.address)
            known = record.generation if record is not None else ref.generation
        return known != ref.generation

    def is_ours(self, ref: SlotRef) -> bool:
        """Whether a slot is in a region that we write to."""
        return self._leasing.is_ours(RegionId(ref.device, ref.region))

    async def ensure_invalid(self, ref: SlotRef) -> bool:
        """Whether this use of a slot is over on media, as durably as publications are."""
        try:
            if not self.is_ours(ref):
                await self._media.reload_header(RegionId(ref.device, ref.region))
            if self._media.header(RegionId(ref.device, ref.region)).epoch != ref.generation >> 32:
                return True  # the region was formatted since: no record of that time is believed
            if ref.address in self.limbo.unflushed:
                await self.limbo.flush()
            record = await self._media.read_descriptor(ref.address)
        except (DeviceError, Unavailable):
            return False
        return record is not None and record.generation != ref.generation

    async def barrier(self, refs: Iterable[SlotRef]) -> None:
        """With `durability: flush`, make what was written into these slots durable. :raises Unavailable, DeviceError:"""
        if self.options.flush:
            await self._media.flush({ref.device for ref in refs})

    def forget_marks(self, region: RegionId) -> None:
        """A region was formatted, and is in another catalogue perhaps: its chunks are noted anew when they change."""
        self._dirty = {chunk for chunk in self._dirty if chunk.where != region}

    def mark(self, address: SlotAddress) -> None:
        """Remember, before it is written or counted on, that a slot may differ from the catalogue."""
        chunk = DirtyChunk(address.device, address.region, address.slot // CHUNK_SLOTS)
        if chunk not in self._dirty and self._media.reaches(address) and self._leasing.is_ours(chunk.where):
            self._catalog.mark_dirty(chunk)
            self._dirty.add(chunk)
