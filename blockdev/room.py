"""Where new bytes go: finds a free slot, and makes one when there is none.

Making room, in the order of what it costs: slots that may leave limbo, descriptors not looked at since the
pool was opened, regions never used, regions of other classes with nothing left in them, the least recently used
objects of the class, a whole colder region of another class.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from blockdev.errors import DeviceError, FormatError, NoSpace, Unavailable
from blockdev.eviction import Policy
from blockdev.leasing import Leasing
from blockdev.locks import KeyedLocks
from blockdev.media import Media
from blockdev.region import Region, SlotState
from blockdev.regions import Regions
from blockdev.slots import DirtyNotes, SlotOptions, Slots
from blockdev.space import Space
from blockdev.types import EXTENT_CLASSES, Descriptor, ObjectId, SlotClass, SlotRef

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


class Room(Slots):
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
        options: SlotOptions,
        leasing: Leasing | None = None,
    ) -> None:
        super().__init__(media, space, catalog, options, leasing)
        self._policy = policy
        self._searching: KeyedLocks[SlotClass] = KeyedLocks()
        self._wanted: Counter[SlotClass] = Counter()
        """Reservations under way that did not find a free slot."""
        self.evict: Evict = _evict_nothing
        self.may_go: MayGo = lambda _: False
        self.found: Find = lambda _: False
        self.on_reserve: Callable[[SlotClass], None] = lambda _: None
        """Called with each slot that is wanted."""
        self.is_watched: Callable[[], bool] = lambda: True
        """Whether that call wakes nobody up."""
        self.regions = Regions(
            media,
            space,
            self._leasing,
            self,
            empty=self._empty,
            is_awaited=lambda: self._wanted.total() > 0,
        )

    # ── slots for new bytes ──────────────────────────────────────────────────────────────────────────────

    def class_for(self, length: int) -> SlotClass:
        """The smallest class whose payload holds `length` bytes. :raises ValueError: more than one extent"""
        for slot_class in (SlotClass.KIB64, SlotClass.KIB512, *EXTENT_CLASSES):
            if length <= slot_class.payload_size and slot_class <= self.options.extent_class:
                return slot_class
        raise ValueError(
            f"{length} bytes are more than one extent of {self.options.extent_class.payload_size}"
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

    def try_reserve(self, slot_class: SlotClass) -> SlotRef | None:
        """As `reserve`, if that takes no waiting and wakes no task up; else None, and nothing was done."""
        if not self.is_watched() or self._space.slots(slot_class, SlotState.FREE) <= self._wanted[slot_class]:
            return None
        self.on_reserve(slot_class)
        return self._space.take(slot_class)

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

    def give_back(self, ref: SlotRef) -> None:
        """Undo `reserve`: nothing was published in the slot."""
        self._space.give_back(ref)
        self.limbo.wake()

    async def _make_room(self, slot_class: SlotClass) -> bool:
        """Take one step towards a free slot; False if none is left to take.

        Each step may be cancelled: what it was about to change is then as before.
        """
        return (
            await self.limbo.reap()
            or await self._load_unknown(slot_class)
            or await self.regions.format_unused(slot_class)
            or await self._take_empty(slot_class)
            or await self._wait_for_enough(slot_class)
            or await self._evict_or_repurpose(slot_class)
            or await self._empty_inline(slot_class)
            or await self._wait_for_any(slot_class)
            or await self._wait_for_others()
            or await self._evict_first(self._policy.unfinished(slot_class))
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

    # ── making room by letting objects go ────────────────────────────────────────────────────────────────

    async def _take_empty(self, slot_class: SlotClass) -> bool:
        """Take a region from which everything was removed; it may be wanted again, if that was a moment ago."""
        if slot_class is not SlotClass.INLINE:
            for _ in range(_CHUNKS):
                await self._load_unknown(SlotClass.INLINE)  # in the end it is known which are empty
        before = trio.current_time() - _SETTLED
        empty = self._space.empty_region(slot_class, before, self._may_go_whole)
        return empty is not None and await self.regions.repurpose(empty, slot_class)

    async def _evict_or_repurpose(self, slot_class: SlotClass, *, ahead: bool = False) -> bool:
        self._leasing.wish()
        victims = self._policy.victims(slot_class)
        victim = next(victims, None)
        before = math.inf if victim is None else self._policy.last_used(victim)
        coldest = self._space.coldest_region(slot_class, self._may_empty, before)
        if coldest is not None and await self.regions.repurpose(coldest, slot_class, ahead=ahead):
            return True
        return await self._evict_first(self._policy.victims(slot_class), ahead=ahead)

    async def _evict_first(self, candidates: Iterator[ObjectId], *, ahead: bool = False) -> bool:
        """Evict the first of these that may go; whether there was one."""
        for candidate in candidates:
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
        return coldest is not None and await self.regions.repurpose(coldest, slot_class)

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
        policy = self._policy
        return all(
            owner in policy and not policy.is_unfinished(owner) and self.may_go(owner)
            for owner in region.owners()
        )

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
        return coldest is not None and await self.regions.give(coldest)

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


async def _evict_nothing(object_id: ObjectId, *, ahead: bool = False) -> bool:
    return False
