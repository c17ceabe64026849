"""What an opening makes of what it finds. The catalogue is forgotten where a scan of everything is wanted."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from blockdev import layout
from blockdev.catalog import Trust
from blockdev.errors import BlockError, UnknownVersion
from blockdev.layout.page import seal, unseal
from blockdev.media import Media
from blockdev.memory import page_buffer
from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.scan import chunk_of
from blockdev.testing import Fault, FaultyDevice, Operation
from blockdev.types import (
    HOLE,
    KIB,
    MIB,
    NO_ID,
    PAGE,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    ExtentRef,
    ObjectId,
    RegionId,
    RegionNo,
    SlotAddress,
    SlotNo,
    Stamp,
    Xxh3,
)
from tests.blockdev.pools import (
    EXTENT,
    REGULAR,
    Bench,
    content,
    header_at,
    leaked,
    made,
    page_at,
    pair_at,
    pattern,
    payload_at,
    put,
    seen,
    stored,
)
from tests.conftest import ExpectLog

TWIN = ObjectId(b"t" * 16)


def forget(bench: Bench) -> None:
    """Everything must be read from the media."""
    shutil.rmtree(bench.folder)


def crash(bench: Bench) -> None:
    """Go on from the catalogue as it is now and from the media as they will be."""
    copied = bench.folder.with_name(bench.folder.name + "-crashed")
    shutil.copytree(bench.folder, copied)
    bench.folder = copied


def named(pool: Pool, directory: DirectoryId = ROOT) -> list[bytes]:
    return [record.name for record in pool.children(directory)]


async def write_record(media: Media, record: Descriptor) -> None:
    """Put a record on media behind the pool's back."""
    await media.write_descriptor(record)


async def filled(bench: Bench) -> dict[bytes, bytes]:
    """A file of each kind, and what is in them."""
    async with bench.pool() as pool:
        sizes = {b"empty": 0, b"inline": 700, b"small": 30 * KIB, b"one": EXTENT, b"three": 3 * EXTENT}
        files = {name: await content(pool, await put(pool, name, size)) for name, size in sizes.items()}
        d = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        await put(pool, b"below", 300 * KIB, directory=DirectoryId(d.object_id))
        await pool.make_symlink(ROOT, b"link", b"target", 0, 0)
        await pool.remove(await put(pool, b"gone", 3 * EXTENT))
        await pool.rename(await put(pool, b"moving", 300 * KIB), ROOT, b"moved")
        files[b"moved"] = pattern(300 * KIB, b"moving")
    return files


# ── the three ways ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("trust", Trust)
async def test_everything_is_there_whatever_the_catalogue_is_worth(tmp_path: Path, trust: Trust) -> None:
    bench = await made(tmp_path / "a", devices=2)
    files = await filled(bench)
    if trust is Trust.STALE:
        forget(bench)
    elif trust is Trust.CRASHED:
        async with bench.pool() as pool:
            await put(pool, b"last", 300 * KIB)
            crash(bench)
    async with bench.open() as opened:
        pool = opened.pool
        assert opened.recovered.trust is trust
        assert (opened.recovered.chunks > 0) == (trust is not Trust.CURRENT)
        assert {name: await seen(pool, name) for name in files} == files
        assert pool.lookup(ROOT, b"gone") is None
        d = pool.lookup(ROOT, b"d")
        assert d is not None
        assert await seen(pool, b"below", DirectoryId(d.object_id)) == pattern(300 * KIB, b"below")
        assert (pool.lookup(ROOT, b"last") is None) == (trust is not Trust.CRASHED)
        assert not leaked(pool)
        assert (opened.recovered.garbage, opened.recovered.broken) == (0, 0)


