"""Where every frame of the DRAM tier is. Pure: no waiting and no I/O.

A frame is found by the use of a slot whose bytes it holds. A slot is written once in each of its uses, and a use has a
number of its own: whatever becomes of the object, and whoever changes it, a frame is never of another version.

A frame is always in exactly one of these places:

    free     holds nothing; handed out next
    idle     holds a verified extent that nobody has pinned; found by look-ups, evicted coldest first, and those last
             that are kept for somebody who has not asked yet
    pinned   somebody relies on its bytes: a reader, a writer's private frame, or a load that is filling it
    zombie   nobody has pinned it, but an I/O that was given up may still touch it: not reused until that I/O
             has returned
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockdev.types import SlotRef


class Frame:
    """One frame of the arena; valid for as long as its holder keeps it pinned.

    :ivar view: its memory, all of it, page-aligned. What lies beyond `length`, and everything in a newly
        allocated frame, is left over from earlier use.
    :ivar length: used bytes
    :ivar pins: how many holders rely on it
    :ivar pending: how many I/Os that were given up may still touch it
    :ivar key: the slot's use as which it is found; None while it is private or free
    :ivar unread: nobody has looked it up since it got its key
    :ivar ahead: it was read before anybody asked
    :ivar kept: until somebody does, or it is given up, it goes last
    """

    __slots__ = ("ahead", "kept", "key", "length", "pending", "pins", "unread", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.length = 0
        self.pins = 0
        self.pending = 0
        self.key: SlotRef | None = None
        self.unread = False
        self.ahead = False
        self.kept = False


@dataclass(frozen=True, slots=True)
class FrameStatistics:
    """The DRAM tier at one moment. `free + idle + pinned + zombies == frames`; from `hits` on, values only grow."""

    frames: int
    frame_size: int
    """Bytes."""
    free: int
    idle: int
    pinned: int
    zombies: int
    """Not pinned, but an I/O that was given up may still touch them."""
    waiting: int
    """Tasks that wait for a frame."""
    loading: int
    """Loads that have not ended."""
    evicted: int
    evicted_unread: int
    """Evicted extents that nobody had looked up since they came."""
    hits: int
    misses: int
    """Look-ups that began a load."""
    coalesced: int
    """Look-ups that joined a load."""
    bytes_loaded: int
    failed_loads: int
    starved: int
    """Requests that ended in NoFrames."""
    read_ahead: int
    """Loads begun before anybody asked."""
    read_ahead_used: int
    """Of those, looked up later."""
    read_ahead_refused: int
    """Not begun, for want of frames or because enough were under way."""


class Landed(NamedTuple):
    """A load that has ended.

    :ivar length: bytes; None if it failed
    :ivar seconds: that reading took
    :ivar flying: extents that were being read when it began, itself included
    :ivar ahead: it was begun before anybody asked
    :ivar beside: of those others, how many were begun before anybody had asked
    """

    slot: SlotRef
    length: int | None
    seconds: float
    flying: int
    ahead: bool
    beside: int


class Watcher(Protocol):
    """Is told, between awaits, of loads, and what becomes of extents that were fetched before anybody asked, by
    `FrameCache.fetch` or `read_ahead`; waits for nothing.
    """

    def missed(self, slot: SlotRef, length: int) -> None:
        """Somebody waits for an extent that was not here, and nobody had begun to fetch. :param length: bytes, at most"""

    def used(self, slot: SlotRef, *, late: bool) -> None:
        """Somebody wanted it for the first time. :param late: before it was here"""

    def wasted(self, slot: SlotRef) -> None:
        """It left memory, and nobody had wanted it."""

    def landed(self, load: Landed) -> None:
        """A load has ended, whoever it was for, if it had begun to read."""


class NobodyWatches:
    """Takes no notice."""

    def missed(self, slot: SlotRef, length: int) -> None:
        pass

    def used(self, slot: SlotRef, *, late: bool) -> None:
        pass

    def wasted(self, slot: SlotRef) -> None:
        pass

    def landed(self, load: Landed) -> None:
        pass


class FrameTable:
    """All frames, by place and by what they hold.

    :ivar watcher: is told of what was fetched before anybody asked
    :ivar evicted: extents given up for another use of their frame
    :ivar evicted_unread: of those, the ones that nobody had looked up
    """

    def __init__(self, views: Sequence[memoryview]) -> None:
        self.watcher: Watcher = NobodyWatches()
        self.frames = tuple(Frame(view) for view in views)
        # A stack: what was used last is most likely still in the processor's caches.
        self._free = list(reversed(self.frames))
        self._idle: OrderedDict[Frame, None] = OrderedDict()
        self._awaiting: OrderedDict[Frame, None] = OrderedDict()
        """Idle, but kept, and nobody has asked for it."""
        self._found: dict[SlotRef, Frame] = {}
        self.zombies = 0
        self.evicted = 0
        self.evicted_unread = 0

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def idle(self) -> int:
        return len(self._idle) + len(self._awaiting)

    @property
    def pinned(self) -> int:
        return len(self.frames) - len(self._free) - self.idle - self.zombies

    def find(self, key: SlotRef) -> Frame | None:
        """The extent's frame, as it is."""
        return self._found.get(key)

    def pin(self, frame: Frame) -> None:
        """Add a pin to a frame that was found or is pinned."""
        if frame.pins == 0:
            if frame.pending:
                self.zombies -= 1
            else:
                del self._shelf(frame)[frame]
        frame.pins += 1

    def unpin(self, frame: Frame) -> None:
        """Give back one pin.

        :raises ValueError: there is none
        """
        if frame.pins < 1:
            raise ValueError("the frame is not pinned")
        frame.pins -= 1
        if frame.pins == 0:
            if frame.pending:
                self.zombies += 1
            else:
                self._settle(frame)

    def take(self) -> Frame | None:
        """A private frame with one pin, evicting the coldest idle extent if need be; None if all are in use."""
        if self._free:
            frame = self._free.pop()
        elif self._idle or self._awaiting:
            frame, _ = (self._idle or self._awaiting).popitem(last=False)
            self.evicted += 1
            self.evicted_unread += frame.unread
            self._tell(frame)
            self._unname(frame)
        else:
            return None
        frame.length = 0
        frame.pins = 1
        return frame

    def admit(self, frame: Frame, key: SlotRef) -> Frame:
        """Let a private, pinned frame be found as `key`; return the one that is found there, which is another one
        if the extent was here already.
        """
        resident = self._found.setdefault(key, frame)
        if resident is frame:
            frame.key = key
            frame.unread = True
            frame.ahead = frame.kept = False
        return resident

    def forget(self, keys: Iterable[SlotRef]) -> None:
        """Let nobody find these any more; pinned frames become private to their holders."""
        for key in keys:
            frame = self._found.pop(key, None)
            if frame is None:
                continue
            self._tell(frame)
            if not frame.pins and not frame.pending:
                del self._shelf(frame)[frame]
                frame.key = None
                self._settle(frame)
            frame.key = None

    def give_up(self, key: SlotRef) -> None:
        """Nobody will ask for what was read before anybody had: it is the next to go. Nothing if somebody has."""
        frame = self._found.get(key)
        if frame is not None and frame.kept and frame.unread:
            self._tell(frame)
            is_idle = self._awaiting.pop(frame, self) is None
            frame.ahead = frame.kept = False
            if is_idle:
                self._idle[frame] = None
                self._idle.move_to_end(frame, last=False)

    def demote(self, keys: Iterable[SlotRef]) -> None:
        """Let these be the next to go, if they are idle."""
        for key in keys:
            frame = self._found.get(key)
            if frame is not None and frame in self._idle:
                self._idle.move_to_end(frame, last=False)

    def io_began(self, frame: Frame) -> None:
        """An I/O on a pinned frame was given up and has not returned.

        :raises ValueError: the frame is not pinned, so it may be somebody else's already
        """
        if frame.pins < 1:
            raise ValueError("the frame is not pinned")
        frame.pending += 1

    def io_returned(self, frame: Frame) -> None:
        """The end of what `io_began` began."""
        frame.pending -= 1
        if frame.pending == 0 and frame.pins == 0:
            self.zombies -= 1
            self._settle(frame)

    def _settle(self, frame: Frame) -> None:
        """Put a frame that nobody holds and nothing touches where it belongs."""
        if frame.key is None:
            self._free.append(frame)
        else:
            self._shelf(frame)[frame] = None

    def _shelf(self, frame: Frame) -> OrderedDict[Frame, None]:
        """Where a frame is while it is idle."""
        return self._awaiting if frame.kept and frame.unread else self._idle

    def _tell(self, frame: Frame) -> None:
        if frame.ahead and frame.unread and frame.key is not None:
            self.watcher.wasted(frame.key)

    def _unname(self, frame: Frame) -> None:
        assert frame.key is not None
        del self._found[frame.key]
        frame.key = None
