"""Where new bytes go: finds a free slot, and makes one when there is none.

Making room, in the order of what it costs: slots that may leave limbo, descriptors not looked at since the
pool was opened, regions never used, regions of other classes with nothing left in them, the least recently used
objects of the class, a whole colder region of another class.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import trio

from blockdev.errors import DeviceError, DeviceTimeout, FormatError, NoSpace, Unavailable
from blockdev.eviction import Policy
from blockdev.formatting import format_region, retire_region
from blockdev.leasing import Everything, Leasing
from blockdev.limbo import Limbo
from blockdev.locks import KeyedLocks
from blockdev.media import Media
from blockdev.region import Region, SlotState
from blockdev.space import Space
from blockdev.types import (
    CHUNK_SLOTS,
    EXTENT_CLASSES,
    Descriptor,
    DeviceNo,
    DirtyChunk,
    Epoch,
    Generation,
    Kind,
    ObjectId,
    RegionId,
    RegionState,
    SlotAddress,
    SlotClass,
    SlotRef,
)

log = logging.getLogger(__name__)

_SETTLED = 1.0
"""Seconds after its last use, after which an empty region is given to another class."""
_FEW = 64
"""Small files that are let go at once, to give their region to another class."""

_CHUNKS = 8
"""Chunks of small files' records that are read for each object that must go, while there are some not looked at."""

_OTHERS_PATIENCE = 5.0
"""Seconds for which a writer waits for another member to give up a region, when it has nothing else."""
_OTHERS_POLL = 0.05


class Evict(Protocol):
    async def __call__(self, object_id: ObjectId, *, ahead: bool = False) -> bool:
        """Let an object go; False if it may not go now.

        :param ahead: nobody waits for its room yet
        """


MayGo = Callable[[ObjectId], bool]
"""Whether it makes sense to ask for it."""
Find = Callable[[Descriptor], bool]
"""Told of a record in use that no object claims; whether it means nothing and its slot may be freed."""


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
class RoomOptions:
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


