"""The DRAM tier: verified extents in aligned frames of one arena, shared by all readers.

Everything here belongs to the trio thread and changes only between awaits, so each method is atomic up to its
first await. Other threads may read the memory of frames that the trio thread keeps pinned for them, no more.

Two rules keep it fair. A frame that comes free goes at once to whoever has waited longest, so while anybody
waits there is neither a free nor an idle frame that a newcomer could take. And a load belongs to the nursery,
not to the first task that asked for it, so cancelling one of several readers of an extent touches no other.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

import trio

from blockdev.errors import BlockError, DeviceTimeout
from blockdev.forks import ends_in_children
from kvfs.arena import Arena
from kvfs.errors import FramesClosed, FramesError, NoFrames
from kvfs.frame_table import Frame, FrameStatistics, FrameTable, Landed, Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from blockdev.errors import Pending
    from blockdev.types import Descriptor, SlotRef

__all__ = ["Arena", "ExtentSource", "Frame", "FrameCache", "FrameStatistics", "Watcher", "open_frames"]


class ExtentSource(Protocol):
    """Where extents come from; `blockdev.pool.Pool` is one."""

    async def read_extent(self, descriptor: Descriptor, index: int, into: memoryview, /) -> int:
        """Fill `into` with extent `index`, verified; return its length in bytes.

        :raises BlockError:
        """


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0
    coalesced: int = 0
    bytes_loaded: int = 0
    failed_loads: int = 0
    starved: int = 0
    read_ahead: int = 0
    read_ahead_used: int = 0
    read_ahead_refused: int = 0


class _Load:
    """One read of an extent into a frame, and those who wait for it."""

    __slots__ = (
        "ahead",
        "done",
        "error",
        "frame",
        "index",
        "key",
        "landed",
        "limited",
        "reading",
        "scope",
        "waiters",
    )

    def __init__(self, key: SlotRef, index: int, *, ahead: bool, limited: bool) -> None:
        self.key = key
        self.index = index
        self.ahead = ahead
        self.limited = limited
        self.landed: Landed | None = None
        self.waiters = 0
        self.reading = False
        self.done = trio.Event()
        # Around the wait for a frame only: a read that has begun is finished, whoever is left to want it.
        self.scope = trio.CancelScope()
        self.frame: Frame | None = None
        self.error: Exception | None = None


class FrameCache:
    """Look-up, loading, pinning and eviction of frames. Made by `open_frames`.

    Every method that returns a Frame returns it pinned: the caller owes one `unpin`.
    """

    def __init__(
        self,
        arena: Arena,
        source: ExtentSource,
        nursery: trio.Nursery,
        *,
        patience: float = 5.0,
        read_ahead_limit: int = 8,
    ) -> None:
        self.frame_size = arena.frame_size
        self._table = FrameTable(arena.views)
        self._source = source
        self._nursery = nursery
        self._patience = patience
        self._ahead_limit = read_ahead_limit
        self._ahead_spare = max(1, len(arena.views) // 8)
        self._token = trio.lowlevel.current_trio_token()
        self._loads: dict[SlotRef, _Load] = {}
        # Who waits for a frame, in order of arrival; a frame is handed over by putting it into the task's list.
        self._queue: OrderedDict[trio.lowlevel.Task, list[Frame]] = OrderedDict()
        self._loading = 0
        self._loading_ahead = 0
        self._limited = 0
        self._reading = 0
        self._reading_ahead = 0
        self._closed = False
        self._counts = _Counts()
        ends_in_children(self)

    def end_in_child(self) -> None:
        """After a fork: frames may be the parent's memory, which it goes on writing to."""
        self._closed = True

    def peek(self, slot: SlotRef) -> Frame | None:
        """The extent in a slot if it is here, pinned; None if not. Loads nothing."""
        frame = self._table.find(slot)
        if frame is None or self._closed:
            return None
        self._table.pin(frame)
        self._counts.hits += 1
        if frame.unread:
            frame.unread = False
            if frame.ahead:
                self._counts.read_ahead_used += 1
                self._table.watcher.used(slot, late=False)
        return frame

    async def get(self, descriptor: Descriptor, index: int, slot: SlotRef) -> Frame:
        """Extent `index` of an object, which is in `slot`, pinned and verified. No checkpoint if it is here.

        :raises NoFrames: no frame came free in time
        :raises FramesClosed:
        :raises BlockError: whatever the source raises
        """
        frame = self.peek(slot)
        if frame is not None:
            return frame
        self._check_open()
        load = self._loads.get(slot)
        if load is None:
            self._counts.misses += 1
            self._table.watcher.missed(slot, min(self.frame_size, descriptor.size - index * self.frame_size))
            load = self._begin(descriptor, index, slot, None)
        else:
            self._counts.coalesced += 1
        return await self._join(load)

    def watch(self, watcher: Watcher) -> None:
        """Tell it from here on what becomes of what is fetched before anybody asks."""
        self._table.watcher = watcher

    def holds(self, slot: SlotRef) -> bool:
        """Whether the extent in a slot is here."""
        return self._table.find(slot) is not None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a frame, so that to give one back wakes a task up."""
        return bool(self._queue)

    def read_ahead(self, descriptor: Descriptor, extents: Iterable[tuple[int, SlotRef]]) -> int:
        """Begin to load what is not here, as far as it takes no frame that somebody may need.

        :param extents: index and slot of each
        :returns: how many loads were begun; their failures are counted, not reported
        """
        begun = 0
        for index, slot in extents:
            if slot in self._loads or self._table.find(slot) is not None:
                continue
            if self._closed or not self._may_read_ahead():
                self._counts.read_ahead_refused += 1
                continue
            self._begin(descriptor, index, slot, self._table.take(), limited=True)
            self._counts.read_ahead += 1
            begun += 1
        return begun

    def fetch(self, descriptor: Descriptor, index: int, slot: SlotRef) -> bool:
        """As `read_ahead`, for who keeps count of what is under way; whether the load was begun.

        What comes is kept longer than what has been used: whoever fetches says in the end that it is to be given up.
        """
        if self._closed or slot in self._loads or self._table.find(slot) is not None or not self._can_spare():
            return False
        self._begin(descriptor, index, slot, self._table.take())
        self._counts.read_ahead += 1
        return True

    def give_up(self, slot: SlotRef) -> None:
        """What was fetched is not expected to be asked for any more: it is the next to go, if nobody does."""
        self._table.give_up(slot)

    def demote(self, slots: Iterable[SlotRef]) -> None:
        """These are worth less than all else that nobody uses: they are the next to go."""
        self._table.demote(slots)

    def is_loading(self, slot: SlotRef) -> bool:
        """Whether the extent in a slot is on its way, so that `get` would wait for it and read nothing."""
        return slot in self._loads

    def passed_by(self, slot: SlotRef, length: int) -> None:
        """Somebody reads an extent that is not here without bringing it here."""
        self._table.watcher.missed(slot, length)

    @property
    def reading(self) -> int:
        """Extents that are being read, for whomever."""
        return self._reading

    @property
    def demanded(self) -> int:
        """Loads under way that were begun for somebody who waits."""
        return self._loading - self._loading_ahead

    def _may_read_ahead(self) -> bool:
        return self._can_spare() and self._limited < self._ahead_limit

    def _can_spare(self) -> bool:
        return self._table.free + self._table.idle > self._ahead_spare

    async def allocate(self) -> Frame:
        """A private frame, pinned, its bytes undefined. Evicts the coldest idle extent if need be, and waits in
        order of arrival while everything is pinned. No checkpoint if there is a frame at once.

        :raises NoFrames: none came free in time
        :raises FramesClosed:
        """
        self._check_open()
        frame = self._table.take()
        if frame is not None:
            return frame
        try:
            with trio.fail_after(self._patience):
                return await self._wait_for_frame()
        except trio.TooSlowError:
            self._counts.starved += 1
            count = len(self._table.frames)
            message = f"all {count} frames are in use; none came free within {self._patience:g} s"
            raise NoFrames(message) from None

    @property
    def count(self) -> int:
        """How many frames there are."""
        return len(self._table.frames)

    def try_allocate(self) -> Frame | None:
        """A private frame, pinned, its bytes undefined; None if there is none at once."""
        return None if self._closed else self._table.take()

    def adopt(self, frame: Frame, slot: SlotRef, length: int) -> None:
        """Let others find the holder's private frame as the extent in `slot`, `length` bytes of it.

        The holder keeps its pin and may not change the bytes any more. Where the extent is here already, that
        one stays and the frame remains private.

        :raises ValueError: the frame is not private or not pinned
        """
        if frame.pins < 1 or frame.key is not None:
            raise ValueError("not a private, pinned frame")
        frame.length = length
        self._table.admit(frame, slot)

    def unpin(self, frame: Frame) -> None:
        """Give back one pin. Without the last one the frame may be reused, unless an I/O still touches it.

        :raises ValueError: the frame is not pinned
        """
        self._table.unpin(frame)
        self._serve()

    def hold_until(self, frame: Frame, pending: Pending) -> None:
        """Keep a pinned frame from reuse, beyond its last pin, until an I/O that was given up has returned.

        For writes that timed out; the loads of this class do it themselves.

        :raises ValueError: the frame is not pinned
        """
        self._table.io_began(frame)

        def returned() -> None:
            # Runs in any thread, perhaps at once, perhaps after trio's end, when nobody reuses frames any more.
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._io_returned, frame)

        pending.add_done_callback(returned)

    def forget(self, slots: Iterable[SlotRef]) -> None:
        """Extents that nobody will ask for any more: their frames are the next to be used for others. Holders of
        pinned frames keep them.
        """
        self._table.forget(slots)

    def close(self) -> None:
        """Refuse further requests and end all waiting for frames. Frames stay valid for their holders."""
        self._closed = True
        while self._queue:
            task, _ = self._queue.popitem(last=False)
            trio.lowlevel.reschedule(task)

    def statistics(self) -> FrameStatistics:
        """A frozen snapshot."""
        table = self._table
        return FrameStatistics(
            frames=len(table.frames),
            frame_size=self.frame_size,
            free=table.free,
            idle=table.idle,
            pinned=table.pinned,
            zombies=table.zombies,
            waiting=len(self._queue),
            loading=self._loading,
            evicted=table.evicted,
            evicted_unread=table.evicted_unread,
            **asdict(self._counts),
        )

    def _check_open(self) -> None:
        if self._closed:
            raise FramesClosed("the DRAM tier is closed")

    def _io_returned(self, frame: Frame) -> None:
        self._table.io_returned(frame)
        self._serve()

    def _serve(self) -> None:
        """Hand a frame that has come free to whoever has waited longest."""
        if self._queue:
            frame = self._table.take()
            if frame is not None:
                task, handed = self._queue.popitem(last=False)
                handed.append(frame)
                trio.lowlevel.reschedule(task)

    async def _wait_for_frame(self) -> Frame:
        task = trio.lowlevel.current_task()
        handed: list[Frame] = []
        self._queue[task] = handed

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            del self._queue[task]
            return trio.lowlevel.Abort.SUCCEEDED

        # A frame that was handed over arrives even if the task is cancelled in the same moment, and from here to
        # the caller of `allocate` there is no checkpoint at which it could be lost.
        await trio.lowlevel.wait_task_rescheduled(abort)
        if not handed:
            raise FramesClosed("the DRAM tier was closed")
        return handed[0]

    def _begin(
        self, descriptor: Descriptor, index: int, slot: SlotRef, frame: Frame | None, *, limited: bool = False
    ) -> _Load:
        """Start a load; one that is given its frame was not asked for."""
        load = self._loads[slot] = _Load(slot, index, ahead=frame is not None, limited=limited)
        self._loading += 1
        self._limited += limited
        self._loading_ahead += load.ahead
        self._nursery.start_soon(self._run, load, descriptor, frame)
        return load

    async def _join(self, load: _Load) -> Frame:
        load.waiters += 1
        try:
            await load.done.wait()
        except BaseException:
            self._leave(load)
            raise
        if load.frame is None:
            assert load.error is not None
            raise load.error
        return load.frame

    def _leave(self, load: _Load) -> None:
        """A reader was cancelled, perhaps after the load had ended and pinned the frame for it."""
        if load.frame is not None:
            self.unpin(load.frame)
            return
        load.waiters -= 1
        if load.waiters == 0 and not load.reading:
            # It waits for a frame that nobody wants. Who asks from now on begins a load of their own: joining
            # this one would hand them its cancellation.
            load.scope.cancel()
            self._drop(load)

    async def _run(self, load: _Load, descriptor: Descriptor, frame: Frame | None) -> None:
        try:
            if frame is None:
                with load.scope:
                    frame = await self.allocate()
            if frame is not None:
                await self._fill(load, descriptor, frame)
        except (BlockError, FramesError) as error:
            self._counts.failed_loads += 1
            load.error = error
        finally:
            self._finish(load)

    async def _fill(self, load: _Load, descriptor: Descriptor, frame: Frame) -> None:
        load.reading = True
        self._reading += 1
        began, flying, beside, length = trio.current_time(), self._reading, self._reading_ahead, None
        self._reading_ahead += load.ahead
        try:
            length = await self._source.read_extent(descriptor, load.index, frame.view)
        except BaseException as error:
            if isinstance(error, DeviceTimeout) and error.pending is not None:
                self.hold_until(frame, error.pending)
            self.unpin(frame)
            raise
        finally:
            self._reading -= 1
            self._reading_ahead -= load.ahead
            seconds = trio.current_time() - began
            load.landed = Landed(load.key, length, seconds, flying, load.ahead, beside)
        frame.length = length
        self._counts.bytes_loaded += length
        self._deliver(load, frame)

    def _deliver(self, load: _Load, frame: Frame) -> None:
        """Pin the extent once for each reader that waits, before any of them runs, and give up the load's pin."""
        found = self._table.admit(frame, load.key)
        for _ in range(load.waiters):
            self._table.pin(found)
        if load.waiters:
            load.frame = found
            found.unread = False
            if load.ahead:
                self._counts.read_ahead_used += 1
                self._table.watcher.used(load.key, late=True)
        elif found is frame:
            frame.ahead = load.ahead
            frame.kept = load.ahead and not load.limited
        elif load.ahead:
            self._table.watcher.wasted(load.key)
        self.unpin(frame)

    def _finish(self, load: _Load) -> None:
        self._loading -= 1
        self._loading_ahead -= load.ahead
        self._limited -= load.limited
        self._drop(load)
        if load.frame is None and load.error is None:
            load.error = FramesClosed("the DRAM tier was closed")
        load.done.set()
        if load.landed is not None:
            self._table.watcher.landed(load.landed)

    def _drop(self, load: _Load) -> None:
        """Let nobody join a load any more."""
        if self._loads.get(load.key) is load:
            del self._loads[load.key]


@asynccontextmanager
async def open_frames(
    arena: Arena, source: ExtentSource, *, patience: float = 5.0, read_ahead_limit: int = 8
) -> AsyncIterator[FrameCache]:
    """The DRAM tier for the length of the block. Leaving it waits for reads that have begun, which the devices'
    deadlines bound.

    :param patience: how long a request waits for a frame, in seconds
    :param read_ahead_limit: most loads under way that nobody has asked for
    """
    async with trio.open_nursery() as nursery:
        cache = FrameCache(arena, source, nursery, patience=patience, read_ahead_limit=read_ahead_limit)
        try:
            yield cache
        finally:
            cache.close()
            nursery.cancel_scope.cancel()
