"""Files that are being written: one draft for all who write to one file, published when they say so.

A draft is private to those who have it open. What a name stands for changes only when the draft is published, which
is at each close, fsync or rename after a change; the draft then goes on from what was published, and later writes go
to fresh slots. A draft whose write failed is poisoned: it is never published again, and every later call fails alike.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from blockdev.errors import BlockError
from blockdev.publication import NewObject
from blockdev.tasks import background
from blockdev.types import HOLE, NAME_MAX, Descriptor, DirectoryId, ExtentRef, Extents, stored
from kvfs.elsewhere import until_stored
from kvfs.errors import FramesError
from kvfs.fuse.content import DraftContent, DraftExtent
from kvfs.fuse.draft_reading import DraftReading
from kvfs.fuse.intake import Intake, Soon
from kvfs.fuse.memory import DraftMemory
from kvfs.fuse.ports import PoolPort, Xattrs
from kvfs.fuse.versions import Versions
from kvfs.predecessors import Predecessors
from kvfs.recording import Recorder

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FileAttributes:
    """What a file is besides its bytes."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    ctime_ns: int
    xattrs: Xattrs = ()


@dataclass(frozen=True, slots=True)
class DraftServices:
    """What drafts are made of; one for the mount."""

    pool: PoolPort
    versions: Versions
    memory: DraftMemory
    predecessors: Predecessors
    now_ns: Callable[[], int]
    soon: Soon | None = None
    """How threads that put bytes into drafts reach the trio thread; None if there are none."""
    recorder: Recorder = field(default_factory=Recorder)


