from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from blockdev.locks import KeyedLocks


async def test_holders_of_one_key_take_turns_in_order(autojump_clock: MockClock) -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    order: list[int] = []

    async def task(number: int) -> None:
        await trio.sleep(number / 10)
        async with locks.hold("a"):
            order.append(number)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(task, number)
    assert order == [0, 1, 2]
    assert trio.current_time() == 3
    assert len(locks) == 0


async def test_holders_of_different_keys_do_not_wait(autojump_clock: MockClock) -> None:
    locks: KeyedLocks[str] = KeyedLocks()

    async def task(key: str) -> None:
        async with locks.hold(key):
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for key in "abc":
            nursery.start_soon(task, key)
    assert trio.current_time() == 1


async def test_what_is_free_is_had_at_once() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    with trio.testing.assert_no_checkpoints():
        async with locks.hold("a", "b"):
            assert len(locks) == 2


async def test_who_is_cancelled_while_it_waits_leaves_nothing(autojump_clock: MockClock) -> None:
    locks: KeyedLocks[str] = KeyedLocks()

    async def wait() -> None:
        with trio.move_on_after(1):
            async with locks.hold("a", "b"):
                raise AssertionError

    async with trio.open_nursery() as nursery, locks.hold("b"):
        nursery.start_soon(wait)
        await trio.sleep(2)
        assert len(locks) == 1
    assert len(locks) == 0


async def test_several_keys_in_any_order_do_not_deadlock(autojump_clock: MockClock) -> None:
    locks: KeyedLocks[str] = KeyedLocks()

    async def task(*keys: str) -> None:
        for _ in range(5):
            async with locks.hold(*keys):
                await trio.sleep(1)

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task, "a", "b")
            nursery.start_soon(task, "b", "a")
            nursery.start_soon(task, "b", "c", "a")
    assert len(locks) == 0


async def test_equal_keys_count_once_and_no_keys_are_nothing() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    async with locks.hold("a", "a"):
        assert len(locks) == 1
    async with locks.hold():
        assert len(locks) == 0


async def test_who_is_cancelled_while_it_waits_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    locks: KeyedLocks[str] = KeyedLocks()

    async def give_up() -> None:
        with trio.move_on_after(1):
            async with locks.hold("a", "b"):
                raise AssertionError("it is held")

    async with locks.hold("b"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up)
        assert len(locks) == 1
        with locks.try_hold("a") as held:
            assert held, "what was held before the wait is free again"
    assert len(locks) == 0


async def test_an_error_in_the_block_lets_go() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    with pytest.raises(ValueError, match="x"):
        async with locks.hold("a", "b"):
            raise ValueError("x")
    assert len(locks) == 0


async def test_trying_does_not_wait(autojump_clock: MockClock) -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    async with locks.hold("a"):
        with locks.try_hold("a") as held:
            assert not held, "not even if the same task holds it"
        with locks.try_hold("b") as held:
            assert held
            with locks.try_hold("b") as again:
                assert not again
    with locks.try_hold("a") as held:
        assert held
    assert len(locks) == 0
    assert trio.current_time() == 0


async def test_who_waits_gets_what_was_tried(autojump_clock: MockClock) -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    got = trio.Event()

    async def wait() -> None:
        async with locks.hold("a"):
            got.set()

    async with trio.open_nursery() as nursery:
        with locks.try_hold("a"):
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not got.is_set()
        with trio.fail_after(1):
            await got.wait()
    assert len(locks) == 0