async def test_after_a_crash_only_what_was_being_changed_is_read(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        for number in range(300):
            await put(pool, b"%03d" % number)
        old = pool.lookup(ROOT, b"250")
        assert old is not None
    async with bench.pool() as pool:
        crash(bench)
        shutil.rmtree(bench.folder)
        new = await put(pool, b"new", 300 * KIB)
        await pool.remove(old)
        pool.catalog.commit()
        shutil.copytree(tmp_path / "a", bench.folder)
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CRASHED
        assert opened.recovered.chunks == 2
        assert opened.pool.lookup(ROOT, b"250") is None
        assert opened.pool.lookup(ROOT, b"new") == new
        assert len(named(opened.pool)) == 300


async def test_changes_that_the_catalogue_did_not_keep_are_found(tmp_path: Path) -> None:
    """Killed right after: what was committed is older than what is on media."""
    bench = await made(tmp_path / "a", regions=8)
    files = await filled(bench)
    async with bench.pool() as pool:
        record = pool.lookup(ROOT, b"one")
        assert record is not None
        touched = await put(pool, b"first", 300 * KIB)  # so that the chunks are dirty
        pool.catalog.commit()
        crash(bench)
        shutil.rmtree(bench.folder)
        shutil.copytree(tmp_path / "a", bench.folder)
        await pool.remove(touched)
        moved = await pool.rename(pool.lookup(ROOT, b"moved") or record, ROOT, b"elsewhere")
        data = await content(pool, await put(pool, b"second", 400 * KIB))
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CRASHED
        pool = opened.pool
        assert pool.lookup(ROOT, b"first") is None
        assert pool.lookup(ROOT, b"moved") is None
        assert pool.lookup(ROOT, b"elsewhere") == moved
        assert await seen(pool, b"second") == data
        assert await seen(pool, b"one") == files[b"one"]
        assert not leaked(pool)


async def test_what_was_let_go_before_the_end_does_not_take_the_slots_of_others(tmp_path: Path) -> None:
    """Evicted, but the catalogue did not keep that; then the device with its head was away."""
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        await put(pool, b"odd", EXTENT)
        record = await put(pool, b"x", 2 * EXTENT)
        assert [extent.device for extent in record.extents] == [1, 0]
    async with bench.pool() as pool:
        pool._room.mark(record.address)
        pool._room.mark(record.extents[1].address)
        crash(bench)
        shutil.rmtree(bench.folder)
        shutil.copytree(tmp_path / "a", bench.folder)
        assert await pool._departures.evict(record.object_id)
    bench.absent = {1}
    async with bench.open() as opened:
        pool = opened.pool
        assert opened.recovered.trust is Trust.CRASHED
        assert pool.catalog.by_id(record.object_id) is None
        for number in range(20):
            await put(pool, b"%d" % number, EXTENT)
        for found in pool.children(ROOT):
            await pool.verify(found)
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") is None
        assert not leaked(pool)


async def test_what_lay_in_a_region_that_was_formatted_since_is_gone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        for number in range(12):
            await put(pool, b"%d" % number, EXTENT)
    async with bench.pool() as pool:
        crash(bench)
        await trio.sleep(10)
        await put(pool, b"x", 300 * KIB)
        assert pool.statistics().room.repurposed == 1
    async with bench.open() as opened:
        pool = opened.pool
        assert opened.recovered.trust is Trust.CRASHED
        assert len([name for name in named(pool) if name != b"x"]) == 9
        assert not leaked(pool)
        for found in pool.children(ROOT):
            await pool.verify(found)


async def test_a_catalogue_of_a_reader_is_thrown_away(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a", regions=8)
    await filled(bench)
    forget(bench)
    async with bench.open(readonly=True) as opened:
        assert opened.recovered.trust is Trust.STALE
        assert len(named(opened.pool)) == 8
    assert not bench.folder.exists()


# ── what counts ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_highest_stamp_is_the_truth(tmp_path: Path) -> None:
    """A crash before the old version was freed leaves both."""
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        old = await put(pool, b"x", 300 * KIB)
        new = await put(pool, b"y", 400 * KIB)
        await write_record(
            pool.media, replace(new, name=b"x", stamp=Stamp(new.stamp + 1), sequence=new.sequence + 1)
        )
    forget(bench)
    async with bench.open() as opened:
        pool = opened.pool
        assert named(pool) == [b"x"]
        assert await seen(pool, b"x") == pattern(400 * KIB, b"y")
        assert opened.recovered.garbage == 1
        assert not leaked(pool)
        assert (await put(pool, b"z")).stamp > new.stamp + 1
    assert old.stamp < new.stamp


@pytest.mark.parametrize("lost", ["head", "body", "index"])
async def test_an_object_is_whole_or_absent(tmp_path: Path, lost: str) -> None:
    """A part of it is damaged beyond reading: the rest is freed."""
    bench = await made(tmp_path / "a", regions=8)
    async with bench.pool() as pool:
        if lost == "index":
            record = await pool.publish(await sparse(pool, 200, {3: 30 * KIB, 150: 30 * KIB}))
            ref = next(e.ref for e in record.extents if not e.is_hole)
        else:
            record = await put(pool, b"x", 2 * EXTENT)
            ref = record.ref if lost == "head" else record.extents[1].ref
        await put(pool, b"other", 2 * EXTENT)
        at = pair_at(pool, ref)
    await bench.damage(0, at, 2 * PAGE)
    forget(bench)
    async with bench.open() as opened:
        pool = opened.pool
        assert named(pool) == [b"other"]
        assert not leaked(pool)
        assert opened.recovered.broken == (lost != "head")
        assert opened.recovered.garbage > 0
        assert pool.statistics().space.bad > 0
        assert await pool.publish(await sparse(pool, 200, {3: 30 * KIB}))


async def sparse(pool: Pool, extents: int, parts: dict[int, int]) -> NewObject:
    listed = [HOLE] * extents
    for index, size in parts.items():
        listed[index] = await stored(pool, pattern(size, index).ljust(EXTENT, b"\0"))
    return NewObject(ROOT, b"x", REGULAR, 0, 0, 0, extents * EXTENT, tuple(listed))


async def test_what_is_not_whole_does_not_bring_back_what_it_replaced(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        old = await put(pool, b"x", 300 * KIB)
        new = await put(pool, b"y", 2 * EXTENT)
        await write_record(
            pool.media, replace(new, name=b"x", stamp=Stamp(new.stamp + 1), sequence=new.sequence + 1)
        )
        at = pair_at(pool, new.extents[1].ref)
        assert old.stamp < new.stamp
    await bench.damage(0, at, 2 * PAGE)
    forget(bench)
    async with bench.pool() as pool:
        assert named(pool) == []
        assert not leaked(pool)


async def test_what_no_path_leads_to_is_freed(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        d = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        e = await pool.make_directory(DirectoryId(d.object_id), b"e", 0o700, 0, 0)
        await put(pool, b"x", 2 * EXTENT, directory=DirectoryId(e.object_id))
        at = pair_at(pool, d.ref)
    await bench.damage(0, at, 2 * PAGE)
    forget(bench)
    async with bench.pool() as pool:
        assert pool.statistics().objects == 0
        assert pool.totals().used == 0


async def test_what_no_path_leads_to_stays_while_something_is_out_of_reach(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        d = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        for number in range(4):
            await put(pool, b"%d" % number, 300 * KIB, directory=DirectoryId(d.object_id))
    bench.absent = {d.address.device}
    forget(bench)
    async with bench.pool() as pool:
        assert named(pool) == []
        assert pool.statistics().objects == 2
    bench.absent = set()
    async with bench.pool() as pool:
        assert len(named(pool, DirectoryId(d.object_id))) == 4


async def test_directories_made_twice_become_one_and_stay(tmp_path: Path) -> None:
    """Once while the device with the other was away. Neither is freed later, or what is in it would have no path."""
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        one = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        for number in range(4):
            await put(pool, b"a%d" % number, 300 * KIB, directory=DirectoryId(one.object_id))
    bench.absent = {one.address.device}
    forget(bench)
    async with bench.pool() as pool:
        two = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        for number in range(4):
            await put(pool, b"b%d" % number, 300 * KIB, directory=DirectoryId(two.object_id))
    bench.absent = set()
    names = [b"a0", b"a1", b"a2", b"a3", b"b0", b"b1", b"b2", b"b3"]
    for scanned in (True, False, True):
        if scanned:
            forget(bench)
        async with bench.pool() as pool:
            d = pool.lookup(ROOT, b"d")
            assert d is not None
            assert d.object_id == one.object_id == two.object_id
            assert named(pool, DirectoryId(d.object_id)) == names
            for number in range(3 * 1023):  # looks at every inline slot
                await put(pool, b"%d" % number)


async def test_a_directory_made_again_has_what_was_in_it(tmp_path: Path) -> None:
    """Its record is on a device that is away, and what is in it on another; the catalogue is lost."""
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        d = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        e = await pool.make_directory(DirectoryId(d.object_id), b"e", 0o700, 0, 0)
        inside = DirectoryId(e.object_id)
        files = [await put(pool, b"%d" % number, 300 * KIB, directory=inside) for number in range(6)]
    bench.absent = {d.address.device}
    there = [record.name for record in files if record.address.device not in bench.absent]
    assert there
    forget(bench)
    async with bench.pool() as pool:
        assert named(pool) == []
        await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        if pool.lookup(DirectoryId(d.object_id), b"e") is None:
            await pool.make_directory(DirectoryId(d.object_id), b"e", 0o700, 0, 0)
        assert named(pool, inside) == there
    bench.absent = set()
    async with bench.pool() as pool:
        assert named(pool, inside) == [record.name for record in files]


async def test_a_tombstone_of_an_earlier_session_stays_until_what_it_lists_is_gone(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        gone = next(
            r for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)] if r.address.device == 1
        )
    bench.absent = {1}
    async with bench.pool() as pool:
        await pool.remove(await put(pool, gone.name, 300 * KIB))
    async with bench.pool() as pool:
        for number in range(3 * 1023):  # looks at every inline slot, and would like to have this one
            await put(pool, b"n%d" % number)
        for number in range(20):
            await put(pool, b"m%d" % number, EXTENT)
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, gone.name) is None
        assert not leaked(pool)
    forget(bench)
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, gone.name) is None


async def test_a_clock_that_went_back_does_not_hide_what_is_stored_where_a_tombstone_is(
    tmp_path: Path,
) -> None:
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        gone = next(
            r for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)] if r.address.device == 1
        )
    bench.absent = {1}
    bench.now += 10**12
    async with bench.pool() as pool:
        await pool.remove(await put(pool, gone.name, 300 * KIB))
    for scanned in (True, False):
        bench.now = 10**18
        if scanned:
            forget(bench)
        async with bench.pool() as pool:
            await put(pool, gone.name, 300 * KIB)
        forget(bench)
        async with bench.pool() as pool:
            assert await seen(pool, gone.name) is not None, f"scanned: {scanned}"
            bench.now += 10**12
            await pool.remove(pool.lookup(ROOT, gone.name) or gone)


