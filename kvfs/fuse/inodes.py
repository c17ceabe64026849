"""The numbers that the kernel holds, and what they stand for. Pure.

A number stands for one version of a file, or for one draft, or for a directory or symlink. It is never used again for
another, so that whatever the kernel has cached under it stays true. A draft's number goes on as that of the version
published from it when the last writer closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache

from blockdev.layout import (
    pack_descriptor,
    packed_kind,
    packed_object,
    packed_parent,
    packed_place,
    unpack_descriptor,
)
from blockdev.types import ROOT, Descriptor, DirectoryId, Kind, ObjectId
from kvfs.fuse.drafts import Draft
from kvfs.fuse.versions import same_content

ROOT_NUMBER = 1
Place = tuple[DirectoryId, bytes]
"""A name in a directory."""


_unpacked = lru_cache(maxsize=1024)(unpack_descriptor)
"""What is asked of an inode's record comes in bursts."""


_GONE, _STALE, _DOUBTFUL, _SENTINEL = 1, 2, 4, 8


class Inode:
    """What a number stands for. There is one for every file that the kernel remembers, perhaps for millions.

    :ivar number: unsigned 64 bit
    :ivar packed: the record, as the catalogue keeps it: a fifth of the memory
    :ivar draft: while somebody writes
    :ivar lookups: how often the kernel was told the number and has not forgotten it
    :ivar handles: open files
    :ivar atime_ns: in memory only
    :ivar mtime_ns: of a directory, in memory only; 0 if unknown
    """

    __slots__ = (
        "_place",
        "_state",
        "atime_ns",
        "draft",
        "handles",
        "lookups",
        "mtime_ns",
        "number",
        "packed",
    )

    def __init__(self, number: int, place: Place | None, packed: bytes | None = None) -> None:
        self.number = number
        self.packed = packed
        self.draft: Draft | None = None
        self.lookups = 0
        self.handles = 0
        self._state = 0
        self.atime_ns = 0
        self.mtime_ns = 0
        self._place = place

    # One number for all of them: there may be millions.

    @property
    def gone(self) -> bool:
        """Its name was removed or given to another file; only those who have it open can reach it."""
        return bool(self._state & _GONE)

    @gone.setter
    def gone(self, value: bool) -> None:
        self._state = self._state & ~_GONE | _GONE * value

    @property
    def stale(self) -> bool:
        """Another member did that, or moved it: who comes by name is sent back to look the name up."""
        return bool(self._state & _STALE)

    @stale.setter
    def stale(self, value: bool) -> None:
        self._state = self._state & ~_STALE | _STALE * value

    @property
    def doubtful(self) -> bool:
        """Another member may have, while it was a draft."""
        return bool(self._state & _DOUBTFUL)

    @doubtful.setter
    def doubtful(self, value: bool) -> None:
        self._state = self._state & ~_DOUBTFUL | _DOUBTFUL * value

    @property
    def sentinel(self) -> bool:
        """The kernel is to ask for its name each time, as that tells what will be read."""
        return bool(self._state & _SENTINEL)

    @sentinel.setter
    def sentinel(self, value: bool) -> None:
        self._state = self._state & ~_SENTINEL | _SENTINEL * value

    @property
    def record(self) -> Descriptor | None:
        """The published version, directory or symlink; None for a draft, for the root, and for what is dead."""
        return _unpacked(self.packed) if self.packed is not None else None

    @record.setter
    def record(self, record: Descriptor | None) -> None:
        self.packed = pack_descriptor(record) if record is not None else None

    @property
    def place(self) -> Place:
        """Where it is or was last."""
        if self._place is not None:
            return self._place
        assert self.packed is not None
        return packed_place(self.packed)

    @place.setter
    def place(self, place: Place) -> None:
        is_said = self.packed is not None and packed_place(self.packed) == place
        self._place = None if is_said else place

    @property
    def parent(self) -> DirectoryId:
        """The directory that it is or was last in."""
        if self._place is not None:
            return self._place[0]
        assert self.packed is not None
        return packed_parent(self.packed)

    @property
    def is_root(self) -> bool:
        return self.number == ROOT_NUMBER

    @property
    def is_directory(self) -> bool:
        return self.is_root or (self.packed is not None and packed_kind(self.packed) is Kind.DIRECTORY)

    @property
    def directory(self) -> DirectoryId:
        """The directory's id; only for directories."""
        if self.is_root:
            return ROOT
        assert self.packed is not None
        return DirectoryId(packed_object(self.packed))


