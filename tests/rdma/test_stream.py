"""Many extents into many buffers, each with its own outcome, and no byte where it does not belong."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Hashable
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from blockdev.errors import DeviceError, DeviceTimeout
from blockdev.file_device import open_file_device
from blockdev.memory import page_buffer
from blockdev.testing import Fault, FaultyDevice, MemoryDevice, RandomFaults
from rdma.buffers import Arena, HostMemory
from rdma.errors import NoBuffers, RdmaError, StreamClosed, TransferCancelled, TransferExpired
from rdma.stream import DeviceSource, Outcome, Priority, Span, Stream, Want, open_stream

PAGE = 4096
SIZE = 1 << 20


class Gated:
    """A source whose reads end when the test says so; extent `n` is bytes of value n."""

    failures = (DeviceError,)

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.landed: dict[str, Callable[[], None]] = {}
        self._gates: dict[str, trio.Event] = {}
        self.error: DeviceError | None = None

    def device_of(self, extent: str) -> Hashable:
        return extent[0]

    async def read(self, extent: str, into: memoryview, landed: Callable[[], None]) -> int:
        self.begun.append(extent)
        self.landed[extent] = landed
        gate = self._gates.setdefault(extent, trio.Event())
        with trio.CancelScope(shield=True):
            await gate.wait()
        if self.error is not None:
            raise self.error
        into[:] = ord(extent[-1]).to_bytes() * into.nbytes
        return into.nbytes - 1

    def end(self, extent: str) -> None:
        self._gates.pop(extent, trio.Event()).set()

    async def end_all(self) -> None:
        """End what has begun, one after the other, until nothing begins any more."""
        while self._gates:
            self.end(next(iter(self._gates)))
            await trio.testing.wait_all_tasks_blocked()


def want(extent: str, priority: Priority = Priority.DEMAND, deadline: float = math.inf) -> Want[str]:
    return Want(extent, page_buffer(PAGE), priority, deadline)


class Engine:
    """A task that takes the outcomes of a batch."""

    def __init__(self, stream: Stream[str], *wants: Want[str]) -> None:
        self.scope = trio.CancelScope()
        self.outcomes: list[Outcome[str]] = []
        self.left = False
        self._stream = stream
        self._wants = wants

    async def run(self) -> None:
        with self.scope:
            async with self._stream.batch(self._wants) as batch:
                async for outcome in batch:
                    self.outcomes.append(outcome)
        self.left = True

    @property
    def extents(self) -> list[str]:
        return [one.want.extent for one in self.outcomes]


Start = Callable[..., Engine]


async def started(nursery: trio.Nursery, stream: Stream[str], *wants: Want[str]) -> Engine:
    engine = Engine(stream, *wants)
    nursery.start_soon(engine.run)
    await trio.testing.wait_all_tasks_blocked()
    return engine


async def test_outcomes_come_in_the_order_of_arrival() -> None:
    source = Gated()
    async with open_stream(source) as stream, trio.open_nursery() as nursery:
        engine = await started(nursery, stream, want("a1"), want("a2"), want("b3"))
        for extent in ("b3", "a1", "a2"):
            source.end(extent)
            await trio.testing.wait_all_tasks_blocked()
    assert engine.extents == ["b3", "a1", "a2"]
    for outcome in engine.outcomes:
        assert outcome.length == PAGE - 1
        assert outcome.want.into[:] == outcome.want.extent[-1].encode() * PAGE
    assert stream.statistics().reads == 3


async def test_the_most_urgent_begins_first() -> None:
    source = Gated()
    async with open_stream(source, bytes_under_way=PAGE) as stream, trio.open_nursery() as nursery:
        await started(
            nursery,
            stream,
            want("a1", Priority.PREFETCH),
            want("a2", deadline=math.inf),
            want("a3", deadline=trio.current_time() + 1000),
            want("a4", Priority.PREFETCH, trio.current_time() + 500),
        )
        await started(nursery, stream, want("a5", deadline=trio.current_time() + 100))
        await source.end_all()
    assert source.begun == ["a3", "a5", "a2", "a4", "a1"]


async def test_each_device_has_a_bound_of_its_own() -> None:
    source = Gated()
    async with open_stream(source, bytes_under_way=2 * PAGE) as stream, trio.open_nursery() as nursery:
        await started(nursery, stream, *(want(f"{device}{n}") for device in "ab" for n in range(4)))
        now = stream.statistics()
        assert (now.running, now.waiting, now.bytes_running) == (4, 4, 4 * PAGE)
        await source.end_all()
    assert sorted(source.begun) == sorted(f"{device}{n}" for device in "ab" for n in range(4))


async def test_an_extent_asked_for_twice_is_read_once() -> None:
    source = Gated()
    async with open_stream(source) as stream, trio.open_nursery() as nursery:
        first = await started(nursery, stream, want("a1"), want("a1"))
        second = await started(nursery, stream, want("a1"))  # while it is under way
        await source.end_all()
    assert source.begun == ["a1"]
    for outcome in [*first.outcomes, *second.outcomes]:
        assert outcome.want.into[: outcome.length] == b"1" * (PAGE - 1)
    assert (stream.statistics().coalesced, len(first.outcomes)) == (2, 2)


async def test_what_was_prefetched_is_hurried_when_somebody_needs_it() -> None:
    source = Gated()
    async with open_stream(source, bytes_under_way=PAGE) as stream, trio.open_nursery() as nursery:
        ahead = (want("a2", Priority.PREFETCH), want("a3", Priority.PREFETCH))
        await started(nursery, stream, want("a1"), *ahead)
        needs = await started(nursery, stream, want("a3"))
        gone = await started(nursery, stream, want("a2"))
        gone.scope.cancel()  # then it is a prefetch again
        await trio.testing.wait_all_tasks_blocked()
        await started(nursery, stream, want("a4"))
        await source.end_all()
    assert source.begun == ["a1", "a3", "a4", "a2"]
    assert needs.outcomes[0].error is None


async def test_cancelling_frees_the_place_of_what_waits_and_waits_for_what_has_begun() -> None:
    source = Gated()
    async with open_stream(source, bytes_under_way=PAGE) as stream, trio.open_nursery() as nursery:
        engine = await started(nursery, stream, want("a1"), want("a2"))
        other = await started(nursery, stream, want("a3"))
        engine.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert stream.statistics().waiting == 1
        assert not engine.left, "its buffer is still read into"
        source.end("a1")
        await trio.testing.wait_all_tasks_blocked()
        assert engine.left
        await source.end_all()
    assert source.begun == ["a1", "a3"]
    assert [one.error for one in other.outcomes] == [None]
    assert stream.statistics().cancelled == 2


async def test_who_cancels_a_batch_gets_every_outcome() -> None:
    source = Gated()
    wants = [want("a1"), want("a2")]
    async with open_stream(source, bytes_under_way=PAGE) as stream, stream.batch(wants) as batch:
        await trio.testing.wait_all_tasks_blocked()
        batch.cancel()
        source.end("a1")
        outcomes = [one async for one in batch]
    assert {one.want.extent for one in outcomes} == {"a1", "a2"}
    assert all(isinstance(one.error, TransferCancelled) for one in outcomes)


async def test_the_next_read_begins_when_the_device_has_done_its_part() -> None:
    """Once for each, however often that is said, and at the latest when the read is done."""
    source = Gated()
    async with open_stream(source, bytes_under_way=PAGE) as stream, trio.open_nursery() as nursery:
        engine = await started(nursery, stream, want("a1"), want("a2"), want("a3"))
        assert source.begun == ["a1"]
        for _ in range(2):
            source.landed["a1"]()
            await trio.testing.wait_all_tasks_blocked()
            assert source.begun == ["a1", "a2"]
        assert stream.statistics().bytes_running == PAGE
        source.end("a1")
        await trio.testing.wait_all_tasks_blocked()
        assert source.begun == ["a1", "a2"]
        await source.end_all()
    assert engine.extents == ["a1", "a2", "a3"]


async def test_a_cancelled_reader_does_not_take_the_bytes_from_others() -> None:
    source = Gated()
    async with open_stream(source) as stream, trio.open_nursery() as nursery:
        first = await started(nursery, stream, want("a1"))
        second = await started(nursery, stream, want("a1"))
        first.scope.cancel()
        await source.end_all()
    assert (first.outcomes, second.outcomes[0].error) == ([], None)
    assert second.outcomes[0].want.into[: PAGE - 1] == b"1" * (PAGE - 1)


async def test_what_is_late_is_not_begun(autojump_clock: trio.testing.MockClock) -> None:
    source = Gated()
    async with open_stream(source, bytes_under_way=PAGE) as stream, trio.open_nursery() as nursery:
        now = trio.current_time()
        engine = await started(
            nursery,
            stream,
            want("a1", deadline=now + 1),
            want("a2", deadline=now + 5),
            want("a3", deadline=now),
        )
        other = await started(nursery, stream, want("a2"))
        await trio.sleep(6)
        assert engine.extents == ["a3", "a2"]
        assert all(isinstance(one.error, TransferExpired) for one in engine.outcomes)
        assert not engine.left, "a1 has begun, and only its device can say that it will not come"
        await source.end_all()
    assert [one.error for one in engine.outcomes[2:]] == [None]
    assert [one.error for one in other.outcomes] == [None], "who has time gets it"
    assert stream.statistics().expired == 2


async def test_many_deadlines_that_were_met_are_forgotten() -> None:
    async with open_stream(DeviceSource((DeviceError,))) as stream:
        device = MemoryDevice(SIZE)
        deadline = trio.current_time() + 1e6
        for _ in range(2000):
            async with stream.batch([Want(Span(device, 0), page_buffer(PAGE), deadline=deadline)]) as batch:
                assert [one.error async for one in batch] == [None]
        assert len(stream._deadlines) < 300


async def test_a_failure_is_the_outcome_of_those_who_asked_for_it() -> None:
    source = Gated()
    source.error = DeviceError("a", errno.EIO, "is broken")
    async with open_stream(source) as stream, trio.open_nursery() as nursery:
        engine = await started(nursery, stream, want("a1"), want("a1"))
        source.end("a1")
        await trio.testing.wait_all_tasks_blocked()
        source.error = None
        retry = await started(nursery, stream, want("a1"))
        await source.end_all()
    assert [one.error for one in engine.outcomes] == [engine.outcomes[0].error] * 2
    assert isinstance(engine.outcomes[0].error, DeviceError)
    assert retry.outcomes[0].error is None
    assert stream.statistics().failed == 2


async def test_closing_ends_what_waits() -> None:
    source = Gated()
    async with trio.open_nursery() as nursery, open_stream(source, bytes_under_way=PAGE) as stream:
        engine = await started(nursery, stream, want("a1"), want("a2"))
        stream.close()
        source.end("a1")
    assert all(isinstance(one.error, StreamClosed) for one in engine.outcomes)
    assert source.begun == ["a1"]
    with pytest.raises(StreamClosed, match="is closed"):
        async with stream.batch([want("a1")]):
            pass


# ── over devices ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_extents_of_a_file_land_in_leased_memory(tmp_path: Path) -> None:
    path = tmp_path / "device"
    content = Random(1).randbytes(SIZE)
    path.write_bytes(content)
    device = await open_file_device(path)
    arena = Arena(HostMemory(SIZE), SIZE, 16 * PAGE)
    with arena.lease(SIZE) as lease:
        order = list(range(0, SIZE, 16 * PAGE))
        Random(2).shuffle(order)
        wants = [Want(Span(device, at), lease.view[at : at + 16 * PAGE], lease=lease) for at in order]
        source = DeviceSource((DeviceError,))
        async with open_stream(source, bytes_under_way=SIZE // 4) as stream, stream.batch(wants) as batch:
            outcomes = [one async for one in batch]
        assert len(outcomes) == len(order)
        assert all(one.error is None for one in outcomes)
        assert lease.view == content
    await device.aclose()


async def test_a_read_that_its_device_gives_up_keeps_the_lease_from_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    device = FaultyDevice(SIZE, Random(1))
    device.inject(Fault(delay=math.inf))
    arena = Arena(HostMemory(4 * PAGE), 4 * PAGE, 4 * PAGE)
    async with open_stream(DeviceSource((DeviceError,))) as stream:
        with arena.lease(4 * PAGE) as lease:
            lease.view[:] = b"\xa5" * lease.size
            second = page_buffer(4 * PAGE)
            wants = [Want(Span(device, 0), lease.view, lease=lease), Want(Span(device, 0), second)]
            async with stream.batch(wants) as batch:
                first, other = [one async for one in batch]
        assert isinstance(first.error, DeviceTimeout)
        assert first.pending is not None
        assert not first.pending.done
        assert (other.error, other.pending) == (first.error, None), "nothing is read into the other's buffer"
        assert arena.statistics().zombies == 1
        with pytest.raises(NoBuffers):
            arena.lease(PAGE)
        device.release()
        await trio.testing.wait_all_tasks_blocked()
    assert first.pending.done
    assert arena.statistics().free == 1


@pytest.mark.parametrize("seed", range(30))
async def test_no_late_byte_lands_in_a_lease_of_somebody_else(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    rng = Random(seed)
    content = Random(0).randbytes(SIZE)
    device = FaultyDevice(SIZE, rng, io_timeout=1.0)
    whole = page_buffer(SIZE)
    whole[:] = content
    await device.write_from(0, whole)
    device.late_limit = 1000
    device.random_faults = RandomFaults(error_rate=0.1, timeout_rate=0.2, late=5.0, delay=(0.0, 0.5))
    arena = Arena(HostMemory(16 * PAGE), 16 * PAGE, PAGE)

    async def engine(stream: Stream[Span]) -> None:
        for _ in range(10):
            await trio.sleep(rng.random())
            try:
                lease = arena.lease(PAGE)
            except NoBuffers:
                continue
            with lease, trio.move_on_after(rng.choice([0.1, 0.7, 5.0])):
                lease.view[:] = b"\xa5" * PAGE
                await trio.sleep(rng.random())
                assert lease.view == b"\xa5" * PAGE, "somebody else's bytes"
                at = rng.randrange(8) * PAGE
                one = Want(
                    Span(device, at), lease.view, rng.choice(list(Priority)), trio.current_time() + 2, lease
                )
                async with stream.batch([one]) as batch:
                    [outcome] = [one async for one in batch]
                await trio.sleep(rng.random())
                if outcome.error is None:
                    assert lease.view == content[at : at + PAGE]
                elif outcome.pending is None and isinstance(outcome.error, RdmaError):
                    assert lease.view == b"\xa5" * PAGE, "what had not begun wrote nothing"

    async with open_stream(DeviceSource((DeviceError,)), bytes_under_way=4 * PAGE) as stream:
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(engine, stream)
        await trio.sleep(10)
        now, lent = stream.statistics(), arena.statistics()
    assert (now.running, now.waiting) == (0, 0)
    assert (lent.leased, lent.zombies) == (0, 0)
    assert now.reads > 10
