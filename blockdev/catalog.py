"""The catalogue: (directory, name) → object → its record, in LMDB. A cache of the media, never trusted over them.

A folder holds `session.json` (see `catalog_session`) and LMDB's files with these tables, numbers big-endian:

    names  directory id (16) + name          → row
    ids    object id (16); of an ALIAS, its complement → row
    rows   u64, counted up                   → packed descriptor (layout)
    dirty  device u16, region u32, chunk u32 → nothing
    order  u32                               → object ids, coldest first, 4,096 to a value
    outdone device u16, region u32, slot u32, generation u64 → stamp u64 of the record that outdoes that slot's
    changes u64, counted up                  → what was changed, the last 8,192 of them: see `Change`
    after   predecessor's first 8 bytes, row → nothing: the rows of the objects that were published after another, the
                                               latest at the end

Each member of a pool has one, writes it alone and lets the others read it. `outdone` is what a member says about the
records of others, which it cannot change; `changes` is how they learn of its own.

An object has one name and a name has one object, so storing an object under a new name is a rename. What a row says is
believed only if it names the object or the name that led to it.

Rows are numbered because names and ids come in random order, which leaves LMDB's pages 55-69 % full: what is large is
appended instead, and as the oldest objects go first, pages become free as a whole. A typical object (a name of 64 hex
digits and an ending, one extent) takes 480 bytes in a new catalogue and 510 after all were replaced; the file is a
sixth larger. Records under the object's id, without rows, took 600 and 750.

After a power loss LMDB's file may be any mixture of old and new pages, as it runs without sync, and to walk such a file
can crash the process. That is why the session is a file of its own: it is read first, and tables that may be such a
mixture are deleted without having been opened.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from blockdev.catalog_session import Session
from blockdev.catalog_tables import DamagedTables, Tables
from blockdev.errors import FormatError
from blockdev.layout import (
    Outline,
    outline_descriptor,
    pack_descriptor,
    packed_place,
    unpack_descriptor,
)
from blockdev.types import (
    NAMED_KINDS,
    NO_ID,
    Descriptor,
    DeviceNo,
    DirectoryId,
    DirtyChunk,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotNo,
    SlotRef,
    Stamp,
)

log = logging.getLogger(__name__)

_TABLES = ("names", "ids", "rows", "dirty", "order", "outdone", "changes", "after")
_NAMES, _IDS, _ROWS, _DIRTY, _ORDER, _OUTDONE, _CHANGES, _AFTER = _TABLES
_ID_SIZE: Final = len(NO_ID)
_LINK_SIZE: Final = 8
"""Bytes of a predecessor's hash in `after`: enough, as the record says the whole of it."""
_FIRST: Final = bytes(_ID_SIZE)
"""The predecessor of what has none."""
_CHUNK = struct.Struct(">HII")
_NUMBER = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_REF = struct.Struct(">HIIQ")
CHANGES_KEPT: Final = 8192
"""Changes that a follower may be behind before it has missed some."""
_ORDER_IDS = 4096
_BATCH = 64
_OUTLINES = 1024
"""Entries at a time."""


class Trust(Enum):
    """What a catalogue that was found is worth."""

    CURRENT = "current"
    """Closed clean: it says what the media say."""
    CRASHED = "crashed"
    """Not closed, but the system ran on: right except for the slots in dirty chunks."""
    STALE = "stale"
    """Worthless, and emptied: everything must be read from the media."""


class Change(NamedTuple):
    """What a member changed: what a name stands for or an object is, or that a slot's record is outdone."""

    object_id: ObjectId
    directory: DirectoryId
    name: bytes
    outdone: SlotRef | None = None


