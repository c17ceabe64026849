"""Which blocks go first: bounded work for each decision, chains that are kept from their beginning, and real requests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from kvfs.hindsight import best
from kvfs.prefetch.forest import Forest
from kvfs.prefetch.keeping import LeafLru
from kvfs.prefetch.leaves import Leaves
from kvfs.prefetch.returns import Returns
from kvfs.prefetch.value import ByValue
from kvfs.request_traces import Asked, read_requests, unique_blocks
from kvfs.traces import Requests
from kvfs.uses import uses_of
from scripts.lib.prediction.pools import replay
from tests.blockdev.request_traces import trace_files

CLASS = 4
MASK = 1 << CLASS
POINT = 0.01


class Cache:
    """Of so many blocks, with numbers as their keys."""

    def __init__(self, capacity: int) -> None:
        self.forest = Forest(Returns())
        self.capacity = capacity

    def __contains__(self, key: object) -> bool:
        return bool(self.forest.masks[self.forest.numbers.find(_hash(key))])

    def read(self, chain: Sequence[int], now: float) -> int:
        """Use a chain, and store what is missing of it; returns how many at its beginning were there."""
        hits, leads, before = 0, True, 0
        for block in chain:
            key = _hash(block)
            leads = leads and block in self
            hits += leads
            if block not in self:
                self.store(key, before)
            self.forest.use(self.forest.numbers.find(key), now)
            before = key
        return hits

    def store(self, key: int, before: int) -> None:
        forest = self.forest
        if len(forest) >= self.capacity:
            victim = next(forest.candidates(CLASS))
            forest.let_go(victim)
            forest.hold(victim, 0)
        number = forest.block(key)
        forest.hold(number, MASK)
        forest.follow(number, before)
        forest.write(number)


def _hash(block: object) -> int:
    return (hash(block) + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1


def chain(number: int, length: int) -> range:
    return range(number * 10_000, number * 10_000 + length)


def test_a_chain_longer_than_the_cache_keeps_its_beginning() -> None:
    cache = Cache(100)
    cache.read(chain(0, 50), 0.0)
    cache.read(chain(1, 1000), 100.0)
    assert all(block in cache for block in chain(1, 98))


def test_a_scan_of_ten_times_the_cache_takes_little_from_others() -> None:
    """Twenty conversations come back every minute; once, a thousand that never do pass by."""
    steady = [(minute * 60.0 + c, chain(c, 10)) for minute in range(120) for c in range(20)]
    scan = [(3600.0 + number * 0.05, chain(1000 + number, 2)) for number in range(1000)]
    alone, among = Cache(200), Cache(200)
    hits = sum(alone.read(blocks, now) for now, blocks in steady)
    for now, blocks in sorted(steady + scan, key=lambda asked: asked[0]):
        hits -= among.read(blocks, now) if blocks[0] < 1_000_0000 else 0
    assert hits < 0.02 * sum(len(blocks) for _, blocks in steady)


def test_a_clock_that_jumps_harms_nothing() -> None:
    cache = Cache(50)
    for now in (0.0, 1e9, 5.0, -1e9, 6.0, 1e12):
        for number in range(10):
            cache.read(chain(number, 20), now)
            assert len(cache.forest) <= 50


@pytest.mark.parametrize("capacity", [2_000, 20_000])
def test_a_decision_looks_at_a_few_blocks_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    """Counted are moves of blocks between groups, and groups whose worth is worked out."""
    moves = ranked = decisions = 0
    leave, rank_of = Leaves.leave, Forest._rank_of

    def counted_leave(self: Leaves, number: int) -> None:
        nonlocal moves
        moves += 1
        leave(self, number)

    def counted_rank(self, group):
        nonlocal ranked
        ranked += 1
        return rank_of(self, group)

    cache, rng = Cache(capacity), Random(3)
    number = 0
    while len(cache.forest) < capacity:
        cache.read(chain(number := number + 1, 20), float(number))
    monkeypatch.setattr(Leaves, "leave", counted_leave)
    monkeypatch.setattr(Forest, "_rank_of", counted_rank)
    for _ in range(200):
        again = rng.random() < 0.5
        number += not again
        cache.read(chain(number - rng.randrange(50) if again else number, 25), float(number))
        decisions += 25
    assert moves < 8 * decisions
    assert ranked < 2 * decisions


def _ratio(hits: Sequence[int], asked: Sequence[Asked]) -> float:
    return sum(hits) / sum(len(request.chain) for request in asked)


@pytest.mark.traces
@pytest.mark.parametrize("percent", [1, 5, 10, 20, 50])
def test_never_more_than_a_point_below_the_least_recently_used_leaves_first(percent: int) -> None:
    """On real requests; nor above who knows the future."""
    for path in trace_files():
        asked = read_requests(path)[:1000]
        capacity = max(unique_blocks(asked) * percent // 100, 1)
        leaf = LeafLru(capacity)
        ours = _ratio(replay(asked, ByValue(), capacity), asked)
        assert ours >= _ratio([leaf.request(request.chain) for request in asked], asked) - POINT
        assert ours * sum(len(request.chain) for request in asked) <= best(
            uses_of(Requests([*asked])).each, capacity
        )


@pytest.mark.traces
@pytest.mark.parametrize("percent, floor", [(1, 0.09), (5, 0.21), (10, 0.28)])
def test_conversations_are_served_as_well_as_was_promised(percent: int, floor: float) -> None:
    for path in trace_files():
        if path.name.startswith("conversation_trace"):
            asked = read_requests(path)
            ours = replay(asked, ByValue(), unique_blocks(asked) * percent // 100)
            assert _ratio(ours, asked) >= floor
