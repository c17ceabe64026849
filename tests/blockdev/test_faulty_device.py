"""The device that fails: what survives a crash, and that faults come as scripted."""

from __future__ import annotations

import errno
import math
import os
from random import Random
from typing import cast

import pytest
import trio
import trio.testing

from blockdev.errors import DeviceClosed, DeviceError, DeviceLost, DeviceTimeout
from blockdev.memory import page_buffer
from blockdev.testing import Fault, FaultyDevice, Operation, RandomFaults
from blockdev.types import MIB, PAGE

SIZE = 4 * MIB


def pages(count: int, fill: bytes = b"") -> memoryview:
    buffer = page_buffer(count * PAGE)
    buffer[:] = fill * len(buffer) if fill else os.urandom(len(buffer))
    return buffer


async def content(device: FaultyDevice, offset: int = 0, count: int = 1) -> bytes:
    buffer = page_buffer(count * PAGE)
    await device.read_into(offset, buffer)
    return bytes(buffer)


async def outcomes_of_a_power_cut(device: FaultyDevice, count: int = 1) -> set[bytes]:
    return {await content(device.crash("power"), 0, count) for _ in range(20)}


def device(seed: int = 0, cache_size: int = 64 * MIB) -> FaultyDevice:
    return FaultyDevice(SIZE, Random(seed), cache_size=cache_size)


async def test_power_cut_keeps_what_was_flushed() -> None:
    for seed in range(20):
        d = device(seed)
        data = pages(4)
        await d.write_from(0, data)
        await d.flush()
        assert await content(d.crash("power"), 0, 4) == data


async def test_power_cut_keeps_any_part_of_what_was_not_flushed() -> None:
    d = device()
    await d.write_from(0, pages(2, b"o"))
    await d.flush()
    await d.write_from(0, pages(1, b"a"))
    await d.write_from(PAGE, pages(1, b"b"))
    outcomes = set()
    torn = False
    for _ in range(200):
        found = await content(d.crash("power"), 0, 2)
        first, second = found[:PAGE], found[PAGE:]
        for half in first, second:
            sectors = {half[i : i + 512] for i in range(0, PAGE, 512)}
            torn |= len(sectors) > 1
            assert all(len(set(sector)) == 1 for sector in sectors)
        outcomes.add((bytes({first[0]}), bytes({second[0]})))
    assert outcomes == {(a, b) for a in (b"o", b"a") for b in (b"o", b"b")}
    assert torn


async def test_power_cut_tears_at_the_given_unit() -> None:
    d = device()
    await d.write_from(0, pages(8, b"a"))
    for _ in range(100):
        found = await content(d.crash("power", torn=PAGE), 0, 8)
        assert all(len(set(found[i : i + PAGE])) == 1 for i in range(0, len(found), PAGE))


async def test_kill_keeps_what_returned_and_leaves_it_volatile() -> None:
    d = device()
    data = pages(4)
    await d.write_from(0, data)
    heir = d.crash("kill")
    assert await content(heir, 0, 4) == data
    assert len(await outcomes_of_a_power_cut(heir, 4)) > 1


async def test_reopen_keeps_everything() -> None:
    d = device()
    data = pages(1)
    await d.write_from(0, data)
    await d.aclose()
    assert await content(d.reopen()) == data


