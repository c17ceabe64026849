"""All regions of all devices: hands out slots so that neighbours lie on different devices. Pure.

Nothing here scans: sums follow every transition, and only regions that have something to give are looked at.

A region or device that is lost is dropped; a region for good. Whoever still holds one of its slots may publish it, give
it back, free or quarantine it, or add a region that was being formatted: nothing is handed out because of that, so nobody
needs to know who lost what first. Regions of a lost device are kept aside, in the state that they come to, until it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from blockdev.errors import Unavailable
from blockdev.region import Claim, IllegalTransition, Region, SlotState
from blockdev.shelf import Coldest, Shelf
from blockdev.tally import SpaceTotals, Tally
from blockdev.types import (
    CHUNK_SLOTS,
    Descriptor,
    DeviceNo,
    Generation,
    ObjectId,
    RegionId,
    RegionNo,
    SlotAddress,
    SlotClass,
    SlotNo,
    SlotRef,
)

__all__ = ["Space", "SpaceTotals"]

_MANY = 16
"""Regions."""
_USABLE = tuple(state for state in SlotState if state is not SlotState.BAD)


class Space:
    """The slots of one member's regions."""

    def __init__(self) -> None:
        self._regions: dict[RegionId, Region] = {}
        self._unused: dict[DeviceNo, set[RegionNo]] = {}
        self._dropped: set[RegionId] = set()
        self._lost: set[DeviceNo] = set()
        self._aside: dict[RegionId, Region] = {}
        """Regions of lost devices: known, and not in any of the other collections."""
        self._aside_unused: dict[DeviceNo, set[RegionNo]] = {}
        self._tally = Tally()
        self._shelves = [Shelf() for _ in SlotClass]
        self._coldest = [Coldest() for _ in SlotClass]
        self._unknown: list[dict[RegionId, Region]] = [{} for _ in SlotClass]
        self._limbo: dict[RegionId, Region] = {}
        self._empty: dict[RegionId, Region] = {}

    # ── regions ──────────────────────────────────────────────────────────────────────────────────────────

    def add_region(self, region: Region) -> None:
        """Use a region, with the slots it has; once its device is back, if that is lost.

        :raises IllegalTransition: it is there already
        """
        if region.id.device in self._lost:
            self._aside.setdefault(region.id, region)
            return
        if region.id in self._regions:
            raise IllegalTransition(f"{region.id} is in use")
        self._dropped.discard(region.id)
        self._take_unused(region.id)
        self._regions[region.id] = region
        self._tally.add(region)
        kind = region.slot_class
        if region.counts[SlotState.UNKNOWN]:
            self._unknown[kind][region.id] = region
        if region.counts[SlotState.LIMBO]:
            self._limbo[region.id] = region
        if region.counts[SlotState.FREE] and not region.closed:
            self._shelves[kind].add(region)
        self._coldest[kind].add(region)
        self._note_empty(region)
        region.ledger = self

    def add_unused(self, region_id: RegionId) -> None:
        """Know of a region without a class, to be formatted when one needs it; once its device is back, if it is lost.

        Nothing changes if it has one by now: two may have found it.
        """
        if region_id.device in self._lost:
            self._aside_unused.setdefault(region_id.device, set()).add(region_id.region)
        elif region_id not in self._regions:
            self._dropped.discard(region_id)
            self._unused.setdefault(region_id.device, set()).add(region_id.region)

    def region(self, region_id: RegionId) -> Region:
        """
        :raises Unavailable: it was dropped, or its device is lost
        :raises IllegalTransition: there is no such region
        """
        region = self._find(region_id)
        if region is None or region_id.device in self._lost:
            raise Unavailable(f"region {region_id.region} of device {region_id.device} is not used any more")
        return region

    def regions(self) -> Iterator[Region]:
        """Every region that has a class. Not across changes."""
        return iter(self._regions.values())

    def unused_region(
        self, slot_class: SlotClass | None = None, avoid: Collection[DeviceNo] = ()
    ) -> RegionId | None:
        """Hand out a region that has no class, the lowest number first; it is the caller's to format and add, or to drop.

        Of the device with the most of them; with `slot_class`, devices without a free slot of that class come first.
        """
        lacking = set() if slot_class is None else set(self.lacking_devices(slot_class))
        ranks = [
            (device in lacking, len(numbers), -device)
            for device, numbers in self._unused.items()
            if numbers and device not in avoid
        ]
        if not ranks:
            return None
        device = DeviceNo(-max(ranks)[2])
        region = RegionId(device, min(self._unused[device]))
        self._take_unused(region)
        return region

    def has_free(self, slot_class: SlotClass) -> bool:
        """Whether `take` would find a slot."""
        return bool(self._shelves[slot_class])

    @property
    def spares_one(self) -> bool:
        """Whether there are so many regions that one is kept for directories and small files, whoever is short of room.

        Else a pool full of what may not go takes no directory either.
        """
        return len(self._regions) + sum(map(len, self._unused.values())) >= _MANY

    def is_spared(self, region: Region) -> bool:
        """Whether it is that one."""
        inline = SlotClass.INLINE
        return region.slot_class is inline and self._tally.regions(inline) == 1 and self.spares_one

    @property
    def has_unused(self) -> bool:
        """Whether there is a region without a class."""
        return any(self._unused.values())

    def unused_devices(self) -> list[DeviceNo]:
        """Devices with a region without a class."""
        return [device for device, numbers in self._unused.items() if numbers]

    def free_on(self, device: DeviceNo, slot_class: SlotClass) -> int:
        """How many slots of a class `take` would find on a device."""
        return self._shelves[slot_class].free_on(device)

    def lacking_devices(self, slot_class: SlotClass) -> list[DeviceNo]:
        """Devices with unused regions but without a free slot of the class: takes are not striped over them."""
        shelf = self._shelves[slot_class]
        return [device for device in self.unused_devices() if not shelf.has_device(device)]

    def coldest_region(
        self,
        slot_class: SlotClass | None,
        may_empty: Callable[[Region], bool] = lambda _: True,
        before: float = float("inf"),
    ) -> RegionId | None:
        """The least recently used region of another class than this that could be emptied.

        Regions that are closed or have reserved slots cannot be.

        :param may_empty: asked last, coldest first: whether everything in the region may go
        :param before: only regions last used before this time
        """

        def suits(region: Region) -> bool:
            return not region.closed and not region.counts[SlotState.RESERVED] and may_empty(region)

        best: Region | None = None
        for kind in SlotClass:
            if kind != slot_class:
                found = self._coldest[kind].find(self._regions.get, suits, before)
                if found is not None:
                    best, before = found, found.last_used
        return None if best is None else best.id

    def empty_region(
        self, slot_class: SlotClass, before: float, may_empty: Callable[[Region], bool] = lambda _: True
    ) -> RegionId | None:
        """The least recently used region of another class with nothing in it, if it was last used before `before`."""
        suiting = [
            region
            for region in self._empty.values()
            if region.slot_class != slot_class
            and not region.closed
            and region.last_used < before
            and may_empty(region)
        ]
        return min(suiting, key=lambda region: region.last_used).id if suiting else None

    def _note_empty(self, region: Region) -> None:
        # What is unknown is no object; where small files are, it may be a tombstone.
        if region.is_empty and not (
            region.slot_class is SlotClass.INLINE and region.counts[SlotState.UNKNOWN]
        ):
            self._empty[region.id] = region
        else:
            self._empty.pop(region.id, None)

    def close_region(self, region_id: RegionId) -> Region:
        """Hand out no more slots of a region, to empty it. :raises Unavailable: it was dropped"""
        region = self.region(region_id)
        region.closed = True
        self._shelves[region.slot_class].discard(region)
        return region

    def reopen_region(self, region_id: RegionId) -> None:
        """Undo `close_region`."""
        region = self._find(region_id)
        if region is not None:
            region.closed = False
            if region.counts[SlotState.FREE] and region.ledger is not None:
                self._shelves[region.slot_class].add(region)

    def remove_region(self, region_id: RegionId) -> None:
        """Forget an empty region, to format it for another class.

        :raises Unavailable: it was dropped
        :raises IllegalTransition: it is not empty
        """
        region = self.region(region_id)
        if not region.is_empty:
            raise IllegalTransition(f"{region_id} is not empty")
        self._forget(region)

    def drop_region(self, region_id: RegionId) -> Region | None:
        """Stop using a region, whatever is in it. Returns it as it was; None if it had no class."""
        self._dropped.add(region_id)
        self._take_unused(region_id)
        self._aside.pop(region_id, None)
        region = self._regions.get(region_id)
        if region is not None:
            self._forget(region)
        return region

    def drop_device(self, device: DeviceNo) -> list[Region]:
        """Stop using a device that is lost. Returns its regions as they were: their owners have lost a part."""
        self._lost.add(device)
        self._aside_unused.setdefault(device, set()).update(self._unused.pop(device, ()))
        dropped = [region for region_id, region in self._regions.items() if region_id.device == device]
        for region in dropped:
            self._forget(region)
            self._aside[region.id] = region
        return dropped

    def lost_regions(self, device: DeviceNo) -> list[Region]:
        """The regions that a lost device had, with what became of their slots since."""
        return [region for region_id, region in self._aside.items() if region_id.device == device]

    def take_back(self, device: DeviceNo, without: Collection[RegionNo] = ()) -> list[Region]:
        """Use a lost device again, as it was. Returns its regions.

        :param without: regions that are not any more what they were: dropped
        """
        self._lost.discard(device)
        back = [region for region_id, region in self._aside.items() if region_id.device == device]
        for region in back:
            del self._aside[region.id]
        for number in self._aside_unused.pop(device, ()):
            self._restore(RegionId(device, number), None, without)
        for region in back:
            self._restore(region.id, region, without)
        return [region for region in back if region.ledger is not None]

    def _restore(self, region_id: RegionId, region: Region | None, without: Collection[RegionNo]) -> None:
        if region_id.region in without:
            self._dropped.add(region_id)
        elif region is None:
            self.add_unused(region_id)
        else:
            self.add_region(region)

    def _forget(self, region: Region) -> None:
        kind = region.slot_class
        del self._regions[region.id]
        self._tally.remove(region)
        self._shelves[kind].discard(region)
        self._unknown[kind].pop(region.id, None)
        self._limbo.pop(region.id, None)
        self._empty.pop(region.id, None)
        region.ledger = None

    def _take_unused(self, region_id: RegionId) -> None:
        self._unused.get(region_id.device, set()).discard(region_id.region)

    def _find(self, region_id: RegionId) -> Region | None:
        """None if it was dropped. :raises IllegalTransition: there is no such region"""
        region = self._regions.get(region_id) or self._aside.get(region_id)
        if region is None and region_id not in self._dropped and region_id.device not in self._lost:
            raise IllegalTransition(f"{region_id} is not a region in use")
        return region

    def owner_of(self, ref: SlotRef) -> ObjectId | None:
        """The object that a slot of ours belongs to in this use; None if it is not known, or not ours."""
        region = self._regions.get(RegionId(ref.device, ref.region))
        if region is None or ref.slot >= region.slots or region.generation[ref.slot] != ref.generation:
            return None
        return region.owner(ref.slot)

    def absorb(self, other: Space) -> None:
        """Take over all regions of another space, with their slots as they are."""
        for region in list(other.regions()):
            other._forget(region)
            self.add_region(region)

    # ── slots ────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, slot_class: SlotClass, avoid: Collection[DeviceNo] = ()) -> SlotRef | None:
        """Reserve a free slot on the next device that has one and is not in `avoid`; None if there is none."""
        return self._shelves[slot_class].take(avoid)

    def give_back(self, ref: SlotRef) -> None:
        """Undo `take`: no record was written. :raises IllegalTransition: it is not reserved"""
        self._change(ref, lambda region: region.give_back(ref.slot))

    def publish(self, ref: SlotRef, owner: ObjectId) -> None:
        """A record of `owner` was written into the slot (`set_sequence`), which was reserved or live.

        :raises IllegalTransition: the slot is neither, or in another use
        """
        self._change(ref, lambda region: region.publish(ref.slot, owner))

    def touch(self, place: SlotAddress | SlotRef, now: float) -> None:
        """Somebody stored or wanted what is in this slot: it keeps its region from being emptied."""
        region = self._regions.get(RegionId(place.device, place.region))
        if region is not None:
            region.last_used = max(region.last_used, now)

    def free(self, ref: SlotRef, generation: Generation, sequence: int, ready_at: float) -> None:
        """A FREE record with this generation and sequence was written: reusable from `ready_at`, see `reap`.

        :raises IllegalTransition: the slot is neither live nor reserved, or in another use
        """
        self._change(ref, lambda region: region.free(ref.slot, generation, sequence, ready_at))

    def reap(self, now: float, held: Callable[[SlotAddress], bool] = lambda _: False) -> list[SlotRef]:
        """Make the slots reusable whose limbo is over and that nobody holds; returns them with their next generation."""
        reaped: list[SlotRef] = []
        for region in list(self._limbo.values()):

            def is_held(slot: SlotNo, region_id: RegionId = region.id) -> bool:
                return held(SlotAddress(*region_id, slot))

            reaped.extend(map(region.ref, region.reap(now, is_held)))
        return reaped

    def next_ready(self, slot_class: SlotClass) -> float | None:
        """When the next slot of the class leaves limbo; infinity if that is up to its readers; None if none will."""
        regions = [region for region in self._limbo.values() if region.slot_class == slot_class]
        return min((ready for r in regions if (ready := r.next_ready()) is not None), default=None)

    def resting(self, slot_class: SlotClass) -> int:
        """How many slots of the class leave limbo at a known time."""
        return sum(region.resting for region in self._limbo.values() if region.slot_class == slot_class)

    def slots(self, slot_class: SlotClass, *states: SlotState) -> int:
        """How many slots of a class are in these states; of all that can be used, without `states`."""
        return self._tally.slots(slot_class, *(states or _USABLE))

    def quarantine(self, place: SlotAddress | SlotRef) -> None:
        """Do not use the slot until its region is formatted.

        Given a use instead of an address: not if the slot has gone to another use since.
        """
        region = self._find(RegionId(place.device, place.region))
        if region is not None and not (isinstance(place, SlotRef) and self._reused(region, place)):
            region.quarantine(place.slot)

    @staticmethod
    def _reused(region: Region, ref: SlotRef) -> bool:
        taken = region.state(ref.slot) in {SlotState.RESERVED, SlotState.LIVE}
        return taken and region.generation[ref.slot] != ref.generation

    def in_use(self, ref: SlotRef) -> bool:
        """Whether the slot is known to be in this use still, or to have failed in it."""
        region = self._regions.get(RegionId(ref.device, ref.region))
        return (
            region is not None
            and ref.slot < region.slots  # it may have been formatted since
            and region.generation[ref.slot] == ref.generation
            and region.state(ref.slot) in {SlotState.RESERVED, SlotState.LIVE, SlotState.BAD}
        )

    def is_reserved(self, ref: SlotRef) -> bool:
        """Whether the slot was taken for this use, and neither published nor given up since."""
        region = self._regions.get(RegionId(ref.device, ref.region))
        return (
            region is not None
            and ref.slot < region.slots
            and region.generation[ref.slot] == ref.generation
            and region.state(ref.slot) is SlotState.RESERVED
        )

    def has_failed(self, ref: SlotRef) -> bool:
        """Whether the slot was quarantined, or its region or device dropped."""
        region = self._regions.get(RegionId(ref.device, ref.region))
        if region is None:
            return ref.device in self._lost or RegionId(ref.device, ref.region) in self._dropped
        return ref.slot < region.slots and region.state(ref.slot) is SlotState.BAD

    def ref_of(self, address: SlotAddress) -> SlotRef:
        """The slot's current use, or its next one if it is free. :raises Unavailable: its region was dropped"""
        return self.region(RegionId(address.device, address.region)).ref(address.slot)

    def generation(self, address: SlotAddress) -> Generation | None:
        """Of the slot's current use, or of its next one if it is free; None if that is not known."""
        region = self._regions.get(RegionId(address.device, address.region))
        return None if region is None else Generation(region.generation[address.slot]) or None

    def sequence(self, address: SlotAddress) -> int:
        """Sequence of the slot's record; 0 if it is not known. :raises Unavailable: its region was dropped"""
        return self.region(RegionId(address.device, address.region)).sequence[address.slot]

    def set_sequence(self, address: SlotAddress, sequence: int) -> None:
        """A record with this sequence was written into the slot. :raises IllegalTransition: an older one"""
        region = self._find(RegionId(address.device, address.region))
        if region is not None:
            with self._lenient(region, address.slot):
                region.set_sequence(address.slot, sequence)

    def _change(self, ref: SlotRef, change: Callable[[Region], None]) -> None:
        """Change a slot in the use that `ref` names; nothing if its region was dropped.

        :raises IllegalTransition: it is in another use, or cannot be changed like that
        """
        region = self._find(RegionId(ref.device, ref.region))
        if region is None:
            return
        with self._lenient(region, ref.slot):
            if region.generation[ref.slot] != ref.generation:
                raise IllegalTransition(f"{tuple(ref)} is another use: now {tuple(region.ref(ref.slot))}")
            change(region)

    @contextmanager
    def _lenient(self, region: Region, slot: SlotNo) -> Iterator[None]:
        """Of a device that is lost, whoever holds a slot cannot know what became of it."""
        try:
            yield
        except IllegalTransition:
            if region.ledger is not None:
                raise
            region.quarantine(slot)

    # ── what is on media ─────────────────────────────────────────────────────────────────────────────────

    def claim(self, ref: SlotRef, owner: ObjectId, sequence: int = 0) -> bool:
        """A live object's slot, whose record was not read: the catalogue or the object's head names it.

        :param sequence: of the slot's record; 0 if it is not known
        :returns: whether it can be so: there is such a slot, and it is not known to be free, bad or somebody else's
        """
        region = self._regions.get(RegionId(ref.device, ref.region))
        return region is not None and region.claim(ref.slot, owner, ref.generation, sequence)

    def claim_all(self, region_id: RegionId, claims: Sequence[Claim]) -> list[ObjectId]:
        """As `claim` for many slots of a region; returns the owners of those that cannot be."""
        region = self._regions.get(region_id)
        if region is None:
            return [owner for _, owner, _, _ in claims]
        unknown = region.counts[SlotState.UNKNOWN]
        refused = region.claim_all(claims)
        count = unknown - region.counts[SlotState.UNKNOWN]
        self._tally.move(region.slot_class, SlotState.UNKNOWN, SlotState.LIVE, count)
        self._note_empty(region)
        return refused

    def unknown_chunk(self, slot_class: SlotClass) -> tuple[RegionId, int] | None:
        """A chunk with slots whose record was not read yet: a place to look for free ones. Region after region."""
        waiting = self._unknown[slot_class]
        for region_id, region in list(waiting.items()):
            if region.closed:
                continue
            del waiting[region_id]
            chunk = region.unknown_chunk()
            if chunk is not None:
                waiting[region_id] = region  # at the end: the next call looks into another region
                return region_id, chunk
        return None

    def load_chunk(
        self, region_id: RegionId, chunk: int, records: Sequence[Descriptor | None]
    ) -> list[Descriptor]:
        """Take over a chunk's records, None for a damaged pair. See `Region.load`.

        Records of an earlier epoch do not count: the region was formatted since they were read.

        :returns: the records in use whose slot was unknown until now, so that nobody has claimed it
        """
        region = self._regions.get(region_id)  # may have been dropped or removed while it was read
        if region is None:
            return []
        first = chunk * CHUNK_SLOTS
        return [
            record
            for slot, record in enumerate(records, first)
            if self._load(region, SlotNo(slot), record) and record is not None
        ]

    @staticmethod
    def _load(region: Region, slot: SlotNo, record: Descriptor | None) -> bool:
        outdated = slot >= region.slots or (record is not None and record.epoch != region.epoch)
        return not outdated and region.load(slot, record)

    # ── sums ─────────────────────────────────────────────────────────────────────────────────────────────

    def moved(self, region: Region, before: SlotState, after: SlotState) -> None:
        """Called by our regions: see `Ledger`."""
        kind = region.slot_class
        self._tally.move(kind, before, after)
        if after is SlotState.FREE:
            if not region.closed:
                self._shelves[kind].add(region)
        elif after is SlotState.LIMBO:
            self._limbo[region.id] = region
        elif after is SlotState.BAD and not region.counts[SlotState.FREE]:
            self._shelves[kind].discard(region)
        if before is SlotState.LIMBO and not region.counts[SlotState.LIMBO]:
            del self._limbo[region.id]
        self._note_empty(region)

    def totals(self) -> SpaceTotals:
        """Sums over all regions, kept up to date by every transition."""
        return self._tally.totals(sum(map(len, self._unused.values())))
