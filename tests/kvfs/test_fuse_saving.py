"""How the bytes of drafts get to their slots: in parts, early, again, and beside the making of a record."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from blockdev.errors import DeviceError, DeviceGivenUp, DeviceTimeout
from blockdev.types import PAGE, SlotRef
from kvfs.fuse import saving
from kvfs.fuse.content import DraftContent, DraftExtent
from tests.kvfs.fake_pool import EXTENT, FakePool
from tests.kvfs.test_fuse_drafts import _Pending, bench, pattern
from tests.kvfs.test_fuse_intake import Trio, lane_write, put, with_lane

BROKEN = DeviceError("fake", errno.EIO, "broken")


class Writes:
    """What is written to a pool's slots; holds writes up until `go`."""

    def __init__(self, pool: FakePool) -> None:
        self.begun: list[tuple[int, int]] = []
        self.go = trio.Event()
        self.go.set()
        self._write = pool.write
        pool.write = self.write  # type: ignore[method-assign]

    async def write(self, ref: SlotRef, data: memoryview, at: int = 0) -> None:
        self.begun.append((at, at + len(data)))
        await self.go.wait()
        await self._write(ref, data, at)

    def hold(self) -> None:
        self.go = trio.Event()


@pytest.fixture
def page_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents here have four pages: a part is one."""
    monkeypatch.setattr(saving, "PART", PAGE)


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.usefixtures("page_parts")
class TestParts:
    async def test_what_has_arrived_is_sent_while_the_rest_still_arrives(self):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            data = pattern(EXTENT)
            for start in range(0, EXTENT, PAGE):
                await draft.write(start, data[start : start + PAGE])
                await settled()
            assert writes.begun == [(start, start + PAGE) for start in range(0, EXTENT, PAGE)]
            await draft.publish()
            assert len(writes.begun) == 4
            b.frames.forget(e.ref for e in b.record().extents)
            assert await b.published() == data
            draft.close()
            b.check_nothing_is_left()

    async def test_a_busy_device_gets_fewer_and_larger_writes(self):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            writes.hold()
            data = pattern(EXTENT)
            for start in range(0, EXTENT, PAGE):
                await draft.write(start, data[start : start + PAGE])
                await settled()
            writes.go.set()
            await draft.publish()
            assert writes.begun == [(0, PAGE), (PAGE, EXTENT)]
            draft.close()

    async def test_parts_out_of_order_wait_for_what_is_before_them(self):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            data = pattern(EXTENT)
            for number in (2, 1, 0, 3):
                await draft.write(number * PAGE, data[number * PAGE : (number + 1) * PAGE])
                await settled()
            assert writes.begun == [(0, 3 * PAGE), (3 * PAGE, EXTENT)]
            await draft.publish()
            b.frames.forget(e.ref for e in b.record().extents)
            assert await b.published() == data
            draft.close()

    @pytest.mark.parametrize("at", [0, PAGE - 1, PAGE, 2 * PAGE + 5])
    async def test_what_is_written_again_is_sent_again(self, at):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            await draft.write(0, pattern(2 * PAGE))
            await settled()
            await draft.write(at, b"again")
            await draft.publish()
            expected = bytearray(pattern(2 * PAGE)) + bytes(max(0, at + 5 - 2 * PAGE))
            expected[at : at + 5] = b"again"
            b.frames.forget(e.ref for e in b.record().extents)
            assert await b.published() == expected
            assert writes.begun[-1][0] == min(at // PAGE, 2) * PAGE
            draft.close()
            b.check_nothing_is_left()

    async def test_what_changes_while_it_is_sent_is_sent_again(self):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            writes.hold()
            await draft.write(0, pattern(3 * PAGE))
            await settled()
            assert writes.begun == [(0, 3 * PAGE)]
            await draft.write(PAGE + 1, b"late")
            writes.go.set()
            await draft.publish()
            expected = bytearray(pattern(3 * PAGE))
            expected[PAGE + 1 : PAGE + 5] = b"late"
            b.frames.forget(e.ref for e in b.record().extents)
            assert await b.published() == expected
            assert writes.begun[-1] == (PAGE, 3 * PAGE)
            draft.close()

    async def test_a_file_cut_off_in_what_was_sent_and_grown_again(self):
        async with bench() as b:
            Writes(b.pool)
            draft = b.draft()
            await draft.write(0, pattern(3 * PAGE))
            await settled()
            await draft.truncate(PAGE + 10)
            await draft.truncate(2 * PAGE + 1)
            await draft.publish()
            b.frames.forget(e.ref for e in b.record().extents)
            assert await b.published() == pattern(3 * PAGE)[: PAGE + 10] + bytes(PAGE - 9)
            draft.close()
            b.check_nothing_is_left()

    async def test_a_part_that_fails_poisons(self):
        async with bench() as b:
            draft = b.draft()
            b.pool.fail["write"] = BROKEN
            await draft.write(0, pattern(PAGE))
            await settled()
            for call in (draft.write(PAGE, b"1"), draft.publish(), draft.truncate(0)):
                with pytest.raises(DeviceError):
                    await call
            assert b.pool.lookup(draft.directory, b"f") is None
            draft.close()
            b.check_nothing_is_left()

    async def test_a_part_that_may_arrive_late_keeps_its_frame(self):
        async with bench() as b:
            draft, pending = b.draft(), _Pending()
            b.pool.fail["write"] = DeviceTimeout("fake", errno.ETIMEDOUT, "late", pending)
            await draft.write(0, pattern(PAGE))
            await settled()
            draft.close()
            assert b.frames.statistics().zombies == 1
            pending.finish()
            await settled()
            b.check_nothing_is_left()

    async def test_a_draft_that_goes_while_a_part_is_sent(self):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            writes.hold()
            await draft.write(0, pattern(PAGE))
            await settled()
            draft.close()
            assert b.pool.reserved, "it is written into"
            assert b.frames.statistics().pinned == 1
            writes.go.set()
            await settled()
            b.check_nothing_is_left()

    async def test_a_spilled_extent_goes_on_from_what_was_sent(self):
        async with bench(drafts=1) as b:
            writes, draft, other = Writes(b.pool), b.draft(), b.draft(b"other")
            await draft.write(0, pattern(PAGE + 7))
            await settled()
            await other.write(0, b"x")  # takes the frame
            await draft.write(PAGE + 7, pattern(2 * PAGE, 9))
            await draft.publish()
            assert (0, PAGE) in writes.begun
            assert await b.published() == pattern(PAGE + 7) + pattern(2 * PAGE, 9)
            for one in (draft, other):
                one.linked = False
                one.close()
            b.check_nothing_is_left()


async def test_threads_put_parts_there_in_any_order(monkeypatch):
    from kvfs.fuse import intake

    monkeypatch.setattr(intake, "PART", PAGE)
    monkeypatch.setattr(saving, "PART", PAGE)
    async with bench() as b:
        soon = Trio()
        writes, draft = Writes(b.pool), with_lane(b, soon).draft()
        await draft.prepare()
        data = pattern(EXTENT)
        for number in (1, 0, 3, 2):
            assert lane_write(draft.content.intake, number * PAGE, data[number * PAGE : (number + 1) * PAGE])
            soon.run()
            await settled()
        assert writes.begun == [(0, 2 * PAGE), (2 * PAGE, EXTENT)]
        await draft.publish()
        b.frames.forget(e.ref for e in b.record().extents)
        assert await b.published() == data
        draft.close()
        b.check_nothing_is_left()


async def test_a_thread_that_is_still_inside_makes_what_was_sent_void(monkeypatch):
    """It began before a part was sent, in the same bytes, and leaves after that."""
    monkeypatch.setattr(saving, "PART", PAGE)
    async with bench() as b:
        soon = Trio()
        writes, draft = Writes(b.pool), with_lane(b, soon).draft()
        await draft.prepare()
        slow = draft.content.intake.enter(0)
        assert slow is not None
        assert lane_write(draft.content.intake, 0, pattern(2 * PAGE))
        draft.catch_up()
        await settled()
        assert writes.begun == [(0, 2 * PAGE)]
        put(slow, 5, b"slow")
        draft.content.intake.leave(slow, 5, 9, 1)
        await draft.publish()
        expected = bytearray(pattern(2 * PAGE))
        expected[5:9] = b"slow"
        b.frames.forget(e.ref for e in b.record().extents)
        assert await b.published() == expected
        draft.close()


class TestPublishing:
    @pytest.mark.parametrize("length", [EXTENT, EXTENT + 3 * PAGE, 2 * PAGE])
    async def test_the_record_is_made_ready_while_bytes_are_on_their_way(self, length):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            asked: list[bool] = []
            step = b.pool._step

            async def note(name: str) -> None:
                if name == "publish":
                    asked.append(writes.go.is_set())
                await step(name)

            b.pool._step = note  # type: ignore[method-assign]
            writes.hold()
            await draft.write(0, pattern(length))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(draft.publish)
                await settled()
                assert asked == [False]
                assert b.pool.lookup(draft.directory, b"f") is None
                writes.go.set()
            b.frames.forget(e.ref for e in b.record().extents)
            assert await b.published() == pattern(length)
            draft.close()
            b.check_nothing_is_left()

    async def test_bytes_that_fail_on_their_way_are_never_published(self):
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            writes.hold()
            await draft.write(0, pattern(2 * EXTENT))
            failed: list[Exception] = []

            async def publish() -> None:
                try:
                    await draft.publish()
                except DeviceError as error:
                    failed.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                await settled()
                b.pool.fail["write"] = BROKEN
                writes.go.set()
            assert failed == [BROKEN]
            assert b.pool.lookup(draft.directory, b"f") is None
            with pytest.raises(DeviceError):
                await draft.publish()
            draft.close()
            b.check_nothing_is_left()

    @pytest.mark.parametrize("is_back", [False, True])
    async def test_bytes_that_are_given_up_on_their_way_are_published_from_elsewhere(self, is_back):
        """Their memory is kept until the kernel has done with it; their slot is not used, even if its device is back."""
        async with bench() as b:
            writes, draft, pending = Writes(b.pool), b.draft(), _Pending()
            writes.hold()
            await draft.write(0, pattern(EXTENT))
            slot = draft.content.extents[0].slot
            assert slot is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(draft.publish)
                await settled()
                if not is_back:
                    b.pool.lost.add(slot)
                b.pool.fail["write"] = DeviceGivenUp("fake", errno.ETIMEDOUT, "given up", pending)
                writes.go.set()
            b.frames.forget(e.ref for e in b.record().extents)
            assert await b.published() == pattern(EXTENT)
            assert b.record().extents[0].ref != slot
            draft.close()
            assert b.frames.statistics().zombies == 1
            pending.finish()
            await settled()
            assert b.frames.statistics().zombies == 0
            b.check_nothing_is_left()

    async def test_what_was_cut_short_in_the_background_is_written_by_who_publishes(self):
        """The mount ends: its tasks are cancelled, what is being written is published all the same."""
        async with bench() as b:
            writes, draft = Writes(b.pool), b.draft()
            writes.hold()
            await draft.write(0, pattern(EXTENT))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(draft.publish)
                await settled()
                b.services.memory._nursery.cancel_scope.cancel()
                writes.go.set()
            assert b.pool.lookup(draft.directory, b"f") is not None
            draft.close()


def test_an_extent_knows_from_where_on_it_must_be_sent_again() -> None:
    extent = DraftExtent(DraftContent(EXTENT), 0, SlotRef(*(0, 0, 0, 0)))  # type: ignore[arg-type]
    extent.sent, extent.reach = 2 * PAGE, 3 * PAGE
    extent.note(2 * PAGE + 1, 2 * PAGE + 2)
    assert (extent.sent, extent.reach) == (2 * PAGE, 2 * PAGE)
    extent.note(PAGE - 1, PAGE)
    assert (extent.sent, extent.reach) == (0, 0)
