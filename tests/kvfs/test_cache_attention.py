"""Engines that tell what attention read: dense mode loads everything in that order, sparse mode the choice alone."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from blockdev.errors import ChecksumError
from blockdev.types import KIB
from kvfs.cache import Cache, Pair
from kvfs.cache.folders import Finder
from kvfs.cache.keys import place_of
from kvfs.cache.reading import PoolExtent, PoolSource
from kvfs.errors import BadAttention, BadBuffer, BadKey, CacheClosed, NoNumpy, NoObject
from tests.blockdev.pools import Bench, made, payload_at
from tests.kvfs.attention import always, mass_on
from tests.kvfs.caches import cache_of, direct

BLOCK = 64
BLOCKS = 12
GROUPS = 2
SIZE = 64 * KIB
HOT = (5, 8)
"""The block that attention reads in each group."""

Layer = list[Pair]


def path(group: int, block: int) -> str:
    return f"/engine/{group}/{block}.bin"


def content(group: int, block: int) -> bytes:
    return Random(1000 * group + block).randbytes(SIZE)


CHAIN = [path(0, block) for block in range(BLOCKS)]


def empty() -> list[Layer]:
    """Memory for all blocks of all groups, of zeros."""
    return [[(path(group, block), direct(SIZE)) for block in range(BLOCKS)] for group in range(GROUPS)]


def tell(cache: Cache, request: str = "r") -> None:
    for group, hot in enumerate(HOT):
        cache.attend(request, group, mass=mass_on(BLOCKS, hot), tokens=64)


def filled_of(layer: Iterable[Pair], group: int) -> set[int]:
    """Blocks whose buffers have what was stored; the others must be as they were."""
    right = set()
    for block, (_, buffer) in enumerate(layer):
        if bytes(buffer) == content(group, block):
            right.add(block)
        else:
            assert not any(buffer), f"block {block} of group {group} has other bytes"
    return right


@asynccontextmanager
async def stored(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Cache, Bench]]:
    """A cache over all blocks of all groups."""
    bench = await made(tmp_path, regions=16)
    async with bench.open() as opened, cache_of(opened.pool, frames=8, **options) as cache:
        for group in range(GROUPS):
            for block in range(BLOCKS):
                await cache.put(path(group, block), content(group, block))
        yield cache, bench


@pytest.mark.numpy
async def test_sparse_mode_reads_what_was_chosen_alone(tmp_path: Path) -> None:
    async with stored(tmp_path) as (cache, _bench):
        assert cache.begin("r", CHAIN, mode="sparse", budget=1 / 3) == BLOCKS
        tell(cache)
        layers, before = empty(), cache.statistics().bytes
        async with cache.layers(layers, request="r") as coming:
            for group, hot in enumerate(HOT):
                chosen = coming.chosen(group)
                assert set(chosen) == always(BLOCKS, BLOCK) | {hot}
                assert await coming.loaded(group) == sorted(chosen)
                assert [got.key for got in await coming.ready(group)] == [
                    path(group, n) for n in sorted(chosen)
                ]
                assert filled_of(layers[group], group) == set(chosen)
        assert cache.statistics().bytes - before == GROUPS * 4 * SIZE
        late = direct(SIZE)  # what was not chosen can be asked for
        assert await cache.get_into(path(0, 3), late) == SIZE
        assert bytes(late) == content(0, 3)


@pytest.mark.numpy
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("reading", [{}, {"mode": "dense"}, {"mode": "sparse", "budget": 1}])
async def test_everything_arrives_as_it_was_stored(
    tmp_path: Path, told: bool, reading: dict[str, Any]
) -> None:
    async with stored(tmp_path) as (cache, _bench):
        cache.begin("r", CHAIN, **reading)
        if told:
            tell(cache)
        layers = empty()
        async with cache.layers(layers, request="r") as coming:
            for group in range(GROUPS):
                assert await coming.loaded(group) == [*range(BLOCKS)]
                assert filled_of(layers[group], group) == {*range(BLOCKS)}


@pytest.mark.numpy
async def test_dense_mode_reads_the_most_wanted_of_a_layer_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    read = PoolSource.read

    def noted(source: PoolSource, extent: PoolExtent, *rest: Any) -> Any:
        begun.append(extent.record.name.decode())
        return read(source, extent, *rest)

    monkeypatch.setattr(PoolSource, "read", noted)
    async with stored(tmp_path, bytes_under_way=SIZE) as (cache, _bench):  # one after the other
        cache.begin("r", [])
        tell(cache)
        async with cache.layers(empty(), request="r") as coming:
            orders = [coming.chosen(group) for group in range(GROUPS)]
            for group in range(GROUPS):
                await coming.loaded(group)
    for order, hot in zip(orders, HOT, strict=True):
        assert set(order) == {*range(BLOCKS)}
        assert set(order[:3]) == always(BLOCKS, BLOCK)
        assert order[3] == hot
    assert begun == [f"{number}.bin" for order in orders for number in order]


@pytest.mark.numpy
async def test_a_block_that_is_not_right_is_not_loaded(
    tmp_path: Path, expect_log: Callable[[str], None]
) -> None:
    expect_log("damaged|other bytes|quarantin")
    async with stored(tmp_path) as (cache, bench):
        record = Finder(cache._pool).find(place_of(path(0, HOT[0]), None))
        assert record is not None
        [extent] = record.extents
        await bench.damage(extent.ref.device, payload_at(cache._pool, extent.ref) + 8 * KIB)
        await cache.remove(path(1, HOT[1]))
        cache.begin("r", [], mode="sparse", budget=1 / 3)
        tell(cache)
        async with cache.layers(empty(), request="r") as coming:
            for group, hot in enumerate(HOT):
                assert hot in coming.chosen(group)
                assert await coming.loaded(group) == sorted(always(BLOCKS, BLOCK))
            errors = {str(got.key): got.error for group in (0, 1) for got in await coming.ready(group)}
        assert isinstance(errors[path(0, HOT[0])], ChecksumError)
        assert isinstance(errors[path(1, HOT[1])], NoObject)


@pytest.mark.numpy
async def test_a_request_that_goes_on_chooses_before_it_is_told(tmp_path: Path) -> None:
    async with stored(tmp_path) as (cache, _bench):
        cache.begin("one", CHAIN[:10])
        cache.attend("one", 0, mass=mass_on(10, HOT[0]), tokens=64)
        cache.end("one", "tool_use")
        assert cache.begin("two", CHAIN, mode="sparse", budget=1 / 3) == BLOCKS
        async with cache.layers(empty()[:1], request="two") as coming:
            assert set(coming.chosen(0)) == always(BLOCKS, BLOCK) | {HOT[0]}
        cache.end("two")


@pytest.mark.numpy
async def test_less_of_a_context_may_be_there(tmp_path: Path) -> None:
    async with stored(tmp_path) as (cache, _bench):
        cache.begin("r", CHAIN, mode="sparse", budget=0.5)
        tell(cache)
        layers = [layer[:8] for layer in empty()]
        async with cache.layers([*layers, []], request="r") as coming:
            assert set(coming.chosen(0)) == {0, 6, 7, HOT[0]}
            assert HOT[1] not in await coming.loaded(1)
            assert [len(coming.chosen(group)) for group in range(3)] == [4, 4, 0]
            assert await coming.loaded(2) == []


@pytest.mark.numpy
async def test_only_the_choice_is_brought_into_memory(tmp_path: Path) -> None:
    async with stored(tmp_path) as (cache, _bench):
        cache.begin("one", CHAIN, mode="sparse", budget=1 / 3)
        shown = cache.statistics().prefetch
        cache.end("one")
        fetched = sum(shown.fetched_by_source.values())
        assert (shown.expected * SIZE + fetched) == 4 * SIZE


SECOND = [path(1, block) for block in range(BLOCKS)]


@pytest.mark.numpy
async def test_the_choice_of_each_group_that_is_named_is_brought(tmp_path: Path) -> None:
    async with stored(tmp_path) as (cache, _bench):
        cache.begin("one", CHAIN, groups=[SECOND])
        tell(cache, "one")
        cache.end("one", "tool_use")
        assert cache.begin("two", CHAIN, mode="sparse", budget=1 / 3, groups=[SECOND]) == BLOCKS
        chosen = [cache.choose("two", group) for group in range(GROUPS)]
        assert [set(each) for each in chosen] == [always(BLOCKS, BLOCK) | {hot} for hot in HOT]
        shown = cache.statistics().prefetch
        assert shown.expected * SIZE + sum(shown.fetched_by_source.values()) == 2 * 4 * SIZE
        async with cache.layers(empty(), request="two") as coming:
            assert [coming.chosen(group) for group in range(GROUPS)] == chosen
        cache.end("two")
        assert cache.statistics().prefetch.expected == 0


async def test_a_block_is_there_with_all_its_groups(tmp_path: Path) -> None:
    async with stored(tmp_path) as (cache, _bench):
        await cache.remove(path(1, 7))
        assert cache.begin("r", CHAIN, groups=[SECOND]) == 7
        cache.end("r")
        assert cache.begin("r", CHAIN) == BLOCKS
        assert cache.choose("r", 1) == [*range(BLOCKS)], "all are read, and nothing is known of an order"
        cache.end("r")
        with pytest.raises(BadKey, match="groups of 12, 3 blocks"):
            cache.begin("r", CHAIN, groups=[SECOND[:3]])
        with pytest.raises(BadKey, match="has not begun"):
            cache.choose("r", 0)


@pytest.mark.numpy
async def test_who_uses_it_wrongly_is_told(tmp_path: Path) -> None:
    async with stored(tmp_path) as (cache, _bench):
        for reading in (
            {"mode": "sparse"},
            {"mode": "sparse", "budget": 0},
            {"mode": "sparse", "budget": 1.1},
            {"mode": "sparse", "budget": math.nan},
            {"mode": "dense", "budget": 0.5},
            {"budget": 0.5},
            {"mode": "some"},
            {"block": 0},
        ):
            with pytest.raises(BadAttention):
                cache.begin("r", CHAIN, **reading)
        with pytest.raises(BadKey, match="has not begun"):
            tell(cache)
        with pytest.raises(BadKey, match="has not begun"):
            async with cache.layers(empty(), request="r"):
                pass
        cache.begin("r", CHAIN)
        with pytest.raises(BadAttention, match="not numbers"):
            cache.attend("r", 0, mass=[math.nan])
        with pytest.raises(BadBuffer):
            async with cache.layers([[(CHAIN[0], direct(SIZE)[:-1])]], request="r"):
                pass
        cache.end("r")
        with pytest.raises(BadKey, match="or has ended"):
            tell(cache)
        cache.close()
        with pytest.raises(CacheClosed):
            tell(cache)


async def test_who_says_nothing_of_attention_needs_no_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    for name in [name for name in sys.modules if name.startswith("kvfs.prefetch.contexts")]:
        monkeypatch.delitem(sys.modules, name)
    async with stored(tmp_path) as (cache, _bench):
        with pytest.raises(NoNumpy, match="pip install"):
            cache.begin("r", CHAIN, mode="sparse", budget=0.5)
        cache.begin("r", CHAIN)
        with pytest.raises(NoNumpy):
            cache.attend("r", 0, mass=[0.5])
        layers = empty()
        async with cache.layers(layers, request="r") as coming:
            assert await coming.loaded(1) == [*range(BLOCKS)]
        assert filled_of(layers[1], 1) == {*range(BLOCKS)}
        cache.end("r")
