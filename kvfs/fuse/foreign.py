"""What other members of the pool change under the kernel's eyes.

The pool tells of it soon after it is visible. A number whose name stands for something else now is *stale*: who asks
for it by name is answered with ESTALE, so that the kernel looks the name up again and finds another number; those who
have it open go on with the version that they have. For the kernel to ask at all, its attributes are invalidated, never
its name: see `notify` for why. A directory that was moved is stale too, though it is the same directory, since the
kernel would go on finding it under its old name.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from blockdev.types import ROOT, Foreign, ObjectId
from kvfs.fuse.attributes import RootAttributes
from kvfs.fuse.inodes import Inode
from kvfs.fuse.versions import same_content
from kvfs.fuse.volume import Volume

_SLICE = 256
"""Inodes that are looked at without letting others run: about a millisecond."""


class ForeignChanges:
    """Hears what other members changed, and sees that the kernel asks again. Never waits for the kernel."""

    def __init__(self, volume: Volume, root: RootAttributes, nursery: trio.Nursery) -> None:
        self._volume = volume
        self._root = root
        self._nursery = nursery
        self._looking = False
        self._again = False

    def changed(self, change: Foreign | None) -> None:
        """Something that another member changed; None: anything may be."""
        if change is None:
            self._again = True
            if not self._looking:
                self._looking = True
                self._nursery.start_soon(self._look_at_everything)
            return
        if change.object_id == ObjectId(ROOT):
            self._look_at_root()
            return
        inodes = self._volume.inodes
        place = (change.directory, change.name)
        for inode in {*inodes.versions(change.object_id), *inodes.at(place)}:
            review(self._volume, inode)
        parent = inodes.of_directory(change.directory)
        if parent is not None:
            self._volume.changed_directory(change.directory)
            self._volume.invalidator.attributes(parent.number)

    async def _look_at_everything(self) -> None:
        while self._again:
            self._again = False
            self._look_at_root()
            for some in _slices(list(self._volume.inodes)):
                for inode in some:
                    review(self._volume, inode)
                await self._volume.invalidator.has_room()
        self._looking = False

    def _look_at_root(self) -> None:
        record = self._volume.pool.directory(ROOT)
        if record is not None:
            self._root.mode, self._root.uid, self._root.gid = record.mode, record.uid, record.gid
        self._volume.invalidator.attributes(self._volume.inodes.root.number)


def _slices(inodes: list[Inode]) -> Iterable[list[Inode]]:
    return (inodes[at : at + _SLICE] for at in range(0, len(inodes), _SLICE))


def review(volume: Volume, inode: Inode) -> None:
    """Another member may have changed what an inode stands for: see whether it does, and tell the kernel."""
    if inode.is_root or inode.stale or inode.gone:
        return
    if inode.draft is not None:
        inode.doubtful = True  # until it stands for a version again
        return
    inode.doubtful = False
    now = volume.pool.lookup(*inode.place)
    if now is None or inode.record is None or not same_content(now, inode.record):
        volume.inodes.outdate(inode)
    elif now.stamp == inode.record.stamp:
        return
    else:
        volume.inodes.renew(now)
    volume.invalidator.attributes(inode.number)
