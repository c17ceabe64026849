"""Room that is made before somebody waits for it, and what happens when it is not enough."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from blockdev.errors import NoSpace
from blockdev.pool import Pool
from blockdev.region import SlotState
from blockdev.testing import Fault, Operation
from blockdev.types import KIB, MIB, ROOT, Descriptor, ObjectId, SlotClass
from tests.blockdev.pools import Bench, leaked, made, pattern, put, seen
from tests.conftest import ExpectLog

SIZE = 60 * KIB
DATA = pattern(SIZE)
CLASS = SlotClass.KIB64
WRITERS = 16


def free(pool: Pool) -> int:
    return pool._space.slots(CLASS, SlotState.FREE)


def resting(pool: Pool) -> int:
    return pool._space.resting(CLASS)


async def fill(pool: Pool) -> int:
    """Store until there is no room left; how many files fit."""
    count = 0
    while pool.statistics().space.unused_regions or free(pool):
        await put(pool, b"old %d" % count, DATA)
        count += 1
    return count


async def settled(pool: Pool) -> None:
    """Until what was written is forgotten, and nothing is made ahead any more."""
    await trio.sleep(5)


@dataclass
class Writers:
    """Several who store files as fast as they can."""

    pool: Pool
    waits: list[float] = field(default_factory=list)
    stored: list[int] = field(default_factory=lambda: [0] * WRITERS)

    async def run(self, each: int) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(WRITERS):
                nursery.start_soon(self._write, number, each)

    async def _write(self, number: int, each: int) -> None:
        for turn in range(each):
            began = trio.current_time()
            self.pool.give_back(await self.pool.reserve(SIZE))
            self.waits.append(trio.current_time() - began)
            await put(self.pool, b"new %d %d" % (number, turn), DATA)
            self.stored[number] += 1


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("grace", [0.0, 1.1])
async def test_many_write_to_a_full_pool(
    tmp_path: Path, autojump_clock: MockClock, grace: float, *, flush: bool
) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool(flush=flush, grace=lambda: grace) as pool:
        count = await fill(pool)
        for number in range(count // 10):
            await put(pool, b"more %d" % number, DATA)
        for device in bench.devices:
            device.random_faults = replace(device.random_faults, delay=(0.001, 0.003))
        before = pool.statistics()
        began = trio.current_time()
        writers = Writers(pool)
        await writers.run(each=40)
        took = trio.current_time() - began
        now = pool.statistics()

        assert writers.stored == [40] * WRITERS
        assert max(writers.waits) <= 2 * grace + 0.5, "nobody waits for more than the next ones to be free"
        evicted = now.pool.evicted - before.pool.evicted
        assert evicted <= WRITERS * 40 + count // 8 + WRITERS
        if grace:
            assert took > grace
            assert 0 < now.limbo.waited_seconds - before.limbo.waited_seconds < WRITERS * took
            assert now.pool.evicted_ahead > before.pool.evicted_ahead
        else:
            assert now.limbo.waits == 0
        assert now.pool.evicted_ahead > evicted // 3
        assert await seen(pool, b"new 0 39") is not None
        await settled(pool)  # one may just be on its way out
        assert not leaked(pool)


async def test_nobody_is_overtaken_for_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Without anything made ahead: who asks first has the first slot that is free."""
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 1.0) as pool:
        pool._room.on_reserve = lambda _: None
        await fill(pool)
        await trio.sleep(2)
        order: list[int] = []

        async def reserve(number: int) -> None:
            await pool.reserve(SIZE)
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(reserve, number)
                await trio.testing.wait_all_tasks_blocked()
        assert order == list(range(40))


