"""Frames and slots of all drafts: where their bytes are, and how they get there.

Drafts share a bounded number of frames. When it is used up, the extent that nobody has touched for longest is
written to its slot and its frame passed on; it is read back, and verified, when it is wanted again. Only one task at
a time moves an extent's bytes, but bytes may be written into its frame meanwhile: its version tells, and a slot that
holds an older version is simply written again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio
from xxhash import xxh3_64_intdigest

from blockdev.errors import BlockError, ChecksumError, DeviceError, DeviceTimeout, NoSpace, Unavailable
from blockdev.locks import KeyedLocks
from blockdev.media import padded
from blockdev.tasks import background
from blockdev.types import SlotRef, Xxh3
from kvfs.errors import FramesClosed, FramesError, NoFrames
from kvfs.frames import Frame, FrameCache
from kvfs.fuse.content import DraftContent, DraftExtent, Saved
from kvfs.fuse.ports import PoolPort
from kvfs.fuse.versions import Versions


class _Left:
    """What to do when the last thread has left an extent."""

    call: Callable[[], None]

    def __call__(self) -> None:
        self.call()


class DraftMemory:
    """Moves the extents of drafts between frames and slots.

    :param limit: most frames that drafts hold at once; at least 1
    :param patience: how long a request waits for a frame of another draft, in seconds
    """

    def __init__(
        self,
        pool: PoolPort,
        frames: FrameCache,
        versions: Versions,
        nursery: trio.Nursery,
        *,
        limit: int,
        patience: float = 10.0,
    ) -> None:
        self._pool = pool
        self._frames = frames
        self._versions = versions
        self._nursery = nursery
        self._limit = limit
        self._patience = patience
        self._busy: KeyedLocks[DraftExtent] = KeyedLocks()
        self._resident: OrderedDict[DraftExtent, None] = OrderedDict()
        """Extents with a frame, those touched last at the end."""
        self._taken = 0
        self._changed = trio.Event()
        self.zeros = memoryview(bytes(pool.extent_size))
        """As many as an extent has bytes."""
        self.spilled = 0
        """Frames passed on for want of others, since the mount was made."""

    # --- for drafts

    async def add(self, content: DraftContent, index: int) -> DraftExtent:
        """The draft's own extent `index`, with a slot; new if there was none.

        :raises BlockError: no slot, NoSpace above all
        """
        self.catch_up(content)
        extent = content.extents.get(index)
        if extent is None and index in content.prepared:
            content.intake.claim(content.prepared[index])
            extent = content.extents[index] = content.prepared.pop(index)
        if extent is None:
            slot = await self._reserve(content.extent_size)
            extent = content.extents[index] = DraftExtent(content, index, slot)
        return extent

    async def _reserve(self, length: int) -> SlotRef:
        try:
            return await self._pool.reserve(length)
        except NoSpace:
            # What was made ready for writes that may never come is no reason to refuse one that has.
            if not self._drop_prepared():
                raise
            return await self._pool.reserve(length)

    def _drop_prepared(self) -> bool:
        """Give back what was prepared and is not used yet; whether there was any."""
        prepared = [extent for extent in self._resident if extent.owner.prepared.get(extent.index) is extent]
        dropped = [self._drop_unused(extent) for extent in prepared]
        return any(dropped)

    def _drop_unused(self, extent: DraftExtent) -> bool:
        """Give back a prepared extent; False if somebody is writing or has written to it."""
        if not extent.owner.intake.shut(extent, lambda: None):
            return False
        self.catch_up(extent.owner)
        if extent.owner.prepared.get(extent.index) is not extent:
            return False
        del extent.owner.prepared[extent.index]
        self.discard(extent)
        return True

    async def prepare(self, content: DraftContent, index: int) -> None:
        """Have a slot and a frame ready for an extent's first bytes, and let threads put them there.

        Only if that takes no frame that others wait for; a failure to find a slot is for who writes to tell.
        """
        if not content.intake.serves or self._knows(content, index) or self._taken >= self._limit:
            return
        try:
            slot = await self._pool.reserve(content.extent_size)
        except BlockError:
            return
        frame = self._frames.try_allocate() if self._taken < self._limit else None
        if frame is None or self._knows(content, index) or content.error is not None:
            self._pool.give_back(slot)
            if frame is not None:
                self._frames.unpin(frame)
            return
        self._taken += 1
        extent = content.prepared[index] = DraftExtent(content, index, slot)
        extent.frame = frame
        self._touch(extent)
        self.admit(extent)

    @staticmethod
    def _knows(content: DraftContent, index: int) -> bool:
        return index in content.extents or index in content.prepared

    def admit(self, extent: DraftExtent) -> None:
        """Let threads put bytes into an extent, if it is ready and nobody moves its bytes."""
        if extent.frame is None or extent.slot is None or extent.dead or not extent.owner.intake.serves:
            return
        with self._busy.try_hold(extent) as free:
            if free:
                extent.owner.intake.open(extent)

    def catch_up(self, content: DraftContent) -> None:
        """Take in what threads have written."""
        for extent in content.catch_up():
            self.save_soon(extent)

    async def still(self, content: DraftContent) -> None:
        """See that no thread puts bytes into a draft, and take in what they have put. They stay out of what they were
        in until it is admitted again.
        """
        for extent in content.intake.open_extents():
            await self._shut(extent)
        self.catch_up(content)

    async def _still(self, extent: DraftExtent) -> None:
        await self._shut(extent)
        self.catch_up(extent.owner)

    async def _shut(self, extent: DraftExtent) -> None:
        left = trio.Event()
        if not extent.owner.intake.shut(extent, left.set):
            await left.wait()

    async def bring(self, extent: DraftExtent) -> Frame:
        """The extent's frame, with its newest bytes; there is no checkpoint after it was found to be there.

        :raises BlockError, FramesError:
        """
        while extent.frame is None:
            async with self._hold(extent):
                await self._load(extent)
        self._touch(extent)
        return extent.frame

    async def complete(self, extent: DraftExtent) -> Frame:
        """Like `bring`, and every byte of the frame below the end of the file is what the file has there."""
        while True:
            frame = await self.bring(extent)
            if extent.written.covers(0, extent.used):
                return frame
            async with self._hold(extent):
                await self._load(extent)
                await self._fill(extent)

    def save_soon(self, extent: DraftExtent) -> None:
        """Write an extent to its slot in the background."""
        self._nursery.start_soon(self._save_quietly, extent)

    def run_soon(self, function: Callable[[DraftExtent], Awaitable[None]], extent: DraftExtent) -> None:
        """Do something about an extent in the background."""
        self._nursery.start_soon(function, extent)

    async def settle(self, extent: DraftExtent) -> tuple[SlotRef, Xxh3]:
        """See that a slot of the smallest class that serves holds the extent's newest bytes.

        The draft must not change meanwhile. The slot remains the extent's.

        :raises BlockError, FramesError:
        """
        async with self._hold(extent):
            await self._leave_lost_device(extent)
            assert extent.slot is not None
            used = extent.used
            if self._is_settled(extent, used):
                await self._move_to_smaller(extent, used)
            if not self._is_settled(extent, used):
                await self._load(extent)
                await self._move_to_smaller(extent, used)
                await self._save(extent)
            assert extent.saved is not None
            return extent.slot, extent.saved.xxh3

    def release(self, extent: DraftExtent) -> Frame | None:
        """Take a settled extent out of the draft: its slot was handed over. Returns its frame, still pinned."""
        extent.slot = None
        extent.dead = True
        frame = extent.frame
        if frame is not None:
            self._forget_frame(extent)
            alone = extent.owner.intake.shut(extent, lambda: None)
            assert alone
        return frame

    def discard(self, extent: DraftExtent) -> None:
        """Let an extent go, now or as soon as whoever works on it is done: frame and slot are free again."""
        extent.dead = True
        with self._busy.try_hold(extent) as free:
            if free:
                self._bury(extent)

    # --- moving bytes; the extent is held

    @asynccontextmanager
    async def _hold(self, extent: DraftExtent) -> AsyncIterator[None]:
        async with self._busy.hold(extent):
            try:
                yield
            finally:
                if extent.dead:
                    self._bury(extent)
                self._wake()

    async def _load(self, extent: DraftExtent) -> None:
        """Give the extent a frame, and what its slot holds."""
        if extent.dead:
            raise FramesClosed("the file was closed")
        if extent.frame is not None:
            return
        frame = await self._take()
        try:
            if extent.saved is not None and extent.slot is not None:
                await self._read_back(extent.slot, extent.saved, frame)
        except BaseException as error:
            self._give_up(frame, error)
            self._taken -= 1
            raise
        extent.frame = frame
        self._touch(extent)

    async def _read_back(self, slot: SlotRef, saved: Saved, frame: Frame) -> None:
        await self._pool.read_reserved(slot, frame.view[: padded(saved.length)])
        if xxh3_64_intdigest(frame.view[: saved.length]) != saved.xxh3:
            raise ChecksumError("a file that is being written: its slot holds other bytes than were written")

    async def _fill(self, extent: DraftExtent) -> None:
        """Make every byte below the end of the file the file's: from the base, else zeros."""
        content = extent.owner
        self.catch_up(content)
        if not extent.is_whole:  # threads must not write what is being filled in
            await self._still(extent)
        base = content.base
        if base is not None and extent.written.gaps(0, content.base_used(extent.index)):
            frame = await self._versions.get(base, extent.index)
            try:
                self._copy_gaps(extent, frame.view)
            finally:
                self._frames.unpin(frame)
        assert extent.frame is not None
        for start, stop in extent.written.gaps(0, extent.used):
            extent.frame.view[start:stop] = self.zeros[: stop - start]
            extent.version += 1
        extent.written.add(0, extent.used)

    def _copy_gaps(self, extent: DraftExtent, source: memoryview) -> None:
        assert extent.frame is not None
        # Asked again after the wait: bytes may have been written, or the file cut off.
        for start, stop in extent.written.gaps(0, extent.owner.base_used(extent.index)):
            extent.frame.view[start:stop] = source[start:stop]
            extent.written.add(start, stop)
            extent.version += 1

    async def _save(self, extent: DraftExtent) -> None:
        """Write the extent, which has a frame, to its slot; to another one if the device is lost under it."""
        await self._fill(extent)
        await self._leave_lost_device(extent)
        try:
            await self._write(extent)
        except DeviceTimeout:
            raise  # to write it again elsewhere would take longer than an operation may
        except (DeviceError, Unavailable):
            if extent.slot is None or not self._pool.is_lost(extent.slot):
                raise
        else:
            return
        await self._leave_lost_device(extent)
        await self._write(extent)

    async def _leave_lost_device(self, extent: DraftExtent) -> None:
        """Take a slot on another device for bytes that are still in memory, if its own is on one that is lost."""
        if extent.slot is not None and extent.frame is not None and self._pool.is_lost(extent.slot):
            slot = await self._reserve(extent.slot_size)
            self._give_back(extent)
            extent.slot, extent.saved = slot, None

    async def _write(self, extent: DraftExtent) -> None:
        frame, slot, used, version = extent.frame, extent.slot, extent.used, extent.version
        assert frame is not None
        assert slot is not None
        end = padded(used)
        frame.view[used:end] = self.zeros[: end - used]
        digests: list[Xxh3] = []

        async def digest() -> None:
            digests.append(Xxh3(xxh3_64_intdigest(frame.view[:used])))

        try:
            async with background() as nursery:
                nursery.start_soon(digest)  # runs when the write is on its way: that takes longer
                await self._pool.write(slot, frame.view[:end])
        except DeviceTimeout as error:
            if error.pending is not None:
                self._frames.hold_until(frame, error.pending)
            raise
        extent.saved = Saved(version, used, digests[0])

    def _is_settled(self, extent: DraftExtent, used: int) -> bool:
        return extent.is_saved and extent.saved is not None and extent.saved.length == used

    async def _move_to_smaller(self, extent: DraftExtent, used: int) -> None:
        """Take a slot of a smaller class if the file ends early in the extent; keep the old one if there is none."""
        size = self._pool.slot_size(used)
        if size >= extent.slot_size:
            return
        try:
            smaller = await self._pool.reserve(used)
        except NoSpace:
            return
        try:
            await self._load(extent)
        except BaseException:
            self._pool.give_back(smaller)
            raise
        self._give_back(extent)
        extent.slot, extent.slot_size, extent.saved = smaller, size, None

    async def _save_quietly(self, extent: DraftExtent) -> None:
        """Save; what goes wrong is the draft's to tell."""
        try:
            async with self._hold(extent):
                if not extent.dead and extent.frame is not None and not extent.is_saved:
                    await self._save(extent)
        except (BlockError, FramesError) as error:
            extent.owner.fail(error)

    # --- frames

    async def _take(self) -> Frame:
        """A private frame, within the limit.

        :raises NoFrames:
        """
        deadline = trio.current_time() + self._patience
        while self._taken >= self._limit:
            if not await self._spill_one():
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

    async def _spill_one(self) -> bool:
        """Free the frame of the extent that was touched longest ago; False if all are being worked on."""
        for extent in self._resident:
            with self._busy.try_hold(extent) as free:
                pass
            if free:
                await self._spill(extent)
                return True
        return False

    async def _spill(self, extent: DraftExtent) -> None:
        try:
            async with self._hold(extent):
                await self._still(extent)
                if extent.owner.prepared.get(extent.index) is extent:
                    del extent.owner.prepared[extent.index]
                    extent.dead = True
                if extent.frame is not None and not extent.dead and not extent.is_saved:
                    await self._save(extent)
                if extent.is_saved and extent.frame is not None:
                    self.spilled += 1
                    self._drop_frame(extent)
        except (BlockError, FramesError) as error:
            # Its bytes are lost for good: they will not be published, so that the frame can serve others.
            extent.owner.fail(error)
            if extent.frame is not None:
                self._drop_frame(extent)

    def _touch(self, extent: DraftExtent) -> None:
        self._resident[extent] = None
        self._resident.move_to_end(extent)

    def _forget_frame(self, extent: DraftExtent) -> None:
        extent.frame = None
        del self._resident[extent]
        self._taken -= 1
        self._wake()

    def _drop_frame(self, extent: DraftExtent) -> None:
        if extent.frame is None:
            return
        left = _Left()
        alone = extent.owner.intake.shut(extent, left)
        left.call = partial(self._frames.unpin, extent.frame)  # which is final only now
        self._forget_frame(extent)
        if alone:
            left()

    def _give_up(self, frame: Frame, error: BaseException) -> None:
        if isinstance(error, DeviceTimeout) and error.pending is not None:
            self._frames.hold_until(frame, error.pending)
        self._frames.unpin(frame)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- the end

    def _bury(self, extent: DraftExtent) -> None:
        self._drop_frame(extent)
        self._give_back(extent)

    def _give_back(self, extent: DraftExtent) -> None:
        # The pool does not reuse a slot in which a write that was given up may still land.
        if extent.slot is not None:
            self._pool.give_back(extent.slot)
            extent.slot = None
