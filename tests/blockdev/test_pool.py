from __future__ import annotations

import errno
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock
from xxhash import xxh3_64_intdigest

from blockdev.errors import (
    BadName,
    ChecksumError,
    DeviceError,
    DeviceTimeout,
    Exists,
    IsDirectory,
    Missing,
    NameConflict,
    NoSpace,
    NotDirectory,
    NotEmpty,
    PoolClosed,
    Raced,
    RecordTooLarge,
    Unavailable,
)
from blockdev.memory import page_buffer
from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.testing import Fault, Operation
from blockdev.types import (
    HOLE,
    KIB,
    MIB,
    PAGE,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    ExtentRef,
    Kind,
    SlotClass,
    Xxh3,
)
from tests.blockdev.pools import (
    EXTENT,
    REGULAR,
    Bench,
    content,
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
from tests.forking import in_child


def named(pool: Pool, directory: DirectoryId = ROOT) -> list[bytes]:
    return [record.name for record in pool.children(directory)]


def inside(record: Descriptor) -> DirectoryId:
    return DirectoryId(record.object_id)


async def directory(pool: Pool, name: bytes, parent: DirectoryId = ROOT) -> Descriptor:
    return await pool.make_directory(parent, name, 0o755, 1, 2)


def idle(pool: Pool) -> bool:
    """Whether nothing is reserved, held or locked."""
    return pool._locks.are_free and pool._tree.is_idle and not pool.totals().held


# ── storing and finding ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "size",
    [0, 1, 2560, 2561, 64 * KIB, 64 * KIB + 1, 512 * KIB, 512 * KIB + 1, 2 * MIB, 2 * MIB + 1, 6 * MIB],
)
async def test_a_file_is_found_as_it_was_stored(tmp_path: Path, size: int) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        data = pattern(size)
        record = await put(pool, b"x", data, uid=3, gid=4, mtime_ns=5, xattrs=((b"user.a", b"b"),))
        assert pool.lookup(ROOT, b"x") == record
        assert (record.kind, record.size, record.mode, record.uid, record.gid) == (
            Kind.HEAD,
            size,
            REGULAR,
            3,
            4,
        )
        assert (record.mtime_ns, record.xattrs) == (5, ((b"user.a", b"b"),))
        assert record.btime_ns == record.ctime_ns == record.stamp
        assert await content(pool, record) == data
        await pool.verify(record)
        assert not leaked(pool)
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") == record
        assert await seen(pool, b"x") == data


async def test_the_sizes_of_slots(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        assert [pool.slot_size(n) for n in (0, 64 * KIB, 64 * KIB + 1, 512 * KIB + 1, EXTENT)] == [
            64 * KIB, 64 * KIB, 512 * KIB, EXTENT, EXTENT,
        ]  # fmt: skip
        with pytest.raises(ValueError, match="more than one extent"):
            pool.slot_size(EXTENT + 1)
        with pytest.raises(ValueError, match="more than one extent"):
            await pool.reserve(EXTENT + 1)


async def test_extents_lie_on_devices_in_turn(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=3)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 3 * EXTENT)
        assert {extent.device for extent in record.extents} == {0, 1, 2}


