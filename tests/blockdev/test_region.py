"""One region against a model that keeps a dictionary a slot."""

# mypy: disable-error-code="arg-type, list-item"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockdev.region import FORMATTED_SEQUENCE, IllegalTransition, Region, SlotState
from blockdev.types import (
    CHUNK_SLOTS,
    Descriptor,
    Kind,
    RegionId,
    SlotAddress,
    SlotClass,
    SlotRef,
)

ID = RegionId(3, 7)
EPOCH = 5
FIRST = EPOCH << 32
OWNERS = [bytes([n]) * 16 for n in range(1, 5)]


def record(slot, kind=Kind.HEAD, generation=FIRST, sequence=4, owner=OWNERS[0]):
    return Descriptor(kind, SlotAddress(*ID, slot), EPOCH, generation, sequence, object_id=owner)


def formatted(slots=4):
    return Region.formatted(ID, SlotClass.MIB4, EPOCH, slots)


@dataclass
class Slot:
    state: SlotState
    generation: int = 0
    sequence: int = 0
    owner: bytes | None = None
    ready_at: float = 0.0


class RegionMachine(RuleBasedStateMachine):
    """Every operation on every slot: what the model forbids is refused, and changes nothing."""

    @initialize(slots=st.sampled_from([1, 2, 3, 5, CHUNK_SLOTS + 2]), is_new=st.booleans())
    def begin(self, slots, is_new):
        self.now = 0.0
        self.order: list[int] = []
        if is_new:
            self.region = formatted(slots)
            self.model = [Slot(SlotState.FREE, FIRST, FORMATTED_SEQUENCE) for _ in range(slots)]
            self.order = list(range(slots))
        else:
            self.region = Region(ID, SlotClass.MIB4, EPOCH, slots)
            self.model = [Slot(SlotState.UNKNOWN) for _ in range(slots)]

    def pick(self, data, *states):
        """A slot in one of these states, if there is one; else any."""
        wanted = [n for n, slot in enumerate(self.model) if slot.state in states]
        return data.draw(st.sampled_from(wanted or range(len(self.model))))

    @rule(
        data=st.data(),
        kind=st.sampled_from([Kind.FREE, Kind.HEAD, Kind.BODY, None]),
        owner=st.sampled_from(OWNERS),
    )
    def load(self, data, kind, owner):
        number = self.pick(data, SlotState.UNKNOWN)
        slot = self.model[number]
        generation = data.draw(st.integers(FIRST, FIRST + 2))
        sequence = data.draw(st.integers(1, 9))
        loaded = None if kind is None else record(number, kind, generation, sequence, owner)
        result = self.region.load(number, loaded)
        assert result == (slot.state is SlotState.UNKNOWN and kind in {Kind.HEAD, Kind.BODY})
        if slot.state is not SlotState.UNKNOWN:
            if kind is not None and slot.sequence == 0 and slot.generation == generation:
                slot.sequence = sequence
        elif kind is None:
            slot.state = SlotState.BAD
        else:
            slot.generation, slot.sequence = generation, sequence
            slot.state = SlotState.FREE if kind is Kind.FREE else SlotState.LIVE
            slot.owner = None if kind is Kind.FREE else owner
            if kind is Kind.FREE:
                self.order.append(number)

    @rule(data=st.data(), owner=st.sampled_from(OWNERS), sequence=st.integers(0, 5), alone=st.booleans())
    def claim(self, data, owner, sequence, alone):
        number = self.pick(data, SlotState.UNKNOWN)
        slot = self.model[number]
        if alone:
            result = self.region.claim(number, owner, FIRST + 1, sequence)
        else:
            result = not self.region.claim_all([(number, owner, FIRST + 1, sequence)])
        if slot.state is SlotState.UNKNOWN:
            assert result
            self.model[number] = Slot(SlotState.LIVE, FIRST + 1, sequence, owner)
        else:
            assert result == ((slot.owner, slot.generation) == (owner, FIRST + 1))

    @rule(closed=st.booleans())
    def take(self, closed):
        self.region.closed = closed
        slot = self.region.take()
        if closed or not self.order:
            assert slot is None
        else:
            assert slot == self.order.pop(0)
            self.model[slot].state = SlotState.RESERVED

    @rule(data=st.data())
    def give_back(self, data):
        number = self.pick(data, SlotState.RESERVED)
        slot = self.model[number]
        if slot.state is SlotState.RESERVED:
            slot.state = SlotState.FREE
            self.order.append(number)
        elif slot.state is not SlotState.BAD:
            with pytest.raises(IllegalTransition):
                self.region.give_back(number)
            return
        self.region.give_back(number)

    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def publish(self, data, owner):
        number = self.pick(data, SlotState.RESERVED, SlotState.LIVE)
        slot = self.model[number]
        if slot.state not in {SlotState.RESERVED, SlotState.LIVE}:
            with pytest.raises(IllegalTransition):
                self.region.publish(number, owner)
            return
        self.region.publish(number, owner)
        slot.state, slot.owner = SlotState.LIVE, owner

    @rule(data=st.data(), step=st.integers(-1, 2))
    def set_sequence(self, data, step):
        number = self.pick(data, SlotState.RESERVED)
        slot = self.model[number]
        if slot.sequence + step < 0:
            return
        if step < 0:
            with pytest.raises(IllegalTransition):
                self.region.set_sequence(number, slot.sequence + step)
            return
        self.region.set_sequence(number, slot.sequence + step)
        slot.sequence += step

    @rule(data=st.data(), delay=st.sampled_from([-1.0, 0.0, 1.0, 2.0]), step=st.integers(0, 2))
    def free(self, data, delay, step):
        number = self.pick(data, SlotState.RESERVED, SlotState.LIVE)
        slot = self.model[number]
        arguments = number, slot.generation + step, slot.sequence + 1, self.now + delay
        if slot.state is SlotState.BAD:
            self.region.free(*arguments)
        elif step == 0 or slot.state not in {SlotState.RESERVED, SlotState.LIVE}:
            with pytest.raises(IllegalTransition):
                self.region.free(*arguments)
        else:
            self.region.free(*arguments)
            self.model[number] = Slot(SlotState.LIMBO, arguments[1], arguments[2], None, arguments[3])

    @rule(passed=st.sampled_from([0.0, 0.5, 1.0]), holds=st.sets(st.integers(0, CHUNK_SLOTS + 2)))
    def reap(self, passed, holds):
        self.now += passed
        asked: list[int] = []

        def held(slot):
            asked.append(slot)
            return slot in holds

        reaped = self.region.reap(self.now, held)
        due = {n for n, s in enumerate(self.model) if s.state is SlotState.LIMBO and s.ready_at <= self.now}
        assert sorted(asked) == sorted(due)
        assert set(reaped) == due - holds
        assert len(reaped) == len(set(reaped))
        for number in reaped:
            self.model[number].state = SlotState.FREE
            self.order.append(number)
        for number in due & holds:
            self.model[number].ready_at = -math.inf  # handed to its readers: no time to wait for

    @rule(data=st.data(), state=st.sampled_from(SlotState))
    def quarantine(self, data, state):
        number = self.pick(data, state)
        self.region.quarantine(number)
        slot = self.model[number]
        if number in self.order:
            self.order.remove(number)
        slot.state, slot.owner = SlotState.BAD, None

    @precondition(lambda self: any(slot.state is SlotState.LIMBO for slot in self.model))
    @rule()
    def next_ready(self):
        times = [s.ready_at for s in self.model if s.state is SlotState.LIMBO and s.ready_at > -math.inf]
        assert self.region.next_ready() == min(times, default=math.inf)

    @invariant()
    def agrees(self):
        region = self.region
        for number, slot in enumerate(self.model):
            assert region.state(number) is slot.state
            assert region.owner(number) == (slot.owner if slot.state is SlotState.LIVE else None)
            if slot.state is not SlotState.BAD:
                assert region.ref(number) == SlotRef(*ID, number, slot.generation)
                assert region.sequence[number] == slot.sequence
        for state in SlotState:
            assert region.counts[state] == sum(slot.state is state for slot in self.model)
        busy = {SlotState.RESERVED, SlotState.LIVE, SlotState.LIMBO}
        assert region.is_empty == all(slot.state not in busy for slot in self.model)
        unknown = [n // CHUNK_SLOTS for n, s in enumerate(self.model) if s.state is SlotState.UNKNOWN]
        assert region.unknown_chunk() == (unknown[0] if unknown else None)
        assert set(region.owners()) == {s.owner for s in self.model if s.state is SlotState.LIVE}
        if not any(slot.state is SlotState.LIMBO for slot in self.model):
            assert region.next_ready() is None


TestRegion = RegionMachine.TestCase


def test_slots_fill_in_media_order_and_rest_before_reuse():
    region = formatted(3)
    assert [region.take(), region.take()] == [0, 1]
    region.give_back(0)
    assert [region.take(), region.take(), region.take()] == [2, 0, None]


def test_generations_begin_at_the_epoch_and_grow():
    region = formatted()
    slot = region.take()
    assert region.ref(slot).generation == FIRST
    region.publish(slot, OWNERS[0])
    region.free(slot, FIRST + 1, 3, 0.0)
    region.reap(0.0, lambda _: False)
    assert region.ref(slot).generation == FIRST + 1


def test_a_closed_region_hands_nothing_out():
    region = formatted()
    region.closed = True
    assert region.take() is None
    region.closed = False
    assert region.take() == 0


@pytest.mark.parametrize(
    "wrong", [{"address": SlotAddress(3, 7, 1)}, {"address": SlotAddress(3, 8, 0)}, {"epoch": EPOCH - 1}]
)
def test_a_record_of_another_slot_or_epoch_is_an_error_of_the_caller(wrong):
    region = Region(ID, SlotClass.MIB4, EPOCH, 2)
    with pytest.raises(IllegalTransition):
        region.load(0, replace(record(0), **wrong))


def test_a_claim_behind_the_end_is_refused():
    assert not Region(ID, SlotClass.MIB4, EPOCH, 2).claim(2, OWNERS[0], FIRST)


def test_what_a_slot_does_not_allow_is_refused():
    region = formatted()
    slot = region.take()
    for illegal in (
        lambda: region.set_sequence(slot, FORMATTED_SEQUENCE - 1),
        lambda: region.free(slot, FIRST, 3, 0.0),
        lambda: region.publish(slot + 1, OWNERS[0]),
        lambda: region.give_back(slot + 1),
        lambda: region.free(slot + 1, FIRST + 1, 3, 0.0),
    ):
        with pytest.raises(IllegalTransition):
            illegal()
    assert region.state(slot) is SlotState.RESERVED


def test_a_claimed_slot_learns_its_sequence_from_its_own_record_only():
    region = Region(ID, SlotClass.MIB4, EPOCH, 1)
    assert region.claim(0, OWNERS[0], FIRST + 1)
    assert not region.load(0, record(0, generation=FIRST, sequence=4))
    assert region.sequence[0] == 0
    region.load(0, record(0, generation=FIRST + 1, sequence=6))
    assert region.sequence[0] == 6
    region.load(0, record(0, generation=FIRST + 1, sequence=8))
    assert region.sequence[0] == 6


def test_slots_in_limbo_that_are_quarantined_stay_away():
    region = formatted()
    for ready_at in (1.0, 2.0):
        slot = region.take()
        region.free(slot, FIRST + 1, 3, ready_at)
    region.quarantine(0)
    region.quarantine(0)
    assert region.next_ready() == 2.0
    assert region.reap(5.0, lambda _: True) == []
    assert region.next_ready() == math.inf
    region.quarantine(1)
    assert region.reap(5.0, lambda _: False) == []
    assert region.next_ready() is None


def test_a_free_slot_that_is_quarantined_is_passed_over():
    region = formatted(2)
    region.quarantine(0)
    assert [region.take(), region.take()] == [1, None]


def test_unknown_chunks_come_in_order():
    region = Region(ID, SlotClass.MIB4, EPOCH, 2 * CHUNK_SLOTS + 1)
    assert region.unknown_chunk() == 0
    for slot in range(2 * CHUNK_SLOTS):
        region.load(slot, None)
    assert region.unknown_chunk() == 2
    region.claim(2 * CHUNK_SLOTS, OWNERS[0], FIRST)
    assert region.unknown_chunk() is None


def test_many_claims_at_once_say_whose_cannot_be():
    region = formatted(2)
    slot = region.take()
    region.publish(slot, OWNERS[0])
    other = Region(ID, SlotClass.MIB4, EPOCH, 2)
    assert region.claim_all([(slot, OWNERS[1], FIRST, 0)]) == [OWNERS[1]]
    assert other.claim_all(
        [(0, OWNERS[0], FIRST, 3), (0, OWNERS[1], FIRST, 3), (2, OWNERS[1], FIRST, 3)]
    ) == [
        OWNERS[1],
        OWNERS[1],
    ]
    assert (other.owner(0), other.sequence[0], other.state(1)) == (OWNERS[0], 3, SlotState.UNKNOWN)


def test_owners_come_once_for_neighbouring_slots():
    region = formatted(5)
    for owner in (OWNERS[0], OWNERS[0], OWNERS[1]):
        region.publish(region.take(), owner)
    assert list(region.owners()) == [OWNERS[0], OWNERS[1]]


def test_a_slot_costs_less_than_forty_bytes():
    slots = 10_000
    region = formatted(slots)
    arrays = [getattr(region, name) for name in region.__slots__]
    size = sum(
        memoryview(a).nbytes
        for a in arrays
        if hasattr(a, "__len__") and not isinstance(a, (dict, list, tuple))
    )
    assert size < 40 * slots