async def test_what_is_outdone_but_must_stay_is_owed(tmp_path: Path) -> None:
    """Three versions of a name: the oldest is out of reach, so the second stays, so the third owes it."""
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        oldest = next(
            r for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)] if r.address.device == 1
        )
    bench.absent = {1}
    async with bench.pool() as pool:
        older = await put(pool, oldest.name, 300 * KIB)
        new = await put(pool, b"new", 400 * KIB)
        await write_record(pool.media, replace(new, name=oldest.name, sequence=new.sequence + 1))
    forget(bench)
    for trust in (Trust.STALE, Trust.CRASHED):
        async with bench.open() as opened:
            pool = opened.pool
            assert opened.recovered.trust is trust
            assert opened.recovered.left_over == 1
            assert await seen(pool, oldest.name) == pattern(400 * KIB, b"new")
            if trust is Trust.CRASHED:
                await pool.remove(pool.lookup(ROOT, oldest.name) or older)
    async with bench.open() as opened:
        assert opened.recovered.left_over == 0
        assert opened.pool.lookup(ROOT, oldest.name) is None
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, oldest.name) is None
        assert not leaked(pool)


async def test_garbage_is_freed_oldest_first_and_only_as_far_as_that_works(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    """Were the second freed while the first could not be, the first would count again once the third goes."""
    expect_log("could not be freed", count=1)
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        old = [await put(pool, b"%d" % n, 300 * KIB) for n in range(3)]
        for record in old:
            await write_record(pool.media, replace(record, name=b"x", sequence=record.sequence + 1))
        at = pair_at(pool, old[0].ref)
    forget(bench)

    def fail(devices: list[FaultyDevice]) -> None:
        devices[0]._torn = lambda write, unit: []  # type: ignore[method-assign]
        devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, span=range(at, at + 2 * PAGE))

    bench.prepare = fail
    async with bench.open() as opened:
        pool = opened.pool
        assert (opened.recovered.garbage, opened.recovered.left_over) == (2, 2)
        assert await seen(pool, b"x") == pattern(300 * KIB, b"2")
        await pool.remove(pool.lookup(ROOT, b"x") or old[2])
    bench.prepare = untouched
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CRASHED
        assert named(opened.pool) == []
        assert not leaked(opened.pool)


