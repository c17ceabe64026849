"""The catalogue against dictionaries, through crashes, reboots and damage."""

# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from blockdev import catalog_tables
from blockdev.catalog import Catalog, Trust
from blockdev.catalog_session import Session
from blockdev.catalog_tables import DamagedTables, Tables
from blockdev.errors import BadName
from blockdev.types import (
    NO_ID,
    ROOT,
    Descriptor,
    DirtyChunk,
    ExtentRef,
    Kind,
    SlotAddress,
)

POOL = UUID(int=1)
A, B = UUID(int=10), UUID(int=11)
BOOT = "boot-1"
DIRECTORIES = [ROOT, b"d" * 16]
NAMES = [b"a", b"ab", b"b", b"\xff" * 255]
IDS = [bytes([n]) * 16 for n in range(1, 7)]
PREDECESSORS = [bytes(16), b"p" * 16, b"p" * 15 + b"q", b"\xff" * 16]
"""None; two that differ only where the table does not tell; the greatest."""


def record(name=b"a", object_id=IDS[0], directory=ROOT, **fields):
    extents = (ExtentRef(0, 1, 2, 3, 4),)
    defaults = {"generation": 3, "sequence": 4, "stamp": 5, "size": 6, "extents": extents}
    return Descriptor(
        Kind.HEAD,
        SlotAddress(0, 1, 2),
        epoch=1,
        object_id=object_id,
        directory=directory,
        name=name,
        **{**defaults, **fields},
    )


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "catalog"


@pytest.fixture
def catalog(folder):
    """A catalogue in its first session."""
    catalog = Catalog.open(folder, POOL)
    assert catalog.trust(BOOT, {A: 1}) is Trust.STALE
    catalog.begin_session(BOOT, {A: 1})
    yield catalog
    catalog.close(clean=False)


def reopened(folder, boot=BOOT, sequences=None, **options):
    catalog = Catalog.open(folder, POOL, **options)
    return catalog, catalog.trust(boot, {A: 1} if sequences is None else sequences)


