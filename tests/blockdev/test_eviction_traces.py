"""The policies on what engines asked for, against a least-recently-used cache of ten lines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from random import Random

import pytest

from blockdev.eviction import Lru, TemporaryFirst
from blockdev.types import ObjectId
from tests.blockdev.request_traces import hit_ratio, requests, trace_files

LIMIT = 60_000
"""Blocks of a trace: a second for each size and policy."""


def reference(asked: Iterable[ObjectId], capacity: int) -> float:
    kept: OrderedDict[ObjectId, None] = OrderedDict()
    hits = total = 0
    for block in asked:
        total += 1
        hits += block in kept
        kept[block] = None
        kept.move_to_end(block)
        if len(kept) > capacity:
            kept.popitem(last=False)
    return hits / total


def policies() -> list[Lru | TemporaryFirst]:
    return [Lru(), TemporaryFirst(Lru(), lambda _: False, lambda: 0)]


def chains(seed: int) -> list[ObjectId]:
    """Conversations that grow, come back, and share their first blocks."""
    rng = Random(seed)
    lengths = [rng.randrange(5, 60) for _ in range(80)]
    asked: list[int] = []
    for _ in range(600):
        number = min(int(rng.expovariate(1 / 15)), 79)
        lengths[number] += rng.randrange(4)
        asked += [block if block < 4 else number * 1000 + block for block in range(lengths[number])]
    return [ObjectId(block.to_bytes(16, "big")) for block in asked]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("percent", [2, 20, 60])
def test_policies_keep_what_was_used_last(seed: int, percent: int) -> None:
    asked = chains(seed)
    capacity = len(set(asked)) * percent // 100
    expected = reference(asked, capacity)
    assert 0 < expected < 1
    for policy in policies():
        assert hit_ratio(policy, asked, capacity) == expected
        assert len(policy) <= capacity


@pytest.mark.traces
@pytest.mark.parametrize("percent", [5, 20])
def test_policies_on_traces(percent: int) -> None:
    for trace in trace_files():
        asked = requests(trace, LIMIT)
        capacity = len(set(asked)) * percent // 100
        expected = reference(asked, capacity)
        assert expected > 0
        for policy in policies():
            assert hit_ratio(policy, asked, capacity) == expected
