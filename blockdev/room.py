"""Where new bytes go: finds a free slot, and makes one when there is none.

Making room, in the order of what it costs: slots whose time in limbo is over, descriptors not looked at since the
pool was opened, regions never used, the least recently used objects of the class, a whole colder region of another
class.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import trio

from blockdev.catalog import Catalog
from blockdev.errors import DeviceError, NoSpace, Unavailable
from blockdev.eviction import Policy
from blockdev.locks import KeyedLocks
from blockdev.media import Media
from blockdev.region import Region, SlotState
from blockdev.space import Space
from blockdev.types import (
    CHUNK_SLOTS,
    EXTENT_CLASSES,
    Descriptor,
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

Evict = Callable[[ObjectId], Awaitable[bool]]
"""Let an object go; False if it may not go now."""


@dataclass(slots=True)
class RoomCounters:
    formatted: int = 0
    """Regions formatted."""
    repurposed: int = 0
    """Regions emptied and given another slot class."""
    limbo_waits: int = 0
    """Times a writer waited for the grace of freed slots: back-pressure."""
    failed: int = 0
    """Slots that could not be freed on media."""


@dataclass(frozen=True, slots=True)
class RoomOptions:
    """How slots are handed out.

    :ivar member: who writes, recorded in the headers of formatted regions
    :ivar flush: freed slots are reused only after their invalidation was flushed (`durability: flush`)
    :ivar grace: seconds between the invalidation of a slot and its reuse
    """

    member: UUID
    extent_class: SlotClass
    flush: bool
    grace: float


class Room:
    """Slots for one writing member.

    :ivar evict: lets an object go; set by the pool
    """

    def __init__(
        self, media: Media, space: Space, catalog: Catalog, policy: Policy, options: RoomOptions
    ) -> None:
        self._media = media
        self._space = space
        self._catalog = catalog
        self._policy = policy
        self._options = options
        self._searching: KeyedLocks[SlotClass] = KeyedLocks()
        self._formatting = trio.Lock()
        self._dirty = set(catalog.dirty_chunks())
        self._unflushed: set[SlotAddress] = set()
        self._held: dict[SlotAddress, Callable[[], bool]] = {}
        self.evict: Evict = _evict_nothing
        self.counters = RoomCounters()

    @property
    def flushes(self) -> bool:
        """Whether publications are made durable against power loss."""
        return self._options.flush

    # ── slots for new bytes ──────────────────────────────────────────────────────────────────────────────

    def class_for(self, length: int) -> SlotClass:
        """The smallest class whose payload holds `length` bytes. :raises ValueError: more than one extent"""
        for slot_class in (SlotClass.KIB64, SlotClass.KIB512, *EXTENT_CLASSES):
            if length <= slot_class.payload_size and slot_class <= self._options.extent_class:
                return slot_class
        raise ValueError(
            f"{length} bytes are more than one extent of {self._options.extent_class.payload_size}"
        )

    async def reserve(self, slot_class: SlotClass) -> SlotRef:
        """A slot that nobody else will get until it is published, given back or freed.

        :raises NoSpace: nothing more may be evicted
        """
        ref = self._space.take(slot_class)
        if ref is not None:
            return ref
        async with self._searching.hold(slot_class):
            while True:
                ref = self._space.take(slot_class)
                if ref is not None:
                    return ref
                if not await self._make_room(slot_class):
                    raise NoSpace(
                        f"no room for {slot_class.payload_size or 'inline'} bytes: all that is left is in use"
                    )

    def give_back(self, ref: SlotRef) -> None:
        """Undo `reserve`: nothing was published in the slot."""
        self._space.give_back(ref)

    async def _make_room(self, slot_class: SlotClass) -> bool:
        """Take one step towards a free slot; False if none is left to take."""
        return (
            await self._reap()
            or await self._load_unknown(slot_class)
            or await self._format_unused(slot_class)
            or await self._evict_or_repurpose(slot_class)
            or await self._wait_for_grace(slot_class)
        )

    async def _reap(self) -> bool:
        await self.flush_freed()
        return bool(self._space.reap(trio.current_time(), self._is_held))

    async def flush_freed(self) -> None:
        """With `durability: flush`, make the invalidations so far durable. :raises Unavailable, DeviceError:"""
        batch = set(self._unflushed)
        await self._media.flush({a.device for a in batch if self._media.available(a.device)})
        self._unflushed -= batch

    def _is_held(self, address: SlotAddress) -> bool:
        if address in self._unflushed:
            return True
        pinned = self._held.get(address)
        if pinned is None:
            return False
        if pinned():
            return True
        del self._held[address]
        return False

    async def _load_unknown(self, slot_class: SlotClass) -> bool:
        found = self._space.unknown_chunk(slot_class)
        if found is None:
            return False
        region, chunk = found
        try:
            records = await self._media.read_chunk(region, chunk)
        except (DeviceError, Unavailable) as error:
            log.warning(
                "region %s of device %s cannot be read (%s): not used", region.region, region.device, error
            )
            self._space.drop_region(region)
            return True
        stale = self._space.load_chunk(region, chunk, records)
        # A tombstone keeps a record on a missing device from coming back: only a scan of everything may free it.
        garbage = [record.ref for record in stale if record.kind is not Kind.TOMBSTONE]
        await self.invalidate(garbage, head_first=False)
        return True

    async def _format_unused(self, slot_class: SlotClass) -> bool:
        async with self._formatting:
            if self._space.has_free(slot_class):
                return True  # given back, or formatted by somebody else, while we waited
            devices = self._space.lacking_devices(slot_class)
            regions = [
                self._space.unused_region(slot_class) for _ in devices
            ]  # one a device: stripes from the start
            for region in regions:
                if region is not None:
                    await self._format(region, slot_class)
            return bool(devices)

    async def _format(self, region: RegionId, slot_class: SlotClass) -> None:
        try:
            header = await self._media.format_region(region, slot_class, self._options.member)
        except (DeviceError, Unavailable) as error:
            log.warning("region %s of device %s cannot be formatted (%s): not used", *region[::-1], error)
            self._space.drop_region(region)
            return
        self.counters.formatted += 1
        slots = self._media.geometry(region).slots
        self._space.add_region(Region.formatted(region, slot_class, header.epoch, slots))

    # ── making room by letting objects go ────────────────────────────────────────────────────────────────

    async def _evict_or_repurpose(self, slot_class: SlotClass) -> bool:
        victims = self._policy.victims(slot_class)
        victim = next(victims, None)
        before = math.inf if victim is None else self._policy.last_used(victim)
        coldest = self._space.coldest_region(slot_class, self._may_empty, before)
        if coldest is not None and await self._repurpose(coldest, slot_class):
            return True
        for candidate in self._policy.victims(slot_class):
            if await self.evict(candidate):
                return True
        return False

    def _may_empty(self, region: Region) -> bool:
        # Inline regions hold directories, which stay: not worth a look at their many slots.
        if region.slot_class is SlotClass.INLINE or region.counts[SlotState.LIMBO]:
            return False
        return all(owner in self._policy for owner in region.owners())

    async def _repurpose(self, region_id: RegionId, slot_class: SlotClass) -> bool:
        async with self._formatting:
            region = self._space.close_region(region_id)  # no slot of it is handed out from here on
            for owner in list(region.owners()):
                if not await self.evict(owner):
                    self._space.reopen_region(region_id)
                    return False
            await self._reap()
            if not region.is_empty:
                self._space.reopen_region(region_id)
                return False
            self._space.remove_region(region_id)
            await self._format(region_id, slot_class)
            self.counters.repurposed += 1
            return True

    async def _wait_for_grace(self, slot_class: SlotClass) -> bool:
        ready = self._space.next_ready(slot_class)
        if ready is None or math.isinf(ready):
            return False
        self.counters.limbo_waits += 1
        await trio.sleep_until(ready)
        return await self._reap()

    # ── records on media ─────────────────────────────────────────────────────────────────────────────────

    async def sequence_of(self, address: SlotAddress) -> int:
        """The sequence of the slot's current record. :raises Unavailable, DeviceError:"""
        known = self._space.sequence(address)
        if known:
            return known
        record = await self._media.read_descriptor(address)
        return record.sequence if record is not None else 2

    async def place(self, ref: SlotRef) -> tuple[Epoch, int]:
        """Epoch of the slot's region and sequence of its current record. :raises Unavailable, DeviceError:"""
        epoch = self._media.header(RegionId(ref.device, ref.region)).epoch
        return epoch, await self.sequence_of(ref.address)

    def publish(self, ref: SlotRef, owner: ObjectId) -> None:
        """The record of `owner` was written into a reserved slot. Nothing if its device was lost meanwhile."""
        with suppress(Unavailable):
            self._space.publish(ref, owner)
            self._space.touch(ref, trio.current_time())

    async def write_record(self, descriptor: Descriptor) -> None:
        """Write a slot's next record, the chunk marked first so that a crash cannot hide it from the catalogue.

        :raises Unavailable, DeviceError: whether it was written is unknown
        """
        self._mark(descriptor.address)
        await self._media.write_descriptor(descriptor)
        self._space.set_sequence(descriptor.address, descriptor.sequence)

    async def invalidate(
        self, refs: Iterable[SlotRef], held: Callable[[], bool] | None = None, *, head_first: bool = True
    ) -> bool:
        """Free slots, one after the other; they are reused after their limbo.

        :param held: says whether somebody still reads them; asked until it is false
        :param head_first: the first of `refs` is a head: the others stay valid if it cannot be freed
        :returns: whether all that could be tried are invalid on media now
        """
        every = True
        for ref in refs:
            done = await self._invalidate_one(ref, held)
            every = every and done
            if head_first and not done:
                return False
            head_first = False
        return every

    async def _invalidate_one(self, ref: SlotRef, held: Callable[[], bool] | None) -> bool:
        self._mark(ref.address)  # also when it fails: then the media say other than the catalogue
        try:
            epoch, sequence = await self.place(ref)
            generation = Generation(ref.generation + 1)
            free = Descriptor(Kind.FREE, ref.address, epoch, generation, sequence + 1)
            await self.write_record(free)
        except (DeviceError, Unavailable) as error:
            log.warning(
                "slot %s could not be freed (%s): not used until the pool is scanned", tuple(ref), error
            )
            self._space.quarantine(ref.address)
            self.counters.failed += 1
            return False
        if self._options.flush:
            self._unflushed.add(ref.address)
        if held is not None and held():
            self._held[ref.address] = held
        else:
            await self._media.discard_payload(ref.address)  # while nobody can be given the slot
        self._space.free(ref, generation, free.sequence, trio.current_time() + self._options.grace)
        return True

    async def ensure_invalid(self, ref: SlotRef) -> bool:
        """Whether this use of a slot is over on media, as durably as publications are."""
        try:
            if ref.address in self._unflushed:
                await self.flush_freed()
            record = await self._media.read_descriptor(ref.address)
        except (DeviceError, Unavailable):
            return False
        return record is not None and record.generation != ref.generation

    async def barrier(self, refs: Iterable[SlotRef]) -> None:
        """With `durability: flush`, make what was written into these slots durable. :raises Unavailable, DeviceError:"""
        if self._options.flush:
            await self._media.flush({ref.device for ref in refs})

    def _mark(self, address: SlotAddress) -> None:
        chunk = DirtyChunk(address.device, address.region, address.slot // CHUNK_SLOTS)
        if chunk not in self._dirty:
            self._catalog.mark_dirty(chunk)
            self._dirty.add(chunk)


async def _evict_nothing(object_id: ObjectId) -> bool:
    return False