class Catalog:
    """Made by `open`; used from one thread; waits for nothing but the page cache.

    Changes gather in one transaction, and reads see them. Whoever changes something calls `commit_due` from time to
    time. Any call may raise OSError (the disk is full or broken): the changes since the last commit are lost then, as
    after a kill -9, and the catalogue cannot be closed clean any more.
    """

    def __init__(self, folder: Path, pool: UUID, *, readonly: bool, map_size: int) -> None:
        self._folder = folder
        self._pool = pool
        self._readonly = readonly
        self._map_size = map_size
        self._opened: Tables | None = None
        self._ignored = False  # opened for reading and not to be believed: as if empty
        self._session: Session | None = None
        self.followed: Callable[[], bool] = lambda: False
        """Whether changes are to be kept for others."""
        self._changes = 0
        """Counts changes of objects."""

    @classmethod
    def open(cls, folder: Path, pool: UUID, *, readonly: bool = False, map_size: int = 1 << 40) -> Catalog:
        """The catalogue in `folder`, made if there is none. Ask `trust` before believing it.

        :param readonly: change nothing; a folder that is not there is an empty catalogue
        :param map_size: bytes of address space, and the most it can grow to
        :raises OSError: the folder cannot be used
        """
        catalog = cls(folder, pool, readonly=readonly, map_size=map_size)
        if not readonly:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        catalog._session = Session.load(folder, pool)
        if catalog._session is None:
            catalog.clear()
        return catalog

    @property
    def failed(self) -> bool:
        """Whether a call raised OSError since it was opened or emptied."""
        return self._opened is not None and self._opened.failed

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────

    def trust(self, boot_id: str, sequences: Mapping[UUID, int]) -> Trust:
        """Whether the catalogue fits this boot and the devices that are present; it is emptied if not.

        :param sequences: of the superblock of each device that is present; missing devices do not count
        """
        session = self._session
        if session is None or not (session.clean or session.boot_id == boot_id):
            reason = "the system went down with it open, or there is none for this pool and version"
        elif any(session.sequences.get(device) != number for device, number in sequences.items()):
            reason = "the devices were changed without it"
        elif not self._is_sound():
            reason = "it is damaged"
        else:
            return Trust.CURRENT if session.clean else Trust.CRASHED
        log.info("catalogue %s is not used: %s", self._folder, reason)
        self.clear()
        return Trust.STALE

    def begin_session(self, boot_id: str, sequences: Mapping[UUID, int]) -> None:
        """From here on the catalogue follows the media. Call it when it is complete: after a rebuild, not before.

        Also when a device is lost: what happens without it must be compared with it when it comes back.

        :param sequences: of the superblocks, after this opening's writes, of the devices that are there; one that
            comes back later makes the catalogue STALE
        """
        self._changing().commit()
        self._session = Session(boot_id, clean=False, sequences=dict(sequences))
        self._session.store(self._folder, self._pool)

    def close(self, *, clean: bool) -> None:
        """
        :param clean: it says what the media say, and is to be believed even after a reboot
        """
        try:
            if not self._readonly and self._opened is not None:
                self._finish(self._opened, clean=clean)
        finally:
            self._release()

    def _finish(self, tables: Tables, *, clean: bool) -> None:
        if not clean or self._session is None or tables.failed:
            tables.commit()
            return
        tables.empty(_DIRTY)
        tables.commit()
        tables.sync()
        self._session = Session(self._session.boot_id, clean=True, sequences=self._session.sequences)
        self._session.store(self._folder, self._pool)

    def clear(self) -> None:
        """Empty it, for a rebuild. Until `begin_session` it is not believed."""
        self._release()
        self._session = None
        self._ignored = self._readonly
        if not self._readonly:
            Session.forget(self._folder)
            Tables.delete(self._folder)

    def is_current(self) -> bool:
        """Whether what was opened for reading is still what the writer has; else close it, and open it again."""
        if self._opened is None:
            return not self._ignored and not (self._folder / "session.json").exists()
        return self._opened.is_current

    def is_replaced(self) -> bool:
        """Whether the writer, or another one after it, has made the catalogue anew, and completely. Until then, what was
        opened for reading shows what there was.
        """
        return not self.is_current() and (self._opened is None or (self._folder / "session.json").exists())

    # ── objects ──────────────────────────────────────────────────────────────────────────────────────────

    def get(self, directory: DirectoryId, name: bytes) -> Descriptor | None:
        """The record of a name."""
        record = _recent(self.packed(directory, name))
        return record if record is not None and _key(record) == directory + name else None

    def by_id(self, object_id: ObjectId, *, alias: bool = False) -> Descriptor | None:
        """The record of an object. :param alias: rather an ALIAS of it, which may be another's object"""
        tables = self._tables()
        packed = None if tables is None else tables.follow(_IDS, _id_key(object_id, alias=alias), _ROWS)
        record = _recent(packed)
        return record if record is not None and record.object_id == object_id else None

    def put(self, record: Descriptor) -> None:
        """Store a record under its name, in place of what the name held and of the object's earlier name.

        :raises ValueError: it speaks for no name, or has no object id
        :raises BadName, RecordTooLarge: it cannot be on media
        """
        if record.kind not in NAMED_KINDS or record.object_id == NO_ID:
            raise ValueError(f"a {record.kind.name} record without a name or an object id")
        packed = pack_descriptor(record)
        tables = self._changing()
        tables.commit_if_large()
        key = _key(record)
        id_key = _id_key(record.object_id, alias=record.kind is Kind.ALIAS)
        held, row = tables.get(_NAMES, key), tables.get(_IDS, id_key)
        if row is None:
            row = tables.append(_ROWS, packed)
            tables.put(_IDS, id_key, row)
            _link(tables, record, row)
        else:
            earlier = _recent(tables.replace(_ROWS, row, packed))
            if earlier is not None and earlier.predecessor != record.predecessor:
                _unlink(tables, earlier, row)
                _link(tables, record, row)
            if earlier is not None and _key(earlier) != key:
                tables.pop(_NAMES, _key(earlier))
                self._tell(tables, record.object_id, _key(earlier))
        if held != row:
            tables.put(_NAMES, key, row)
            if held is not None:
                self._forget(tables, held)
        self._tell(tables, record.object_id, key)

    def delete(self, directory: DirectoryId, name: bytes) -> None:
        """Forget a name and its object; nothing if it is not there."""
        tables = self._changing()
        row = tables.pop(_NAMES, directory + name)
        if row is not None:
            self._forget(tables, row)

    def forget(self, record: Descriptor) -> None:
        """Forget an object, or an alias of one, if it is in the slot that `record` says, under whatever name."""
        for alias in (False, True):
            known = self.by_id(record.object_id, alias=alias)
            if known is not None and known.ref == record.ref:
                self.delete(known.directory, known.name)

    def _forget(self, tables: Tables, row: bytes) -> None:
        record = _recent(tables.pop(_ROWS, row))
        if record is not None:
            tables.pop(_IDS, _id_key(record.object_id, alias=record.kind is Kind.ALIAS))
            _unlink(tables, record, row)
            self._tell(tables, record.object_id, _key(record))

    def published_after(self, predecessor: bytes, limit: int) -> list[Descriptor]:
        """The records with this predecessor, the latest first, at most `limit`."""
        tables = self._tables()
        if tables is None or predecessor == _FIRST:
            return []
        rows = tables.last_with_prefix(_AFTER, predecessor[:_LINK_SIZE], limit)
        records = (_recent(tables.get(_ROWS, key[_LINK_SIZE:])) for key in rows)
        return [one for one in records if one is not None and one.predecessor == predecessor]

    def children(self, directory: DirectoryId, after: bytes = b"") -> Iterator[Descriptor]:
        """What is in a directory, sorted by name, from the first name behind `after`; see `entries`."""
        for _, packed in self.entries(directory, after):
            record = _unpacked(packed)
            if record is not None:
                yield record

    def entries(self, directory: DirectoryId, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Names and packed records of what is in a directory, sorted by name, from the first one behind `after`.

        Anything may change between steps: what is gone does not come, what is new may.
        """
        while (tables := self._tables()) is not None:
            changes = self._changes
            batch = tables.followed_behind(_NAMES, directory + after, directory, _BATCH, _ROWS)
            if not batch:
                return
            for key, packed in batch:
                after = key[_ID_SIZE:]
                if changes != self._changes:
                    packed = self.packed(directory, after)
                if packed is not None and packed_place(packed) == (directory, after):
                    yield after, packed

    def has_children(self, directory: DirectoryId) -> bool:
        """Whether anything is in a directory."""
        return bool(self.names_behind(directory, b"", 1))

    def scan(self) -> Iterator[Descriptor]:
        """Every record, in no useful order. What changes between steps may come as it was, or not at all."""
        for _, packed in self._items(_ROWS, _BATCH):
            record = _unpacked(packed)
            if record is not None:
                yield record

    def outlines(self) -> Iterator[Outline]:
        """The outline of every record, as `scan`."""
        for _, packed in self._items(_ROWS, _OUTLINES):
            try:
                yield outline_descriptor(packed)
            except FormatError:
                log.exception("a record in the catalogue is damaged")

    @property
    def count(self) -> int:
        """How many objects there are."""
        tables = self._tables()
        return 0 if tables is None else tables.count(_ROWS)

    # ── other members ────────────────────────────────────────────────────────────────────────────────────

    def outdo(self, ref: SlotRef, stamp: Stamp) -> None:
        """Say that a record of ours with this stamp outdoes the one in `ref`, another member's, if that is older."""
        tables = self._changing()
        tables.put(_OUTDONE, _REF.pack(*ref), _COUNT.pack(stamp))
        self._tell(tables, NO_ID, _REF.pack(*ref))

    def outdone(self, ref: SlotRef) -> Stamp | None:
        """The stamp of a record here that outdoes the one in `ref`."""
        tables = self._tables()
        found = None if tables is None else tables.get(_OUTDONE, _REF.pack(*ref))
        return None if found is None else Stamp(_COUNT.unpack(found)[0])

    def not_outdone(self, ref: SlotRef, stamp: Stamp | None = None) -> None:
        """Nothing here speaks of `ref` any more. :param stamp: only if it was a record of ours not later than this"""
        known = self.outdone(ref)
        if known is not None and (stamp is None or known <= stamp):
            self._changing().pop(_OUTDONE, _REF.pack(*ref))

    def all_outdone(self, after: SlotRef | None = None, limit: int = _BATCH) -> list[tuple[SlotRef, Stamp]]:
        """Up to `limit` of what is outdone, behind `after`."""
        tables = self._tables()
        key = b"" if after is None else _REF.pack(*after)
        items = [] if tables is None else tables.items_behind(_OUTDONE, key, limit)
        return [(_ref(packed), Stamp(_COUNT.unpack(stamp)[0])) for packed, stamp in items]

    def last_change(self) -> int:
        """The number of the last change that was kept; 0 if none was."""
        tables = self._tables()
        last = None if tables is None else tables.last_key(_CHANGES)
        return 0 if last is None else int(_COUNT.unpack(last)[0])

    def changes_since(self, number: int) -> tuple[int, list[Change]] | None:
        """What was changed after change `number`, and the number of the last one; None if some of it is not kept."""
        tables = self._tables()
        items = [] if tables is None else tables.items_behind(_CHANGES, _COUNT.pack(number), CHANGES_KEPT)
        if not items:
            return None if self.last_change() < number else (number, [])
        first, last = (_COUNT.unpack(items[at][0])[0] for at in (0, -1))
        return None if first != number + 1 else (last, [_change(packed) for _, packed in items])

    def _tell(self, tables: Tables, object_id: ObjectId, what: bytes) -> None:
        if self.followed():
            number = _COUNT.unpack(tables.append(_CHANGES, object_id + what))[0]
            if number > CHANGES_KEPT:
                tables.pop(_CHANGES, _COUNT.pack(number - CHANGES_KEPT))

    # ── dirty chunks ─────────────────────────────────────────────────────────────────────────────────────

    def mark_dirty(self, *chunks: DirtyChunk) -> None:
        """Remember that these chunks may differ from the catalogue; durable against kill -9 when it returns."""
        tables = self._changing()
        for chunk in chunks:
            tables.put(_DIRTY, _CHUNK.pack(chunk.device, chunk.region, chunk.chunk), b"")
        tables.commit()

    def dirty_chunks(self) -> set[DirtyChunk]:
        """Every chunk that was marked."""
        keys = (_CHUNK.unpack(key) for key, _ in self._items(_DIRTY, _ORDER_IDS))
        return {DirtyChunk(DeviceNo(device), RegionNo(region), chunk) for device, region, chunk in keys}

    def clear_dirty(self) -> None:
        """Every chunk agrees with the catalogue again; committed together with the changes before it."""
        self._changing().empty(_DIRTY)

    # ── eviction order ───────────────────────────────────────────────────────────────────────────────────

    def save_order(self, ids: Iterable[ObjectId]) -> None:
        """Keep the order in which objects are to be let go, coldest first, in place of the one kept before."""
        tables = self._changing()
        tables.empty(_ORDER)
        rest = iter(ids)
        number = 0
        while batch := b"".join(islice(rest, _ORDER_IDS)):
            tables.put(_ORDER, _NUMBER.pack(number), batch)
            number += 1

    def load_order(self) -> Iterator[ObjectId]:
        """What `save_order` kept; objects may be gone since."""
        for _, ids in self._items(_ORDER, 1):
            for at in range(0, len(ids), _ID_SIZE):
                yield ObjectId(ids[at : at + _ID_SIZE])

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> None:
        """Make all changes durable against kill -9."""
        if self._opened is not None:
            self._opened.commit()

    def commit_due(self, now: float) -> bool:
        """Commit if changes have waited for 5 ms, counted from the first call that sees them. Whether it did.

        :param now: seconds on a clock that only moves forward
        """
        return self._opened is not None and self._opened.commit_due(now)

    @property
    def has_changes(self) -> bool:
        """Whether something waits for its commit."""
        return self._opened is not None and self._opened.has_changes

    def reader_check(self) -> int:
        """Give up what readers that died still hold, as it keeps pages from being reused; how many there were."""
        return 0 if self._opened is None else self._opened.reader_check()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────

    def _is_sound(self) -> bool:
        """Whether the tables are there and can be used; they are open then."""
        if self._opened is None:
            try:
                self._opened = self._open_tables(create=False)
            except (DamagedTables, FileNotFoundError):
                return False
        return True

    def _tables(self) -> Tables | None:
        """The tables; None if there is nothing to read."""
        if self._readonly and self._opened is not None and self._opened.is_closed:
            self._release()  # its writer is in this process, and has closed it
        if self._opened is None and not self._ignored and not self._is_sound():
            self.clear()
            if not self._readonly:
                self._opened = self._open_tables(create=True)
        return self._opened

    def _changing(self) -> Tables:
        self._changes += 1
        tables = None if self._readonly else self._tables()
        if tables is None:
            raise OSError(errno.EROFS, "the catalogue was opened for reading", str(self._folder))
        return tables

    def _open_tables(self, *, create: bool) -> Tables:
        return Tables(self._folder, _TABLES, map_size=self._map_size, create=create, readonly=self._readonly)

    def _release(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _items(self, table: str, batch_size: int) -> Iterator[tuple[bytes, bytes]]:
        """All entries of a table; no transaction is held between steps."""
        after = b""
        while (tables := self._tables()) is not None:
            batch = tables.items_behind(table, after, batch_size)
            if not batch:
                return
            yield from batch
            after = batch[-1][0]

    def packed(self, directory: DirectoryId, name: bytes) -> bytes | None:
        """The packed record in a name's row; it may be of another name, as the record says itself."""
        tables = self._tables()
        return None if tables is None else tables.follow(_NAMES, directory + name, _ROWS)

    def names_behind(self, directory: DirectoryId, after: bytes, limit: int) -> list[bytes]:
        """Names in a directory, sorted, the first `limit` behind `after`."""
        tables = self._tables()
        items = [] if tables is None else tables.items_behind(_NAMES, directory + after, limit)
        return [key[_ID_SIZE:] for key, _ in items if key.startswith(directory)]


def _link(tables: Tables, record: Descriptor, row: bytes) -> None:
    if record.predecessor != _FIRST:
        tables.put(_AFTER, record.predecessor[:_LINK_SIZE] + row, b"")


def _unlink(tables: Tables, record: Descriptor, row: bytes) -> None:
    if record.predecessor != _FIRST:
        tables.pop(_AFTER, record.predecessor[:_LINK_SIZE] + row)


def _ref(packed: bytes) -> SlotRef:
    device, region, slot, generation = _REF.unpack(packed)
    return SlotRef(DeviceNo(device), RegionNo(region), SlotNo(slot), Generation(generation))


def _change(packed: bytes) -> Change:
    object_id, rest = ObjectId(packed[:_ID_SIZE]), packed[_ID_SIZE:]
    if object_id == NO_ID:
        return Change(object_id, DirectoryId(NO_ID), b"", _ref(rest))
    return Change(object_id, DirectoryId(rest[:_ID_SIZE]), rest[_ID_SIZE:])


def _id_key(object_id: ObjectId, *, alias: bool) -> bytes:
    return bytes(byte ^ 0xFF for byte in object_id) if alias else object_id


def _key(record: Descriptor) -> bytes:
    return record.directory + record.name


@lru_cache(maxsize=256)
def _recent(packed: bytes | None) -> Descriptor | None:
    """As `_unpacked`, for who asks about single records: a change asks about the same ones several times."""
    return _unpacked(packed)


def _unpacked(packed: bytes | None) -> Descriptor | None:
    """None if there is none, or if it is damaged: its object is a miss then."""
    try:
        return None if packed is None else unpack_descriptor(packed)
    except FormatError:
        log.exception("a record in the catalogue is damaged")
        return None