class Draft:
    """A file that is being written.

    :param writer: the thread that began it
    :ivar directory, name: where it is published
    :ivar linked: whether it has that name; a draft without one is never published
    :ivar left: how many open files of it had a descriptor closed; see `openfiles.Handle`
    :ivar is_closing: its last writer is gone; what that one left is being published
    :ivar lock: held while bytes or name change, or the draft is published
    :ivar on_idle: called when who held it and had it not open has let it go
    """

    def __init__(
        self,
        services: DraftServices,
        directory: DirectoryId,
        name: bytes,
        attributes: FileAttributes,
        writer: int,
    ) -> None:
        self.directory = directory
        self.name = name
        self.attributes = attributes
        self.linked = True
        self.left = 0
        self.is_closing = False
        self.writers = 0
        self.handles = 0
        self.lock = trio.Lock()
        self.on_idle: Callable[[], None] = _nothing
        intake = Intake(services.soon, self._note_more, self._note_half, services.memory.launch)
        self.content = DraftContent(services.pool.extent_size, intake)
        self._services = services
        self._reading = DraftReading(self.content, services.memory, services.versions)
        self._writer = writer
        self._mtime_set = False

    @property
    def base(self) -> Descriptor | None:
        """The version it goes on from: what its name stands for in the pool, if the draft has one."""
        return self.content.base

    @property
    def size(self) -> int:
        self.catch_up()
        return self.content.size

    @property
    def stored_size(self) -> int:
        """Bytes that are not holes, roughly."""
        self.catch_up()
        own = sum(extent.used for extent in self.content.extents.values())
        return min(self.size, own + (self.base.stored_size if self.base is not None else 0))

    @property
    def dirty(self) -> bool:
        self.catch_up()
        return self.content.dirty

    @property
    def error(self) -> Exception | None:
        return self.content.error

    @property
    def is_publishable(self) -> bool:
        """Whether there is something that its name should stand for and does not yet."""
        return self.dirty and self.linked and self.content.error is None

    @property
    def is_settled(self) -> bool:
        """Whether all that was written is published and nobody is at work on it."""
        content = self.content
        under_way = content.intake.has_notes or content.extents or content.prepared
        return not (under_way or content.dirty or self.lock.locked())

    def check(self) -> None:
        """:raises Exception: what poisoned the draft"""
        self.content.check()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Keep it as it is; for those who do not have it open. The kernel may forget it meanwhile."""
        try:
            async with self.lock:
                yield
        finally:
            self.on_idle()

    # --- what it goes on from

    async def start_from(self, base: Descriptor) -> None:
        """Begin as a copy of a published version.

        :raises BlockError: it cannot be read
        """
        self._services.versions.pin(base)
        try:
            self.content.rebase(base, await self._services.pool.extents(base))
        except BaseException:
            self._services.versions.unpin(base)
            raise

    def rebind(self, record: Descriptor) -> None:
        """The version it is based on has a new record with the same bytes: renamed, or changed in its attributes."""
        assert self.content.base is not None
        self._services.versions.pin(record)
        self._services.versions.unpin(self.content.base)
        self.content.base = record

    # --- bytes

    async def write(self, offset: int, data: bytes | memoryview) -> int:
        """Take all of `data`, or nothing: whatever fails poisons the draft.

        :raises BlockError, FramesError:
        """
        async with self.lock:
            self.check()
            try:
                await self._write(offset, memoryview(data))
            except (BlockError, FramesError) as error:
                self.content.fail(error)
                raise
        return len(data)

    async def _write(self, offset: int, data: memoryview) -> None:
        content, memory = self.content, self._services.memory
        pieces = list(content.pieces(offset, len(data)))
        extents = [await memory.add(content, piece.extent) for piece in pieces]
        for piece, extent in zip(pieces, extents, strict=True):
            length = piece.stop - piece.start
            await memory.bring(extent)
            is_more = not extent.written.covers(piece.start, piece.stop)
            extent.absorb(piece.start, data[:length])
            data = data[length:]
            content.grow(piece.extent * content.extent_size + piece.stop)
            if is_more:
                memory.send_soon(extent)
            memory.admit(extent)
        self.touch()
        if pieces and pieces[-1].extent:
            await memory.prepare(content, pieces[-1].extent + 1)

    # --- bytes that other threads put there

    async def prepare(self) -> None:
        """Have room ready for the first bytes, so that a thread can put them there."""
        if self.content.intake.serves:
            async with self.lock:
                await self._services.memory.prepare(self.content, 0)

    def catch_up(self) -> None:
        """Take in what other threads have written."""
        self._services.memory.catch_up(self.content)
        if self.content.changed_ns:
            self.attributes.mtime_ns = self.attributes.ctime_ns = self.content.changed_ns
            self.content.changed_ns = 0
            self._mtime_set = False

    def _note_more(self, _: DraftExtent) -> None:
        self.catch_up()

    def _note_half(self, extent: DraftExtent) -> None:
        self._services.memory.run_soon(self._prepare_after, extent)

    async def _prepare_after(self, extent: DraftExtent) -> None:
        """Room for the next extent, before who writes from front to back comes to it."""
        async with self.lock:
            self.catch_up()
            if self.content.extents.get(extent.index) is extent:
                await self._services.memory.prepare(self.content, extent.index + 1)

    def touch(self) -> None:
        """The file changed now."""
        self.attributes.mtime_ns = self.attributes.ctime_ns = self._services.now_ns()
        self._mtime_set = False

    def set_mtime(self, mtime_ns: int) -> None:
        """Set the time of the last change; it stays until the next one."""
        self.catch_up()
        self.attributes.mtime_ns = mtime_ns
        self._mtime_set = True

    async def truncate(self, size: int) -> None:
        """Set the size. :raises Exception: the draft is poisoned"""
        async with self.lock:
            self.check()
            await self._services.memory.still(self.content)
            self._truncate(size)

    def _truncate(self, size: int) -> None:
        for extent in self.content.truncate(size):
            self._services.memory.discard(extent)
        self.touch()

    async def read(self, offset: int, length: int) -> memoryview | bytes:
        """Bytes of the draft; fewer at its end. A memoryview is valid until the next checkpoint.

        Waits for no writer and no publication: where the bytes are is asked again after every wait.

        :raises BlockError, FramesError:
        """
        self.check()
        return await self._reading.read(offset, min(length, self.size - offset))  # which catches up

    # --- publishing

    async def publish(self) -> bool:
        """Make the name stand for what the draft holds, if it changed; whether it did.

        :raises BlockError, FramesError: and the draft is poisoned, now or earlier
        """
        async with self.lock:
            return await self.publish_locked()

    async def publish_locked(self, *, replace: bool = True) -> bool:
        self.check()
        if not self.dirty or not self.linked:
            return False
        try:
            await self._services.memory.still(self.content)
            self.catch_up()
            await self._publish(replace=replace)
        except (BlockError, FramesError) as error:
            self.content.fail(error)
            self._let_extents_go((), published=False)
            raise
        return True

    async def _publish(self, *, replace: bool) -> None:
        """On the devices that are there, also when one of them is lost on the way."""

        def begin_again(loss: BlockError) -> None:
            self.check()  # of what is not in memory any more, nothing is left
            log.info("%r is published again: %s", self.name, loss)
            for extent in self.content.extents.values():
                extent.promised = False  # no record was made

        await until_stored(partial(self._publish_once, replace=replace), begin_again)

    async def _publish_once(self, *, replace: bool) -> None:
        content, attributes = self.content, self.attributes
        if not self._mtime_set and content.size:
            attributes.mtime_ns = self._services.now_ns()
        inline = await self._inline()
        if inline is not None:
            record = await self._hand_over(self._described(inline, (), replace=replace))
        elif (known := self._settled_extents()) is not None:
            record = await self._hand_over(self._described(b"", known, replace=replace))
        else:
            async with background() as nursery:
                extents = await self._settle_extents(nursery)
                self.check()  # an extent may have been lost while others were written
                record = await self._hand_over(self._described(b"", extents, replace=replace))
        attributes.mtime_ns, attributes.ctime_ns = record.mtime_ns, record.ctime_ns
        self._services.predecessors.note(self._writer, self.name)
        if self._services.recorder.recordings:
            self._services.recorder.published(record, self._writer)

    def _described(self, inline: bytes, extents: tuple[ExtentRef, ...], *, replace: bool) -> NewObject:
        attributes = self.attributes
        return NewObject(
            directory=self.directory,
            name=self.name,
            mode=attributes.mode,
            uid=attributes.uid,
            gid=attributes.gid,
            mtime_ns=attributes.mtime_ns,
            size=self.content.size,
            extents=extents,
            inline=inline,
            xattrs=attributes.xattrs,
            predecessor=self._services.predecessors.of(self._writer, self.name),
            base=self.content.base,
            replace=replace,
        )

    async def _hand_over(self, new: NewObject) -> Descriptor:
        """Publish; the pool has the slots from here on, whatever becomes of it."""
        base, versions, content = self.content.base, self._services.versions, self.content
        own = [*content.extents.values()] if new.extents else []
        arrived = partial(self._services.memory.arrive, own) if new.extents else None
        try:
            record = await self._services.pool.publish(new, arrived)
        except BaseException as error:
            self._services.memory.take_back(own, error)
            raise
        self._let_extents_go(new.extents, published=True)
        versions.forget(
            {extent for _, extent in stored(content.base_extents)}.difference(
                e for _, e in stored(new.extents)
            )
        )
        versions.pin(record)
        if base is not None:
            versions.unpin(base)
        content.rebase(record, new.extents)
        return record

    def _let_extents_go(self, handed_over: tuple[ExtentRef, ...], *, published: bool) -> None:
        """End the draft's own extents; what is published and in memory can be found there."""
        memory, versions = self._services.memory, self._services.versions
        extents, self.content.extents = self.content.extents, {}
        prepared, self.content.prepared = self.content.prepared, {}
        for extent in prepared.values():
            memory.discard(extent)
        for index, extent in extents.items():
            used = extent.used
            frame = memory.release(extent) if handed_over else None
            if frame is not None:
                if published:
                    versions.adopt(frame, handed_over[index], used)
                versions.unpin_frame(frame)
            memory.discard(extent)

    async def _inline(self) -> bytes | None:
        """The whole file, if it is small enough to be part of its record."""
        # As if its name were the longest, so that it can be renamed to any.
        limit = self._services.pool.inline_limit(bytes(NAME_MAX), self.attributes.xattrs)
        if self.size > limit:
            return None
        return bytes(await self._reading.read(0, self.size))

    def _settled_extents(self) -> tuple[ExtentRef, ...] | None:
        """What `_settle_extents` would return, if nothing need be done for it, as for most new files."""
        content = self.content
        known = {index: self._services.memory.settled(extent) for index, extent in content.extents.items()}
        if content.base is not None or content.error is not None or None in known.values():
            return None
        result = [HOLE] * -(-content.size // content.extent_size)
        for index, place in known.items():
            assert place is not None
            content.extents[index].promised = True
            result[index] = ExtentRef(*place[0], place[1])
        return tuple(result)

    async def _settle_extents(self, nursery: trio.Nursery) -> tuple[ExtentRef, ...]:
        content, memory = self.content, self._services.memory
        count = -(-content.size // content.extent_size)
        result = [HOLE] * count
        for index, _ in stored(content.base_extents):
            kept = content.kept(index) if index < count else None
            if kept is not None:
                result[index] = kept
            elif content.base_used(index) and index not in content.extents:
                await memory.add(
                    content, index
                )  # the file's end moved within it: other bytes, another checksum
        if content.base is not None and content.base.inline and content.base_used(0):
            await memory.add(content, 0)
        for index, extent in sorted(content.extents.items()):
            slot, xxh3 = await memory.settle(extent, nursery)
            result[index] = ExtentRef(*slot, xxh3)
        return Extents(result)

    # --- the end

    def close(self) -> None:
        """Nobody has it open any more: give everything back that was not published."""
        self._let_extents_go((), published=False)
        if self.content.base is not None:
            self._services.versions.unpin(self.content.base)
            self.content.base = None


def _nothing() -> None:
    """Nobody asked to be told."""