async def test_a_debt_that_was_renamed_first_is_none(tmp_path: Path) -> None:
    """Stored again while the device was away; what it replaced got another name while the other device was."""
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        old = next(
            r for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)] if r.address.device == 1
        )
    bench.absent = {1}
    async with bench.pool() as pool:
        new = await put(pool, old.name, 300 * KIB)
        assert new.supersedes == (old.ref,)
    bench.absent = {0}
    async with bench.pool() as pool:
        moved = await pool.rename(old, ROOT, b"moved")
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"moved") == moved
        await pool.remove(new)
    forget(bench)
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"moved") == moved
        assert pool.lookup(ROOT, old.name) is None


# ── what cannot be read ──────────────────────────────────────────────────────────────────────────────────────


def unreadable(span: range, count: int = 1) -> Callable[[list[FaultyDevice]], None]:
    """For `Bench.prepare`: reads of these bytes of the first device fail."""
    return lambda devices: devices[0].inject(
        Fault(errno.EIO), operation=Operation.READ, span=span, count=count
    )


def untouched(_devices: list[FaultyDevice]) -> None:
    """For `Bench.prepare`: nothing."""


def region_at(pool: Pool, record: Descriptor) -> range:
    """Where the descriptors of a record's region are."""
    start = header_at(pool, record.ref)
    return range(start + 2 * PAGE, start + MIB)


