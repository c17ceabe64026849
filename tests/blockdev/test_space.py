"""All regions together: who gets which slot, what is lost with a device, and sums that never scan."""

# mypy: disable-error-code="arg-type, list-item, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockdev.errors import Unavailable
from blockdev.region import IllegalTransition, Region, SlotState
from blockdev.space import Space
from blockdev.tally import slot_bytes
from blockdev.types import (
    CHUNK_SLOTS,
    MIB,
    Descriptor,
    Kind,
    RegionId,
    SlotAddress,
    SlotClass,
    SlotRef,
)

OWNER = b"o" * 16
CLASSES = [SlotClass.INLINE, SlotClass.KIB64, SlotClass.MIB4]
DEVICES = [0, 1, 2]
IDS = [RegionId(device, region) for device in DEVICES for region in range(3)]
BUSY = {SlotState.RESERVED, SlotState.LIVE, SlotState.LIMBO}

region_ids = st.sampled_from(IDS)
classes = st.sampled_from(CLASSES)


@dataclass
class Model:
    """A region as it should be."""

    kind: SlotClass
    epoch: int
    states: list[SlotState]
    generations: list[int]
    ready: dict[int, float] = field(default_factory=dict)
    closed: bool = False
    last_used: float = 0.0

    @property
    def empty(self):
        return not BUSY & set(self.states)

    def count(self, state):
        return self.states.count(state)


class SpaceMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.space = Space()
        self.regions: dict[RegionId, Model] = {}
        self.unused: set[RegionId] = set()
        self.pending: set[RegionId] = set()  # handed out to be formatted
        self.dropped: set[RegionId] = set()
        self.lost: set[int] = set()
        self.held: list[SlotRef] = []  # reserved or live, dropped ones included
        self.epochs: Counter[RegionId] = Counter()
        self.now = 0.0

    @initialize(kinds=st.lists(classes, min_size=2, max_size=4))
    def begin(self, kinds):
        for region_id, kind in zip(IDS[::2], kinds, strict=False):
            self.add_formatted(region_id, kind, 2)

    def add_formatted(self, region_id, kind, slots):
        self.epochs[region_id] += 1
        epoch = self.epochs[region_id]
        self.space.add_region(Region.formatted(region_id, kind, epoch, slots))
        self.regions[region_id] = Model(kind, epoch, [SlotState.FREE] * slots, [epoch << 32] * slots)

    def absent(self):
        known = {*self.regions, *self.unused, *self.pending}
        return [i for i in IDS if i not in known and i.device not in self.lost]

    # ── regions ──────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.absent() or self.pending)
    @rule(data=st.data(), kind=classes, slots=st.integers(1, 3), known=st.booleans())
    def add_region(self, data, kind, slots, known):
        region_id = data.draw(st.sampled_from(self.absent() + sorted(self.pending)))
        if known:
            self.add_formatted(region_id, kind, slots)
        else:
            slots += CHUNK_SLOTS
            self.epochs[region_id] += 1
            epoch = self.epochs[region_id]
            self.space.add_region(Region(region_id, kind, epoch, slots))
            self.regions[region_id] = Model(kind, epoch, [SlotState.UNKNOWN] * slots, [0] * slots)
        self.pending.discard(region_id)
        self.dropped.discard(region_id)
        self.held = [ref for ref in self.held if ref[:2] != region_id]  # of what was dropped before

    @precondition(lambda self: self.absent())
    @rule(data=st.data())
    def add_unused(self, data):
        region_id = data.draw(st.sampled_from(self.absent()))
        self.space.add_unused(region_id)
        self.unused.add(region_id)
        self.dropped.discard(region_id)
        self.held = [ref for ref in self.held if ref[:2] != region_id]

    @rule(kind=st.none() | classes, avoid=st.sets(st.sampled_from(DEVICES), max_size=1))
    def unused_region(self, kind, avoid):
        rooms = Counter(region_id.device for region_id in self.unused if region_id.device not in avoid)
        lacking = {d for d in rooms if kind is not None and not self.has_free(kind, {d})}
        region_id = self.space.unused_region(kind, avoid)
        if not rooms:
            assert region_id is None
            return
        best = max((device in lacking, room) for device, room in rooms.items())
        assert (region_id.device in lacking, rooms[region_id.device]) == best
        assert region_id.region == min(i.region for i in self.unused if i.device == region_id.device)
        self.unused.remove(region_id)
        self.pending.add(region_id)

    @rule(kind=classes)
    def lacking_devices(self, kind):
        devices = {i.device for i in self.unused}
        assert set(self.space.lacking_devices(kind)) == {d for d in devices if not self.has_free(kind, {d})}

    @precondition(lambda self: self.regions)
    @rule(data=st.data())
    def close_region(self, data):
        region_id = data.draw(st.sampled_from(sorted(self.regions)))
        assert self.space.close_region(region_id).id == region_id
        self.regions[region_id].closed = True

    @precondition(lambda self: self.regions or self.dropped)
    @rule(data=st.data())
    def reopen_region(self, data):
        region_id = data.draw(st.sampled_from([*self.regions, *self.dropped]))
        self.space.reopen_region(region_id)
        if region_id in self.regions:
            self.regions[region_id].closed = False

    @precondition(lambda self: self.regions)
    @rule(data=st.data())
    def remove_region(self, data):
        region_id = data.draw(st.sampled_from(sorted(self.regions)))
        if not self.regions[region_id].empty:
            with pytest.raises(IllegalTransition):
                self.space.remove_region(region_id)
            return
        self.space.remove_region(region_id)
        del self.regions[region_id]
        self.pending.add(region_id)

    @rule(region_id=region_ids)
    def drop_region(self, region_id):
        region = self.space.drop_region(region_id)
        assert (region is not None) == (region_id in self.regions)
        self.forget(region_id)

    @precondition(lambda self: len(self.lost) < 2)
    @rule(device=st.sampled_from(DEVICES))
    def drop_device(self, device):
        self.lost.add(device)
        regions = self.space.drop_device(device)
        assert {r.id for r in regions} == {i for i in self.regions if i.device == device}
        for region_id in IDS:
            if region_id.device == device:
                self.forget(region_id)

    def forget(self, region_id):
        self.regions.pop(region_id, None)
        self.unused.discard(region_id)
        self.pending.discard(region_id)
        self.dropped.add(region_id)

    @rule(kind=classes, unwanted=st.sets(region_ids), bound=st.sampled_from([2.0, 5.0, math.inf]))
    def coldest_region(self, kind, unwanted, bound):
        fit = {
            i: m.last_used
            for i, m in self.regions.items()
            if m.kind != kind and not m.closed and not m.count(SlotState.RESERVED) and i not in unwanted
        }
        found = self.space.coldest_region(kind, lambda region: region.id not in unwanted, bound)
        coldest = min(fit.values(), default=math.inf)
        if found is None:
            assert coldest >= bound
        else:
            assert fit[found] == coldest < bound

    # ── slots ────────────────────────────────────────────────────────────────────────────────────────────

    def has_free(self, kind, devices):
        return any(
            m.kind == kind and not m.closed and i.device in devices and m.count(SlotState.FREE)
            for i, m in self.regions.items()
        )

    @rule(kind=classes, avoid=st.sets(st.sampled_from(DEVICES), max_size=2))
    def take(self, kind, avoid):
        ref = self.space.take(kind, avoid)
        if ref is None:
            assert not self.has_free(kind, set(DEVICES) - avoid)
            return
        model = self.regions[RegionId(ref.device, ref.region)]
        assert ref.device not in avoid
        assert (model.kind, model.closed) == (kind, False)
        assert model.states[ref.slot] is SlotState.FREE
        assert model.generations[ref.slot] == ref.generation
        model.states[ref.slot] = SlotState.RESERVED
        self.held.append(ref)

    def use(self, data, *states):
        """One of the slots that were taken, and its region unless that was dropped."""
        ref = data.draw(st.sampled_from(self.held))
        model = self.regions.get(RegionId(ref.device, ref.region))
        return ref, model, model is None or model.states[ref.slot] in states

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data):
        ref, model, legal = self.use(data, SlotState.RESERVED)
        if not legal:
            with pytest.raises(IllegalTransition):
                self.space.give_back(ref)
            return
        self.space.give_back(ref)
        self.held.remove(ref)
        if model is not None:
            model.states[ref.slot] = SlotState.FREE

    @precondition(lambda self: self.held)
    @rule(data=st.data(), passed=st.sampled_from([0.0, 1.0]))
    def publish(self, data, passed):
        self.now += passed
        ref, model, _ = self.use(data)
        self.space.set_sequence(ref.address, 3 if model is None else self.space.sequence(ref.address) + 1)
        self.space.publish(ref, OWNER)
        self.space.touch(ref, self.now)
        if model is not None:
            model.states[ref.slot] = SlotState.LIVE
            model.last_used = self.now

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 1.0]))
    def free(self, data, delay):
        ref, model, _ = self.use(data)
        sequence = 3 if model is None else self.space.sequence(ref.address) + 1
        self.space.free(ref, ref.generation + 1, sequence, self.now + delay)
        self.held.remove(ref)
        if model is not None:
            model.states[ref.slot] = SlotState.LIMBO
            model.generations[ref.slot] += 1
            model.ready[ref.slot] = self.now + delay
            with pytest.raises(IllegalTransition):
                self.space.free(ref, ref.generation + 1, sequence, self.now)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), by_use=st.booleans())
    def quarantine(self, data, by_use):
        ref, model, _ = self.use(data)
        self.space.quarantine(ref if by_use else ref.address)
        self.held.remove(ref)
        self.space.give_back(ref)  # of no consequence
        self.space.free(ref, ref.generation + 1, 99, self.now)
        if model is not None:
            model.states[ref.slot] = SlotState.BAD

    @rule(passed=st.sampled_from([0.0, 0.5]), busy=st.sets(st.sampled_from(DEVICES), max_size=1))
    def reap(self, passed, busy):
        self.now += passed
        due = {
            SlotRef(*region_id, slot, model.generations[slot])
            for region_id, model in self.regions.items()
            for slot, ready in model.ready.items()
            if ready <= self.now and region_id.device not in busy
        }
        reaped = self.space.reap(self.now, lambda address: address.device in busy)
        assert len(reaped) == len(due)
        assert set(reaped) == due
        for ref in reaped:
            model = self.regions[RegionId(ref.device, ref.region)]
            model.states[ref.slot] = SlotState.FREE
            del model.ready[ref.slot]
        for region_id, model in self.regions.items():
            if region_id.device in busy:
                model.ready = {s: -math.inf if r <= self.now else r for s, r in model.ready.items()}

    @rule(kind=classes)
    def next_ready(self, kind):
        times = [r for m in self.regions.values() if m.kind == kind for r in m.ready.values()]
        timed = [time for time in times if time > -math.inf]
        expected = min(timed, default=math.inf) if times else None
        assert self.space.next_ready(kind) == expected
        assert self.space.resting(kind) == len(timed)

    # ── what is on media ─────────────────────────────────────────────────────────────────────────────────

    @rule(kind=classes, is_free=st.booleans(), outdated=st.booleans())
    def load_unknown(self, kind, is_free, outdated):
        found = self.space.unknown_chunk(kind)
        unknown = {
            i
            for i, m in self.regions.items()
            if m.kind == kind and not m.closed and m.count(SlotState.UNKNOWN)
        }
        if found is None:
            assert not unknown
            return
        region_id, chunk = found
        assert region_id in unknown
        model = self.regions[region_id]
        first = chunk * CHUNK_SLOTS
        assert SlotState.UNKNOWN in model.states[first : first + CHUNK_SLOTS]
        epoch = model.epoch - outdated
        what = Kind.FREE if is_free else Kind.HEAD
        records = [
            Descriptor(what, SlotAddress(*region_id, slot), epoch, epoch << 32, 3, object_id=OWNER)
            for slot in range(first, min(first + CHUNK_SLOTS, len(model.states)))
        ]
        unclaimed = self.space.load_chunk(region_id, chunk, records)
        if outdated:
            assert unclaimed == []
            return
        fresh = [r for r in records if model.states[r.address.slot] is SlotState.UNKNOWN]
        assert unclaimed == ([] if is_free else fresh)
        for record in fresh:
            slot = record.address.slot
            model.states[slot] = SlotState.FREE if is_free else SlotState.LIVE
            model.generations[slot] = record.generation

    @rule(region_id=region_ids, slot=st.integers(0, 2 * CHUNK_SLOTS), alone=st.booleans())
    def claim(self, region_id: RegionId, slot, alone):
        model = self.regions.get(region_id)
        exists = model is not None and slot < len(model.states)
        generation = model.generations[slot] if exists and model.states[slot] is SlotState.LIVE else 7
        ref = SlotRef(region_id.device, region_id.region, slot, generation)
        if alone:
            done = self.space.claim(ref, OWNER)
        else:
            done = not self.space.claim_all(region_id, [(slot, OWNER, generation, 0)])
        assert done == (exists and model.states[slot] in {SlotState.UNKNOWN, SlotState.LIVE})
        if done:
            model.states[slot] = SlotState.LIVE
            model.generations[slot] = generation

    # ── always ───────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def empty_regions_are_known(self):
        """The coldest of another class that holds nothing; small files' only when all of their records are known."""
        for kind in CLASSES:
            fit = {
                region_id: model.last_used
                for region_id, model in self.regions.items()
                if model.kind != kind
                and model.empty
                and not model.closed
                and not (model.kind is SlotClass.INLINE and model.count(SlotState.UNKNOWN))
            }
            found = self.space.empty_region(kind, math.inf)
            assert (found is None) == (not fit)
            assert found is None or fit[found] == min(fit.values())
            assert self.space.empty_region(kind, 0.0) is None

    @invariant()
    def sums_are_exact(self):
        totals = self.space.totals()
        assert totals.unused_regions == len(self.unused)
        assert sorted(r.id for r in self.space.regions()) == sorted(self.regions)
        by_class = {row.slot_class: row for row in totals.classes}
        assert set(by_class) == {m.kind for m in self.regions.values()}
        in_bytes: Counter[SlotState] = Counter()
        for kind, row in by_class.items():
            slots: Counter[SlotState] = Counter()
            for model in self.regions.values():
                if model.kind == kind:
                    slots.update(model.states)
            assert row.regions == sum(m.kind == kind for m in self.regions.values())
            for state in SlotState:
                assert getattr(row, state.name.lower()) == slots[state]
                in_bytes[state] += slots[state] * slot_bytes(kind)
                assert self.space.slots(kind, state) == slots[state]
            assert self.space.slots(kind) == slots.total() - slots[SlotState.BAD]
        for state in SlotState:
            assert getattr(totals, state.name.lower()) == in_bytes[state]

    @invariant()
    def free_slots_and_unused_regions_are_known_by_device(self):
        assert set(self.space.unused_devices()) == {region_id.device for region_id in self.unused}
        assert self.space.has_unused == bool(self.unused)
        for kind in CLASSES:
            free = Counter[int]()
            for region_id, model in self.regions.items():
                if model.kind == kind and not model.closed:
                    free[region_id.device] += model.count(SlotState.FREE)
            for device in DEVICES:
                assert self.space.free_on(device, kind) == free[device]

    @invariant()
    def lost_regions_are_unavailable(self):
        for region_id in self.dropped:
            address = SlotAddress(*region_id, 0)
            for call in (self.space.sequence, self.space.ref_of):
                with pytest.raises(Unavailable):
                    call(address)


