"""The DRAM tier: coalescing, cancellation, order of arrival, time-outs whose I/O returns late, nothing lost."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from blockdev.errors import ChecksumError, DeviceTimeout
from blockdev.testing.faults import LatePending
from blockdev.types import (
    PAGE,
    Descriptor,
    DeviceNo,
    Epoch,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotAddress,
    SlotNo,
    SlotRef,
)
from kvfs.errors import FramesClosed, NoFrames
from kvfs.frames import Arena, Frame, FrameCache, open_frames
from tests.forking import in_child


def an_object(number: int) -> Descriptor:
    return Descriptor(
        kind=Kind.HEAD,
        address=SlotAddress(DeviceNo(0), RegionNo(0), SlotNo(number)),
        epoch=Epoch(1),
        generation=Generation(1),
        sequence=1,
        object_id=ObjectId(number.to_bytes(16, "big")),
    )


def slot(thing: Descriptor, index: int) -> SlotRef:
    """Where an extent of it is."""
    return SlotRef(DeviceNo(0), RegionNo(1), SlotNo(thing.address.slot * 100 + index), Generation(1))


def slots(thing: Descriptor, count: int) -> list[SlotRef]:
    return [slot(thing, index) for index in range(count)]


def extent(thing: Descriptor, index: int) -> tuple[Descriptor, int, SlotRef]:
    return thing, index, slot(thing, index)


A, B, C, D = (an_object(number) for number in range(1, 5))


class Source:
    """Extents whose bytes name them; reads take `delay` seconds and fail as scripted."""

    def __init__(self, delay: float = 1.0) -> None:
        self.delay = delay
        self.reads: Counter[tuple[bytes, int]] = Counter()
        self.failures: list[Exception] = []
        self.ended = 0

    async def read_extent(self, descriptor: Descriptor, index: int, into: memoryview, /) -> int:
        self.reads[descriptor.object_id, index] += 1
        if self.delay:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.delay)
        self.ended += 1
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.failures:
            raise self.failures.pop(0)
        content = content_of(descriptor.object_id, index)
        into[: len(content)] = content
        return len(content)


def content_of(object_id: bytes, index: int) -> bytes:
    return object_id + index.to_bytes(4, "big")


def content(frame: Frame) -> bytes:
    return bytes(frame.view[: frame.length])


def timed_out(pending: LatePending | None) -> DeviceTimeout:
    return DeviceTimeout("disk", 110, "read timed out", pending)


@asynccontextmanager
async def tier(frames: int, source: Source | None = None, **options: Any):
    arena = Arena(frames * PAGE, PAGE, huge_pages=False)
    async with open_frames(arena, source or Source(), **options) as cache:
        yield cache
        whole(cache)


def whole(cache: FrameCache) -> None:
    """No frame is in two places or in none."""
    now = cache.statistics()
    assert now.free + now.idle + now.pinned + now.zombies == now.frames
    assert min(now.free, now.idle, now.pinned, now.zombies) >= 0
    assert not now.waiting or now.free + now.idle == 0


# -- arena


@pytest.mark.parametrize("huge_pages", [True, False])
def test_arena_is_aligned_writable_and_apart(huge_pages):
    arena = Arena(5 * PAGE + 17, PAGE, huge_pages=huge_pages)
    assert arena.size == 5 * PAGE
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in arena.views]
    assert [address - addresses[0] for address in addresses] == [i * PAGE for i in range(5)]
    assert addresses[0] % PAGE == 0
    for number, view in enumerate(arena.views):
        view[:] = bytes([number]) * PAGE
    assert [view[-1] for view in arena.views] == list(range(5))


@pytest.mark.parametrize("size, frame_size", [(PAGE, 2 * PAGE), (4 * PAGE, 1000), (4 * PAGE, 0)])
def test_arena_refuses_what_it_cannot_cut(size, frame_size):
    with pytest.raises(ValueError, match=r"hold|multiple"):
        Arena(size, frame_size)


def test_arena_works_where_the_kernel_knows_no_advice(monkeypatch):
    for name in ("_MADV_WIPEONFORK", "_MADV_POPULATE_WRITE"):
        monkeypatch.setattr(f"rdma.host_memory.{name}", 9999)
    arena = Arena(3 * PAGE, PAGE)
    arena.views[2][:] = bytes([1]) * PAGE


def test_memory_outlives_the_arena_while_a_view_is_held():
    view = Arena(2 * PAGE, PAGE).views[1]
    view[:4] = b"kvfs"
    assert bytes(view[:4]) == b"kvfs"


# -- get


async def test_get_loads_once_and_then_finds(autojump_clock):
    source = Source()
    async with tier(4, source) as cache:
        frame = await cache.get(*extent(A, 0))
        assert content(frame) == content_of(A.object_id, 0)
        start = trio.current_time()
        assert await cache.get(*extent(A, 0)) is frame
        assert trio.current_time() == start
        assert frame.pins == 2
        assert source.reads == {(A.object_id, 0): 1}
        assert cache.peek(slot(A, 1)) is None
        cache.unpin(frame)
        cache.unpin(frame)
        assert cache.statistics().idle == 1
        assert cache.peek(slot(A, 0)) is frame
        cache.unpin(frame)
        now = cache.statistics()
        assert (now.hits, now.misses, now.bytes_loaded) == (2, 1, len(content_of(A.object_id, 0)))


async def test_resident_get_has_no_checkpoint():
    async with tier(2, Source(0)) as cache:
        frame = await cache.get(*extent(A, 0))
        with trio.CancelScope() as scope:
            scope.cancel()
            assert await cache.get(*extent(A, 0)) is frame
            cache.unpin(frame)
        assert not scope.cancelled_caught
        cache.unpin(frame)


async def test_a_child_process_finds_nothing():
    async with tier(2, Source(0)) as cache:
        frame = await cache.get(*extent(A, 0))
        cache.unpin(frame)
        assert in_child(lambda: cache.peek(slot(A, 0)) is None)
        assert cache.peek(slot(A, 0)) is frame
        cache.unpin(frame)


async def test_concurrent_gets_share_one_read(autojump_clock):
    source = Source()
    got: list[Frame] = []

    async def reader() -> None:
        got.append(await cache.get(*extent(A, 3)))

    async with tier(4, source) as cache:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(reader)
        assert len(set(got)) == 1
        assert got[0].pins == 5
        assert source.reads == {(A.object_id, 3): 1}
        assert cache.statistics().coalesced == 4
        for frame in got:
            cache.unpin(frame)
        assert cache.statistics().idle == 1


@pytest.mark.parametrize("first", [True, False])
async def test_cancelling_one_reader_leaves_the_others(first, autojump_clock):
    source = Source(delay=10)
    got: list[Frame] = []

    async def patient() -> None:
        got.append(await cache.get(*extent(A, 0)))

    async def impatient() -> None:
        with trio.move_on_after(1) as scope:
            await cache.get(*extent(A, 0))
        assert scope.cancelled_caught

    async with tier(4, source) as cache:
        async with trio.open_nursery() as nursery:
            for reader in (impatient, patient) if first else (patient, impatient):
                nursery.start_soon(reader)
                await wait_all_tasks_blocked()
        assert source.reads == {(A.object_id, 0): 1}
        assert got[0].pins == 1
        cache.unpin(got[0])
        assert cache.statistics().idle == 1


async def test_read_that_nobody_waits_for_any_more_is_kept(autojump_clock):
    source = Source(delay=10)
    async with tier(4, source) as cache:
        with trio.move_on_after(1):
            await cache.get(*extent(A, 0))
        await trio.sleep(20)
        frame = cache.peek(slot(A, 0))
        assert frame is not None
        assert frame.pins == 1
        cache.unpin(frame)


async def test_cancelled_in_the_moment_of_delivery_loses_no_pin(autojump_clock):
    async with tier(4, Source(delay=5)) as cache:
        for start in range(20):
            with trio.move_on_after(5):
                cache.unpin(await cache.get(*extent(an_object(start), 0)))
        await trio.sleep(10)
        now = cache.statistics()
        assert (now.pinned, now.zombies, now.loading) == (0, 0, 0)


async def test_reader_that_comes_when_the_only_waiter_has_just_left_begins_anew(autojump_clock):
    source = Source()
    async with tier(1, source, patience=100) as cache:
        held = await cache.allocate()

        async def release() -> None:
            await trio.sleep(5)
            cache.unpin(held)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(release)
            with trio.move_on_after(1):
                await cache.get(*extent(A, 0))
            cache.unpin(await cache.get(*extent(A, 0)))
        assert source.reads == {(A.object_id, 0): 1}


async def test_abandoned_request_for_a_frame_gives_back_what_it_was_handed(autojump_clock):
    async with tier(1, patience=100) as cache:
        held = await cache.allocate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.get, *extent(A, 0))
            await wait_all_tasks_blocked()
            cache.unpin(held)  # handed to the load, which has not run yet
            nursery.cancel_scope.cancel()
        await trio.sleep(10)
        now = cache.statistics()
        assert (now.pinned, now.waiting, now.loading) == (0, 0, 0)


async def test_failure_reaches_every_reader_and_is_not_remembered(autojump_clock):
    source = Source()
    source.failures = [ChecksumError("differs")]
    failed: list[int] = []

    async def reader() -> None:
        with pytest.raises(ChecksumError):
            await cache.get(*extent(A, 0))
        failed.append(1)

    async with tier(4, source) as cache:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            nursery.start_soon(reader)
        assert len(failed) == 2
        now = cache.statistics()
        assert (now.free, now.failed_loads) == (4, 1)
        cache.unpin(await cache.get(*extent(A, 0)))


# -- late I/O


@pytest.mark.parametrize("in_thread", [True, False])
async def test_frame_of_a_timed_out_read_waits_for_its_io(in_thread, autojump_clock):
    pending = LatePending()
    source = Source()
    source.failures = [timed_out(pending)]
    async with tier(1, source) as cache:
        with pytest.raises(DeviceTimeout):
            await cache.get(*extent(A, 0))
        assert cache.statistics().zombies == 1
        with pytest.raises(NoFrames):
            await cache.allocate()
        with pytest.raises(NoFrames):
            await cache.get(*extent(B, 0))
        if in_thread:
            thread = threading.Thread(target=pending.finish)
            thread.start()
            thread.join()
        else:
            pending.finish()
        frame = await cache.get(*extent(A, 0))
        assert content(frame) == content_of(A.object_id, 0)
        cache.unpin(frame)
        assert cache.statistics().zombies == 0


async def test_late_io_hands_its_frame_to_who_waits(autojump_clock):
    pending = LatePending()
    source = Source()
    source.failures = [timed_out(pending)]
    async with tier(1, source, patience=100) as cache:
        with pytest.raises(DeviceTimeout):
            await cache.get(*extent(A, 0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.get, *extent(B, 0))
            await wait_all_tasks_blocked()
            assert cache.statistics().waiting == 1
            pending.finish()
        frame = cache.peek(slot(B, 0))
        assert frame is not None
        assert frame.pins == 2


@pytest.mark.parametrize("finished", [True, False])
async def test_time_out_without_io_left_over_frees_at_once(finished, autojump_clock):
    pending = None
    if finished:
        pending = LatePending()
        pending.finish()
    source = Source()
    source.failures = [timed_out(pending)]
    async with tier(1, source) as cache:
        with pytest.raises(DeviceTimeout):
            await cache.get(*extent(A, 0))
        cache.unpin(await cache.allocate())


async def test_timed_out_write_holds_a_private_frame(autojump_clock):
    first, second = LatePending(), LatePending()
    async with tier(1) as cache:
        frame = await cache.allocate()
        cache.hold_until(frame, first)
        cache.hold_until(frame, second)
        cache.unpin(frame)
        first.finish()
        await wait_all_tasks_blocked()
        assert cache.statistics().zombies == 1
        second.finish()
        await wait_all_tasks_blocked()
        assert cache.statistics().free == 1


async def test_timed_out_write_holds_an_extent_that_is_still_found(autojump_clock):
    pending = LatePending()
    async with tier(1) as cache:
        frame = await cache.allocate()
        cache.hold_until(frame, pending)
        cache.adopt(frame, slot(A, 0), 10)
        cache.unpin(frame)
        assert cache.statistics().zombies == 1
        assert cache.peek(slot(A, 0)) is frame
        assert cache.statistics().pinned == 1
        cache.unpin(frame)
        pending.finish()
        await wait_all_tasks_blocked()
        assert cache.statistics().idle == 1


def test_io_that_returns_after_everything_has_ended_is_harmless():
    pending = LatePending()

    async def main() -> None:
        async with tier(1) as cache:
            frame = await cache.allocate()
            cache.hold_until(frame, pending)
            cache.unpin(frame)

    trio.run(main)
    pending.finish()


# -- allocate


async def test_coldest_idle_extent_goes_first(autojump_clock):
    source = Source(0)
    async with tier(3, source) as cache:
        for thing in (A, B, C):
            cache.unpin(await cache.get(*extent(thing, 0)))
        cache.unpin(await cache.get(*extent(A, 0)))
        mine = await cache.allocate()
        assert cache.peek(slot(B, 0)) is None
        assert mine.length == 0
        now = cache.statistics()
        assert (now.evicted, now.evicted_unread, now.idle) == (1, 0, 2)
        cache.unpin(mine)


async def test_pinned_extents_are_never_taken(autojump_clock):
    async with tier(2, Source(0), patience=3) as cache:
        one, two = await cache.get(*extent(A, 0)), await cache.get(*extent(B, 0))
        start = trio.current_time()
        with pytest.raises(NoFrames, match="all 2 frames"):
            await cache.allocate()
        assert trio.current_time() == start + 3
        assert (content(one), content(two)) == (content_of(A.object_id, 0), content_of(B.object_id, 0))
        assert cache.statistics().starved == 1
        cache.unpin(one)
        cache.unpin(two)


async def test_frames_are_handed_out_in_order_of_arrival(autojump_clock):
    order: list[int] = []

    async def taker(number: int) -> None:
        frame = await cache.allocate()
        order.append(number)
        await trio.sleep(1)
        cache.unpin(frame)

    async with tier(1, patience=100) as cache:
        held = await cache.allocate()
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(taker, number)
                await wait_all_tasks_blocked()
            cache.unpin(held)
            nursery.start_soon(taker, 6)  # comes when there is a free frame, but it has been given away
        assert order == list(range(7))
        assert cache.statistics().free == 1


async def test_cancelled_waiter_leaves_the_queue(autojump_clock):
    async with tier(1, patience=100) as cache:
        held = await cache.allocate()
        got: list[Frame] = []

        async def taker() -> None:
            got.append(await cache.allocate())

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1):
                await cache.allocate()
            nursery.start_soon(taker)
            await wait_all_tasks_blocked()
            cache.unpin(held)
        cache.unpin(got[0])
        assert cache.statistics().free == 1


# -- adopt, forget


async def test_adopted_frame_is_found_and_evictable(autojump_clock):
    source = Source(0)
    async with tier(1, source) as cache:
        frame = await cache.allocate()
        frame.view[:5] = b"bytes"
        cache.adopt(frame, slot(A, 2), 5)
        cache.unpin(frame)
        found = await cache.get(*extent(A, 2))
        assert content(found) == b"bytes"
        assert not source.reads
        cache.unpin(found)
        cache.unpin(await cache.allocate())
        assert cache.peek(slot(A, 2)) is None


async def test_adopting_what_is_here_keeps_the_one_that_is_here(autojump_clock):
    async with tier(2, Source(0)) as cache:
        cache.unpin(await cache.get(*extent(A, 0)))
        frame = await cache.allocate()
        cache.adopt(frame, slot(A, 0), 1)
        found = cache.peek(slot(A, 0))
        assert found is not None
        assert found is not frame
        cache.unpin(found)
        cache.unpin(frame)
        now = cache.statistics()
        assert (now.free, now.idle) == (1, 1)


async def test_load_that_finds_the_extent_adopted_meanwhile_uses_that(autojump_clock):
    got: list[Frame] = []

    async def reader() -> None:
        got.append(await cache.get(*extent(A, 0)))

    async with tier(2) as cache:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            await wait_all_tasks_blocked()
            frame = await cache.allocate()
            cache.adopt(frame, slot(A, 0), 0)
            cache.unpin(frame)
        assert got == [frame]
        cache.unpin(frame)
        now = cache.statistics()
        assert (now.free, now.idle) == (1, 1)


async def test_misuse_is_refused(autojump_clock):
    async with tier(2, Source(0)) as cache:
        frame = await cache.get(*extent(A, 0))
        with pytest.raises(ValueError, match="private"):
            cache.adopt(frame, slot(B, 0), 1)
        cache.unpin(frame)
        with pytest.raises(ValueError, match="not pinned"):
            cache.unpin(frame)
        with pytest.raises(ValueError, match="not pinned"):
            cache.hold_until(frame, LatePending())


async def test_forgotten_extents_stay_valid_for_their_holders_only(autojump_clock):
    source = Source(0)
    async with tier(3, source) as cache:
        held = await cache.get(*extent(A, 0))
        cache.unpin(await cache.get(*extent(A, 1)))
        cache.unpin(await cache.get(*extent(B, 0)))
        cache.forget(slots(A, 3))
        assert cache.peek(slot(A, 0)) is None
        now = cache.statistics()
        assert (now.free, now.idle, now.pinned) == (1, 1, 1)
        assert content(held) == content_of(A.object_id, 0)
        cache.unpin(held)
        assert cache.statistics().free == 2
        cache.unpin(await cache.get(*extent(A, 0)))
        assert source.reads[A.object_id, 0] == 2
        cache.forget(slots(D, 3))


async def test_a_changed_object_has_its_new_bytes_and_its_old_ones(autojump_clock):
    """The same extent of the same object in another slot is another extent."""
    source = Source(0)
    async with tier(3, source) as cache:
        old = await cache.get(*extent(A, 0))
        fresh = await cache.allocate()
        fresh.view[:3] = b"new"
        cache.adopt(fresh, slot(A, 0)._replace(generation=Generation(2)), 3)
        new = await cache.get(A, 0, slot(A, 0)._replace(generation=Generation(2)))
        assert (content(old), content(new)) == (content_of(A.object_id, 0), b"new")
        assert source.reads.total() == 1
        for frame in (old, fresh, new):
            cache.unpin(frame)


# -- read-ahead


async def test_read_ahead_is_used(autojump_clock):
    source = Source()
    async with tier(8, source) as cache:
        assert cache.read_ahead(A, enumerate(slots(A, 3))) == 3
        assert cache.read_ahead(A, enumerate(slots(A, 3))) == 0
        joined = await cache.get(*extent(A, 0))
        frame = cache.peek(slot(A, 1))
        assert frame is not None
        now = cache.statistics()
        assert (now.read_ahead, now.read_ahead_used, now.coalesced) == (3, 2, 1)
        assert source.reads.total() == 3
        cache.unpin(joined)
        cache.unpin(frame)


async def test_read_ahead_leaves_the_last_frames_and_is_bounded(autojump_clock):
    async with tier(16, read_ahead_limit=4) as cache:
        assert cache.read_ahead(A, enumerate(slots(A, 10))) == 4
        assert cache.statistics().read_ahead_refused == 6
        await trio.sleep(2)
        held = [await cache.allocate() for _ in range(13)]
        assert cache.read_ahead(B, enumerate(slots(B, 4))) == 1
        await trio.sleep(2)
        assert cache.read_ahead(C, enumerate(slots(C, 4))) == 1  # evicts what was read ahead and never used
        for frame in held:
            cache.unpin(frame)
        assert cache.statistics().evicted_unread == 3


async def test_what_is_fetched_goes_last_until_it_is_given_up(autojump_clock):
    async with tier(8) as cache:
        assert cache.fetch(*extent(A, 0))
        assert not cache.fetch(*extent(A, 0))
        assert cache.is_loading(slot(A, 0))
        assert cache.read_ahead(B, enumerate(slots(B, 1))) == 1
        await trio.sleep(2)
        held = [await cache.allocate() for _ in range(7)]
        assert cache.holds(slot(A, 0))
        assert not cache.holds(slot(B, 0))  # only read ahead
        for frame in held:
            cache.unpin(frame)
        cache.unpin(await cache.get(*extent(C, 0)))
        cache.give_up(slot(A, 0))
        held = [await cache.allocate() for _ in range(7)]
        assert cache.holds(slot(C, 0))
        assert not cache.holds(slot(A, 0))
        for frame in held:
            cache.unpin(frame)


async def test_what_is_demoted_goes_next(autojump_clock):
    async with tier(2) as cache:
        for each in (A, B):
            cache.unpin(await cache.get(*extent(each, 0)))
        cache.demote([slot(B, 0), slot(C, 0)])
        frame = await cache.allocate()
        assert cache.holds(slot(A, 0))
        assert not cache.holds(slot(B, 0))
        cache.unpin(frame)


async def test_failed_read_ahead_is_counted_and_frees_its_frame(autojump_clock):
    source = Source()
    source.failures = [timed_out(None)]
    async with tier(4, source) as cache:
        assert cache.read_ahead(A, enumerate(slots(A, 1))) == 1
        await trio.sleep(2)
        now = cache.statistics()
        assert (now.free, now.failed_loads) == (4, 1)


async def test_cancelled_reader_does_not_end_a_read_ahead(autojump_clock):
    async with tier(4, Source(delay=10)) as cache:
        cache.read_ahead(A, enumerate(slots(A, 1)))
        with trio.move_on_after(1):
            await cache.get(*extent(A, 0))
        await trio.sleep(20)
        frame = cache.peek(slot(A, 0))
        assert frame is not None
        assert cache.statistics().read_ahead_used == 1
        cache.unpin(frame)


# -- the end


async def test_close_ends_all_waiting(autojump_clock):
    arena = Arena(2 * PAGE, PAGE)
    source = Source(delay=3)
    ended: list[str] = []

    async def expect_closed(what: str, request: Callable[[], object]) -> None:
        with pytest.raises(FramesClosed):
            await request()  # type: ignore[misc]
        ended.append(what)

    async with trio.open_nursery() as nursery:
        async with open_frames(arena, source, patience=100) as cache:
            await cache.allocate()
            for what, request in (
                ("read", lambda: cache.get(*extent(A, 0))),
                ("frame to read into", lambda: cache.get(*extent(B, 0))),
                ("frame", cache.allocate),
            ):
                nursery.start_soon(expect_closed, what, request)
                await wait_all_tasks_blocked()
        assert source.ended == 1
    assert sorted(ended) == ["frame", "frame to read into", "read"]
    with pytest.raises(FramesClosed):
        await cache.get(*extent(A, 0))
    with pytest.raises(FramesClosed):
        await cache.allocate()
    assert cache.read_ahead(A, enumerate(slots(A, 1))) == 0
