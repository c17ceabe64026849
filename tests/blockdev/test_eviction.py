"""The policy against a list that is sorted by use."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from blockdev.eviction import Lru, Policy, TemporaryFirst
from blockdev.types import SlotClass

OBJECTS = [bytes([n]) * 16 for n in range(12)]
CLASSES = [SlotClass.INLINE, SlotClass.KIB64, SlotClass.MIB4]
object_ids = st.sampled_from(OBJECTS)
class_sets = st.frozensets(st.sampled_from(CLASSES))


class Walk:
    """A walk that is under way, and what it may still yield: in this order, as long as it stays untouched."""

    def __init__(self, iterator, expected):
        self.iterator = iterator
        self.expected = expected
        self.begun = False


class LruMachine(RuleBasedStateMachine):
    walks = Bundle("walks")

    def __init__(self):
        super().__init__()
        self.policy: Policy = Lru()
        self.model: dict[bytes, tuple[frozenset[SlotClass], float]] = {}  # coldest first
        self.now = 0.0
        self.open: list[Walk] = []

    def use(self, object_id, classes):
        self.now += 1
        self.model.pop(object_id, None)
        self.model[object_id] = (classes, self.now)
        self.leave(object_id)

    def leave(self, object_id):
        for walk in self.open:
            if object_id in walk.expected:
                walk.expected.remove(object_id)

    @rule(object_id=object_ids, classes=class_sets)
    def add(self, object_id, classes):
        self.use(object_id, classes)
        self.policy.add(object_id, classes, self.now)

    @rule(object_id=object_ids)
    def touch(self, object_id):
        if object_id in self.model:
            self.use(object_id, self.model[object_id][0])
        self.policy.touch(object_id, self.now)

    @rule(object_id=object_ids)
    def remove(self, object_id):
        self.policy.remove(object_id)
        self.model.pop(object_id, None)
        self.leave(object_id)

    @rule(target=walks, slot_class=st.sampled_from([*CLASSES, None]))
    def begin_walk(self, slot_class):
        if slot_class is None:
            walk = Walk(self.policy.order(), list(self.model))
        else:
            expected = [o for o, (classes, _) in self.model.items() if slot_class in classes]
            walk = Walk(self.policy.victims(slot_class), expected)
        self.open.append(walk)
        self.step(walk)  # a walk begins with its first step
        return walk

    @rule(walk=walks)
    def step(self, walk):
        if walk.expected:
            assert next(walk.iterator) == walk.expected.pop(0)
        else:
            assert next(walk.iterator, None) is None

    @rule(walk=consumes(walks))
    def give_up(self, walk):
        self.open.remove(walk)
        walk.iterator.close()

    @invariant()
    def agrees(self):
        assert len(self.policy) == len(self.model)
        assert list(self.policy.order()) == list(self.model)
        for slot_class in CLASSES:
            held = [o for o, (classes, _) in self.model.items() if slot_class in classes]
            assert list(self.policy.victims(slot_class)) == held
        for object_id in OBJECTS:
            assert (object_id in self.policy) == (object_id in self.model)
            if object_id in self.model:
                assert self.policy.last_used(object_id) == self.model[object_id][1]
                assert self.policy.classes(object_id) == self.model[object_id][0]


TestLru = LruMachine.TestCase


class TemporaryMachine(RuleBasedStateMachine):
    """Names, and what is known of their objects, come in any order."""

    def __init__(self):
        super().__init__()
        self.wall = 10**18
        self.now = 0.0
        self.policy: Policy = TemporaryFirst(Lru(), lambda name: name.endswith(b".tmp"), lambda: self.wall)
        self.model: dict[bytes, frozenset[SlotClass]] = {}  # coldest first
        self.names: dict[bytes, tuple[bytes, int]] = {}
        self.told: list[
            bytes
        ] = []  # of those with temporary names that are known, the one told of first in front

    def tell(self, object_id):
        if object_id in self.told:
            self.told.remove(object_id)
        if object_id in self.model and self.names.get(object_id, (b"", 0))[0].endswith(b".tmp"):
            self.told.append(object_id)

    @rule(object_id=object_ids, classes=class_sets)
    def add(self, object_id, classes):
        self.now += 1
        self.model.pop(object_id, None)
        self.model[object_id] = classes
        self.policy.add(object_id, classes, self.now)
        self.tell(object_id)

    @rule(object_id=object_ids, name=st.sampled_from([b"x", b"x.tmp"]), age=st.integers(0, 700))
    def name(self, object_id, name, age):
        stamp = self.wall - age * 10**9
        self.names[object_id] = (name, stamp)
        self.policy.named(object_id, name, stamp)
        self.tell(object_id)

    @rule(object_id=object_ids)
    def touch(self, object_id):
        self.now += 1
        if object_id in self.model:
            self.model[object_id] = self.model.pop(object_id)
        self.policy.touch(object_id, self.now)

    @rule(object_id=object_ids)
    def remove(self, object_id):
        self.policy.remove(object_id)
        self.model.pop(object_id, None)
        self.names.pop(object_id, None)
        self.tell(object_id)

    @rule(seconds=st.sampled_from([1, 300, 599, 600]))
    def wait(self, seconds):
        self.wall += seconds * 10**9

    def overdue(self, object_id):
        return object_id in self.told and self.wall - self.names[object_id][1] >= 600 * 10**9

    @invariant()
    def agrees(self):
        assert list(self.policy.order()) == list(self.model)
        assert len(self.policy) == len(self.model)
        first = [o for o in self.told if self.overdue(o)]
        unfinished = [o for o in self.told if not self.overdue(o)]
        for slot_class in CLASSES:
            expected = [*first, *(o for o in self.model if o not in self.told)]
            expected = [o for o in expected if slot_class in self.model[o]]
            assert list(self.policy.victims(slot_class)) == expected
            expected = [o for o in unfinished if slot_class in self.model[o]]
            assert list(self.policy.unfinished(slot_class)) == expected
        for object_id in OBJECTS:
            assert (object_id in self.policy) == (object_id in self.model)
            if object_id in self.model:
                assert (self.policy.last_used(object_id) == -math.inf) == self.overdue(object_id)
                assert self.policy.classes(object_id) == self.model[object_id]
                assert self.policy.is_unfinished(object_id) == (object_id in unfinished)


TestTemporaryFirst = TemporaryMachine.TestCase


def test_an_object_that_is_renamed_during_the_walk_is_no_victim_of_it_first():
    wall = 10**18
    policy = TemporaryFirst(Lru(), lambda name: name.endswith(b".tmp"), lambda: wall)
    for object_id in OBJECTS[:4]:
        policy.add(object_id, {SlotClass.MIB4}, 0.0)
    for object_id in OBJECTS[2:4]:
        policy.named(object_id, b"x.tmp", wall - 10**12)
    victims = policy.victims(SlotClass.MIB4)
    assert next(victims) == OBJECTS[2]
    policy.named(OBJECTS[3], b"x", wall)
    assert list(victims) == [OBJECTS[0], OBJECTS[1], OBJECTS[3]]


def test_an_unknown_object_was_never_used():
    with pytest.raises(KeyError):
        Lru().last_used(OBJECTS[0])


def test_what_is_evicted_on_the_way_costs_no_second_look():
    policy = Lru()
    for number in range(1000):
        policy.add(number.to_bytes(16, "big"), {SlotClass.MIB4}, float(number))
    seen = []
    for object_id in policy.victims(SlotClass.MIB4):
        seen.append(object_id)
        policy.remove(object_id)
    assert len(seen) == 1000
    assert not policy


def test_an_object_used_during_the_walk_is_not_a_victim_of_it():
    policy = Lru()
    for object_id in OBJECTS[:4]:
        policy.add(object_id, {SlotClass.MIB4}, 0.0)
    victims = policy.victims(SlotClass.MIB4)
    assert next(victims) == OBJECTS[0]
    policy.touch(OBJECTS[0], 1.0)
    policy.touch(OBJECTS[1], 1.0)
    policy.touch(OBJECTS[2], 1.0)
    assert list(victims) == [OBJECTS[3]]


def test_what_a_walk_had_looked_ahead_to_may_be_gone_or_used():
    policy = Lru()
    policy.add(OBJECTS[0], {SlotClass.MIB4}, 0.0)
    policy.add(OBJECTS[1], {SlotClass.MIB4, SlotClass.KIB64}, 0.0)
    policy.add(OBJECTS[2], {SlotClass.MIB4, SlotClass.MIB2}, 0.0)
    victims = policy.victims(SlotClass.MIB4)
    assert next(victims) == OBJECTS[0]
    policy.touch(OBJECTS[1], 1.0)
    policy.remove(OBJECTS[2])
    policy.add(OBJECTS[3], {SlotClass.MIB4}, 1.0)  # may take the place of what is gone
    assert list(victims) == []
