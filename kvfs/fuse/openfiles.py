"""Open files: which bytes an open gets, and when what was written is published."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass

import trio

from blockdev.errors import BlockError
from blockdev.types import Descriptor, Kind
from kvfs.errors import FramesError
from kvfs.fuse.copies import Copies
from kvfs.fuse.drafts import Draft
from kvfs.fuse.inodes import Inode
from kvfs.fuse.intake import Intake
from kvfs.fuse.ports import MustWait
from kvfs.fuse.readers import Reader, Readers
from kvfs.fuse.retries import Retry
from kvfs.fuse.tree import Tree
from kvfs.fuse.versions import same_content
from kvfs.fuse.volume import Caller, Volume, refused

log = logging.getLogger(__name__)

PATIENCE = 0.2
"""Seconds for which an open waits for the kernel to tell that a file of which descriptors were closed is closed."""
_POLL = 0.001


@dataclass(slots=True)
class Handle:
    """An open file: a draft, or a published version.

    :ivar writes: it may write, or made the file: closing it publishes
    :ivar uncached: its bytes are not the inode's; they must not enter the inode's page cache
    :ivar left: a descriptor of it was closed: mostly the last one, and then at most a mapping is left
    :ivar backing: the copy that the kernel reads by itself; 0 if there is none
    """

    number: int
    inode: Inode
    draft: Draft | None = None
    reader: Reader | None = None
    writes: bool = False
    uncached: bool = False
    left: bool = False
    backing: int = 0


class OpenFiles:
    """Opens, reads, writes and closes files."""

    def __init__(self, volume: Volume, tree: Tree, readers: Readers, copies: Copies) -> None:
        self._volume = volume
        self._copies = copies
        self._tree = tree
        self._readers = readers
        self._handles: dict[int, Handle] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._handles)

    def get(self, number: int) -> Handle:
        """:raises OSError: not an open file"""
        handle = self._handles.get(number)
        if handle is None:
            raise refused(errno.EBADF)
        return handle

    # --- opening

    async def create(
        self, parent: Inode, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Handle, Inode]:
        """Open a file that the kernel believes is not there."""
        retry = self._volume.retries.take(caller.thread, (parent.directory, name))
        if retry is not None:
            retry.release()
        if not self._volume.exists(parent.directory, name):
            inode = self._tree.new_file(parent, name, mode, caller)
            handle = self._open_draft(inode, inode.draft, writes=True)
            await self._prepare(handle)
            return handle, inode
        if flags & os.O_EXCL:
            raise refused(errno.EEXIST)
        there = self._volume.current(parent.directory, name)
        if there is None or (there.record is not None and there.record.kind is not Kind.HEAD):
            raise refused(errno.EISDIR if there is not None and there.is_directory else errno.EEXIST)
        if not _wants_to_write(flags):
            return await self._open_to_read(there, caller, Retry(writing=False, until=0)), there
        found = await self._tree.writable(parent.directory, name, caller)
        if found is None or found.draft is None:
            raise refused(errno.ENOENT)
        return await self._truncated(self._open_draft(found, found.draft, writes=True), flags), found

    def create_now(self, parent: Inode, name: bytes, mode: int, caller: Caller) -> tuple[Handle, Inode]:
        """As `create`, of a name that is free. :raises MustWait:"""
        if self._volume.exists(parent.directory, name):
            raise MustWait
        memory = self._volume.services.memory
        slot, frame = memory.room_at_once(self._volume.pool.extent_size)
        retry = self._volume.retries.take(caller.thread, (parent.directory, name))
        if retry is not None:
            retry.release()
        inode = self._tree.new_file(parent, name, mode, caller)
        assert inode.draft is not None
        memory.make_ready(inode.draft.content, 0, slot, frame)
        return self._open_draft(inode, inode.draft, writes=True), inode

    async def open(self, inode: Inode, flags: int, caller: Caller) -> Handle:
        """Open an inode, or send the kernel back for the one that it should open instead."""
        retry = self._volume.retries.take(caller.thread, inode.place)
        try:
            if inode.is_directory:
                raise refused(errno.EISDIR)
            writes = _wants_to_write(flags)
            await self._wait_for_closing(inode, to_read=not writes)
            if writes:
                return await self._truncated(await self._open_to_write(inode, caller, retry), flags)
            return await self._open_to_read(inode, caller, retry)
        finally:
            if retry is not None:
                retry.release()

    def open_now(self, inode: Inode, flags: int, caller: Caller) -> Handle:
        """As `open`, of a published version that is in memory, to be read. :raises MustWait:"""
        retries, place = self._volume.retries, inode.place
        record = inode.record
        if (
            _wants_to_write(flags)
            or record is None
            or record.kind is not Kind.HEAD
            or self._volume.overlay.get(*place) is not None
            or retries.of(caller.thread, place) is not None
            or not self._is_current(inode)
        ):
            raise MustWait
        reader = self._readers.open_now(record)
        self._opened(record, caller)
        return self._add(inode, reader=reader, hit=True)

    def _opened(self, record: Descriptor, caller: Caller) -> None:
        """Tell those who watch of an open to read, before anything is loaded for it."""
        if self._volume.recorder.recordings:
            hit = None if record.indexed else self._volume.foresight.has(record)
            self._volume.recorder.opened(record, caller.thread, hit=hit)
        self._volume.foresight.opened(record, caller.thread)

    async def _wait_for_closing(self, inode: Inode, *, to_read: bool) -> None:
        """Who opens a file after all others closed it finds all that they stored, through mappings too.

        Kernels before 6.16 let a mapping go before what was stored through it has been answered, and tell that the file is
        closed only after that: the next open may come first.
        """
        over = self._volume.overlay.get(*inode.place)
        draft = over.draft if over is not None else None
        if draft is None:
            return
        if to_read and draft.left and not draft.is_closing:
            with trio.move_on_after(PATIENCE):
                while draft.left and not draft.is_closing:  # noqa: ASYNC110 - seldom, and most drafts need no event
                    await trio.sleep(_POLL)
        if draft.is_closing:
            async with draft.hold():
                pass

    async def _truncated(self, handle: Handle, flags: int) -> Handle:
        assert handle.draft is not None
        if flags & os.O_TRUNC:
            try:
                await handle.draft.truncate(0)
                await handle.draft.prepare()
            except BaseException:
                # A request is not cut short before its answer.
                await self.release(handle.number)  # noqa: ASYNC102
                raise
        return handle

    async def _prepare(self, handle: Handle) -> None:
        assert handle.draft is not None
        try:
            await handle.draft.prepare()
        except BaseException:
            await self.release(handle.number)  # noqa: ASYNC102 - as above
            raise

    async def _open_to_write(self, inode: Inode, caller: Caller, retry: Retry | None) -> Handle:
        if inode.draft is not None:
            return self._open_draft(inode, inode.draft, writes=True)
        if retry is None and not inode.gone:
            raise self._volume.send_back(inode, caller, writing=True)
        return await self._open_beside(inode, caller)

    async def _open_beside(self, inode: Inode, caller: Caller) -> Handle:
        """Open for writing what the kernel cannot be led to by name: the bytes are a draft's all the same."""
        record = inode.record
        if self._copies.is_open(inode):  # what is written must not go into the copy
            raise refused(errno.EBUSY)
        if inode.gone and record is not None and self._volume.versions.is_open(record.object_id):
            draft = await self._tree.draft_of(record, caller)
            draft.linked = False
            beside = self._volume.inodes.of_draft(draft)
        else:
            found = await self._tree.writable(*inode.place, caller)
            if found is None or found.draft is None:
                raise refused(errno.ENOENT)
            beside, draft = found, found.draft
        handle = self._open_draft(beside, draft, writes=True)
        handle.uncached = True
        return handle

    async def _open_to_read(self, inode: Inode, caller: Caller, retry: Retry | None) -> Handle:
        draft, record = inode.draft, inode.record
        if draft is not None and (draft.base is None or not draft.linked or _has_no_name(retry)):
            return self._open_draft(inode, draft, writes=False)
        if not self._is_current(inode):
            if retry is None:
                raise self._volume.send_back(inode, caller, writing=False)
            if record is None or not self._volume.versions.is_open(record.object_id):
                raise refused(errno.ENOENT)
        assert record is not None
        self._opened(record, caller)
        try:
            reader = await self._readers.open(record)
        except (BlockError, FramesError) as error:
            log.info("%r cannot be read: %s", record.name, error)
            self._volume.expire(record)
            if retry is None and not self._is_current(inode):
                # Sent back, the kernel finds out that the name is gone before open(2) returns.
                raise self._volume.send_back(inode, caller, writing=False) from error
            raise refused(errno.ENOENT) from error
        return self._add(inode, reader=reader)

    def _is_current(self, inode: Inode) -> bool:
        """Whether the inode is the version to open: its name's, or one that lost its name and is open elsewhere."""
        if inode.record is None or inode.stale:
            return False
        if inode.gone:
            return self._volume.versions.is_open(inode.record.object_id)
        record = self._volume.pool.lookup(*inode.place)
        return record is not None and same_content(record, inode.record)

    def _open_draft(self, inode: Inode, draft: Draft | None, *, writes: bool) -> Handle:
        assert draft is not None
        draft.handles += 1
        draft.writers += writes
        return self._add(inode, draft=draft, writes=writes)

    def _add(
        self,
        inode: Inode,
        *,
        draft: Draft | None = None,
        reader: Reader | None = None,
        writes: bool = False,
        uncached: bool = False,
        hit: bool = False,
    ) -> Handle:
        self._last += 1
        handle = Handle(self._last, inode, draft, reader, writes, uncached)
        if reader is not None:
            handle.backing = self._copies.opened(inode, hit=hit)
        self._handles[handle.number] = handle
        inode.handles += 1
        return handle

    # --- bytes

    async def read(self, number: int, offset: int, length: int) -> memoryview | bytes:
        handle = self.get(number)
        if handle.reader is not None:
            return await handle.reader.read(offset, length)
        assert handle.draft is not None
        return await handle.draft.read(offset, length)

    def views(self, number: int, offset: int, length: int) -> list[memoryview | bytes] | None:
        """What `read` returns, in parts, if that is in memory for as long as the file is open. From any thread."""
        handle = self._handles.get(number)
        return (
            handle.reader.views(offset, length) if handle is not None and handle.reader is not None else None
        )

    def is_reader(self, number: int) -> bool:
        """Whether it is an open published version, of which there is nothing to publish. From any thread."""
        handle = self._handles.get(number)
        return handle is not None and handle.reader is not None

    def backing(self, number: int) -> int:
        """The copy that the kernel may read by itself for an open file; 0 if there is none."""
        handle = self._handles.get(number)
        return handle.backing if handle is not None else 0

    def intake(self, number: int) -> Intake | None:
        """Where other threads may put what is written to an open file. From any thread."""
        handle = self._handles.get(number)
        return handle.draft.content.intake if handle is not None and handle.draft and handle.writes else None

    async def write(self, number: int, offset: int, data: bytes | memoryview) -> int:
        handle = self.get(number)
        if handle.draft is None or not handle.writes:
            raise refused(errno.EBADF)
        return await handle.draft.write(offset, data)

    async def truncate(self, inode: Inode, size: int, number: int | None, caller: Caller) -> Inode:
        """Set a file's size, through an open file or by name; returns the inode whose size it is."""
        if number is not None:
            handle = self.get(number)
            if handle.draft is None or not handle.writes:
                raise refused(errno.EINVAL)
            await handle.draft.truncate(size)
            return handle.inode
        retry = self._volume.retries.take(caller.thread, inode.place)
        if retry is not None:
            retry.release()
        draft = inode.draft
        if draft is None:
            if inode.gone or retry is not None:
                raise refused(errno.EBUSY)
            raise self._volume.send_back(inode, caller, writing=True)
        handle = self._open_draft(inode, draft, writes=True)
        try:
            await draft.truncate(size)
            if draft.writers == 1:
                await self.publish(draft)
        finally:
            await self.release(handle.number)  # noqa: ASYNC102 - as above
        return inode

    # --- publishing

    async def flush(self, number: int) -> None:
        """A descriptor was closed, perhaps not the last one: publish what has arrived."""
        handle = self.get(number)
        if handle.draft is not None and handle.writes:
            handle.draft.left += not handle.left
            handle.left = True
            handle.draft.check()
            await self.publish(handle.draft)

    async def publish(self, draft: Draft) -> None:
        """Publish a draft if it changed. The kernel asks each time for the names of files with drafts."""
        await draft.publish()

    async def release(self, number: int) -> None:
        """The last descriptor of an open file, and the last mapping of it, are gone."""
        handle = self.get(number)
        del self._handles[number]
        # No checkpoint when there is nothing to publish: the kernel's next request must find the file closed.
        if handle.draft is not None and handle.writes and handle.draft.writers == 1:
            await self._publish_late(handle.draft)
        self._close(handle)

    def release_now(self, number: int) -> None:
        """As `release`, if there is nothing to publish. :raises MustWait:"""
        handle = self.get(number)
        if handle.draft is not None and not handle.draft.is_settled:
            raise MustWait
        if handle.reader is not None and self._readers.must_wait_to_close:
            raise MustWait
        del self._handles[number]
        self._close(handle)

    def _close(self, handle: Handle) -> None:
        inode = handle.inode
        if handle.backing:
            self._copies.closed(inode)
        if handle.reader is not None:
            self._readers.close(handle.reader)
        if handle.draft is not None:
            handle.draft.left -= handle.left
            self._release_draft(inode, handle.draft, writes=handle.writes)
        inode.handles -= 1
        self._tree.drop_if_unused(inode)

    def _release_draft(self, inode: Inode, draft: Draft, *, writes: bool) -> None:
        draft.is_closing = False
        draft.writers -= writes
        draft.handles -= 1
        if inode.draft is draft and not draft.writers and (writes or not draft.handles):
            self._tree.end_draft(inode)
        elif not draft.handles:
            draft.close()

    async def _publish_late(self, draft: Draft) -> None:
        """Publish what was stored through a mapping after close(2), and wait for who moves the draft."""
        while draft.is_publishable or draft.lock.locked():
            draft.is_closing = True
            try:
                await self.publish(draft)
            except (BlockError, FramesError) as error:
                log.warning("%r was closed without being published: %s", draft.name, error)


def _has_no_name(retry: Retry | None) -> bool:
    """Whether an open came again without a look-up: through /proc/self/fd, for what is open already."""
    return retry is not None and not retry.looked_up


def _wants_to_write(flags: int) -> bool:
    return bool(flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR) or flags & os.O_TRUNC)
