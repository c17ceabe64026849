"""A device that one member lost comes back, while other members went on, or ended."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock

from blockdev.catalog import Trust
from blockdev.opening import Opened
from blockdev.pool import Pool
from blockdev.types import KIB, ROOT, DeviceNo
from tests.blockdev.members import Handle, Host, host
from tests.blockdev.pools import EXTENT, content, put
from tests.conftest import ExpectLog

ONE = DeviceNo(1)
SOON = 3.0
"""Seconds within which members have heard of each other, and freed what nobody reads."""


async def names(pool: Pool) -> dict[bytes, bytes]:
    return {record.name: await content(pool, record) for record in pool.children(ROOT)}


async def back(made: Host, opened: Opened) -> None:
    await opened.returning.take_back(ONE, Handle(made.devices[1]))


async def scanned(made: Host) -> dict[bytes, bytes]:
    """What the media say to somebody who has no catalogue."""
    made.forget()
    async with made.member() as opened:
        assert opened.recovered.trust is Trust.STALE
        return await names(opened.pool)


async def test_others_that_went_on_are_seen_again(
    tmp_path: Path, expect_log: ExpectLog, autojump_clock: MockClock
) -> None:
    expect_log("d1 is lost|d1 is back")
    made = await host(tmp_path, devices=2)
    async with made.member() as one, made.member() as two:
        for number in range(4):
            await put(one.pool, b"one%d" % number, 300 * KIB)
            await put(two.pool, b"two%d" % number, 300 * KIB)
        await trio.sleep(SOON)
        one.pool.media.mark_lost(ONE)
        assert len(await names(one.pool)) < 8
        for number in range(4):
            await put(two.pool, b"later%d" % number, 2 * EXTENT)  # takes regions on both devices
        mine = next(r for r in two.pool.children(ROOT) if r.name[:3] == b"one" and r.address.device == 1)
        await two.pool.remove(mine)
        await put(two.pool, b"two0", 400 * KIB)
        await trio.sleep(SOON)
        await back(made, one)
        await trio.sleep(SOON)
        after = await names(two.pool)
        assert len(after) == 11
        assert await names(one.pool) == after
        await put(one.pool, b"new", 4 * EXTENT)
        await trio.sleep(SOON)
        after = await names(one.pool)
        assert await names(two.pool) == after
    async with made.member() as opened:
        assert await names(opened.pool) == after
    assert await scanned(made) == after


async def test_what_a_member_that_ended_meanwhile_has_there_is_taken_over(
    tmp_path: Path, expect_log: ExpectLog, autojump_clock: MockClock
) -> None:
    expect_log("d1 is lost|d1 is back")
    made = await host(tmp_path, devices=2)
    async with made.member() as one:
        async with made.member() as two:
            for number in range(4):
                await put(one.pool, b"one%d" % number, 300 * KIB)
                await put(two.pool, b"two%d" % number, 300 * KIB)
            await trio.sleep(SOON)
            before = await names(one.pool)
            one.pool.media.mark_lost(ONE)
        await trio.sleep(SOON)
        await back(made, one)
        await trio.sleep(SOON)
        assert await names(one.pool) == before
        for record in list(one.pool.children(ROOT)):
            if record.name[:3] == b"two":
                await one.pool.remove(record)
                del before[record.name]
        assert await names(one.pool) == before
    async with made.member() as opened:
        assert await names(opened.pool) == before
    assert await scanned(made) == before
