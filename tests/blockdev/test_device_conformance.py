"""Every Device keeps the same contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio.testing

from blockdev.device import Device
from blockdev.file_device import FileDevice, open_file_device
from blockdev.testing import Fault, FaultyDevice, MemoryDevice, RandomFaults, check_device
from blockdev.types import MIB
from tests.blockdev.block_devices import GatedDevice, allocated, loop_device

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


async def test_file(tmp_path: Path) -> None:
    path = allocated(tmp_path / "device", SIZE)

    async def make(io_timeout: float) -> FileDevice:
        return GatedDevice(path, io_timeout=io_timeout)

    def stall(device: Device) -> Callable[[], None]:
        assert isinstance(device, GatedDevice)
        device.file.gate.clear()
        return device.file.gate.set

    await check_device(make, stall=stall)


@pytest.mark.loop
@pytest.mark.parametrize("sector", [512, 4096])
async def test_block_device(tmp_path: Path, sector: int) -> None:
    with loop_device(allocated(tmp_path / "backing", SIZE), sector) as path:
        probe = await open_file_device(path)
        assert (probe.size, probe.block_size, probe.is_file) == (SIZE, sector, False)
        await probe.aclose()
        await check_device(lambda io_timeout: open_file_device(path, io_timeout=io_timeout))
