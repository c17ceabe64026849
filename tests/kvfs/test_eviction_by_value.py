"""A pool on devices of files, with a policy that is handed in: who is left when it is full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trio.testing import MockClock

from blockdev.eviction import Lru, Policy
from blockdev.types import ROOT
from kvfs.predecessors import NONE, block_id
from kvfs.prefetch.value import ByValue
from tests.blockdev.pools import EXTENT, content, found, made, pattern, put

CHAIN = [b"%064x" % number for number in range(3)]


async def left_of_a_chain(folder: Path, clock: MockClock, policy: Callable[[], Policy]) -> int:
    """A chain that is used each minute, and files that are used once and come in between, as many as there is room for."""
    bench = await made(folder, regions=8)
    async with bench.pool(policy=policy) as pool:
        before = NONE
        for name in CHAIN:
            await put(pool, name, EXTENT, predecessor=before)
            before = block_id(name)
        for number in range(200):
            await put(pool, b"%064x" % (1000 + number), EXTENT)
            if number % 10 == 0 and number < 180:
                clock.jump(60.0)
                there = [pool.lookup(ROOT, name) for name in CHAIN]
                for record in there:
                    if record is not None:
                        pool.touch(record)
        for name in CHAIN:
            if pool.lookup(ROOT, name) is not None:
                assert await content(pool, found(pool, name)) == pattern(EXTENT, name)
        figures = pool.statistics().eviction
        assert pool.statistics().pool.evicted > 100
        assert figures["policy"] == ("lru" if policy is Lru else "value")
    async with bench.pool(policy=policy) as pool:
        return sum(pool.lookup(ROOT, name) is not None for name in CHAIN)


async def test_what_is_used_again_and_again_stays(tmp_path: Path, mock_clock: MockClock) -> None:
    assert await left_of_a_chain(tmp_path, mock_clock, ByValue) == len(CHAIN)


async def test_the_least_recently_used_lose_it(tmp_path: Path, mock_clock: MockClock) -> None:
    assert await left_of_a_chain(tmp_path, mock_clock, Lru) == 0


@pytest.mark.parametrize("policy", [ByValue, Lru])
async def test_a_pool_that_is_opened_again_evicts_on(tmp_path: Path, policy: Callable[[], Policy]) -> None:
    bench = await made(tmp_path)
    for start in (0, 20, 40):
        async with bench.pool(policy=policy) as pool:
            for number in range(start, start + 20):
                await put(
                    pool, b"%064x" % number, EXTENT, predecessor=block_id(b"%064x" % max(number - 1, 0))
                )
            assert pool.statistics().objects <= 12
            assert pool.lookup(ROOT, b"%064x" % (start + 19)) is not None