@pytest.mark.parametrize("trust", [Trust.STALE, Trust.CRASHED])
async def test_a_region_that_cannot_be_read_is_out_of_reach_and_comes_back(
    tmp_path: Path, expect_log: ExpectLog, trust: Trust
) -> None:
    """Nothing is concluded from it: neither that its directories are gone, nor that parts of objects are."""
    expect_log("region . of device 0 cannot be read .*its objects are misses", count=1)
    bench = await made(tmp_path / "a", regions=8)
    files = await filled(bench)
    async with bench.pool() as pool:
        d, three = pool.lookup(ROOT, b"d"), pool.lookup(ROOT, b"three")
        assert d is not None
        assert three is not None
        parts = [header_at(pool, e.ref) for e in three.extents]
        spans = region_at(pool, d), range(parts[-1] + 2 * PAGE, parts[-1] + MIB)
        if trust is Trust.CRASHED:
            await pool.update(d, mode=0o40711)
            await pool.update(three, mode=REGULAR)
            crash(bench)
    span = spans[0]
    if trust is Trust.STALE:
        forget(bench)
    bench.prepare = unreadable(span)
    async with bench.open() as opened:
        pool = opened.pool
        assert opened.recovered.trust is trust
        assert opened.recovered.unread_regions == 1
        assert opened.recovered.garbage == 0
        assert await seen(pool, b"one") == files[b"one"]
        assert (pool.lookup(ROOT, b"d") is None) is (trust is Trust.STALE), (
            "a catalogue that is believed knows it"
        )
        assert pool.lookup(ROOT, b"inline") is None
        await put(pool, b"inline", 300 * KIB)
    bench.prepare = untouched
    async with bench.open() as opened:
        pool = opened.pool
        assert opened.recovered.trust is Trust.CRASHED, "what was not read is read now"
        assert opened.recovered.unread_regions == 0
        files[b"inline"] = pattern(300 * KIB, b"inline")
        assert {name: await seen(pool, name) for name in files} == files
        d = pool.lookup(ROOT, b"d")
        assert d is not None
        assert named(pool, DirectoryId(d.object_id)) == [b"below"]
        assert not leaked(pool)
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CURRENT


