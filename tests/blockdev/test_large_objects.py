"""Objects with more extents than a head can list: index slots, and what a sparse terabyte costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from blockdev.creating import CreateOptions, create_pool
from blockdev.memory import page_buffer
from blockdev.opening import OpenOptions, open_pool
from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.testing import MemoryDevice
from blockdev.types import (
    HOLE,
    MIB,
    ROOT,
    Descriptor,
    DeviceNo,
    ExtentRef,
    Extents,
    Generation,
    RegionNo,
    SlotClass,
    SlotNo,
    Xxh3,
    stored,
)

EXTENT = 2 * MIB
TIB = 1 << 40


async def publish_sparse(pool: Pool, size: int, written: Mapping[int, bytes], base: Descriptor | None = None):
    """Publish `slab` with these extents, each beginning with 8 bytes; the others are the base's, or holes."""
    extents = list(await pool.extents(base)) if base is not None else [HOLE] * (size // EXTENT)
    for index, mark in written.items():
        buffer = page_buffer(EXTENT)
        buffer[:8] = mark
        ref = await pool.reserve(EXTENT)
        await pool.write(ref, buffer)
        extents[index] = ExtentRef(*ref, Xxh3(xxh3_64_intdigest(buffer)))
    return await pool.publish(
        NewObject(ROOT, b"slab", 0o100644, 0, 0, 1, size, extents=tuple(extents), base=base)
    )


async def marks(pool: Pool, indexes):
    record = pool.lookup(ROOT, b"slab")
    assert record is not None
    found = {}
    for index in indexes:
        buffer = page_buffer(EXTENT)
        assert await pool.read_extent(record, index, buffer) == EXTENT
        found[index] = bytes(buffer[:8])
    return found


@pytest.mark.parametrize("size", [64 << 30, TIB])
async def test_a_sparse_slab(size: int, tmp_path: Path):
    device = MemoryDevice(200 * MIB)
    await create_pool([device], CreateOptions("t", "local:x", SlotClass.MIB2, 8 * MIB))
    last = size // EXTENT - 1
    written = {0: b"first   ", 5: b"fifth   ", last // 2: b"middle  ", last: b"last    "}
    async with open_pool([device.reopen()], tmp_path / "cat", OpenOptions("local:x")) as opened:
        pool = opened.pool
        first = await publish_sparse(pool, size, written)
        assert first.indexed
        assert sum(not ref.is_hole for ref in first.extents) == 3
        pool.pin(first)
        second = await publish_sparse(pool, size, {5: b"changed "}, base=first)
        pool.unpin(first)
        assert second.object_id == first.object_id
    expected = written | {5: b"changed ", 7: bytes(8)}
    for folder in ("cat", "rebuilt"):
        device = device.reopen()
        async with open_pool([device], tmp_path / folder, OpenOptions("local:x")) as opened:
            assert await marks(opened.pool, expected) == expected
            assert opened.pool.totals().used < 10 * MIB


async def test_hundreds_of_extents(tmp_path: Path):
    device = MemoryDevice(400 * MIB)
    await create_pool([device], CreateOptions("t", "local:x", SlotClass.MIB2, 32 * MIB))
    count = 130
    written = {index: b"%8d" % index for index in range(count)}
    async with open_pool([device.reopen()], tmp_path / "cat", OpenOptions("local:x")) as opened:
        assert (await publish_sparse(opened.pool, count * EXTENT, written)).indexed
        used = opened.pool.totals().used
    async with open_pool([device.reopen()], tmp_path / "rebuilt", OpenOptions("local:x")) as opened:
        assert await marks(opened.pool, written) == written
        assert opened.pool.totals().used == used
        record = opened.pool.lookup(ROOT, b"slab")
        assert record is not None
        await opened.pool.remove(record)
        assert opened.pool.totals().used == 0


def test_what_is_stored_of_a_file_of_holes() -> None:
    one = ExtentRef(DeviceNo(0), RegionNo(1), SlotNo(2), Generation(3), Xxh3(4))
    hole_from_media = ExtentRef(*HOLE)
    extents = (HOLE, one, hole_from_media, one)
    assert stored(extents) == stored(Extents(extents)) == [(1, one), (3, one)]
    sparse = Extents(extents)
    assert stored(sparse) is stored(sparse), "looked at once"
