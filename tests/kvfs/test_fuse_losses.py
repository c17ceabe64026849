"""Drafts over a real pool one of whose devices is lost under what was begun on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from blockdev.opening import Opened
from blockdev.testing import Fault, Operation
from blockdev.types import ROOT, DeviceNo, SlotRef
from kvfs.frames import Arena, open_frames
from kvfs.fuse.drafts import Draft, DraftServices, FileAttributes
from kvfs.fuse.memory import DraftMemory
from kvfs.fuse.versions import Versions
from kvfs.predecessors import Predecessors
from tests.blockdev.pools import EXTENT, Bench, content, leaked, made, pattern
from tests.conftest import ExpectLog

DATA = pattern(EXTENT, 1)


def slot_of(draft: Draft) -> SlotRef:
    slot = draft.content.extents[0].slot
    assert slot is not None
    return slot


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
    arena = Arena(4 * EXTENT, EXTENT, huge_pages=False)
    async with (
        b.open() as opened,
        open_frames(arena, opened.pool) as frames,
        trio.open_nursery() as nursery,
    ):
        pool = opened.pool
        versions = Versions(pool, frames)
        memory = DraftMemory(pool, frames, versions, nursery, limit=2)
        services = DraftServices(pool, versions, memory, Predecessors(), lambda: 42)
        draft = Draft(services, ROOT, b"f", FileAttributes(0o100644, 1, 2, 3, 3), writer=7)
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
        record = pool.lookup(ROOT, b"f")
        assert record is not None
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
