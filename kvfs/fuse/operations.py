"""The kernel's requests: translated, delegated, and the answers translated back. No decisions are made here."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pyfuse3
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from blockdev.types import NAME_MAX, PAGE
from kvfs.fuse.attributes import Attributes
from kvfs.fuse.errno_map import answers
from kvfs.fuse.inodes import Inode
from kvfs.fuse.listing import DOTS, Listing
from kvfs.fuse.metadata import Changes, Metadata
from kvfs.fuse.openfiles import Handle, OpenFiles
from kvfs.fuse.tree import Tree
from kvfs.fuse.volume import Caller, Volume, refused


class Operations(pyfuse3.Operations):
    """Serves one volume; see pyfuse3.Operations for what each handler is asked."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self, volume: Volume, tree: Tree, files: OpenFiles, metadata: Metadata, attributes: Attributes
    ) -> None:
        super().__init__()
        self._volume = volume
        self._tree = tree
        self._files = files
        self._metadata = metadata
        self._attributes = attributes
        self._listings: dict[int, Listing] = {}
        self._last_listing = 0

    # --- names

    @answers
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        _check(name)
        inode = await self._tree.lookup(self._volume.inode(parent_inode), name, _caller(ctx))
        return self._entry(inode) if inode is not None else self._attributes.missing()

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for number, lookups in inode_list:
            self._tree.forgot(number, lookups)

    @answers
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        _check(name)
        return self._entry(await self._tree.mknod(self._volume.inode(parent_inode), name, mode, _caller(ctx)))

    @answers
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> EntryAttributes:
        _check(name)
        return self._entry(await self._tree.mkdir(self._volume.inode(parent_inode), name, mode, _caller(ctx)))

    @answers
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        _check(name)
        return self._entry(
            await self._tree.symlink(self._volume.inode(parent_inode), name, target, _caller(ctx))
        )

    @answers
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        raise refused(errno.EPERM)

    @answers
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        record = self._there(inode, ctx).record
        if record is None:
            raise refused(errno.EINVAL)
        return FileNameT(record.inline)

    @answers
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        await self._tree.unlink(self._volume.inode(parent_inode), name)

    @answers
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        await self._tree.rmdir(self._volume.inode(parent_inode), name)

    @answers
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        _check(name_new)
        if flags & ~pyfuse3.RENAME_NOREPLACE:
            raise refused(errno.EINVAL)
        old = self._volume.inode(parent_inode_old), bytes(name_old)
        new = self._volume.inode(parent_inode_new), bytes(name_new)
        await self._tree.rename(old, new, replace=not flags, caller=_caller(ctx))

    # --- attributes

    @answers
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return self._attributes.of(self._there(inode, ctx))

    @answers
    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        asked = found = self._volume.inode(inode)
        if asked.stale and fh is None:
            raise self._volume.send_to_name(asked, _caller(ctx))
        if fields.update_size:
            found = await self._files.truncate(asked, attr.st_size, fh, _caller(ctx))
        await self._metadata.change(
            found,
            Changes(
                mode=attr.st_mode if fields.update_mode else None,
                uid=attr.st_uid if fields.update_uid else None,
                gid=attr.st_gid if fields.update_gid else None,
                mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
                atime_ns=attr.st_atime_ns if fields.update_atime else None,
            ),
        )
        entry = self._attributes.of(found)
        entry.st_ino = pyfuse3.InodeT(asked.number)
        return entry

    @answers
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        return self._metadata.xattr(self._there(inode, ctx), name)

    @answers
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        return [XAttrNameT(name) for name, _ in self._metadata.xattrs(self._there(inode, ctx))]

    @answers
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        await self._metadata.set_xattr(self._there(inode, ctx), name, value)

    @answers
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        await self._metadata.remove_xattr(self._there(inode, ctx), name)

    @answers
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        totals = self._volume.pool.totals()
        answer = StatvfsData()
        answer.f_bsize = answer.f_frsize = PAGE
        answer.f_blocks = totals.total // PAGE
        # What can be evicted is free to whoever wants to write.
        answer.f_bfree = answer.f_bavail = max(0, totals.total - totals.held) // PAGE
        answer.f_files = answer.f_ffree = answer.f_favail = 0
        answer.f_namemax = NAME_MAX
        return answer

    # --- files

    @answers
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        _check(name)
        parent = self._volume.inode(parent_inode)
        handle, inode = await self._files.create(parent, name, mode, flags, _caller(ctx))
        return _info(handle), self._entry(inode)

    @answers
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        return _info(await self._files.open(self._volume.inode(inode), flags, _caller(ctx)))

    @answers
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        # pyfuse3 takes any buffer, whatever its annotation says.
        return await self._files.read(fh, off, size)  # type: ignore[return-value]

    @answers
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return await self._files.write(fh, off, buf)

    @answers
    async def flush(self, fh: FileHandleT) -> None:
        await self._files.flush(fh)

    @answers
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:  # noqa: FBT001 (pyfuse3's interface)
        await self._files.flush(fh)

    @answers
    async def release(self, fh: FileHandleT) -> None:
        await self._files.release(fh)

    # --- directories

    @answers
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        self._last_listing += 1
        self._listings[self._last_listing] = Listing(self._volume, self._volume.inode(inode))
        return FileHandleT(self._last_listing)

    @answers
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        listing = self._listings[fh]
        listing.seek(start_id)
        while (found := listing.peek()) is not None:
            name, inode = found
            entry = self._attributes.of(inode)
            if not pyfuse3.readdir_reply(token, FileNameT(name), entry, listing.position + 1):
                self._tree.drop_if_unused(inode)
                return
            if name not in DOTS:
                inode.lookups += 1
            listing.accept()

    @answers
    async def releasedir(self, fh: FileHandleT) -> None:
        del self._listings[fh]

    @answers
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:  # noqa: FBT001 (pyfuse3's interface)
        """Names are on media when the call that made them returns."""

    def directory(self, number: int) -> EntryAttributes | None:
        """A directory's attributes; None for what is none. From any thread: it changes nothing, and what it looks at
        is replaced by whole values.
        """
        inode = self._volume.inodes.get(number)
        if inode is None or inode.stale or not inode.is_directory:
            return None
        return self._attributes.of(inode)

    def _there(self, number: int, ctx: RequestContext) -> Inode:
        """What a number stands for. :raises OSError: ESTALE, its name stands for something else or nothing"""
        found = self._volume.inode(number)
        if self._volume.is_missing(found):
            raise self._volume.send_to_name(found, _caller(ctx))
        return found

    def _entry(self, inode: Inode) -> EntryAttributes:
        inode.lookups += 1
        return self._attributes.of(inode)


def _check(name: bytes) -> None:
    if len(name) > NAME_MAX:
        raise refused(errno.ENAMETOOLONG)


def _caller(ctx: RequestContext) -> Caller:
    return Caller(ctx.uid, ctx.gid, ctx.pid)


def _info(handle: Handle) -> FileInfo:
    # Cached pages stay true: a number stands for one version. Only an open that could not be led to its own number
    # goes past the cache.
    return FileInfo(fh=FileHandleT(handle.number), keep_cache=not handle.uncached, direct_io=handle.uncached)
