"""The prefetcher over a real DRAM tier: what is fetched, what it may take, what becomes of it, and that it harms nobody."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing

from blockdev.errors import DeviceError
from blockdev.types import PAGE, Descriptor, ExtentRef, SlotRef, Xxh3
from kvfs.arena import Arena
from kvfs.frames import FrameCache, open_frames
from kvfs.prefetch.planner import Source
from kvfs.prefetcher import PATIENCE, UNUSED_SHARE, Mode, Prefetcher
from tests.conftest import ExpectLog
from tests.kvfs.test_frames import Source as Extents
from tests.kvfs.test_frames import an_object, slot

READ = 0.01
"""Seconds that a load takes."""


def objects(count: int, extents: int = 1, first: int = 1) -> list[Descriptor]:
    """Objects that their record describes whole."""
    bare = [an_object(number) for number in range(first, first + count)]
    return [
        replace(
            one,
            size=extents * PAGE,
            extents=tuple(ExtentRef(*slot(one, index), Xxh3(0)) for index in range(extents)),
        )
        for one in bare
    ]


@dataclass
class Bench:
    frames: FrameCache
    extents: Extents
    prefetcher: Prefetcher

    def want(self, *records: Descriptor, source: Source = Source.CHAIN) -> None:
        for record in records:
            self.prefetcher.want(record.object_id, [record], source, 0.9)

    async def get(self, record: Descriptor) -> None:
        self.frames.unpin(await self.frames.get(record, 0, record.extents[0].ref))

    def has(self, record: Descriptor) -> bool:
        return all(self.frames.holds(extent.ref) for extent in record.extents)

    def bytes_of(self, what: str, source: str = "chain") -> int:
        return int(getattr(self.prefetcher.statistics(), f"{what}_by_source")[source])


@asynccontextmanager
async def bench(frames: int = 64, mode: Mode = Mode.ON) -> AsyncIterator[Bench]:
    extents = Extents(READ)
    arena = Arena(frames * PAGE, PAGE, huge_pages=False)
    async with open_frames(arena, extents, patience=1.0) as cache, trio.open_nursery() as nursery:
        prefetcher = Prefetcher(cache, mode, trio.current_time)
        nursery.start_soon(prefetcher.run)
        yield Bench(cache, extents, prefetcher)
        nursery.cancel_scope.cancel()


async def test_what_is_wanted_comes_before_it_is_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    async with bench() as b:
        wanted = objects(8, extents=2)
        b.want(*wanted)
        await trio.sleep(1)
        assert all(map(b.has, wanted))
        before = sum(b.extents.reads.values())
        for record in wanted:
            await b.get(record)
        assert sum(b.extents.reads.values()) == before == 16
        assert b.bytes_of("fetched") == 16 * PAGE
        assert b.bytes_of("used") == 8 * PAGE
        assert b.bytes_of("late") == 0
        shown = b.prefetcher.statistics()
        assert (shown.missed, shown.coverage, shown.unused) == (0, 1.0, 8)


async def test_in_the_order_in_which_it_will_be_wanted(autojump_clock: trio.testing.MockClock) -> None:
    async with bench() as b:
        wanted = objects(12)
        b.want(*wanted)
        await trio.sleep(1)
        at = {number: position for position, (number, _) in enumerate(b.extents.reads)}
        assert all(
            abs(at[record.object_id] - n) < 8 for n, record in enumerate(wanted)
        )  # several begin at once
        assert at[wanted[0].object_id] == 0


async def test_what_is_asked_for_meanwhile_is_read_once_and_was_late(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with bench() as b:
        [record] = objects(1)
        b.want(record)
        await trio.testing.wait_all_tasks_blocked()
        await b.get(record)
        assert sum(b.extents.reads.values()) == 1
        assert b.bytes_of("used") == b.bytes_of("late") == PAGE


async def test_demand_does_not_queue_behind_what_is_expected(autojump_clock: trio.testing.MockClock) -> None:
    async with bench() as b:
        b.want(*objects(10))
        [record] = objects(1, first=50)
        await b.get(record)
        at = [number for number, _ in b.extents.reads].index(record.object_id)
        assert at <= 1
        shown = b.prefetcher.statistics()
        assert shown.missed == PAGE


async def test_no_more_is_kept_unused_than_its_share(autojump_clock: trio.testing.MockClock) -> None:
    async with bench(frames=40) as b:
        wanted = objects(30)
        b.want(*wanted)
        await trio.sleep(1)
        there = [record for record in wanted if b.has(record)]
        assert there == wanted[: 40 // UNUSED_SHARE]
        for record in there:
            await b.get(record)
        await trio.sleep(1)
        assert [record for record in wanted if b.has(record)] == wanted[: 2 * 40 // UNUSED_SHARE]


async def test_frames_in_use_stay(autojump_clock: trio.testing.MockClock) -> None:
    async with bench(frames=16) as b:
        mine = objects(15, first=50)
        pinned = [await b.frames.get(record, 0, record.extents[0].ref) for record in mine]
        b.want(*objects(8))
        await trio.sleep(1)
        assert all(map(b.has, mine))
        assert b.bytes_of("fetched") == 0
        for frame in pinned:
            b.frames.unpin(frame)


async def test_demand_lets_go_what_is_cold_before_what_is_expected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with bench(frames=16) as b:
        expected = objects(3)
        b.want(*expected)
        await trio.sleep(1)
        for record in objects(40, first=50):
            await b.get(record)
        assert all(map(b.has, expected))
        assert b.bytes_of("wasted") == 0


async def test_what_nobody_asks_for_is_wasted_in_the_end(autojump_clock: trio.testing.MockClock) -> None:
    async with bench(frames=16) as b:
        expected = objects(3)
        b.want(*expected)
        await trio.sleep(2 * PATIENCE + 1)
        assert b.bytes_of("wasted") == 3 * PAGE
        assert b.prefetcher.statistics().unused == 0
        for record in objects(16, first=50):
            await b.get(record)
        assert not any(map(b.has, expected))


async def test_what_leaves_the_pool_is_wasted(autojump_clock: trio.testing.MockClock) -> None:
    async with bench() as b:
        [record] = objects(1)
        b.want(record)
        await trio.sleep(1)
        b.frames.forget([record.extents[0].ref])
        assert b.bytes_of("wasted") == PAGE


async def test_what_a_reader_left_is_not_fetched(autojump_clock: trio.testing.MockClock) -> None:
    async with bench() as b:
        wanted = objects(20)
        b.want(*wanted)
        await trio.testing.wait_all_tasks_blocked()
        b.prefetcher.cancel([record.object_id for record in wanted])
        await trio.sleep(1)
        fetched = sum(map(b.has, wanted))
        assert 1 <= fetched <= 2
        assert b.bytes_of("cancelled") == (20 - fetched) * PAGE
        assert b.prefetcher.statistics().expected == 0


async def test_who_diverges_costs_what_was_under_way_and_one_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Wherever in a list of what is wanted that is."""
    async with bench(frames=400) as b:
        for number, read in enumerate((1, 5, 20)):
            wanted = objects(60, first=1 + 100 * number)
            b.want(*wanted)
            for record in wanted[:read]:
                await b.get(record)
            begun, flying = b.bytes_of("fetched"), b.frames.statistics().loading
            b.prefetcher.cancel([record.object_id for record in wanted])
            await trio.sleep(1)
            assert b.bytes_of("fetched") == begun
            assert sum(map(b.has, wanted)) <= begun // PAGE + read
            assert flying <= b.prefetcher.statistics().window + 1


