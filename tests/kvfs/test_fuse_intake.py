"""Bytes that other threads put into drafts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from kvfs.fuse.content import DraftContent, DraftExtent
from kvfs.fuse.intake import Intake, Place
from tests.kvfs.fake_pool import EXTENT
from tests.kvfs.test_fuse_drafts import Bench, bench, pattern


class Trio:
    """Calls that the trio thread was asked for."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def __call__(self, function: Callable[..., object], *arguments: Any) -> None:
        self.calls.append(lambda: function(*arguments))

    def run(self) -> int:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        return len(calls)


def put(place: Place, start: int, data: bytes) -> None:
    ctypes.memmove(place.address + start, data, len(data))


def lane_write(intake: Intake, offset: int, data: bytes, time_ns: int = 7) -> bool:
    """What a thread of the lane does with a WRITE; whether it was let in."""
    index, start = divmod(offset, EXTENT)
    place = intake.enter(index)
    if place is None:
        return False
    put(place, start, data)
    if intake.leave(place, start, start + len(data), time_ns):
        intake.send(place.extent)
    return True


def with_lane(b: Bench, soon: Trio) -> Bench:
    object.__setattr__(b.services, "soon", soon)
    return b


class TestIntake:
    def extent(self, soon: Trio | None, **hooks: Any) -> DraftExtent:
        content = DraftContent(EXTENT, Intake(soon, **hooks))
        extent = DraftExtent(content, 0, None)  # type: ignore[arg-type]
        from kvfs.frame_table import Frame

        extent.frame = Frame(memoryview(bytearray(EXTENT)))
        return extent

    def test_nobody_gets_in_before_it_is_open(self):
        extent = self.extent(Trio())
        assert extent.owner.intake.enter(0) is None
        extent.owner.intake.open(extent)
        assert extent.owner.intake.enter(1) is None
        assert extent.owner.intake.enter(0) is not None

    def test_nobody_gets_in_where_no_threads_are(self):
        extent = self.extent(None)
        extent.owner.intake.open(extent)
        assert not extent.owner.intake.serves
        assert extent.owner.intake.enter(0) is None

    def test_who_shuts_it_is_called_when_the_last_has_left(self):
        soon = Trio()
        told: list[int] = []
        extent = self.extent(soon)
        intake = extent.owner.intake
        intake.open(extent)
        first, second = intake.enter(0), intake.enter(0)
        assert first is not None
        assert second is not None
        assert not intake.shut(extent, lambda: told.append(1))
        assert intake.enter(0) is None
        intake.open(extent)  # too early: it stays shut
        assert intake.enter(0) is None
        intake.leave(first, 0, 1, 1)
        assert not soon.run()
        intake.leave(second, 1, 2, 2)
        assert soon.run() == 1
        assert told == [1]
        assert intake.shut(extent, lambda: told.append(2))
        intake.open(extent)
        assert intake.enter(0) is not None

    def test_closing_is_for_good(self):
        extent = self.extent(Trio())
        intake = extent.owner.intake
        intake.open(extent)
        intake.close()
        assert intake.enter(0) is None
        assert intake.shut(extent, lambda: None)
        intake.open(extent)
        assert intake.enter(0) is None

    def test_notes_are_taken_once(self):
        extent = self.extent(Trio())
        intake = extent.owner.intake
        intake.open(extent)
        assert lane_write(intake, 0, b"abc", 5)
        assert [(note.start, note.stop, note.time_ns) for note in intake.take()] == [(0, 3, 5)]
        assert not intake.take()

    def test_it_is_told_when_an_extent_may_be_whole(self):
        soon = Trio()
        whole: list[DraftExtent] = []
        extent = self.extent(soon, on_more=whole.append)
        intake = extent.owner.intake
        intake.open(extent)
        lane_write(intake, 0, bytes(EXTENT - 1))
        assert not soon.run()
        lane_write(intake, EXTENT - 1, b"1")
        assert soon.run() == 1
        assert whole == [extent]

    def test_notes_for_what_was_cut_off_are_dropped(self):
        extent = self.extent(Trio())
        content = extent.owner
        content.intake.open(extent)
        lane_write(content.intake, 0, b"abc")
        extent.dead = True
        assert not content.catch_up()
        assert content.size == 0


