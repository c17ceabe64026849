from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from blockdev.errors import NoSpace
from blockdev.tasks import background, for_each


async def idle(_item: int) -> None:
    await trio.sleep(100)


async def test_every_item_is_worked_on_so_many_at_once(autojump_clock: MockClock) -> None:
    running = most = 0
    done: list[int] = []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        done.append(item)

    await for_each(range(10), work, at_once=4)
    assert sorted(done) == list(range(10))
    assert most == 4
    assert trio.current_time() == 3


async def test_items_are_taken_as_they_are_worked_on(autojump_clock: MockClock) -> None:
    taken: list[int] = []

    def items():
        for number in range(4):
            taken.append(number)
            yield number

    async def work(item: int) -> None:
        assert len(taken) <= item + 2
        await trio.sleep(1)

    await for_each(items(), work, at_once=2)
    assert taken == [0, 1, 2, 3]


async def test_no_items_are_no_work() -> None:
    async def work(item: int) -> None:
        raise AssertionError

    await for_each([], work, at_once=3)


async def test_the_first_error_stops_the_others_and_is_raised_as_it_is(autojump_clock: MockClock) -> None:
    stopped: list[int] = []

    async def work(item: int) -> None:
        if item == 1:
            await trio.sleep(1)
            raise NoSpace("full")
        try:
            await trio.sleep(100)
        except trio.Cancelled:
            stopped.append(item)
            raise

    with pytest.raises(NoSpace, match="full"):
        await for_each(range(3), work, at_once=3)
    assert sorted(stopped) == [0, 2]
    assert trio.current_time() == 1


async def test_cancellation_goes_through(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as scope:
        await for_each(range(3), idle, at_once=2)
    assert scope.cancelled_caught


async def test_an_error_of_the_items_is_raised_as_it_is(autojump_clock: MockClock) -> None:
    def items():
        yield 1
        raise NoSpace("no more")

    with pytest.raises(NoSpace, match="no more"):
        await for_each(items(), idle, at_once=1)


async def test_the_end_of_the_program_is_not_hidden_by_an_error() -> None:
    async def work(item: int) -> None:
        if item == 0:
            await trio.testing.wait_all_tasks_blocked()
            raise NoSpace("full")
        try:
            await trio.sleep_forever()
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await for_each(range(2), work, at_once=2)


async def test_background_tasks_end_with_the_block(autojump_clock: MockClock) -> None:
    ended = False

    async def task() -> None:
        nonlocal ended
        try:
            await trio.sleep_forever()
        finally:
            ended = True

    async with background() as nursery:
        nursery.start_soon(task)
        await trio.sleep(1)
    assert ended


async def beside(task: Callable[[], Awaitable[None]], block: Callable[[], Awaitable[None]]) -> None:
    async with background() as nursery:
        nursery.start_soon(task)
        await block()


async def fail() -> None:
    await trio.sleep(1)
    raise NoSpace("full")


async def test_an_error_in_the_block_is_raised_as_it_is(autojump_clock: MockClock) -> None:
    with pytest.raises(NoSpace):
        await beside(trio.sleep_forever, fail)


async def test_an_error_in_a_task_ends_the_block_and_is_raised_as_it_is(autojump_clock: MockClock) -> None:
    with pytest.raises(NoSpace):
        await beside(fail, trio.sleep_forever)
    assert trio.current_time() == 1


async def test_groups_in_groups_are_opened(autojump_clock: MockClock) -> None:
    async def task() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            inner.start_soon(fail)

    with pytest.raises(NoSpace):
        await beside(task, trio.sleep_forever)