class Room:
    """Slots for one writing member.

    :ivar evict: lets an object go
    :ivar may_go: whether an object is one that `evict` would let go
    :ivar found: decides about records whose slots were not looked at when the pool was opened

    The three are set by the pool.
    """

    def __init__(
        self,
        media: Media,
        space: Space,
        catalog: DirtyNotes,
        policy: Policy,
        options: RoomOptions,
        leasing: Leasing | None = None,
    ) -> None:
        self._media = media
        self._space = space
        self._catalog = catalog
        self._policy = policy
        self._options = options
        self._leasing = leasing or Everything()
        self._searching: KeyedLocks[SlotClass] = KeyedLocks()
        self._wanted: Counter[SlotClass] = Counter()
        """Reservations under way that did not find a free slot."""
        self._formatting = trio.Lock()
        self._dirty = set(catalog.dirty_chunks())
        self.limbo = Limbo(media, space, options.grace, flush=options.flush)
        self._late: set[SlotAddress] = set()
        """Slots whose descriptor may yet change, since a write was given up: not to be written again."""
        self.evict: Evict = _evict_nothing
        self.may_go: MayGo = lambda _: False
        self.found: Find = lambda _: False
        self.on_reserve: Callable[[SlotClass], None] = lambda _: None
        """Called with each slot that is wanted."""
        self.counters = RoomCounters()

    def absorb(self, other: Room) -> None:
        """Take over what was done for regions that are in our space now."""
        self._dirty |= other._dirty
        self.limbo.absorb(other.limbo)
        self._late |= other._late
        self.counters.failed += other.counters.failed

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
        self.on_reserve(slot_class)
        if self._space.slots(slot_class, SlotState.FREE) > self._wanted[slot_class]:  # else others are first
            ref = self._space.take(slot_class)
            if ref is not None:
                return ref
        self._wanted[slot_class] += 1
        try:
            async with self._searching.hold(slot_class):
                return await self._search(slot_class)
        finally:
            self._wanted[slot_class] -= 1

    async def _search(self, slot_class: SlotClass) -> SlotRef:
        while (ref := self._space.take(slot_class)) is None:
            if not await self._make_room(slot_class):
                raise NoSpace(
                    f"no room for {slot_class.payload_size or 'inline'} bytes: all that is left is in use"
                )
        return ref

    def waiting(self, slot_class: SlotClass) -> int:
        """How many wait for a slot of this class."""
        return self._wanted[slot_class]

    def take(self, slot_class: SlotClass) -> SlotRef | None:
        """A slot as from `reserve`, if one is free."""
        return self._space.take(slot_class)

    def is_reserved(self, ref: SlotRef) -> bool:
        """Whether it was given by `reserve` and is nothing else yet."""
        return self._space.is_reserved(ref)

    def has_failed(self, ref: SlotRef) -> bool:
        """Whether the slot is not used any more: it failed, or its region or device did."""
        return self._space.has_failed(ref)

    def give_back(self, ref: SlotRef) -> None:
        """Undo `reserve`: nothing was published in the slot."""
        self._space.give_back(ref)
        self.limbo.wake()

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
        :raises Unavailable, DeviceError:
        """
        try:
            await self._media.write_payload(ref.address, data, at)
        except DeviceTimeout:
            self._space.quarantine(ref.address)
            raise

    async def _make_room(self, slot_class: SlotClass) -> bool:
        """Take one step towards a free slot; False if none is left to take.

        Each step may be cancelled: what it was about to change is then as before.
        """
        return (
            await self.limbo.reap()
            or await self._load_unknown(slot_class)
            or await self._format_unused(slot_class)
            or await self._take_empty(slot_class)
            or await self._wait_for_enough(slot_class)
            or await self._evict_or_repurpose(slot_class)
            or await self._empty_inline(slot_class)
            or await self._wait_for_any(slot_class)
            or await self._wait_for_others()
        )

    async def advance(self, slot_class: SlotClass) -> bool:
        """Let go, or find, what gives free slots of a class, without waiting for any; False if nothing does."""
        return (
            await self._load_unknown(slot_class)
            or await self._take_empty(slot_class)
            or await self._evict_or_repurpose(slot_class, ahead=True)
        )

    async def _load_unknown(self, slot_class: SlotClass) -> bool:
        found = self._space.unknown_chunk(slot_class)
        if found is None:
            return False
        region, chunk = found
        try:
            records = await self._media.read_chunk(region, chunk)
        except (DeviceError, Unavailable, FormatError) as error:
            log.warning(
                "region %s of device %s cannot be read (%s): not used", region.region, region.device, error
            )
            self._space.drop_region(region)
            return True
        garbage = [r.ref for r in self._space.load_chunk(region, chunk, records) if self.found(r)]
        with trio.CancelScope(shield=True):
            await self.invalidate(garbage)
        return True

    async def _format_unused(self, slot_class: SlotClass) -> bool:
        async with self._formatting:
            if self._space.has_free(slot_class):
                return True  # given back, or formatted by somebody else, while we waited
            lacking = len(self._space.lacking_devices(slot_class))
            if not lacking:
                for free in self._leasing.free():
                    self._space.add_unused(free)
                lacking = len(self._space.lacking_devices(slot_class))
            for _ in range(lacking):  # one a device: stripes from the start
                region = self._space.unused_region(slot_class)
                if region is not None and await self._lease(region):
                    await self._format(region, slot_class)
            return lacking > 0

    async def _lease(self, region: RegionId) -> bool:
        """Become the writer of a region that nobody uses; False if another member was faster."""
        if self._leasing.is_ours(region):
            return True
        if not self._leasing.lease(region):
            return False
        try:
            await self._media.reload_header(region)
            used = self._media.header(region).state is RegionState.ACTIVE
        except BaseException as error:
            self._leasing.release(region)
            if isinstance(error, DeviceError | Unavailable):
                return False
            raise
        if used:
            self._leasing.release(region)
        return not used

    async def format_ahead(self, slot_class: SlotClass, device: DeviceNo) -> None:
        """Format an unused region of a device, if there still is one."""
        async with self._formatting:
            others = set(self._space.unused_devices()) - {device}
            region = self._space.unused_region(slot_class, avoid=others)
            if region is not None and await self._lease(region):
                before = self.counters.formatted
                await self._format(region, slot_class)
                self.counters.formatted_ahead += self.counters.formatted - before

    async def _format(self, region: RegionId, slot_class: SlotClass) -> None:
        try:
            header = await format_region(
                self._media, region, slot_class, self._options.member, lambda: self._wanted.total() > 0
            )
            slots = self._media.geometry(region).slots
        except (DeviceError, Unavailable) as error:
            log.warning("region %s of device %s cannot be formatted (%s): not used", *region[::-1], error)
            self._space.drop_region(region)
            return
        except BaseException:
            self._space.add_unused(region)  # cancelled: nothing of it goes on
            raise
        self.counters.formatted += 1
        self._leasing.lease(region)  # it may have come to us with another's seat
        self._dirty = {chunk for chunk in self._dirty if chunk.where != region}
        formatted = Region.formatted(region, slot_class, header.epoch, slots)
        formatted.last_used = trio.current_time()  # not to be taken for another class before it was of use
        self._space.add_region(formatted)
        self.limbo.wake()

    # ── making room by letting objects go ────────────────────────────────────────────────────────────────

    async def _take_empty(self, slot_class: SlotClass) -> bool:
        """Take a region from which everything was removed; it may be wanted again, if that was a moment ago."""
        if slot_class is not SlotClass.INLINE:
            for _ in range(_CHUNKS):
                await self._load_unknown(SlotClass.INLINE)  # in the end it is known which are empty
        before = trio.current_time() - _SETTLED
        empty = self._space.empty_region(slot_class, before, self._may_go_whole)
        return empty is not None and await self._repurpose(empty, slot_class)

    async def _evict_or_repurpose(self, slot_class: SlotClass, *, ahead: bool = False) -> bool:
        self._leasing.wish()
        victims = self._policy.victims(slot_class)
        victim = next(victims, None)
        before = math.inf if victim is None else self._policy.last_used(victim)
        coldest = self._space.coldest_region(slot_class, self._may_empty, before)
        if coldest is not None and await self._repurpose(coldest, slot_class, ahead=ahead):
            return True
        for candidate in self._policy.victims(slot_class):
            if await self.evict(candidate, ahead=ahead):
                return True
        return False

    async def _empty_inline(self, slot_class: SlotClass) -> bool:
        """Take a region from the small files, which may have taken all. The last resort: it may hold 10^6 of them."""
        if slot_class is SlotClass.INLINE:
            return False
        if await self._load_unknown(SlotClass.INLINE):
            return True  # every tombstone must be known
        coldest = self._space.coldest_region(slot_class, self._may_go_whole)
        return coldest is not None and await self._repurpose(coldest, slot_class)

    def _may_empty(self, region: Region) -> bool:
        if region.slot_class is SlotClass.INLINE:
            # They hold directories, which stay: mostly not worth a look at their many slots.
            counts = region.counts
            if counts[SlotState.UNKNOWN] or counts[SlotState.LIVE] > _FEW:
                return False
        return self._may_go_whole(region)

    def _may_go_whole(self, region: Region) -> bool:
        if region.counts[SlotState.LIMBO] or self._media.may_change(region.id):
            return False
        if self._space.is_spared(region):
            return False
        return all(owner in self._policy and self.may_go(owner) for owner in region.owners())

    async def _repurpose(self, region_id: RegionId, slot_class: SlotClass, *, ahead: bool = False) -> bool:
        """Give a region to another class; False if something in it stays."""
        epoch = self._space.region(region_id).epoch
        async with self._formatting:
            try:
                region = self._space.close_region(region_id)  # no slot of it is handed out from here on
            except Unavailable:
                return True  # lost while we waited for our turn
            emptied = False
            try:
                if region.epoch != epoch:
                    return True  # another class was faster
                emptied = await self._empty(region, ahead=ahead)
            finally:
                self._space.reopen_region(region_id)
            if not (emptied and region.is_empty and region.ledger):
                return False
            self._space.remove_region(region_id)
            await self._format(region_id, slot_class)
            self.counters.repurposed += 1
            return True

    async def _wait_for_others(self) -> bool:
        """Wait for a region that another member gives up; False if none does in time."""
        with trio.move_on_after(_OTHERS_PATIENCE):
            while not self._leasing.alone:
                self._leasing.wish()
                if free := self._leasing.free():
                    for region in free:
                        self._space.add_unused(region)
                    return True
                await trio.sleep(_OTHERS_POLL)
        return False

    async def give_region(self) -> bool:
        """Let the least recently used region go, to whoever of the members needs one; whether one went."""
        coldest = self._space.coldest_region(None, self._may_go_whole)
        if coldest is None:
            return False
        async with self._formatting:
            try:
                region = self._space.close_region(coldest)
            except Unavailable:
                return False
            emptied = False
            try:
                emptied = await self._empty(region, ahead=True)
            finally:
                self._space.reopen_region(coldest)
            if not (emptied and region.is_empty and region.ledger):
                return False
            self._space.remove_region(coldest)
            with trio.CancelScope(shield=True):
                await retire_region(self._media, coldest)
            self._leasing.release(coldest)
            self.counters.given += 1
            return True

    async def _empty(self, region: Region, *, ahead: bool) -> bool:
        """Let go what is in a region; False if something stays."""
        for owner in list(region.owners()):
            if not await self.evict(owner, ahead=ahead):
                return False
        await self.limbo.drain(region)
        return True

    async def _wait_for_enough(self, slot_class: SlotClass) -> bool:
        """Wait if enough slots will be free by themselves: letting more objects go would be a waste."""
        if not self.limbo.has_enough(slot_class, self._wanted[slot_class]):
            return False
        return await self._wait_until(self._space.next_ready(slot_class), slot_class)

    async def _wait_for_any(self, slot_class: SlotClass) -> bool:
        """Wait for slots of any class, since a region that is empty by then can change its class."""
        ready = [r for c in SlotClass if (r := self._space.next_ready(c)) is not None]
        return await self._wait_until(min(ready, default=None), slot_class)

    async def _wait_until(self, ready: float | None, slot_class: SlotClass) -> bool:
        if ready is None or math.isinf(ready):
            return False
        return await self.limbo.wait(ready, slot_class)

    # ── records on media ─────────────────────────────────────────────────────────────────────────────────

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
            self._late.add(descriptor.address)
            self._space.quarantine(descriptor.address)
            raise
        self.note_written(descriptor)

    def note_written(self, descriptor: Descriptor) -> None:
        """A record is there after all."""
        self._space.set_sequence(descriptor.address, descriptor.sequence)

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
        if self._options.flush:
            await self._media.flush({ref.device for ref in refs})

    def mark(self, address: SlotAddress) -> None:
        """Remember, before it is written or counted on, that a slot may differ from the catalogue."""
        chunk = DirtyChunk(address.device, address.region, address.slot // CHUNK_SLOTS)
        if chunk not in self._dirty and self._media.reaches(address) and self._leasing.is_ours(chunk.where):
            self._catalog.mark_dirty(chunk)
            self._dirty.add(chunk)


async def _evict_nothing(object_id: ObjectId, *, ahead: bool = False) -> bool:
    return False
