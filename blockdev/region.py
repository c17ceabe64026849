"""One region: the state of every slot, and the only ways from one state to another. Pure.

    UNKNOWN ──load──▶ FREE ◀─────────reap──────── LIMBO
       │               │ ▲                          ▲
       │             take give_back                 │
     claim             ▼ │                          │
       │           RESERVED ──────────free──────────┤
       │               │                            │
       │            publish                         │
       ▼               ▼                            │
      LIVE ◀───────────┘ ───────────free────────────┘        any ──quarantine──▶ BAD

UNKNOWN is a slot whose record was not read since the pool was opened and which no live object claims. LIMBO is a slot
that is invalid on media but that somebody may still be reading. BAD is never used until the region is formatted.

A pool may have 10^7 slots, so a region keeps arrays, 37 bytes a slot, and no object per slot.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import Protocol

from blockdev.types import (
    CHUNK_SLOTS,
    NO_ID,
    Descriptor,
    Epoch,
    Generation,
    Kind,
    ObjectId,
    RegionId,
    SlotAddress,
    SlotClass,
    SlotNo,
    SlotRef,
)

FORMATTED_SEQUENCE = 2
"""Sequence of the FREE page that formatting writes into each pair: page 0, and 0 stays free to mean "not known"."""

_ID_SIZE = len(NO_ID)


class IllegalTransition(AssertionError):
    """A slot was asked for something its state does not allow: an error of the caller, never of media."""


class SlotState(IntEnum):
    """What may be done with a slot; see the module's drawing."""

    UNKNOWN = 0
    FREE = 1
    RESERVED = 2
    LIVE = 3
    LIMBO = 4
    BAD = 5


Claim = tuple[SlotNo, ObjectId, Generation, int]
"""What `Region.claim` is told: slot, owner, generation, sequence."""


class Ledger(Protocol):
    """Who keeps sums over many regions."""

    def moved(self, region: Region, before: SlotState, after: SlotState) -> None:
        """One slot of `region` went from one state to another; the region's own counts say so already."""