@pytest.mark.parametrize("jump", [-1e9, -5.0, 1e9])
async def test_a_clock_that_jumps_loses_nothing(jump: float, autojump_clock: trio.testing.MockClock) -> None:
    """What is wanted afterwards is fetched; what was wanted before may be given up."""
    now = [2e9]
    extents = Extents(READ)
    async with (
        open_frames(Arena(64 * PAGE, PAGE, huge_pages=False), extents, patience=1.0) as cache,
        trio.open_nursery() as nursery,
    ):
        prefetcher = Prefetcher(cache, Mode.ON, lambda: now[0])
        nursery.start_soon(prefetcher.run)
        b = Bench(cache, extents, prefetcher)
        before, after = objects(6), objects(6, first=100)
        b.want(*before)
        await trio.testing.wait_all_tasks_blocked()
        now[0] += jump
        b.want(*after)
        for _ in range(200):
            now[0] += 0.01
            await trio.sleep(0.01)
        assert all(map(b.has, after))
        assert prefetcher.statistics().expected == 0
        assert not prefetcher.failed
        nursery.cancel_scope.cancel()


async def test_nothing_is_expected_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    async with bench(frames=8) as b:
        b.want(*objects(10))
        await trio.sleep(PATIENCE + 1)
        assert b.prefetcher.statistics().expected == 0
        assert b.bytes_of("cancelled") == 8 * PAGE


