"""Published versions that are in use: who has them open, and their extents in DRAM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from blockdev.types import Descriptor, ExtentRef, Kind, ObjectId
from kvfs.frames import Frame, FrameCache
from kvfs.fuse.ports import MustWait, PoolPort


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

    def is_open(self, object_id: ObjectId) -> bool:
        return object_id in self._open

    async def get(self, record: Descriptor, index: int, extent: ExtentRef) -> Frame:
        """Extent `index` of a version, verified, in a frame that is pinned once for the caller.

        :raises BlockError, FramesError:
        """
        return await self._frames.get(record, index, extent.ref)

    def get_now(self, extents: Iterable[ExtentRef]) -> list[Frame]:
        """Extents that are all in memory, as `get`. :raises MustWait: one is not"""
        slots = [extent.ref for extent in extents]
        if not all(map(self._frames.holds, slots)):
            raise MustWait
        return [frame for slot in slots if (frame := self._frames.peek(slot)) is not None]

    @property
    def frames_are_awaited(self) -> bool:
        """Whether to give a frame back wakes a task up."""
        return self._frames.is_awaited

    def read_ahead(self, record: Descriptor, extents: Iterable[tuple[int, ExtentRef]]) -> None:
        """Begin to fetch extents that will be wanted, if frames allow."""
        self._frames.read_ahead(record, [(index, extent.ref) for index, extent in extents])

    def unpin_frame(self, frame: Frame) -> None:
        self._frames.unpin(frame)

    def adopt(self, frame: Frame, extent: ExtentRef, length: int) -> None:
        """Let a frame with an extent of a version just published be found."""
        self._frames.adopt(frame, extent.ref, length)

    def forget(self, extents: Iterable[ExtentRef]) -> None:
        """They belong to no version that can be opened; those who have an older one open keep what they have."""
        self._frames.forget([extent.ref for extent in extents])
