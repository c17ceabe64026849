"""Writes of whole extents that are begun where their last bytes came in, and awaited by whoever needs them."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from blockdev.errors import DeviceError
from blockdev.types import ROOT
from kvfs.fuse.drafts import Draft
from tests.kvfs.fake_pool import EXTENT
from tests.kvfs.test_fuse_drafts import Bench, bench, pattern

BROKEN = DeviceError("fake", errno.EIO, "broken")


async def begun(b: Bench, data: bytes) -> Draft:
    """A draft of one whole extent whose write was begun, and has not reached the media."""
    b.pool.begins = True
    draft = b.draft()
    await draft.write(0, data)
    assert draft.content.extents[0].flight is not None
    assert b.pool.writes == 0
    return draft


async def test_publishing_waits_for_them():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        assert await draft.publish()
        assert b.pool.writes == 1
        assert await b.published() == pattern(EXTENT)
        draft.close()
        b.check_nothing_is_left()


async def test_bytes_that_change_meanwhile_are_written_again():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        await draft.write(5, b"later")
        assert await draft.publish()
        changed = bytearray(pattern(EXTENT))
        changed[5:10] = b"later"
        assert await b.published() == bytes(changed)
        draft.close()
        b.check_nothing_is_left()


async def test_a_file_cut_off_meanwhile_is_written_again():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        await draft.truncate(EXTENT - 3)
        assert await draft.publish()
        assert await b.published() == pattern(EXTENT)[:-3]
        draft.close()
        b.check_nothing_is_left()


async def test_one_that_fails_poisons():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        b.pool.fail["write"] = BROKEN
        for _ in range(2):
            with pytest.raises(DeviceError):
                await draft.publish()
        assert b.pool.lookup(ROOT, b"f") is None
        draft.close()
        b.check_nothing_is_left()


async def test_one_whose_device_is_lost_goes_elsewhere():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        slot = draft.content.extents[0].slot
        assert slot is not None
        b.pool.lost.add(slot)
        assert await draft.publish()
        assert await b.published() == pattern(EXTENT)
        assert b.record().extents[0].ref != slot
        draft.close()


async def test_a_file_that_is_given_up_waits_for_them_before_its_memory_serves_others():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        frame = draft.content.extents[0].frame
        draft.close()
        assert frame is not None
        assert frame.pins
        await trio.testing.wait_all_tasks_blocked()
        assert b.pool.writes == 1
        b.check_nothing_is_left()


async def test_frames_are_passed_on_when_they_have_landed():
    async with bench(frames=8, drafts=2) as b:
        draft = await begun(b, pattern(EXTENT))
        for index in range(1, 5):
            await draft.write(index * EXTENT, pattern(EXTENT, index))
        assert await draft.publish()
        expected = pattern(EXTENT) + b"".join(pattern(EXTENT, index) for index in range(1, 5))
        assert await b.published() == expected
        draft.close()
        b.check_nothing_is_left()
