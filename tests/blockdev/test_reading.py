from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from blockdev import reading
from blockdev.errors import ChecksumError, DeviceError, DeviceTimeout, Raced, Unavailable
from blockdev.memory import page_buffer
from blockdev.opening import OpenOptions, open_pool
from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.testing import Fault, FaultyDevice, Operation
from blockdev.types import HOLE, KIB, MIB, PAGE, ROOT, Descriptor, ExtentRef, SlotClass
from tests.blockdev.pools import (
    DOMAIN,
    EXTENT,
    REGULAR,
    Bench,
    content,
    made,
    pair_at,
    pattern,
    payload_at,
    put,
    put_sparse,
    seen,
)
from tests.conftest import ExpectLog

INDEXED = 200
"""Extents; more than a head lists."""


async def read(pool: Pool, record: Descriptor, index: int = 0, size: int = EXTENT) -> bytes:
    buffer = page_buffer(size)
    return bytes(buffer[: await pool.read_extent(record, index, buffer)])


def payload(pool: Pool, ref: ExtentRef) -> range:
    at = payload_at(pool, ref.ref)
    return range(at, at + 1)


async def test_each_extent_is_read_into_the_buffer_it_is_given(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        data = pattern(2 * EXTENT + 5)
        record = await put(pool, b"x", data)
        assert await read(pool, record, 0) == data[:EXTENT]
        assert await read(pool, record, 2, PAGE) == data[2 * EXTENT :], "a page is enough for 5 bytes"
        inline = await put(pool, b"y", b"inline")
        assert await read(pool, inline, 0, PAGE) == b"inline"
        empty = await put(pool, b"z", b"")
        assert await read(pool, empty, 0, PAGE) == b""
        assert await pool.extents(inline) == await pool.extents(empty) == ()
        with pytest.raises(IndexError):
            await read(pool, record, 3)


async def test_holes_are_zeros(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put_sparse(pool, b"x", 2 * EXTENT + 7, {1: pattern(EXTENT)})
        buffer = page_buffer(EXTENT)
        for index, expected in ((0, bytes(EXTENT)), (1, pattern(EXTENT)), (2, bytes(7))):
            buffer[:] = b"\xff" * EXTENT
            assert await pool.read_extent(record, index, buffer) == len(expected)
            assert buffer[: len(expected)] == expected
        assert pool.statistics().reads.extents == 1


@pytest.mark.parametrize("wrong", [1, 2])
async def test_wrong_bytes_are_read_once_more(tmp_path: Path, expect_log: ExpectLog, wrong: int) -> None:
    """The wire or a cache may be at fault; what is wrong twice is wrong."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        at = payload_at(pool, record.ref)
        good = page_buffer(PAGE)
        device = bench.devices[0]
        await device.read_into(at, good)
        await bench.damage(0, at)
        reads = 0

        def mend(operation: Operation, offset: int, length: int) -> None:
            nonlocal reads
            reads += operation is Operation.READ and offset == at
            if reads == 2 and wrong == 1:
                device._view.write(at, bytes(good))

        device.on_operation = mend
        if wrong == 1:
            assert await read(pool, record) == pattern(EXTENT, b"x")
            assert pool.statistics().reads.reread == 1
        else:
            expect_log("object dropped", count=1)
            with pytest.raises(ChecksumError, match=r"b'x': slot \(0, 0, 0\) holds other bytes"):
                await read(pool, record)
            assert pool.statistics().reads.checksum_errors == 1
        assert reads == 2


async def test_a_slot_that_went_to_another_object_is_a_plain_miss(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        await pool.remove(record)
        for number in range(12):
            await put(pool, b"%d" % number, EXTENT)
        with pytest.raises(Raced, match="was reused while b'x' was read"):
            await read(pool, record)
        assert pool.statistics().reads.raced == 1
        assert pool.statistics().pool.quarantined == 0


async def test_a_region_that_was_formatted_is_a_plain_miss(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its slots are elsewhere now, and there may be fewer of them."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % number, 60 * KIB) for number in range(100)]
        await trio.sleep(1)
        for number in range(12):
            await put(pool, b"n%d" % number, EXTENT)
        assert {c.slot_class for c in pool.statistics().space.classes} == {SlotClass.MIB2}
        for record in (records[0], records[-1]):
            with pytest.raises(Raced):
                await read(pool, record, size=64 * KIB)


async def test_a_descriptor_that_is_damaged_does_not_hide_wrong_bytes(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("object dropped", count=1)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        await bench.damage(0, pair_at(pool, record.ref), 2 * PAGE)
        assert await read(pool, record) == pattern(EXTENT, b"x"), "the head's checksum is enough"
        await bench.damage(0, payload_at(pool, record.ref))
        with pytest.raises(ChecksumError):
            await read(pool, record)


async def test_a_device_that_fails_is_no_damage(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        where = payload(pool, record.extents[0])
        bench.devices[0].inject(Fault(errno.EIO), operation=Operation.READ, span=where)
        with pytest.raises(DeviceError):
            await read(pool, record)
        bench.devices[0].inject(Fault(delay=100), operation=Operation.READ, span=where)
        with pytest.raises(DeviceTimeout) as raised:
            await read(pool, record)
        assert raised.value.pending is not None
        assert not raised.value.pending.done
        assert await read(pool, record) == pattern(EXTENT, b"x")
        assert pool.statistics().pool.quarantined == 0


async def test_a_device_that_is_lost_is_unavailable(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("device d0 is lost", count=1)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        bench.devices[0].lose()
        with pytest.raises(DeviceError):
            await read(pool, record)
        with pytest.raises(Unavailable, match="d0 is lost"):
            await read(pool, record)


# ── objects with index slots ─────────────────────────────────────────────────────────────────────────────────


async def indexed(bench: Bench, pool: Pool) -> Descriptor:
    parts = {index: pattern(EXTENT, index) for index in (0, 7, INDEXED - 1)}
    record = await put_sparse(
        pool, b"x", INDEXED * EXTENT - 5, parts | {INDEXED - 1: parts[INDEXED - 1][:-5]}
    )
    assert record.indexed
    return record


async def test_the_list_of_extents_is_read_once(tmp_path: Path) -> None:
    bench = await made(tmp_path, regions=6)
    async with bench.pool() as pool:
        record = await indexed(bench, pool)
        before = bench.devices[0].operations[Operation.READ]
        extents = await pool.extents(record)
        assert [i for i, e in enumerate(extents) if not e.is_hole] == [0, 7, INDEXED - 1]
        assert await pool.extents(await pool.rename(record, ROOT, b"y")) == extents
        assert bench.devices[0].operations[Operation.READ] == before + 1
        assert await read(pool, record, INDEXED - 1) == pattern(EXTENT, INDEXED - 1)[:-5]
        assert await read(pool, record, 5) == bytes(EXTENT)
        await pool.verify(record)
    async with bench.pool() as pool:
        found = pool.lookup(ROOT, b"y")
        assert found is not None
        assert await read(pool, found, 7) == pattern(EXTENT, 7)


async def test_two_who_want_the_list_at_once(tmp_path: Path) -> None:
    bench = await made(tmp_path, regions=6)
    async with bench.pool() as pool:
        record = await indexed(bench, pool)
        lists = []

        async def get() -> None:
            lists.append(await pool.extents(record))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            nursery.start_soon(get)
        assert lists[0] == lists[1]
        assert pool._reader._kept == INDEXED


async def test_lists_are_kept_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.Reader, "_KEEP_EXTENTS", 2 * INDEXED)
    bench = await made(tmp_path, regions=6)
    async with bench.pool() as pool:
        records = [
            await put_sparse(pool, b"%d" % n, INDEXED * EXTENT, {0: pattern(30 * KIB).ljust(EXTENT, b"\0")})
            for n in range(4)
        ]
        for record in records:
            await pool.extents(record)
        assert pool._reader._kept == 2 * INDEXED
        for record in records:
            await pool.remove(record)
        assert pool._reader._kept == 0


async def test_an_index_that_is_wrong_drops_the_object(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("index of b'x' cannot be read", count=2)
    expect_log("object dropped", count=1)
    bench = await made(tmp_path, regions=6)
    async with bench.pool() as pool:
        record = await indexed(bench, pool)
        await bench.damage(0, payload_at(pool, record.extents[0].ref))
        with pytest.raises(ChecksumError):
            await read(pool, record, 7)
        assert pool.lookup(ROOT, b"x") is None
        assert await seen(pool, b"x") is None
    bench.boot += 1
    async with bench.pool() as pool:
        assert await seen(pool, b"x") is None


async def test_a_file_of_holes_only_has_no_index_slots(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        for name in (b"x", b"y"):
            record = await put_sparse(pool, name, INDEXED * EXTENT, {})
            assert record.indexed
            assert await pool.extents(record) == (HOLE,) * INDEXED
        await pool.remove(pool.lookup(ROOT, b"y"))  # type: ignore[arg-type]
        x = pool.lookup(ROOT, b"x")
        assert x is not None, "what they have in common is nobody's"
        assert await read(pool, x, INDEXED - 1) == bytes(EXTENT)
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") == x


async def test_a_version_made_in_place_has_an_index_of_its_own(tmp_path: Path) -> None:
    bench = await made(tmp_path, regions=6)
    async with bench.pool() as pool:
        base = await indexed(bench, pool)
        pool.pin(base)
        extents = list(await pool.extents(base))
        extents[7] = HOLE
        new = await pool.publish(
            NewObject(ROOT, b"x", REGULAR, 0, 0, 0, base.size, tuple(extents), base=base)
        )
        assert (new.object_id, new.ref) == (base.object_id, base.ref)
        assert await read(pool, base, 7) == pattern(EXTENT, 7)
        assert await read(pool, new, 7) == bytes(EXTENT)
        assert await read(pool, new, 0) == pattern(EXTENT, 0)
        pool.unpin(base)
        assert pool.lookup(ROOT, b"x") == new


# ── beside a writer ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reader_follows_regions_that_a_writer_formats(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It knows the headers of when it began; the records that it finds in the catalogue are newer."""
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        old = [await put(pool, b"%d" % number, 60 * KIB) for number in range(100)]
    mirror = FaultyDevice(bench.devices[0].size, Random(0))
    mirror._view = bench.devices[0]._view.copy()
    async with open_pool([mirror], bench.folder, OpenOptions(DOMAIN, readonly=True)) as opened:
        reader = opened.pool
        bench.folder = tmp_path / "b"
        async with bench.pool() as pool:
            await trio.sleep(1)
            new = [await put(pool, b"n%d" % number, EXTENT) for number in range(12)]
            mirror._view = bench.devices[0]._view.copy()
        for record in new[-3:]:
            assert await content(reader, record) == pattern(EXTENT, record.name)
        for record in (old[0], old[-1]):
            with pytest.raises(Raced):
                await content(reader, record)


async def test_a_header_that_is_damaged_meanwhile_changes_nothing(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("object dropped", count=1)
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", EXTENT)
        region = pool.media.devices[record.address.device].geometry.region_offset(record.address.region)
        await bench.damage(0, region, 2 * PAGE)
        assert await read(pool, record) == pattern(EXTENT, b"x")
        await bench.damage(0, payload_at(pool, record.ref))
        with pytest.raises(ChecksumError):
            await read(pool, record)
        assert await seen(pool, b"x") is None
        assert (await put(pool, b"y", 3 * MIB)).extents