class CatalogMachine(RuleBasedStateMachine):
    """`records` is what is in it, `safe` what survives a kill."""

    @initialize()
    def begin(self):
        self.root = tempfile.mkdtemp()
        self.folder = Path(self.root) / "0"
        self.catalog = Catalog.open(self.folder, POOL)
        assert self.catalog.trust(BOOT, {A: 1}) is Trust.STALE
        self.records: dict[tuple[bytes, bytes], Descriptor] = {}
        self.dirty: set[DirtyChunk] = set()
        self.safe: tuple[dict[tuple[bytes, bytes], Descriptor], set[DirtyChunk]] = ({}, set())
        self.opened = 1
        self.now = 0.0
        self.catalog.begin_session(BOOT, {A: self.opened})

    def commit(self):
        self.safe = dict(self.records), set(self.dirty)

    @rule(
        name=st.sampled_from(NAMES),
        directory=st.sampled_from(DIRECTORIES),
        object_id=st.sampled_from(IDS),
        stamp=st.integers(0, 9),
        predecessor=st.sampled_from(PREDECESSORS),
    )
    def put(self, name, directory, object_id, stamp, predecessor):
        stored = record(name, object_id, directory, stamp=stamp, predecessor=predecessor)
        self.catalog.put(stored)
        self.records = {k: r for k, r in self.records.items() if r.object_id != object_id}
        self.records[directory, name] = stored

    @rule(name=st.sampled_from(NAMES), directory=st.sampled_from(DIRECTORIES))
    def delete(self, name, directory):
        self.catalog.delete(directory, name)
        self.records.pop((directory, name), None)

    @rule(numbers=st.lists(st.integers(0, 3), max_size=2))
    def mark_dirty(self, numbers):
        chunks = [DirtyChunk(1, 2**31, number) for number in numbers]
        self.catalog.mark_dirty(*chunks)
        self.dirty.update(chunks)
        self.commit()

    @rule()
    def clear_dirty(self):
        self.catalog.clear_dirty()
        self.dirty.clear()

    @rule(passed=st.sampled_from([0.001, 0.005]))
    def commit_due(self, passed):
        self.now += passed
        if self.catalog.commit_due(self.now):
            self.commit()

    @rule()
    def commit_now(self):
        self.catalog.commit()
        self.commit()
        assert not self.catalog.has_changes

    @rule(ids=st.lists(st.sampled_from(IDS)))
    def order(self, ids):
        self.catalog.save_order(ids)
        assert list(self.catalog.load_order()) == ids

    @rule()
    def kill(self):
        """What is in the page cache survives, whatever the process had in mind."""
        self.opened += 1
        image = Path(self.root) / str(self.opened)
        shutil.copytree(self.folder, image)
        self.catalog.close(clean=False)
        self.folder = image
        self.catalog = Catalog.open(image, POOL)
        assert self.catalog.trust(BOOT, {A: self.opened - 1}) is Trust.CRASHED
        self.records, self.dirty = dict(self.safe[0]), set(self.safe[1])
        self.catalog.begin_session(BOOT, {A: self.opened})

    @rule(boot=st.sampled_from([BOOT, "boot-2"]))
    def close_clean(self, boot):
        self.catalog.close(clean=True)
        self.catalog = Catalog.open(self.folder, POOL)
        assert self.catalog.trust(boot, {A: self.opened}) is Trust.CURRENT
        self.opened += 1
        self.dirty.clear()
        self.commit()
        self.catalog.begin_session(BOOT, {A: self.opened})

    @rule(changed=st.booleans())
    def reboot_or_change(self, changed):
        self.catalog.close(clean=changed)
        self.catalog = Catalog.open(self.folder, POOL)
        boot, sequence = (BOOT, self.opened + 1) if changed else ("boot-2", self.opened)
        assert self.catalog.trust(boot, {A: sequence}) is Trust.STALE
        self.records.clear()
        self.dirty.clear()
        self.commit()
        self.catalog.begin_session(BOOT, {A: self.opened})

    @invariant()
    def agrees(self):
        catalog = self.catalog
        assert catalog.count == len(self.records)
        assert sorted(r.name for r in catalog.scan()) == sorted(r.name for r in self.records.values())
        assert {o.object_id: o.stamp for o in catalog.outlines()} == {
            r.object_id: r.stamp for r in self.records.values()
        }
        assert catalog.dirty_chunks() == self.dirty
        by_id: dict[bytes, Descriptor] = {r.object_id: r for r in self.records.values()}
        for object_id in IDS:
            assert catalog.by_id(object_id) == by_id.get(object_id)
        for predecessor in PREDECESSORS[1:]:
            after = {r.object_id for r in self.records.values() if r.predecessor == predecessor}
            assert {r.object_id for r in catalog.published_after(predecessor, 9)} == after
        for directory in DIRECTORIES:
            children = [self.records[key] for key in sorted(self.records) if key[0] == directory]
            assert list(catalog.children(directory)) == children
            assert catalog.has_children(directory) == bool(children)
            for name in NAMES:
                assert catalog.get(directory, name) == self.records.get((directory, name))
                assert list(catalog.children(directory, name)) == [r for r in children if r.name > name]

    def teardown(self):
        if hasattr(self, "catalog"):
            self.catalog.close(clean=False)
            shutil.rmtree(self.root)


TestCatalog = CatalogMachine.TestCase
TestCatalog.settings = settings(max_examples=30, stateful_step_count=30)


# ── names, objects, directories ──────────────────────────────────────────────────────────────────────────


def test_storing_an_object_under_a_new_name_moves_it(catalog):
    catalog.put(record(b"old"))
    catalog.put(record(b"new", stamp=9))
    assert catalog.get(ROOT, b"old") is None
    assert catalog.by_id(IDS[0]).name == b"new"
    catalog.delete(ROOT, b"old")
    assert catalog.count == 1


def test_what_a_name_held_is_gone_when_another_object_takes_it(catalog):
    catalog.put(record(b"a", IDS[0]))
    catalog.put(record(b"b", IDS[1]))
    catalog.put(record(b"a", IDS[1]))
    assert catalog.by_id(IDS[0]) is None
    assert catalog.get(ROOT, b"b") is None
    assert catalog.count == 1


