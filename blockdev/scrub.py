"""Reads everything a pool holds and compares it with its checksums; what is wrong is dropped by the pool and reported.

How fast is up to the pool, which reads in the background (see `pace`) what nobody waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from blockdev.errors import ChecksumError, DeviceError, Raced, Unavailable
from blockdev.types import ROOT, DirectoryId, Kind, ObjectId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from blockdev.pool import Pool
    from blockdev.types import Descriptor

WORKERS = 4
"""Objects read at once while nobody waits for data: enough to keep several devices busy."""
REPORT_EVERY = 0.1
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that cannot be read.

    :ivar path: from the pool's root, names separated by `/`
    :ivar size: bytes
    :ivar dropped: its bytes were wrong and it is a miss from now on; otherwise its device fails, and it may come back
    """

    path: bytes
    size: int
    reason: str
    dropped: bool


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """:ivar objects: files that are right
    :ivar bytes: in them
    :ivar changed: files that were replaced or removed while they were read
    :ivar unreachable: files on devices that are missing or lost
    """

    objects: int
    bytes: int
    changed: int
    unreachable: int
    damaged: tuple[Damage, ...]


async def scrub(pool: Pool, progress: Callable[[int, int], Awaitable[None]]) -> ScrubReport:
    """Verify every file in `pool`.

    :param progress: is told how many bytes are done and how many there are in all, now and then
    :raises PoolClosed:
    """
    run = _Scrub(pool, progress)
    async with trio.open_nursery() as nursery:
        for _ in range(WORKERS):
            nursery.start_soon(run.work)
    await progress(run.done, run.done)
    return ScrubReport(run.objects, run.bytes, run.changed, run.unreachable, tuple(run.damaged))


class _Scrub:
    def __init__(self, pool: Pool, progress: Callable[[int, int], Awaitable[None]]) -> None:
        self._pool = pool
        self._progress = progress
        self._files: Iterator[Descriptor] = (r for r in pool.catalog.scan() if r.kind is Kind.HEAD)
        self._reported = -REPORT_EVERY
        self.objects = self.bytes = self.changed = self.unreachable = self.done = 0
        self.damaged: list[Damage] = []

    async def work(self) -> None:
        for record in self._files:  # shared by all workers: each file goes to one of them
            await self._verify(record)
            self.done += record.stored_size
            await self._report()
            await trio.lowlevel.checkpoint()

    async def _verify(self, record: Descriptor) -> None:
        if not self._pool.reachable(record):
            self.unreachable += 1
            return
        try:
            await self._pool.verify(record)
        except Raced:
            self.changed += 1
        except Unavailable:
            self.unreachable += 1
        except (ChecksumError, DeviceError) as error:
            self._failed(record, error)
        else:
            self.objects += 1
            self.bytes += record.size

    def _failed(self, record: Descriptor, error: ChecksumError | DeviceError) -> None:
        """A slot that was freed and reused under our eyes may look damaged too: only the current version counts."""
        current = self._pool.current(record)
        replaced = current is not None and current.stamp != record.stamp
        removed = current is None and isinstance(error, DeviceError)  # a damaged one was removed by `verify`
        if replaced or removed:
            self.changed += 1
            return
        path = path_of(self._pool, record)
        self.damaged.append(Damage(path, record.size, str(error), isinstance(error, ChecksumError)))

    async def _report(self) -> None:
        now = trio.current_time()
        if now - self._reported >= REPORT_EVERY:
            self._reported = now
            await self._progress(self.done, max(self.done, self._pool.totals().used))


def path_of(pool: Pool, record: Descriptor) -> bytes:
    """The names from the root to `record`; an unknown directory is shown as its id."""
    names = [record.name]
    directory = record.directory
    while directory != ROOT:
        parent = pool.catalog.by_id(ObjectId(directory))
        if parent is None or len(names) > 64:
            names.append(b"<" + directory.hex().encode() + b">")
            break
        names.append(parent.name)
        directory = DirectoryId(parent.directory)
    return b"/".join(reversed(names))
