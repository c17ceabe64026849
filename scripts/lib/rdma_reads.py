"""Reads of a namespace by both paths, in turns: kvfs over RDMA, and O_DIRECT from the kernel's block device of it.

    rdma_reads URI ROUNDS       in a machine of the lab, whose kernel has the namespace connected; see benches/rdma.py

Both read the same bytes into the same memory, `DEPTH` extents at a time. Prints a list of rows, [name, unit, value], as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import trio

from blockdev.nvme import NamespaceName, Timers, parse_namespace
from kvfs.rdma_device import RdmaDevice, rdma_devices
from kvfs.targets import Settings, fabric
from rdma.host_memory import host_memory

DEPTH = 8
MIB = 1 << 20
SIZES = (2, 16)
"""MiB of an extent."""
TOTAL = DEPTH * max(SIZES) * MIB
SETTINGS = Settings(Timers(keep_alive=60), io_timeout=60.0)
"""Emulation is slow."""
Row = tuple[str, str, float]


def busy() -> float:
    """Seconds that the machine's processors have worked since it was started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measured(name: str, work: Callable[[], Awaitable[None]]) -> list[Row]:
    """How fast all of the memory is read, and what that takes of processors."""
    before = time.perf_counter(), own(), busy()
    await work()
    seconds, process, machine = (
        now - then for now, then in zip((time.perf_counter(), own(), busy()), before, strict=True)
    )
    gib = TOTAL / (1 << 30)
    return [
        (name, "MB/s", TOTAL / seconds / 1e6),
        (f"{name}: processor time of the process", "ms/GiB", process * 1e3 / gib),
        (f"{name}: processor time of the machine, target included", "ms/GiB", machine * 1e3 / gib),
    ]


class Reader:
    def __init__(self, device: RdmaDevice, file: int, memory: memoryview) -> None:
        self._device, self._file, self._memory = device, file, memory

    async def over_rdma(self, extent: int) -> None:
        limit = trio.CapacityLimiter(DEPTH)

        async def one(at: int) -> None:
            async with limit:
                await self._device.read_into(at, self._memory[at : at + extent])

        async with trio.open_nursery() as nursery:
            for at in range(0, TOTAL, extent):
                nursery.start_soon(one, at)

    async def by_the_kernel(self, extent: int) -> None:
        def one(at: int) -> None:
            if os.preadv(self._file, [self._memory[at : at + extent]], at) != extent:
                raise OSError("short read")

        def all_of_it() -> None:
            with ThreadPoolExecutor(DEPTH) as pool:
                list(pool.map(one, range(0, TOTAL, extent)))

        await trio.to_thread.run_sync(all_of_it)


async def run(name: NamespaceName, rounds: int) -> list[Row]:
    path = fabric().find(name)
    if not isinstance(path, Path):
        raise path
    memory = host_memory(TOTAL)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    rows: list[Row] = []
    async with rdma_devices(SETTINGS) as devices:
        device = await devices.open(name)
        with devices.keeping([memory]):
            reader = Reader(device, file, memory)
            for number in range(rounds + 1):
                found = await one_round(reader, memory, kernel_first=bool(number % 2))
                rows += found if number else []  # the first one warms up
    os.close(file)
    return rows


async def one_round(reader: Reader, memory: memoryview, *, kernel_first: bool) -> list[Row]:
    rows: list[Row] = []
    for mib in SIZES:
        sides = [("kvfs over RDMA", reader.over_rdma), ("the kernel, O_DIRECT", reader.by_the_kernel)]
        seen = []
        for side, read in sides[:: -1 if kernel_first else 1]:
            memory[:] = bytes(TOTAL)
            rows += await measured(f"reads of {mib} MiB: {side}", partial(read, mib * MIB))
            seen.append((side, rows[-3][2], bytes(memory[::4096])))
        if seen[0][2] != seen[1][2] or not any(seen[0][2]):
            raise OSError("the two paths read different bytes")
        rates = {side: rate for side, rate, _ in seen}
        rows.append((f"reads of {mib} MiB, depth {DEPTH}", "ratio", rates[sides[0][0]] / rates[sides[1][0]]))
    return rows


def main(uri: str, rounds: str) -> None:
    print(json.dumps(trio.run(run, parse_namespace(uri), int(rounds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