@pytest.mark.parametrize(
    "wrong", [{"object_id": NO_ID}, {"kind": Kind.BODY, "name": b"", "directory": NO_ID}]
)
def test_a_record_without_name_or_id_is_refused(catalog, wrong):
    with pytest.raises(ValueError, match="without a name"):
        catalog.put(replace(record(), **wrong))


def test_a_record_that_may_not_be_on_media_is_refused(catalog):
    with pytest.raises(BadName):
        catalog.put(record(b"a/b"))
    assert not catalog.has_changes


def test_children_are_safe_against_changes_between_steps(catalog):
    for number in range(200):
        catalog.put(
            record(b"%03d" % number, number.to_bytes(16, "big", signed=False) or IDS[0])
            if number
            else record(b"000")
        )
    seen = []
    for child in catalog.children(ROOT):
        seen.append(child.name)
        if child.name == b"010":
            catalog.delete(ROOT, b"011")
            catalog.put(record(b"zzz", IDS[5]))
            catalog.commit()
    expected = [b"%03d" % number for number in range(200) if number != 11]
    assert seen == [*expected, b"zzz"]


def test_an_abandoned_listing_holds_no_transaction(catalog, folder):
    for number in range(1, 100):
        catalog.put(record(b"%03d" % number, number.to_bytes(16, "big")))
    catalog.commit()
    listing = catalog.children(ROOT)
    next(listing)
    readers = catalog._opened._environment.readers().split("\n")[1:-1]
    assert all(line.endswith(" -") for line in readers), "no reader is at a transaction"


def test_a_damaged_row_is_a_miss(catalog, expect_log):
    expect_log("a record in the catalogue is damaged")
    catalog.put(record())
    row = catalog._opened.get("names", ROOT + b"a")
    catalog._opened.put("rows", row, b"\0" * 300)
    assert catalog.get(ROOT, b"a") is None
    assert catalog.by_id(IDS[0]) is None
    assert list(catalog.children(ROOT)) == []
    assert list(catalog.scan()) == []
    catalog.put(record())
    assert catalog.get(ROOT, b"a") == record()
    catalog._opened.put("rows", row, b"\0" * 300)
    catalog.delete(ROOT, b"a")
    assert catalog.count == 0


def test_a_row_that_says_something_else_is_not_believed(catalog):
    catalog.put(record())
    row = catalog._opened.get("names", ROOT + b"a")
    catalog._opened.put("names", ROOT + b"b", row)
    catalog._opened.put("ids", IDS[1], row)
    assert catalog.get(ROOT, b"b") is None
    assert catalog.by_id(IDS[1]) is None


def test_what_was_published_after_something_comes_latest_first(catalog):
    for number, object_id in enumerate(IDS):
        catalog.put(record(b"%d" % number, object_id, predecessor=PREDECESSORS[1 + number % 3]))
    catalog.put(record(b"0", IDS[0], predecessor=PREDECESSORS[1], mode=0o600))
    assert [r.name for r in catalog.published_after(PREDECESSORS[1], 9)] == [b"3", b"0"]
    assert [r.name for r in catalog.published_after(PREDECESSORS[3], 1)] == [b"5"]
    catalog.put(record(b"0", IDS[0], predecessor=PREDECESSORS[3]))
    assert [r.name for r in catalog.published_after(PREDECESSORS[1], 9)] == [b"3"]
    assert catalog.published_after(PREDECESSORS[0], 9) == []


def test_an_object_costs_at_most_600_bytes(catalog, folder):
    for _ in range(5000):
        name = os.urandom(32).hex().encode() + b".bin"
        catalog.put(record(name, os.urandom(16), predecessor=os.urandom(16)))
    catalog.close(clean=True)
    assert (folder / "data.mdb").stat().st_size / 5000 < 600


def test_a_rebuild_does_not_gather_in_one_transaction(catalog, monkeypatch):
    monkeypatch.setattr(catalog_tables, "CHANGES_MAX", 10)
    for number in range(1, 20):
        catalog.put(record(b"%d" % number, number.to_bytes(16, "big")))
        assert catalog._opened._changes < 14
    assert catalog.count == 19


