"""What every Device does, written once and run over each implementation."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio
import trio.testing

from blockdev.errors import DeviceClosed, DeviceGivenUp, DeviceLost, DeviceTimeout
from blockdev.memory import page_buffer
from blockdev.types import KIB, PAGE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from blockdev.device import Begun, Device
    from blockdev.errors import Pending

    MakeDevice = Callable[[float], Awaitable[Device]]
    Stall = Callable[[Device], Callable[[], None]]

_MINIMUM_SIZE = 1024 * KIB
_SHORT, _LONG = 0.1, 60.0  # seconds


async def check_device(make: MakeDevice, *, stall: Stall | None = None) -> None:
    """Check that a Device keeps the contract; call it inside a trio task.

    :param make: makes a device of 1 MiB or more with the given I/O time-out in seconds; what it holds does not matter
    :param stall: keeps the operations of a device from ending, from now until what it returns is called. Without it
        cancellation of a running operation and the deadline are not checked
    :raises AssertionError: with what is wrong
    """
    for check in (
        _check_properties,
        _check_read_back,
        _check_neighbours,
        _check_ownership,
        _check_concurrency,
        _check_refusals,
        _check_flush_and_discard,
        _check_cancelled_before,
        _check_begun,
        _check_closed,
        _check_given_up,
        _check_begun_when_given_up,
    ):
        device = await make(_LONG)
        await check(device)
        await device.aclose()
    if stall is not None:
        for operation in (_read_one, _write_one, _flush_one, _discard_one):
            await _check_shield(await make(_LONG), stall, operation)
        await _check_deadline(await make(_SHORT), stall)
        await _check_give_up_ends_waiting(await make(_LONG), stall)
        await _check_close_does_not_wait(await make(_SHORT), stall)
        if await _begins(await make(_LONG)):
            await _check_shield(await make(_LONG), stall, _begin_one)
            await _check_begun_deadline(await make(_SHORT), stall)
            await _check_give_up_ends_begun(await make(_LONG), stall)


def _pattern(length: int, seed: int) -> memoryview:
    """Bytes that differ from sector to sector and from seed to seed."""
    buffer = page_buffer(length)
    for sector in range(0, length, 512):
        buffer[sector : sector + 512] = (sector + seed * 0x1000193).to_bytes(8, "little") * 64
    return buffer


@contextmanager
def _soon(what: str) -> Iterator[None]:
    """Around what may be shielded: see that it does not take as long as the deadline of a device with a long one."""
    began = trio.current_time()
    try:
        yield
    finally:
        assert trio.current_time() - began < _LONG / 2, what


async def _content(device: Device, offset: int, length: int) -> bytes:
    buffer = page_buffer(length)
    await device.read_into(offset, buffer)
    return bytes(buffer)


async def _read_one(device: Device) -> None:
    await device.read_into(0, page_buffer(PAGE))


async def _write_one(device: Device) -> None:
    await device.write_from(0, page_buffer(PAGE))


async def _begin_one(device: Device) -> None:
    begun = device.begin_write(0, page_buffer(PAGE))
    if begun is not None:
        begun.start()
        await begun.land()


async def _flush_one(device: Device) -> None:
    await device.flush()


async def _discard_one(device: Device) -> None:
    await device.discard(0, PAGE)


async def _check_properties(device: Device) -> None:
    assert device.name, "a device has a name"
    assert device.size >= _MINIMUM_SIZE, "the suite needs 1 MiB"
    assert device.block_size in (512, 1024, 2048, 4096), "block_size is a power of two, at most 4096"
    assert device.size % device.block_size == 0, "the size is a multiple of the block size"
    assert isinstance(device.is_file, bool), "is_file is a bool"


async def _check_read_back(device: Device) -> None:
    last = device.size - device.block_size
    spans = [(0, PAGE), (60 * KIB, 512 * KIB), (last, device.block_size), (PAGE, device.block_size)]
    for seed, (offset, length) in enumerate(spans):
        data = _pattern(length, seed)
        await device.write_from(offset, data)
        assert await _content(device, offset, length) == data, f"{length} bytes at {offset} read back"
    await device.read_into(0, page_buffer(PAGE)[:0])
    await device.write_from(0, page_buffer(PAGE)[:0])


async def _check_neighbours(device: Device) -> None:
    before = _pattern(3 * PAGE, 1)
    await device.write_from(0, before)
    await device.write_from(PAGE, _pattern(PAGE, 2))
    after = await _content(device, 0, 3 * PAGE)
    assert after[:PAGE] == before[:PAGE], "a write leaves what is before it"
    assert after[2 * PAGE :] == before[2 * PAGE :], "a write leaves what is behind it"
    buffer = _pattern(3 * PAGE, 3)
    await device.read_into(0, buffer[PAGE : 2 * PAGE])
    assert buffer[:PAGE] == _pattern(3 * PAGE, 3)[:PAGE], "a read fills only its buffer"
    assert buffer[2 * PAGE :] == _pattern(3 * PAGE, 3)[2 * PAGE :], "a read fills only its buffer"


async def _check_ownership(device: Device) -> None:
    data = _pattern(64 * KIB, 1)
    await device.write_from(0, data.toreadonly())
    data[:] = bytes(64 * KIB)
    assert await _content(device, 0, 64 * KIB) == _pattern(64 * KIB, 1), "the buffer is the caller's again"


async def _check_concurrency(device: Device) -> None:
    length, count = 32 * KIB, 16

    async def fill(index: int) -> None:
        await device.write_from(index * length, _pattern(length, index))
        assert await _content(device, index * length, length) == _pattern(length, index), "each its own bytes"

    async with trio.open_nursery() as nursery:
        for index in range(count):
            nursery.start_soon(fill, index)
        nursery.start_soon(device.flush)
    for index in range(count):
        assert await _content(device, index * length, length) == _pattern(length, index), "each its own bytes"


async def _check_refusals(device: Device) -> None:
    before = _pattern(2 * PAGE, 1)
    await device.write_from(0, before)
    block, aligned = device.block_size, page_buffer(2 * PAGE)
    last = device.size - block
    misuses: list[tuple[str, int, memoryview]] = [
        ("a misaligned offset", block // 2, aligned[:PAGE]),
        ("a misaligned length", 0, aligned[: block // 2]),
        ("a buffer that is not page aligned", 0, aligned[64 : 64 + block]),
        ("a strided buffer", 0, aligned[::2]),
        ("a negative offset", -block, aligned[:block]),
        ("a span that begins inside and ends outside", last, aligned[: 2 * block]),
        ("a span that is outside", device.size, aligned[:block]),
    ]
    for what, offset, buffer in misuses:
        await _expect_value_error(f"write_from with {what}", device.write_from(offset, buffer))
        await _expect_value_error(f"read_into with {what}", device.read_into(offset, buffer))
        await _expect_value_error(f"begin_write with {what}", _begin_at(device, offset, buffer))
    await _expect_value_error("read_into a read-only buffer", device.read_into(0, aligned.toreadonly()))
    for offset, length in ((block // 2, block), (0, block // 2), (last, 2 * block), (-block, block)):
        await _expect_value_error(f"discard of {length} at {offset}", device.discard(offset, length))
    assert await _content(device, 0, 2 * PAGE) == before, "what is refused has no effect"


async def _begin_at(device: Device, offset: int, buffer: memoryview) -> None:
    device.begin_write(offset, buffer)


async def _expect_value_error(what: str, operation: Awaitable[None]) -> None:
    try:
        await operation
    except ValueError:
        return
    raise AssertionError(f"{what} is a ValueError")


async def _check_flush_and_discard(device: Device) -> None:
    data = _pattern(256 * KIB, 1)
    await device.write_from(0, data)
    await device.flush()
    await device.discard(64 * KIB, 64 * KIB)
    await device.discard(0, 0)
    await device.flush()
    after = await _content(device, 0, 256 * KIB)
    assert after[: 64 * KIB] == data[: 64 * KIB], "discard leaves what is before it"
    assert after[128 * KIB :] == data[128 * KIB :], "discard leaves what is behind it"
    await device.write_from(64 * KIB, _pattern(64 * KIB, 2))
    assert await _content(device, 64 * KIB, 64 * KIB) == _pattern(64 * KIB, 2), (
        "discarded bytes can be written"
    )


async def _check_cancelled_before(device: Device) -> None:
    old, new = _pattern(PAGE, 1), _pattern(PAGE, 2)
    await device.write_from(0, old)
    with trio.CancelScope() as scope:
        scope.cancel()
        await device.write_from(0, new)
    first = await _content(device, 0, PAGE)
    assert first in (old, new), "a write that raises Cancelled is done or has not begun"
    await trio.testing.wait_all_tasks_blocked()
    assert await _content(device, 0, PAGE) == first, "nothing goes on after Cancelled"


async def _begins(device: Device) -> bool:
    """Whether it begins writes at all: some never do, which is no mistake."""
    await _begin_one(device)  # where the system has none, this is how it is found out
    begun = device.begin_write(0, page_buffer(PAGE))
    if begun is not None:
        begun.start()
        await begun.land()
    await device.aclose()
    return begun is not None


async def _check_begun(device: Device) -> None:
    length = 64 * KIB
    buffers = [_pattern(length, index) for index in range(4)]
    begun = [device.begin_write(index * length, buffer) for index, buffer in enumerate(buffers)]
    for index, one in enumerate(begun):
        if one is None:
            await device.write_from(index * length, buffers[index])
        else:
            await trio.to_thread.run_sync(one.start)
    with trio.CancelScope() as scope:
        scope.cancel()
        for one in reversed(begun):
            if one is not None:
                await one.land()
    assert not scope.cancelled_caught, "a write that was begun is not cut short by cancellation"
    for buffer in buffers:
        buffer[:] = bytes(length)
    for index in range(4):
        assert await _content(device, index * length, length) == _pattern(length, index), (
            "what has landed is there, and the buffer is the caller's again"
        )


async def _check_closed(device: Device) -> None:
    await device.aclose()
    await device.aclose()
    for operation in (_read_one, _write_one, _begin_one, _flush_one, _discard_one):
        try:
            await operation(device)
        except DeviceClosed:
            continue
        raise AssertionError(f"{operation.__name__[1:-4]} after close is a DeviceClosed")


async def _check_given_up(device: Device) -> None:
    device.give_up()
    device.give_up()
    for operation in (_read_one, _write_one, _begin_one, _flush_one, _discard_one):
        try:
            await operation(device)
        except DeviceLost:
            continue
        raise AssertionError(f"{operation.__name__[1:-4]} after the device was given up is a DeviceLost")


async def _check_begun_when_given_up(device: Device) -> None:
    begun = device.begin_write(0, page_buffer(PAGE))
    if begun is None:
        return
    begun.start()
    device.give_up()
    with _soon("a write that was begun ends when the device is given up"), suppress(DeviceGivenUp):
        await begun.land()  # it may have ended before


async def _check_give_up_ends_waiting(device: Device, stall: Stall) -> None:
    ended: list[DeviceGivenUp] = []

    async def read() -> None:
        try:
            await _read_one(device)
        except DeviceGivenUp as error:
            ended.append(error)

    release = stall(device)
    try:
        what = "a read that is under way when the device is given up is a DeviceGivenUp"
        with _soon(what):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                device.give_up()
        assert ended, what
        pending = ended[0].pending
        assert pending is not None, "an operation that has begun leaves a `pending`"
        assert not pending.done, "giving up does not end what is in the kernel"
    finally:
        release()
    await device.aclose()


async def _check_shield(device: Device, stall: Stall, operation: Callable[[Device], Awaitable[None]]) -> None:
    what = operation.__name__[1:-4]
    ended = False

    async def run(scope: trio.CancelScope) -> None:
        nonlocal ended
        with scope:
            try:
                await operation(device)
            finally:
                ended = True

    scope = trio.CancelScope()
    release = stall(device)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, scope)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not ended, f"a {what} that is running is not cut short by cancellation"
            release()
    finally:
        release()
    await device.aclose()


async def _check_deadline(device: Device, stall: Stall) -> None:
    data = _pattern(PAGE, 1)
    await device.write_from(0, data)
    buffer = page_buffer(PAGE)
    returned = trio.Event()
    token = trio.lowlevel.current_trio_token()
    release = stall(device)
    try:
        try:
            with trio.fail_after(_LONG):
                await device.read_into(0, buffer)
        except DeviceTimeout as error:
            pending = error.pending
        else:
            raise AssertionError("a read beyond the deadline is a DeviceTimeout")
        assert pending is not None, "an operation that has begun leaves a `pending`"
        assert not pending.done, "`pending` is done only when the buffer is the caller's again"
        pending.add_done_callback(lambda: token.run_sync_soon(returned.set))
    finally:
        release()
    with trio.fail_after(_LONG):
        await returned.wait()
    assert pending.done, "`pending` is done when it says so"
    assert buffer in (data, bytes(PAGE)), "a late read fills the buffer or leaves it"
    assert await _content(device, 0, PAGE) == data, "the device works again"
    await device.aclose()


def _start_one(device: Device, offset: int = 0) -> Begun:
    begun = device.begin_write(offset, page_buffer(PAGE))
    assert begun is not None, "a device that begins writes does so while its queue has room"
    begun.start()
    return begun


async def _land_late(begun: Begun, kind: type[DeviceTimeout]) -> Pending:
    try:
        with _soon(f"a write that was begun and has not ended is a {kind.__name__}"):
            await begun.land()
    except kind as error:
        pending = error.pending
    else:
        raise AssertionError(f"a write that was begun and has not ended is a {kind.__name__}")
    assert pending is not None, "a write that was begun leaves a `pending`"
    assert not pending.done, "the kernel has the buffer until `pending` is done"
    return pending


async def _done(pending: Pending) -> None:
    returned, token = trio.Event(), trio.lowlevel.current_trio_token()
    pending.add_done_callback(lambda: token.run_sync_soon(returned.set))
    with trio.fail_after(_LONG):
        await returned.wait()
    assert pending.done, "`pending` is done when it says so"


async def _check_begun_deadline(device: Device, stall: Stall) -> None:
    release = stall(device)
    try:
        pending = await _land_late(_start_one(device), DeviceTimeout)
    finally:
        release()
    await _done(pending)
    await _write_one(device)
    await device.aclose()


async def _check_give_up_ends_begun(device: Device, stall: Stall) -> None:
    release, pending = stall(device), []
    awaited, later = _start_one(device), _start_one(device, PAGE)

    async def wait() -> None:
        pending.append(await _land_late(awaited, DeviceGivenUp))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            device.give_up()
        stall(device)
        pending.append(await _land_late(later, DeviceGivenUp))
    finally:
        release()
    for one in pending:
        await _done(one)
    await device.aclose()


async def _check_close_does_not_wait(device: Device, stall: Stall) -> None:
    release = stall(device)
    stuck = True
    try:
        try:
            await device.read_into(0, page_buffer(PAGE))
        except DeviceTimeout as error:
            with trio.fail_after(_LONG / 2):
                await device.aclose()
            stuck = error.pending is not None and not error.pending.done
        assert stuck, "close does not wait for what is stuck"
    finally:
        release()
