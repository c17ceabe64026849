"""All regions of all devices: hands out slots so that neighbours lie on different devices. Pure.

Nothing here scans: sums follow every transition, and only regions that have something to give are looked at.

A device or region that is lost is dropped. Whoever still holds one of its slots may give it back, free it or quarantine
it all the same: that is then of no consequence, so nobody needs to know who lost what first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from blockdev.errors import Unavailable
from blockdev.region import IllegalTransition, Region, SlotState
from blockdev.types import (
    CHUNK_SLOTS,
    PAGE,
    Descriptor,
    DeviceNo,
    Epoch,
    Generation,
    ObjectId,
    RegionId,
    RegionNo,
    SlotAddress,
    SlotClass,
    SlotNo,
    SlotRef,
)


def slot_bytes(slot_class: SlotClass) -> int:
    """What one slot counts for in sums of bytes: its payload, or the pair of pages of an inline slot."""
    return slot_class.payload_size or 2 * PAGE


@dataclass(frozen=True, slots=True)
class ClassTotals:
    """Slots of one class, by state."""

    slot_class: SlotClass
    regions: int
    unknown: int
    free: int
    reserved: int
    live: int
    limbo: int
    bad: int


@dataclass(frozen=True, slots=True)
class SpaceTotals:
    """Bytes of payload (of descriptors, for inline slots) by state, and the same as slots by class."""

    unknown: int
    free: int
    reserved: int
    live: int
    limbo: int
    bad: int
    unused_regions: int
    """Regions that have no class yet; not part of the bytes."""
    classes: tuple[ClassTotals, ...]

    @property
    def total(self) -> int:
        """Bytes of all slots that can be used."""
        return self.unknown + self.free + self.reserved + self.live + self.limbo


class _Shelf:
    """The regions of one class with free slots, in the order in which they give: device by device, region by region."""

    def __init__(self) -> None:
        self._devices: deque[DeviceNo] = deque()
        self._regions: dict[DeviceNo, deque[Region]] = {}
        self._shelved: set[RegionId] = set()

    def __contains__(self, region: Region) -> bool:
        return region.id in self._shelved

    def has_device(self, device: DeviceNo) -> bool:
        return device in self._regions

    def add(self, region: Region) -> None:
        self._shelved.add(region.id)
        device = region.id.device
        if device not in self._regions:
            self._regions[device] = deque()
            self._devices.append(device)
        self._regions[device].append(region)

    def discard(self, region: Region) -> None:
        if region.id in self._shelved:
            self._shelved.remove(region.id)
            device = region.id.device
            self._regions[device].remove(region)
            if not self._regions[device]:
                del self._regions[device]
                self._devices.remove(device)

    def take(self, avoid: Collection[DeviceNo]) -> SlotRef | None:
        for _ in range(len(self._devices)):
            device = self._devices[0]
            self._devices.rotate(-1)
            if device in avoid:
                continue
            regions = self._regions[device]
            region = regions[0]
            regions.rotate(-1)
            slot = region.take()
            if not region.counts[SlotState.FREE]:
                self.discard(region)
            assert slot is not None, "a region without free slots was on the shelf"
            return region.ref(slot)
        return None


class Space:
    """The slots of one member's regions."""

    def __init__(self) -> None:
        self._regions: dict[RegionId, Region] = {}
        self._unused: dict[DeviceNo, list[RegionNo]] = {}  # heaps: the lowest number first
        self._dropped: set[RegionId] = set()
        self._lost: set[DeviceNo] = set()
        self._shelves = [_Shelf() for _ in SlotClass]
        self._counts = [[0] * len(SlotState) for _ in SlotClass]
        self._region_counts = [0] * len(SlotClass)
        self._unknown: list[dict[RegionId, Region]] = [{} for _ in SlotClass]
        self._limbo: dict[RegionId, Region] = {}
        # By class, a heap of (lower bound of last_used, id, epoch): bounds are raised when they are looked at.
        self._coldest: list[list[tuple[float, RegionId, Epoch]]] = [[] for _ in SlotClass]

    # ── regions ──────────────────────────────────────────────────────────────────────────────────────────

    def add_region(self, region: Region) -> None:
        """Use a region, with the slots it has.

        :raises IllegalTransition: it is there already
        """
        if region.id in self._regions:
            raise IllegalTransition(f"{region.id} is in use")
        self._dropped.discard(region.id)
        self._lost.discard(region.id.device)
        if region.id.region in self._unused.get(region.id.device, ()):
            self._unused[region.id.device].remove(region.id.region)
            heapify(self._unused[region.id.device])
        self._regions[region.id] = region
        kind = region.slot_class
        for state in SlotState:
            self._counts[kind][state] += region.counts[state]
        self._region_counts[kind] += 1
        if region.counts[SlotState.UNKNOWN]:
            self._unknown[kind][region.id] = region
        if region.counts[SlotState.LIMBO]:
            self._limbo[region.id] = region
        if region.counts[SlotState.FREE] and not region.closed:
            self._shelves[kind].add(region)
        heappush(self._coldest[kind], (region.last_used, region.id, region.epoch))
        region.ledger = self

    def add_unused(self, region_id: RegionId) -> None:
        """Know of a region without a class, to be formatted when one needs it."""
        self._dropped.discard(region_id)
        self._lost.discard(region_id.device)
        heappush(self._unused.setdefault(region_id.device, []), region_id.region)

    def region(self, region_id: RegionId) -> Region:
        """:raises Unavailable: it was dropped. :raises IllegalTransition: there is no such region"""
        region = self._find(region_id)
        if region is None:
            raise Unavailable(f"region {region_id.region} of device {region_id.device} is not used any more")
        return region

    def regions(self) -> Iterator[Region]:
        """Every region that has a class. Not across changes."""
        return iter(self._regions.values())

    def unused_region(
        self, slot_class: SlotClass | None = None, avoid: Collection[DeviceNo] = ()
    ) -> RegionId | None:
        """Hand out a region that has no class; it is the caller's to format and add, or to drop.

        Of the device with the most of them; with `slot_class`, devices without a free slot of that class come first.
        """
        best: DeviceNo | None = None
        best_rank = (False, 0)
        for device, numbers in self._unused.items():
            bare = slot_class is not None and not self._shelves[slot_class].has_device(device)
            rank = (bare, len(numbers))
            if device not in avoid and numbers and rank > best_rank:
                best, best_rank = device, rank
        if best is None:
            return None
        return RegionId(best, heappop(self._unused[best]))

    def lacking_devices(self, slot_class: SlotClass) -> list[DeviceNo]:
        """Devices with unused regions but without a free slot of the class: takes are not striped over them yet."""
        shelf = self._shelves[slot_class]
        return [
            device for device, numbers in self._unused.items() if numbers and not shelf.has_device(device)
        ]

    def coldest_region(
        self,
        slot_class: SlotClass,
        may_empty: Callable[[Region], bool] = lambda region: True,
        before: float = float("inf"),
    ) -> RegionId | None:
        """The least recently used region that could be emptied and given to `slot_class`, which it does not have yet.

        :param may_empty: asked last, coldest first: whether everything in the region may go
        :param before: only regions last used before this time
        """
        found: list[tuple[float, RegionId, Epoch]] = []
        for kind in SlotClass:
            if kind != slot_class:
                found.extend(self._colder_than(kind, before, may_empty))
        return min(found)[1] if found else None

    def _colder_than(
        self, kind: SlotClass, before: float, may_empty: Callable[[Region], bool]
    ) -> Iterator[tuple[float, RegionId, Epoch]]:
        """The coldest suitable region of one class, if there is one."""
        heap = self._coldest[kind]
        unsuitable: list[tuple[float, RegionId, Epoch]] = []
        while heap and heap[0][0] < before:
            bound, region_id, epoch = heap[0]
            region = self._regions.get(region_id)
            if region is None or region.epoch != epoch:
                heappop(heap)
            elif region.last_used > bound:
                heapreplace(heap, (region.last_used, region_id, epoch))
            elif not region.closed and not region.counts[SlotState.RESERVED] and may_empty(region):
                yield heap[0]
                break
            else:
                unsuitable.append(heappop(heap))
        for entry in unsuitable:
            heappush(heap, entry)

    def close_region(self, region_id: RegionId) -> Region:
        """Hand out no more slots of a region, to empty it. :raises Unavailable: it was dropped"""
        region = self.region(region_id)
        region.closed = True
        self._shelves[region.slot_class].discard(region)
        return region

    def reopen_region(self, region_id: RegionId) -> None:
        """Undo `close_region`. Nothing if the region was dropped."""
        region = self._find(region_id)
        if region is not None:
            region.closed = False
            if region.counts[SlotState.FREE] and region not in self._shelves[region.slot_class]:
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
        """Stop using a region, whatever is in it. Returns it as it was, None if it had no class."""
        self._dropped.add(region_id)
        region = self._regions.get(region_id)
        if region is not None:
            self._forget(region)
        elif region_id.region in self._unused.get(region_id.device, ()):
            self._unused[region_id.device].remove(region_id.region)
            heapify(self._unused[region_id.device])
        return region

    def drop_device(self, device: DeviceNo) -> list[Region]:
        """Stop using a device that is lost. Returns its regions as they were: their owners have lost a part."""
        self._lost.add(device)
        self._unused.pop(device, None)
        dropped = [region for region_id, region in self._regions.items() if region_id.device == device]
        for region in dropped:
            self._forget(region)
        return dropped

    def _forget(self, region: Region) -> None:
        kind = region.slot_class
        del self._regions[region.id]
        self._shelves[kind].discard(region)
        self._unknown[kind].pop(region.id, None)
        self._limbo.pop(region.id, None)
        for state in SlotState:
            self._counts[kind][state] -= region.counts[state]
        self._region_counts[kind] -= 1
        region.ledger = None

    def _find(self, region_id: RegionId) -> Region | None:
        """None if it was dropped. :raises IllegalTransition: there is no such region"""
        region = self._regions.get(region_id)
        if region is None and region_id not in self._dropped and region_id.device not in self._lost:
            raise IllegalTransition(f"{region_id} is not a region in use")
        return region

    # ── slots ────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, slot_class: SlotClass, avoid: Collection[DeviceNo] = ()) -> SlotRef | None:
        """Reserve a free slot on the next device that has one and is not in `avoid`; None if there is none."""
        return self._shelves[slot_class].take(avoid)

    def give_back(self, ref: SlotRef) -> None:
        """Undo `take`: no record was written. :raises IllegalTransition: it is not reserved"""
        region = self._current(ref)
        if region is not None:
            region.give_back(ref.slot)

    def publish(self, ref: SlotRef, owner: ObjectId) -> None:
        """A record of `owner` was written into the slot, which was reserved or live.

        :raises IllegalTransition: the slot is neither, or in another use
        """
        region = self._current(ref)
        if region is not None:
            region.publish(ref.slot, owner)

    def claim(self, ref: SlotRef, owner: ObjectId, sequence: int = 0) -> None:
        """A live object's slot, whose record was not read. See `Region.claim`. :raises IllegalTransition: known already"""
        region = self._find(RegionId(ref.device, ref.region))
        if region is not None:
            region.claim(ref.slot, owner, ref.generation, sequence)

    def touch(self, address: SlotAddress | SlotRef, now: float) -> None:
        """Somebody wanted what is in this slot."""
        region = self._regions.get(RegionId(address.device, address.region))
        if region is not None:
            region.last_used = max(region.last_used, now)

    def free(self, ref: SlotRef, generation: Generation, sequence: int, ready_at: float) -> None:
        """A FREE record with this generation and sequence was written: reusable from `ready_at`, see `reap`.

        :raises IllegalTransition: the slot is neither live nor reserved, or in another use
        """
        region = self._current(ref)
        if region is not None:
            region.free(ref.slot, generation, sequence, ready_at)

    def reap(self, now: float, held: Callable[[SlotAddress], bool] = lambda address: False) -> list[SlotRef]:
        """Make the slots reusable whose limbo is over and that nobody holds; returns them with their next generation."""
        reaped: list[SlotRef] = []
        for region in list(self._limbo.values()):
            slots = region.reap(now, lambda slot, region=region: held(region.address(slot)))  # type: ignore[misc]
            reaped.extend(region.ref(slot) for slot in slots)
        return reaped

    def next_ready(self, slot_class: SlotClass) -> float | None:
        """When the next slot of the class leaves limbo; infinity if that is up to its readers; None if none will."""
        times = (r.next_ready() for r in self._limbo.values() if r.slot_class == slot_class)
        return min((time for time in times if time is not None), default=None)

    def quarantine(self, address: SlotAddress) -> None:
        """Do not use the slot until its region is formatted."""
        region = self._find(RegionId(address.device, address.region))
        if region is not None:
            region.quarantine(address.slot)

    def ref_of(self, address: SlotAddress) -> SlotRef:
        """The slot's current use, or its next one if it is free. :raises Unavailable: its region was dropped"""
        return self.region(RegionId(address.device, address.region)).ref(address.slot)

    def class_of(self, address: SlotAddress) -> SlotClass:
        """:raises Unavailable: its region was dropped"""
        return self.region(RegionId(address.device, address.region)).slot_class

    def is_free(self, ref: SlotRef) -> bool:
        """Whether this use of the slot is known to be over, on media too: it was freed, and maybe reused since."""
        region = self._find(RegionId(ref.device, ref.region))
        if region is None or region.state(ref.slot) in {SlotState.UNKNOWN, SlotState.BAD}:
            return False
        return region.generation[ref.slot] > ref.generation

    def owner(self, address: SlotAddress) -> ObjectId | None:
        """The object that lives in the slot; None if none does. :raises Unavailable: its region was dropped"""
        return self.region(RegionId(address.device, address.region)).owner(address.slot)

    def sequence(self, address: SlotAddress) -> int:
        """Sequence of the slot's record; 0 if it is not known. :raises Unavailable: its region was dropped"""
        return self.region(RegionId(address.device, address.region)).sequence[address.slot]

    def set_sequence(self, address: SlotAddress, sequence: int) -> None:
        """A record with this sequence was written into the slot."""
        region = self._find(RegionId(address.device, address.region))
        if region is not None:
            region.set_sequence(address.slot, sequence)

    def _current(self, ref: SlotRef) -> Region | None:
        """The region of a slot in the use that `ref` names; None if it was dropped."""
        region = self._find(RegionId(ref.device, ref.region))
        if region is not None and region.generation[ref.slot] != ref.generation:
            raise IllegalTransition(f"{ref} is an earlier use: now {region.ref(ref.slot)}")
        return region

    # ── unknown slots ────────────────────────────────────────────────────────────────────────────────────

    def unknown_chunk(self, slot_class: SlotClass) -> tuple[RegionId, int] | None:
        """A chunk with slots whose record was not read yet: a place to look for free ones. Region after region."""
        waiting = self._unknown[slot_class]
        for region_id in list(waiting):
            region = waiting.pop(region_id)
            chunk = region.unknown_chunk()
            if chunk is not None:
                waiting[region_id] = region  # to the end: the next call looks into another region
                return region_id, chunk
        return None

    def load_chunk(
        self, region_id: RegionId, chunk: int, records: Sequence[Descriptor | None]
    ) -> list[Descriptor]:
        """Take over a chunk's records, None for a damaged pair. See `Region.load`.

        :returns: the records in use whose slot was unknown until now: nobody had claimed it
        """
        region = self._find(region_id)
        if region is None:
            return []
        first = chunk * CHUNK_SLOTS
        return [
            record
            for slot, record in enumerate(records, first)
            if region.load(SlotNo(slot), record) and record is not None
        ]

    # ── sums ─────────────────────────────────────────────────────────────────────────────────────────────

    def moved(self, region: Region, before: SlotState, after: SlotState) -> None:
        """Called by our regions: see `Ledger`."""
        kind = region.slot_class
        counts = self._counts[kind]
        counts[before] -= 1
        counts[after] += 1
        if after is SlotState.FREE:
            if not region.closed and region not in self._shelves[kind]:
                self._shelves[kind].add(region)
        elif before is SlotState.FREE and after is SlotState.BAD and not region.counts[SlotState.FREE]:
            self._shelves[kind].discard(region)
        if after is SlotState.LIMBO:
            self._limbo[region.id] = region
        elif before is SlotState.LIMBO and not region.counts[SlotState.LIMBO]:
            self._limbo.pop(region.id, None)

    def totals(self) -> SpaceTotals:
        """Sums over all regions, kept up to date by every transition."""

        def in_bytes(state: SlotState) -> int:
            return sum(self._counts[kind][state] * slot_bytes(kind) for kind in SlotClass)

        return SpaceTotals(
            unknown=in_bytes(SlotState.UNKNOWN),
            free=in_bytes(SlotState.FREE),
            reserved=in_bytes(SlotState.RESERVED),
            live=in_bytes(SlotState.LIVE),
            limbo=in_bytes(SlotState.LIMBO),
            bad=in_bytes(SlotState.BAD),
            unused_regions=sum(map(len, self._unused.values())),
            classes=tuple(
                ClassTotals(kind, self._region_counts[kind], *self._counts[kind])
                for kind in SlotClass
                if self._region_counts[kind]
            ),
        )