async def test_a_source_that_is_wrong_is_not_listened_to_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with bench() as b:
        for first in range(1, 60, 10):
            b.want(*objects(10, first=first))
            await trio.sleep(2 * PATIENCE + 1)
        before = b.bytes_of("fetched")
        b.want(*objects(1, first=100))
        await trio.sleep(1)
        assert b.bytes_of("fetched") == before
        b.want(*objects(1, first=100), source=Source.ARRIVED)
        await trio.sleep(1)
        assert b.bytes_of("fetched", "arrived") == PAGE
        await trio.sleep(900)
        b.want(*objects(1, first=200))
        await trio.sleep(1)
        assert b.bytes_of("fetched") == before + PAGE


async def test_what_cannot_be_read_is_a_failure_of_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async with bench() as b:
        b.extents.failures.append(DeviceError("disk", errno.EIO, "broken"))
        first, second = objects(2)
        b.want(first, second)
        await trio.sleep(1)
        assert b.bytes_of("failed") == PAGE
        assert b.has(second)
        await b.get(first)


async def test_a_bug_ends_prediction_and_nothing_else(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, expect_log: ExpectLog
) -> None:
    expect_log("nothing is fetched ahead any more", count=1)
    async with bench() as b:
        first, second = objects(2)

        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(b.prefetcher._planner, "start", broken)
        b.want(first)
        await trio.sleep(1)
        assert b.prefetcher.failed
        b.want(second)
        await b.get(second)
        assert not b.has(first)
        assert b.prefetcher.statistics().mode == "failed"


@pytest.mark.parametrize("call", ["want", "missed", "used", "wasted"])
async def test_a_bug_on_the_way_of_a_request_is_not_its_own(
    call: str,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    expect_log: ExpectLog,
) -> None:
    expect_log("nothing is fetched ahead any more", count=1)
    async with bench() as b:
        monkeypatch.setattr(b.prefetcher, "_ledger", None)
        ref = SlotRef(*objects(1)[0].extents[0].ref)
        if call == "want":
            b.want(*objects(1))
        elif call == "missed":
            await b.get(objects(1)[0])
        elif call == "used":
            b.prefetcher.used(ref, late=False)
        else:
            b.prefetcher.wasted(ref)
        assert b.prefetcher.failed


async def test_observing_fetches_nothing_and_tells_what_would_have_been_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with bench(frames=16, mode=Mode.OBSERVE) as b:
        wanted = objects(3)
        b.want(*wanted)
        await trio.sleep(1)
        assert not b.extents.reads
        await b.get(wanted[0])
        await trio.sleep(2 * PATIENCE + 1)
        assert b.bytes_of("used") == PAGE
        assert b.bytes_of("wasted") == 2 * PAGE
        assert b.prefetcher.statistics().coverage == 1.0


async def test_switched_off_it_does_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with bench(mode=Mode.OFF) as b:
        b.want(*objects(3))
        await b.get(objects(1, first=50)[0])
        await trio.sleep(1)
        assert len(b.extents.reads) == 1
        assert b.prefetcher.statistics().missed == 0


async def test_loads_on_demand_are_told_apart_by_what_is_fetched_beside_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with bench() as b:
        ahead, alone, beside, failing = objects(4)
        await b.get(alone)
        b.extents.delay = 3 * READ
        b.want(ahead)
        await trio.testing.wait_all_tasks_blocked()
        await b.get(beside)
        await b.get(ahead)  # a load that was not begun on demand
        b.extents.failures = [DeviceError("fake", errno.EIO, "broken")]
        with pytest.raises(DeviceError):
            await b.get(failing)
        shown = b.prefetcher.statistics()
        assert (sum(shown.demand_alone.counts), sum(shown.demand_beside.counts)) == (1, 1)
        assert shown.interference == pytest.approx(3.0)


async def test_what_is_fetched_only_later_is_not_to_blame(autojump_clock: trio.testing.MockClock) -> None:
    async with bench() as b, trio.open_nursery() as nursery:
        ahead, wanted = objects(2)
        nursery.start_soon(b.get, wanted)
        await trio.testing.wait_all_tasks_blocked()
        b.want(ahead)
        await trio.sleep(1)
        shown = b.prefetcher.statistics()
        assert (sum(shown.demand_alone.counts), sum(shown.demand_beside.counts)) == (1, 0)