class Region:
    """The slots of one region in one epoch. It begins with every slot UNKNOWN.

    Free slots are handed out in the order in which they became free: a slot rests as long as possible before its next
    use, so a late reader meets an invalid record rather than another object, and fresh regions fill in media order.

    :ivar generation: by slot: of the current use, or of the next one while it is free; 0 while unknown
    :ivar sequence: by slot: of the record that counts; 0 while it is not known
    :ivar counts: slots in each state, by `SlotState`
    :ivar last_used: when one of its objects was last wanted, seconds on the caller's clock
    :ivar closed: no slot is handed out, because the region is being emptied
    """

    __slots__ = (
        "_free",
        "_free_first",
        "_free_length",
        "_held",
        "_limbo",
        "_owner",
        "_state",
        "_unknown_from",
        "_unknown_in_chunk",
        "closed",
        "counts",
        "epoch",
        "generation",
        "id",
        "last_used",
        "ledger",
        "sequence",
        "slot_class",
        "slots",
    )

    def __init__(self, region_id: RegionId, slot_class: SlotClass, epoch: Epoch, slots: int) -> None:
        self.id = region_id
        self.slot_class = slot_class
        self.epoch = epoch
        self.slots = slots
        self.generation = array("Q", bytes(8 * slots))
        self.sequence = array("Q", bytes(8 * slots))
        self.counts = [0] * len(SlotState)
        self.counts[SlotState.UNKNOWN] = slots
        self.last_used = 0.0
        self.closed = False
        self.ledger: Ledger | None = None
        self._state = bytearray(slots)
        self._owner = bytearray(_ID_SIZE * slots)
        # A ring of slot numbers. Each slot is in it at most once, so it never overflows; one that was quarantined
        # while free stays in it and is passed over.
        self._free = array("I", bytes(4 * slots))
        self._free_first = 0
        self._free_length = 0
        self._limbo: list[tuple[float, SlotNo]] = []  # a heap by the time from which the slot may be reused
        self._held: dict[SlotNo, None] = {}  # in limbo: their time is over but somebody still reads them
        self._unknown_in_chunk = bytearray(
            min(CHUNK_SLOTS, slots - first) for first in range(0, slots, CHUNK_SLOTS)
        )
        self._unknown_from = 0  # no chunk before this one has unknown slots

    @classmethod
    def formatted(cls, region_id: RegionId, slot_class: SlotClass, epoch: Epoch, slots: int) -> Region:
        """A region that was just formatted: every slot is free, its generation begins at the epoch."""
        region = cls(region_id, slot_class, epoch, slots)
        region.generation = array("Q", [epoch << 32]) * slots
        region.sequence = array("Q", [FORMATTED_SEQUENCE]) * slots
        region.counts[SlotState.UNKNOWN] = 0
        region.counts[SlotState.FREE] = slots
        region._state = bytearray([SlotState.FREE]) * slots
        region._free = array("I", range(slots))
        region._free_length = slots
        region._unknown_in_chunk = bytearray(len(region._unknown_in_chunk))
        return region

    # ── what is known ────────────────────────────────────────────────────────────────────────────────────

    def state(self, slot: SlotNo) -> SlotState:
        return SlotState(self._state[slot])

    def owner(self, slot: SlotNo) -> ObjectId | None:
        """The object that a LIVE slot belongs to; None for other slots."""
        if self._state[slot] != SlotState.LIVE:
            return None
        return ObjectId(bytes(self._owner[_ID_SIZE * slot : _ID_SIZE * (slot + 1)]))

    def owners(self) -> Iterator[ObjectId]:
        """The objects with LIVE slots here, each once as long as its slots are neighbours. Not across changes."""
        previous: ObjectId | None = None
        slot = self._state.find(SlotState.LIVE)
        while slot >= 0:
            owner = self.owner(SlotNo(slot))
            if owner is not None and owner != previous:
                yield owner
                previous = owner
            slot = self._state.find(SlotState.LIVE, slot + 1)

    def ref(self, slot: SlotNo) -> SlotRef:
        """The slot's current use, or its next one while it is free."""
        return SlotRef(*self.id, slot, Generation(self.generation[slot]))

    def address(self, slot: SlotNo) -> SlotAddress:
        return SlotAddress(*self.id, slot)

    @property
    def is_empty(self) -> bool:
        """Nothing here is in use or may still be read, so the region may be formatted.

        Unknown slots do not count: no live object claims them.
        """
        counts = self.counts
        return not (counts[SlotState.RESERVED] or counts[SlotState.LIVE] or counts[SlotState.LIMBO])

    def unknown_chunk(self) -> int | None:
        """The first chunk with unknown slots; None when every slot is known."""
        if not self.counts[SlotState.UNKNOWN]:
            return None
        while not self._unknown_in_chunk[self._unknown_from]:
            self._unknown_from += 1
        return self._unknown_from

    def next_ready(self) -> float | None:
        """When the first slot in limbo may be reused; infinity if all of them are still read; None if there is none."""
        self._forget_quarantined()
        if self._limbo:
            return self._limbo[0][0]
        return float("inf") if self.counts[SlotState.LIMBO] else None

    @property
    def resting(self) -> int:
        """How many slots leave limbo at a known time."""
        return self.counts[SlotState.LIMBO] - len(self._held)

    # ── learning what is on media ────────────────────────────────────────────────────────────────────────

    def load(self, slot: SlotNo, record: Descriptor | None) -> bool:
        """Take over what the slot's pair of pages says; None if neither page is valid.

        Only an unknown slot changes its state: what is known of others is newer than the page that was read. Of a
        slot claimed without its sequence, the sequence is learnt.

        :returns: whether the record is in use and the slot was unknown until now
        :raises IllegalTransition: it is the record of another slot or of another epoch
        """
        if record is not None and (record.address != self.address(slot) or record.epoch != self.epoch):
            raise IllegalTransition(f"slot {slot} of {self.id}, epoch {self.epoch}, is not {record.address}")
        if self._state[slot] != SlotState.UNKNOWN:
            if record is not None and not self.sequence[slot] and record.generation == self.generation[slot]:
                self.sequence[slot] = record.sequence
            return False
        if record is None:
            self._move(slot, SlotState.BAD)
            return False
        self.generation[slot] = record.generation
        self.sequence[slot] = record.sequence
        if record.kind is Kind.FREE:
            self._set_free(slot)
            return False
        self._set_live(slot, record.object_id)
        return True

    def claim(self, slot: SlotNo, owner: ObjectId, generation: Generation, sequence: int = 0) -> bool:
        """UNKNOWN → LIVE for an object that names the slot, whose record was not read.

        Who says so (the catalogue, an object's head) may be wrong.

        :param sequence: of the slot's record; 0 if it is not known
        :returns: whether it can be so: the slot was unknown, or is this object's already
        """
        if slot >= self.slots:
            return False
        if self._state[slot] != SlotState.UNKNOWN:
            return self.owner(slot) == owner and self.generation[slot] == generation
        self.generation[slot] = generation
        self.sequence[slot] = sequence
        self._set_live(slot, owner)
        return True

    def claim_all(self, claims: Iterable[Claim]) -> list[ObjectId]:
        """As `claim` for many slots at once; returns the owners of those that cannot be.

        The ledger is not told: that is the caller's to do.
        """
        refused: list[ObjectId] = []
        state, owners, chunks = self._state, self._owner, self._unknown_in_chunk
        claimed = 0
        for slot, owner, generation, sequence in claims:
            if slot >= self.slots or state[slot] != SlotState.UNKNOWN:
                if not self.claim(slot, owner, generation, sequence):
                    refused.append(owner)
                continue
            state[slot] = SlotState.LIVE
            self.generation[slot] = generation
            self.sequence[slot] = sequence
            owners[_ID_SIZE * slot : _ID_SIZE * (slot + 1)] = owner
            chunks[slot // CHUNK_SLOTS] -= 1
            claimed += 1
        self.counts[SlotState.UNKNOWN] -= claimed
        self.counts[SlotState.LIVE] += claimed
        return refused

    def set_sequence(self, slot: SlotNo, sequence: int) -> None:
        """A record with this sequence was written. :raises IllegalTransition: it is older than the known one"""
        if sequence < self.sequence[slot]:
            raise IllegalTransition(f"{self.ref(slot)}: sequence {sequence} after {self.sequence[slot]}")
        self.sequence[slot] = sequence

    # ── the life of a slot ───────────────────────────────────────────────────────────────────────────────

    def take(self) -> SlotNo | None:
        """FREE → RESERVED for the slot that is free the longest; None if there is none or the region is closed."""
        if self.closed:
            return None
        while self._free_length:
            slot = SlotNo(self._free[self._free_first])
            self._free_first = (self._free_first + 1) % self.slots
            self._free_length -= 1
            if self._state[slot] == SlotState.FREE:
                self._move(slot, SlotState.RESERVED)
                return slot
        return None

    def give_back(self, slot: SlotNo) -> None:
        """RESERVED → FREE: no record was written. A slot quarantined meanwhile stays BAD.

        :raises IllegalTransition: the slot is not RESERVED
        """
        if self._state[slot] != SlotState.BAD:
            self._expect(slot, SlotState.RESERVED)
            self._set_free(slot)

    def publish(self, slot: SlotNo, owner: ObjectId) -> None:
        """RESERVED → LIVE: its record was written (`set_sequence`). A LIVE slot may go to another version.

        :raises IllegalTransition: the slot is neither RESERVED nor LIVE
        """
        self._expect(slot, SlotState.RESERVED, SlotState.LIVE)
        self._set_live(slot, owner)

    def free(self, slot: SlotNo, generation: Generation, sequence: int, ready_at: float) -> None:
        """LIVE or RESERVED → LIMBO: a FREE record with this generation and sequence was written.

        A slot quarantined meanwhile stays BAD.

        :param ready_at: when it may be reused, on the clock of `reap`
        :raises IllegalTransition: other states; the generation does not grow, or the sequence shrinks
        """
        if self._state[slot] == SlotState.BAD:
            return
        self._expect(slot, SlotState.LIVE, SlotState.RESERVED)
        if generation <= self.generation[slot]:
            raise IllegalTransition(f"{self.ref(slot)}: generation {generation} does not grow")
        self.set_sequence(slot, sequence)
        self.generation[slot] = generation
        heappush(self._limbo, (ready_at, slot))
        self._move(slot, SlotState.LIMBO)

    def reap(self, now: float, held: Callable[[SlotNo], bool]) -> list[SlotNo]:
        """LIMBO → FREE for the slots whose time is over and which nobody reads any more; returns them."""
        due = list(self._held)
        self._held.clear()
        while self._limbo and self._limbo[0][0] <= now:
            due.append(heappop(self._limbo)[1])
        reaped: list[SlotNo] = []
        for slot in due:
            if self._state[slot] != SlotState.LIMBO:
                continue  # quarantined meanwhile
            if held(slot):
                self._held[slot] = None
            else:
                self._set_free(slot)
                reaped.append(slot)
        return reaped

    def quarantine(self, slot: SlotNo) -> None:
        """Any state → BAD: what its pages hold is not known, or its payload cannot be trusted."""
        if self._state[slot] != SlotState.BAD:
            self._held.pop(slot, None)
            self._move(slot, SlotState.BAD)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────

    def _expect(self, slot: SlotNo, *states: SlotState) -> None:
        if self._state[slot] not in states:
            wanted = " or ".join(state.name for state in states)
            raise IllegalTransition(f"{self.ref(slot)} is {self.state(slot).name}, not {wanted}")

    def _set_free(self, slot: SlotNo) -> None:
        self._free[(self._free_first + self._free_length) % self.slots] = slot
        self._free_length += 1
        self._move(slot, SlotState.FREE)

    def _set_live(self, slot: SlotNo, owner: ObjectId) -> None:
        self._owner[_ID_SIZE * slot : _ID_SIZE * (slot + 1)] = owner
        self._move(slot, SlotState.LIVE)

    def _move(self, slot: SlotNo, after: SlotState) -> None:
        before = self._state[slot]
        if before == SlotState.UNKNOWN:
            self._unknown_in_chunk[slot // CHUNK_SLOTS] -= 1
        self._state[slot] = after
        self.counts[before] -= 1
        self.counts[after] += 1
        if self.ledger is not None:
            self.ledger.moved(self, SlotState(before), after)

    def _forget_quarantined(self) -> None:
        while self._limbo and self._state[self._limbo[0][1]] != SlotState.LIMBO:
            heappop(self._limbo)
