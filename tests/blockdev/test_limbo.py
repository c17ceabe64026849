"""When a freed slot may be used again, and how long one waits for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import trio
from trio.testing import MockClock

from blockdev.pool import Pool
from blockdev.region import SlotState
from blockdev.testing import Operation
from blockdev.types import KIB, RegionId, SlotClass, SlotNo, SlotRef
from tests.blockdev.pools import EXTENT, made, pattern, put

SMALL = 60 * KIB
DATA = pattern(SMALL)


def state(pool: Pool, ref: SlotRef) -> SlotState:
    return pool._space.region(RegionId(ref.device, ref.region)).state(SlotNo(ref.slot))


async def test_the_grace_is_asked_for_at_each_slot(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Others may come and go."""
    grace = 0.0
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: grace) as pool:
        refs = [await pool.reserve(EXTENT) for _ in range(3)]
        for ref in refs:
            grace = 5.0 if ref == refs[1] else 0.0
            await pool._room.invalidate([ref])
        assert await pool._room.limbo.reap()
        assert [state(pool, ref) for ref in refs] == [SlotState.FREE, SlotState.LIMBO, SlotState.FREE]
        assert pool.statistics().limbo[:2] == (1, EXTENT)
        await trio.sleep(5)
        assert await pool._room.limbo.reap()
        assert state(pool, refs[1]) is SlotState.FREE
        assert pool.statistics().limbo[:2] == (0, 0)


async def test_who_pins_during_the_grace_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A member elsewhere may begin to read before it learns that there is nothing to read."""
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 1.0) as pool:
        ref = await pool.reserve(EXTENT)
        pinned = False
        await pool._room.invalidate([ref], lambda: pinned)
        pinned = True
        await trio.sleep(2)
        assert not await pool._room.limbo.reap()
        assert state(pool, ref) is SlotState.LIMBO
        assert bench.devices[0].operations[Operation.DISCARD] == 0
        pinned = False
        assert await pool._room.limbo.reap()
        assert state(pool, ref) is SlotState.FREE


async def test_a_slot_that_comes_back_ends_the_wait(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 10.0) as pool:
        refs = [await pool.reserve(EXTENT) for _ in range(11)]
        await put(pool, b"x", EXTENT)
        began = trio.current_time()

        async def give_back() -> None:
            await trio.sleep(1)
            pool.give_back(refs[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_back)
            ref = await pool.reserve(EXTENT)
        assert ref == refs[0]
        assert trio.current_time() == began + 1
        assert pool.statistics().limbo[2:] == (1, 1.0)


async def test_waits_that_are_given_up_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 10.0) as pool:
        for number in range(12):
            await put(pool, b"%d" % number, EXTENT)
        with trio.move_on_after(4):
            await pool.reserve(EXTENT)
        assert pool.statistics().limbo[2:] == (1, 4.0)


async def test_a_region_is_given_over_when_the_last_of_its_slots_has_rested(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """They are freed one after the other."""
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 10.0) as pool:
        for number in range(12):
            await put(pool, b"%02d" % number, EXTENT)
        bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(0.5, 0.5))
        pool.give_back(await pool.reserve(SMALL))
        statistics = pool.statistics()
        assert (statistics.room.repurposed, statistics.pool.evicted) == (1, 3)


async def test_limbo_is_bounded_and_who_is_over_the_bound_waits(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 1.0) as pool:
        pool._room.on_reserve = lambda _: None  # nothing is made ahead
        number = 0
        while pool.statistics().space.unused_regions or pool._space.slots(SlotClass.KIB64, SlotState.FREE):
            await put(pool, b"%d" % number, DATA)
            number += 1
        most, done = 0, 0

        async def reserve() -> None:
            nonlocal most, done
            await pool.reserve(SMALL)
            most = max(most, pool.statistics().limbo.slots)
            done += 1

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(reserve)
        assert done == 200
        assert most < number // 8, "one has just left"
        assert trio.current_time() - began == -(-200 // (number // 8)) * 1.0
        assert pool.statistics().pool.evicted == 200
