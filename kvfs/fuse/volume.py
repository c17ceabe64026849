"""What the parts of a mount share."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from blockdev.types import Descriptor, DirectoryId, Kind
from kvfs.fuse.drafts import DraftServices
from kvfs.fuse.foresight import Foresight
from kvfs.fuse.inodes import Inode, InodeTable, Overlay
from kvfs.fuse.ports import PoolPort
from kvfs.fuse.retries import Retries
from kvfs.fuse.versions import Versions
from kvfs.recording import Recorder


class Caller(NamedTuple):
    """Who asks."""

    uid: int
    gid: int
    thread: int


class Invalidator(Protocol):
    """Tells the kernel what to forget; never waits."""

    def attributes(self, inode: int) -> None:
        """Whatever the kernel knows about an inode is not true any more."""

    async def has_room(self) -> None:
        """Wait, at least for one checkpoint, until more of them will not be dropped."""


@dataclass(frozen=True, slots=True)
class Volume:
    """One mount's state, changed only in the trio thread and between awaits."""

    pool: PoolPort
    versions: Versions
    services: DraftServices
    inodes: InodeTable
    overlay: Overlay
    retries: Retries
    invalidator: Invalidator
    now_ns: Callable[[], int]
    foresight: Foresight
    recorder: Recorder

    def inode(self, number: int) -> Inode:
        """:raises OSError: the kernel asks for what it was never told, or forgot"""
        inode = self.inodes.get(number)
        if inode is None:
            raise refused(errno.ESTALE)
        return inode

    def exists(self, directory: DirectoryId, name: bytes) -> bool:
        """Whether the name stands for anything."""
        over = self.overlay.get(directory, name)
        draft = over.draft if over is not None else None
        return (draft is not None and draft.base is None) or self.pool.lookup(directory, name) is not None

    def current(self, directory: DirectoryId, name: bytes) -> Inode | None:
        """What a name stands for to those who do not write: a draft only before it was ever published."""
        over = self.overlay.get(directory, name)
        if over is not None and over.draft is not None and over.draft.base is None:
            return over
        record = self.pool.lookup(directory, name)
        return self.inodes.of_record(record) if record is not None else None

    def is_missing(self, inode: Inode) -> bool:
        """Whether what nobody has open has left the pool, or its name, under the kernel's eyes."""
        if inode.stale:
            return not inode.handles
        if inode.is_directory or inode.handles or inode.gone or inode.draft is not None:
            return False
        return self.pool.lookup(*inode.place) is None

    def send_back(self, inode: Inode, caller: Caller, *, writing: bool) -> OSError:
        """The error that makes the kernel look the inode's name up again, which then finds what it should."""
        self.retries.expect(caller.thread, inode.place, writing=writing)
        return refused(errno.ESTALE)

    def send_to_name(self, inode: Inode, caller: Caller) -> OSError:
        """As `send_back`, for who asked what an inode is that is not there any more.

        Not ENOENT: the kernel asks this too before it opens a file that it remembers, and an open that may make the
        file must then make it.
        """
        self.retries.expect(caller.thread, inode.place, writing=False, opens=False)
        return refused(errno.ESTALE)

    def changed_directory(self, directory: DirectoryId) -> None:
        """Something in it was made, moved or removed."""
        inode = self.inodes.of_directory(directory)
        if inode is not None:
            inode.mtime_ns = self.now_ns()

    def gone(self, record: Descriptor) -> None:
        """An object left the pool without being asked to."""
        self.versions.forget(record.extents)
        self.expire(record)
        if self.recorder.recordings and record.kind is Kind.HEAD:
            self.recorder.gone(record)

    def expire(self, record: Descriptor) -> None:
        """Have the kernel ask again about an object, if it may know it."""
        for inode in self.inodes.versions(record.object_id):
            self.invalidator.attributes(inode.number)


def refused(number: int) -> OSError:
    """An answer to the kernel."""
    return OSError(number, os.strerror(number))
