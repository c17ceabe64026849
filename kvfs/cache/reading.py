"""From objects to callers' memory.

The bytes of an extent go from the device into the caller's memory where that can be, and are compared with their
checksum there: where the memory begins on a page, and the extent's part of it is whole pages. Else, and where the DRAM
tier has the extent already, they are copied from a frame of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import trio

from blockdev.errors import BlockError, Raced
from blockdev.publication import extent_length
from blockdev.types import Descriptor, SlotRef
from kvfs.cache.buffers import Buffer, is_direct
from kvfs.cache.folders import Finder
from kvfs.cache.gpu import GpuMemory
from kvfs.cache.keys import Key, Place
from kvfs.errors import BadBuffer, FramesError, NoObject
from rdma.errors import CudaError
from rdma.stream import Priority, Want

if TYPE_CHECKING:
    from blockdev.errors import Pending
    from blockdev.pool import Pool
    from kvfs.cache.straight import Straight
    from kvfs.frames import FrameCache
    from rdma.stream import Batch, Outcome, Stream

Pair = tuple[Key, Buffer]
"""An object, and the memory that it is to land in or to come from."""


@dataclass(frozen=True, slots=True)
class PoolExtent:
    """An extent as `rdma.stream` knows it: equal where the bytes are.

    :ivar direct: it may be read into the caller's memory
    :ivar gpu: that is a GPU's: what has landed there is not copied for others
    :ivar straight: it may go there without being compared: what has landed so is not copied for who did not ask for it
    """

    slot: SlotRef
    direct: bool
    gpu: bool
    straight: bool
    record: Descriptor = field(compare=False)
    index: int = field(compare=False)


class PoolSource:
    """A pool and its DRAM tier as a source of `rdma.stream`. What it reads is verified."""

    failures = (BlockError, FramesError, CudaError)

    def __init__(self, pool: Pool, frames: FrameCache, straight: Straight) -> None:
        self._pool = pool
        self._frames = frames
        self._straight = straight

    def device_of(self, extent: PoolExtent) -> Hashable:
        return extent.slot.device

    async def read(self, extent: PoolExtent, into: memoryview | GpuMemory, landed: Callable[[], None]) -> int:
        """:raises BlockError, FramesError, CudaError:"""
        if not isinstance(into, GpuMemory) and extent.direct:
            return await self._pool.read_extent(extent.record, extent.index, into, landed)
        if extent.straight and isinstance(into, GpuMemory):
            went = await self._straight.read(extent.record, extent.index, into)
            if went:
                return into.nbytes
        frame = await self._frames.get(extent.record, extent.index, extent.slot)
        try:
            into[:] = frame.view[: into.nbytes]
        finally:
            self._frames.unpin(frame)
        return into.nbytes


@dataclass(frozen=True, slots=True)
class Got:
    """What became of one object that was asked for.

    :ivar index: its position among those that were asked for
    :ivar length: its bytes, all of them now in its buffer; 0 if there is an error
    :ivar error: why they are not: NoObject if it is not there, TransferExpired if it came too late, else what failed.
        To who is served from a cache each is a miss. What the buffer holds is undefined then
    :ivar pending: reads that their device gave up: until each is `done`, it may still write into the buffer
    """

    index: int
    key: Key
    length: int = 0
    error: Exception | None = None
    pending: tuple[Pending, ...] = ()


@dataclass(slots=True, eq=False)
class Job:
    """One object on its way.

    :ivar into: the caller's memory
    :ivar left: extents that have not come yet
    """

    index: int
    key: Key
    place: Place
    into: memoryview | GpuMemory
    record: Descriptor | None = None
    left: int = 0
    error: Exception | None = None
    pending: tuple[Pending, ...] = ()

    def got(self) -> Got:
        length = self.record.size if self.record is not None and self.error is None else 0
        return Got(self.index, self.key, length, self.error, self.pending)


Jobs = dict[Want[PoolExtent], Job]
"""Which object an extent is of."""


@dataclass(slots=True)
class ReadCounts:
    hits: int = 0
    misses: int = 0
    failed: int = 0
    bytes: int = 0
    bytes_copied: int = 0


class Arrivals:
    """Objects in the order in which they arrive, each once."""

    def __init__(
        self, ready: Iterable[Job], batch: Batch[PoolExtent], jobs: Jobs, reader: CacheReader
    ) -> None:
        self._ready = deque(ready)
        self._batch = batch
        self._jobs = jobs
        self._reader = reader

    def cancel(self) -> None:
        """Want nothing more of it: what waits ends at once, what has begun when it ends."""
        self._batch.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Got:
        while not self._ready:
            self._note(await anext(self._batch))
        return self._reader.finished(self._ready.popleft())

    def _note(self, outcome: Outcome[PoolExtent]) -> None:
        job = self._jobs[outcome.want]
        job.left -= 1
        job.error = job.error or outcome.error
        if outcome.pending is not None and outcome.want.extent.direct:  # else it writes into a frame
            job.pending += (outcome.pending,)
        if outcome.error is None:
            extent = outcome.want.extent
            self._reader.counts.bytes_copied += 0 if extent.direct or extent.straight else outcome.length
        if not job.left:
            self._ready.append(job)


class CacheReader:
    """Reads objects into callers' memory."""

    def __init__(
        self, pool: Pool, frames: FrameCache, stream: Stream[PoolExtent], straight: Straight
    ) -> None:
        self._pool = pool
        self._frames = frames
        self._stream = stream
        self._straight = straight
        self.counts = ReadCounts()

    @asynccontextmanager
    async def stream(
        self, jobs: Sequence[Job], priority: Priority, deadline: float, *, together: bool = False
    ) -> AsyncIterator[Arrivals]:
        """Their arrivals; behind the block nothing writes into their memory any more, but what `pending` says.

        :param together: none is of use before the last has come
        :raises BadBuffer: one is too small; nothing was read then
        """
        with ExitStack() as pins:
            finder = Finder(self._pool)
            for job in jobs:
                self._find(job, finder, pins)
            wants: Jobs = {}
            for job in jobs:
                for extent, part in await self._extents(job):
                    wants[Want(extent, part, priority, deadline)] = job
            ready = [job for job in jobs if not job.left]
            async with self._stream.batch([*wants], together=together) as batch:
                yield Arrivals(ready, batch, wants, self)

    def finished(self, job: Job) -> Got:
        """An object has come, or will not."""
        counts = self.counts
        if isinstance(job.error, NoObject):
            counts.misses += 1
        elif job.error is not None or job.record is None:
            counts.failed += 1
        else:
            counts.hits += 1
            counts.bytes += job.record.size
            self._pool.touch(job.record)
        return job.got()

    def _find(self, job: Job, finder: Finder, pins: ExitStack) -> None:
        """Look for an object and keep its version until the end."""
        record = finder.find(job.place)
        if record is None:
            job.error = NoObject(f"{job.place} is not there")
            return
        if job.into.nbytes < record.size:
            raise BadBuffer(
                f"{job.place} has {record.size} bytes, its buffer {job.into.nbytes}: ask 'lookup' for sizes"
            )
        try:
            self._pool.pin(record)
        except Raced:
            job.error = NoObject(f"{job.place} has just gone")
            return
        pins.callback(self._pool.unpin, record)
        job.record = record

    async def _extents(self, job: Job) -> list[tuple[PoolExtent, memoryview | GpuMemory]]:
        """What has to be read of an object, and where to; the rest is in its place already."""
        if job.record is None:
            return []
        try:
            missing = await self._missing(job.record, job.into)
        except (BlockError, CudaError) as error:
            job.error = error
            return []
        job.left = len(missing)
        return missing

    async def _missing(
        self, record: Descriptor, into: memoryview | GpuMemory
    ) -> list[tuple[PoolExtent, memoryview | GpuMemory]]:
        """:raises BlockError, CudaError:"""
        step, missing = self._pool.extent_size, []
        extents = await self._pool.extents(record)
        if not extents:
            into[: record.size] = record.inline
            self.counts.bytes_copied += record.size
        for index, extent in enumerate(extents):
            part = into[index * step : index * step + extent_length(record.size, index, step)]
            if extent.is_hole:
                part[:] = bytes(part.nbytes)
            elif self._copy(extent.ref, part):
                await trio.lowlevel.checkpoint()  # many copies take long
            else:
                missing.append((self._wanted(record, index, extent.ref, part), part))
        return missing

    def _wanted(
        self, record: Descriptor, index: int, slot: SlotRef, part: memoryview | GpuMemory
    ) -> PoolExtent:
        """An extent that the DRAM tier has not, and how it may come."""
        gpu, loading = isinstance(part, GpuMemory), self._frames.is_loading(slot)
        direct = not loading and is_direct(part)
        straight = not loading and isinstance(part, GpuMemory) and self._straight.takes(part)
        if direct:
            self._frames.passed_by(slot, part.nbytes)
        return PoolExtent(slot, direct, gpu, straight, record, index)

    def _copy(self, slot: SlotRef, part: memoryview | GpuMemory) -> bool:
        """Copy an extent if the DRAM tier has it."""
        frame = self._frames.peek(slot)
        if frame is None:
            return False
        try:
            part[:] = frame.view[: part.nbytes]
        finally:
            self._frames.unpin(frame)
        self.counts.bytes_copied += part.nbytes
        return True
