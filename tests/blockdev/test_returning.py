"""Lost devices come back while the pool is open."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio.testing
from trio.testing import MockClock

from blockdev import layout
from blockdev.catalog import Trust
from blockdev.errors import (
    DeviceError,
    DeviceGivenUp,
    DeviceLost,
    DeviceMismatch,
    DeviceTimeout,
    IsDirectory,
    NoSpace,
    NotEmpty,
    Unavailable,
)
from blockdev.memory import page_buffer
from blockdev.opening import Opened
from blockdev.superblocks import read_superblock
from blockdev.testing import Fault, Operation
from blockdev.types import (
    KIB,
    PAGE,
    ROOT,
    DeviceNo,
    DirectoryId,
    Epoch,
    Kind,
    RegionHeader,
    RegionId,
    RegionNo,
    SlotRef,
)
from tests.blockdev.pools import (
    EXTENT,
    Bench,
    content,
    header_at,
    leaked,
    made,
    pair_at,
    pattern,
    put,
    seen,
)
from tests.conftest import ExpectLog

ONE = DeviceNo(1)


def lose(bench: Bench, opened: Opened, number: int = 1) -> None:
    bench.devices[number].lose()
    opened.pool.media.mark_lost(DeviceNo(number))


async def back(bench: Bench, opened: Opened, number: int = 1) -> None:
    bench.devices[number] = bench.devices[number].reopen()
    await opened.returning.take_back(DeviceNo(number), bench.devices[number])


@asynccontextmanager
async def two(folder: Path, expect_log: ExpectLog, regions: int = 4) -> AsyncIterator[tuple[Bench, Opened]]:
    """A pool of two devices, one of which is to be lost and to come back."""
    expect_log("device d1 is lost")
    expect_log("device d1 is back")
    bench = await made(folder, devices=2, regions=regions)
    async with bench.open() as opened:
        yield bench, opened


async def names(opened: Opened) -> dict[bytes, bytes]:
    pool = opened.pool
    return {record.name: await content(pool, record) for record in pool.children(ROOT)}


async def test_nobody_waits_for_a_device_that_is_lost(
    tmp_path: Path, expect_log: ExpectLog, autojump_clock: MockClock
) -> None:
    """What is under way in it ends at once, and may still arrive."""
    expect_log("device d1 is lost")
    bench = await made(tmp_path, devices=2)
    async with bench.open() as opened:
        bench.devices[1].inject(Fault(delay=100.0), count=99)
        media, began = opened.pool.media, trio.current_time()

        async def read() -> None:
            with pytest.raises(DeviceGivenUp):
                await media.reload_header(RegionId(ONE, RegionNo(0)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            media.mark_lost(ONE)
        assert trio.current_time() == began


async def slot_on(opened: Opened, device: DeviceNo) -> SlotRef:
    """A reserved slot for an extent there."""
    refs = [await opened.pool.reserve(EXTENT) for _ in range(2)]  # one on each of two devices
    (other,), (found,) = ([ref for ref in refs if (ref.device == device) is here] for here in (False, True))
    opened.pool.give_back(other)
    return found


async def test_nobody_waits_for_what_was_begun_on_a_device_that_is_lost(
    tmp_path: Path, expect_log: ExpectLog, autojump_clock: MockClock
) -> None:
    """It may still arrive, whoever comes to wait for it, and whenever."""
    expect_log("device d1 is lost")
    bench = await made(tmp_path, devices=2)
    async with bench.open() as opened:
        pool, ref = opened.pool, await slot_on(opened, ONE)
        bench.devices[1].inject(Fault(delay=100.0), operation=Operation.WRITE)
        begun = pool.begin_write(ref, page_buffer(EXTENT))
        assert begun is not None
        began = trio.current_time()
        begun.start()
        pool.media.mark_lost(ONE)
        with pytest.raises(Unavailable):
            pool.begin_write(ref, page_buffer(EXTENT))
        with pytest.raises(DeviceGivenUp):
            await begun.land()
        assert trio.current_time() == began
        assert pool.media.may_change(RegionId(ref.device, ref.region))
        pool.give_back(ref)


async def test_what_was_begun_before_the_loss_says_nothing_of_the_device_that_is_back(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    async with two(tmp_path, expect_log) as (bench, opened):
        pool, ref = opened.pool, await slot_on(opened, ONE)
        begun = pool.begin_write(ref, page_buffer(EXTENT))
        assert begun is not None
        begun.start()
        lose(bench, opened)
        await back(bench, opened)
        with pytest.raises(DeviceLost):
            await begun.land()
        assert pool.media.available(ONE)
        pool.give_back(ref)


async def test_what_fails_on_a_device_that_is_found_to_be_lost_says_so(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("device d1 is lost")
    bench = await made(tmp_path, devices=2)
    async with bench.open() as opened:
        media = opened.pool.media
        bench.devices[1].inject(Fault(errno.EIO))
        with pytest.raises(DeviceError, match="Input/output error"):
            await media.reload_header(RegionId(ONE, RegionNo(0)))
        assert media.available(ONE)
        media.on_failure.append(lambda number, _: media.mark_lost(number))
        bench.devices[1].inject(Fault(errno.EIO))
        with pytest.raises(DeviceLost, match="lost, after: d1: Input/output error"):
            await media.reload_header(RegionId(ONE, RegionNo(0)))


async def left_over(opened: Opened) -> set[SlotRef]:
    """Slots in use for nothing; tombstones stay until a scan finds that they are not needed."""
    media = opened.pool.media
    records = {ref: await media.read_descriptor(ref.address) for ref in leaked(opened.pool)}
    return {ref for ref, record in records.items() if record is None or record.kind is not Kind.TOMBSTONE}


async def scanned(bench: Bench) -> dict[bytes, bytes]:
    """What the media say to somebody who has no catalogue."""
    shutil.rmtree(bench.folder)
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.STALE
        assert not await left_over(opened)
        return await names(opened)


async def test_what_it_holds_is_served_again_and_nothing_is_scanned(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    async with two(tmp_path, expect_log) as (bench, opened):
        for number in range(6):
            await put(opened.pool, b"%d" % number, 300 * KIB)
        before = await names(opened)
        lose(bench, opened)
        assert len(await names(opened)) == 3
        assert opened.pool.statistics().unreachable_devices == (ONE,)
        await back(bench, opened)
        assert await names(opened) == before
        assert opened.pool.statistics().unreachable_devices == ()
        await put(opened.pool, b"new", 4 * EXTENT)
        after = await names(opened)
        assert not leaked(opened.pool)
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CURRENT
        assert await names(opened) == after
    assert await scanned(bench) == after


async def test_what_was_replaced_or_removed_while_it_was_away_stays_so(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    async with two(tmp_path, expect_log) as (bench, opened):
        pool = opened.pool
        records = {r.name: r for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(8)]}
        gone = [name for name, record in records.items() if record.address.device == 1]
        lose(bench, opened)
        new = await put(pool, gone[0], 400 * KIB)
        await pool.remove(records[gone[1]])
        kept = await names(opened)
        await back(bench, opened)
        assert await seen(pool, gone[0]) == await content(pool, new)
        assert pool.lookup(ROOT, gone[1]) is None
        assert (await names(opened)).items() >= kept.items()
        after = await names(opened)
        assert set(after) == records.keys() - {gone[1]}
    async with bench.open() as opened:
        assert await names(opened) == after
    assert await scanned(bench) == after


async def test_a_directory_does_not_take_what_is_in_it_along(tmp_path: Path, expect_log: ExpectLog) -> None:
    """While its device is away it is there all the same, and made again elsewhere when it is filled or changed."""
    async with two(tmp_path, expect_log) as (bench, opened):
        pool = opened.pool
        homes = [await pool.make_directory(ROOT, b"d%d" % n, 0o755, 0, 0) for n in range(8)]
        filled, changed, moved, removed = (r for r in homes if r.address.device == 1)
        inside = DirectoryId(filled.object_id)
        files = [await put(pool, b"%d" % n, 300 * KIB, directory=inside) for n in range(4)]
        lose(bench, opened)
        assert pool.lookup(ROOT, filled.name) == filled
        assert {name for name, _ in pool.entries(ROOT)} == {record.name for record in homes}
        served = {record.name for record in pool.children(inside)}
        assert served == {record.name for record in files if record.address.device == 0}
        assert len(served) == 2
        with pytest.raises(IsDirectory):
            await put(pool, filled.name, 300 * KIB)
        with pytest.raises(NotEmpty):
            await pool.remove(filled)
        new = await put(pool, b"new", 300 * KIB, directory=inside)
        await pool.update(changed, mode=0o40700)
        await pool.rename(moved, ROOT, b"moved")
        await pool.remove(removed)
        assert all(
            pool.reachable(r) for r in pool.children(ROOT) if r.kind is Kind.DIRECTORY and r.stamp > new.stamp
        )
        found = {record.name: record.mode for record in pool.children(ROOT)}
        assert found.keys() == {r.name for r in homes} - {moved.name, removed.name} | {b"moved"}
        assert found[changed.name] == 0o40700
        await back(bench, opened)
        assert {record.name for record in pool.children(inside)} == {record.name for record in (*files, new)}
        assert {record.name: record.mode for record in pool.children(ROOT)} == found
        everything = await names(opened)
    bench.absent = {1}
    async with bench.open() as opened:
        assert {record.name for record in opened.pool.children(inside)} == served | {b"new"}
    bench.absent = set()
    assert await scanned(bench) == everything
    async with bench.open() as opened:
        assert {record.name: record.mode for record in opened.pool.children(ROOT)} == found


async def test_its_room_is_used_again(tmp_path: Path, expect_log: ExpectLog) -> None:
    """Whether by what was evicted while it was away, or by what was on it and can be evicted now."""
    async with two(tmp_path, expect_log) as (bench, opened):
        pool = opened.pool
        for number in range(20):
            await put(pool, b"a%d" % number, EXTENT)
        lose(bench, opened)
        for number in range(20):
            await put(pool, b"b%d" % number, EXTENT)
        await back(bench, opened)
        for number in range(40):
            record = await put(pool, b"c%d" % number, 2 * EXTENT)
            assert await content(pool, record) == pattern(2 * EXTENT, record.name)
        devices = {e.device for r in pool.children(ROOT) if r.name[:1] == b"c" for e in r.extents}
        assert devices == {0, 1}
        after = await names(opened)
        assert len(after) >= 8
        assert not await left_over(opened)
    assert await scanned(bench) == after


@pytest.mark.parametrize("arrives", ["before", "after", "never"])
@pytest.mark.parametrize("what", ["publish", "rename", "remove"])
async def test_a_record_that_was_given_up_counts_for_nothing(
    tmp_path: Path, autojump_clock: MockClock, expect_log: ExpectLog, arrives: str, what: str
) -> None:
    expect_log("could not be freed" if what == "remove" else "is lost")
    async with two(tmp_path, expect_log) as (bench, opened):
        pool = opened.pool
        await put(pool, b"other", 300 * KIB)
        old = await put(pool, b"x", 300 * KIB)
        if what != "publish" and old.address.device != 1:
            old = await put(pool, b"y", 300 * KIB)
        device = bench.devices[1]
        device._torn = lambda write, unit: [write] if arrives != "never" else []  # type: ignore[method-assign]
        before = await names(opened)
        at = pair_at(pool, old.ref) if what != "publish" else None
        span = range(device.size) if at is None else range(at, at + 2 * PAGE)
        device.inject(
            Fault(delay=1000), operation=Operation.WRITE, span=span, skip=1 if at is None else 0, count=1
        )
        if what == "publish":
            twice = [b"x", b"x"]  # one of them goes to the other device
            with pytest.raises(DeviceTimeout):  # noqa: PT012
                for name in twice:
                    await put(pool, name, 200 * KIB)
        elif what == "rename":
            with pytest.raises(DeviceTimeout):
                await pool.rename(old, ROOT, b"z")
        else:
            await pool.remove(old)
            del before[old.name]
        before = {name: data for name, data in before.items() if name != b"x" or what != "publish"}
        pool.media.mark_lost(ONE)
        if arrives == "before":
            device.release()
            await trio.testing.wait_all_tasks_blocked()
        bench.devices[1] = heir = device.reopen()
        await opened.returning.take_back(ONE, heir)
        if arrives == "after":
            device.release()
            await trio.testing.wait_all_tasks_blocked()
            heir = bench.devices[1]
        after = await names(opened)
        assert after.items() >= before.items()
        assert after.keys() - before.keys() <= {b"x"}
        assert not await left_over(opened)
    assert await scanned(bench) == after


async def test_another_device_is_refused(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("device d1 is lost", count=1)
    bench = await made(tmp_path, devices=2)
    foreign = await made(tmp_path / "foreign")
    async with bench.open() as opened:
        lose(bench, opened)
        for device in (bench.devices[0], foreign.devices[0]):
            with pytest.raises(DeviceMismatch, match="not the device that was lost"):
                await opened.returning.take_back(ONE, device)
        assert opened.pool.statistics().unreachable_devices == (ONE,)


async def test_an_older_copy_is_refused(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("device d1 is lost", count=1)
    bench = await made(tmp_path, devices=2)
    async with bench.open() as opened:
        lose(bench, opened)
        heir = bench.devices[1].reopen()
        superblock = await read_superblock(heir)
        zeros = page_buffer(PAGE)
        await heir.write_from(layout.superblock_offset(superblock.sequence), zeros)
        with pytest.raises(DeviceMismatch, match="an older copy"):
            await opened.returning.take_back(ONE, heir)


async def test_a_region_that_is_not_what_it_was_is_left_out(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("region 0 is not what it was", count=1)
    async with two(tmp_path, expect_log) as (bench, opened):
        pool = opened.pool
        for number in range(6):
            await put(pool, b"%d" % number, 300 * KIB)
        record = next(r for r in pool.children(ROOT) if r.address.device == 1)
        at = header_at(pool, record.ref)
        header: RegionHeader = pool.media.devices[ONE].headers[record.address.region]
        lose(bench, opened)
        heir = bench.devices[1].reopen()
        page = page_buffer(PAGE)
        formatted = replace(header, sequence=header.sequence + 1, epoch=Epoch(header.epoch + 1))
        page[:] = layout.encode_region_header(formatted)
        await heir.write_from(at + formatted.sequence % 2 * PAGE, page)
        bench.devices[1] = heir
        await opened.returning.take_back(ONE, heir)
        assert pool.lookup(ROOT, record.name) is None
        assert len(await names(opened)) == 3
        for number in range(10):
            await put(pool, b"n%d" % number, 300 * KIB)


async def test_one_that_fails_on_the_way_is_tried_again(tmp_path: Path, expect_log: ExpectLog) -> None:
    async with two(tmp_path, expect_log) as (bench, opened):
        pool = opened.pool
        for number in range(6):
            await put(pool, b"%d" % number, 300 * KIB)
        lose(bench, opened)
        for operation in (Operation.READ, Operation.FLUSH):
            bench.devices[1] = bench.devices[1].reopen()
            bench.devices[1].inject(Fault(errno.EIO), operation=operation)
            with pytest.raises(DeviceError):
                await opened.returning.take_back(ONE, bench.devices[1])
            assert len(await names(opened)) == 3
        await back(bench, opened)
        assert len(await names(opened)) == 6


@pytest.mark.parametrize("seed", range(4))
async def test_at_random(tmp_path: Path, expect_log: ExpectLog, seed: int) -> None:
    """What a name stands for is what was stored last under it, or a miss while a device is away."""
    # The last is a region that was being formatted when its device went away.
    expect_log("is lost|is back|could not be freed|tombstone|index of|is not what it was")
    rng = Random(seed)
    bench = await made(tmp_path, devices=3, regions=5, seed=seed)
    stored: dict[bytes, bytes | None] = {}
    async with bench.open() as opened:
        pool, away = opened.pool, set[int]()
        for step in range(100):
            number = rng.randrange(3)
            if rng.random() < 0.1:
                if number in away:
                    await back(bench, opened, number)
                    away.discard(number)
                elif len(away) < 2:
                    lose(bench, opened, number)
                    away.add(number)
            name = b"n%d" % rng.randrange(25)
            record = pool.lookup(ROOT, name)
            try:
                if record is not None and rng.random() < 0.3:
                    await pool.remove(record)
                    stored[name] = None
                else:
                    data = pattern(rng.choice([50, 90 * KIB, 300 * KIB, EXTENT, 2 * EXTENT]), step)
                    await put(pool, name, data)
                    stored[name] = data
            except (NoSpace, Unavailable):
                assert away
            found = await seen(pool, name)
            assert found in (stored.get(name), None)
        for number in sorted(away):
            await back(bench, opened, number)
        after = await names(opened)
        for name, data in after.items():
            assert data == stored[name]
        assert not await left_over(opened)
    async with bench.open() as opened:
        assert await names(opened) == after
    assert await scanned(bench) == after