TestSpace = SpaceMachine.TestCase


def space_of(*regions, slots=8, kind=SlotClass.MIB4):
    space = Space()
    for region_id in regions:
        space.add_region(Region.formatted(region_id, kind, 1, slots))
    return space


def test_many_regions_spare_the_last_one_for_small_files():
    space = space_of(RegionId(0, 0), kind=SlotClass.INLINE)
    small = space.region(RegionId(0, 0))
    for number in range(1, 15):
        space.add_unused(RegionId(1, number))
    assert not space.spares_one
    assert not space.is_spared(small)
    large = Region.formatted(RegionId(0, 1), SlotClass.MIB4, 1, 8)
    space.add_region(large)
    assert space.spares_one
    assert space.is_spared(small)
    assert not space.is_spared(large)
    space.add_region(Region.formatted(RegionId(0, 2), SlotClass.INLINE, 1, 8))
    assert not space.is_spared(small)


def test_neighbours_lie_on_different_devices():
    space = space_of(*IDS)
    devices = [space.take(SlotClass.MIB4).device for _ in range(12)]
    assert all(set(devices[i : i + 3]) == set(DEVICES) for i in range(10))


def test_within_a_device_regions_take_turns():
    space = space_of(RegionId(0, 0), RegionId(0, 1))
    assert [space.take(SlotClass.MIB4)[1:3] for _ in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_full_device_does_not_stop_the_others():
    space = space_of(RegionId(0, 0), slots=1)
    space.add_region(Region.formatted(RegionId(1, 0), SlotClass.MIB4, 1, 3))
    assert sorted(space.take(SlotClass.MIB4).device for _ in range(4)) == [0, 1, 1, 1]
    assert space.take(SlotClass.MIB4) is None


def test_a_slot_that_went_to_another_use_is_not_quarantined_for_the_earlier_one():
    space = space_of(RegionId(0, 0), slots=1)
    old = space.take(SlotClass.MIB4)
    space.publish(old, OWNER)
    space.free(old, old.generation + 1, 3, 0.0)
    space.reap(0.0)
    new = space.take(SlotClass.MIB4)
    space.quarantine(old)
    space.publish(new, OWNER)
    space.quarantine(new)
    assert space.totals().bad == 4 * MIB


def test_a_freed_slot_can_still_be_quarantined_by_its_earlier_use():
    space = space_of(RegionId(0, 0), slots=1)
    ref = space.take(SlotClass.MIB4)
    space.free(ref, ref.generation + 1, 3, 0.0)
    space.quarantine(ref)
    assert space.reap(0.0) == []
    assert space.totals().bad == 4 * MIB
    assert space.next_ready(SlotClass.MIB4) is None


def test_a_free_slot_that_is_quarantined_is_not_handed_out():
    space = space_of(RegionId(0, 0), slots=2)
    space.quarantine(SlotAddress(0, 0, 0))
    assert space.take(SlotClass.MIB4).slot == 1
    assert space.take(SlotClass.MIB4) is None
    space = space_of(RegionId(0, 0), slots=1)
    space.quarantine(SlotAddress(0, 0, 0))
    assert space.take(SlotClass.MIB4) is None


def test_the_device_with_most_room_gives_the_next_region():
    space = Space()
    for region_id in (RegionId(0, 4), RegionId(1, 5), RegionId(1, 2)):
        space.add_unused(region_id)
    assert space.unused_region() == (1, 2)
    assert space.unused_region(avoid={0}) == (1, 5)
    assert space.unused_region(avoid={0}) is None
    assert space.unused_region() == (0, 4)


def test_a_class_spreads_before_it_grows():
    space = space_of(RegionId(0, 0))
    for region_id in (RegionId(0, 1), RegionId(0, 2), RegionId(1, 0)):
        space.add_unused(region_id)
    assert space.lacking_devices(SlotClass.MIB4) == [1]
    assert space.unused_region(SlotClass.MIB4) == (1, 0)
    assert space.unused_region(SlotClass.MIB4) == (0, 1)


def test_a_region_changes_its_class():
    space = space_of(RegionId(0, 0), slots=2)
    ref = space.take(SlotClass.MIB4)
    assert space.coldest_region(SlotClass.KIB64) is None, "a reserved slot is nobody's to take"
    space.publish(ref, OWNER)
    assert space.coldest_region(SlotClass.MIB4) is None, "it has that class"
    assert space.coldest_region(SlotClass.KIB64) == (0, 0)
    region = space.close_region(RegionId(0, 0))
    assert space.take(SlotClass.MIB4) is None
    assert list(region.owners()) == [OWNER]
    space.free(ref, ref.generation + 1, 3, 0.0)
    assert not region.is_empty
    space.reap(0.0)
    assert space.take(SlotClass.MIB4) is None, "freed slots of a closed region are not handed out"
    space.remove_region(region.id)
    space.add_region(Region.formatted(region.id, SlotClass.KIB64, 2, 100))
    assert space.take(SlotClass.KIB64) == (0, 0, 0, 2 << 32)


def test_a_region_that_comes_twice_or_never_came_is_an_error_of_the_caller():
    space = space_of(RegionId(0, 0))
    with pytest.raises(IllegalTransition):
        space.add_region(Region.formatted(RegionId(0, 0), SlotClass.MIB4, 1, 1))
    with pytest.raises(IllegalTransition):
        space.region(RegionId(0, 1))


def test_records_read_before_a_region_was_formatted_do_not_count():
    space = space_of(RegionId(0, 0), slots=2)
    late = [Descriptor(Kind.HEAD, SlotAddress(0, 0, n), 0, 1, 3, object_id=OWNER) for n in range(CHUNK_SLOTS)]
    assert space.load_chunk(RegionId(0, 0), 0, late) == []
    assert space.load_chunk(RegionId(0, 0), 3, [None]) == []
    assert space.totals().free == 8 * MIB


def test_whatever_is_done_to_a_lost_slot_is_of_no_consequence():
    space = space_of(RegionId(0, 0))
    ref = space.take(SlotClass.MIB4)
    space.drop_device(0)
    space.set_sequence(ref.address, 3)
    space.publish(ref, OWNER)
    space.touch(ref, 1.0)
    space.free(ref, ref.generation + 1, 4, 0.0)
    space.quarantine(ref)
    space.give_back(ref)
    space.reopen_region(RegionId(0, 0))
    assert not space.claim(ref, OWNER)
    assert space.load_chunk(RegionId(0, 0), 0, [None]) == []
    assert space.reap(0.0) == []
    assert space.totals().total == 0


def test_in_use_means_this_use():
    space = space_of(RegionId(0, 0))
    ref = space.take(SlotClass.MIB4)
    assert space.in_use(ref)
    space.quarantine(ref)
    assert space.in_use(ref), "it failed in it"
    other = space.take(SlotClass.MIB4)
    space.free(other, other.generation + 1, 3, 0.0)
    assert not space.in_use(other)
    assert not space.in_use(other._replace(generation=other.generation + 1)), "it was not taken again"
    space.drop_device(0)
    assert not space.in_use(ref)


def test_an_earlier_use_of_a_slot_cannot_be_freed():
    space = space_of(RegionId(0, 0))
    ref = space.take(SlotClass.MIB4)
    with pytest.raises(IllegalTransition):
        space.free(ref._replace(generation=ref.generation - 1), ref.generation + 1, 3, 0.0)


def test_a_region_in_use_cannot_be_removed():
    space = space_of(RegionId(0, 0))
    ref = space.take(SlotClass.MIB4)
    with pytest.raises(IllegalTransition):
        space.remove_region(RegionId(0, 0))
    assert space.ref_of(ref.address) == ref
    space.give_back(ref)
    space.remove_region(RegionId(0, 0))
    assert space.totals().classes == ()


def test_unknown_chunks_come_region_after_region():
    space = Space()
    for number in range(2):
        space.add_region(Region(RegionId(0, number), SlotClass.MIB4, 1, CHUNK_SLOTS + 1))
    asked = [space.unknown_chunk(SlotClass.MIB4) for _ in range(3)]
    assert asked == [((0, 0), 0), ((0, 1), 0), ((0, 0), 0)]
    space.close_region(RegionId(0, 0))
    assert space.unknown_chunk(SlotClass.MIB4) == ((0, 1), 0)
    space.load_chunk(RegionId(0, 1), 0, [None] * CHUNK_SLOTS)
    assert space.unknown_chunk(SlotClass.MIB4) == ((0, 1), 1)
    space.load_chunk(RegionId(0, 1), 1, [None])
    assert space.unknown_chunk(SlotClass.MIB4) is None
    space.reopen_region(RegionId(0, 0))
    assert space.unknown_chunk(SlotClass.MIB4) == ((0, 0), 0)


def test_the_coldest_region_is_looked_for_behind_those_that_do_not_suit():
    space = space_of(*IDS[:4])
    for number, region_id in enumerate(IDS[:4]):
        space.touch(SlotAddress(*region_id, 0), float(number + 1))
    space.drop_region(IDS[0])
    for _ in range(2):  # asking changes nothing
        assert space.coldest_region(SlotClass.KIB64) == IDS[1]
        assert space.coldest_region(SlotClass.KIB64, lambda region: region.id != IDS[1]) == IDS[2]
        assert space.coldest_region(SlotClass.KIB64, lambda _: False) is None
        assert space.coldest_region(SlotClass.KIB64, before=2.0) is None
        assert space.coldest_region(SlotClass.KIB64, before=2.5) == IDS[1]


def test_a_lost_device_stays_lost_even_if_a_format_ends_late():
    space = space_of(RegionId(0, 0))
    space.drop_device(0)
    space.add_region(Region.formatted(RegionId(0, 1), SlotClass.MIB4, 1, 2))
    space.add_unused(RegionId(0, 2))
    assert space.totals().total == space.totals().unused_regions == 0
    assert space.take(SlotClass.MIB4) is None


def test_a_region_that_was_in_use_elsewhere_joins_with_what_it_has():
    region = Region.formatted(RegionId(0, 0), SlotClass.MIB4, 1, 2)
    region.publish(region.take(), OWNER)
    region.free(0, (1 << 32) + 1, 3, 5.0)
    region.closed = True
    space = Space()
    space.add_unused(region.id)
    space.add_region(region)
    assert space.totals().unused_regions == 0
    assert space.next_ready(SlotClass.MIB4) == 5.0
    assert space.take(SlotClass.MIB4) is None
    space.reopen_region(region.id)
    assert space.take(SlotClass.MIB4).slot == 1
