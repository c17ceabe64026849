"""What leaves a pool by value: against a naive model of the order, and against the least recently used."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import tracemalloc
from itertools import count, pairwise
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from blockdev.eviction import Lru, Policy
from blockdev.types import ObjectId, SlotClass, Stamp
from kvfs.predecessors import NONE, block_id
from kvfs.prefetch.forest import REQUEST
from kvfs.prefetch.returns import Returns
from kvfs.prefetch.shadow import LIMIT, Shadow
from kvfs.prefetch.value import ByValue

CLASS = SlotClass.MIB4
CLASSES = [
    frozenset(classes) for classes in ([SlotClass.INLINE, CLASS], [CLASS], [CLASS], [SlotClass.INLINE])
]
OBJECTS = [ObjectId(bytes([n]) * 16) for n in range(1, 12)]


def name_of(number: int) -> bytes:
    return b"%032x" % number


def id_of(number: int) -> ObjectId:
    return ObjectId((number + 1).to_bytes(16, "little"))


def store(policy: Policy, number: int, now: float, after: int | None = None) -> None:
    policy.named(id_of(number), name_of(number), Stamp(0))
    policy.follows(id_of(number), NONE if after is None else block_id(name_of(after)))
    policy.add(id_of(number), (CLASS,), now)


def first(policy: Policy) -> ObjectId:
    return next(policy.victims(CLASS))


class Machine(RuleBasedStateMachine):
    """Whatever happens in whatever order: each object that holds a slot of the class comes, and what nothing follows first."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = ByValue()
        self.there: dict[ObjectId, frozenset[SlotClass]] = {}
        self.parents: dict[int, int] = {}
        self.used: dict[ObjectId, int] = {}
        self.ticks = count()
        self.now = 0.0

    @rule(
        number=st.integers(0, 9),
        told_first=st.booleans(),
    )
    def store(self, number: int, told_first: bool) -> None:
        """Each follows the one with half its number, whether that is there or not."""
        object_id = id_of(number)
        classes = CLASSES[number % 4]
        self.policy.remove(object_id)
        if not told_first:
            self.policy.add(object_id, classes, self.now)
        self.policy.named(object_id, name_of(number), Stamp(0))
        self.policy.follows(object_id, block_id(name_of(number // 2)) if number else NONE)
        if told_first:
            self.policy.add(object_id, classes, self.now)
        self.there[object_id] = classes
        self.used[object_id] = next(self.ticks)

    @rule(number=st.integers(0, 9))
    def touch(self, number: int) -> None:
        self.policy.touch(id_of(number), self.now)
        if id_of(number) in self.there:
            self.used[id_of(number)] = next(self.ticks)

    @rule(number=st.integers(0, 9))
    def remove(self, number: int) -> None:
        self.policy.remove(id_of(number))
        self.there.pop(id_of(number), None)

    @rule()
    def evict(self) -> None:
        victim = next(self.policy.victims(CLASS), None)
        if victim is not None:
            self.policy.remove(victim)
            del self.there[victim]

    @rule(seconds=st.sampled_from([0.5, 3.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def agrees(self) -> None:
        assert len(self.policy) == len(self.there)
        assert list(self.policy.order()) == sorted(self.there, key=self.used.__getitem__)
        for slot_class in (SlotClass.INLINE, CLASS):
            victims = list(self.policy.victims(slot_class))
            held = [object_id for object_id, classes in self.there.items() if slot_class in classes]
            assert {*victims} == {*held}
        for object_id, classes in self.there.items():
            assert object_id in self.policy
            assert self.policy.classes(object_id) == classes
            assert self.policy.last_used(object_id) <= self.now
        victim = next(self.policy.victims(CLASS), None)
        childless = [
            object_id
            for object_id, classes in self.there.items()
            if CLASS in classes and not self._is_followed(object_id, classes)
        ]
        assert len(childless) < 2 or victim in childless or self.now > REQUEST

    def _is_followed(self, object_id: ObjectId, classes: frozenset[SlotClass]) -> bool:
        """By one that holds slots like its own: a chain is of such."""
        number = int.from_bytes(object_id, "little") - 1
        return any(
            not classes.isdisjoint(self.there.get(id_of(child), ()))
            for child in (2 * number, 2 * number + 1)
            if 0 < child < 10 and child != number
        )


TestByValue = Machine.TestCase


def test_a_chain_leaves_from_its_end() -> None:
    policy = ByValue()
    for number in range(40):
        store(policy, number, 0.0, number - 1 if number else None)
    for number in range(100, 130):
        store(policy, number, 0.0)
    gone: list[ObjectId] = []
    while len(policy):
        gone.append(first(policy))
        policy.remove(gone[-1])
    chain = [id_of(number) for number in range(40)]
    assert [object_id for object_id in gone if object_id in chain] == chain[::-1]


def test_the_chain_that_is_being_written_stays() -> None:
    policy = ByValue()
    for number in range(100):
        store(policy, number, 0.0)
    store(policy, 1000, 1.0)
    for before, number in pairwise(range(1000, 1500)):
        policy.remove(first(policy))
        store(policy, number, 1.0 + number / 1000, before)
        if number < 1080:
            assert id_of(1000) in policy
    assert len(policy) <= 101


def test_one_writer_of_many_contexts_makes_no_endless_chain() -> None:
    """Its files follow each other without a pause: the first go, not the last, nor others' that are in use."""
    policy = ByValue()
    for number in range(5000, 5010):
        store(policy, number, 0.0)
    for number in range(2000):
        if len(policy) >= 100:
            policy.remove(first(policy))
        store(policy, number, number / 2, number - 1 if number else None)
        policy.touch(id_of(5000 + number % 10), number / 2)
    assert all(id_of(number) in policy for number in range(1980, 2000))
    assert sum(id_of(number) in policy for number in range(5000, 5010)) >= 8


def test_a_long_chain_of_which_only_the_end_is_there_can_go() -> None:
    policy = ByValue()
    for number in range(5000):
        store(policy, number, 0.0, number - 1 if number else None)
    for number in range(5000):
        policy.remove(id_of(number))
    assert len(policy) == 0


def test_ranks_of_a_block_are_used_and_leave_together() -> None:
    policy = ByValue()
    for block in range(20):
        for rank in range(4):
            object_id = ObjectId(bytes([block + 1, rank]) * 8)
            policy.add(object_id, (CLASS,), float(block))
            policy.named(object_id, b"%032x_model_%d_4.bin" % (block, rank), Stamp(0))
    for _ in range(4):
        policy.remove(victim := first(policy))
        assert victim[0] == 1
    assert first(policy)[0] == 2


def test_a_name_that_becomes_another_keeps_its_place() -> None:
    policy = ByValue()
    for number in range(30):
        store(policy, number, float(number))
    policy.named(id_of(0), b"something else", Stamp(1))
    assert len(policy) == 30
    assert {*policy.victims(CLASS)} == {id_of(number) for number in range(30)}


def serve(policy: Policy, asked: list[int], capacity: int) -> int:
    """How many were there."""
    hits = 0
    for now, number in enumerate(asked):
        if id_of(number) in policy:
            policy.touch(id_of(number), float(now))
            hits += 1
        else:
            if len(policy) >= capacity:
                policy.remove(first(policy))
            store(policy, number, float(now))
    return hits


def scan(rng: Random) -> list[int]:
    """Some that are wanted again and again, among many that are wanted once."""
    fresh = count(1000)
    return [rng.randrange(40) if rng.random() < 0.3 else next(fresh) for _ in range(12_000)]


def loop(rng: Random) -> list[int]:
    return [number % 130 for number in range(12_000)]


def shifting(rng: Random) -> list[int]:
    """What is wanted changes before anything learnt of it is of use: each trial costs, and they become rare."""
    return [now // 400 * 50 + rng.randrange(120) for now in range(40_000)]


@pytest.mark.parametrize("workload, gain", [(scan, 0.05), (loop, -0.01), (shifting, -0.01)])
def test_never_worse_than_the_least_recently_used_by_more_than_a_point(workload, gain: float) -> None:
    asked: list[int] = workload(Random(1))
    lru, ours = (serve(policy, asked, 100) / len(asked) for policy in (Lru(), ByValue()))
    assert ours >= lru + gain


def test_falls_back_where_value_serves_less() -> None:
    """The returns say that what was used often never comes back, and the least recently used is right."""
    returns = Returns()
    for uses in (1, 2, 3):
        for at in range(20):
            returns.passed((uses, False), at, 1e6 * uses)
    for _ in range(100_000):
        returns.returned((1, False), 1e6)
    policy = ByValue(returns)
    rng = Random(2)
    fresh = count(1000)
    asked = [rng.randrange(90) if rng.random() < 0.8 else next(fresh) for _ in range(20_000)]
    serve(policy, asked, 100)
    evicted = policy.figures()["evicted_by_policy"]
    assert evicted["lru"] > 0
    assert evicted["value"] > 0


def test_the_sample_is_bounded() -> None:
    shadow, rng = Shadow(Returns()), Random(3)
    for now in range(6 * LIMIT):
        key = rng.getrandbits(64)
        if not key & shadow.mask:
            shadow.used(key, (1, False), float(now), (now, 0))
        assert len(shadow) <= LIMIT
    assert shadow.one_in == 8


def test_regret_is_what_only_the_least_recently_used_would_have() -> None:
    shadow = Shadow(Returns())
    for key in (1, 2):
        shadow.used(key, (1, False), 0.0, (key, 0))
    shadow.let_go(2, 1.0)  # though 1 was used before it
    shadow.used(3, (1, False), 2.0, (3, 0))
    shadow.used(2, (1, False), 3.0, (4, 0))
    assert (shadow.regret, shadow.gained) == (1, 0)
    shadow.used(1, (1, False), 4.0, (5, 0))
    assert (shadow.regret, shadow.gained) == (1, 1)  # there, it had gone when 3 came
    shadow.removed(3)
    shadow.used(3, (1, False), 5.0, (6, 0))
    assert (shadow.regret, shadow.gained) == (1, 1)


def bytes_an_object(policy: Policy, ids: list[ObjectId], names: list[bytes]) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, object_id in enumerate(ids):
            policy.named(object_id, names[number], Stamp(0))
            policy.follows(object_id, NONE if number % 50 == 0 else block_id(names[number - 1]))
            policy.add(object_id, (CLASS,), number / 100)
        return (tracemalloc.get_traced_memory()[0] - before) / len(ids)
    finally:
        tracemalloc.stop()


def test_an_object_costs_100_bytes_more_than_by_last_use() -> None:
    ids = [id_of(number) for number in range(100_000)]
    names = [name_of(number) for number in range(100_000)]
    assert bytes_an_object(ByValue(), ids, names) < bytes_an_object(Lru(), ids, names) + 100
