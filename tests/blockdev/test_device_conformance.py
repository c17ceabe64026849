"""Every Device keeps the same contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from blockdev.device import Begun, Device, check_span, check_transfer
from blockdev.file_device import FileDevice, open_file_device
from blockdev.memory import page_buffer
from blockdev.testing import DistantDevice, Fault, FaultyDevice, MemoryDevice, RandomFaults, check_device
from blockdev.types import MIB, PAGE
from tests.blockdev.block_devices import GatedDevice, GatedWrites, allocated, loop_device

SIZE = 2 * MIB


@pytest.mark.parametrize("block_size", [512, 4096])
async def test_memory(block_size: int) -> None:
    async def make(io_timeout: float) -> MemoryDevice:
        return MemoryDevice(SIZE, block_size=block_size)

    await check_device(make)


@pytest.mark.parametrize("delay", [(0.0, 0.0), (0.0, 0.05)])
async def test_faulty(delay: tuple[float, float], autojump_clock: trio.testing.MockClock) -> None:
    async def make(io_timeout: float) -> FaultyDevice:
        device = FaultyDevice(SIZE, Random(1), io_timeout=io_timeout)
        device.random_faults = RandomFaults(delay=delay)
        return device

    def stall(device: Device) -> Callable[[], None]:
        assert isinstance(device, FaultyDevice)
        device.inject(Fault(delay=math.inf))
        return device.release

    await check_device(make, stall=stall)


async def test_distant(autojump_clock: trio.testing.MockClock) -> None:
    faulty: dict[Device, FaultyDevice] = {}

    async def make(io_timeout: float) -> DistantDevice:
        behind = FaultyDevice(SIZE, Random(1), io_timeout=io_timeout)
        device = DistantDevice(behind, latency=0.01, rate=1e9)
        faulty[device] = behind
        return device

    def stall(device: Device) -> Callable[[], None]:
        faulty[device].inject(Fault(delay=math.inf))
        return faulty[device].release

    await check_device(make, stall=stall)


async def test_what_is_distant_shares_a_link(autojump_clock: trio.testing.MockClock) -> None:
    device = DistantDevice(MemoryDevice(SIZE), latency=1.0, rate=MIB)
    ended: list[float] = []

    async def read(offset: int, length: int) -> None:
        await device.read_into(offset, page_buffer(length))
        ended.append(trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, 0, MIB)
        nursery.start_soon(read, MIB, MIB)
    await read(0, MIB // 2)
    assert ended == pytest.approx([2.0, 3.0, 4.5])


@pytest.mark.parametrize("begins", [False, True])
async def test_file(tmp_path: Path, begins: bool) -> None:
    path = allocated(tmp_path / "device", SIZE)

    async def make(io_timeout: float) -> FileDevice:
        return GatedDevice(path, io_timeout=io_timeout, begun=GatedWrites(4) if begins else None)

    def stall(device: Device) -> Callable[[], None]:
        assert isinstance(device, GatedDevice)
        device.hold()
        return device.let_go

    await check_device(make, stall=stall)


class Careless(MemoryDevice):
    """Does without the checks."""

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._media.write(offset, bytes(buffer))


class Borrower(MemoryDevice):
    """Keeps the caller's buffer."""

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=False)
        await self._begin()
        self._media.write(offset, buffer)


class Sloppy(MemoryDevice):
    """Discards more than it was told to."""

    async def discard(self, offset: int, length: int) -> None:
        check_span(self, offset, length)
        await self._begin()
        self._media.zero(offset, length and length + PAGE)


class Undead(MemoryDevice):
    """Works after it was closed."""

    async def _begin(self) -> None:
        await trio.lowlevel.checkpoint()


class Reckless(MemoryDevice):
    """Begins to write whatever it is told to."""

    def begin_write(self, offset: int, buffer: memoryview) -> Begun:
        self._check_usable()
        return Begun(lambda: None, partial(self._land, offset, buffer))


class Stubborn(MemoryDevice):
    """Begins to write also when it was given up."""

    def begin_write(self, offset: int, buffer: memoryview) -> Begun:
        lost, self._lost = self._lost, False
        begun = super().begin_write(offset, buffer)
        self._lost = lost
        return begun._replace(land=trio.lowlevel.checkpoint) if lost else begun


class Faint(MemoryDevice):
    """Leaves what was begun when its caller is cancelled."""

    async def _land(self, offset: int, buffer: memoryview) -> None:
        await trio.lowlevel.checkpoint()
        await super()._land(offset, buffer)


class Deserter(MemoryDevice):
    """Leaves a transfer running when its caller is cancelled."""

    stalled: trio.Event | None = None

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        if self.stalled is not None:
            await self.stalled.wait()
        await super().read_into(offset, buffer)


@pytest.mark.parametrize(
    "kind, complaint",
    [
        (Careless, "write_from with a misaligned offset is a ValueError"),
        (Borrower, "the buffer is the caller's again"),
        (Sloppy, "discard leaves what is behind it"),
        (Undead, "read after close is a DeviceClosed"),
        (Reckless, "begin_write with a misaligned offset is a ValueError"),
        (Stubborn, "begin after the device was given up is a DeviceLost"),
        (Faint, "a write that was begun is not cut short by cancellation"),
        (Deserter, "a read that is running is not cut short by cancellation"),
    ],
)
async def test_the_suite_finds_what_is_wrong(kind: type[MemoryDevice], complaint: str) -> None:
    async def make(io_timeout: float) -> MemoryDevice:
        return kind(SIZE)

    def stall(device: Device) -> Callable[[], None]:
        assert isinstance(device, Deserter)
        device.stalled = trio.Event()
        return device.stalled.set

    with pytest.raises((AssertionError, ExceptionGroup)) as info:
        await check_device(make, stall=stall)
    found: BaseException = info.value
    while isinstance(found, ExceptionGroup):
        (found,) = found.exceptions
    assert str(found).splitlines()[0] == complaint


@pytest.mark.loop
@pytest.mark.parametrize("sector", [512, 4096])
async def test_block_device(tmp_path: Path, sector: int) -> None:
    with loop_device(allocated(tmp_path / "backing", SIZE), sector) as path:
        probe = await open_file_device(path)
        assert (probe.size, probe.block_size, probe.is_file) == (SIZE, sector, False)
        await probe.aclose()
        await check_device(lambda io_timeout: open_file_device(path, io_timeout=io_timeout))
