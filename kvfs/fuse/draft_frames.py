"""The frames that drafts hold at once: a bounded number, and who was touched last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator

import trio

from blockdev.errors import DeviceTimeout
from kvfs.errors import NoFrames
from kvfs.frames import Frame, FrameCache
from kvfs.fuse.content import DraftExtent

SpillOne = Callable[[], Awaitable[bool]]
"""Frees a frame of some draft; False if all are being worked on."""


class DraftFrames:
    """Takes frames for extents of drafts, and knows which have one.

    :param limit: most frames at once; at least 1
    :param patience: how long to wait for one, in seconds
    """

    def __init__(self, frames: FrameCache, *, limit: int, patience: float) -> None:
        self._frames = frames
        self._limit = limit
        self._patience = patience
        self._taken = 0
        self._resident: OrderedDict[DraftExtent, None] = OrderedDict()
        self._changed = trio.Event()

    def __iter__(self) -> Iterator[DraftExtent]:
        """Extents with a frame, those touched last at the end. Not across changes."""
        return iter(self._resident)

    async def take(self, spill_one: SpillOne) -> Frame:
        """A private frame, within the limit; `put_back` or `give` it.

        :raises NoFrames:
        """
        deadline = trio.current_time() + self._patience
        while self._taken >= self._limit:
            if not await spill_one():
                with trio.move_on_at(deadline):
                    await self._changed.wait()
                if trio.current_time() >= deadline:
                    raise NoFrames(f"all {self._limit} frames for files that are being written are in use")
        self._taken += 1
        try:
            return await self._frames.allocate()
        except BaseException:
            self._taken -= 1
            raise

    @property
    def is_full(self) -> bool:
        return self._taken >= self._limit

    def try_take(self) -> Frame | None:
        """As `take`, if that needs no waiting and nobody else's frame."""
        frame = None if self.is_full else self._frames.try_allocate()
        self._taken += frame is not None
        return frame

    def put_back(self, frame: Frame, error: BaseException | None = None) -> None:
        """Undo `take`. :param error: what the I/O on it raised, which may go on"""
        if isinstance(error, DeviceTimeout) and error.pending is not None:
            self._frames.hold_until(frame, error.pending)
        self._frames.unpin(frame)
        self._taken -= 1

    def give(self, extent: DraftExtent, frame: Frame) -> None:
        """It is the extent's now."""
        extent.frame = frame
        self.touch(extent)

    def touch(self, extent: DraftExtent) -> None:
        """Somebody works with an extent that has a frame."""
        self._resident[extent] = None
        self._resident.move_to_end(extent)

    def forget(self, extent: DraftExtent) -> None:
        """The extent's frame is not its any more; it is still pinned, for the caller."""
        extent.frame = None
        del self._resident[extent]
        self._taken -= 1
        self.wake()

    def wake(self) -> None:
        """What `spill_one` said may not be true any more."""
        self._changed.set()
        self._changed = trio.Event()
