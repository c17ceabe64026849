"""A trace of requests replayed against what a mount predicts with: its foresight, its prefetcher and its DRAM tier.

The pool and the clock are not real: a load takes as long as on a device far away, and nothing else takes any time. What
engines do is done: look up a request's blocks until one is missing, read those that are there in order with one thread, and
publish the others in order with one thread, some time later. Threads serve one request after the other, so that what one
published before a block need not be of the same context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import trio
import trio.testing

from blockdev.types import (
    PAGE,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    Epoch,
    ExtentRef,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotAddress,
    SlotNo,
    SlotRef,
    Xxh3,
)
from kvfs.frames import Arena, FrameCache, open_frames
from kvfs.fuse.foresight import Foresight
from kvfs.predecessors import Predecessors
from kvfs.prefetcher import Mode, Prefetcher, PrefetchStatistics
from kvfs.request_traces import Asked

LATENCY = 0.012
"""Seconds that a load takes."""
COMPUTES = 0.05
"""Seconds that an engine takes for a block that it has to compute."""
THREADS = 16


class TracePool:
    """Objects of one extent each, in dictionaries; the part of a pool that predicting needs."""

    def __init__(self) -> None:
        self._records: dict[bytes, Descriptor] = {}
        self._after: defaultdict[bytes, list[Descriptor]] = defaultdict(list)

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def publish(self, name: bytes, predecessor: bytes) -> None:
        """A block was stored, now."""
        number = len(self._records)
        now = int(trio.current_time() * 1e9)
        record = Descriptor(
            Kind.HEAD,
            SlotAddress(DeviceNo(0), RegionNo(0), SlotNo(0)),
            Epoch(1),
            Generation(1),
            1,
            object_id=ObjectId(number.to_bytes(16, "big")),
            directory=ROOT,
            name=name,
            size=PAGE,
            btime_ns=now,
            extents=(ExtentRef(DeviceNo(0), RegionNo(0), SlotNo(number), Generation(1), Xxh3(0)),),
            predecessor=predecessor,
        )
        self._records[name] = record
        self._after[predecessor].append(record)

    def lookup(self, directory: DirectoryId, name: bytes) -> Descriptor | None:
        return self._records.get(name)

    def published_after(self, predecessor: bytes, limit: int) -> list[Descriptor]:
        return self._after[predecessor][: -limit - 1 : -1]

    async def read_extent(self, descriptor: Descriptor, index: int, into: memoryview, /) -> int:
        await trio.sleep(LATENCY)
        return PAGE


@dataclass(frozen=True, slots=True)
class Outcome:
    """:ivar loads: blocks that were there and that engines read
    :ivar waited: of these, those that were not in memory and not under way
    """

    loads: int
    waited: int
    prefetch: PrefetchStatistics


def replay(asked: Sequence[Asked], frames: int, mode: Mode = Mode.ON) -> Outcome:
    """Replay a trace.

    :param frames: blocks that memory has room for
    """
    return trio.run(_replay, asked, frames, mode, clock=trio.testing.MockClock(autojump_threshold=0))


async def _replay(asked: Sequence[Asked], frames: int, mode: Mode) -> Outcome:
    pool = TracePool()
    arena = Arena(frames * PAGE, PAGE, huge_pages=False)
    async with open_frames(arena, pool) as cache, trio.open_nursery() as nursery:
        prefetcher = Prefetcher(cache, mode, trio.current_time)
        nursery.start_soon(prefetcher.run)
        engines = Engines(pool, cache, Foresight(pool, prefetcher))
        async with trio.open_nursery() as running:
            for number, request in enumerate(asked):
                await trio.sleep_until(request.time)
                running.start_soon(engines.serve, number, request)
        if prefetcher.failed:
            raise RuntimeError("the prefetcher failed")
        nursery.cancel_scope.cancel()
    return Outcome(engines.loads, engines.waited, prefetcher.statistics())


class Engines:
    """All of them together."""

    def __init__(self, pool: TracePool, frames: FrameCache, foresight: Foresight) -> None:
        self._pool = pool
        self._frames = frames
        self._foresight = foresight
        self._predecessors = Predecessors()
        self._known: set[bytes] = set()
        """Names that the kernel does not ask for any more."""
        self.loads = 0
        self.waited = 0

    async def serve(self, number: int, request: Asked) -> None:
        """One request."""
        names = [b"%x" % (block + (1 << 64)) for block in request.chain]
        thread = number % THREADS
        there = self._look_up(names, thread)
        for name in names[:there]:
            await self._load(name, THREADS + thread)
        await trio.sleep(COMPUTES * (len(names) - there))
        for name in names[there:]:
            if name not in self._pool:
                self._pool.publish(name, self._predecessors.of(thread, name))
                self._predecessors.note(thread, name)

    def _look_up(self, names: list[bytes], thread: int) -> int:
        for position, name in enumerate(names):
            record = self._pool.lookup(ROOT, name)
            if record is None:
                return position
            if name not in self._known and not self._foresight.looked_up(record, thread):
                self._known.add(name)
        return len(names)

    async def _load(self, name: bytes, thread: int) -> None:
        record = self._pool.lookup(ROOT, name)
        assert record is not None
        slot = SlotRef(*record.extents[0][:4])
        self.loads += 1
        self.waited += not self._frames.holds(slot)
        self._foresight.opened(record, thread)
        self._frames.unpin(await self._frames.get(record, 0, slot))