async def test_a_write_under_way_may_be_torn_by_a_kill(autojump_clock: trio.testing.MockClock) -> None:
    d = device()
    d.inject(Fault(delay=1.0))
    seen = set()

    async def write() -> None:
        with pytest.raises(DeviceLost):
            await d.write_from(0, pages(1, b"n"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(60):
            seen.add(await content(d.crash("kill")))
    assert {b"n" * PAGE, bytes(PAGE)} < seen


async def test_cache_is_bounded() -> None:
    d = device(cache_size=4 * PAGE)
    await d.write_from(0, pages(1, b"a"))
    await d.write_from(PAGE, pages(4, b"b"))
    assert await outcomes_of_a_power_cut(d) == {b"a" * PAGE}


async def test_scripted_errors_hit_what_they_name() -> None:
    d = device()
    d.inject(Fault(errno.EIO), operation=Operation.WRITE, skip=1, count=2)
    d.inject(Fault(errno.ENXIO), span=range(8 * PAGE, 9 * PAGE))
    await d.write_from(0, pages(1))
    await content(d)
    for _ in range(2):
        with pytest.raises(DeviceError) as info:
            await d.write_from(0, pages(1))
        assert info.value.errno == errno.EIO
    await d.write_from(0, pages(1))
    with pytest.raises(DeviceError) as info:
        await content(d, 7 * PAGE, 2)
    assert info.value.errno == errno.ENXIO
    await content(d, 8 * PAGE, 2)
    assert d.operations == {Operation.WRITE: 4, Operation.READ: 3}


async def test_a_failed_write_leaves_some_of_it() -> None:
    seen = set()
    for seed in range(40):
        d = device(seed)
        d.inject(Fault(errno.EIO))
        with pytest.raises(DeviceError):
            await d.write_from(0, pages(2, b"n"))
        seen.add(await content(d, 0, 2))
    assert {bytes(2 * PAGE), b"n" * 2 * PAGE, b"n" * PAGE + bytes(PAGE)} <= seen


async def test_a_failed_flush_promises_nothing() -> None:
    d = device()
    await d.write_from(0, pages(1, b"n"))
    d.inject(Fault(errno.EIO), operation=Operation.FLUSH)
    with pytest.raises(DeviceError):
        await d.flush()
    assert bytes(PAGE) in await outcomes_of_a_power_cut(d)


async def test_flush_covers_only_writes_that_had_returned(autojump_clock: trio.testing.MockClock) -> None:
    d = device()
    d.inject(Fault(delay=2.0), operation=Operation.FLUSH)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(d.flush)
        await trio.testing.wait_all_tasks_blocked()
        await d.write_from(0, pages(1, b"n"))
    assert bytes(PAGE) in await outcomes_of_a_power_cut(d)


async def test_late_read_still_fills_the_buffer(autojump_clock: trio.testing.MockClock) -> None:
    d = device()
    await d.write_from(0, pages(1, b"n"))
    d.inject(Fault(delay=math.inf))
    buffer = page_buffer(PAGE)
    began = trio.current_time()
    with pytest.raises(DeviceTimeout) as info:
        await d.read_into(0, buffer)
    assert trio.current_time() - began == pytest.approx(5.0)
    pending = info.value.pending
    assert pending is not None
    assert not pending.done
    assert bytes(buffer) == bytes(PAGE)
    calls = []
    pending.add_done_callback(lambda: calls.append("before"))
    d.release()
    await trio.testing.wait_all_tasks_blocked()
    # mypy takes a property's value for unchanged
    assert cast("bool", pending.done)
    pending.add_done_callback(lambda: calls.append("after"))
    assert calls == ["before", "after"]
    assert bytes(buffer) == b"n" * PAGE


async def test_late_operations_end_by_themselves(autojump_clock: trio.testing.MockClock) -> None:
    d = device()
    d.inject(Fault(delay=7.0))
    with pytest.raises(DeviceTimeout):
        await d.write_from(0, pages(1, b"n"))
    assert await content(d) == bytes(PAGE)
    await trio.sleep(2.5)
    assert await content(d) == b"n" * PAGE


async def test_too_many_late_operations_lose_the_device(autojump_clock: trio.testing.MockClock) -> None:
    d = device()
    d.late_limit = 2
    d.inject(Fault(delay=math.inf), count=3)
    for _ in range(3):
        with pytest.raises(DeviceTimeout):
            await content(d)
    with pytest.raises(DeviceLost):
        await content(d)


async def test_freeze_stops_everything_until_thaw(autojump_clock: trio.testing.MockClock) -> None:
    d = device()
    d.on_operation = lambda *_: d.freeze()
    done = trio.Event()

    async def write() -> None:
        await d.write_from(0, pages(1, b"n"))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(100)
        assert not done.is_set()
        d.thaw()
        await done.wait()


async def test_freeze_then_crash(autojump_clock: trio.testing.MockClock) -> None:
    d = device()
    d.on_operation = lambda *_: d.freeze()
    frozen = trio.Event()

    async def write() -> None:
        with pytest.raises(DeviceLost):
            await d.write_from(0, pages(1, b"n"))
        frozen.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(1)
        d.crash("kill")
    assert frozen.is_set()


async def test_lost_and_closed() -> None:
    d = device()
    d.lose()
    with pytest.raises(DeviceLost) as lost:
        await content(d)
    assert str(lost.value) == "faulty: the device is lost"
    d = device()
    await d.aclose()
    with pytest.raises(DeviceClosed):
        await d.flush()


async def run_random(seed: int) -> tuple[list[int], bytes]:
    d = FaultyDevice(SIZE, Random(seed))
    d.random_faults = RandomFaults(error_rate=0.2, timeout_rate=0.1, delay=(0.0, 0.1))
    results = []
    for i in range(30):
        try:
            await d.write_from(i * PAGE, pages(1, bytes([i])))
            results.append(0)
        except DeviceTimeout:
            results.append(errno.ETIMEDOUT)
        except DeviceError as error:
            results.append(error.errno)
    return results, await content(d.crash("power"), 0, 30)


async def test_same_seed_same_story(autojump_clock: trio.testing.MockClock) -> None:
    first = await run_random(7)
    assert first == await run_random(7)
    assert {0, errno.EIO, errno.ETIMEDOUT} == set(first[0])
    assert first != await run_random(8)