class TestDrafts:
    async def test_what_threads_wrote_is_published(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            assert lane_write(draft.content.intake, 0, pattern(EXTENT), 1234)
            assert draft.size == EXTENT
            assert draft.dirty
            assert draft.attributes.mtime_ns == 1234
            assert await draft.publish()
            assert await b.published() == pattern(EXTENT)
            assert not lane_write(draft.content.intake, 0, b"late")
            draft.close()
            b.check_nothing_is_left()

    async def test_a_time_that_was_set_after_a_write_stays(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            assert lane_write(draft.content.intake, 0, b"1", 1234)
            draft.set_mtime(99)
            assert draft.size == 1
            assert draft.attributes.mtime_ns == 99
            draft.close()

    async def test_what_was_prepared_and_not_used_is_given_back(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            assert b.pool.reserved
            assert draft.size == 0
            await draft.publish()
            assert await b.published() == b""
            assert not b.pool.reserved
            draft.close()
            b.check_nothing_is_left()

    async def test_closing_gives_back_what_was_prepared(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            draft.close()
            b.check_nothing_is_left()

    async def test_a_write_that_waits_uses_what_was_prepared(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            await draft.write(EXTENT - 1, b"12")
            assert len(b.pool.reserved) == 3  # the third is prepared for what comes next
            await draft.publish()
            assert await b.published() == bytes(EXTENT - 1) + b"12"
            draft.close()
            b.check_nothing_is_left()

    async def test_room_that_was_only_prepared_is_no_reason_for_no_space(self):
        async with bench(capacity=1) as b:
            idle = with_lane(b, Trio()).draft(b"idle")
            await idle.prepare()
            draft = b.draft(b"f")
            await draft.write(0, pattern(EXTENT))
            draft.close()
            idle.close()
            b.check_nothing_is_left()

    async def test_frames_that_were_only_prepared_serve_others(self):
        async with bench(drafts=2) as b:
            with_lane(b, Trio())
            drafts = [b.draft(b"%d" % n) for n in range(4)]
            for draft in drafts:
                await draft.prepare()
            for number, draft in enumerate(drafts):
                await draft.write(0, pattern(EXTENT, number))
            for number, draft in enumerate(drafts):
                await draft.publish()
                assert await b.published(b"%d" % number) == pattern(EXTENT, number)
                draft.close()
            b.check_nothing_is_left()

    async def test_a_publication_waits_for_who_is_inside(self):
        import trio

        async with bench() as b, trio.open_nursery() as nursery:
            soon = Trio()
            draft = with_lane(b, soon).draft()
            await draft.prepare()
            assert lane_write(draft.content.intake, 0, b"ab")
            place = draft.content.intake.enter(0)
            assert place is not None
            nursery.start_soon(draft.publish)
            await trio.testing.wait_all_tasks_blocked()
            assert draft.content.intake.enter(0) is None
            put(place, 2, b"cd")
            draft.content.intake.leave(place, 2, 4, 8)
            soon.run()
            await trio.testing.wait_all_tasks_blocked()
            assert await b.published() == b"abcd"
            draft.close()

    async def test_gaps_are_filled_without_touching_what_threads_write(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            assert lane_write(draft.content.intake, 100, b"x" * 100)
            assert bytes(await draft.read(0, 200)) == bytes(100) + b"x" * 100
            assert not lane_write(draft.content.intake, 0, b"y"), "filled in, it is shut"
            await draft.write(0, b"y")
            assert lane_write(draft.content.intake, 1, b"z"), "the write that waited opened it"
            assert bytes(await draft.read(0, 3)) == b"yz\0"
            draft.close()

    async def test_truncation(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            assert lane_write(draft.content.intake, 0, pattern(2 * 4096))
            await draft.truncate(4096)
            assert not lane_write(draft.content.intake, 0, b"y")
            await draft.truncate(2 * 4096)
            await draft.publish()
            assert await b.published() == pattern(4096) + bytes(4096)
            draft.close()
            b.check_nothing_is_left()

    async def test_a_poisoned_draft_lets_nobody_in(self):
        async with bench() as b:
            draft = with_lane(b, Trio()).draft()
            await draft.prepare()
            draft.content.fail(OSError(5, "x"))
            assert not lane_write(draft.content.intake, 0, b"y")
            with pytest.raises(OSError, match="x"):
                await draft.write(0, b"y")
            draft.close()
            b.check_nothing_is_left()

    async def test_the_next_extent_is_made_ready_when_one_is_half_written(self):
        import trio

        async with bench() as b:
            soon = Trio()
            draft = with_lane(b, soon).draft()
            await draft.write(EXTENT, b"1")  # from here on it is read from front to back
            assert lane_write(draft.content.intake, 2 * EXTENT, pattern(EXTENT // 2 + 1))
            assert soon.run() == 1
            await trio.testing.wait_all_tasks_blocked()
            assert lane_write(draft.content.intake, 3 * EXTENT, b"1")
            draft.close()
            b.check_nothing_is_left()

    async def test_a_draft_that_goes_while_a_thread_is_inside_keeps_its_frame_until_it_leaves(self):
        async with bench() as b:
            soon = Trio()
            draft = with_lane(b, soon).draft()
            await draft.prepare()
            place = draft.content.intake.enter(0)
            assert place is not None
            draft.close()
            assert b.frames.statistics().pinned == 1
            draft.content.intake.leave(place, 0, 1, 1)
            soon.run()
            b.check_nothing_is_left()
