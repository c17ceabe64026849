"""Frames and slots of all drafts: where their bytes are, and how they get there.

Drafts share a bounded number of frames. When it is used up, the extent that nobody has touched for longest is
written to its slot and its frame passed on; it is read back, and verified, when it is wanted again. Only one task at
a time moves an extent's bytes, but bytes may be written into its frame meanwhile: its version tells, and a slot that
holds an older version is simply written again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import trio
from outcome import Outcome

from blockdev.errors import BlockError, NoSpace
from blockdev.locks import KeyedLocks
from blockdev.types import SlotRef, Xxh3
from kvfs.elsewhere import LOSSES, until_stored
from kvfs.errors import FramesClosed, FramesError
from kvfs.frames import Frame, FrameCache
from kvfs.fuse.content import DraftContent, DraftExtent, Flight, Saved
from kvfs.fuse.draft_frames import DraftFrames
from kvfs.fuse.ports import MustWait, PoolPort
from kvfs.fuse.saving import Saver
from kvfs.fuse.versions import Versions


class _Left:
    """What to do when the last thread has left an extent."""

    call: Callable[[], None]

    def __call__(self) -> None:
        self.call()


def _taken_off(outcome: Outcome[None]) -> None:
    outcome.unwrap()


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
        self._saver = Saver(pool, frames, versions, self._still)
        self._nursery = nursery
        self._busy: KeyedLocks[DraftExtent] = KeyedLocks()
        self._share = DraftFrames(frames, limit=limit, patience=patience)
        self.zeros = self._saver.zeros
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
        prepared = [extent for extent in self._share if extent.owner.prepared.get(extent.index) is extent]
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
        if not content.intake.serves or self._knows(content, index) or self._share.is_full:
            return
        try:
            slot = await self._pool.reserve(content.extent_size)
        except BlockError:
            return
        frame = None if self._knows(content, index) or content.error is not None else self._share.try_take()
        if frame is None:
            self._pool.give_back(slot)
        else:
            self.make_ready(content, index, slot, frame)

    def room_at_once(self, length: int) -> tuple[SlotRef, Frame]:
        """A slot and a frame for `make_ready`. :raises MustWait: there are none"""
        frame = self._share.try_take()
        if frame is None:
            raise MustWait
        slot = self._pool.try_reserve(length)
        if slot is None:
            self._share.put_back(frame)  # for which nobody waits, or it would have been theirs
            raise MustWait
        return slot, frame

    def make_ready(self, content: DraftContent, index: int, slot: SlotRef, frame: Frame) -> None:
        """Let threads put bytes into an extent that nobody knows yet."""
        extent = content.prepared[index] = DraftExtent(content, index, slot)
        self._share.give(extent, frame)
        content.intake.open(extent)

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
            self.send_soon(extent)

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
        self._share.touch(extent)
        return extent.frame

    async def complete(self, extent: DraftExtent) -> Frame:
        """Like `bring`, and every byte of the frame below the end of the file is what the file has there."""
        while True:
            frame = await self.bring(extent)
            if extent.written.covers(0, extent.used):
                return frame
            async with self._hold(extent):
                await self._load(extent)
                self.catch_up(extent.owner)
                await self._saver.fill(extent)

    def send_soon(self, extent: DraftExtent) -> None:
        """More of an extent has arrived: write it to its slot in the background, or what there is, if that pays."""
        if extent.is_whole:
            flight = self._launch(extent)
            if flight is not None:
                trio.lowlevel.start_thread_soon(flight.take_off, _taken_off)
            else:
                self._nursery.start_soon(self._save_quietly, extent)
        elif self._saver.part_of(extent):
            self._nursery.start_soon(self._send_quietly, extent)

    def launch(self, extent: DraftExtent) -> Flight | None:
        """Take in what threads have written, and make ready to write an extent to its slot now that all of it has come;
        None if that is left to the trio thread. Whoever holds the extent next waits for it.
        """
        more = extent.owner.catch_up()
        flight = self._launch(extent) if extent in more else None
        for other in more:
            if flight is None or other is not extent:
                other.owner.intake.have(self.send_soon, other)
        return flight

    def _launch(self, extent: DraftExtent) -> Flight | None:
        is_ready = extent.is_whole and extent.slot is not None and extent.frame is not None
        is_idle = not (extent.sent or extent.flight or extent.dead or self._busy.is_wanted(extent))
        return self._saver.launch(extent) if is_ready and is_idle else None

    def run_soon(self, function: Callable[[DraftExtent], Awaitable[None]], extent: DraftExtent) -> None:
        """Do something about an extent in the background."""
        self._nursery.start_soon(function, extent)

    async def settle(self, extent: DraftExtent, nursery: trio.Nursery) -> tuple[SlotRef, Xxh3]:
        """See that a slot of the smallest class that serves holds the extent's newest bytes, or will: `arrive` tells.

        The draft must not change until then. The slot remains the extent's.

        :param nursery: for what goes on
        :raises BlockError, FramesError:
        """
        await self._saver.digested(extent)
        known = self.settled(extent)
        if known is not None:
            extent.promised = True
            return known
        state = await nursery.start(self._settle, extent)
        extent.promised = True
        assert extent.slot is not None
        return extent.slot, state.xxh3

    def settled(self, extent: DraftExtent) -> tuple[SlotRef, Xxh3] | None:
        """What `settle` would say, if it need do nothing for it; a promise it becomes when the caller notes it."""
        state = self._newest(extent)
        if state is None or extent.slot is None or self._should_move(extent):
            return None
        return None if self._pool.slot_size(state.length) < extent.slot_size else (extent.slot, state.xxh3)

    async def _settle(self, extent: DraftExtent, *, task_status: trio.TaskStatus[Saved]) -> None:
        begun = False

        def begin(state: Saved) -> None:
            nonlocal begun
            begun = extent.promised = True
            task_status.started(state)

        try:
            async with self._hold(extent):
                await self._find_slot(extent)
                if self._newest(extent) is None:
                    await self._load(extent)
                await self._move_to_smaller(extent, extent.used)
                state = self._newest(extent)
                if state is not None:
                    begin(state)
                else:
                    await self._save(extent, begin)
        except (BlockError, FramesError) as error:
            if not begun:
                raise
            if not isinstance(error, LOSSES):  # else the publication fails, and begins again with other slots
                extent.owner.fail(error)

    @staticmethod
    def _newest(extent: DraftExtent) -> Saved | None:
        """What says that the slot holds the newest bytes below the end of the file, or will if nothing goes wrong."""
        for state in (extent.saved, extent.sending):
            if state is not None and (state.version, state.length) == (extent.version, extent.used):
                return state
        return extent.arriving

    async def arrive(self, extents: Iterable[DraftExtent]) -> None:
        """See that what `settle` promised has come true; when this returns or raises, nothing more is on its way.

        :raises BlockError, FramesError: one was not written
        """
        failed: Exception | None = None
        for extent in extents:
            async with self._hold(extent):
                try:
                    extent.owner.check()
                    if extent.loss is not None:
                        raise extent.loss
                    if self._newest(extent) is None:  # who wrote it was cancelled
                        await self._load(extent)
                        await self._saver.save(extent)
                except Exception as error:  # noqa: BLE001 - raised below
                    failed = failed or error
        if failed is not None:
            raise failed

    def release(self, extent: DraftExtent) -> Frame | None:
        """Take a settled extent out of the draft: its slot was handed over. Returns its frame, still pinned."""
        extent.slot = None
        extent.dead = True
        frame = extent.frame
        if frame is not None:
            self._share.forget(extent)
            alone = extent.owner.intake.shut(extent, lambda: None)
            assert alone
        return frame

    def take_back(self, extents: Iterable[DraftExtent], error: BaseException) -> None:
        """A publication failed that their slots were handed over to: the bytes in memory are the extents' again.

        :param error: what it failed with; so do the drafts of which bytes are not in memory
        """
        for extent in extents:
            if extent.frame is None:
                cause = error if isinstance(error, Exception) else FramesClosed("it was cut short")
                extent.owner.fail(cause)
            extent.slot, extent.loss, extent.saved, extent.sent, extent.promised = None, None, None, 0, False

    def discard(self, extent: DraftExtent) -> None:
        """Let an extent go, now or as soon as whoever works on it is done: frame and slot are free again."""
        extent.dead = True
        if extent.flight is not None:
            self._nursery.start_soon(self._bury_landed, extent)
            return
        with self._busy.try_hold(extent) as free:
            if free:
                self._bury(extent)

    # --- moving bytes; the extent is held

    @asynccontextmanager
    async def _hold(self, extent: DraftExtent) -> AsyncIterator[None]:
        async with self._busy.hold(extent):
            try:
                await self._land(extent)
                yield
            finally:
                if extent.dead:
                    self._bury(extent)
                self._share.wake()

    async def _land(self, extent: DraftExtent) -> None:
        """Wait for what was launched; what goes wrong is the draft's to tell."""
        try:
            await self._saver.land(extent)
        except LOSSES:
            pass  # all of it is written again, elsewhere; see `_should_move`, and `arrive` if it was promised
        except BlockError as error:
            extent.owner.fail(error)

    async def _bury_landed(self, extent: DraftExtent) -> None:
        async with self._hold(extent):
            pass  # it is dead

    async def _load(self, extent: DraftExtent) -> None:
        """Give the extent a frame, and what its slot holds."""
        if extent.dead:
            raise FramesClosed("the file was closed")
        if extent.frame is not None:
            return
        frame = await self._share.take(self._spill_one)
        try:
            if extent.saved is not None and extent.slot is not None:
                await self._saver.read_back(extent.slot, extent.saved, frame)
        except BaseException as error:
            self._share.put_back(frame, error)
            raise
        self._share.give(extent, frame)

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
        extent.slot, extent.slot_size = smaller, size
        extent.saved, extent.sent = None, 0

    async def _save(self, extent: DraftExtent, on_digest: Callable[[Saved], object] = lambda _: None) -> None:
        """Write all of an extent, which has a frame, to its slot; to another one if the device is lost under it."""

        async def save() -> None:
            await self._find_slot(extent)
            await self._saver.save(extent, on_digest)

        def note(loss: BlockError) -> None:
            if not self._should_move(extent):
                raise loss

        await until_stored(save, note)

    def _should_move(self, extent: DraftExtent) -> bool:
        """Whether it has no slot, or one whose device is or was lost, and its bytes are in memory."""
        if extent.frame is None or extent.promised:
            return False
        return extent.slot is None or extent.loss is not None or self._pool.is_lost(extent.slot)

    async def _find_slot(self, extent: DraftExtent) -> None:
        """Take another slot, if the extent has none, or one on a device that is or was lost, and it can."""
        if self._should_move(extent):
            slot = await self._reserve(extent.slot_size)
            self._give_back(extent)
            extent.slot, extent.loss, extent.saved, extent.sent = slot, None, None, 0

    async def _save_quietly(self, extent: DraftExtent) -> None:
        """Save; what goes wrong is the draft's to tell."""
        try:
            async with self._hold(extent):
                if not extent.dead and extent.frame is not None and not extent.is_saved:
                    await self._save(extent)
        except LOSSES as error:
            self._bear(extent, error)
        except (BlockError, FramesError) as error:
            extent.owner.fail(error)

    async def _send_quietly(self, extent: DraftExtent) -> None:
        """Send a part, if that still pays."""
        try:
            async with self._hold(extent):
                if not extent.dead and extent.frame is not None and (stop := self._saver.part_of(extent)):
                    await self._find_slot(extent)
                    await self._saver.send(extent, stop)
        except LOSSES as error:
            self._bear(extent, error)
        except (BlockError, FramesError) as error:
            extent.owner.fail(error)

    def _bear(self, extent: DraftExtent, error: BlockError) -> None:
        """A device was lost under a write that nobody waits for: all of it goes elsewhere, when it is wanted there."""
        if not (extent.promised or self._should_move(extent)):  # what was promised is for `arrive` to tell
            extent.owner.fail(error)

    # --- frames

    async def _spill_one(self) -> bool:
        """Free the frame of the extent that was touched longest ago; False if all are being worked on."""
        for extent in self._share:
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

    def _drop_frame(self, extent: DraftExtent) -> None:
        if extent.frame is None:
            return
        left = _Left()
        alone = extent.owner.intake.shut(extent, left)
        left.call = partial(self._frames.unpin, extent.frame)  # which is final only now
        self._share.forget(extent)
        if alone:
            left()

    # --- the end

    def _bury(self, extent: DraftExtent) -> None:
        self._drop_frame(extent)
        self._give_back(extent)

    def _give_back(self, extent: DraftExtent) -> None:
        # The pool does not reuse a slot in which a write that was given up may still land.
        if extent.slot is not None:
            self._pool.give_back(extent.slot)
            extent.slot = None
