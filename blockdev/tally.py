"""How many slots are in which state, kept up to date by every transition instead of counted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from blockdev.region import Region, SlotState
from blockdev.types import PAGE, SlotClass


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


class Tally:
    """The sums over many regions."""

    def __init__(self) -> None:
        self._slots = [[0] * len(SlotState) for _ in SlotClass]
        self._regions = [0] * len(SlotClass)

    def add(self, region: Region) -> None:
        """Count a region's slots."""
        self._count(region, 1)

    def remove(self, region: Region) -> None:
        """Do not count them any more."""
        self._count(region, -1)

    def move(self, slot_class: SlotClass, before: SlotState, after: SlotState, count: int = 1) -> None:
        """Slots of a region that is counted went from one state to another."""
        counts = self._slots[slot_class]
        counts[before] -= count
        counts[after] += count

    def regions(self, slot_class: SlotClass) -> int:
        """How many regions of a class are counted."""
        return self._regions[slot_class]

    def slots(self, slot_class: SlotClass, *states: SlotState) -> int:
        """How many slots of a class are in these states."""
        counts = self._slots[slot_class]
        return sum(counts[state] for state in states)

    def totals(self, unused_regions: int) -> SpaceTotals:
        """The sums as they are now."""
        return SpaceTotals(
            unknown=self._bytes(SlotState.UNKNOWN),
            free=self._bytes(SlotState.FREE),
            reserved=self._bytes(SlotState.RESERVED),
            live=self._bytes(SlotState.LIVE),
            limbo=self._bytes(SlotState.LIMBO),
            bad=self._bytes(SlotState.BAD),
            unused_regions=unused_regions,
            classes=tuple(
                ClassTotals(kind, self._regions[kind], *self._slots[kind])
                for kind in SlotClass
                if self._regions[kind]
            ),
        )

    def _bytes(self, state: SlotState) -> int:
        return sum(self._slots[kind][state] * slot_bytes(kind) for kind in SlotClass)

    def _count(self, region: Region, sign: int) -> None:
        self._regions[region.slot_class] += sign
        for state in SlotState:
            self._slots[region.slot_class][state] += sign * region.counts[state]
