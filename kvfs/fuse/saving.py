"""From frames to slots: how the bytes of files that are being written get to media.

What has arrived from an extent's beginning on may be sent while the rest still arrives, and a record may be made ready
while bytes are on their way: a slot may hold any part of an extent, since nobody looks at it before a record says what
is in it. Bytes may be written into the frame meanwhile: the extent then knows that what was sent is not what it has, and
it is sent again from there on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio
from xxhash import xxh3_64_intdigest

from blockdev.errors import BlockError, ChecksumError, DeviceTimeout
from blockdev.memory import padded
from blockdev.tasks import background
from blockdev.types import PAGE, Descriptor, SlotRef, Xxh3
from kvfs.elsewhere import LOSSES
from kvfs.frames import Frame, FrameCache
from kvfs.fuse.content import DraftExtent, Flight, Saved
from kvfs.fuse.intake import PART
from kvfs.fuse.ports import PoolPort
from kvfs.fuse.versions import Versions

Still = Callable[[DraftExtent], Awaitable[None]]
"""Sees that no thread puts bytes into an extent."""


class Saver:
    """Completes extents and writes them to their slots. Whoever calls holds the extent, which has a frame and a slot.

    :ivar zeros: as many as an extent has bytes
    """

    def __init__(self, pool: PoolPort, frames: FrameCache, versions: Versions, still: Still) -> None:
        self._pool = pool
        self._frames = frames
        self._versions = versions
        self._still = still
        self._under_way = 0
        self._digesting: dict[DraftExtent, trio.Event] = {}
        self.zeros = memoryview(bytes(pool.extent_size))

    def part_of(self, extent: DraftExtent) -> int:
        """Up to where it pays to send an extent that is not whole yet; 0 if it does not.

        When other writes are under way already the device is busy, and fewer, larger ones cost less.
        """
        arrived = extent.written.prefix // PAGE * PAGE
        return arrived if arrived - extent.sent >= PART and not self._under_way else 0

    async def send(self, extent: DraftExtent, stop: int) -> None:
        """Write the bytes up to `stop`, whole pages that have arrived, as far as they were not yet.

        :raises BlockError:
        """
        assert extent.frame is not None
        assert extent.slot is not None
        start, extent.reach = extent.sent, stop
        if start < stop:
            with self._noting_loss(extent):
                await self._write(extent.slot, extent.frame, start, stop)
        extent.sent = extent.reach

    async def save(self, extent: DraftExtent, on_digest: Callable[[Saved], object] = lambda _: None) -> None:
        """Write all of the extent that is below the end of the file.

        :param on_digest: told what the slot will hold; `extent.sending` says so then, too
        :raises BlockError, FramesError:
        """
        known = self._digesting[extent] = trio.Event()
        try:
            await self.fill(extent)
            await self._save(extent, known, on_digest)
        finally:
            known.set()
            del self._digesting[extent]
            extent.sending = None

    # --- writes that are begun where the bytes came in

    def launch(self, extent: DraftExtent) -> Flight | None:
        """Make ready to write an extent that is whole and that nobody holds, without a task: it is to take off at once.
        None if that takes waiting, or fails.
        """
        assert extent.frame is not None
        assert extent.slot is not None
        view = extent.frame.view[: extent.owner.extent_size]
        try:
            begun = self._pool.begin_write(extent.slot, view)
        except BlockError:
            return None  # who waits for it will meet the same, and tell
        if begun is None:
            return None
        self._under_way += 1
        extent.reach = len(view)
        extent.flight = Flight(extent.version, begun, view)
        return extent.flight

    async def land(self, extent: DraftExtent) -> None:
        """Wait for what was launched, if anything was. :raises BlockError:"""
        flight = extent.flight
        if flight is None:
            return
        try:
            with self._noting_loss(extent):
                await flight.land()
        except DeviceTimeout as error:
            if error.pending is not None and extent.frame is not None:
                self._frames.hold_until(extent.frame, error.pending)
            raise
        finally:
            self._under_way -= 1
            state, extent.flight = extent.arriving, None
        extent.sent = extent.reach
        extent.saved = state or extent.saved

    async def digested(self, extent: DraftExtent) -> None:
        """Wait until a `save` that is under way, if one is, knows what the slot will hold. For who does not hold it."""
        known = self._digesting.get(extent)
        if known is not None:
            await known.wait()

    async def _save(
        self, extent: DraftExtent, known: trio.Event, on_digest: Callable[[Saved], object]
    ) -> None:
        assert extent.frame is not None
        view, used, version = extent.frame.view, extent.used, extent.version
        end = padded(used)
        view[used:end] = self.zeros[: end - used]

        async def digest() -> None:
            extent.sending = Saved(version, used, Xxh3(xxh3_64_intdigest(view[:used])))
            known.set()
            on_digest(extent.sending)

        if extent.sent >= end:
            await digest()
        else:
            async with background() as nursery:
                nursery.start_soon(digest)  # runs when the write is on its way: that takes longer
                await self.send(extent, end)
        extent.saved = extent.sending

    async def _write(self, slot: SlotRef, frame: Frame, start: int, stop: int) -> None:
        self._under_way += 1
        try:
            await self._pool.write(slot, frame.view[start:stop], start)
        except DeviceTimeout as error:
            if error.pending is not None:
                self._frames.hold_until(frame, error.pending)
            raise
        finally:
            self._under_way -= 1

    @staticmethod
    @contextmanager
    def _noting_loss(extent: DraftExtent) -> Iterator[None]:
        try:
            yield
        except LOSSES as error:
            extent.loss = error
            raise

    async def read_back(self, slot: SlotRef, saved: Saved, frame: Frame) -> None:
        """Fill a frame with what was saved. :raises BlockError:"""
        await self._pool.read_reserved(slot, frame.view[: padded(saved.length)])
        if xxh3_64_intdigest(frame.view[: saved.length]) != saved.xxh3:
            raise ChecksumError("a file that is being written: its slot holds other bytes than were written")

    async def fill(self, extent: DraftExtent) -> None:
        """Make every byte below the end of the file the file's: from the base, else zeros.

        :raises BlockError, FramesError:
        """
        content = extent.owner
        await self._still_if_missing(extent)
        base = content.base
        if base is not None and extent.written.gaps(0, content.base_used(extent.index)):
            await self._fill_from(base, extent)
        assert extent.frame is not None
        for start, stop in extent.written.gaps(0, extent.used):
            extent.frame.view[start:stop] = self.zeros[: stop - start]
            extent.changed(start)
        extent.written.add(0, extent.used)

    async def _fill_from(self, base: Descriptor, extent: DraftExtent) -> None:
        if base.inline:
            self._copy_gaps(extent, memoryview(base.inline))
            return
        frame = await self._versions.get(base, extent.index, extent.owner.base_extents[extent.index])
        try:
            self._copy_gaps(extent, frame.view)
        finally:
            self._frames.unpin(frame)

    async def _still_if_missing(self, extent: DraftExtent) -> None:
        if not extent.is_whole:  # threads must not write what is being filled in
            await self._still(extent)

    @staticmethod
    def _copy_gaps(extent: DraftExtent, source: memoryview) -> None:
        assert extent.frame is not None
        # Asked again after the wait: bytes may have been written, or the file cut off.
        for start, stop in extent.written.gaps(0, extent.owner.base_used(extent.index)):
            extent.frame.view[start:stop] = source[start:stop]
            extent.note(start, stop)
