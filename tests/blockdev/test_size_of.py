"""A size asked for by name is what looking the name up says, whatever has become of the name."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from blockdev.errors import BlockError, ChecksumError
from blockdev.pool import Pool
from blockdev.types import ROOT, Kind
from tests.blockdev.members import host
from tests.blockdev.pools import EXTENT, content, made, payload_at, put, put_sparse
from tests.conftest import ExpectLog

NAMES = [b"a", b"b", b"c", b"d"]


def agrees(*pools: Pool) -> None:
    for pool in pools:
        for name in [*NAMES, b"directory", b"symlink", b"never"]:
            record = pool.lookup(ROOT, name)
            size = record.size if record is not None and record.kind is Kind.HEAD else None
            assert pool.size_of(ROOT, name) == size


async def test_of_what_there_is(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("is lost")
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        for name, size in zip(NAMES, (0, 100, EXTENT, 2 * EXTENT + 1), strict=True):
            await put(pool, name, size)
        await pool.make_directory(ROOT, b"directory", 0o700, 0, 0)
        await pool.make_symlink(ROOT, b"symlink", b"a", 0, 0)
        agrees(pool)
        assert [pool.size_of(ROOT, name) for name in NAMES] == [0, 100, EXTENT, 2 * EXTENT + 1]
        record = pool.lookup(ROOT, b"d")
        assert record is not None
        pool.media.mark_lost(record.extents[-1].device)
        assert pool.size_of(ROOT, b"d") is None, "a part of it cannot be reached"
        agrees(pool)


async def test_of_an_object_with_very_many_extents(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put_sparse(pool, b"a", 200 * EXTENT, {7: b"part"})
        assert record.indexed
        agrees(pool)


@pytest.mark.parametrize("seed", range(20))
async def test_of_what_members_do_to_each_others_objects(
    tmp_path: Path, seed: int, autojump_clock: MockClock
) -> None:
    rng = Random(seed)
    shared = await host(tmp_path, seed=seed)
    async with shared.pool() as one, shared.pool() as two:
        for _ in range(30):
            pool, name = rng.choice([one, two]), rng.choice(NAMES)
            record = pool.lookup(ROOT, name)
            try:
                if record is None or rng.random() < 0.3:
                    await put(pool, name, rng.choice([10, 5000, EXTENT]))
                elif rng.random() < 0.5:
                    await pool.rename(record, ROOT, rng.choice(NAMES))
                else:
                    await pool.remove(record)
            except BlockError:
                pass  # the other one was there first
            agrees(one, two)
            await trio.sleep(rng.choice([0.0, 0.05, 0.3, 3.0]))
            agrees(one, two)


async def test_of_what_was_found_damaged(
    tmp_path: Path, autojump_clock: MockClock, expect_log: ExpectLog
) -> None:
    expect_log("damaged|other bytes|quarantin|wrong")
    shared = await host(tmp_path)
    async with shared.pool() as one, shared.pool() as two:
        await put(one, b"a", EXTENT)
        await trio.sleep(1)
        record = two.lookup(ROOT, b"a")
        assert record is not None
        device, at = shared.devices[0], payload_at(one, record.ref)
        device._view.write(at, b"\xa5" * 4096)
        with pytest.raises(ChecksumError):
            await content(two, record)
        assert two.size_of(ROOT, b"a") is None
        agrees(two)
