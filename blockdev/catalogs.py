"""What all members of a host know together: each one's catalogue, read as one.

A member writes the catalogues of the seats that it holds and reads those of all others. Of the records that speak for a
name, the one with the highest stamp counts, by the rules of `stamps`: nobody asks anybody. A record whose member says
that it is outdone (its object was renamed, replaced or removed by another member that could not change it) does not
count, and an ALIAS shows the object that it stands for under its own name and attributes.
"""

from __future__ import annotations

import heapq
import logging
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from blockdev.catalog import Catalog
from blockdev.errors import FormatError
from blockdev.layout import Glance, glance_descriptor, pack_descriptor
from blockdev.stamps import age, is_directory
from blockdev.types import (
    Descriptor,
    DirectoryId,
    DirtyChunk,
    Kind,
    ObjectId,
    RegionId,
    SlotRef,
    Stamp,
)

log = logging.getLogger(__name__)

_BATCH = 256


def catalog_folder(folder: Path, seat: int) -> Path:
    """Where a seat's catalogue is in a pool's folder."""
    return folder / "catalogue" / str(seat)


class Beaten(NamedTuple):
    """A record that is set aside, and the later one that has its name."""

    record: Descriptor
    by: Descriptor


class Catalogs:
    """The catalogues of one pool on one host, for one member. Any call may raise OSError, as those of `Catalog`.

    :param folder: the pool's, on this host
    :param own: by seat; the first is the one that takes what belongs to no other
    """

    def __init__(self, folder: Path, pool: UUID, own: dict[int, Catalog]) -> None:
        self._folder = folder
        self._pool = pool
        self.own = own
        self.others: dict[int, Catalog] = {}
        self._all: list[Catalog] = []
        self._simple = True
        """There is one catalogue, and it says nothing of others' records."""
        self._seats: dict[RegionId, int] = {}
        self._same: dict[DirectoryId, DirectoryId] = {}
        self._twins: defaultdict[DirectoryId, set[DirectoryId]] = defaultdict(set)
        self._refresh()

    def _refresh(self) -> None:
        self._all = [*self.own.values(), *self.others.values()]
        self._simple = len(self._all) == 1 and not self._all[0].all_outdone(limit=1)

    # ── seats ────────────────────────────────────────────────────────────────────────────────────────────

    def assign(self, region: RegionId, seat: int) -> None:
        """What is in a region belongs into this seat's catalogue."""
        self._seats[region] = seat

    def unassign(self, region: RegionId) -> None:
        """A region is not ours any more."""
        self._seats.pop(region, None)

    @property
    def regions(self) -> int:
        """How many regions are ours."""
        return len(self._seats)

    def assigned_to(self, seat: int) -> list[RegionId]:
        """The regions of a seat of ours."""
        return [region for region, its in self._seats.items() if its == seat]

    def assigned(self, region: RegionId) -> int | None:
        """The seat of ours that a region belongs to."""
        return self._seats.get(region)

    def add_own(self, seat: int, catalog: Catalog) -> None:
        """Write a seat's catalogue from here on."""
        self.others.pop(seat, None)
        self.own[seat] = catalog
        self._refresh()

    def read_other(self, seat: int) -> None:
        """Read a seat's catalogue: what is committed there, also while it is written in this process."""
        folder = catalog_folder(self._folder, seat)
        if (folder / "session.json").exists():
            self.others[seat] = Catalog.open(folder, self._pool, readonly=True)
        self._refresh()

    def see_others(self, seats: Iterable[int]) -> None:
        """Read the catalogues of these seats, and no others; those that were made anew are opened again."""
        wanted = {seat for seat in seats if seat not in self.own}
        if not wanted and not self.others:
            return
        for seat in [*self.others]:
            if seat not in wanted or self.others[seat].is_replaced():
                self.close_other(seat)
        for seat in wanted - self.others.keys():
            self.read_other(seat)
        self._refresh()

    def dissolve(self, seat: int) -> Iterator[Beaten | None]:
        """Move all that a seat of ours has said to our first one, step by step; then it has no catalogue any more.

        Nothing may be assigned to it any more. What changes between steps goes to the first one at once. Of two records of
        one name the earlier one is outdone, and told, if it is there to be freed.
        """
        catalog, primary = self.own[seat], self.primary
        for seen in catalog.scan():
            alias = seen.kind is Kind.ALIAS
            # It may have changed, or gone, since it was read.
            record = catalog.by_id(seen.object_id, alias=alias)
            known = primary.by_id(seen.object_id, alias=alias)
            beaten = None
            if record is not None and (known is None or _version(known) < _version(record)):
                beaten = _store(primary, record)
            if beaten is not None and self.has_moved(beaten.record):
                beaten = None  # it lives under another name
            if beaten is not None:
                primary.outdo(beaten.record.ref, beaten.by.stamp)
            yield beaten
        after: SlotRef | None = None
        while batch := catalog.all_outdone(after):
            for after, stamp in batch:
                primary.outdo(after, max(stamp, primary.outdone(after) or stamp))
            yield None
        primary.mark_dirty(*catalog.dirty_chunks())
        primary.commit()
        del self.own[seat]
        catalog.close(clean=False)
        _remove(catalog_folder(self._folder, seat))
        self._refresh()

    def close_other(self, seat: int) -> None:
        """Do not read a seat's catalogue any more."""
        catalog = self.others.pop(seat, None)
        if catalog is not None:
            with suppress(OSError):
                catalog.close(clean=False)
        self._refresh()

    @property
    def primary(self) -> Catalog:
        return next(iter(self.own.values()))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def get(self, directory: DirectoryId, name: bytes) -> Descriptor | None:
        """What a name stands for. An ALIAS comes as what it stands for, under its own name and attributes."""
        records = self.raw(directory, name)
        return self._truth(records) if records else None

    def glance(self, directory: DirectoryId, name: bytes) -> Glance | None:
        """The file that a name stands for, where that is plain: one catalogue has a record of it, and nobody outdoes it.
        None: ask `get`, which takes longer and knows."""
        found = [packed for catalog in self._all if (packed := catalog.packed(directory, name)) is not None]
        if len(found) != 1 or self._same:
            return None
        try:
            one = glance_descriptor(found[0])
        except FormatError:
            return None
        if one is None or (one.directory, one.name) != (directory, name):
            return None
        if self._simple:
            return one
        outdone = (catalog.outdone(one.ref) for catalog in self._all)
        return None if any(stamp is not None and stamp > one.stamp for stamp in outdone) else one

    def raw(self, directory: DirectoryId, name: bytes, without: Collection[int] = ()) -> list[Descriptor]:
        """Every record of a name, as it is in its catalogue. :param without: seats not to be asked"""
        catalogs = self._without(without)
        found = [
            record
            for one in self.same(directory)
            for catalog in catalogs
            if (record := catalog.get(one, name)) is not None
        ]
        return [record for record in found if record.kind is not Kind.TOMBSTONE]

    def aliases(self, object_id: ObjectId, without: Collection[int] = ()) -> list[Descriptor]:
        """Every ALIAS of an object. :param without: seats not to be asked"""
        return aliases_in(self._without(without), object_id)

    def _without(self, seats: Collection[int]) -> list[Catalog]:
        if not seats:
            return self._all
        every = {**self.own, **self.others}
        return [catalog for seat, catalog in every.items() if seat not in seats]

    def by_id(self, object_id: ObjectId) -> Descriptor | None:
        """What an object is, under whatever name; None if it is gone."""
        records = self.raw_by_id(object_id)
        if self._simple:
            return self._shown(records[0]) if records else None
        latest = max(records, key=age, default=None)
        if latest is None or self.is_outdone(latest):
            return None
        shown = self._shown(latest)
        if shown is None or latest.kind is Kind.DIRECTORY:
            return shown
        counts = self.get(shown.directory, shown.name)
        return shown if counts is not None and counts.object_id == object_id else None

    def published_after(self, predecessor: bytes, limit: int) -> list[Descriptor]:
        """What was published after the name with this hash, the latest first, at most `limit` of each member; as it is now,
        under whatever name."""
        found = [one for catalog in self._all for one in catalog.published_after(predecessor, limit)]
        if self._simple:
            return [one for one in found if one.kind is not Kind.ALIAS]
        found.sort(key=age, reverse=True)
        shown = (self.by_id(object_id) for object_id in dict.fromkeys(one.object_id for one in found))
        return [one for one in shown if one is not None]

    def raw_by_id(self, object_id: ObjectId) -> list[Descriptor]:
        """Every record of an object, as it is in its catalogue."""
        return [
            record
            for catalog in self._all
            for alias in ((False,) if self._simple else (False, True))
            if (record := catalog.by_id(object_id, alias=alias)) is not None
        ]

    def behind(self, record: Descriptor) -> list[Descriptor]:
        """Every record that must be outdone, lest the name or object that `record` shows come back."""
        if self._simple:
            return [record]
        found = {one.ref: one for one in self.raw_by_id(record.object_id)}
        for one in self.raw(record.directory, record.name):
            if one.ref not in found and not self.has_moved(one):
                found[one.ref] = one
        return list(found.values())

    def has_moved(self, record: Descriptor) -> bool:
        """Whether the object of a record lives under another name: its owner has yet to do what an ALIAS says."""
        if self._simple:
            return False
        shown = self.by_id(record.object_id)
        return shown is not None and self._place(shown) != self._place(record)

    def _place(self, record: Descriptor) -> tuple[DirectoryId, bytes]:
        return self.canonical(record.directory), record.name

    def owner(self, object_id: ObjectId) -> Catalog | None:
        """Our catalogue that has an object's own record; None if the object is another member's."""
        for catalog in self.own.values():
            if catalog.by_id(object_id) is not None:
                return catalog
        return None

    def is_ours(self, record: Descriptor) -> bool:
        """Whether we may change the object that `record` shows."""
        if not self.others:
            return True
        # The same directory may have been made by another, too.
        return RegionId(*record.address[:2]) in self._seats and self.owner(record.object_id) is not None

    def alias(self, object_id: ObjectId) -> Descriptor | None:
        """Our own latest ALIAS of an object, if there is one."""
        return max(aliases_in(self.own.values(), object_id), key=age, default=None)

    def children(self, directory: DirectoryId, after: bytes = b"") -> Iterator[Descriptor]:
        """What is in a directory, sorted by name, from the first name behind `after`.

        Anything may change between steps: what is gone does not come, what is new may.
        """
        same = self.same(directory)
        if self._simple and len(same) == 1:
            yield from self._all[0].children(directory, after)
            return
        walks = [self._names(catalog, one, after) for catalog in self._all for one in same]
        for name, _ in groupby(heapq.merge(*walks)):
            record = self.get(directory, name)
            if record is not None:
                yield record

    def entries(self, directory: DirectoryId, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """As `children`: names and packed records."""
        if self._simple and not self._same:
            yield from self._all[0].entries(directory, after)
            return
        for record in self.children(directory, after):
            yield record.name, pack_descriptor(record)

    @staticmethod
    def _names(catalog: Catalog, directory: DirectoryId, after: bytes) -> Iterator[bytes]:
        while batch := catalog.names_behind(directory, after, _BATCH):
            yield from batch
            after = batch[-1]

    def has_children(self, directory: DirectoryId) -> bool:
        """Whether anything is in a directory."""
        return next(self.children(directory), None) is not None

    def scan(self) -> Iterator[Descriptor]:
        """Every object of ours, in no useful order; names given by others are not seen."""
        for catalog in self.own.values() or self._all:
            yield from (r for r in catalog.scan() if r.kind not in {Kind.ALIAS, Kind.TOMBSTONE})

    @property
    def count(self) -> int:
        """How many objects there are, about."""
        return sum(catalog.count for catalog in self._all)

    # ── what counts ──────────────────────────────────────────────────────────────────────────────────────

    def is_outdone(self, record: Descriptor) -> bool:
        """Whether another member's later record speaks for what `record` speaks for."""
        return not self._simple and self.outdone_by(record) is not None

    def outdone_by(self, record: Descriptor) -> Stamp | None:
        """The highest stamp of what outdoes a record by listing it."""
        stamps = [s for c in self._all if (s := c.outdone(record.ref)) is not None and s > record.stamp]
        return max(stamps, default=None)

    def _truth(self, records: list[Descriptor]) -> Descriptor | None:
        if self._simple and len(records) == 1:
            return self._shown(records[0])
        records.sort(key=age, reverse=True)
        if is_directory(records[0]):
            return self._directory(records)
        latest = records[0]
        return None if self.is_outdone(latest) else self._shown(latest)

    def _directory(self, records: list[Descriptor]) -> Descriptor | None:
        """Of directories made more than once, the one with the smallest id; what is in them is in it."""
        found: dict[ObjectId, Descriptor] = {}
        for record in records:
            if not is_directory(record):
                break
            shown = self._alive(record)
            if shown is not None and self._is_latest(record):
                found.setdefault(shown.object_id, shown)
        if not found:
            return None
        smallest = min(found)
        for other in found.keys() - {smallest}:
            self._note_twins(DirectoryId(smallest), DirectoryId(other))
        return found[smallest]

    def _alive(self, record: Descriptor) -> Descriptor | None:
        return None if self.is_outdone(record) else self._shown(record)

    def _is_latest(self, record: Descriptor) -> bool:
        """Of records of one directory, which may be several members', whether no later one says that it is elsewhere."""
        same = self.raw_by_id(record.object_id)
        return not any(age(one) > age(record) and self._alive(one) is not None for one in same)

    def repeats(self, record: Descriptor) -> list[Descriptor]:
        """Older records of a directory, which others made at the same moment, or which was made again."""
        if self._simple or record.kind is not Kind.DIRECTORY:
            return []
        same = self.raw_by_id(record.object_id)
        return [one for one in same if one.kind is Kind.DIRECTORY and age(one) < age(record)]

    def _note_twins(self, smallest: DirectoryId, other: DirectoryId) -> None:
        known = self._same.get(other)
        if known is None or smallest < known:
            self._same[other] = smallest
            self._twins[smallest] |= {other, *self._twins.pop(other, ())}

    def canonical(self, directory: DirectoryId) -> DirectoryId:
        """The directory that stands for all that were made under its name."""
        return self._same.get(directory, directory)

    def same(self, directory: DirectoryId) -> tuple[DirectoryId, ...]:
        """The ids whose children are a directory's."""
        if not self._same:
            return (directory,)
        canonical = self.canonical(directory)
        return (canonical, *self._twins.get(canonical, ()))

    def _shown(self, record: Descriptor) -> Descriptor | None:
        """A record as its readers see it. None: an alias whose object is gone, or has taken it over."""
        if record.kind is not Kind.ALIAS:
            return record
        for catalog in self._all:
            base = catalog.by_id(record.object_id)
            if base is not None and base.ref == record.head:
                return aliased(base, record) if base.stamp < record.stamp else None
        return None

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────

    def put(self, record: Descriptor) -> None:
        """Store a record of ours under its name. What our catalogue had there is set aside until it is forgotten."""
        catalog = self._of(RegionId(*record.address[:2]))
        if self._simple:
            catalog.put(record)
        else:
            _store(catalog, record)
            forget_elsewhere(self.own.values(), catalog, record)

    def forget(self, record: Descriptor) -> None:
        """Take an object, or an alias, of ours out, under whatever name we have it."""
        for catalog in self.own.values():
            catalog.forget(record)

    def outdo(self, refs: Iterable[SlotRef], stamp: Stamp) -> None:
        """Say that others' records are outdone by one of ours."""
        listed = [*refs]
        if not listed:
            return
        # Where a member has several seats: an owner that sees this must find an ALIAS, or it lets the object go.
        for catalog in self.own.values():
            if catalog is not self.primary and catalog.has_changes:
                catalog.commit()
        for ref in listed:
            self.primary.outdo(ref, stamp)
        self._simple = False

    def not_outdone(self, ref: SlotRef, stamp: Stamp | None = None) -> None:
        """Nothing needs to be said of a slot any more. :param stamp: by a record of ours not later than this"""
        for catalog in self.own.values():
            catalog.not_outdone(ref, stamp)
        self._refresh()

    def mark_dirty(self, *chunks: DirtyChunk) -> None:
        """As `Catalog.mark_dirty`, in the catalogues of the chunks' regions."""
        for chunk in chunks:
            self._of(RegionId(chunk.device, chunk.region)).mark_dirty(chunk)

    def dirty_chunks(self) -> set[DirtyChunk]:
        """Every chunk that was marked."""
        return set().union(*(catalog.dirty_chunks() for catalog in self.own.values()))

    def commit(self) -> None:
        """Make all changes durable against kill -9, and visible to others."""
        for catalog in self.own.values():
            catalog.commit()

    def commit_due(self, now: float) -> bool:
        """As `Catalog.commit_due`."""
        done = [catalog.commit_due(now) for catalog in self.own.values()]
        return any(done)

    @property
    def has_changes(self) -> bool:
        return any(catalog.has_changes for catalog in self.own.values())

    @property
    def failed(self) -> bool:
        """Whether a call raised OSError in a catalogue of ours."""
        return any(catalog.failed for catalog in self.own.values())

    def reader_check(self) -> None:
        """As `Catalog.reader_check`."""
        for catalog in self.own.values():
            catalog.reader_check()

    def close_others(self) -> None:
        """Read nobody's catalogue any more."""
        for seat in [*self.others]:
            self.close_other(seat)

    def close(self, *, clean: bool) -> None:
        """Close all. :param clean: ours say what the media say"""
        self.close_others()
        for catalog in self.own.values():
            catalog.close(clean=clean)

    def _of(self, region: RegionId) -> Catalog:
        seat = self._seats.get(region)
        return self.primary if seat is None else self.own[seat]


def _version(record: Descriptor) -> tuple[object, ...]:
    return *age(record), record.sequence


def _remove(folder: Path) -> None:
    """Take a catalogue away, at one blow: one that was only emptied must be built again from the media."""
    gone = folder.with_name(f"{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _store(catalog: Catalog, record: Descriptor) -> Beaten | None:
    """Put a record where the later one of those that have its name in this catalogue is found; the other is set aside."""
    held = catalog.get(record.directory, record.name)
    if held is None or held.ref == record.ref:
        catalog.put(record)
        return None
    earlier, later = sorted((held, record), key=age)
    is_needed = earlier.kind is not Kind.ALIAS
    if is_needed:
        catalog.put(aside(earlier))
    if later is record:
        catalog.put(record)
    return Beaten(earlier, later) if is_needed else None


def forget_elsewhere(catalogs: Iterable[Catalog], catalog: Catalog, record: Descriptor) -> None:
    """Keep what a seat's catalogue now says of a slot from being contradicted: another seat's may still say what it was
    before its region changed seats, if whoever moved it was killed on the way."""
    for other in catalogs:
        if other is not catalog:
            other.forget(record)


def aliases_in(catalogs: Iterable[Catalog], object_id: ObjectId) -> list[Descriptor]:
    """Every ALIAS that these catalogues have of an object."""
    found = (catalog.by_id(object_id, alias=True) for catalog in catalogs)
    return [record for record in found if record is not None]


def aside(record: Descriptor) -> Descriptor:
    """A record under no name: another's ALIAS may stand for it, or it is about to be freed."""
    return replace(record, directory=_nowhere(record), name=b"outdone")


def is_aside(record: Descriptor) -> bool:
    """Whether a record is in the catalogue under no name: see `aside`; tombstones have none either."""
    return record.kind is Kind.TOMBSTONE or record.directory == _nowhere(record)


def _nowhere(record: Descriptor) -> DirectoryId:
    """A directory that never was: not the object itself, which may be one."""
    return DirectoryId(bytes(byte ^ 0xFF for byte in record.object_id))


def aliased(base: Descriptor, alias: Descriptor) -> Descriptor:
    """What an alias stands for, as the alias has it."""
    return replace(
        base,
        stamp=alias.stamp,
        directory=alias.directory,
        name=alias.name,
        mode=alias.mode,
        uid=alias.uid,
        gid=alias.gid,
        mtime_ns=alias.mtime_ns,
        ctime_ns=alias.ctime_ns,
        xattrs=alias.xattrs,
    )