async def test_room_is_made_while_others_write_and_not_after(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        count = await fill(pool)
        await settled(pool)
        base = pool.statistics().pool
        for number in range(50):
            await put(pool, b"new %d" % number, DATA)
            await trio.sleep(0.02)
        assert free(pool) > 0
        assert pool.statistics().limbo.waits == 0
        await settled(pool)
        kept, now = free(pool), pool.statistics().pool
        assert 0 < kept <= count // 8
        assert now.evicted_ahead > 40
        assert now.evicted - base.evicted <= 50 + kept
        await trio.sleep(100)
        assert (free(pool), pool.statistics().pool.evicted) == (kept, now.evicted)


async def test_stores_find_room_without_freeing_any_themselves(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await fill(pool)
        for number in range(20):
            await put(pool, b"first %d" % number, DATA)
            await trio.sleep(0.02)
        before = pool.statistics().pool
        for number in range(20):
            await put(pool, b"then %d" % number, DATA)
            await trio.sleep(0.02)
        now = pool.statistics().pool
        assert now.evicted - before.evicted == now.evicted_ahead - before.evicted_ahead


async def test_a_little_more_is_let_go_at_a_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Not one for each that is stored."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await fill(pool)
        evicted: list[int] = []
        for number in range(200):
            await put(pool, b"new %d" % number, DATA)
            await trio.sleep(0.02)
            evicted.append(pool.statistics().pool.evicted)
        steps = [b - a for a, b in pairwise(evicted[50:]) if b > a]
        assert max(steps) >= 3
        assert len(steps) < 75


async def test_nothing_is_let_go_while_there_are_unused_regions(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path, regions=6)
    async with bench.pool() as pool:
        number = 0
        while pool.statistics().space.unused_regions > 1:
            await put(pool, b"%d" % number, DATA)
            await trio.sleep(0.01)
            number += 1
        await settled(pool)
        assert pool.statistics().pool.evicted == 0


async def test_the_next_region_is_ready_when_the_last_is_full(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path, devices=2, regions=6)
    async with bench.pool() as pool:
        await put(pool, b"first", DATA)
        for device in bench.devices:
            device.random_faults = replace(device.random_faults, delay=(0.05, 0.05))
        for number in range(600):
            began = trio.current_time()
            pool.give_back(await pool.reserve(SIZE))
            assert trio.current_time() == began, "formatting takes some time"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(put, pool, b"%d" % number, DATA)
                nursery.start_soon(trio.sleep, 0.1)
        room = pool.statistics().room
        assert room.formatted_ahead >= 3
        assert room.formatted == room.formatted_ahead + 2


async def test_a_region_is_not_formatted_for_a_file_now_and_then(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(100):
            await put(pool, b"%d" % number, DATA)
            await trio.sleep(1)
        assert pool.statistics().room.formatted == 1


async def test_what_is_read_is_not_held_up_by_formatting(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The device answers one request after the other; formatting rests while somebody reads."""
    bench = await made(tmp_path, regions=8)
    async with bench.pool() as pool:
        record = await put(pool, b"first", DATA)
        took: list[float] = []
        async with trio.open_nursery() as nursery:
            bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(0.05, 0.05))
            nursery.start_soon(pool._room.regions.format_ahead, CLASS, record.address.device)
            while len(took) < 20:
                began = trio.current_time()
                with pool.media.pace.demand():
                    await trio.sleep(0.01)
                took.append(trio.current_time() - began)
            assert pool.statistics().room.formatted == 1, "it has not taken its rests yet"
        assert pool.statistics().room.formatted == 2
        assert trio.current_time() >= 0.5


async def test_formatting_does_not_rest_while_somebody_waits_for_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    took: list[float] = []
    for reading in (False, True):
        bench = await made(tmp_path / str(reading))
        async with bench.pool() as pool:
            bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(0.05, 0.05))
            began = trio.current_time()
            with pool.media.pace.demand() if reading else nullcontext():
                await pool.reserve(SIZE)
            took.append(trio.current_time() - began)
    assert took[0] == pytest.approx(took[1])


async def test_small_files_have_room_in_a_pool_full_of_what_may_not_go(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path, regions=16)
    async with bench.pool() as pool:
        pinned: list[Descriptor] = []
        for number in range(15 * 3):
            pinned.append(await put(pool, b"%d" % number, bytes(2 * MIB)))
            pool.pin(pinned[-1])
            await trio.sleep(0.05)
        await settled(pool)
        with pytest.raises(NoSpace):
            await put(pool, b"large", bytes(2 * MIB))
        await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        await put(pool, b"small", 10)
        for record in pinned:
            pool.unpin(record)


async def test_a_small_pool_keeps_nothing_free(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(24):
            await put(pool, b"%d" % number, 2 * MIB)
            await trio.sleep(0.1)
        await settled(pool)
        now = pool.statistics()
        assert (now.pool.evicted, now.pool.evicted_ahead, now.space.free) == (12, 0, 0)


async def test_when_nothing_may_go_it_is_tried_now_and_then(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await fill(pool)
        records = list(pool.children(ROOT))
        for record in records:
            pool.pin(record)
        asked = 0
        evict = pool._room.evict

        async def count(object_id: ObjectId, *, ahead: bool = False) -> bool:
            nonlocal asked
            asked += object_id == records[0].object_id
            return await evict(object_id, ahead=ahead)

        pool._room.evict = count
        await settled(pool)
        assert 1 <= asked <= 3
        assert pool.statistics().pool.evicted == 0
        for record in records:
            pool.unpin(record)
        await put(pool, b"new", DATA)
        await settled(pool)
        assert pool.statistics().pool.evicted_ahead > 0


async def test_a_device_that_fails_ends_neither_the_pool_nor_the_task(
    tmp_path: Path, autojump_clock: MockClock, expect_log: ExpectLog
) -> None:
    expect_log("could not be freed", count=3)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await fill(pool)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, count=3)
        await settled(pool)
        assert pool.statistics().room.failed == 3
        assert pool.statistics().pool.evicted_ahead > 3


async def test_an_error_on_the_way_is_left_to_who_needs_the_room(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await fill(pool)
        evict, failures = pool._room.evict, 2

        async def fail(object_id: ObjectId, *, ahead: bool = False) -> bool:
            nonlocal failures
            if failures:
                failures -= 1
                raise OSError(errno.ENOSPC, "the catalogue's disk is full")
            return await evict(object_id, ahead=ahead)

        pool._room.evict = fail
        await trio.sleep(0.5)
        assert (failures, pool.statistics().pool.evicted) == (1, 0), "it is not tried again at once"
        with pytest.raises(OSError, match="disk is full"):
            await put(pool, b"new", DATA)
        await put(pool, b"new", DATA)
        await settled(pool)
        assert pool.statistics().pool.evicted_ahead > 0


async def test_a_pool_that_is_read_only_lets_nothing_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench: Bench = await made(tmp_path)
    async with bench.pool() as pool:
        await fill(pool)
    async with bench.pool(readonly=True) as pool:
        await settled(pool)
        assert pool.statistics().pool.evicted == 0
