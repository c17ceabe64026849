"""Drafts over a real pool one of whose devices is lost under what was begun on it."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from blockdev.opening import Opened
from blockdev.testing import Fault, Operation
from blockdev.types import ROOT, DeviceNo, SlotRef
from kvfs.frames import Arena, FrameCache, open_frames
from kvfs.fuse.drafts import Draft, DraftServices, FileAttributes
from kvfs.fuse.memory import DraftMemory
from kvfs.fuse.versions import Versions
from kvfs.predecessors import Predecessors
from tests.blockdev.pools import EXTENT, Bench, content, found, leaked, made, pattern
from tests.conftest import ExpectLog

DATA = pattern(EXTENT, 1)
ATTRIBUTES = FileAttributes(0o100644, 1, 2, 3, 3)


def slot_of(draft: Draft) -> SlotRef:
    slot = draft.content.extents[0].slot
    assert slot is not None
    return slot


@asynccontextmanager
async def drafting(b: Bench) -> AsyncIterator[tuple[Opened, DraftServices, FrameCache]]:
    """The pool, and what drafts need, with memory for four extents."""
    arena = Arena(4 * EXTENT, EXTENT, huge_pages=False)
    async with (
        b.open() as opened,
        open_frames(arena, opened.pool) as frames,
        trio.open_nursery() as nursery,
    ):
        versions = Versions(opened.pool, frames)
        memory = DraftMemory(opened.pool, frames, versions, nursery, limit=2)
        yield opened, DraftServices(opened.pool, versions, memory, Predecessors(), lambda: 42), frames


async def store(services: DraftServices, name: bytes, data: bytes) -> None:
    draft = Draft(services, ROOT, name, ATTRIBUTES, writer=7)
    await draft.write(0, data)
    await draft.publish()
    draft.close()


async def back(b: Bench, opened: Opened, number: DeviceNo) -> None:
    b.devices[number] = b.devices[number].reopen()
    await opened.returning.take_back(number, b.devices[number])


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_file_is_stored_whole_elsewhere_and_nobody_waits(
    tmp_path: Path, expect_log: ExpectLog, autojump_clock: trio.testing.MockClock, is_back: bool
) -> None:
    expect_log(r"device d\d is lost", count=1)
    expect_log(r"device d\d is back", count=int(is_back))
    b = await made(tmp_path, devices=2)
    async with drafting(b) as (opened, services, frames):
        pool = opened.pool
        draft = Draft(services, ROOT, b"f", ATTRIBUTES, writer=7)
        await draft.write(0, DATA)
        assert draft.content.extents[0].flight is not None
        number = slot_of(draft).device
        lost = b.devices[number]
        lost.inject(Fault(delay=100.0), operation=Operation.WRITE)
        began = trio.current_time()
        pool.media.mark_lost(number)
        if is_back:
            await back(b, opened, number)
        assert await draft.publish()
        assert trio.current_time() == began
        record = found(pool, b"f")
        assert await content(pool, record) == DATA
        assert pool.media.available(number) == is_back
        assert frames.statistics().zombies == (not is_back)
        lost.release()
        await trio.testing.wait_all_tasks_blocked()
        assert frames.statistics().zombies == 0
        assert await content(pool, record) == DATA
        draft.close()
        assert frames.statistics().pinned == 0
        assert pool.statistics().totals.held == 0
        assert not leaked(pool)


@pytest.mark.parametrize("devices", [2, 3])
async def test_devices_without_room_behind_them_keep_nothing_from_being_stored(
    tmp_path: Path, expect_log: ExpectLog, devices: int
) -> None:
    """Their namespaces are as large as they always were, and what is there can be read: only writes are refused."""
    expect_log("could not be freed|cannot be formatted")
    b = await made(tmp_path, devices=devices)
    async with drafting(b) as (opened, services, frames):
        pool, names = opened.pool, [b"%d" % number for number in range(8)]
        for number in range(devices):
            await store(services, b"before%d" % number, DATA)
        good = found(pool, b"before0").extents[0].device
        for number, device in enumerate(b.devices):
            if number != good:
                device.inject(Fault(errno.ENOSPC), operation=Operation.WRITE, count=1000)
        for number, name in enumerate(names):
            await store(services, name, pattern(EXTENT, number))
        for number, name in enumerate(names):
            assert await content(pool, found(pool, name)) == pattern(EXTENT, number)
            assert found(pool, name).address.device == good
        for number in range(devices):
            assert await content(pool, found(pool, b"before%d" % number)) == DATA
        assert frames.statistics().pinned == 0