# ── commits ──────────────────────────────────────────────────────────────────────────────────────────────


def test_changes_are_committed_five_milliseconds_after_they_are_seen(catalog):
    assert not catalog.commit_due(0.0)
    catalog.put(record())
    assert [catalog.commit_due(now) for now in (100.0, 100.004, 100.006, 100.1)] == [
        False,
        False,
        True,
        False,
    ]
    catalog.put(record(b"b"))
    assert not catalog.commit_due(100.2)


_WRITER = """
import os, signal, sys
from pathlib import Path
from uuid import UUID
from blockdev.catalog import Catalog
from blockdev.types import *

catalog = Catalog.open(Path(sys.argv[1]), UUID(int=1))
catalog.trust("boot-1", {})
catalog.begin_session("boot-1", {})
for n in range(1, 1001):
    catalog.put(Descriptor(Kind.HEAD, SlotAddress(0, 0, n), 1, 1, 2, object_id=n.to_bytes(16, "big"), directory=ROOT, name=b"%d" % n))
catalog.mark_dirty(DirtyChunk(0, 0, 5))
catalog.put(Descriptor(Kind.HEAD, SlotAddress(0, 0, 0), 1, 1, 2, object_id=b"x" * 16, directory=ROOT, name=b"late"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_committed_survives_a_kill(folder):
    done = subprocess.run([sys.executable, "-c", _WRITER, folder], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    catalog, trust = reopened(folder, sequences={})
    assert trust is Trust.CRASHED
    assert catalog.count == 1000
    assert catalog.dirty_chunks() == {DirtyChunk(0, 0, 5)}
    assert catalog.get(ROOT, b"late") is None
    assert catalog.reader_check() == 0
    catalog.close(clean=False)


# ── trust ────────────────────────────────────────────────────────────────────────────────────────────────


def closed(catalog, *, clean=True):
    catalog.put(record())
    catalog.mark_dirty(DirtyChunk(0, 0, 0))
    catalog.close(clean=clean)


@pytest.mark.parametrize(
    "clean, boot, sequences, expected",
    [
        (True, BOOT, {A: 1}, Trust.CURRENT),
        (True, "boot-2", {A: 1}, Trust.CURRENT),
        (False, BOOT, {A: 1}, Trust.CRASHED),
        (False, "boot-2", {A: 1}, Trust.STALE),
        (True, BOOT, {A: 2}, Trust.STALE),
        (True, BOOT, {A: 1, B: 1}, Trust.STALE),
        (True, BOOT, {}, Trust.CURRENT),
    ],
)
def test_trust(catalog, folder, clean, boot, sequences, expected):
    closed(catalog, clean=clean)
    again, trust = reopened(folder, boot, sequences)
    assert trust is expected
    assert again.count == (0 if expected is Trust.STALE else 1)
    assert bool(again.dirty_chunks()) == (expected is Trust.CRASHED)
    again.close(clean=False)


def test_a_device_that_was_away_makes_it_stale_when_it_comes_back(catalog, folder):
    catalog.begin_session(BOOT, {A: 1, B: 7})
    closed(catalog)
    again, trust = reopened(folder, sequences={A: 1})
    assert trust is Trust.CURRENT
    again.begin_session(BOOT, {A: 2})
    again.close(clean=True)
    assert reopened(folder, sequences={A: 2, B: 7})[1] is Trust.STALE


def test_a_rebuild_that_did_not_end_is_not_believed(catalog, folder):
    catalog.clear()
    catalog.put(record())
    catalog.commit()
    catalog.close(clean=True)
    assert reopened(folder)[1] is Trust.STALE


def test_cleared_means_empty(catalog):
    catalog.put(record())
    catalog.clear()
    assert catalog.count == 0
    assert catalog.get(ROOT, b"a") is None


DAMAGE = {
    "no tables": lambda folder: (folder / "data.mdb").unlink(),
    "empty file": lambda folder: (folder / "data.mdb").write_bytes(b""),
    "cut short": lambda folder: os.truncate(folder / "data.mdb", 8192),
    "cut within the first pages": lambda folder: os.truncate(folder / "data.mdb", 100),
    "noise": lambda folder: (folder / "data.mdb").write_bytes(bytes(range(256)) * 64),
    "no session": lambda folder: (folder / "session.json").unlink(),
    "empty session": lambda folder: (folder / "session.json").write_bytes(b""),
    "session of another kind": lambda folder: (folder / "session.json").write_bytes(b"[1, 2]"),
    "another pool": lambda folder: Session(BOOT, True, {A: 1}).store(folder, UUID(int=2)),
    "another version": lambda folder: (folder / "session.json").write_bytes(
        (folder / "session.json").read_bytes().replace(b'"version": [\n  3', b'"version": [\n  4')
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("readonly", [False, True])
def test_a_damaged_catalogue_is_an_empty_one(catalog, folder, how, readonly):
    closed(catalog)
    DAMAGE[how](folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock.mdb"}
    again, trust = reopened(folder, readonly=readonly)
    assert trust is Trust.STALE
    assert again.count == 0
    if readonly:
        after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock.mdb"}
        assert after == before
    else:
        again.put(record())
        again.begin_session(BOOT, {A: 3})
    again.close(clean=True)
    if not readonly:
        third, trust = reopened(folder, sequences={A: 3})
        assert (trust, third.count) == (Trust.CURRENT, 1)
        third.close(clean=False)


def test_tables_of_a_system_that_went_down_are_not_even_opened(catalog, folder, monkeypatch):
    closed(catalog, clean=False)
    again = Catalog.open(folder, POOL)
    monkeypatch.setattr(lmdb, "open", None)
    assert again.trust("boot-2", {A: 1}) is Trust.STALE
    assert not (folder / "data.mdb").exists()


def test_damage_is_noticed_without_asking_for_trust(catalog, folder):
    closed(catalog)
    os.truncate(folder / "data.mdb", 8192)
    again = Catalog.open(folder, POOL)
    assert again.get(ROOT, b"a") is None
    again.put(record())
    again.close(clean=True)
    assert reopened(folder)[1] is Trust.STALE


# ── read-only ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_sees_what_a_writer_in_another_process_committed(catalog, folder):
    catalog.put(record())
    catalog.commit()
    script = """