@pytest.mark.parametrize("changed", [False, True])
async def test_a_tombstone_that_is_read_later_still_counts(
    tmp_path: Path, expect_log: ExpectLog, *, changed: bool
) -> None:
    """It lay in a region that could not be read when the device with what it lists came back."""
    expect_log("region . of device 0 cannot be read", count=1)
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)]
        gone = [record for record in records if record.address.device == 1]
    bench.absent = {1}
    async with bench.pool() as pool:
        for record in gone:
            await pool.remove(await put(pool, record.name, 300 * KIB))
        tombstone = pool._versions.debts._tombstones._last
        assert tombstone is not None
        span = region_at(pool, tombstone)
    bench.absent = set()
    bench.prepare = unreadable(span)
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.STALE
        assert len(named(opened.pool)) == 4, "without it they are there again"
        replacement = await put(opened.pool, gone[0].name, 400 * KIB) if changed else None
    bench.prepare = untouched
    async with bench.open() as opened:
        pool = opened.pool
        assert opened.recovered.trust is Trust.CRASHED
        assert pool.lookup(ROOT, gone[0].name) == replacement, "this came after it"
        assert pool.lookup(ROOT, gone[1].name) is None
        assert len(named(pool)) == 2 + changed
        assert not leaked(pool)


async def test_parts_in_a_region_that_cannot_be_read_are_believed(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("cannot be read .*its objects are misses", count=1)
    bench = await made(tmp_path / "a", regions=8)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 5 * EXTENT)
        data = await content(pool, record)
        assert record.extents[-1].region != record.address.region
        start = header_at(pool, record.extents[-1].ref)
    forget(bench)
    bench.prepare = unreadable(range(start + 2 * PAGE, start + MIB))
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") is None
    bench.prepare = untouched
    async with bench.pool() as pool:
        assert await seen(pool, b"x") == data
        assert not leaked(pool)


async def test_an_index_that_cannot_be_read_keeps_its_object(tmp_path: Path) -> None:
    """It is a miss until the next time, and nothing of it is given away."""
    bench = await made(tmp_path / "a", regions=8)
    async with bench.pool() as pool:
        record = await pool.publish(await sparse(pool, 200, {3: 30 * KIB, 150: 30 * KIB}))
        index = next(e for e in record.extents if not e.is_hole)
        at = header_at(pool, index.ref) + pool.media.geometry(
            RegionId(index.device, index.region)
        ).payload_offset(index.slot)
    for trust in (Trust.STALE, Trust.CURRENT):
        if trust is Trust.STALE:
            forget(bench)
        bench.prepare = unreadable(range(at, at + 1), count=20)
        async with bench.open() as opened:
            pool = opened.pool
            assert opened.recovered.trust is trust
            assert pool.lookup(ROOT, b"x") is None
            for number in range(10):
                await put(pool, b"%d" % number, EXTENT)
        bench.prepare = untouched
        async with bench.pool() as pool:
            assert await content(pool, pool.lookup(ROOT, b"x") or record)


