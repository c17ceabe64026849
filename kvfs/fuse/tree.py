"""Names: looking them up, and making, moving and removing what they stand for."""

from __future__ import annotations

import errno
import functools
import logging
import stat
from contextlib import AsyncExitStack

from blockdev.errors import BlockError, Missing
from blockdev.types import Descriptor, DirectoryId, Kind
from kvfs.errors import FramesError
from kvfs.fuse.drafts import Draft, FileAttributes
from kvfs.fuse.foreign import review
from kvfs.fuse.inodes import Inode, Place
from kvfs.fuse.ports import MustWait
from kvfs.fuse.volume import Caller, Volume, refused

log = logging.getLogger(__name__)


class Tree:
    """Operations on names. What goes wrong is raised as it is, or as an OSError with the answer's number."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    # --- looking up

    async def lookup(self, parent: Inode, name: bytes, caller: Caller) -> Inode | None:
        """What a name stands for, to this caller now."""
        place = (parent.directory, name)
        retry = self._volume.retries.of(caller.thread, place)
        if retry is not None and retry.writing:
            return self._looked_up(place, caller, await self.writable(*place, caller))
        return self._looked_up(place, caller, self._volume.current(*place))

    def lookup_now(self, parent: Inode, name: bytes, caller: Caller) -> Inode | None:
        """As `lookup`. :raises MustWait:"""
        place = (parent.directory, name)
        retry = self._volume.retries.of(caller.thread, place)
        found = None if retry is not None and retry.writing else self._volume.current(*place)
        if (retry is not None and retry.writing) or (found is not None and found.draft is not None):
            raise MustWait
        return self._looked_up(place, caller, found)

    def _looked_up(self, place: Place, caller: Caller, found: Inode | None) -> Inode | None:
        """Note what a look-up found for the open that follows, if one was sent back."""
        volume = self._volume
        retry = volume.retries.of(caller.thread, place)
        if volume.recorder.recordings and (found is None or not found.is_directory):
            size = found.record.size if found is not None and found.record is not None else None
            volume.recorder.looked_up(*place, caller.thread, size)
        if found is None:
            volume.retries.missed(caller.thread, place)
        elif retry is not None and found.record is not None and found.record.kind is Kind.HEAD:
            volume.versions.pin(found.record)
            volume.retries.found(retry, functools.partial(volume.versions.unpin, found.record))
        if retry is None and found is not None and found.draft is None and found.record is not None:
            found.sentinel = volume.foresight.looked_up(found.record, caller.thread)
        return found

    async def writable(self, directory: DirectoryId, name: bytes, caller: Caller) -> Inode | None:
        """Like `lookup`, but a draft where the name stands for a file."""
        volume = self._volume
        over = volume.overlay.get(directory, name)
        if over is not None:
            return over
        record = volume.pool.lookup(directory, name)
        if record is None or record.kind is not Kind.HEAD:
            return volume.inodes.of_record(record) if record is not None else None
        draft = await self.draft_of(record, caller)
        over = volume.overlay.get(directory, name)
        if over is not None:  # somebody else was faster
            draft.close()
            return over
        return self._enter(draft)

    async def draft_of(self, record: Descriptor, caller: Caller) -> Draft:
        """A draft that goes on from a published version. :raises BlockError: it cannot be read"""
        attributes = FileAttributes(
            record.mode, record.uid, record.gid, record.mtime_ns, record.ctime_ns, record.xattrs
        )
        draft = Draft(self._volume.services, record.directory, record.name, attributes, caller.thread)
        await draft.start_from(record)
        return draft

    def new_file(self, parent: Inode, name: bytes, mode: int, caller: Caller) -> Inode:
        """A draft under a name that is free; it appears in the pool when it is first closed."""
        volume, now = self._volume, self._volume.now_ns()
        attributes = FileAttributes(
            stat.S_IFREG | stat.S_IMODE(mode), caller.uid, self._group(parent, caller), now, now
        )
        draft = Draft(volume.services, parent.directory, name, attributes, caller.thread)
        draft.content.dirty = True
        volume.changed_directory(parent.directory)
        return self._enter(draft)

    def _enter(self, draft: Draft) -> Inode:
        inode = self._volume.inodes.of_draft(draft)
        draft.on_idle = functools.partial(self.drop_if_unused, inode)
        self._volume.overlay.set(draft.directory, draft.name, inode)
        return inode

    def _group(self, parent: Inode, caller: Caller) -> int:
        """The group of something new: the directory's, if that says so."""
        record = parent.record
        return record.gid if record is not None and record.mode & stat.S_ISGID else caller.gid

    # --- making

    async def mknod(self, parent: Inode, name: bytes, mode: int, caller: Caller) -> Inode:
        """An empty file, published at once: nobody will close it."""
        if not stat.S_ISREG(mode):
            raise refused(errno.EPERM)
        self._check_free(parent.directory, name)
        inode = self.new_file(parent, name, mode, caller)
        assert inode.draft is not None
        try:
            await inode.draft.publish()
        finally:
            self.end_draft(inode)
        return inode

    async def mkdir(self, parent: Inode, name: bytes, mode: int, caller: Caller) -> Inode:
        self._check_free(parent.directory, name)
        if parent.record is not None:
            mode |= parent.record.mode & stat.S_ISGID
        record = await self._volume.pool.make_directory(
            parent.directory, name, mode, caller.uid, self._group(parent, caller)
        )
        self._volume.changed_directory(parent.directory)
        return self._volume.inodes.of_record(record)

    async def symlink(self, parent: Inode, name: bytes, target: bytes, caller: Caller) -> Inode:
        self._check_free(parent.directory, name)
        record = await self._volume.pool.make_symlink(
            parent.directory, name, target, caller.uid, self._group(parent, caller)
        )
        self._volume.changed_directory(parent.directory)
        return self._volume.inodes.of_record(record)

    def _check_free(self, directory: DirectoryId, name: bytes) -> None:
        if self._volume.exists(directory, name):
            raise refused(errno.EEXIST)

    # --- removing

    async def unlink(self, parent: Inode, name: bytes) -> None:
        """Remove a file's or symlink's name; those who have it open keep it."""
        volume, directory = self._volume, parent.directory
        async with AsyncExitStack() as stack:
            over = await self._lock(stack, directory, name)
            record = volume.pool.lookup(directory, name)
            if record is None and over is None:
                raise refused(errno.ENOENT)
            if record is not None:
                if record.kind is Kind.DIRECTORY:
                    raise refused(errno.EISDIR)
                await self._remove(record, tolerate_missing=over is not None)
            if over is not None:
                self._detach(over)
        volume.changed_directory(directory)

    async def rmdir(self, parent: Inode, name: bytes) -> None:
        """Remove an empty directory; a file that is only being written counts as content."""
        volume = self._volume
        record = volume.pool.lookup(parent.directory, name)
        if record is None:
            raise refused(errno.ENOTDIR if volume.exists(parent.directory, name) else errno.ENOENT)
        if record.kind is not Kind.DIRECTORY:
            raise refused(errno.ENOTDIR)
        if volume.overlay.occupies(DirectoryId(record.object_id)):
            raise refused(errno.ENOTEMPTY)
        await volume.pool.remove(record)
        self._mark_gone(record)
        volume.changed_directory(parent.directory)

    async def _remove(self, record: Descriptor, *, tolerate_missing: bool) -> None:
        try:
            await self._volume.pool.remove(record)
        except Missing:
            if not tolerate_missing:
                raise
        self._mark_gone(record)
        if self._volume.recorder.recordings:
            self._volume.recorder.removed(record)

    def _mark_gone(self, record: Descriptor) -> None:
        for inode in self._volume.inodes.versions(record.object_id):
            inode.gone = True
        if not self._volume.versions.is_open(record.object_id):
            self._volume.versions.forget(record.extents)

    def _detach(self, inode: Inode) -> None:
        """A draft lost its name: its writers go on, but it is not published any more."""
        draft = inode.draft
        if draft is not None:
            draft.linked = False
            inode.gone = True
            self._volume.overlay.remove(draft.directory, draft.name, inode)

    async def _lock(self, stack: AsyncExitStack, directory: DirectoryId, name: bytes) -> Inode | None:
        """The draft of a name, which cannot be published or moved until the stack is left.

        The kernel holds the directory meanwhile, so that nobody else makes, moves or removes the name.
        """
        while True:
            inode = self._volume.overlay.get(directory, name)
            if inode is None or inode.draft is None:
                return None
            async with AsyncExitStack() as own:
                await own.enter_async_context(inode.draft.hold())
                if self._volume.overlay.get(directory, name) is inode:
                    await stack.enter_async_context(own.pop_all())
                    return inode

    # --- moving

    async def rename(
        self, old: tuple[Inode, bytes], new: tuple[Inode, bytes], *, replace: bool, caller: Caller
    ) -> None:
        """Give a file or directory another name, in place of what has it if `replace`."""
        volume = self._volume
        source, target = (old[0].directory, old[1]), (new[0].directory, new[1])
        async with AsyncExitStack() as stack:
            over = await self._lock(stack, *source)
            record = volume.pool.lookup(*source)
            if record is None and over is None:
                raise refused(errno.ENOENT)
            if source == target:
                return
            target_over = await self._lock(stack, *target)
            replaced = volume.pool.lookup(*target)
            self._check_target(record, replaced, target_over, replace=replace)
            if over is not None and over.draft is not None:
                await self._move_draft(over, over.draft, target, replace=replace)
            else:
                assert record is not None
                volume.inodes.renew(await self._renamed(record, target, replace=replace))
            if target_over is not None:
                self._detach(target_over)
            if replaced is not None:
                self._mark_gone(replaced)
        volume.services.predecessors.note(caller.thread, target[1])
        volume.changed_directory(source[0])
        volume.changed_directory(target[0])

    async def _renamed(self, record: Descriptor, target: Place, *, replace: bool) -> Descriptor:
        pool = self._volume.pool
        try:
            return await pool.rename(record, *target, replace=replace)
        except BlockError as error:
            if pool.lookup(record.directory, record.name) is None:  # it went away with its device: a miss
                raise refused(errno.ENOENT) from error
            raise

    def _check_target(
        self, record: Descriptor | None, replaced: Descriptor | None, over: Inode | None, *, replace: bool
    ) -> None:
        if not replace and (replaced is not None or over is not None):
            raise refused(errno.EEXIST)
        moves_directory = record is not None and record.kind is Kind.DIRECTORY
        if replaced is not None and replaced.kind is Kind.DIRECTORY:
            if not moves_directory:
                raise refused(errno.EISDIR)
            if self._volume.overlay.occupies(DirectoryId(replaced.object_id)):
                raise refused(errno.ENOTEMPTY)
        elif moves_directory and (replaced is not None or over is not None):
            raise refused(errno.ENOTDIR)

    async def _move_draft(self, inode: Inode, draft: Draft, target: Place, *, replace: bool) -> None:
        """Rename a locked draft. What it holds is published, first under the old name if that has a version."""
        draft.check()
        source = (draft.directory, draft.name)
        if draft.base is not None:
            await draft.publish_locked()
            record = await self._volume.pool.rename(draft.base, *target, replace=replace)
            draft.rebind(record)
            self._volume.inodes.renew(record)
        draft.directory, draft.name = target
        if draft.base is None:
            try:
                await draft.publish_locked(replace=replace)
            except BaseException:
                draft.directory, draft.name = source
                raise
        self._volume.overlay.remove(*source, inode)
        self._volume.overlay.set(*target, inode)
        self._volume.inodes.move(inode, target)

    # --- the end of drafts

    def end_draft(self, inode: Inode) -> None:
        """Nobody writes to a draft any more: its inode stands for what was published from now on."""
        volume, draft = self._volume, inode.draft
        assert draft is not None
        volume.overlay.remove(draft.directory, draft.name, inode)
        if draft.linked:
            failed = draft.error is not None or draft.base is None
            inode.draft = None
            volume.inodes.bind(inode, None if failed else draft.base)
            if failed:
                volume.invalidator.attributes(inode.number)
            elif inode.doubtful:
                review(volume, inode)
        if not draft.handles:
            inode.draft = None
            draft.close()

    def forgot(self, number: int, lookups: int) -> None:
        """The kernel dropped references to an inode."""
        inode = self._volume.inodes.forget(number, lookups)
        if inode is not None:
            self.drop_if_unused(inode)

    def drop_if_unused(self, inode: Inode) -> None:
        """Remove an inode that neither the kernel nor an open file knows any more."""
        if inode.lookups > 0 or inode.handles > 0 or inode.is_root:
            return
        if inode.draft is not None:  # one that nobody opened in the end
            if inode.draft.lock.locked():
                return  # until that is done: `Draft.on_idle`
            self.end_draft(inode)
        self._volume.inodes.drop(inode)

    async def publish_all(self) -> None:
        """The mount ends: publish what is being written, as far as it goes."""
        for inode in self._volume.overlay.all():
            draft = inode.draft
            if draft is None or not draft.dirty:
                continue
            try:
                await draft.publish()
            except (BlockError, FramesError) as error:
                log.error("%r was not published: %s", draft.name, error)
