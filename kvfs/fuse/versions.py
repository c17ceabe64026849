"""Extents of published versions in DRAM.

The DRAM tier finds an extent by its object and index. A file that was changed in place keeps its object: for as long
as somebody reads a version before the newest, that one's extents must neither be found as the newest one's nor the
other way round. So who opens a version says so here, and versions that are not the newest are read privately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from blockdev.errors import DeviceTimeout
from blockdev.types import Descriptor, Kind, ObjectId
from kvfs.frames import Frame, FrameCache
from kvfs.fuse.ports import PoolPort


def same_content(one: Descriptor, other: Descriptor) -> bool:
    """Whether two records stand for the same bytes: renamed or changed in mode, but not written to."""
    if one.object_id != other.object_id:
        return False
    if one.kind is Kind.DIRECTORY:
        return True
    return (one.size, one.extents, one.inline) == (other.size, other.extents, other.inline)


class Versions:
    """Pins versions, and fetches their extents into frames."""

    def __init__(self, pool: PoolPort, frames: FrameCache) -> None:
        self._pool = pool
        self._frames = frames
        self._open: Counter[ObjectId] = Counter()
        self._newest: dict[ObjectId, Descriptor | None] = {}
        """Of objects that were changed in place while they were open; None while that is under way."""

    def pin(self, record: Descriptor) -> None:
        """Keep a version readable until `unpin`."""
        self._pool.pin(record)
        self._open[record.object_id] += 1

    def unpin(self, record: Descriptor) -> None:
        """The record must be the very one that was pinned."""
        self._pool.unpin(record)
        self._open[record.object_id] -= 1
        if not self._open[record.object_id]:
            del self._open[record.object_id]
            self._newest.pop(record.object_id, None)

    def is_open(self, object_id: ObjectId) -> bool:
        return object_id in self._open

    def replacing(self, old: Descriptor) -> None:
        """A version that is pinned is about to be replaced, perhaps in place: the pool may show the new one any time."""
        self._frames.forget(old.object_id)
        self._newest[old.object_id] = None

    def replaced(self, old: Descriptor, new: Descriptor) -> None:
        """What `replacing` announced was done, or not if `new` is `old`; to be said while `old` is still pinned."""
        if new.object_id == old.object_id:
            self._newest[old.object_id] = new
        else:
            del self._newest[old.object_id]

    def _is_findable(self, record: Descriptor) -> bool:
        if record.object_id not in self._newest:
            return True
        newest = self._newest[record.object_id]
        return newest is not None and same_content(newest, record)

    async def get(self, record: Descriptor, index: int) -> Frame:
        """The extent, verified, in a frame that is pinned once for the caller.

        :raises BlockError, FramesError:
        """
        if self._is_findable(record):
            return await self._frames.get(record, index)
        frame = await self._frames.allocate()
        try:
            frame.length = await self._pool.read_extent(record, index, frame.view)
        except BaseException as error:
            if isinstance(error, DeviceTimeout) and error.pending is not None:
                self._frames.hold_until(frame, error.pending)
            self._frames.unpin(frame)
            raise
        return frame

    def read_ahead(self, record: Descriptor, indexes: Iterable[int]) -> None:
        """Begin to fetch extents that will be wanted, if frames allow."""
        if self._is_findable(record):
            self._frames.read_ahead(record, indexes)

    def unpin_frame(self, frame: Frame) -> None:
        self._frames.unpin(frame)

    def adopt(self, frame: Frame, record: Descriptor, index: int, length: int) -> None:
        """Let a frame with an extent of a version just published be found."""
        if self._is_findable(record):
            self._frames.adopt(frame, record.object_id, index, length)

    def forget(self, object_id: ObjectId) -> None:
        """An object is gone; those who have it open keep what they have."""
        self._frames.forget(object_id)