async def test_holes_are_zeros_and_take_no_room(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        part = await stored(pool, pattern(EXTENT))
        new = NewObject(ROOT, b"x", REGULAR, 0, 0, 0, 3 * EXTENT + 5, (HOLE, part, HOLE, HOLE))
        record = await pool.publish(new)
        assert await content(pool, record) == bytes(EXTENT) + pattern(EXTENT) + bytes(EXTENT + 5)
        assert pool.totals().used == EXTENT
        assert record.stored_size < 2 * EXTENT


async def test_reserved_slots_can_be_read_back_and_given_back(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        extent = await stored(pool, pattern(PAGE))
        buffer = page_buffer(PAGE)
        await pool.read_reserved(extent.ref, buffer)
        assert buffer == pattern(PAGE)
        assert pool.totals().held == 64 * KIB
        pool.give_back(extent.ref)
        assert pool.totals().held == 0
        assert pool.lookup(ROOT, b"x") is None


async def test_directories_and_symlinks(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        d = await directory(pool, b"d")
        assert (d.mode, d.uid, d.gid) == (stat.S_IFDIR | 0o755, 1, 2)
        link = await pool.make_symlink(inside(d), b"l", b"../x", 3, 4)
        assert (link.mode, link.inline, link.size) == (stat.S_IFLNK | 0o777, b"../x", 4)
        await put(pool, b"x", directory=inside(d))
        assert named(pool) == [b"d"]
        assert named(pool, inside(d)) == [b"l", b"x"]
        assert [record.name for record in pool.children(inside(d), after=b"l")] == [b"x"]
        assert pool.directory(inside(d)) == d
        assert pool.directory(inside(link)) is None
        assert pool.directory(ROOT) is None, "as long as nobody changes it"
        assert not pool.is_empty(inside(d))
        for taken in (b"l", b"x"):
            with pytest.raises(Exists):
                await directory(pool, taken, inside(d))
            with pytest.raises(Exists):
                await pool.make_symlink(inside(d), taken, b"", 0, 0)
    async with bench.pool() as pool:
        assert named(pool, inside(d)) == [b"l", b"x"]


async def test_what_a_name_stands_for_is_replaced_in_one_step(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        old = await put(pool, b"x", 5 * MIB)
        new = await put(pool, b"x", 3 * MIB)
        assert new.stamp > old.stamp
        assert new.object_id != old.object_id
        assert pool.current(old) is None
        assert pool.statistics().objects == 1
        assert not leaked(pool)
        assert pool.totals().used == 4 * MIB


async def test_a_name_that_is_taken(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await put(pool, b"x", 300 * KIB)
        await directory(pool, b"d")
        with pytest.raises(Exists):
            await put(pool, b"x", 300 * KIB, replace=False)
        with pytest.raises(IsDirectory):
            await put(pool, b"d", 300 * KIB)
        with pytest.raises(Exists):
            await put(pool, b"d", 300 * KIB, replace=False)
        assert idle(pool)
        assert not leaked(pool)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b", b"x" * 256])
async def test_a_bad_name_frees_what_was_reserved_for_it(tmp_path: Path, name: bytes) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        with pytest.raises(BadName):
            await put(pool, name, 300 * KIB)
        with pytest.raises(BadName):
            await pool.rename(await put(pool, b"x"), ROOT, name)
        assert idle(pool)


async def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        gone = await directory(pool, b"d")
        await pool.remove(gone)
        with pytest.raises(Missing):
            await put(pool, b"x", 300 * KIB, directory=inside(gone))
        file = await put(pool, b"f", 300 * KIB)
        for nowhere in (inside(gone), inside(file)):
            with pytest.raises(Missing):
                await pool.rename(file, nowhere, b"x")
        assert idle(pool)


async def test_attributes_that_do_not_fit(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    xattrs = tuple((b"user.%03d" % n, bytes(200)) for n in range(19))
    async with bench.pool() as pool:
        assert pool.inline_limit(b"x", xattrs) < 0
        for size in (0, 300 * KIB):
            with pytest.raises(RecordTooLarge):
                await put(pool, b"x", size, xattrs=xattrs)
        record = await put(pool, b"x", pool.inline_limit(b"x"))
        for some in (xattrs, xattrs[:14]):
            with pytest.raises(RecordTooLarge):
                await pool.update(record, xattrs=some)
        assert pool.lookup(ROOT, b"x") == record
        long = await put(pool, b"y", 2500, xattrs=xattrs[:6])
        with pytest.raises(RecordTooLarge):
            await pool.rename(long, ROOT, b"z" * 255)
        assert pool.lookup(ROOT, b"y") == long
        assert idle(pool)


async def test_objects_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        taken = await put(pool, b"taken", 300 * KIB)
        for size, extents in ((2 * EXTENT, (HOLE,)), (0, (HOLE,)), (5, ())):
            with pytest.raises(ValueError, match="extents for"):
                await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, size, extents))
        with pytest.raises(ValueError, match="was not reserved"):
            await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, 300 * KIB, taken.extents))
        assert await seen(pool, b"taken") is not None
        assert idle(pool)


# ── when devices fail ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_payload_that_fails_can_be_given_back(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        ref = await pool.reserve(PAGE)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE)
        with pytest.raises(DeviceError, match="Input/output error"):
            await pool.write(ref, page_buffer(PAGE))
        pool.give_back(ref)
        assert idle(pool)


async def test_a_payload_in_parts_that_come_in_any_order(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    data = pattern(EXTENT, 3)
    buffer = page_buffer(EXTENT)
    buffer[:] = data
    async with bench.pool() as pool:
        ref = await pool.reserve(EXTENT)
        async with trio.open_nursery() as nursery:
            for start in (EXTENT - PAGE, PAGE, 0, 5 * PAGE):
                stop = {0: PAGE, PAGE: 5 * PAGE, 5 * PAGE: EXTENT - PAGE}.get(start, EXTENT)
                nursery.start_soon(pool.write, ref, buffer[start:stop], start)
        extent = ExtentRef(*ref, Xxh3(xxh3_64_intdigest(data)))
        record = await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, EXTENT, (extent,)))
        assert await content(pool, record) == data
        for at in (-PAGE, EXTENT, EXTENT - PAGE):
            with pytest.raises(ValueError, match="not inside a payload"):
                await pool.write(ref, buffer[: 2 * PAGE], at)


async def test_no_head_is_written_before_the_payloads_have_arrived(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        parts = [await stored(pool, pattern(EXTENT, n)) for n in range(2)]
        late = trio.Event()
        new = NewObject(ROOT, b"x", REGULAR, 0, 0, 0, 2 * EXTENT, tuple(parts))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.publish, new, late.wait)
            await trio.testing.wait_all_tasks_blocked()
            body, head = await pool.media.read_descriptor(parts[1].ref.address), parts[0].ref.address
            assert body is not None
            assert body.kind is Kind.BODY, "what can be made ready is"
            record = await pool.media.read_descriptor(head)
            assert record is not None
            assert record.kind is Kind.FREE
            assert pool.lookup(ROOT, b"x") is None
            late.set()
        assert await seen(pool, b"x") == pattern(EXTENT, 0) + pattern(EXTENT, 1)
        assert idle(pool)


@pytest.mark.parametrize("name", [b"x", b"missing/x"])
async def test_slots_are_freed_only_when_nothing_is_written_into_them_any_more(
    tmp_path: Path, name: bytes
) -> None:
    """Whether the payload fails, or the publication does before it asks for it."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        part = await stored(pool, pattern(EXTENT))
        ended = trio.Event()
        freed: list[bool] = []

        async def arrived() -> None:
            await ended.wait()
            raise DeviceError("d0", errno.EIO, "a part failed")

        async def publish() -> None:
            with pytest.raises((DeviceError, BadName)):
                await pool.publish(NewObject(ROOT, name, REGULAR, 0, 0, 0, EXTENT, (part,)), arrived)
            freed.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await trio.testing.wait_all_tasks_blocked()
            assert not freed
            assert pool._space.is_reserved(part.ref)
            ended.set()
        assert freed
        assert pool.lookup(ROOT, b"x") is None
        assert idle(pool)
        assert not leaked(pool)


async def test_a_payload_that_may_arrive_late_keeps_its_slot(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Neither it nor the class of its region changes before the pool is opened again."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        ref = await pool.reserve(EXTENT)
        junk = page_buffer(EXTENT)
        junk[:] = b"\xff" * EXTENT
        bench.devices[0].inject(Fault(delay=1000), operation=Operation.WRITE)
        with pytest.raises(DeviceTimeout):
            await pool.write(ref, junk)
        with pytest.raises(Unavailable, match="failed while"):
            await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, EXTENT, (ExtentRef(*ref, 0),)))  # type: ignore[arg-type]
        pool.give_back(ref)
        for number in range(3000):  # inline: they would take every region if they could
            await put(pool, b"%d" % number)
        kept = {record.name: await content(pool, record) for record in pool.children(ROOT)}
        bench.devices[0].release()
        await trio.testing.wait_all_tasks_blocked()
        assert {record.name: await content(pool, record) for record in pool.children(ROOT)} == kept
        assert pool.statistics().space.bad == EXTENT
    async with bench.pool() as pool:
        assert pool.statistics().space.bad == 0
        assert {record.name: await content(pool, record) for record in pool.children(ROOT)} == kept


async def test_a_body_record_that_fails_undoes_the_publication(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await put(pool, b"x", 3 * EXTENT)
        old = await seen(pool, b"x")
        parts = [await stored(pool, pattern(EXTENT, n)) for n in range(2)]
        span = range(pair_at(pool, parts[1].ref), pair_at(pool, parts[1].ref) + 2 * PAGE)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, span=span)
        with pytest.raises(DeviceError):
            await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, 2 * EXTENT, tuple(parts)))
        assert await seen(pool, b"x") == old
        assert idle(pool)
        assert not leaked(pool)
        assert pool.statistics().space.bad == 0


async def test_a_body_record_that_may_arrive_late_is_not_written_again(
    tmp_path: Path, autojump_clock: MockClock, expect_log: ExpectLog
) -> None:
    expect_log("could not be freed .a write to it was given up")
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        parts = [await stored(pool, pattern(EXTENT, n)) for n in range(2)]
        at = pair_at(pool, parts[1].ref)
        bench.devices[0].inject(Fault(delay=1000), operation=Operation.WRITE, span=range(at, at + 2 * PAGE))
        with pytest.raises(DeviceTimeout):
            await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, 2 * EXTENT, tuple(parts)))
        before = bench.devices[0].operations[Operation.WRITE]
        assert pool.statistics().space.bad == EXTENT
        assert idle(pool)
        await put(pool, b"y", EXTENT)
        bench.devices[0].release()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.devices[0].operations[Operation.WRITE] == before + 2
        assert await seen(pool, b"y") is not None
    async with bench.pool() as pool:
        assert pool.statistics().space.bad == 0, "it was looked at, though the system ran on"
        assert named(pool) == [b"y"]
        assert not leaked(pool)


async def test_a_head_record_that_is_not_there_can_be_tried_again(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        part = await stored(pool, pattern(EXTENT))
        at = pair_at(pool, part.ref)
        failing = range(at, at + 2 * PAGE)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, span=failing)
        bench.devices[0]._torn = lambda write, unit: []  # type: ignore[method-assign]
        with pytest.raises(DeviceError):
            await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, EXTENT, (part,)))
        assert pool.lookup(ROOT, b"x") is None
        assert idle(pool)
        assert (await put(pool, b"x", EXTENT)).ref != part.ref
        assert pool.media.available(DeviceNo(0))


async def test_a_head_record_that_is_there_after_all_counts(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        part = await stored(pool, pattern(EXTENT))
        at = pair_at(pool, part.ref)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, span=range(at, at + 2 * PAGE))
        bench.devices[0]._torn = lambda write, unit: [write]  # type: ignore[method-assign]
        record = await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, EXTENT, (part,)))
        assert pool.lookup(ROOT, b"x") == record
        await pool.update(record, mode=0o100600)
    async with bench.pool() as pool:
        assert await seen(pool, b"x") == pattern(EXTENT)


@pytest.mark.parametrize("unreadable", [False, True])
async def test_a_head_record_that_may_be_there_loses_the_device(
    tmp_path: Path, autojump_clock: MockClock, expect_log: ExpectLog, *, unreadable: bool
) -> None:
    expect_log("device d. is lost", count=1)
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        old = await put(pool, b"x", 2 * EXTENT)
        parts = [await stored(pool, pattern(EXTENT, n)) for n in range(2)]
        at = pair_at(pool, parts[0].ref)
        device = bench.devices[parts[0].device]
        span = range(at, at + 2 * PAGE)
        device.inject(
            Fault(errno.EIO if unreadable else 0, 0 if unreadable else 100),
            operation=Operation.WRITE,
            span=span,
        )
        device._torn = lambda write, unit: [write]  # type: ignore[method-assign]
        device.inject(Fault(errno.EIO), operation=Operation.READ, span=span)
        with pytest.raises(DeviceError):
            await pool.publish(NewObject(ROOT, b"x", REGULAR, 0, 0, 0, 2 * EXTENT, tuple(parts)))
        assert pool.statistics().unreachable_devices == (parts[0].device,)
        assert pool.lookup(ROOT, b"x") is None, "part of the old one is on that device"
        device.release()
        await trio.testing.wait_all_tasks_blocked()
    async with bench.pool() as pool:
        assert await seen(pool, b"x") == pattern(EXTENT, 0) + pattern(EXTENT, 1), (
            "it arrived, with all its parts"
        )
        assert pool.current(old) is None
        assert not leaked(pool)


async def test_a_version_made_in_place_survives_that_the_next_one_is_open(
    tmp_path: Path, autojump_clock: MockClock, expect_log: ExpectLog
) -> None:
    """The page with the new head may arrive or not: in both cases the object is whole."""
    expect_log("device d. is lost", count=2)
    for arrives in (False, True):
        bench = await made(tmp_path / str(arrives), devices=2)
        async with bench.pool() as pool:
            base = await put(pool, b"x", 2 * EXTENT)
            pool.pin(base)
            device = bench.devices[base.address.device]
            at = pair_at(pool, base.ref)
            device.inject(Fault(delay=100), operation=Operation.WRITE, span=range(at, at + 2 * PAGE))
            data = await content(pool, base)
            with pytest.raises(DeviceTimeout):
                await put(pool, b"x", data[:EXTENT] + pattern(EXTENT, 7), base=base, keep=[0])
            pool.unpin(base)
            if arrives:
                device.release()
                await trio.testing.wait_all_tasks_blocked()
            device._torn = lambda write, unit: []  # type: ignore[method-assign]
        async with bench.pool() as pool:
            assert await seen(pool, b"x") == data[:EXTENT] + (
                pattern(EXTENT, 7) if arrives else data[EXTENT:]
            )
            assert not leaked(pool)


@pytest.mark.parametrize("operation", ["write", "read"])
async def test_a_lost_device_makes_misses_and_names_can_be_stored_again(
    tmp_path: Path, expect_log: ExpectLog, operation: str
) -> None:
    expect_log("device d1 is lost", count=1)
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = {r.name: r for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(6)]}
        gone = [name for name, record in records.items() if record.address.device == 1]
        assert len(gone) == 3
        bench.devices[1].lose()
        if operation == "read":
            with pytest.raises(DeviceError):
                await content(pool, records[gone[0]])
        else:
            with pytest.raises(DeviceError):
                await pool.update(records[gone[0]], mode=0o100600)
        assert named(pool) == [name for name in records if name not in gone]
        for name in gone:
            assert pool.lookup(ROOT, name) is None
        with pytest.raises(Unavailable):
            await content(pool, records[gone[0]])
        new = {name: await content(pool, await put(pool, name, 400 * KIB, replace=False)) for name in gone}
        assert {name: await seen(pool, name) for name in gone} == new
        assert {record.address.device for record in pool.children(ROOT)} == {0}
    async with bench.pool() as pool:
        assert {name: await seen(pool, name) for name in gone} == new
        assert len(named(pool)) == 6
        assert not leaked(pool)


async def test_a_full_pool_goes_on_without_a_device(tmp_path: Path, expect_log: ExpectLog) -> None:
    """What lost a part is let go; what replaced something on the missing device is no obstacle."""
    expect_log("device d1 is lost", count=1)
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        for number in range(20):
            await put(pool, b"%d" % number, 2 * EXTENT)
        bench.devices[1].lose()
        for number in range(60):
            await put(pool, b"%d" % (number % 20), EXTENT)
        data = {name: await seen(pool, name) for name in named(pool)}
        assert len(data) > 3
    bench.absent = {1}
    async with bench.pool() as pool:
        for number in range(60):
            await put(pool, b"%d" % (number % 20), EXTENT)
        data = {name: await seen(pool, name) for name in named(pool)}
    bench.absent = set()
    async with bench.pool() as pool:
        assert {name: await seen(pool, name) for name in named(pool)} == data
        assert not leaked(pool)


async def test_parts_whose_head_is_missing_make_room(tmp_path: Path) -> None:
    """Also those of heads that the catalogue never knew."""
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        await put(pool, b"odd", EXTENT)  # so that the others begin on the second device
        for number in range(20):
            await put(pool, b"%d" % number, 2 * EXTENT)
    bench.absent = {1}
    bench.folder = tmp_path / "b"
    data: dict[bytes, bytes | None] = {}
    for _ in range(2):
        async with bench.pool() as pool:
            for number in range(20):
                await put(pool, b"n%d" % number, EXTENT)
            data = {name: await seen(pool, name) for name in named(pool)}
            assert len(data) > 6
    bench.absent = set()
    async with bench.pool() as pool:
        assert {name: await seen(pool, name) for name in data} == data


async def test_a_slot_that_cannot_be_freed_does_not_bring_its_object_back(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    """Whoever takes the name of what was evicted in vain owes it."""
    expect_log("could not be freed .*Input/output error", count=1)
    bench = await made(tmp_path)
    bench.devices[0]._torn = lambda write, unit: []  # type: ignore[method-assign]
    async with bench.pool() as pool:
        bench.devices[0]._torn = lambda write, unit: []  # type: ignore[method-assign]
        old = await put(pool, b"x", 300 * KIB)
        at = pair_at(pool, old.ref)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, span=range(at, at + 2 * PAGE))
        assert await pool._departures.evict(old.object_id)
        assert pool.lookup(ROOT, b"x") is None
        new = await put(pool, b"x", 400 * KIB)
        assert new.supersedes == (old.ref,)
        await pool.remove(new)
    bench.boot += 1
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") is None


async def test_removing_what_cannot_be_freed_leaves_a_tombstone(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("could not be freed .*Input/output error", count=1)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        bench.devices[0]._torn = lambda write, unit: []  # type: ignore[method-assign]
        record = await put(pool, b"x", 300 * KIB)
        at = pair_at(pool, record.ref)
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE, span=range(at, at + 2 * PAGE))
        await pool.remove(record)
        assert pool.lookup(ROOT, b"x") is None
    bench.boot += 1
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") is None
        assert not leaked(pool)


async def test_one_tombstone_answers_for_many(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % n, 300 * KIB) for n in range(20)]
        gone = [record.name for record in records if record.address.device == 1]
    bench.absent = {1}
    async with bench.pool() as pool:
        for name in gone:
            await pool.remove(await put(pool, name, 300 * KIB))
        inline = [c for c in pool.statistics().space.classes if c.slot_class is SlotClass.INLINE]
        assert [c.live for c in inline] == [1]
    bench.absent = set()
    async with bench.pool() as pool:
        assert named(pool) == sorted({record.name for record in records} - set(gone))
        assert not leaked(pool)


# ── versions ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_version_that_keeps_extents_is_made_in_place(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        base = await put(pool, b"x", 3 * EXTENT)
        data = await content(pool, base)
        bench.now += 1000
        pool.pin(base)
        new = await put(
            pool, b"x", data[:EXTENT] + pattern(EXTENT, 9) + data[2 * EXTENT :], base=base, keep=[0, 2]
        )
        assert (new.object_id, new.ref) == (base.object_id, base.ref)
        assert [a == b for a, b in zip(new.extents, base.extents, strict=True)] == [True, False, True]
        assert (new.btime_ns, new.stamp > base.stamp) == (base.btime_ns, True)
        assert await content(pool, base) == data, "who pinned the old one reads it as it was"
        assert await content(pool, new) == data[:EXTENT] + pattern(EXTENT, 9) + data[2 * EXTENT :]
        pool.unpin(base)
        assert not leaked(pool)
    bench.boot += 1
    async with bench.pool() as pool:
        assert await seen(pool, b"x") == data[:EXTENT] + pattern(EXTENT, 9) + data[2 * EXTENT :]
        assert not leaked(pool)


@pytest.mark.parametrize("change", ["renamed", "removed", "replaced", "evicted", "other name"])
async def test_a_version_whose_base_went_elsewhere_copies_what_it_keeps(tmp_path: Path, change: str) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        base = await put(pool, b"x", 2 * EXTENT)
        data = await content(pool, base)
        pool.pin(base)
        name = b"x"
        if change == "renamed":
            await pool.rename(base, ROOT, b"y")
        elif change == "removed":
            await pool.remove(base)
        elif change == "replaced":
            await put(pool, b"x", 100)
        elif change == "evicted":
            pool.unpin(base)
            assert await pool._departures.evict(base.object_id)
        else:
            name = b"z"
        new = await put(pool, name, data[:EXTENT] + pattern(EXTENT, 9), base=base, keep=[0])
        assert new.object_id != base.object_id
        assert await seen(pool, name) == data[:EXTENT] + pattern(EXTENT, 9)
        if change != "evicted":
            pool.unpin(base)
        if change in ("renamed", "other name"):
            assert await seen(pool, b"y" if change == "renamed" else b"x") == data
        assert not leaked(pool)
        assert idle(pool)


async def test_a_base_that_cannot_be_read_frees_what_was_reserved(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        base = await put(pool, b"x", 2 * EXTENT)
        data = await content(pool, base)
        await pool.rename(base, ROOT, b"y")
        bench.devices[0].inject(
            Fault(errno.EIO),
            operation=Operation.READ,
            span=range(payload_at(pool, base.ref), payload_at(pool, base.ref) + 1),
        )
        with pytest.raises(DeviceError):
            await put(pool, b"x", data[:EXTENT] + pattern(EXTENT, 9), base=base, keep=[0])
        assert idle(pool)
        assert not leaked(pool)


# ── renaming, attributes, removing ───────────────────────────────────────────────────────────────────────────


async def test_renaming(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        d = await directory(pool, b"d")
        old = await put(pool, b"x", 300 * KIB)
        new = await pool.rename(old, inside(d), b"y")
        assert (new.object_id, new.ref, new.stamp > old.stamp) == (old.object_id, old.ref, True)
        assert pool.lookup(ROOT, b"x") is None
        assert pool.lookup(inside(d), b"y") == pool.current(old) == new
        assert await pool.rename(new, inside(d), b"y") == new
        with pytest.raises(Missing):
            await pool.rename(old, ROOT, b"z")
        with pytest.raises(Missing):
            await pool.update(old, mode=0o100600)
        with pytest.raises(Missing):
            await pool.remove(old)
        assert idle(pool)
    bench.boot += 1
    async with bench.pool() as pool:
        assert pool.lookup(inside(d), b"y") == new
        assert named(pool) == [b"d"]


async def test_what_a_rename_may_replace(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        empty, full = await directory(pool, b"empty"), await directory(pool, b"full")
        await put(pool, b"inside", directory=inside(full))
        file = await put(pool, b"file", 300 * KIB)
        other = await put(pool, b"other", 300 * KIB)
        for record, target, error in (
            (file, b"empty", IsDirectory),
            (empty, b"file", NotDirectory),
            (empty, b"full", NotEmpty),
        ):
            with pytest.raises(error):
                await pool.rename(record, ROOT, target)
            with pytest.raises(Exists):
                await pool.rename(record, ROOT, target, replace=False)
        moved = await pool.rename(full, ROOT, b"empty")
        assert pool.current(empty) is None
        assert named(pool, inside(moved)) == [b"inside"]
        await pool.rename(file, ROOT, b"other")
        assert pool.current(other) is None
        assert named(pool) == [b"empty", b"other"]
        assert not leaked(pool)
        assert idle(pool)


async def test_a_directory_does_not_move_into_itself(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        a = await directory(pool, b"a")
        b = await directory(pool, b"b", inside(a))
        c = await directory(pool, b"c", inside(b))
        for target in (a, b, c):
            with pytest.raises(NameConflict, match="into itself"):
                await pool.rename(a, inside(target), b"x")
        await pool.rename(c, ROOT, b"c")
        outcomes = []

        async def move(record: Descriptor, target: Descriptor) -> None:
            try:
                await pool.rename(record, inside(target), b"x")
                outcomes.append("moved")
            except NameConflict:
                outcomes.append("refused")

        c = pool.lookup(ROOT, b"c") or c
        async with trio.open_nursery() as nursery:
            nursery.start_soon(move, a, c)
            nursery.start_soon(move, c, a)
        assert sorted(outcomes) == ["moved", "refused"]
        assert idle(pool)


async def test_nothing_gets_into_a_directory_that_is_leaving(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        outcomes: list[str] = []
        for way in ("removed", "replaced"):
            victim, other = await directory(pool, b"victim"), await directory(pool, b"other")
            bench.devices[0].inject(Fault(delay=1), operation=Operation.WRITE)

            async def leave(victim: Descriptor = victim, other: Descriptor = other, way: str = way) -> None:
                await (pool.remove(victim) if way == "removed" else pool.rename(other, ROOT, b"victim"))

            async def enter(victim: Descriptor = victim) -> None:
                await trio.sleep(0.5)
                try:
                    await put(pool, b"x", directory=inside(victim))
                except Missing:
                    outcomes.append("missing")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave)
                nursery.start_soon(enter)
            await pool.remove(pool.lookup(ROOT, b"other" if way == "removed" else b"victim") or other)
        assert outcomes == ["missing", "missing"]
        assert pool.statistics().objects == 0
        assert idle(pool)


async def test_a_directory_that_something_enters_is_not_empty(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        d = await directory(pool, b"d")
        bench.devices[0].inject(Fault(delay=1), operation=Operation.WRITE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: put(pool, b"x", directory=inside(d)))
            await trio.sleep(0.5)
            assert not pool.is_empty(inside(d))
            with pytest.raises(NotEmpty):
                await pool.remove(d)
        assert named(pool, inside(d)) == [b"x"]


async def test_a_directory_that_failed_to_leave_can_be_entered(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        victim, other = await directory(pool, b"victim"), await directory(pool, b"other")
        bench.devices[0]._torn = lambda write, unit: []  # type: ignore[method-assign]
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE)
        with pytest.raises(DeviceError):
            await pool.rename(other, ROOT, b"victim")
        await put(pool, b"x", directory=inside(victim))
        assert idle(pool)


async def test_a_name_on_a_missing_device_gives_way_to_a_rename(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)]
        here, gone = (next(r for r in records if r.address.device == d) for d in (0, 1))
        data = await content(pool, here)
    bench.absent = {1}
    async with bench.pool() as pool:
        moved = await pool.rename(here, ROOT, gone.name, replace=False)
        assert moved.supersedes == (gone.ref,)
        assert await seen(pool, gone.name) == data
    bench.absent = set()
    async with bench.pool() as pool:
        assert await seen(pool, gone.name) == data
        assert pool.lookup(ROOT, here.name) is None
        assert not leaked(pool)


async def test_attributes(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        old = await put(pool, b"x", 300 * KIB)
        new = await pool.update(old, mode=0o100600, uid=7, gid=8, mtime_ns=9, xattrs=((b"user.k", b"v"),))
        assert replace(new, stamp=old.stamp, ctime_ns=old.ctime_ns, sequence=old.sequence) == replace(
            old, mode=0o100600, uid=7, gid=8, mtime_ns=9, xattrs=((b"user.k", b"v"),)
        )
        assert new.ctime_ns == new.stamp > old.stamp
        with pytest.raises(BadName):
            await pool.update(new, xattrs=((b"trusted.k", b"v"),))
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") == new


async def test_the_roots_attributes(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.update_root, 0o700, 1, 2)
            nursery.start_soon(pool.update_root, 0o711, 1, 2)
        root = pool.directory(ROOT)
        assert root is not None
        assert not leaked(pool)
        root = await pool.update_root(0o770, 3, 4)
        assert (root.mode, root.uid, root.gid) == (stat.S_IFDIR | 0o770, 3, 4)
        assert named(pool) == []
        await put(pool, b"x")
    async with bench.pool() as pool:
        assert pool.directory(ROOT) == root
        assert named(pool) == [b"x"]


async def test_the_root_of_a_missing_device_is_written_again(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        root = await pool.update_root(0o700, 1, 2)
    bench.absent = {root.address.device}
    async with bench.pool() as pool:
        new = await pool.update_root(0o711, 1, 2)
        assert new.address.device != root.address.device
        assert new.supersedes == (root.ref,)
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.directory(ROOT) == new
        assert not leaked(pool)


async def test_a_root_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await put(pool, b"x")
        bench.devices[0]._torn = lambda write, unit: []  # type: ignore[method-assign]
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.WRITE)
        with pytest.raises(DeviceError):
            await pool.update_root(0o700, 1, 2)
        assert pool.directory(ROOT) is None
        assert idle(pool)


async def test_removing(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        d = await directory(pool, b"d")
        file = await put(pool, b"x", 5 * MIB, directory=inside(d))
        link = await pool.make_symlink(ROOT, b"l", b"x", 0, 0)
        with pytest.raises(NotEmpty):
            await pool.remove(d)
        for record in (file, d, link):
            await pool.remove(record)
            with pytest.raises(Missing):
                await pool.remove(record)
        assert (pool.statistics().objects, pool.statistics().pool.removed) == (0, 3)
        assert not leaked(pool)
        assert idle(pool)
    bench.boot += 1
    async with bench.pool() as pool:
        assert named(pool) == []


# ── pins and eviction ────────────────────────────────────────────────────────────────────────────────────────


async def test_who_pinned_goes_on_reading_what_is_removed(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 2 * EXTENT)
        data = await content(pool, record)
        pool.pin(record)
        pool.pin(record)
        await pool.remove(record)
        assert pool.totals().held == 0, "what is removed is not used"
        for number in range(20):
            await put(pool, b"%d" % number, EXTENT)
        pool.pin(record)
        for _ in range(2):
            pool.unpin(record)
        assert await content(pool, record) == data
        pool.unpin(record)
        with pytest.raises(Raced, match="is gone"):
            pool.pin(record)
        with pytest.raises(KeyError):
            pool.unpin(record)
        for number in range(20):
            await put(pool, b"%d" % number, EXTENT)
        with pytest.raises(Raced):
            await content(pool, record)


async def test_a_pin_names_a_version(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        old = await put(pool, b"x", 2 * EXTENT)
        data = await content(pool, old)
        renamed = await pool.rename(old, ROOT, b"y")
        pool.pin(old)  # same slots: as good as the current one
        pool.unpin(old)
        new = await put(pool, b"y", data[:EXTENT] + pattern(EXTENT, 3), base=renamed, keep=[0])
        for version in (old, renamed):
            with pytest.raises(Raced):
                pool.pin(version)
        pool.pin(new)
        with pytest.raises(KeyError):
            pool.unpin(old)
        assert pool.totals().held == new.stored_size
        pool.unpin(new)


async def test_what_was_used_last_stays_longest(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    gone: list[bytes] = []
    async with bench.pool() as pool:
        pool.on_gone.append(lambda record: gone.append(record.name))
        for number in range(12):
            await put(pool, b"%02d" % number, EXTENT)
            await trio.sleep(1)
        assert gone == []
        pool.touch(pool.lookup(ROOT, b"00"))  # type: ignore[arg-type]
        for number in range(3):
            await trio.sleep(1)
            await put(pool, b"new%d" % number, EXTENT)
        assert gone == [b"01", b"02", b"03"]
        counters = pool.statistics().pool
        assert (counters.evicted, counters.evicted_bytes, counters.evicted_unread) == (3, 3 * EXTENT, 3)
        assert not leaked(pool)
    async with bench.pool() as pool:
        pool.on_gone.append(lambda record: gone.append(record.name))
        await put(pool, b"new4", EXTENT)
        assert gone[3:] == [b"04"], "the order is kept"
        assert pool.statistics().pool.evicted_unread == 0, "what was stored before is not known to be unread"


async def test_the_pinned_stay_and_space_is_refused_only_when_nothing_may_go(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        pinned = [await put(pool, b"%d" % number, EXTENT) for number in range(12)]
        for record in pinned:
            pool.pin(record)
        with pytest.raises(NoSpace, match="all that is left is in use"):
            await pool.reserve(EXTENT)
        with pytest.raises(NoSpace):
            await pool.reserve(1)
        assert [pool.lookup(ROOT, record.name) for record in pinned] == pinned
        pool.unpin(pinned[5])
        await put(pool, b"new", EXTENT)
        assert pool.lookup(ROOT, b"5") is None
        held = [await pool.reserve(EXTENT)]
        with pytest.raises(NoSpace):
            await pool.reserve(EXTENT)
        assert pool.lookup(ROOT, b"new") is None
        for ref in held:
            pool.give_back(ref)
        assert await pool.reserve(EXTENT)


CLASSES = {
    SlotClass.INLINE: 100,
    SlotClass.KIB64: 60 * KIB,
    SlotClass.KIB512: 300 * KIB,
    SlotClass.MIB2: EXTENT,
}


@pytest.mark.parametrize("first", CLASSES)
@pytest.mark.parametrize("second", CLASSES)
async def test_a_pool_full_of_one_class_takes_another(
    tmp_path: Path, first: SlotClass, second: SlotClass, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(
            {SlotClass.INLINE: 4200, SlotClass.KIB64: 500, SlotClass.KIB512: 70}.get(first, 14)
        ):
            await put(pool, b"a%d" % number, CLASSES[first])
        await trio.sleep(1)
        for number in range(4):
            await put(pool, b"b%d" % number, CLASSES[second])
        assert await seen(pool, b"b3") is not None
        assert not leaked(pool)
        assert idle(pool)
        await put(pool, b"c", CLASSES[first])
    async with bench.pool() as pool:
        assert await seen(pool, b"c") is not None


async def test_directories_are_never_evicted(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(4 * 1023):
            await directory(pool, b"%d" % number)
        with pytest.raises(NoSpace):
            await directory(pool, b"one more")
        with pytest.raises(NoSpace):
            await pool.reserve(1)
        assert pool.statistics().objects == 4 * 1023
        assert idle(pool)


async def test_a_region_is_not_emptied_around_what_is_pinned(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(4 * 15):
            await put(pool, b"%d" % number, 300 * KIB)
        records = list(pool.children(ROOT))
        regions = {record.address.region for record in records}
        pins = [next(r for r in records if r.address.region == region) for region in regions]
        for record in pins:
            pool.pin(record)
        with pytest.raises(NoSpace):
            await pool.reserve(EXTENT)
        assert list(pool.children(ROOT)) == records
        pool.unpin(pins[0])
        await pool.reserve(EXTENT)
        assert {r.address.region for r in pool.children(ROOT)} == regions - {pins[0].address.region}


@pytest.mark.parametrize("reopened", [False, True])
async def test_what_removed_small_files_had_is_of_use_to_others(
    tmp_path: Path, autojump_clock: MockClock, reopened: bool
) -> None:
    bench = await made(tmp_path, regions=6)
    async with bench.pool() as pool:
        for number in range(6000):  # they take every region
            await put(pool, b"%d" % number)
        for record in list(pool.children(ROOT)):
            await pool.remove(record)
        assert not pool.statistics().space.unused_regions
        if not reopened:
            await store_large(pool)
    async with bench.pool() as pool:
        if reopened:
            await store_large(pool)


async def store_large(pool: Pool) -> None:
    """All but one of six regions come to hold extents."""
    await trio.sleep(2)
    for number in range(60):
        await put(pool, b"%d" % number, EXTENT)
    counts = {c.slot_class: c.regions for c in pool.statistics().space.classes}
    assert counts[SlotClass.MIB2] >= 5


async def test_writers_of_two_classes_share_a_small_pool(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path, regions=4)
    async with bench.pool() as pool:

        async def write(prefix: bytes, size: int) -> None:
            for number in range(40):
                await put(pool, b"%s%d" % (prefix, number), size)
                await trio.sleep(0.1)

        for device in bench.devices:
            device.random_faults = replace(device.random_faults, delay=(0.0, 0.01))
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for prefix, size in (
                    (b"a", EXTENT),
                    (b"b", 300 * KIB),
                    (b"c", 60 * KIB),
                    (b"d", 10),
                    (b"e", EXTENT),
                ):
                    nursery.start_soon(write, prefix, size)
        assert not leaked(pool)
        assert idle(pool)
        assert pool.statistics().room.repurposed < 60


async def test_a_reservation_can_be_given_up_at_any_point(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It takes evictions, and regions that change their class; wherever it is cut off, the pool is as before."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for number in range(3):
            await put(pool, b"x%d" % number, EXTENT)
        bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(1.0, 1.0))
        cut = 0
        for after in range(300):
            size = (EXTENT, 300 * KIB, 60 * KIB)[after % 3]
            with trio.move_on_after(after % 12 + 0.5) as scope:
                record = await put(pool, b"%d" % after, size)
                assert pool.lookup(ROOT, record.name) == record
            cut += scope.cancelled_caught
        assert cut > 30
        bench.devices[0].random_faults = replace(bench.devices[0].random_faults, delay=(0.0, 0.0))
        regions = pool.statistics().space
        assert sum(c.regions for c in regions.classes) + regions.unused_regions == 4
        assert not any(region.closed for region in pool._space.regions())
        assert not leaked(pool)
        await put(pool, b"end", EXTENT)


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["read", "verify"])
async def test_wrong_bytes_are_a_miss_and_their_slots_rest(
    tmp_path: Path, expect_log: ExpectLog, way: str
) -> None:
    expect_log("object dropped: b'x': slot", count=1)
    bench = await made(tmp_path)
    gone: list[Descriptor] = []
    async with bench.pool() as pool:
        pool.on_gone.append(gone.append)
        record = await put(pool, b"x", 2 * EXTENT)
        assert record.extents[1].ref != record.ref
        await bench.damage(0, payload_at(pool, record.extents[1].ref))
        with pytest.raises(ChecksumError, match="holds other bytes"):
            await (content(pool, record) if way == "read" else pool.verify(record))
        assert gone == [record]
        assert pool.lookup(ROOT, b"x") is None
        assert pool.statistics().pool.quarantined == 1
        assert pool.statistics().space.bad == 2 * EXTENT
        data = await content(pool, await put(pool, b"x", 2 * EXTENT))
        assert not set(pool.lookup(ROOT, b"x").extents) & set(record.extents)  # type: ignore[union-attr]
        assert not leaked(pool)
    bench.boot += 1
    async with bench.pool() as pool:
        assert await seen(pool, b"x") == data


async def test_an_older_version_that_is_wrong_does_not_drop_the_newer(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        old = await put(pool, b"x", EXTENT)
        pool.pin(old)
        await bench.damage(0, payload_at(pool, old.ref))
        new = await put(pool, b"x", EXTENT)
        with pytest.raises(Raced):
            await content(pool, old)
        pool.unpin(old)
        assert pool.lookup(ROOT, b"x") == new
        assert pool.statistics().pool.quarantined == 0


async def test_damage_is_reported_but_not_dropped_by_who_only_reads(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("object dropped", count=1)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        at = payload_at(pool, record.ref)
    await bench.damage(0, at)
    async with bench.pool(readonly=True) as pool:
        with pytest.raises(ChecksumError):
            await seen(pool, b"x")
        assert pool.lookup(ROOT, b"x") == record


async def test_damage_to_what_replaced_something_missing_does_not_bring_that_back(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("object dropped", count=1)
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        gone = next(
            r for r in [await put(pool, b"%d" % n, 300 * KIB) for n in range(4)] if r.address.device == 1
        )
    bench.absent = {1}
    async with bench.pool() as pool:
        new = await put(pool, gone.name, 300 * KIB)
        await bench.damage(0, payload_at(pool, new.ref))
        with pytest.raises(ChecksumError):
            await seen(pool, gone.name)
    bench.absent = set()
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, gone.name) is None
        assert len(named(pool)) == 3


# ── durability ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(8))
async def test_with_flush_what_returned_survives_a_power_cut(
    tmp_path: Path, expect_log: ExpectLog, seed: int
) -> None:
    expect_log("device d. is lost", count=2)
    bench = await made(tmp_path, devices=2, seed=seed)
    async with bench.pool(flush=True) as pool:
        old = await put(pool, b"a", 300 * KIB)
        await put(pool, b"b", 5 * MIB)
        a = await content(pool, await put(pool, b"a", 5 * MIB))
        gone = await put(pool, b"gone", 300 * KIB)
        await pool.remove(gone)
        moved = await put(pool, b"old", 300 * KIB)
        data = await content(pool, moved)
        await pool.rename(moved, ROOT, b"new")
        assert pool.current(old) is None
        bench.power_cut()
    async with bench.pool(flush=True) as pool:
        assert await seen(pool, b"a") == a
        assert await seen(pool, b"new") == data
        assert named(pool) == [b"a", b"b", b"new"]
        for record in pool.children(ROOT):
            await pool.verify(record)
        assert not leaked(pool)


@pytest.mark.parametrize("seed", range(8))
async def test_with_flush_what_comes_back_comes_back_whole(
    tmp_path: Path, expect_log: ExpectLog, seed: int
) -> None:
    """An eviction that was not flushed may be undone; then the payload must not have been discarded."""
    expect_log("device d0 is lost", count=1)
    bench = await made(tmp_path, seed=seed)
    async with bench.pool(flush=True) as pool:
        for number in range(6):
            await put(pool, b"%d" % number, 300 * KIB)
        for number in range(6):
            record = pool.lookup(ROOT, b"%d" % number)
            assert record is not None
            assert await pool._departures.evict(record.object_id)
        bench.power_cut()
    async with bench.pool(flush=True) as pool:
        for record in pool.children(ROOT):
            await pool.verify(record)


async def test_with_flush_payloads_are_discarded_before_their_slots_are_reused(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool(flush=True) as pool:
        for number in range(40):
            await put(pool, b"%d" % number, EXTENT)
        discards = bench.devices[0].operations[Operation.DISCARD]
        assert discards == pool.statistics().pool.evicted
        for record in pool.children(ROOT):
            await pool.verify(record)


async def test_with_flush_debts_end_with_the_region_that_they_were_in(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What was replaced lay in a slot whose number the region does not even have any more."""
    bench = await made(tmp_path)
    async with bench.pool(flush=True) as pool:
        for number in range(100):
            await put(pool, b"%d" % number, 60 * KIB)
        await trio.sleep(1)
        for number in range(80, 100):
            await put(pool, b"%d" % number, 300 * KIB)
        await trio.sleep(1)
        for number in range(100):
            await put(pool, b"n%d" % number, EXTENT)
            await trio.sleep(1)
        assert {c.slot_class for c in pool.statistics().space.classes} == {SlotClass.MIB2}


async def test_a_flush_that_fails_loses_the_device_and_not_the_reservation(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("device d1 is lost", count=1)
    bench = await made(tmp_path, devices=2)
    async with bench.pool(flush=True) as pool:
        for number in range(24):
            await put(pool, b"%d" % number, EXTENT)
        bench.devices[1].inject(Fault(errno.EIO), operation=Operation.FLUSH)
        for record in list(pool.children(ROOT)):
            assert await pool._departures.evict(record.object_id)
        ref = await pool.reserve(EXTENT)
        assert ref.device == 0
        pool.give_back(ref)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────


async def refuses_everything(pool: Pool, record: Descriptor, extent: ExtentRef) -> bool:
    """Whether nothing can be done with a pool but to let go."""
    new = NewObject(ROOT, b"y", REGULAR, 0, 0, 0, 1, inline=b"y")
    buffer = page_buffer(PAGE)
    for ask in (
        lambda: pool.publish(new),
        lambda: pool.reserve(1),
        lambda: pool.write(extent.ref, buffer),
        lambda: pool.rename(record, ROOT, b"y"),
        lambda: pool.update(record, mode=REGULAR),
        lambda: pool.update_root(0o700, 0, 0),
        lambda: pool.remove(record),
        lambda: pool.make_directory(ROOT, b"d", 0o700, 0, 0),
        lambda: pool.extents(record),
        lambda: pool.read_extent(record, 0, buffer),
        lambda: pool.verify(record),
    ):
        with pytest.raises(PoolClosed):
            await ask()
    for name in (lambda: pool.lookup(ROOT, b"x"), lambda: pool.children(ROOT), lambda: pool.pin(record)):
        with pytest.raises(PoolClosed):
            name()
    pool.unpin(record)
    pool.give_back(extent.ref)
    return True


async def test_a_pool_that_is_closed(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        extent = await stored(pool, pattern(PAGE))
        pool.pin(record)
    assert await refuses_everything(pool, record, extent)
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") == record


def refuses(pool: Pool) -> bool:
    try:
        pool.lookup(ROOT, b"x")
    except PoolClosed:
        return True
    return False


async def test_a_pool_ends_in_a_child_process(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        assert in_child(lambda: refuses(pool))
        assert pool.lookup(ROOT, b"x") == record


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_statistics(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        before = pool.statistics()
        assert (before.objects, before.totals.used, before.totals.held) == (0, 0, 0)
        record = await put(pool, b"x", 2 * EXTENT)
        await put(pool, b"y", 100)
        await content(pool, record)
        pool.pin(record)
        ref = await pool.reserve(EXTENT)
        after = pool.statistics()
        assert (after.pool.published, after.pool.published_bytes) == (2, 2 * EXTENT + 100)
        assert (after.reads.extents, after.reads.bytes) == (2, 2 * EXTENT)
        assert after.room.formatted == 2
        assert after.totals.used == 2 * EXTENT + 2 * PAGE
        assert after.totals.held == 3 * EXTENT
        assert after.objects == 2
        assert after.unreachable_devices == ()
        assert before.pool.published == 0, "a snapshot"
        pool.unpin(record)
        pool.give_back(ref)
        assert pool.totals().held == 0


async def test_a_damaged_page_is_found_where_it_is(tmp_path: Path) -> None:
    """For those who write tests: the helpers agree with the pool about where things are."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        assert page_at(pool, record) - pair_at(pool, record.ref) == record.sequence % 2 * PAGE


def test_benches_leave_out_what_is_absent() -> None:
    assert Bench(Path(), [], absent={1}).present == []
