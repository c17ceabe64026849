"""The numbers that the kernel holds, and what they stand for. Pure.

A number stands for one version of a file, or for one draft, or for a directory or symlink. It is never used again for
another, so that whatever the kernel has cached under it stays true. A draft's number goes on as that of the version
published from it when the last writer closes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blockdev.types import ROOT, Descriptor, DirectoryId, Kind, ObjectId
from kvfs.fuse.drafts import Draft
from kvfs.fuse.versions import same_content

ROOT_NUMBER = 1
Place = tuple[DirectoryId, bytes]
"""A name in a directory."""


class Inode:
    """What a number stands for.

    :ivar number: unsigned 64 bit
    :ivar record: the published version, directory or symlink; None for a draft, for the root, and for what is dead
    :ivar draft: while somebody writes
    :ivar lookups: how often the kernel was told the number and has not forgotten it
    :ivar handles: open files
    :ivar gone: its name was removed or given to another file; only those who have it open can reach it
    :ivar stale: another member did that, or moved it: who comes by name is sent back to look the name up
    :ivar doubtful: another member may have, while it was a draft
    :ivar place: where it is or was last
    :ivar atime_ns: in memory only
    :ivar mtime_ns: of a directory, in memory only; 0 if unknown
    """

    __slots__ = (
        "atime_ns",
        "doubtful",
        "draft",
        "gone",
        "handles",
        "lookups",
        "mtime_ns",
        "number",
        "place",
        "record",
        "stale",
    )

    def __init__(self, number: int, place: Place) -> None:
        self.number = number
        self.place = place
        self.record: Descriptor | None = None
        self.draft: Draft | None = None
        self.lookups = 0
        self.handles = 0
        self.gone = False
        self.stale = False
        self.doubtful = False
        self.atime_ns = 0
        self.mtime_ns = 0

    @property
    def is_root(self) -> bool:
        return self.number == ROOT_NUMBER

    @property
    def is_directory(self) -> bool:
        return self.is_root or (self.record is not None and self.record.kind is Kind.DIRECTORY)

    @property
    def directory(self) -> DirectoryId:
        """The directory's id; only for directories."""
        if self.is_root:
            return ROOT
        assert self.record is not None
        return DirectoryId(self.record.object_id)


class InodeTable:
    """All inodes that the kernel may ask for."""

    def __init__(self) -> None:
        self._last = ROOT_NUMBER
        self.root = Inode(ROOT_NUMBER, (ROOT, b""))
        self._by_number: dict[int, Inode] = {ROOT_NUMBER: self.root}
        self._by_object: dict[ObjectId, list[Inode]] = {}
        self._by_place: dict[Place, list[Inode]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Inode]:
        return iter(self._by_number.values())

    def get(self, number: int) -> Inode | None:
        return self._by_number.get(number)

    def of_directory(self, directory: DirectoryId) -> Inode | None:
        """The inode of a directory, if the kernel may know it."""
        if directory == ROOT:
            return self.root
        found = self._by_object.get(ObjectId(directory))
        return found[-1] if found else None

    def of_record(self, record: Descriptor) -> Inode:
        """The inode of a version of that name: the one that there is, now under this record, or a new one.

        One that had another name is not it: who moved it here would have said so with `renew`, and the kernel may go on
        finding it under that name.
        """
        place = (record.directory, record.name)
        for inode in reversed(self._by_object.get(record.object_id, ())):
            assert inode.record is not None
            if inode.place == place and same_content(inode.record, record):
                self._renew(inode, record)
                return inode
        inode = self._new(place)
        self.bind(inode, record)
        return inode

    def renew(self, record: Descriptor) -> None:
        """A version was renamed or had its attributes changed: all its inodes have the new record."""
        for inode in self._by_object.get(record.object_id, ()):
            if inode.record is not None and same_content(inode.record, record):
                self._renew(inode, record)

    def _renew(self, inode: Inode, record: Descriptor) -> None:
        if inode.record is None or inode.record.stamp <= record.stamp:
            inode.record = record
            self.move(inode, (record.directory, record.name))

    def outdate(self, inode: Inode) -> None:
        """Its name stands for something else now, and it for nothing that can be found."""
        self._unindex(inode)
        inode.stale = True

    def at(self, place: Place) -> list[Inode]:
        """Inodes that are, or were last, at a place."""
        return list(self._by_place.get(place, ()))

    def move(self, inode: Inode, place: Place) -> None:
        """It has another name."""
        if inode.place != place and inode.number in self._by_number:
            self._leave_place(inode)
            self._by_place.setdefault(place, []).append(inode)
        inode.place = place

    def _leave_place(self, inode: Inode) -> None:
        there = self._by_place.get(inode.place, [])
        if inode in there:
            there.remove(inode)
        if not there:
            self._by_place.pop(inode.place, None)

    def versions(self, object_id: ObjectId) -> list[Inode]:
        """Inodes of an object, those of versions that are replaced included."""
        return list(self._by_object.get(object_id, ()))

    def of_draft(self, draft: Draft) -> Inode:
        """A new inode for a draft."""
        inode = self._new((draft.directory, draft.name))
        inode.draft = draft
        return inode

    def bind(self, inode: Inode, record: Descriptor | None) -> None:
        """Let an inode stand for a published version from now on, and be found by it if the kernel may still know it;
        for nothing if there is none.
        """
        self._unindex(inode)
        inode.record = record
        if record is not None and inode.number in self._by_number:
            self.move(inode, (record.directory, record.name))
            self._by_object.setdefault(record.object_id, []).append(inode)

    def forget(self, number: int, lookups: int) -> Inode | None:
        """The kernel dropped `lookups` references; returns the inode."""
        inode = self._by_number.get(number)
        if inode is not None:
            inode.lookups -= lookups
        return inode

    def drop(self, inode: Inode) -> None:
        """Remove an inode that neither the kernel nor an open file knows."""
        self._by_number.pop(inode.number, None)
        self._unindex(inode)
        self._leave_place(inode)

    def _new(self, place: Place) -> Inode:
        self._last += 1
        inode = self._by_number[self._last] = Inode(self._last, place)
        self._by_place.setdefault(place, []).append(inode)
        return inode

    def _unindex(self, inode: Inode) -> None:
        if inode.record is None:
            return
        siblings = self._by_object.get(inode.record.object_id, [])
        if inode in siblings:
            siblings.remove(inode)
        if not siblings:
            self._by_object.pop(inode.record.object_id, None)


class Overlay:
    """Names of drafts: what lies over the names in the pool."""

    def __init__(self) -> None:
        self._names: dict[DirectoryId, dict[bytes, Inode]] = {}

    def get(self, directory: DirectoryId, name: bytes) -> Inode | None:
        return self._names.get(directory, {}).get(name)

    def set(self, directory: DirectoryId, name: bytes, inode: Inode) -> None:
        self._names.setdefault(directory, {})[name] = inode

    def remove(self, directory: DirectoryId, name: bytes, inode: Inode) -> None:
        """Remove the name if it is the inode's."""
        names = self._names.get(directory, {})
        if names.get(name) is inode:
            del names[name]
            if not names:
                del self._names[directory]

    def names(self, directory: DirectoryId, after: bytes) -> list[tuple[bytes, Inode]]:
        """Names greater than `after`, in order."""
        return sorted((name, inode) for name, inode in self._names.get(directory, {}).items() if name > after)

    def occupies(self, directory: DirectoryId) -> bool:
        return directory in self._names

    def all(self) -> Iterable[Inode]:
        return [inode for names in self._names.values() for inode in names.values()]