import sys
from pathlib import Path
from uuid import UUID
from blockdev.catalog import Catalog
catalog = Catalog.open(Path(sys.argv[1]), UUID(int=1), readonly=True)
print(catalog.trust("boot-1", {UUID(int=10): 1}).value, [r.name for r in catalog.scan()], list(catalog.load_order()))
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, folder], cwd=root, check=True, capture_output=True)
    assert done.stdout == b"crashed [b'a'] []\n"


def test_a_reader_of_nothing_changes_nothing(folder):
    catalog, trust = reopened(folder, readonly=True)
    assert trust is Trust.STALE
    assert catalog.get(ROOT, b"a") is None
    assert catalog.by_id(IDS[0]) is None
    assert list(catalog.children(ROOT)) == []
    assert list(catalog.scan()) == []
    assert catalog.count == 0
    assert catalog.dirty_chunks() == set()
    assert catalog.reader_check() == 0
    assert not catalog.has_changes
    catalog.commit()
    assert not catalog.commit_due(1.0)
    catalog.close(clean=True)
    assert not folder.exists()


def test_a_reader_cannot_write(catalog, folder):
    closed(catalog)
    again, trust = reopened(folder, readonly=True)
    assert trust is Trust.CURRENT
    for change in (lambda: again.put(record()), lambda: again.delete(ROOT, b"a"), again.clear_dirty):
        with pytest.raises(OSError, match="for reading") as caught:
            change()
        assert caught.value.errno == errno.EROFS
    assert again.get(ROOT, b"a") == record()
    again.close(clean=True)