class InodeTable:
    """All inodes that the kernel may ask for.

    :ivar on_drop: called with each that neither the kernel nor an open file knows any more
    """

    def __init__(self) -> None:
        self.on_drop: Callable[[Inode], object] = lambda _: None
        self._last = ROOT_NUMBER
        self.root = Inode(ROOT_NUMBER, (ROOT, b""))
        self._by_number: dict[int, Inode] = {ROOT_NUMBER: self.root}
        self._by_object: _Index = {}
        self._by_place: _Index = {}

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
        found = self.versions(ObjectId(directory))
        return found[-1] if found else None

    def of_record(self, record: Descriptor) -> Inode:
        """The inode of a version of that name: the one that there is, now under this record, or a new one.

        One that had another name is not it: who moved it here would have said so with `renew`, and the kernel may go on
        finding it under that name.
        """
        return self.of_packed(pack_descriptor(record))

    def of_packed(self, packed: bytes) -> Inode:
        """As `of_record`, for one who has it packed. :raises FormatError: not a record"""
        object_id = packed_object(packed)
        for inode in reversed(self.versions(object_id)):
            if inode.gone:
                continue  # a directory that is made again is the same one, but for the kernel
            if inode.packed == packed and inode.place == packed_place(packed):
                return inode
            record = unpack_descriptor(packed)
            place = (record.directory, record.name)
            if inode.record is not None and inode.place == place and same_content(inode.record, record):
                self._renew(inode, record)
                return inode
        inode = self._new(None, packed)
        _put(self._by_object, object_id, inode)
        return inode

    def renew(self, record: Descriptor) -> None:
        """A version was renamed or had its attributes changed: all its inodes have the new record."""
        for inode in self.versions(record.object_id):
            if inode.record is not None and same_content(inode.record, record):
                self._renew(inode, record)

    def _renew(self, inode: Inode, record: Descriptor) -> None:
        if inode.record is None or inode.record.stamp <= record.stamp:
            place = (record.directory, record.name)
            self.move(inode, place)  # before the record says so, too
            inode.record = record
            inode.place = place

    def outdate(self, inode: Inode) -> None:
        """Its name stands for something else now, and it for nothing that can be found."""
        self._unindex(inode)
        inode.stale = True

    def at(self, place: Place) -> list[Inode]:
        """Inodes that are, or were last, at a place."""
        return [inode for inode in _all(self._by_place, place) if inode.place == place]

    def move(self, inode: Inode, place: Place) -> None:
        """It has another name."""
        if inode.place != place and inode.number in self._by_number:
            _take(self._by_place, inode.place, inode)
            _put(self._by_place, place, inode)
        inode.place = place

    def versions(self, object_id: ObjectId) -> list[Inode]:
        """Inodes of an object, those of versions that are replaced included."""
        found = _all(self._by_object, object_id)
        return [inode for inode in found if inode.packed and packed_object(inode.packed) == object_id]

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
        place = inode.place
        inode.record = record
        inode.place = place
        if record is not None and inode.number in self._by_number:
            self.move(inode, (record.directory, record.name))
            _put(self._by_object, record.object_id, inode)

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
        _take(self._by_place, inode.place, inode)
        self.on_drop(inode)

    def _new(self, place: Place | None, packed: bytes | None = None) -> Inode:
        self._last += 1
        inode = self._by_number[self._last] = Inode(self._last, place, packed)
        _put(self._by_place, inode.place, inode)
        return inode

    def _unindex(self, inode: Inode) -> None:
        if inode.packed is not None:
            _take(self._by_object, packed_object(inode.packed), inode)


_Index = dict[int, Inode | list[Inode]]
"""Most keys have one inode: that takes no list. By a hash of the key, as long as an integer of 32 bytes can be, which is
half of what the key itself would take; what is found may be another key's.
"""
_HASH = (1 << 60) - 1


def _all(index: _Index, key: Hashable) -> list[Inode]:
    found = index.get(hash(key) & _HASH)
    if found is None:
        return []
    return list(found) if isinstance(found, list) else [found]


def _put(index: _Index, key: Hashable, inode: Inode) -> None:
    others = _all(index, key)
    index[hash(key) & _HASH] = [*others, inode] if others else inode


def _take(index: _Index, key: Hashable, inode: Inode) -> None:
    others = [other for other in _all(index, key) if other is not inode]
    if others:
        index[hash(key) & _HASH] = others if len(others) > 1 else others[0]
    else:
        index.pop(hash(key) & _HASH, None)


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
