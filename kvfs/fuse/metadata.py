"""Attributes of what exists: modes, owners, times and user attributes."""

from __future__ import annotations

import errno
import stat
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from blockdev.errors import RecordTooLarge
from blockdev.types import Descriptor
from kvfs.fuse.attributes import RootAttributes
from kvfs.fuse.drafts import Draft
from kvfs.fuse.inodes import Inode
from kvfs.fuse.ports import Attributes, Xattrs
from kvfs.fuse.versions import same_content
from kvfs.fuse.volume import Volume, refused

_USER = b"user."


@dataclass(frozen=True, slots=True)
class Changes:
    """What to change; None leaves it."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    mtime_ns: int | None = None
    atime_ns: int | None = None


class Metadata:
    """Reads and changes attributes: a draft's in memory until it is published, others on media at once."""

    def __init__(self, volume: Volume, root: RootAttributes) -> None:
        self._volume = volume
        self._root = root

    # --- times, modes, owners

    async def change(self, inode: Inode, changes: Changes) -> None:
        """:raises BlockError:"""
        if changes.atime_ns is not None:
            self._used(inode, changes.atime_ns)
        wanted = _wanted(changes)
        if not wanted:
            return
        if inode.is_directory and "mtime_ns" in wanted:
            inode.mtime_ns = wanted.pop("mtime_ns")
        await self._apply(inode, wanted)

    async def _apply(self, inode: Inode, wanted: Attributes) -> None:
        while (draft := inode.draft) is not None:
            async with draft.hold():  # a publication under way takes all attributes or none
                if inode.draft is draft:
                    self._change_draft(draft, wanted)
                    return
        if inode.is_root:
            await self._change_root(inode, wanted)
        elif wanted:
            await self._update(inode, wanted)

    def _used(self, inode: Inode, atime_ns: int) -> None:
        inode.atime_ns = atime_ns
        record = inode.draft.base if inode.draft is not None else inode.record
        if record is not None and not inode.is_directory and not inode.gone:
            self._volume.pool.touch(record)

    def _change_draft(self, draft: Draft, wanted: Attributes) -> None:
        attributes = draft.attributes
        if "mtime_ns" in wanted:
            draft.set_mtime(wanted["mtime_ns"])
        attributes.mode = stat.S_IFMT(attributes.mode) | stat.S_IMODE(wanted.get("mode", attributes.mode))
        attributes.uid = wanted.get("uid", attributes.uid)
        attributes.gid = wanted.get("gid", attributes.gid)
        attributes.xattrs = wanted.get("xattrs", attributes.xattrs)
        attributes.ctime_ns = self._volume.now_ns()
        draft.content.dirty = True

    async def _change_root(self, inode: Inode, wanted: Attributes) -> None:
        if not wanted:
            return
        if "xattrs" in wanted:
            raise refused(errno.ENOTSUP)
        root = self._root
        mode, uid, gid = (
            wanted.get("mode", root.mode),
            wanted.get("uid", root.uid),
            wanted.get("gid", root.gid),
        )
        await self._volume.pool.update_root(mode, uid, gid)
        root.mode, root.uid, root.gid = stat.S_IFDIR | stat.S_IMODE(mode), uid, gid
        inode.mtime_ns = inode.mtime_ns or root.time_ns

    async def _update(self, inode: Inode, wanted: Attributes) -> None:
        if "mode" in wanted and inode.record is not None:
            wanted["mode"] = stat.S_IFMT(inode.record.mode) | stat.S_IMODE(wanted["mode"])
        over = self._volume.overlay.get(*inode.place)
        draft = over.draft if over is not None else None
        async with AsyncExitStack() as stack:
            if draft is not None:
                await stack.enter_async_context(draft.hold())
            record = None if inode.gone else self._volume.pool.lookup(*inode.place)
            if record is not None and inode.record is not None and record.kind is inode.record.kind:
                # Of a file that was written to meanwhile, the version of now is meant.
                record = await self._volume.pool.update(record, **wanted)
                self._volume.inodes.renew(record)
                if draft is not None and draft.base is not None and same_content(draft.base, record):
                    self._share(draft, record, wanted)
            elif not inode.gone and not self._is_open(inode):
                raise refused(errno.ENOENT)
        if inode.record is not None and (record is None or not same_content(record, inode.record)):
            inode.record = replace(inode.record, **wanted)  # for those who have the old version open

    def _is_open(self, inode: Inode) -> bool:
        return inode.record is not None and self._volume.versions.is_open(inode.record.object_id)

    def _share(self, draft: Draft, record: Descriptor, wanted: Attributes) -> None:
        """Who writes to a file meanwhile publishes it with its new attributes too."""
        dirty = draft.dirty
        self._change_draft(draft, wanted)
        draft.content.dirty = dirty
        draft.rebind(record)

    # --- user attributes

    def xattrs(self, inode: Inode) -> Xattrs:
        if inode.draft is not None:
            return inode.draft.attributes.xattrs
        return inode.record.xattrs if inode.record is not None else ()

    def xattr(self, inode: Inode, name: bytes) -> bytes:
        """:raises OSError: ENODATA"""
        if name.startswith(_USER):
            for known, value in self.xattrs(inode):
                if known == name:
                    return value
        raise refused(errno.ENODATA)

    async def set_xattr(self, inode: Inode, name: bytes, value: bytes) -> None:
        """:raises OSError: ENOTSUP. :raises RecordTooLarge:"""
        _check_namespace(name)
        changed = dict(self.xattrs(inode))
        changed[name] = value
        await self._set_xattrs(inode, tuple(sorted(changed.items())))

    async def remove_xattr(self, inode: Inode, name: bytes) -> None:
        """:raises OSError: ENODATA, ENOTSUP"""
        _check_namespace(name)
        self.xattr(inode, name)
        await self._set_xattrs(inode, tuple(item for item in self.xattrs(inode) if item[0] != name))

    async def _set_xattrs(self, inode: Inode, xattrs: Xattrs) -> None:
        if inode.draft is not None and self._volume.pool.inline_limit(inode.draft.name, xattrs) < 0:
            raise RecordTooLarge("user attributes that do not fit the file's record")
        await self._apply(inode, {"xattrs": xattrs})


def _wanted(changes: Changes) -> Attributes:
    wanted: Attributes = {}
    if changes.mode is not None:
        wanted["mode"] = changes.mode
    if changes.uid is not None:
        wanted["uid"] = changes.uid
    if changes.gid is not None:
        wanted["gid"] = changes.gid
    if changes.mtime_ns is not None:
        wanted["mtime_ns"] = changes.mtime_ns
    return wanted


def _check_namespace(name: bytes) -> None:
    if not name.startswith(_USER) or name == _USER:
        raise refused(errno.ENOTSUP)
