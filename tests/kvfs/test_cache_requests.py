"""Requests that an engine tells of: what they will read is in memory before they read it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from blockdev.testing import Fault, Operation
from kvfs.cache import Cache
from kvfs.errors import BadKey, CacheClosed
from tests.blockdev.pools import EXTENT, made
from tests.kvfs.caches import cache_of, direct

FRAMES = 16


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


@asynccontextmanager
async def filled(tmp_path: Path, count: int, frames: int = FRAMES) -> AsyncIterator[Cache]:
    """A cache over blocks of one extent each, none of which is in memory."""
    bench = await made(tmp_path, regions=8)
    async with bench.open() as opened, cache_of(opened.pool, frames=frames) as cache:
        payload = direct(EXTENT)
        payload[:] = Random(1).randbytes(EXTENT)
        for number in range(count):
            await cache.put(digest(number), payload)
        yield cache


async def settled(cache: Cache, blocks: int) -> None:
    """Until so many were fetched and are there."""
    while (
        sum(cache.statistics().prefetch.fetched_by_source.values()) < blocks * EXTENT
        or cache._requests._frames.reading
    ):
        await trio.lowlevel.checkpoint()


async def test_what_a_request_will_read_is_brought(tmp_path: Path) -> None:
    async with filled(tmp_path, 4) as cache:
        assert cache.begin("r", [digest(number) for number in range(6)]) == 4
        await settled(cache, 4)
        into = direct(EXTENT)
        for number in range(4):
            await cache.get_into(digest(number), into)
        cache.end("r", "stop")
        shown = cache.statistics()
        assert shown.bytes_copied == 4 * EXTENT  # from the DRAM tier
        assert shown.prefetch.used_by_source["arrived"] == 4 * EXTENT
        assert shown.prefetch.missed == 0


async def test_what_follows_a_gap_is_of_no_use(tmp_path: Path) -> None:
    async with filled(tmp_path, 4) as cache:
        assert cache.begin("r", [digest(0), digest(99), digest(1)]) == 1
        await settled(cache, 1)
        cache.end("r")
        assert cache.statistics().prefetch.expected == 0


async def test_a_request_that_is_over_wants_nothing(tmp_path: Path) -> None:
    async with filled(tmp_path, 12) as cache:
        keys = [digest(number) for number in range(12)]
        cache.begin("one", keys)
        cache.begin("two", keys[:3])
        cache.end("one", "abort")
        await settled(cache, 3)
        await trio.testing.wait_all_tasks_blocked(0.01)
        shown = cache.statistics().prefetch
        assert shown.expected == 0
        assert shown.fetched_by_source["arrived"] == 3 * EXTENT
        assert shown.cancelled_by_source["arrived"] == 9 * EXTENT


async def test_a_hint_brings_what_is_there(tmp_path: Path) -> None:
    async with filled(tmp_path, 2) as cache:
        cache.hint([digest(99), digest(1)])
        await settled(cache, 1)
        assert cache.statistics().prefetch.fetched_by_source["return"] == EXTENT


async def test_what_is_asked_for_while_it_comes_is_read_once(tmp_path: Path) -> None:
    bench = await made(tmp_path, regions=8)
    async with bench.open() as opened, cache_of(opened.pool, frames=FRAMES) as cache:
        await cache.put(digest(0), direct(EXTENT))
        bench.devices[0].inject(Fault(delay=0.2), operation=Operation.READ)
        before = bench.devices[0].operations[Operation.READ]
        cache.begin("r", [digest(0)])
        with trio.fail_after(10):
            while not cache._requests._frames.reading:
                await trio.lowlevel.checkpoint()
        await cache.get_into(digest(0), direct(EXTENT))
        assert bench.devices[0].operations[Operation.READ] == before + 1
        assert cache.statistics().bytes_copied == EXTENT
        assert cache.statistics().prefetch.late_by_source["arrived"] == EXTENT


async def test_what_was_not_announced_is_missed(tmp_path: Path) -> None:
    async with filled(tmp_path, 1) as cache:
        await cache.get_into(digest(0), direct(EXTENT))
        assert cache.statistics().prefetch.missed == EXTENT


async def test_requests_have_names(tmp_path: Path) -> None:
    async with filled(tmp_path, 1) as cache:
        cache.begin("r", [digest(0)])
        with pytest.raises(BadKey, match="has begun already"):
            cache.begin("r", [digest(0)])
        cache.end("r")
        with pytest.raises(BadKey, match="has not begun"):
            cache.end("r")
        cache.close()
        for call in (
            lambda: cache.begin("r", [digest(0)]),
            lambda: cache.end("r"),
            lambda: cache.hint([digest(0)]),
        ):
            with pytest.raises(CacheClosed):
                call()


async def test_layers_can_be_waited_for(tmp_path: Path) -> None:
    async with filled(tmp_path, 6) as cache:
        buffers = [direct(EXTENT) for _ in range(7)]
        keys = [digest(number) for number in (0, 1, 2, 3, 99, 4, 5)]
        pairs = [*zip(keys, buffers, strict=True)]
        async with cache.layers([pairs[:2], pairs[2:5], [], pairs[5:]]) as layers:
            assert len(layers) == 4
            assert await layers.ready(2) == []
            assert [got.key for got in await layers.ready(3)] == keys[5:]
            second = await layers.ready(1)
            assert [got.index for got in second] == [2, 3, 4]
            assert [got.length for got in second] == [EXTENT, EXTENT, 0]
            with pytest.raises(IndexError):
                await layers.ready(4)
            assert [got.length for got in await layers.ready(0)] == [EXTENT] * 2


async def test_several_wait_for_layers(tmp_path: Path) -> None:
    async with filled(tmp_path, 6) as cache:
        pairs = [(digest(number), direct(EXTENT)) for number in range(6)]
        came: list[int] = []

        async def compute(layer: int) -> None:
            [got] = await layers.ready(layer)
            assert got.length == EXTENT
            came.append(layer)

        async with cache.layers([[pair] for pair in pairs]) as layers, trio.open_nursery() as nursery:
            for layer in (5, 0, 3, 1, 4, 2):
                nursery.start_soon(compute, layer)
        assert sorted(came) == [*range(6)]


async def test_layers_that_are_left_leave_nothing_behind(tmp_path: Path) -> None:
    bench = await made(tmp_path, regions=8)
    async with bench.open() as opened, cache_of(opened.pool, frames=FRAMES) as cache:
        await cache.put(digest(0), direct(EXTENT))
        bench.devices[0].inject(Fault(delay=0.2), operation=Operation.READ)
        with pytest.raises(ZeroDivisionError):
            async with cache.layers([[(digest(0), direct(EXTENT))]]):
                raise ZeroDivisionError
        assert cache.statistics().stream.running == 0
