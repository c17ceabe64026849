"""What caches would have had of a trace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.hindsight import BEST, FOR_REQUESTS, NAMES, POLICIES, best, distances, policies_for, ratios
from kvfs.own_caches import MemoryCache, PoolCache
from kvfs.prefetch.keeping import LeafLru
from kvfs.request_traces import Asked
from kvfs.traces import Event, Requests, Trace, read_trace
from kvfs.uses import Use, Uses, uses_of

SIZES = dict(zip("abcdefgh", (1, 1, 2, 3, 5, 8, 13, 21), strict=True))
AHEAD = "ours_ahead"
ALONE = tuple(name for name in NAMES if name not in (AHEAD, FOR_REQUESTS))
"""Those that have only what they were asked for, and need to be told nothing else."""


def files(seen: Iterable[tuple[str, bool]]) -> list[Use]:
    return [
        Use(float(at), (name,), SIZES[name], wanted=wanted, block=name)
        for at, (name, wanted) in enumerate(seen)
    ]


def served(name: str, uses: Sequence[Use], capacity: int) -> int:
    cache = POLICIES[name](capacity)
    return sum(cache(use) * use.wanted for use in uses)


def requests(*chains: Sequence[int]) -> Uses:
    return uses_of(Requests([Asked(float(at), None, tuple(chain)) for at, chain in enumerate(chains)]))


def chain_events(chains: int, length: int) -> list[Event]:
    """Contexts that are written one after the other, and read in another order, of several kilobytes a block."""
    events = []
    for chain in range(chains):
        before = ""
        for number in range(length):
            block = f"{chain}.{number}"
            events.append(Event(10.0 * chain, "publish", block, block, "w", 4096 + number, before=before))
            before = block
    order = list(range(chains))
    Random(1).shuffle(order)
    return events + [
        Event(1000.0 + at, "open", f"{chain}.{n}", f"{chain}.{n}", f"r{chain}", 4096 + n)
        for at, chain in enumerate(order)
        for n in range(length)
    ]


Accesses = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60).map(files)


def test_hits_are_bytes_of_what_is_opened() -> None:
    events = [
        Event(0, "publish", "a", "a", size=100),
        Event(1, "open", "a", "a", size=100),
        Event(2, "open", "b", "b", size=300),
        Event(3, "lookup", "b", "b", size=300, known=True),
        Event(4, "open", "b", "b", size=300),
    ]
    (one,) = ratios(uses_of(Trace(events, 0, whole=True)), (1.0,), ["lru", BEST])
    assert (one.size, one.hits) == (400, {"lru": 4 / 7, BEST: 4 / 7})


def test_hits_are_blocks_with_all_before_them() -> None:
    uses = requests([1, 2, 3], [1, 2, 4], [9, 2, 3])
    (one,) = ratios(uses, (1.0,))
    assert (one.size, uses.unit) == (5, "blocks")
    assert set(one.hits) == set(NAMES)
    assert {name: hits for name, hits in one.hits.items() if name != AHEAD} == pytest.approx(
        dict.fromkeys([name for name in NAMES if name != AHEAD], 2 / 9)
    )


def test_only_requests_tell_when_they_are_over() -> None:
    assert FOR_REQUESTS not in policies_for(uses_of(Trace([], 0, whole=True)))
    assert set(policies_for(requests([1]))) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_who_has_room_for_all_misses_only_what_is_new(name: str) -> None:
    uses = requests(*([c * 100 + i for i in range(6)] for c in (1, 2, 3, 2, 1, 3)))
    (one,) = ratios(uses, (1.0,), [name])
    assert one.hits[name] == 0.5


@pytest.mark.parametrize("name", ALONE)
@given(uses=Accesses, capacity=st.integers(1, 60))
def test_nobody_has_more_than_who_knows_the_future(name: str, uses: list[Use], capacity: int) -> None:
    if name != BEST:
        assert served(name, uses, capacity) <= best(uses, capacity)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=7).map(files), st.integers(1, 3))
def test_no_choice_of_whole_files_serves_more(uses: list[Use], capacity: int) -> None:
    """Tries all; a file that is published is there then, if it is kept."""
    states: dict[frozenset[str], int] = {frozenset(): 0}
    for use in uses:
        name = str(use.chain[0])
        after: dict[frozenset[str], int] = {}
        for held, hits in states.items():
            there = held | {name}
            here = hits + use.size * (use.wanted and name in held)
            for count in range(len(there) + 1):
                for chosen in combinations(sorted(there), count):
                    if sum(SIZES[one] for one in chosen) <= capacity:
                        after[frozenset(chosen)] = max(after.get(frozenset(chosen), 0), here)
        states = after
    assert best(uses, capacity) >= max(states.values())


def test_of_what_does_not_fit_a_part_is_served_by_who_knows_the_future() -> None:
    assert best(files([("f", True), ("f", True)]), 5) == 5
    assert served("lru", files([("f", True), ("f", True)]), 5) == 0


Chains = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=25)


@given(Chains, st.integers(1, 12))
def test_leaves_first_is_what_mounts_are_measured_against(branches: list[list[int]], capacity: int) -> None:
    """Of requests it is `keeping.LeafLru`; a block is named by all that precedes it."""
    chains = [[hash(tuple(path[: n + 1])) for n in range(len(path))] for path in branches]
    shadow = LeafLru(capacity)
    cache = POLICIES["leaf_lru"](capacity)
    assert [cache(use) for use in requests(*chains).each] == [shadow.request(chain) for chain in chains]


def test_a_file_leaves_after_those_that_follow_its_block() -> None:
    events = [
        Event(at, "publish", f"{block}{half}", block, "w", 1, before=before)
        for at, (before, block) in enumerate([("", "x"), ("x", "y"), ("", "z")])
        for half in "kv"
    ]
    events += [Event(9.0, "open", "n", "n", "r", 1), Event(10.0, "open", "xk", "x", "r", 1)]
    (one,) = ratios(uses_of(Trace(events, 0, whole=True)), (6 / 7,), ["lru", "leaf_lru"])
    assert one.hits == {"lru": 0.0, "leaf_lru": 0.5}


def test_blocks_that_are_said_to_follow_each_other_in_a_circle_leave_all_the_same() -> None:
    events = [
        Event(float(at), "publish", name, name, "w", 1, before=before)
        for at, (name, before) in enumerate(
            [("b", "a"), ("a", "b"), ("c", "c"), *((str(n), "a") for n in range(9))]
        )
    ]
    (one,) = ratios(uses_of(Trace(events, 0, whole=True)), (0.2,))
    assert set(one.hits) == set(NAMES) - {FOR_REQUESTS}


@given(Accesses, st.integers(1, 60))
def test_a_pool_and_a_memory_hold_no_more_than_they_have_room_for(uses: list[Use], capacity: int) -> None:
    pool, memory = PoolCache(capacity), MemoryCache(capacity)
    for use in uses:
        assert 0 <= pool.use(use) <= use.size
        assert 0 <= memory.use(use) <= use.size
        assert sum(pool._sizes.values()) == pool._used <= capacity
        assert sum(memory._held.values()) == memory._used <= capacity
        assert memory._unused_size == sum(memory._unused.values())


def test_a_memory_that_fetches_ahead_waits_for_the_beginning_of_a_chain_only() -> None:
    uses = uses_of(Trace(chain_events(20, 12), 0, whole=True))
    (one,) = ratios(uses, (0.2,), ["lru", AHEAD, BEST])
    assert one.hits["lru"] <= one.hits[BEST] < 0.3
    assert one.hits[AHEAD] > 0.7


def test_a_pool_of_ours_keeps_what_comes_back_and_not_what_does_not() -> None:
    """Some are asked for again and again, among many that are once."""
    rng = Random(1)
    fresh = iter(range(1000, 1 << 20))
    uses = requests(*([rng.randrange(40) if rng.random() < 0.3 else next(fresh)] for _ in range(6000)))
    (one,) = ratios(uses, (100 / uses.total,), ["lru", "ours", BEST])
    assert one.hits["lru"] + 0.05 < one.hits["ours"] <= one.hits[BEST]


@pytest.mark.parametrize("name", [name for name in NAMES if name != BEST])
def test_another_future_changes_nothing_before_it(name: str) -> None:
    """Conversations that grow and come back; from some moment on, nothing but what nobody has ever asked for."""
    rng = Random(3)
    chains = [
        [who * 1000 + n for n in range(4 + turn)] for turn in range(12) for who in rng.sample(range(20), 20)
    ]
    cache = POLICIES[name](100)
    whole = [cache(use) for use in requests(*chains).each]
    assert sum(whole) > 0
    for cut in (50, 120, 200):
        cache = POLICIES[name](100)
        other = [[10**6 + n * 100 + i for i in range(30)] for n in range(40)]
        assert [cache(use) for use in requests(*chains[:cut], *other).each][:cut] == whole[:cut]


@pytest.mark.parametrize("name", ["ours", "ours_ahead", FOR_REQUESTS])
def test_a_scan_of_ten_times_the_room_takes_little_from_others(name: str) -> None:
    """Twenty conversations come back every minute, for two hours; once, a thousand that never do pass by."""
    steady = [
        Asked(minute * 60.0 + who, None, tuple(who * 1000 + n for n in range(10)))
        for minute in range(120)
        for who in range(20)
    ]
    scan = [Asked(3600.0 + n * 0.05, None, (10**6 + n * 10, 10**6 + n * 10 + 1)) for n in range(1000)]
    mixed = sorted(steady + scan, key=lambda one: one.time)
    served = []
    for asked in (steady, mixed):
        cache = POLICIES[name](200)
        hits = [cache(use) for use in uses_of(Requests(asked)).each]
        served.append(sum(hit for hit, one in zip(hits, asked, strict=True) if one.chain[0] < 10**6))
    assert served[0] - served[1] < 0.02 * sum(len(one.chain) for one in steady)


def test_who_is_told_hears_of_each_cache() -> None:
    heard: list[tuple[int, int]] = []
    ratios(requests([1]), (0.1, 1.0), ["lru", BEST], lambda done, total: heard.append((done, total)))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]


@given(Accesses)
def test_distances_tell_what_an_lru_cache_has(uses: list[Use]) -> None:
    found = distances(uses)
    again = [
        use for at, use in enumerate(uses) if use.wanted and use.chain in [one.chain for one in uses[:at]]
    ]
    assert sum(found.values()) == len(again)
    everything = sum(SIZES.values())
    for power in range(7):
        hits = [use.chain for use, hit in zip(uses, lru(uses, (1 << power) + everything), strict=True) if hit]
        nearer = sum(count for at, count in found.items() if at < power)
        assert len(hits) >= nearer


def lru(uses: Sequence[Use], capacity: int) -> list[bool]:
    cache = POLICIES["lru"](capacity)
    return [bool(cache(use)) and use.wanted for use in uses]


@pytest.mark.traces
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_on_traces(share: float) -> None:
    """The first thousand requests: nobody beats who knows the future, and who tells of requests is not below leaf-first LRU."""
    found = sorted(Path(os.environ["KVFS_TRACES"]).glob("*.jsonl*"))
    assert found
    for path in found:
        trace = read_trace(path)
        assert isinstance(trace, Requests)
        (one,) = ratios(uses_of(Requests(trace.asked[:1000])), (share,))
        assert all(one.hits[name] <= one.hits[BEST] for name in one.hits if name != AHEAD)
        assert one.hits[FOR_REQUESTS] >= one.hits["leaf_lru"] - 0.01
        assert one.hits[AHEAD] > one.hits["lru"]