async def test_an_index_that_is_damaged_frees_its_object(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a", regions=8)
    async with bench.pool() as pool:
        record = await pool.publish(await sparse(pool, 200, {3: 30 * KIB, 150: 30 * KIB}))
        at = payload_at(pool, next(e.ref for e in record.extents if not e.is_hole))
        await put(pool, b"other", EXTENT)
    await bench.damage(0, at)
    forget(bench)
    async with bench.open() as opened:
        assert opened.recovered.broken == 1
        assert named(opened.pool) == [b"other"]
        assert not leaked(opened.pool)


@pytest.mark.parametrize("part", ["index", "extent"])
async def test_an_object_with_index_slots_is_a_miss_if_any_part_is_out_of_reach(
    tmp_path: Path, part: str
) -> None:
    bench = await made(tmp_path / "a", devices=2, regions=8)
    async with bench.pool() as pool:
        await put(pool, b"odd", 60 * KIB)  # so that head and index are on different devices
        record = await pool.publish(await sparse(pool, 200, {3: 30 * KIB, 150: 30 * KIB}))
        data = {index: await extent(pool, record, index) for index in (0, 3, 150)}
        extents = await pool.extents(record)
        index = next(e for e in record.extents if not e.is_hole)
        assert index.device != record.address.device
        devices = {index.device if part == "index" else extents[150].device, record.address.device}
    for absent in devices:
        bench.absent = {absent}
        for scanned in (False, True):
            if scanned:
                forget(bench)
            async with bench.pool() as pool:
                assert pool.lookup(ROOT, b"x") is None
                assert set(named(pool)) <= {b"odd"}
        bench.absent = set()
        async with bench.pool() as pool:
            found = pool.lookup(ROOT, b"x")
            assert found == record
            assert {index: await extent(pool, record, index) for index in data} == data
            assert pool.totals().used > 2 * EXTENT


async def extent(pool: Pool, record: Descriptor, index: int) -> bytes:
    buffer = page_buffer(EXTENT)
    return bytes(buffer[: await pool.read_extent(record, index, buffer)])


async def test_a_region_whose_header_is_damaged_is_out_of_reach(tmp_path: Path) -> None:
    """Its names can be stored again, and stay; it is no reason to build the catalogue again and again."""
    bench = await made(tmp_path / "a", regions=8)
    files = await filled(bench)
    async with bench.pool() as pool:
        one, three = pool.lookup(ROOT, b"one"), pool.lookup(ROOT, b"three")
        assert one is not None
        assert three is not None
        at = header_at(pool, one.ref)
    await bench.damage(0, at, 2 * PAGE)
    for trust in (Trust.CURRENT, Trust.CURRENT, Trust.STALE, Trust.CURRENT):
        if trust is Trust.STALE:
            forget(bench)
        async with bench.open() as opened:
            pool = opened.pool
            assert opened.recovered.trust is trust
            assert opened.recovered.damaged_regions == 1
            assert await seen(pool, b"inline") == files[b"inline"]
            assert await seen(pool, b"three") is None
            if trust is Trust.CURRENT and pool.lookup(ROOT, b"one") is None:
                await put(pool, b"one", 300 * KIB)
            assert await seen(pool, b"one") == pattern(300 * KIB, b"one")


# ── media are not trusted ────────────────────────────────────────────────────────────────────────────────────


Change = Callable[[Descriptor], Descriptor]


def with_extent(**fields: int) -> Change:
    def change(record: Descriptor) -> Descriptor:
        first, *others = record.extents
        return replace(record, extents=(ExtentRef(**(first._asdict() | fields)), *others))

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_extent(slot=10**6), id="a slot beyond the region"),
        pytest.param(with_extent(slot=2), id="a slot of somebody else"),
        pytest.param(with_extent(generation=1), id="a generation that was never"),
        pytest.param(with_extent(region=1), id="a region of another class"),
        pytest.param(lambda r: replace(r, size=9 * EXTENT), id="more bytes than extents"),
        pytest.param(lambda r: replace(r, size=1), id="fewer bytes than extents"),
        pytest.param(lambda r: replace(r, extents=r.extents[:1]), id="fewer extents than bytes"),
        pytest.param(lambda r: replace(r, object_id=NO_ID), id="no identity"),
        pytest.param(
            lambda r: replace(
                r,
                extents=r.extents[:1],
                supersedes=(r.ref._replace(slot=SlotNo(10**6)), r.ref._replace(slot=SlotNo(2))),
            ),
            id="replaces what cannot be, and misses a part",
        ),
        pytest.param(lambda r: replace(r, object_id=ObjectId(ROOT)), id="the root's identity"),
        pytest.param(lambda r: replace(r, indexed=True), id="an index that is none"),
        pytest.param(lambda r: replace(r, indexed=True, size=200 * EXTENT), id="index slots that are bodies"),
        pytest.param(lambda r: replace(r, indexed=True, size=2**63, extents=r.extents * 20), id="endless"),
    ],
)
async def test_a_head_that_lists_what_cannot_be_is_not_believed(tmp_path: Path, change: Change) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        record = await put(pool, b"x", 2 * EXTENT)
        await put(pool, b"other", EXTENT)
        await put(pool, b"small")
        forged = change(replace(record, sequence=record.sequence + 1))
        await write_record(pool.media, forged)
    forget(bench)
    async with bench.open() as opened:
        pool = opened.pool
        assert named(pool) == [b"other", b"small"]
        assert opened.recovered.broken == 1
        assert not leaked(pool)
        await put(pool, b"x", 2 * EXTENT)
    forget(bench)
    async with bench.pool() as pool:
        assert await seen(pool, b"x") is not None


