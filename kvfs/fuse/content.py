"""The bytes of a file that is being written. Pure: no waiting, no I/O; see `memory` for where they come from.

A file is cut into extents. Of each, the newest bytes lie in the draft's own extent where they have been written, else
in the version that the draft is based on, else they are zeros. A draft's extent has a slot of the pool from its first
byte on, so that no byte is accepted for which there is no room, and at most one frame, which it may lose to others
while the slot holds the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from blockdev.device import Begun
from blockdev.errors import BlockError
from blockdev.types import PAGE, Descriptor, ExtentRef, SlotRef, Xxh3
from kvfs.frame_table import Frame
from kvfs.fuse.intake import Intake
from kvfs.fuse.ranges import Ranges


class Piece(NamedTuple):
    """The part of a request that lies in one extent."""

    extent: int
    """Its index."""
    start: int
    """Relative to the extent."""
    stop: int


class Saved(NamedTuple):
    """What an extent's slot holds: the first `length` bytes of the extent as of `version`."""

    version: int
    length: int
    xxh3: Xxh3


class Flight:
    """A write of a whole extent, as of `version`, that was begun where its last bytes came in.

    :ivar land: waits for it
    """

    __slots__ = ("_start", "_view", "_xxh3", "land", "version")

    def __init__(self, version: int, begun: Begun, view: memoryview) -> None:
        self.version = version
        self._start, self.land = begun
        self._view = view
        self._xxh3: Xxh3 | None = None

    def take_off(self) -> None:
        """Give it to the device, and compute the checksum meanwhile. Once, from any thread."""
        self._start()
        self.digest()

    def digest(self) -> Xxh3:
        """The checksum of its bytes. From any thread: computed twice at worst, and wrong only if the bytes are not any
        more those of `version`.
        """
        if self._xxh3 is None:
            self._xxh3 = Xxh3(xxh3_64_intdigest(self._view))
        return self._xxh3


class DraftExtent:
    """An extent with bytes that were not in the version before.

    :ivar slot: where its bytes go; None once it was given back or published
    :ivar slot_size: bytes that fit there
    :ivar frame: its newest bytes, if they are in memory
    :ivar written: which bytes of it are its own; those not written are the base's, or zeros, and undefined in the frame
    :ivar version: grows with every change of its bytes
    :ivar loss: what a write to the slot failed with, if its device was lost: may arrive late, so the slot is not written
        again, even if the device is back
    :ivar saved: what the slot holds, if all that there was then
    :ivar sending: what it will hold, if nothing goes wrong
    :ivar flight: the write of all of it that was begun without a task, if that was not awaited yet
    :ivar sent: so many bytes from its beginning, whole pages, are in the slot as they are in the frame
    :ivar reach: so many will be, when the write that is under way has ended
    :ivar promised: a record says, or is about to say, that its bytes are in this slot: it stays there
    :ivar dead: cut off; whoever works on it lets it go
    """

    __slots__ = (
        "dead",
        "flight",
        "frame",
        "index",
        "loss",
        "owner",
        "promised",
        "reach",
        "saved",
        "sending",
        "sent",
        "slot",
        "slot_size",
        "version",
        "written",
    )

    def __init__(self, owner: DraftContent, index: int, slot: SlotRef) -> None:
        self.owner = owner
        self.index = index
        self.slot: SlotRef | None = slot
        self.slot_size = owner.extent_size
        self.loss: BlockError | None = None
        self.frame: Frame | None = None
        self.written = Ranges()
        self.version = 0
        self.saved: Saved | None = None
        self.sending: Saved | None = None
        self.flight: Flight | None = None
        self.sent = 0
        self.reach = 0
        self.promised = False
        self.dead = False

    @property
    def used(self) -> int:
        """Bytes of this extent that are below the end of the file."""
        return self.owner.used(self.index)

    @property
    def is_saved(self) -> bool:
        """Whether the slot holds the newest bytes."""
        return self.saved is not None and self.saved.version == self.version

    @property
    def arriving(self) -> Saved | None:
        """What its slot will hold when its flight has landed, if that is the newest."""
        flight = self.flight
        if flight is None or flight.version != self.version or self.used != self.owner.extent_size:
            return None
        return Saved(flight.version, self.used, flight.digest())

    def absorb(self, start: int, data: memoryview | bytes) -> None:
        """Take bytes into the frame, which must be there."""
        assert self.frame is not None
        stop = start + len(data)
        self.frame.view[start:stop] = data
        self.note(start, stop)

    def note(self, start: int, stop: int) -> None:
        """Bytes `[start, stop)` were put into the frame."""
        self.written.add(start, stop)
        self.changed(start)

    def changed(self, start: int) -> None:
        """Bytes from `start` on, perhaps, are others than they were."""
        self.version += 1
        whole = start // PAGE * PAGE
        self.sent, self.reach = min(self.sent, whole), min(self.reach, whole)

    @property
    def is_whole(self) -> bool:
        """Whether all of it was written, so that nothing need be filled in."""
        return self.written.covers(0, self.owner.extent_size)


