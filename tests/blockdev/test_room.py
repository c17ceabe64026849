"""Making room, and what has to stay: slots, regions, tombstones."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from blockdev.errors import ChecksumError, DeviceError, NoSpace, Unavailable
from blockdev.pool import Pool
from blockdev.region import SlotState
from blockdev.testing import Fault, FaultyDevice, Operation
from blockdev.types import KIB, PAGE, ROOT, Descriptor, DeviceNo, Kind, RegionId, SlotClass, SlotNo, SlotRef
from tests.blockdev.pools import (
    EXTENT,
    REGION,
    Bench,
    content,
    leaked,
    made,
    pair_at,
    pattern,
    payload_at,
    put,
    seen,
)
from tests.conftest import ExpectLog


def named(pool: Pool) -> list[bytes]:
    return [record.name for record in pool.children(ROOT)]


def classes(pool: Pool) -> dict[SlotClass, int]:
    """Regions by class."""
    return {c.slot_class: c.regions for c in pool.statistics().space.classes}


def whole(pool: Pool) -> bool:
    """Whether every region is either in use and open, or unused."""
    regions = list(pool._space.regions())
    unused = pool.statistics().space.unused_regions
    return not any(region.closed for region in regions) and len(regions) + unused == 4


def never_torn(device: FaultyDevice) -> None:
    """What fails leaves nothing."""
    device._torn = lambda write, unit: []  # type: ignore[method-assign]


def pair(pool: Pool, ref: SlotRef) -> range:
    at = pair_at(pool, ref)
    return range(at, at + 2 * PAGE)


# ── regions ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_regions_are_formatted_as_they_are_needed_one_a_device(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=3)
    async with bench.pool() as pool:
        assert classes(pool) == {}
        await put(pool, b"x", EXTENT)
        assert classes(pool) == {SlotClass.MIB2: 3}
        await put(pool, b"y", 8 * EXTENT)
        assert classes(pool) == {SlotClass.MIB2: 3}
        await put(pool, b"z")
        assert classes(pool) == {SlotClass.MIB2: 3, SlotClass.INLINE: 3}
        assert pool.statistics().room.formatted == 6


async def test_formatting_writes_records_only_and_of_a_file_nothing_is_discarded(tmp_path: Path) -> None:
    class File(FaultyDevice):
        @property
        def is_file(self) -> bool:
            return True

    bench = await made(tmp_path)
    bench.devices[0].__class__ = File
    written = 0

    def note(operation: Operation, offset: int, length: int) -> None:
        nonlocal written
        assert operation is not Operation.DISCARD
        written += length if operation is Operation.WRITE else 0

    def prepare(devices: list[FaultyDevice]) -> None:
        devices[0].__class__ = File
        devices[0].on_operation = note

    bench.prepare = prepare
    async with bench.pool() as pool:
        written = 0
        pool.give_back(await pool.reserve(EXTENT))
        assert 0 < written < REGION // 8
        for number in range(12):
            await put(pool, b"%d" % number, EXTENT)
        written = 0
        await put(pool, b"small", 60 * KIB)
        assert pool.statistics().room.repurposed == 1
        assert written < REGION // 2


@pytest.mark.parametrize("failures", [1, 100])
async def test_a_region_that_cannot_be_formatted_is_not_used(
    tmp_path: Path, expect_log: ExpectLog, failures: int
) -> None:
    expect_log("region . of device 0 cannot be formatted .*: not used", count=1 if failures == 1 else 4)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, count=failures)
        if failures == 1:
            await put(pool, b"x", EXTENT)
            assert pool.statistics().space.unused_regions == 2
        else:
            with pytest.raises(NoSpace):
                await put(pool, b"x", EXTENT)
    async with bench.pool() as pool:
        await put(pool, b"y", 12 * EXTENT if failures > 1 else 9 * EXTENT)
        assert pool.statistics().space.unused_regions == 0


async def test_formatting_can_be_cut_off_anywhere(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(1.0, 1.0))
        for after in range(12):
            with trio.move_on_after(after + 0.5) as scope:
                pool.give_back(await pool.reserve(EXTENT))
            assert whole(pool)
            if not scope.cancelled_caught:
                break
        assert after > 3
        assert classes(pool) == {SlotClass.MIB2: 1}


async def test_two_classes_that_want_the_same_region(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The second finds it changed and looks for another one."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(12):
            await put(pool, b"%02d" % number, EXTENT)
            await trio.sleep(1)
        bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(0.1, 0.1))
        async with trio.open_nursery() as nursery:
            for name, size in ((b"a", 300 * KIB), (b"b", 60 * KIB), (b"c", 10)):
                nursery.start_soon(put, pool, name, size)
        assert {name: await seen(pool, name) is not None for name in (b"a", b"b", b"c")} == dict.fromkeys(
            (b"a", b"b", b"c"), True
        )
        assert sum(classes(pool).values()) == 4
        assert pool.statistics().room.repurposed == 3
        assert whole(pool)
        assert not leaked(pool)


@pytest.mark.parametrize("tenths", range(1, 8))
async def test_a_region_that_is_lost_while_one_waits_for_it(
    tmp_path: Path, autojump_clock: MockClock, expect_log: ExpectLog, tenths: int
) -> None:
    expect_log("device d1 is lost", count=1)
    expect_log("cannot be formatted", count=int(tenths == 7))
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        for number in range(24):
            record = await put(pool, b"%02d" % number, EXTENT)
            await trio.sleep(1)
        for number in range(24):  # the coldest regions are on the second device
            record = pool.lookup(ROOT, b"%02d" % number) or record
            if record.address.device == 0:
                pool.touch(record)
        for device in bench.devices:
            device.random_faults = replace(device.random_faults, delay=(0.1, 0.1))
        outcomes: list[int] = []

        async def reserve(size: int) -> None:
            ref = await pool.reserve(size)
            outcomes.append(ref.device)
            pool.give_back(ref)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reserve, 300 * KIB)
            nursery.start_soon(reserve, 60 * KIB)
            await trio.sleep(tenths / 10 - 0.05)
            bench.devices[1].lose()
        assert outcomes == [0, 0]
        assert not any(region.closed for region in pool._space.regions())


async def test_a_region_that_still_is_read_keeps_its_class(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        records = [await put(pool, b"%02d" % number, EXTENT) for number in range(12)]
        for record in records:
            pool.pin(record)
            await pool.remove(record)
        with pytest.raises(NoSpace):
            await pool.reserve(60 * KIB)
        with pytest.raises(NoSpace):
            await pool.reserve(EXTENT)
        for record in records:
            assert await content(pool, record) == pattern(EXTENT, record.name)
        for record in records[:3]:
            pool.unpin(record)
        pool.give_back(await pool.reserve(60 * KIB))
        for record in records[3:]:
            assert await content(pool, record) == pattern(EXTENT, record.name)
            pool.unpin(record)


# ── slots that were not looked at ────────────────────────────────────────────────────────────────────────────


async def test_slots_are_looked_at_when_they_are_needed(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await put(pool, b"x", 300 * KIB)
    async with bench.pool() as pool:
        assert pool.statistics().space.free == 0
        await put(pool, b"y", 300 * KIB)
        assert pool.statistics().space.free > 0
        assert classes(pool) == {SlotClass.KIB512: 1}
        assert await seen(pool, b"x") is not None


async def test_a_region_that_cannot_be_looked_at_gives_no_slots_but_its_objects_stay(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("region . of device 0 cannot be read .*: not used", count=1)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(4):
            await put(pool, b"%d" % number, 300 * KIB)
        record = pool.lookup(ROOT, b"0")
        assert record is not None
        first = record.address.region
    async with bench.pool() as pool:
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.READ)
        assert (await put(pool, b"y", 300 * KIB)).address.region != first
        assert await seen(pool, b"0") == pattern(300 * KIB, b"0")
        renamed = await pool.rename(record, ROOT, b"renamed")
        await pool.update(renamed, mode=0o100600)
        await pool.remove(pool.lookup(ROOT, b"1") or record)
        assert await pool._departures.evict((pool.lookup(ROOT, b"2") or record).object_id)
        await put(pool, b"3", 300 * KIB)
    for _ in range(2):
        async with bench.pool() as pool:
            assert named(pool) == [b"3", b"renamed", b"y"]
            assert not leaked(pool)
        bench.boot += 1


# ── limbo ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [EXTENT, 300 * KIB])
async def test_slots_rest_before_they_are_used_again(
    tmp_path: Path, autojump_clock: MockClock, size: int
) -> None:
    """Also when the room is wanted for another class; no more is let go than is needed."""
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 10.0) as pool:
        for number in range(12):
            await put(pool, b"%02d" % number, EXTENT)
        began = trio.current_time()
        await put(pool, b"x", size)
        assert trio.current_time() - began == 10
        assert pool.statistics().limbo.waits == 1
        assert await seen(pool, b"x") is not None
        assert pool.statistics().pool.evicted == (1 if size == EXTENT else 3)


async def test_as_many_go_as_are_wanted_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 10.0) as pool:
        for number in range(12):
            await put(pool, b"%02d" % number, EXTENT)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(put, pool, b"new%d" % number, EXTENT)
        assert trio.current_time() - began == 10
        assert pool.statistics().pool.evicted == 4


async def test_who_waits_for_a_slot_may_give_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool(grace=lambda: 10.0) as pool:
        for number in range(12):
            await put(pool, b"%02d" % number, EXTENT)
        with trio.move_on_after(5) as scope:
            await pool.reserve(EXTENT)
        assert scope.cancelled_caught
        assert len(pool._room._searching) == 0
        await trio.sleep(10)
        began = trio.current_time()
        pool.give_back(await pool.reserve(EXTENT))
        assert trio.current_time() == began


async def test_discards_that_fail_are_no_matter(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        bench.devices[0].inject(Fault(errno.EOPNOTSUPP), operation=Operation.DISCARD, count=100)
        for number in range(24):
            await put(pool, b"%02d" % number, EXTENT)
        assert pool.statistics().space.bad == 0


@pytest.mark.parametrize("flush", [False, True])
async def test_a_discard_that_may_come_late_keeps_its_slot(
    tmp_path: Path, autojump_clock: MockClock, *, flush: bool
) -> None:
    bench = await made(tmp_path)
    async with bench.pool(flush=flush) as pool:
        records = [await put(pool, b"%02d" % number, EXTENT) for number in range(12)]
        bench.devices[0].inject(Fault(delay=100), operation=Operation.DISCARD)
        await put(pool, b"x", EXTENT)
        assert pool.statistics().space.bad == EXTENT
        for number in range(12):
            assert (await put(pool, b"y%d" % number, EXTENT)).address != records[0].address
        bench.devices[0].release()
        await trio.testing.wait_all_tasks_blocked()
        for record in pool.children(ROOT):
            await pool.verify(record)


async def test_what_is_read_is_not_discarded(tmp_path: Path) -> None:
    for flush in (False, True):
        bench = await made(tmp_path / str(flush))
        async with bench.pool(flush=flush) as pool:
            record = await put(pool, b"x", EXTENT)
            pool.pin(record)
            await pool.remove(record)
            pool.give_back(await pool.reserve(EXTENT))
            await pool._room.limbo.flush()
            assert bench.devices[0].operations[Operation.DISCARD] == 0
            assert await content(pool, record) == pattern(EXTENT, b"x")
            pool.unpin(record)


# ── what goes first ──────────────────────────────────────────────────────────────────────────────────────────


def is_temporary(name: bytes) -> bool:
    return name.endswith(b".tmp")


async def test_temporary_files_that_nobody_renames_go_first(tmp_path: Path) -> None:
    """Also after the pool was opened again, and however often they were used."""
    bench = await made(tmp_path)
    async with bench.pool(is_temporary=is_temporary) as pool:
        names = [b"%02d" % number for number in range(9)]
        for name in names:
            await put(pool, name, EXTENT)
        for name in (b"dead.tmp", b"late.tmp", b"renamed.tmp"):
            await put(pool, name, EXTENT)
        bench.now += 590 * 10**9
        renamed = pool.lookup(ROOT, b"renamed.tmp")
        assert renamed is not None
        await pool.rename(renamed, ROOT, b"renamed")
        await put(pool, b"a", EXTENT)
        assert pool.lookup(ROOT, names[0]) is None, "not yet"
    bench.now += 20 * 10**9
    async with bench.pool(is_temporary=is_temporary) as pool:
        late = pool.lookup(ROOT, b"late.tmp")
        dead = pool.lookup(ROOT, b"dead.tmp")
        assert late is not None
        assert dead is not None
        pool.touch(dead)
        await pool.rename(late, ROOT, b"still.tmp")
        await put(pool, b"b", EXTENT)
        await put(pool, b"c", EXTENT)
        assert named(pool) == sorted([*names[2:], b"a", b"b", b"c", b"renamed", b"still.tmp"])
        assert pool.statistics().pool.evicted_temporary == 1
        bench.now += 610 * 10**9
        await put(pool, b"d", EXTENT)
        assert pool.lookup(ROOT, b"still.tmp") is None
        assert pool.statistics().pool.evicted_temporary == 2


# ── tombstones ───────────────────────────────────────────────────────────────────────────────────────────────


async def owing(bench: Bench, count: int = 4) -> list[Descriptor]:
    """Objects that replaced others on a device that is missing from here on."""
    async with bench.pool() as pool:
        gone = [
            r
            for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(2 * count)]
            if r.address.device == 1
        ]
    bench.absent = {1}
    async with bench.pool() as pool:
        return [await put(pool, record.name, 300 * KIB) for record in gone]


def inline_slots(pool: Pool) -> int:
    return sum(c.live for c in pool.statistics().space.classes if c.slot_class is SlotClass.INLINE)


async def test_without_a_slot_for_a_tombstone_nothing_goes(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    owed = await owing(bench)
    async with bench.pool() as pool:
        inline = []
        while (ref := pool._room.take(SlotClass.INLINE)) is not None:
            inline.append(ref)
        assert not await pool._departures.evict(owed[0].object_id)
        assert pool.lookup(ROOT, owed[0].name) == owed[0]
        for ref in inline:
            pool.give_back(ref)
        await put(pool, b"small")
        assert await pool._departures.evict(owed[0].object_id)
        assert await pool._departures.evict(owed[1].object_id)
        assert inline_slots(pool) == 2
        assert pool.lookup(ROOT, owed[0].name) is None
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, owed[0].name) is None
        assert pool.lookup(ROOT, owed[2].name) == owed[2]
        assert inline_slots(pool) == 1, "there was nothing left to answer for"
        assert not leaked(pool)


async def test_a_slot_for_a_tombstone_is_kept_as_soon_as_one_may_be_needed(tmp_path: Path) -> None:
    """A pool that is full of small files and of what replaced something on the missing device goes on."""
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        names = [b"%d" % n for n in range(24)]
        for name in names:
            await put(pool, name, EXTENT)
    bench.absent = {1}
    async with bench.pool() as pool:
        for round_number in range(3):
            for name in names:
                await put(pool, name, EXTENT)
            for number in range(1500):
                await put(pool, b"small %d %d" % (round_number, number))
        gone: list[bytes] = []
        pool.on_gone.append(lambda record: gone.append(record.name))  # to have room for the next ones
        data = {record.name: await content(pool, record) for record in pool.children(ROOT)}
    bench.absent = set()
    async with bench.pool() as pool:
        assert {record.name: await content(pool, record) for record in pool.children(ROOT)} == {
            name: bytes_ for name, bytes_ in data.items() if name not in gone
        }
        assert not leaked(pool)


async def test_removing_makes_a_slot_for_its_tombstone(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    owed = await owing(bench)
    async with bench.pool() as pool:
        await pool.remove(owed[0])
        assert inline_slots(pool) == 1
        async with trio.open_nursery() as nursery:
            for record in owed[1:3]:
                nursery.start_soon(pool.remove, record)
        assert inline_slots(pool) == 1
        for record in owed[:3]:
            assert pool.lookup(ROOT, record.name) is None


async def test_removing_at_once_takes_one_slot(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path, devices=2)
    owed = await owing(bench)
    async with bench.pool() as pool:
        bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(0.1, 0.1))
        async with trio.open_nursery() as nursery:
            for record in owed:
                nursery.start_soon(pool.remove, record)
        assert inline_slots(pool) == 1
        assert pool.totals().held == 0


async def test_a_tombstone_takes_as_many_as_fit(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        record = await put(pool, b"x")
        tombstones = pool._versions.debts._tombstones
        refs = [record.ref._replace(generation=record.ref.generation + n) for n in range(1, 401)]  # type: ignore[arg-type]
        for at in range(0, 400, 2):
            assert await tombstones.bury(refs[at : at + 2], patient=False)
        assert inline_slots(pool) == 1 + 3
        assert pool.lookup(ROOT, b"x") == record


@pytest.mark.parametrize("at", ["begin", "extend"])
async def test_a_tombstone_that_cannot_be_written_keeps_what_it_was_for(
    tmp_path: Path, expect_log: ExpectLog, at: str
) -> None:
    expect_log("a tombstone could not be written", count=1)
    bench = await made(tmp_path, devices=2)
    owed = await owing(bench)
    async with bench.pool() as pool:
        await put(pool, b"small")
        never_torn(bench.devices[0])
        if at == "extend":
            assert await pool._departures.evict(owed[0].object_id)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE)
        assert not await pool._departures.evict(owed[1].object_id)
        assert pool.lookup(ROOT, owed[1].name) == owed[1]
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE)
        with pytest.raises(DeviceError):
            await pool.remove(owed[2])
        assert pool.lookup(ROOT, owed[2].name) == owed[2]
        await pool.remove(owed[2])
        assert await pool._departures.evict(owed[1].object_id)
        gone = {owed[1].name, owed[2].name} | ({owed[0].name} if at == "extend" else set())
        assert pool.totals().held == 0
    bench.absent = set()
    async with bench.pool() as pool:
        assert not gone & set(named(pool))
        assert not leaked(pool)


async def test_damage_without_a_slot_for_a_tombstone_leaves_the_record(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    """It is a miss, and keeps what it replaced dead; whoever takes the name owes both."""
    expect_log("object dropped", count=1)
    expect_log("a tombstone could not be written", count=1)
    bench = await made(tmp_path, devices=2)
    owed = await owing(bench)
    async with bench.pool() as pool:
        refs = [await pool.reserve(EXTENT) for _ in range(9)]  # and the owing ones take the fourth region
        for record in owed:
            pool.pin(record)
        await bench.damage(0, payload_at(pool, owed[0].ref))
        with pytest.raises(ChecksumError):
            await content(pool, owed[0])
        assert pool.lookup(ROOT, owed[0].name) is None
        for ref in refs:
            pool.give_back(ref)
        again = await put(pool, owed[0].name, 300 * KIB)
        assert set(again.supersedes) == {*owed[0].supersedes, owed[0].ref}
        for record in owed:
            pool.unpin(record)
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, again.name) == again
        assert not leaked(pool)


async def test_what_is_owed_does_not_outgrow_a_record(tmp_path: Path) -> None:
    """Renamed again and again over names on the missing device: a tombstone answers for the most of them."""
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%02d" % n, 300 * KIB) for n in range(24)]
        gone = [r for r in records if r.address.device == 1]
        moving = next(r for r in records if r.address.device == 0)
    bench.absent = {1}
    async with bench.pool() as pool:
        await put(pool, b"small")
        for record in gone:
            moving = await pool.rename(moving, ROOT, record.name)
            assert len(moving.supersedes) <= 4
        assert inline_slots(pool) == 2
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, gone[-1].name) == moving
        for record in gone[:-1]:
            assert pool.lookup(ROOT, record.name) is None
        assert not leaked(pool)


async def test_what_is_out_of_reach_altogether_is_not_let_go(tmp_path: Path) -> None:
    """That would give no room, and it may come back."""
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)]
    bench.absent = {1}
    async with bench.pool() as pool:
        for record in records:
            gone = record.address.device == 1
            assert await pool._departures.evict(record.object_id) != gone
            if gone:
                assert record.object_id not in pool._policy
    bench.absent = set()
    async with bench.pool() as pool:
        assert named(pool) == [record.name for record in records if record.address.device == 1]


async def test_a_directory_of_a_missing_device_is_made_again_as_the_same(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        d = await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        for number in range(4):
            await put(pool, b"%d" % number, 300 * KIB, directory=d.object_id)  # type: ignore[arg-type]
    bench.absent = {d.address.device}
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"d") == d
        again = await pool.make_directory(ROOT, b"d", 0o711, 0, 0)
        assert again.object_id == d.object_id
        assert len(list(pool.children(d.object_id))) == 2  # type: ignore[arg-type]
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"d") == again
        assert len(list(pool.children(d.object_id))) == 4  # type: ignore[arg-type]
        assert not leaked(pool)


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_freeing_a_slot_twice_or_in_another_use_changes_nothing(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        await pool.remove(record)
        new = [await put(pool, b"%d" % number, EXTENT) for number in range(12)]
        same = next(r for r in new if r.address == record.address)
        writes = bench.devices[0].operations[Operation.WRITE]
        assert await pool._room.invalidate([record.ref])
        assert await pool._room.ensure_invalid(record.ref)
        assert not await pool._room.ensure_invalid(same.ref)
        assert bench.devices[0].operations[Operation.WRITE] == writes
        assert await seen(pool, same.name) is not None


async def test_a_slot_on_a_missing_device_is_neither_freed_nor_counted_as_failed(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % n, 300 * KIB) for n in range(2)]
        gone = next(r for r in records if r.address.device == 1)
    bench.absent = {1}
    async with bench.pool() as pool:
        assert not await pool._room.invalidate([gone.ref])
        assert not await pool._room.ensure_invalid(gone.ref)
        assert pool.statistics().room.failed == 0
        with pytest.raises(Unavailable):
            await pool._room.sequence_of(gone.address)


async def test_a_slot_that_cannot_be_freed_is_not_used(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("could not be freed", count=1)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        never_torn(bench.devices[0])
        record = await put(pool, b"x", 2 * EXTENT)
        bench.devices[0].inject(
            Fault(errno.EIO), operation=Operation.WRITE, span=pair(pool, record.extents[1].ref)
        )
        await pool.remove(record)
        assert pool.statistics().room.failed == 1
        region = pool._space.region(RegionId(DeviceNo(0), record.extents[1].region))
        assert region.state(SlotNo(record.extents[1].slot)) is SlotState.BAD
    async with bench.pool() as pool:
        assert named(pool) == []
        assert pool.totals().used == 0
        found = await pool.media.read_descriptor(record.extents[1].address)
        assert found is not None
        assert found.kind is Kind.FREE
