"""From callers' memory to objects."""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
import time
from functools import partial
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from blockdev.errors import DeviceTimeout
from blockdev.memory import padded
from blockdev.publication import NewObject, extent_length
from blockdev.tasks import background, for_each
from blockdev.types import DirectoryId, ExtentRef, SlotRef, Xxh3
from kvfs.cache.buffers import is_direct
from kvfs.cache.folders import make_folders
from kvfs.elsewhere import until_stored
from kvfs.predecessors import Predecessors

if TYPE_CHECKING:
    from blockdev.pool import Pool
    from kvfs.cache.keys import Place
    from kvfs.frames import FrameCache

log = logging.getLogger(__name__)

_MODE = stat.S_IFREG | 0o600
_AT_ONCE = 4
"""Extents of one object that are on their way at the same time: they are on different devices."""


@dataclasses.dataclass(slots=True)
class PutCounts:
    puts: int = 0
    bytes: int = 0
    bytes_copied: int = 0


class Putter:
    """Stores objects, each whole or not at all."""

    def __init__(self, pool: Pool, frames: FrameCache) -> None:
        self._pool = pool
        self._frames = frames
        self._predecessors = Predecessors()
        self.counts = PutCounts()

    async def put(self, place: Place, data: memoryview, writer: int, *, replace: bool) -> None:
        """Make the bytes the object of that place. They must not change until this returns.

        :param writer: whose objects are a chain: each is likely to be wanted after the one before

        :raises Exists: there is one, and `replace` is false
        :raises BadKey, BlockError, FramesError: nothing has changed
        """
        directory = await make_folders(self._pool, place)
        new = self._described(directory, place, data.nbytes, writer, replace=replace)
        await until_stored(
            partial(self._put_once, new, data),
            lambda loss: log.info("%r is stored again, elsewhere: %s", place.name, loss),
        )
        self._predecessors.note(writer, place.name)
        self.counts.puts += 1
        self.counts.bytes += data.nbytes

    async def _put_once(self, new: NewObject, data: memoryview) -> None:
        if data.nbytes <= self._pool.inline_limit(new.name):
            await self._pool.publish(dataclasses.replace(new, inline=bytes(data)))
        else:
            await self._put_extents(new, data)

    async def _put_extents(self, new: NewObject, data: memoryview) -> None:
        size, step = data.nbytes, self._pool.extent_size
        slots: list[SlotRef] = []
        stored: dict[int, ExtentRef] = {}

        async def store(index: int) -> None:
            part = data[index * step :][: extent_length(size, index, step)]
            slot = await self._pool.reserve(part.nbytes)
            slots.append(slot)
            stored[index] = ExtentRef(*slot, await self._write(slot, part))

        try:
            await for_each(range(-(-size // step)), store, at_once=min(_AT_ONCE, -(-size // step)))
        except BaseException:
            for slot in slots:
                self._pool.give_back(slot)
            raise
        extents = tuple(stored[index] for index in sorted(stored))
        await self._pool.publish(dataclasses.replace(new, extents=extents))

    def _described(
        self, directory: DirectoryId, place: Place, size: int, writer: int, *, replace: bool
    ) -> NewObject:
        """All but the content."""
        return NewObject(
            directory, place.name, _MODE, os.geteuid(), os.getegid(), time.time_ns(), size,
            predecessor=self._predecessors.of(writer, place.name), replace=replace,
        )  # fmt: skip

    async def _write(self, slot: SlotRef, part: memoryview) -> Xxh3:
        """Write an extent; returns its checksum, which is made while the device works."""
        digests: list[Xxh3] = []

        async def digest() -> None:
            digests.append(Xxh3(xxh3_64_intdigest(part)))

        async with background() as nursery:
            nursery.start_soon(digest)
            if is_direct(part):
                await self._pool.write(slot, part)
            else:
                await self._write_copy(slot, part)
        return digests[0]

    async def _write_copy(self, slot: SlotRef, part: memoryview) -> None:
        frame = await self._frames.allocate()
        try:
            used, end = part.nbytes, padded(part.nbytes)
            frame.view[:used] = part
            frame.view[used:end] = bytes(end - used)
            await self._pool.write(slot, frame.view[:end])
        except DeviceTimeout as error:
            if error.pending is not None:
                self._frames.hold_until(frame, error.pending)
            raise
        finally:
            self._frames.unpin(frame)
        self.counts.bytes_copied += used