class DraftContent:
    """All bytes of one draft.

    :param extent_size: bytes per extent
    :ivar size: of the file, in bytes
    :ivar base: the version that bytes come from which the draft has not written
    :ivar base_extents: its extents; empty if it is inline
    :ivar base_limit: how many bytes of the base still count: cutting a file off and extending it makes zeros
    :ivar dirty: there is something to publish
    :ivar error: why nothing will be published any more
    :ivar prepared: extents with a slot and a frame into which nothing was written yet: not part of the file
    :ivar intake: where threads put bytes; what they wrote counts when `catch_up` is called
    :ivar changed_ns: when the last of what was caught up with was written; 0 if nobody has asked since
    """

    def __init__(self, extent_size: int, intake: Intake | None = None) -> None:
        self.extent_size = extent_size
        self.size = 0
        self.base: Descriptor | None = None
        self.base_extents: tuple[ExtentRef, ...] = ()
        self.base_limit = 0
        self.extents: dict[int, DraftExtent] = {}
        self.dirty = False
        self.error: Exception | None = None
        self.prepared: dict[int, DraftExtent] = {}
        self.intake = intake or Intake()
        self.changed_ns = 0

    def catch_up(self) -> list[DraftExtent]:
        """Take in what threads have written; returns the extents that did not have all of it before."""
        more: dict[DraftExtent, None] = {}
        for extent, start, stop, time_ns in self.intake.take():
            if extent.dead:
                continue
            if self.prepared.get(extent.index) is extent:
                self.extents[extent.index] = self.prepared.pop(extent.index)
            if not extent.written.covers(start, stop):
                more[extent] = None
            extent.note(start, stop)
            self.grow(extent.index * self.extent_size + stop)
            self.changed_ns = time_ns
        return list(more)

    def fail(self, error: Exception) -> None:
        """Nothing will be published any more, for this reason unless there was one before."""
        self.error = self.error or error
        self.intake.close()

    def check(self) -> None:
        """:raises Exception: what it failed with"""
        if self.error is not None:
            raise self.error

    def rebase(self, base: Descriptor, extents: tuple[ExtentRef, ...]) -> None:
        """Go on from a published version: every byte is its, nothing is the draft's own."""
        self.base = base
        self.base_extents = extents
        self.base_limit = self.size = base.size
        self.extents = {}
        self.dirty = False

    def pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """Cut the byte range at the extents' borders."""
        end = offset + length
        while offset < end:
            index, start = divmod(offset, self.extent_size)
            stop = min(self.extent_size, start + end - offset)
            yield Piece(index, start, stop)
            offset += stop - start

    def used(self, index: int) -> int:
        """Bytes of extent `index` below the end of the file."""
        return max(0, min(self.extent_size, self.size - index * self.extent_size))

    def base_used(self, index: int) -> int:
        """Bytes of extent `index` that still come from the base where the draft has none; 0 for its holes."""
        if self.base is None or (not self.base.inline and not self._base_stores(index)):
            return 0
        return max(0, min(self.extent_size, self.base_limit - index * self.extent_size))

    def _base_stores(self, index: int) -> bool:
        return index < len(self.base_extents) and not self.base_extents[index].is_hole

    def kept(self, index: int) -> ExtentRef | None:
        """The base's extent, if it can be part of the next version exactly as it is."""
        if self.base is None or not self._base_stores(index):
            return None
        was = min(self.extent_size, self.base.size - index * self.extent_size)
        return self.base_extents[index] if was == self.used(index) == self.base_used(index) else None

    def grow(self, end: int) -> None:
        """Note that bytes up to `end` were written."""
        self.size = max(self.size, end)
        self.dirty = True

    def truncate(self, size: int) -> list[DraftExtent]:
        """Set the size; returns the extents that are cut off entirely."""
        gone = []
        if size < self.size:
            self.base_limit = min(self.base_limit, size)
            last = -(-size // self.extent_size)
            gone = [self.extents.pop(index) for index in sorted(self.extents) if index >= last]
            cut = self.extents.get(last - 1)
            if cut is not None:
                at = size - cut.index * self.extent_size
                cut.written.cut(at)
                cut.changed(at)
        self.size = size
        self.dirty = True
        return gone