def test_a_reader_that_does_not_ask_for_trust_finds_damage_empty(catalog, folder):
    closed(catalog)
    os.truncate(folder / "data.mdb", 8192)
    again = Catalog.open(folder, POOL, readonly=True)
    assert again.get(ROOT, b"a") is None
    assert again.trust(BOOT, {A: 1}) is Trust.STALE
    assert (folder / "data.mdb").stat().st_size == 8192


def test_trust_may_be_asked_again(catalog):
    assert catalog.trust(BOOT, {A: 1}) is Trust.CRASHED


# ── a disk that fails ────────────────────────────────────────────────────────────────────────────────────


def failing_commit(catalog, error):
    class Failing:
        def commit(self):
            raise error

        def abort(self):
            raise AssertionError("a transaction whose commit failed is gone")

    catalog.put(record(b"lost"))
    catalog._opened.abandon()
    catalog._opened._writing = Failing()


def test_a_full_disk_is_an_error_and_loses_what_was_not_committed(catalog, folder):
    catalog.put(record(b"kept"))
    catalog.commit()
    error = lmdb.DiskError("mdb_txn_commit: no space left")
    error.code = errno.ENOSPC  # type: ignore[misc]  # as LMDB sets it
    failing_commit(catalog, error)
    with pytest.raises(OSError, match="mdb_txn_commit") as caught:
        catalog.commit()
    assert caught.value.errno == errno.ENOSPC
    assert [r.name for r in catalog.scan()] == [b"kept"]
    catalog.close(clean=True)
    again, trust = reopened(folder)
    assert trust is Trust.CRASHED, "not closed clean: what dirty chunks cover is read again"
    again.close(clean=False)


def test_a_map_that_is_full_is_an_error(folder):
    catalog = Catalog.open(folder, POOL, map_size=1 << 20)
    catalog.begin_session(BOOT, {})

    def fill():
        for number in range(1, 10_000):
            catalog.put(record(b"%d" % number, number.to_bytes(16, "big")))

    with pytest.raises(OSError, match="MDB_MAP_FULL"):
        fill()
    assert not catalog.has_changes
    catalog.close(clean=True)


def test_a_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        Catalog.open(tmp_path / "file", POOL)


def test_tables_that_are_a_folder_are_an_error(catalog, folder):
    closed(catalog)
    (folder / "data.mdb").unlink()
    (folder / "data.mdb").mkdir()
    again = Catalog.open(folder, POOL)
    with pytest.raises(IsADirectoryError):
        again.trust(BOOT, {A: 1})


def test_tables_of_another_use_are_damaged(tmp_path):
    Tables(tmp_path, ["one"], map_size=1 << 20, create=True).close()
    with pytest.raises(DamagedTables):
        Tables(tmp_path, ["two"], map_size=1 << 20)


# ── the format ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_session_file_is_as_it_always_was():
    golden = b"""{
 "version": [
  3,
  1
 ],
 "pool": "00000000-0000-0000-0000-000000000001",
 "boot_id": "boot-1",
 "clean": true,
 "sequences": {
  "00000000-0000-0000-0000-00000000000a": 7
 }
}
"""
    session = Session(BOOT, True, {A: 7})
    assert session.encode(POOL) == golden
    assert Session.decode(golden, POOL) == session


def test_the_tables_are_as_they_always_were(catalog):
    catalog.put(record(predecessor=b"predecessor's id"))
    catalog.mark_dirty(DirtyChunk(1, 2, 3))
    catalog.save_order(IDS[:2])
    tables = catalog._opened
    assert tables.items_behind("names", b"", 9) == [(ROOT + b"a", bytes(7) + b"\1")]
    assert tables.items_behind("ids", b"", 9) == [(IDS[0], bytes(7) + b"\1")]
    assert [key for key, _ in tables.items_behind("rows", b"", 9)] == [bytes(7) + b"\1"]
    assert tables.items_behind("dirty", b"", 9) == [(b"\0\1\0\0\0\2\0\0\0\3", b"")]
    assert tables.items_behind("order", b"", 9) == [(bytes(4), IDS[0] + IDS[1])]
    assert tables.items_behind("after", b"", 9) == [(b"predeces" + bytes(7) + b"\1", b"")]