async def test_a_small_file_whose_payload_would_be_in_its_descriptor_slot(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        record = await put(pool, b"x", 100)
        forged = replace(
            record, inline=b"", extents=(ExtentRef(*record.ref, Xxh3(0)),), sequence=record.sequence + 1
        )
        await write_record(pool.media, forged)
    forget(bench)
    async with bench.pool() as pool:
        assert named(pool) == []


async def test_directories_in_a_loop_are_freed(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        d = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        e = await pool.make_directory(DirectoryId(d.object_id), b"e", 0o700, 0, 0)
        looped = replace(
            d, directory=DirectoryId(e.object_id), sequence=d.sequence + 1, stamp=Stamp(d.stamp + 1)
        )
        await write_record(pool.media, looped)
    forget(bench)
    async with bench.pool() as pool:
        assert pool.statistics().objects == 0
        await put(pool, b"x")


async def test_a_record_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        page = page_buffer(PAGE)
        await bench.devices[0].read_into(page_at(pool, record), page)
        found = unseal(layout.DESCRIPTOR_MAGIC, layout.DESCRIPTOR_VERSION, pool.uuid, page)
        assert found is not None
        page[:] = seal(layout.DESCRIPTOR_MAGIC, layout.DESCRIPTOR_VERSION + 1, *found)
        await bench.devices[0].write_from(page_at(pool, record), page)
    forget(bench)
    with pytest.raises(UnknownVersion):
        async with bench.open():
            pass


async def test_a_reader_does_not_build_a_wrong_catalogue_again(tmp_path: Path) -> None:
    """It cannot, and beside a writer it may see a catalogue that changes."""
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        pool.catalog.put(replace(record, name=b"twin", object_id=TWIN))
    async with bench.open(readonly=True) as opened:
        assert opened.recovered.trust is Trust.CURRENT
        assert named(opened.pool) == [b"twin", b"x"]
        with pytest.raises(BlockError):
            await content(
                opened.pool, replace(record, extents=(ExtentRef(*record.ref, Xxh3(1)),), object_id=TWIN)
            )


def test_chunks() -> None:
    assert chunk_of(SlotAddress(DeviceNo(0), RegionNo(2), SlotNo(300))).chunk == 2
