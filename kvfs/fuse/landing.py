"""Memory in which requests land. Where a WRITE's payload belongs is known only when it is there.

Some of it is frames of the arena: if what landed is a whole extent of which nothing was there before, the frame can
become the draft's, in exchange for the one that was ready for it, and nothing is copied.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from contextlib import suppress
from typing import Protocol

from blockdev.types import PAGE
from kvfs.frame_table import Frame
from kvfs.fuse import wire

_KEPT = 8
"""Buffers that are no frames and kept all the same; more are made when many WRITEs wait."""
_SHARE = 8
"""At most every eighth frame of the arena is used for landing."""


class FrameSource(Protocol):
    """The arena's frames, for the trio thread; `kvfs.frames.FrameCache` is it."""

    @property
    def count(self) -> int: ...

    def try_allocate(self) -> Frame | None: ...

    def unpin(self, frame: Frame) -> None: ...


class Spare:
    """Memory for one request.

    :ivar vectors: what to read it into: the header of a READ or WRITE, then the payload, which is page-aligned
    :ivar frame: whose memory the payload is; None if it is no frame
    """

    __slots__ = ("address", "frame", "header", "payload", "vectors")

    def __init__(self, payload: memoryview, frame: Frame | None = None) -> None:
        self.header = memoryview(bytearray(wire.DATA_HEADER))
        self._use(payload, frame)

    def _use(self, payload: memoryview, frame: Frame | None) -> None:
        self.payload = payload
        self.frame = frame
        self.vectors = (self.header, payload)
        self.address = address_of(payload)

    def exchange(self, frame: Frame) -> None:
        """Go on with another frame: somebody has taken this one."""
        self._use(frame.view[: len(self.payload)], frame)


def address_of(view: memoryview) -> int:
    """Where writable memory begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Spares:
    """Spare memory that nobody uses at the moment. Made and closed in the trio thread.

    :param size: bytes of a payload, at most
    :param count: how many to have ready
    """

    def __init__(self, frames: FrameSource, size: int, count: int) -> None:
        self._frames = frames
        self._size = size
        self._lock = threading.Lock()
        self._ready: list[Spare] = []
        for _ in range(min(count, frames.count // _SHARE)):
            frame = frames.try_allocate()
            if frame is not None:
                self._ready.append(Spare(frame.view[:size], frame))

    def take(self) -> Spare:
        """Memory for a request: a frame, if there is one. From any thread."""
        with self._lock:
            for number in reversed(range(len(self._ready))):
                if self._ready[number].frame is not None or number == 0:
                    return self._ready.pop(number)
        memory = mmap.mmap(-1, -(-self._size // PAGE) * PAGE)
        with suppress(OSError):
            memory.madvise(mmap.MADV_DONTFORK)
        return Spare(memoryview(memory))

    def better(self, spare: Spare) -> Spare:
        """A frame instead of memory that is none, if there is one. From any thread."""
        if spare.frame is not None or not any(other.frame is not None for other in list(self._ready)):
            return spare
        self.put(spare)
        return self.take()

    def put(self, spare: Spare) -> None:
        """Give memory back. From any thread."""
        with self._lock:
            if spare.frame is not None or len(self._ready) < _KEPT:
                self._ready.append(spare)

    def close(self) -> None:
        """Give the frames back that nobody uses."""
        with self._lock:
            ready, self._ready = self._ready, []
        for spare in ready:
            if spare.frame is not None:
                self._frames.unpin(spare.frame)
