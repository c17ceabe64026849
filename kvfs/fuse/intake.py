"""Where threads put bytes into the files that are being written, without the trio thread.

The trio thread opens an extent for them when it has a slot and a frame, and shuts it before it does what must not see
the bytes move: publish, fill in, cut off, or pass the frame on. A thread enters, copies, and leaves with a note of
what it wrote; the trio thread takes the notes before it looks at the draft. So all state but this is still changed by
the trio thread only, and a write that was answered is in the notes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvfs.frame_table import Frame
from kvfs.fuse.landing import address_of

if TYPE_CHECKING:
    from kvfs.fuse.content import DraftExtent, Flight

PART = 1 << 20
"""Bytes that are worth sending to media before their extent is whole."""

Soon = Callable[..., None]
"""Has the trio thread call something soon, with arguments; from any thread."""


class Note(NamedTuple):
    """Bytes that were written, relative to their extent."""

    extent: DraftExtent
    start: int
    stop: int
    time_ns: int


class Place:
    """An extent that threads may enter, or are in.

    :ivar address: of its frame
    :ivar inside: how many threads are copying
    :ivar missing: bytes that, written once each, would make it whole
    :ivar is_fresh: nobody was inside before, and nobody else looks at the frame
    """

    __slots__ = ("address", "emptied", "extent", "inside", "is_fresh", "is_open", "missing")

    def __init__(self, extent: DraftExtent, address: int, missing: int, *, is_fresh: bool) -> None:
        self.extent = extent
        self.address = address
        self.missing = missing
        self.inside = 0
        self.is_open = True
        self.is_fresh = is_fresh
        self.emptied: list[Callable[[], object]] = []


class Intake:
    """The open extents of one draft, and the notes.

    :param soon: how to reach the trio thread; None if no other threads will come
    :param on_more: called there when an extent may have become whole, or more of it has come, worth sending on
    :param launch: begins to write an extent that is whole; for who has custody of the mount's state
    :param on_half: called there when half of an extent, not the first, may have been written
    """

    def __init__(
        self,
        soon: Soon | None = None,
        on_more: Callable[[DraftExtent], object] = lambda _: None,
        on_half: Callable[[DraftExtent], object] = lambda _: None,
        launch: Callable[[DraftExtent], Flight | None] = lambda _: None,
    ) -> None:
        self.launch = launch
        self._soon = soon
        self._on_more = on_more
        self._on_half = on_half
        self._lock = threading.Lock()
        self._places: dict[int, Place] = {}
        self._notes: list[Note] = []
        self._closed = False

    # --- in any thread

    def enter(self, index: int) -> Place | None:
        """An extent into whose frame the caller may copy until it leaves; None if it is not open."""
        with self._lock:
            place = self._places.get(index)
            if place is None or not place.is_open:
                return None
            place.inside += 1
            return place

    def trade(self, place: Place, frame: Frame) -> Frame | None:
        """Let a frame with all bytes of the extent become its frame; returns the one that it had, which is the
        caller's now. None if that cannot be, and the bytes must be copied. The caller is inside.
        """
        with self._lock:
            if not (place.is_fresh and place.is_open and place.inside == 1):
                return None
            place.is_fresh = False
            old, place.extent.frame = place.extent.frame, frame
            place.address = address_of(frame.view)
        return old

    def leave(self, place: Place, start: int, stop: int, time_ns: int) -> bool:
        """The bytes `[start, stop)` of the extent have been copied; whether it is whole now, perhaps, and the caller is
        to see that it is sent: with `launch`, or else with `send`.
        """
        call: list[Callable[[], object]] = []
        half = place.extent.owner.extent_size // 2
        with self._lock:
            self._notes.append(Note(place.extent, start, stop, time_ns))
            place.inside -= 1
            place.is_fresh = False
            before, place.missing = place.missing, place.missing - (stop - start)
            if not place.inside and not place.is_open:
                call, place.emptied = place.emptied, []
                self._remove(place)
        assert self._soon is not None
        if place.extent.index and before > half >= place.missing:  # most files have one extent
            self._soon(self._on_half, place.extent)
        for function in call:
            self._soon(function)
        if before > 0 >= place.missing:
            return True
        if before > 0 and before // PART != place.missing // PART:
            self.send(place.extent)
        return False

    def send(self, extent: DraftExtent) -> None:
        """Have the trio thread send on what has come."""
        self.have(self._on_more, extent)

    def have(self, function: Callable[[DraftExtent], object], extent: DraftExtent) -> None:
        """Have the trio thread do something about an extent."""
        assert self._soon is not None
        self._soon(function, extent)

    # --- in the trio thread

    @property
    def serves(self) -> bool:
        """Whether threads may come at all."""
        return self._soon is not None and not self._closed

    def open(self, extent: DraftExtent) -> None:
        """Let threads into an extent, which has a frame."""
        if not self.serves or extent.index in self._places:
            return
        assert extent.frame is not None
        address = address_of(extent.frame.view)
        is_fresh = extent.owner.prepared.get(extent.index) is extent
        missing = extent.owner.extent_size - sum(stop - start for start, stop in extent.written)
        with self._lock:
            self._places[extent.index] = Place(extent, address, missing, is_fresh=is_fresh)

    def claim(self, extent: DraftExtent) -> None:
        """The trio thread goes to work on an extent that was only prepared: its frame stays what it is."""
        with self._lock:
            place = self._places.get(extent.index)
            if place is not None:
                place.is_fresh = False

    def shut(self, extent: DraftExtent, then: Callable[[], object]) -> bool:
        """Let no more threads into an extent. True if none is inside; else `then` is called when the last has left."""
        with self._lock:
            place = self._places.get(extent.index)
            if place is None or place.extent is not extent:
                return True
            place.is_open = False
            if place.inside:
                place.emptied.append(then)
                return False
            self._remove(place)
            return True

    def open_extents(self) -> list[DraftExtent]:
        """Those that are open, or shut with threads inside."""
        return [place.extent for place in self._places.values()]

    def close(self) -> None:
        """Let nobody in any more, for good."""
        with self._lock:
            self._closed = True
            for place in self._places.values():
                place.is_open = False

    @property
    def has_notes(self) -> bool:
        """Whether threads have written what nobody has taken in yet."""
        return bool(self._notes)

    def take(self) -> Sequence[Note]:
        """What was written since the last time, in the order in which it was done."""
        if not self._notes:
            return ()
        with self._lock:
            notes, self._notes = self._notes, []
        return notes

    def _remove(self, place: Place) -> None:
        if self._places.get(place.extent.index) is place:
            del self._places[place.extent.index]
