"""Background work on a device that serves one request after the other, beside those who wait for data."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from blockdev.pace import Pace

PIECE = 0.02
READ = 0.005


class Disk:
    def __init__(self) -> None:
        self.queue = trio.Lock()
        self.worked = 0.0

    async def serve(self, seconds: float) -> None:
        async with self.queue:
            await trio.sleep(seconds)


async def background(pace: Pace, disk: Disk, seconds: float = PIECE) -> None:
    while True:
        async with pace.turn():
            await disk.serve(seconds)
            disk.worked += seconds


async def read_for(seconds: float, pace: Pace, disk: Disk, think: float = 0.001) -> list[float]:
    """How long each of many reads took, one after the other."""
    took: list[float] = []
    end = trio.current_time() + seconds
    while trio.current_time() < end:
        began = trio.current_time()
        with pace.demand():
            await disk.serve(READ)
        took.append(trio.current_time() - began)
        await trio.sleep(think)
    return took


async def test_a_read_waits_for_one_piece_of_work_at_most(autojump_clock: MockClock) -> None:
    pace, disk = Pace(), Disk()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(background, pace, disk)
        await trio.sleep(1)
        took = await read_for(10, pace, disk)
        nursery.cancel_scope.cancel()
    assert max(took[1:]) <= PIECE + READ + 1e-9
    assert took[0] <= 4 * PIECE + READ + 1e-9, "the first one finds what was under way"
    assert sum(t <= READ + 1e-9 for t in took) > len(took) / 2, "most of them meet nobody"


async def test_work_goes_on_beside_reads_for_a_part_of_the_time(autojump_clock: MockClock) -> None:
    pace, disk = Pace(), Disk()
    async with trio.open_nursery() as nursery:
        with pace.demand():
            pass
        for _ in range(4):
            nursery.start_soon(background, pace, disk)
        await read_for(10, pace, disk)
        nursery.cancel_scope.cancel()
    assert 1 < disk.worked < 2.6


async def test_work_has_the_device_for_itself_when_nobody_reads(autojump_clock: MockClock) -> None:
    pace, disk = Pace(), Disk()
    with trio.move_on_after(10):
        await background(pace, disk)
    assert disk.worked > 9.9
    assert not pace.is_busy


async def test_who_waits_long_is_not_forgotten(autojump_clock: MockClock) -> None:
    pace, disk = Pace(), Disk()
    async with trio.open_nursery() as nursery:
        with pace.demand():
            nursery.start_soon(background, pace, disk)
            await trio.sleep(10)
            assert pace.is_busy
        assert disk.worked < 2.6
        await trio.sleep(1)
        assert not pace.is_busy
        before = disk.worked
        await trio.sleep(10)
        assert disk.worked - before > 9.9
        nursery.cancel_scope.cancel()


async def test_a_piece_that_took_long_is_not_paid_for_with_hours(autojump_clock: MockClock) -> None:
    pace = Pace()
    with pace.demand():
        async with pace.turn():
            await trio.sleep(100)
        assert trio.current_time() <= 101
        await pace.rest(100)
        assert 101 <= trio.current_time() <= 102
    await trio.sleep(1)
    began = trio.current_time()
    await pace.rest(100)
    assert trio.current_time() == began


async def test_work_that_fails_leaves_the_turn_to_others(autojump_clock: MockClock) -> None:
    pace = Pace()
    with pace.demand():
        for _ in range(2):
            try:
                async with pace.turn():
                    raise OSError
            except OSError:
                pass
        async with pace.turn():
            pass
