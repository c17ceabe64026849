"""The caches that predictions are compared with, against known counts and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest

from kvfs.hindsight import best as belady
from kvfs.prefetch.baselines import Arc, Lru, S3Fifo
from kvfs.request_traces import Asked
from kvfs.traces import Requests
from kvfs.uses import uses_of
from scripts.lib.prediction.caches import prefix_hits


def skewed() -> list[int]:
    """Thirty thousand requests: few blocks wanted often, and a scan that wants each block once or twice."""
    rng = Random(5)
    return [
        min(int(rng.paretovariate(0.7)), 3000) if rng.random() < 0.8 else 5000 + i // 3 for i in range(30_000)
    ]


@pytest.mark.parametrize(
    "cache, capacity, hits",
    [
        (Lru, 50, 21_607),
        (Lru, 200, 23_369),
        (Lru, 1000, 24_297),
        (Arc, 50, 22_503),
        (Arc, 200, 23_799),
        (Arc, 1000, 24_388),
        (S3Fifo, 50, 23_250),
        (S3Fifo, 200, 24_071),
        (S3Fifo, 1000, 24_397),
    ],
)
def test_hits_are_those_that_libcachesim_counts(
    cache: type[Lru | Arc | S3Fifo], capacity: int, hits: int
) -> None:
    """libCacheSim 0.3.5, with its own parameters, on the same requests."""
    held = cache(capacity)
    assert sum(held.access(block) for block in skewed()) == hits


def asked(*chains: Sequence[int]) -> list[Asked]:
    return [Asked(float(number), None, tuple(chain)) for number, chain in enumerate(chains)]


def best(requests: list[Asked], capacity: int) -> int:
    """The most prefix hits there can be: tries every choice of what is held after each request."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for request in requests:
        after: dict[frozenset[int], int] = {}
        for held, hits in states.items():
            here = hits + prefix_hits(held.__contains__, request.chain)
            there = held | set(request.chain)
            for chosen in combinations(sorted(there), min(capacity, len(there))):
                key = frozenset(chosen)
                after[key] = max(after.get(key, 0), here)
        states = after
    return max(states.values())


@pytest.mark.parametrize("seed", range(12))
def test_nobody_has_more_hits_than_who_knows_the_future(seed: int) -> None:
    rng = Random(seed)
    requests = asked(*([c * 10 + i for i in range(rng.randint(1, 2))] for c in rng.choices(range(4), k=9)))
    for capacity in (1, 2, 3):
        optimum = belady(uses_of(Requests(requests)).each, capacity)
        assert optimum == best(requests, capacity)
        for cache in (Lru, Arc, S3Fifo):
            held = cache(capacity)
            assert sum(prefix_hits(held.access, request.chain) for request in requests) <= optimum


def test_a_block_behind_one_that_is_missing_is_no_hit() -> None:
    assert prefix_hits({1, 2, 4}.__contains__, [1, 2, 3, 4]) == 2
