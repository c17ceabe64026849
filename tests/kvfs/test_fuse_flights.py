"""Writes of whole extents that are begun where their last bytes came in, and awaited by whoever needs them."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from blockdev.errors import DeviceError, DeviceGivenUp, DeviceTimeout, Unavailable
from blockdev.types import PAGE, ROOT, SlotRef
from kvfs.fuse.drafts import Draft
from tests.kvfs.fake_pool import EXTENT
from tests.kvfs.test_fuse_drafts import Bench, _Pending, bench, pattern

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


def given_up(b: Bench, draft: Draft, *, is_back: bool = False) -> tuple[SlotRef, _Pending]:
    """Lose the device under the draft's first extent, which is still being written to.

    :param is_back: the device is there again before anybody has noticed
    """
    slot, pending = draft.content.extents[0].slot, _Pending()
    assert slot is not None
    if not is_back:
        b.pool.lost.add(slot)
    b.pool.fail["write"] = DeviceGivenUp("fake", errno.ETIMEDOUT, "it was given up", pending)
    return slot, pending


@pytest.mark.parametrize("is_back", [False, True])
async def test_one_that_is_given_up_goes_elsewhere_and_its_memory_waits_for_the_kernel(is_back):
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        slot, pending = given_up(b, draft, is_back=is_back)
        await draft.write(5, b"later")  # or it would be promised to be there
        assert await draft.publish()
        assert b.pool.writes == 1, "it is not written again where it may arrive late"
        changed = bytearray(pattern(EXTENT))
        changed[5:10] = b"later"
        b.frames.forget(e.ref for e in b.record().extents)
        assert await b.published() == bytes(changed)
        assert b.record().extents[0].ref != slot
        draft.close()
        assert b.frames.statistics().zombies == 1
        pending.finish()
        await trio.testing.wait_all_tasks_blocked()
        assert b.frames.statistics().zombies == 0
        b.check_nothing_is_left()


@pytest.mark.parametrize("extents", [1, 3])
async def test_a_publication_that_counts_on_one_that_is_given_up_is_made_again(extents):
    async with bench(drafts=4) as b:
        draft = await begun(b, pattern(extents * EXTENT))
        slot = draft.content.extents[0].slot
        b.pool.lose_at_write = True  # when the record is being made ready
        assert await draft.publish()
        assert b.pool.lost == {slot}
        assert await b.published() == pattern(extents * EXTENT)
        assert not b.pool.lost & {extent.ref for extent in b.record().extents}
        draft.close()
        b.check_nothing_is_left()


@pytest.mark.parametrize("is_back", [False, True])
async def test_what_may_arrive_late_is_not_where_a_record_says(is_back):
    """Also if it was made ready when nobody knew."""
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        slot, pending = given_up(b, draft, is_back=is_back)
        assert await draft.publish()
        assert b.record().extents[0].ref != slot
        b.frames.forget(e.ref for e in b.record().extents)
        assert await b.published() == pattern(EXTENT)
        draft.close()
        pending.finish()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()


async def test_what_was_promised_to_nobody_yet_may_go_elsewhere():
    """The loss is met before there is a record: of several extents, some have been settled."""
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        slot = draft.content.extents[0].slot
        assert slot is not None
        await draft.write(EXTENT, pattern(PAGE))  # which moves to a smaller slot

        reserve = b.pool.reserve

        async def lose(length: int) -> SlotRef:
            b.pool.reserve = reserve  # type: ignore[method-assign]
            b.pool.lost.add(slot)
            raise Unavailable("the device is lost")

        b.pool.reserve = lose  # type: ignore[method-assign]
        assert await draft.publish()
        assert await b.published() == pattern(EXTENT) + pattern(PAGE)
        assert slot not in {extent.ref for extent in b.record().extents}
        draft.close()
        b.check_nothing_is_left()


async def test_none_is_begun_on_a_device_that_is_lost():
    async with bench() as b:
        b.pool.begins = True
        draft = b.draft()
        await draft.write(0, pattern(EXTENT)[:-1])
        b.pool.lost |= b.pool.reserved
        await draft.write(EXTENT - 1, pattern(EXTENT)[-1:])
        assert draft.content.extents[0].flight is None
        await trio.testing.wait_all_tasks_blocked()
        assert b.pool.writes == 1
        assert await draft.publish()
        assert await b.published() == pattern(EXTENT)
        assert not b.pool.lost & {extent.ref for extent in b.record().extents}
        draft.close()
        b.check_nothing_is_left()


async def test_one_that_met_its_deadline_is_not_tried_again():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        b.pool.fail["write"] = DeviceTimeout("fake", errno.ETIMEDOUT, "late", None)
        with pytest.raises(DeviceTimeout):
            await draft.publish()
        assert b.pool.lookup(ROOT, b"f") is None
        draft.close()
        b.check_nothing_is_left()


async def test_a_file_that_is_closed_has_its_memory_kept_until_the_kernel_is_done():
    async with bench() as b:
        draft = await begun(b, pattern(EXTENT))
        _, pending = given_up(b, draft)
        draft.close()
        await trio.testing.wait_all_tasks_blocked()
        assert b.frames.statistics().zombies == 1
        pending.finish()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()


async def test_the_memory_of_one_that_is_given_up_is_passed_on_when_its_bytes_are_elsewhere():
    async with bench(drafts=1) as b:
        draft = await begun(b, pattern(EXTENT))
        slot, pending = given_up(b, draft)
        other = b.draft(b"other")
        await other.write(0, b"x")  # takes the frame
        assert b.services.memory.spilled == 1
        assert b.frames.statistics().zombies == 1
        pending.finish()
        assert await draft.publish()
        assert await b.published() == pattern(EXTENT)
        assert b.record().extents[0].ref != slot
        other.linked = False
        for one in (draft, other):
            one.close()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()


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
