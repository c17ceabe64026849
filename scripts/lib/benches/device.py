"""The Cache API against the system's own calls: the same bytes, in and out of page-aligned memory, by the same number of
threads, in turns; and what each layer below it takes.

The baseline is preadv and pwritev with O_DIRECT on a file of the same disk; it checks nothing. Every byte of that file, and of the
pool's, was written before. kvfs computes and compares a checksum of every byte, and knows names, versions and room.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from xxhash import xxh3_64_intdigest

from blockdev.errors import DeviceError
from blockdev.file_device import open_file_device
from kvfs import Namespace, sync
from rdma.host_memory import host_memory
from rdma.stream import DeviceSource, Span, Want, open_stream
from scripts.lib.mounts import Kvfs
from scripts.lib.sides import BLOCK, MIB, RawFile, random_memory

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

THREADS = 16
"""Of the baseline, and of who puts; `get_many_into` is one call."""
MEMORY = 64 * MIB
LOOKUPS = 1000
FLOORS = {"get_many_into": 0.9, "put": 0.8}
LOOKUP_CEILING = 5.0
"""Milliseconds."""
NAMESPACE = Namespace("bench")


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    blocks, rounds = (48, 3) if options.quick else (128, 7)
    folder = Path(tempfile.mkdtemp(prefix="kvfs-bench-", dir=options.folder))
    try:
        with ExitStack() as stack:
            RawFile(folder / "raw", random_memory(BLOCK), blocks).close()
            raw = os.open(folder / "raw", os.O_RDWR | os.O_DIRECT)
            stack.callback(os.close, raw)
            kvfs = Kvfs(folder)
            kvfs.create("bench", folder / "device", blocks * BLOCK * 2 + 1024 * MIB, written=True)
            cache = stack.enter_context(
                sync.open_cache(
                    "bench", namespace=NAMESPACE, memory=MEMORY, state=kvfs.pool_folder("bench").parent
                )
            )
            bench = _Bench(rows, cache, raw, blocks)
            for number in range(rounds):
                bench.round(kvfs_first=number % 2 == 0)
                trio.run(_device, rows, folder / "raw", bench.memory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Bench:
    """:ivar memory: where all blocks land"""

    def __init__(self, rows: Rows, cache: sync.BlockingCache, raw: int, blocks: int) -> None:
        self._rows = rows
        self._cache = cache
        self._raw = raw
        self._keys = [b"block %d" % number for number in range(blocks)]
        self._payload = memoryview(random_memory(BLOCK))
        self._digest = xxh3_64_intdigest(self._payload)
        self.memory = host_memory(blocks * BLOCK)
        self._parts = [self.memory[at : at + BLOCK] for at in range(0, len(self.memory), BLOCK)]
        for number in range(LOOKUPS):
            cache.put(b"small %d" % number, b"kv")

    def round(self, *, kvfs_first: bool) -> None:
        """Every measurement once."""
        self._compare("put", self._put, self._write, kvfs_first=kvfs_first)
        self._compare("get_many_into", self._get, self._read, kvfs_first=kvfs_first)
        begun = time.perf_counter()
        found = self._cache.lookup([b"small %d" % number for number in range(LOOKUPS)])
        self._rows.add(
            f"lookup of {LOOKUPS} keys", "ms", (time.perf_counter() - begun) * 1e3, ceiling=LOOKUP_CEILING
        )
        if None in found:
            raise OSError("a key is missing")
        for key in self._keys:  # the next round stores anew, as engines do
            self._cache.remove(key)

    def _compare(
        self, name: str, ours: Callable[[], float], plain: Callable[[], float], *, kvfs_first: bool
    ) -> None:
        rates = {}
        for side, measure in [("kvfs", ours), ("plain", plain)][:: 1 if kvfs_first else -1]:
            with _processor(self._rows, f"{name}: processor time, {side}", len(self.memory)):
                rates[side] = measure()
        self._rows.add(f"{name}: kvfs", "GB/s", rates["kvfs"] / 1e9)
        self._rows.add(f"{name}: {'pwrite' if name == 'put' else 'preadv'}", "GB/s", rates["plain"] / 1e9)
        self._rows.add(
            f"{name}, {THREADS} threads", "ratio", rates["kvfs"] / rates["plain"], floor=FLOORS[name]
        )

    def _put(self) -> float:
        return self._timed(lambda number: self._cache.put(self._keys[number], self._payload))

    def _write(self) -> float:
        return self._timed(lambda number: _all(os.pwrite(self._raw, self._payload, number * BLOCK)))

    def _read(self) -> float:
        return self._timed(lambda number: _all(os.preadv(self._raw, [self._parts[number]], number * BLOCK)))

    def _timed(self, work: Callable[[int], None]) -> float:
        """Bytes a second of work on each block by all threads."""
        with ThreadPoolExecutor(THREADS) as pool:
            begun = time.perf_counter()
            list(pool.map(work, range(len(self._keys))))
            return len(self.memory) / (time.perf_counter() - begun)

    def _get(self) -> float:
        begun = time.perf_counter()
        outcomes = self._cache.get_many_into(zip(self._keys, self._parts, strict=True))
        seconds = time.perf_counter() - begun
        if any(one.length != BLOCK for one in outcomes) or any(
            xxh3_64_intdigest(part) != self._digest for part in self._parts[::8]
        ):
            raise OSError("wrong bytes")
        return len(self.memory) / seconds


async def _device(rows: Rows, path: Path, memory: memoryview) -> None:
    """The same reads through a device of blockdev and a stream, without a pool: nothing is checked."""
    device = await open_file_device(path, writable=False)
    wants = [
        Want(Span(device, at), memory[at : at + BLOCK])
        for at in range(0, device.size // BLOCK * BLOCK, BLOCK)
    ]
    begun = time.perf_counter()
    async with open_stream(DeviceSource((DeviceError,))) as stream, stream.batch(wants) as batch:
        async for outcome in batch:
            if outcome.error is not None:
                raise outcome.error
    rows.add("a stream over the device", "GB/s", len(wants) * BLOCK / (time.perf_counter() - begun) / 1e9)
    await device.aclose()


def _all(done: int) -> None:
    if done != BLOCK:
        raise OSError("short transfer")


@contextmanager
def _processor(rows: Rows, name: str, size: int) -> Iterator[None]:
    """How much of a processor it takes."""
    before = _seconds()
    yield
    rows.add(name, "ms/GiB", (_seconds() - before) * 1e3 / (size / (1 << 30)))


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
