"""What stat(2) says of an inode, and for how long the kernel may believe it."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyfuse3

from blockdev.layout import Status, packed_status
from kvfs.fuse.drafts import Draft
from kvfs.fuse.inodes import Inode
from kvfs.fuse.ports import PoolPort
from kvfs.fuse.volume import Volume

PUBLISHED_TIMEOUT = 3600.0
"""Seconds. Published files do not change, and the kernel is told when one goes."""
SHARED_TIMEOUT = 10.0
"""Seconds for which the kernel believes in a file's attributes while there are other members: it is told when they
change, but a word that comes before it has made the inode that it is about is lost."""
NEGATIVE_TIMEOUT = 1.0
"""Seconds."""
SHARED_NEGATIVE_TIMEOUT = 0.05
"""Seconds for which a name that another member makes may be missed."""
NEW_TIMEOUT = 1.0
"""Seconds."""
_ASKED_EVERY = 0.05
"""Seconds."""
_SECTOR = 512
_BLOCK_SIZE_MAX = 2**31


@dataclass(slots=True)
class RootAttributes:
    """What the root directory is while the pool has no record of it."""

    mode: int
    uid: int
    gid: int
    time_ns: int


class Company:
    """Whether there are other members, asked so seldom that it costs nothing. For any thread."""

    def __init__(self, pool: PoolPort, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._until = 0.0
        self._alone = True

    @property
    def alone(self) -> bool:
        now = self._clock()
        if now >= self._until:
            self._alone, self._until = self._pool.alone, now + _ASKED_EVERY
        return self._alone


class Attributes:
    """Makes the kernel's records of inodes."""

    def __init__(self, volume: Volume, root: RootAttributes) -> None:
        self._volume = volume
        self._root = root
        self._company = Company(volume.pool)
        self._block_size = min(volume.pool.extent_size, _BLOCK_SIZE_MAX)

    def of(self, inode: Inode) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(inode.number)
        entry.st_nlink = 1
        entry.st_blksize = self._block_size
        if inode.draft is not None:
            self._draft(entry, inode.draft)
        elif inode.packed is not None:
            self._published(entry, packed_status(inode.packed))
        elif inode.is_root:
            self._root_directory(entry)
        else:
            entry.st_mode = pyfuse3.ModeT(stat.S_IFREG)
            entry.st_nlink = 0
        if inode.is_directory:
            entry.entry_timeout = PUBLISHED_TIMEOUT
            entry.st_nlink = 2
            if inode.mtime_ns:
                entry.st_mtime_ns = entry.st_ctime_ns = inode.mtime_ns
        else:
            entry.entry_timeout = self._entry_timeout(inode)
        if inode.gone:
            entry.st_nlink = 0
        if inode.stale:
            entry.attr_timeout = 0.0
        entry.st_atime_ns = inode.atime_ns or entry.st_mtime_ns
        return entry

    def missing(self) -> pyfuse3.EntryAttributes:
        """There is no such name."""
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(0)
        entry.entry_timeout = NEGATIVE_TIMEOUT if self._company.alone else SHARED_NEGATIVE_TIMEOUT
        return entry

    def _entry_timeout(self, inode: Inode) -> float:
        if inode.sentinel:
            return 0.0
        # While somebody writes to a published file, what its name leads to may change with every close.
        if not self._volume.overlay.occupies(inode.parent):
            return PUBLISHED_TIMEOUT
        over = self._volume.overlay.get(*inode.place)
        draft = over.draft if over is not None else None
        return 0.0 if draft is not None and draft.base is not None else PUBLISHED_TIMEOUT

    def _draft(self, entry: pyfuse3.EntryAttributes, draft: Draft) -> None:
        attributes = draft.attributes
        # As long as nothing was written, all that changes a new file goes through the kernel; a first write, which
        # asks for the file's mode, then need not ask us.
        entry.attr_timeout = 0.0 if draft.size or draft.base is not None else NEW_TIMEOUT
        entry.st_mode = pyfuse3.ModeT(attributes.mode)
        entry.st_uid = attributes.uid
        entry.st_gid = attributes.gid
        entry.st_size = draft.size
        entry.st_blocks = -(-draft.stored_size // _SECTOR)
        entry.st_mtime_ns = attributes.mtime_ns
        entry.st_ctime_ns = attributes.ctime_ns

    def _published_timeout(self) -> float:
        return PUBLISHED_TIMEOUT if self._company.alone else SHARED_TIMEOUT

    def _published(self, entry: pyfuse3.EntryAttributes, status: Status) -> None:
        entry.attr_timeout = self._published_timeout()
        entry.st_mode = pyfuse3.ModeT(status.mode)
        entry.st_uid = status.uid
        entry.st_gid = status.gid
        entry.st_size = status.size
        entry.st_blocks = -(-status.stored_size // _SECTOR)
        entry.st_mtime_ns = status.mtime_ns
        entry.st_ctime_ns = status.ctime_ns

    def _root_directory(self, entry: pyfuse3.EntryAttributes) -> None:
        root = self._root
        entry.attr_timeout = self._published_timeout()
        entry.st_mode = pyfuse3.ModeT(root.mode)
        entry.st_uid = root.uid
        entry.st_gid = root.gid
        entry.st_mtime_ns = entry.st_ctime_ns = root.time_ns
