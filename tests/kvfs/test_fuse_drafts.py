"""Drafts over a pool in memory: their bytes, under every shortage and failure."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from blockdev.errors import DeviceError, DeviceGivenUp, DeviceLost, DeviceTimeout, NoSpace
from blockdev.types import ROOT, Descriptor
from kvfs.errors import NoFrames
from kvfs.frames import Arena, FrameCache, open_frames
from kvfs.fuse.drafts import Draft, DraftServices, FileAttributes
from kvfs.fuse.memory import DraftMemory
from kvfs.fuse.readers import Readers
from kvfs.fuse.versions import Versions
from kvfs.predecessors import Predecessors
from tests.kvfs.fake_pool import EXTENT, INLINE, FakePool

BROKEN = DeviceError("fake", errno.EIO, "broken")


@dataclass
class Bench:
    """A pool, its frames, and what drafts are made of."""

    pool: FakePool
    frames: FrameCache
    versions: Versions
    services: DraftServices
    readers: Readers

    def draft(self, name: bytes = b"f") -> Draft:
        draft = Draft(self.services, ROOT, name, FileAttributes(0o100644, 1, 2, 3, 3), writer=7)
        draft.content.dirty = True
        return draft

    def record(self, name: bytes = b"f") -> Descriptor:
        record = self.pool.lookup(ROOT, name)
        assert record is not None
        return record

    async def reopened(self, name: bytes = b"f") -> Draft:
        record = self.record(name)
        draft = Draft(self.services, ROOT, name, FileAttributes(record.mode, 1, 2, 3, 3), writer=7)
        await draft.start_from(record)
        return draft

    async def published(self, name: bytes = b"f") -> bytes:
        """What a reader of the name gets."""
        record = self.record(name)
        reader = await self.readers.open(record)
        try:
            return bytes(await reader.read(0, record.size + 1))
        finally:
            self.readers.close(reader)

    def check_nothing_is_left(self) -> None:
        assert not self.pool.reserved
        assert not self.pool.pins
        statistics = self.frames.statistics()
        assert statistics.pinned == 0


@asynccontextmanager
async def bench(*, frames: int = 8, drafts: int = 3, capacity: int = 1000) -> AsyncIterator[Bench]:
    pool = FakePool(capacity)
    arena = Arena(frames * EXTENT, EXTENT, huge_pages=False)
    async with open_frames(arena, pool, patience=0.1) as cache, trio.open_nursery() as nursery:
        versions = Versions(pool, cache)
        memory = DraftMemory(pool, cache, versions, nursery, limit=drafts, patience=1.0)
        services = DraftServices(pool, versions, memory, Predecessors(), lambda: 42)
        readers = Readers(pool, versions, whole_limit=4 * EXTENT, pinned_limit=frames // 2)
        yield Bench(pool, cache, versions, services, readers)


def pattern(length: int, seed: int = 1) -> bytes:
    return bytes((seed + position) % 251 for position in range(length))


@pytest.mark.parametrize("length", [0, 1, INLINE, INLINE + 1, 4096, 4097, EXTENT, EXTENT + 1, 7 * EXTENT + 5])
async def test_publishing(length):
    async with bench() as b:
        draft = b.draft()
        assert await draft.write(0, pattern(length)) == length
        assert await draft.publish()
        assert not await draft.publish()
        assert await b.published() == pattern(length)
        draft.close()
        b.check_nothing_is_left()


@pytest.mark.parametrize("when", ["before it was written", "after it was written"])
async def test_what_is_still_in_memory_leaves_a_lost_device(when):
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(2 * EXTENT))
        if when == "after it was written":
            await trio.testing.wait_all_tasks_blocked()
            assert b.pool.writes == 2
        b.pool.lost |= b.pool.reserved
        await draft.write(2 * EXTENT, pattern(EXTENT))
        assert await draft.publish()
        assert await b.published() == pattern(2 * EXTENT) + pattern(EXTENT)
        assert not b.pool.lost & {extent.ref for extent in b.record().extents}
        draft.close()
        b.check_nothing_is_left()


async def test_a_write_that_meets_the_loss_goes_elsewhere():
    async with bench() as b:
        draft = b.draft()
        b.pool.lose_at_write = True
        await draft.write(0, pattern(EXTENT))
        await trio.testing.wait_all_tasks_blocked()
        assert b.pool.lost
        assert await draft.publish()
        assert await b.published() == pattern(EXTENT)
        draft.close()
        b.check_nothing_is_left()


@pytest.mark.parametrize("length", [INLINE, EXTENT - 1, 2 * EXTENT + 1])
@pytest.mark.parametrize("when", ["the bytes", "the record"])
async def test_a_publication_that_meets_the_loss_is_made_again(when, length):
    """While a record is made ready, the bytes that it is about are on their way to where it says."""
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(length))
        if when == "the bytes":
            b.pool.lose_at_write = True
        else:
            b.pool.fail["publish"] = DeviceGivenUp("fake", errno.ETIMEDOUT, "lost", None)
        assert await draft.publish()
        assert await b.published() == pattern(length)
        assert not b.pool.lost & {extent.ref for extent in b.record().extents}
        draft.close()
        b.check_nothing_is_left()


async def test_what_is_not_in_memory_any_more_cannot_be_published_again():
    async with bench(drafts=1) as b:
        draft = b.draft()
        await draft.write(0, pattern(2 * EXTENT))
        b.pool.fail["publish"] = DeviceLost("fake", errno.ENODEV, "lost")
        with pytest.raises(DeviceLost):
            await draft.publish()
        with pytest.raises(DeviceLost):
            await draft.write(0, b"no")
        draft.close()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()


async def test_the_smallest_slots_that_serve_are_kept():
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(EXTENT + 5))
        await draft.publish()
        sizes = sorted(len(slot) for slot in b.pool.slots.values())
        assert sizes == [4096, EXTENT]
        draft.close()


async def test_no_smaller_slot_is_no_failure():
    async with bench(capacity=1) as b:
        draft = b.draft()
        await draft.write(0, pattern(4000))
        await draft.publish()
        assert await b.published() == pattern(4000)
        draft.close()


async def test_complete_extents_are_written_at_once():
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(EXTENT + 1))
        await trio.testing.wait_all_tasks_blocked()
        assert b.pool.writes == 1
        draft.linked = False
        draft.close()
        b.check_nothing_is_left()


async def test_room_is_taken_before_a_byte_is_accepted():
    async with bench(capacity=1) as b:
        draft = b.draft()
        with pytest.raises(NoSpace):
            await draft.write(EXTENT - 1, b"12")
        assert draft.size == 0
        for call in (draft.write(0, b"1"), draft.publish(), draft.truncate(0), draft.read(0, 1)):
            with pytest.raises(NoSpace):
                await call
        assert b.pool.lookup(ROOT, b"f") is None
        draft.close()
        b.check_nothing_is_left()


@pytest.mark.parametrize("call", ["write", "publish"])
async def test_a_failed_publication_poisons(call):
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(1000))
        b.pool.fail[call] = BROKEN
        for _ in range(2):
            with pytest.raises(DeviceError):
                await draft.publish()
        assert b.pool.lookup(ROOT, b"f") is None
        draft.close()
        b.check_nothing_is_left()


async def test_a_failed_write_in_the_background_poisons():
    async with bench() as b:
        draft = b.draft()
        b.pool.fail["write"] = BROKEN
        await draft.write(0, pattern(EXTENT))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(DeviceError):
            await draft.write(EXTENT, b"1")
        draft.close()
        b.check_nothing_is_left()


async def test_a_base_that_cannot_be_read_poisons():
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(EXTENT))
        await draft.publish()
        draft.close()
        b.frames.forget(e.ref for e in b.record().extents)
        draft = await b.reopened()
        await draft.write(1, b"1")
        b.pool.fail["read_extent"] = BROKEN
        with pytest.raises(DeviceError):
            await draft.publish()
        assert await b.published() == pattern(EXTENT)
        draft.close()
        b.check_nothing_is_left()


async def test_a_spilled_extent_that_comes_back_wrong_is_not_used():
    async with bench(drafts=1) as b:
        draft = b.draft()
        await draft.write(0, b"first")
        await draft.write(EXTENT, b"second")
        for ref in b.pool.reserved:
            b.pool.slots[ref][:] = bytes(EXTENT)
        with pytest.raises(Exception, match="other bytes"):
            await draft.write(1, b"1")
        draft.close()
        b.check_nothing_is_left()


async def test_a_victim_that_cannot_be_written_is_poisoned_and_gives_its_frame():
    async with bench(drafts=1) as b:
        victim, other = b.draft(b"victim"), b.draft(b"other")
        await victim.write(0, b"1")
        b.pool.fail["write"] = BROKEN
        await other.write(0, b"2")
        with pytest.raises(DeviceError):
            await victim.publish()
        await other.publish()
        for draft in (victim, other):
            draft.close()
        b.check_nothing_is_left()


class _Pending:
    """An I/O that a test ends."""

    def __init__(self) -> None:
        self.done = False
        self._callbacks: list[Callable[[], None]] = []

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def finish(self) -> None:
        self.done = True
        for callback in self._callbacks:
            callback()


async def test_a_frame_is_not_reused_while_a_write_may_still_read_it():
    async with bench() as b:
        draft, pending = b.draft(), _Pending()
        await draft.write(0, pattern(1000))
        b.pool.fail["write"] = DeviceTimeout("fake", errno.ETIMEDOUT, "late", pending)
        with pytest.raises(DeviceTimeout):
            await draft.publish()
        draft.close()
        assert b.frames.statistics().zombies == 1
        pending.finish()
        await trio.testing.wait_all_tasks_blocked()
        assert b.frames.statistics().zombies == 0
        b.check_nothing_is_left()


async def test_no_frame_in_time(autojump_clock):
    async with bench(drafts=1) as b:
        held = [await b.frames.allocate() for _ in range(8)]
        draft = b.draft()
        with pytest.raises(NoFrames):
            await draft.write(0, b"1")
        for frame in held:
            b.frames.unpin(frame)
        draft.close()
        b.check_nothing_is_left()


async def test_bytes_written_while_an_extent_is_saved_are_not_lost():
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(EXTENT))  # saving begins
        await draft.write(10, b"later")
        await trio.testing.wait_all_tasks_blocked()
        await draft.publish()
        expected = bytearray(pattern(EXTENT))
        expected[10:15] = b"later"
        assert await b.published() == expected
        draft.close()


async def test_an_extent_cut_off_while_it_is_saved():
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(2 * EXTENT))
        await draft.truncate(5)
        await draft.publish()
        assert await b.published() == pattern(5)
        draft.close()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()


async def test_a_saved_extent_that_is_cut_and_grows_again():
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(EXTENT))
        await trio.testing.wait_all_tasks_blocked()
        await draft.truncate(5)
        await draft.truncate(EXTENT)
        await draft.publish()
        assert await b.published() == pattern(5) + bytes(EXTENT - 5)
        draft.close()
        b.check_nothing_is_left()


async def test_versions_in_place_are_kept_apart():
    """An object that was changed in place keeps its identity; a reader of the old version must not get the new bytes."""
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(3 * EXTENT))
        await draft.publish()
        old = b.record()
        reader = await b.readers.open(old)
        lazy = Readers(b.pool, b.versions, whole_limit=0, pinned_limit=0)
        late = await lazy.open(old)
        await draft.write(EXTENT, b"new")
        await draft.publish()
        new = b.record()
        assert new.object_id == old.object_id
        changed = bytearray(pattern(3 * EXTENT))
        changed[EXTENT : EXTENT + 3] = b"new"
        assert await b.published() == changed
        for one in (reader, late):
            assert await one.read(0, 3 * EXTENT) == pattern(3 * EXTENT)
        assert await b.published() == changed
        b.readers.close(reader)
        lazy.close(late)
        draft.close()
        b.check_nothing_is_left()


async def test_predecessors():
    async with bench() as b:
        for name in (b"one", b"two", b"three"):
            draft = b.draft(name)
            await draft.publish()
            draft.close()
        links = [b.record(name).predecessor for name in (b"one", b"two", b"three")]
        assert links[0] == bytes(16)
        assert len(set(links)) == 3


async def test_many_drafts_in_few_frames():
    async with bench(frames=4, drafts=1) as b:
        drafts = [b.draft(b"%d" % number) for number in range(20)]

        async def use(number: int, draft: Draft) -> None:
            data = pattern(2 * EXTENT + number, number)
            for start in range(0, len(data), 5000):
                await draft.write(start, data[start : start + 5000])
            assert await draft.read(0, len(data)) == data
            await draft.publish()

        async with trio.open_nursery() as nursery:
            for number, draft in enumerate(drafts):
                nursery.start_soon(use, number, draft)
        for number, draft in enumerate(drafts):
            assert await b.published(b"%d" % number) == pattern(2 * EXTENT + number, number)
            draft.close()
        assert b.services.memory.spilled > 0
        b.check_nothing_is_left()


LENGTH = 4 * EXTENT
offsets = st.integers(0, LENGTH)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), offsets, st.integers(1, EXTENT + 5000), st.integers(0, 250)),
        st.tuples(st.just("truncate"), offsets),
        st.tuples(st.just("read"), offsets, st.integers(1, 2 * EXTENT)),
        st.tuples(st.just("publish")),
        st.tuples(st.just("abandon")),
    ),
    max_size=20,
)


@given(steps)
def test_any_sequence_of_changes(steps):
    """Writes, truncations, publications and changes that are never published, with two frames for all of it."""
    trio.run(_play, steps)


async def _play(steps: list[tuple[Any, ...]]) -> None:
    async with bench(frames=4, drafts=2) as b:
        draft, model, stored = b.draft(), bytearray(), None
        for step in steps:
            match step:
                case ("write", offset, length, seed):
                    await draft.write(offset, pattern(length, seed))
                    model.extend(bytes(max(0, offset + length - len(model))))
                    model[offset : offset + length] = pattern(length, seed)
                case ("truncate", size):
                    await draft.truncate(size)
                    del model[size:]
                    model.extend(bytes(size - len(model)))
                case ("read", offset, length):
                    assert bytes(await draft.read(offset, length)) == model[offset : offset + length]
                case ("publish",):
                    await draft.publish()
                    stored = bytes(model)
                case ("abandon",) if stored is not None:
                    draft.close()
                    draft, model = await b.reopened(), bytearray(stored)
            assert draft.size == len(model)
            if stored is not None:
                assert await b.published() == stored
        await draft.publish()
        assert await b.published() == model
        draft.close()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()


async def test_failures_at_the_edges_give_everything_back():
    async with bench(drafts=1) as b:
        draft = b.draft()
        await draft.write(0, pattern(1000))
        await draft.write(EXTENT, pattern(1000))  # spills the first
        await draft.truncate(1000)
        b.pool.fail["read_reserved"] = BROKEN  # the first is to move to a smaller slot
        with pytest.raises(DeviceError):
            await draft.publish()
        draft.close()
        b.check_nothing_is_left()


async def test_a_version_that_cannot_be_opened_is_not_kept():
    async with bench() as b:
        draft = b.draft()
        await draft.write(0, pattern(EXTENT))
        await draft.publish()
        draft.close()
        b.frames.forget(e.ref for e in b.record().extents)
        b.pool.fail["extents"] = BROKEN
        with pytest.raises(DeviceError):
            await b.reopened()
        b.pool.fail["read_extent"] = BROKEN
        with pytest.raises(DeviceError):
            await b.published()
        assert await b.published() == pattern(EXTENT)
        b.check_nothing_is_left()


async def test_a_late_read_of_an_old_version_keeps_its_frame():
    async with bench() as b:
        draft, pending = b.draft(), _Pending()
        await draft.write(0, pattern(3 * EXTENT))
        await draft.publish()
        lazy = Readers(b.pool, b.versions, whole_limit=0, pinned_limit=0)
        old = await lazy.open(b.record())
        await draft.write(0, b"new")
        await draft.publish()
        b.pool.fail["read_extent"] = DeviceTimeout("fake", errno.ETIMEDOUT, "late", pending)
        with pytest.raises(DeviceTimeout):
            await old.read(0, 10)
        assert b.frames.statistics().zombies == 1
        pending.finish()
        lazy.close(old)
        draft.close()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()


async def test_reads_wait_for_no_publication_and_are_right_throughout():
    """The same bytes are written, spilled and published over and over, while others read."""
    async with bench(frames=6, drafts=2) as b:
        data = pattern(3 * EXTENT + 700)
        draft = b.draft()
        await draft.write(0, data)
        await draft.publish()
        rng = random.Random(1)
        reading = True
        reads_while_locked = 0

        async def read() -> None:
            nonlocal reads_while_locked
            while reading:
                offset = rng.randrange(len(data))
                length = rng.randrange(1, 2 * EXTENT)
                assert bytes(await draft.read(offset, length)) == data[offset : offset + length]
                reads_while_locked += draft.lock.locked()
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read)
            for _ in range(30):
                for _ in range(3):
                    offset = rng.randrange(len(data))
                    await draft.write(offset, data[offset : offset + rng.randrange(1, EXTENT)])
                await draft.publish()
            reading = False
        assert reads_while_locked
        draft.close()
        await trio.testing.wait_all_tasks_blocked()
        b.check_nothing_is_left()
