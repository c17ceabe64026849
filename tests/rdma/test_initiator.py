"""A namespace over a target in memory: it is a Device, and whatever breaks, no byte lands where it does not belong."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TypeVar
from uuid import UUID

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from blockdev.device import Device
from blockdev.errors import DeviceClosed, DeviceGivenUp, DeviceLost, DeviceTimeout
from blockdev.memory import page_buffer
from blockdev.testing import check_device
from kvfs.rdma_device import RdmaDevice
from rdma import nvme_wire as wire
from rdma.bring_up import Identity, find_namespace, start_controller
from rdma.cuda import GpuSpan
from rdma.errors import (
    CommandFailed,
    CudaError,
    KeyWanted,
    NotSupported,
    TransportBroken,
    TransportClosed,
    TransportError,
    TransportTimeout,
    WireError,
)
from rdma.initiator import Initiator, InitiatorOptions, Piece, open_initiator, pieces
from rdma.memory_authentication import Terms
from rdma.memory_target import MemoryConnection, MemoryTarget, Region
from rdma.nvme_auth import Secret
from rdma.nvme_identify import ACTIVE_MAX, Capabilities, pack_uuid, unpack_uuid
from rdma.nvme_status import INVALID_FIELD, INVALID_OPCODE, Status
from rdma.session import SessionOptions
from rdma.steps import Answer, Ask, Steps
from rdma.testing import FakeCuda

T = TypeVar("T")

PAGE = 4096
MIB = 1 << 20
WHO = Identity("nqn.2014-08.org.example:kv", "nqn.2014-08.org.example:host", bytes(range(16)), keep_alive=2.0)


@asynccontextmanager
async def opened(target: MemoryTarget, io_timeout: float = 5.0) -> AsyncIterator[Initiator]:
    async with open_initiator([target], WHO, 1, InitiatorOptions(io_timeout=io_timeout)) as initiator:
        yield initiator


def asked(target: MemoryTarget, what: wire.Io) -> int:
    """How often that came on an I/O queue."""
    return sum(queue > 0 and command.opcode == what for queue, command in target.commands)


@pytest.mark.parametrize("block_size", [512, 4096])
@pytest.mark.parametrize("limit_shift", [0, 4, 8])
async def test_it_is_a_device(block_size: int, limit_shift: int) -> None:
    async with AsyncExitStack() as stack:

        async def make(io_timeout: float) -> Device:
            target = MemoryTarget(block_size=block_size, limit_shift=limit_shift, rng=None)
            return RdmaDevice(await stack.enter_async_context(opened(target, io_timeout=io_timeout)))

        await check_device(make)


# ── what is asked, and in which order ────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 1000), st.integers(0, 5000), st.sampled_from([512, 4096]), st.integers(0, 300))
def test_pieces_are_the_whole_and_nothing_twice(first: int, count: int, block: int, limit: int) -> None:
    parts = list(pieces(first * block, count * block, block, limit * 4096))
    assert sum(part.count for part in parts) == count
    at = 0
    for part in parts:
        assert (part.block, part.start) == (first + at, at * block)
        assert 0 < part.count <= 1 << 16
        assert not limit or part.count * block <= limit * 4096
        assert part.count * block <= wire.KEYED_MAX
        at += part.count


def test_what_has_no_limit_is_as_large_as_a_descriptor_can_say() -> None:
    assert list(pieces(0, 16 * MIB, 4096, 0)) == [Piece(0, 4095, 0), Piece(4095, 1, 4095 * 4096)]


def driven(steps: Steps[T], answers: Mapping[str, Sequence[int]]) -> tuple[list[str | float], T]:
    """What the steps asked and for how long they paused, and what they returned.

    :param answers: results by what is asked, the last one again and again; 0 for everything else
    """
    seen: list[str | float] = []
    asked = next(steps)
    while True:
        what, size = (asked.what, asked.answer) if isinstance(asked, Ask) else ("", 0)
        known = answers.get(what, [0])
        result = known[min(seen.count(what), len(known) - 1)]
        seen.append(what or asked)  # type: ignore[arg-type]
        data = bytearray(size)
        if size:
            data[536] = 4  # takes keyed SGLs
        try:
            asked = steps.send(Answer(result, bytes(data)))
        except StopIteration as end:
            return seen, end.value


CAP = Capabilities(128, 1.0).pack()


def test_bringing_a_controller_up_waits_until_it_is_ready() -> None:
    seen, found = driven(
        start_controller(WHO, 32, 4),
        {
            "connecting queue 0": [9],
            "reading its capabilities": [CAP],
            "asking whether it is ready": [0, 0, 1],
            "asking for queues": [1 << 16 | 7],
        },
    )
    assert (found.number, found.queues, found.depth) == (9, 2, 128)
    assert seen == [
        "connecting queue 0",
        "reading its capabilities",
        "enabling it",
        "asking whether it is ready", 0.05,
        "asking whether it is ready", 0.05,
        "asking whether it is ready",
        "asking what it is",
        "asking for queues",
    ]  # fmt: skip


@pytest.mark.parametrize("state, words", [(2, "has failed"), (0, r"not ready within the 1\.0 s")])
def test_a_controller_that_does_not_come_up(state: int, words: str) -> None:
    answers = {"reading its capabilities": [CAP], "asking whether it is ready": [state]}
    with pytest.raises(NotSupported, match=words):
        driven(start_controller(WHO, 32, 4), answers)


def test_a_namespace_that_is_not_there_is_refused() -> None:
    steps = find_namespace(3)
    next(steps)
    with pytest.raises(NotSupported, match="no namespace 3"):
        steps.send(Answer(0, bytes(4096)))


@pytest.mark.parametrize(
    "target, error, words",
    [
        (
            MemoryTarget(terms=Terms(Secret(bytes(32), None))),
            KeyWanted,
            "demands authentication: give .*'host_key'",
        ),
        (MemoryTarget(metadata=8), NotSupported, "8 bytes of metadata with each block: format it without"),
        (MemoryTarget(block_size=8192), NotSupported, "blocks of 8192 bytes"),
        (MemoryTarget(is_down=True), TransportBroken, "no route"),
    ],
)
async def test_a_target_that_cannot_be_used(target: MemoryTarget, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        async with opened(target):
            pass
    assert not any(connection.is_open for connection in target.connections)
    assert not target.regions


async def test_a_target_that_does_not_answer_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget(hold=lambda _: True)
    began = trio.current_time()
    with pytest.raises(TransportTimeout):
        async with open_initiator([target], WHO, 1, InitiatorOptions(SessionOptions(connect_timeout=3.0))):
            pass
    assert trio.current_time() - began == pytest.approx(3.0)
    assert not any(connection.is_open for connection in target.connections)
    assert not target.regions


async def test_an_operation_goes_over_all_queues_at_once() -> None:
    target = MemoryTarget(size=8 * MIB, limit_shift=6)
    async with opened(target) as device:
        data = page_buffer(4 * MIB)
        data[:] = Random(1).randbytes(4 * MIB)
        await device.write_from(MIB, data)
        target.hold = lambda command: command.opcode == wire.Io.READ
        into = page_buffer(4 * MIB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.read_into, MIB, into)
            await trio.testing.wait_all_tasks_blocked()
            assert len(target.held) == 16
            assert {one.connection.queue for one in target.held} == {1, 2, 3, 4}
            target.rng = Random(2)
            target.release()
            target.rng = None
        assert into == data
        assert target.media[MIB : 5 * MIB] == data
    assert not target.regions, "nothing stays registered"
    assert not any(connection.is_open for connection in target.connections)


async def test_more_than_fits_into_the_queues_waits() -> None:
    target = MemoryTarget(size=8 * MIB, limit_shift=1, queues=1)
    async with opened(target) as device:
        await device.read_into(0, page_buffer(8 * MIB))
    assert asked(target, wire.Io.READ) == 1024


async def test_a_target_that_cannot_deallocate_is_not_asked_to() -> None:
    target = MemoryTarget(can_deallocate=False)
    async with opened(target) as device:
        await device.discard(0, PAGE)
        assert asked(target, wire.Io.DATASET_MANAGEMENT) == 0


@pytest.mark.parametrize("status", [INVALID_OPCODE, INVALID_FIELD._replace(final=True)])
async def test_a_namespace_that_refuses_to_deallocate_is_asked_once(status: Status) -> None:
    target = MemoryTarget(refuses_io={wire.Io.DATASET_MANAGEMENT: status})
    async with opened(target) as device:
        data = page_buffer(PAGE)
        data[:] = b"k" * PAGE
        await device.write_from(0, data)
        for _ in range(3):
            await device.discard(0, PAGE)
        assert asked(target, wire.Io.DATASET_MANAGEMENT) == 1
        assert target.media[:PAGE] == data


async def test_a_failure_to_deallocate_is_an_error_each_time() -> None:
    target = MemoryTarget(refuses_io={wire.Io.DATASET_MANAGEMENT: Status(0, 0x06)})
    async with opened(target) as device:
        for _ in range(2):
            with pytest.raises(CommandFailed, match="discard: internal error"):
                await device.discard(0, PAGE)
        target.refuses_io.clear()
        await device.discard(0, PAGE)


async def test_an_error_has_the_controllers_words() -> None:
    target = MemoryTarget()
    async with opened(target) as device:
        target.size //= 2
        with pytest.raises(CommandFailed, match=r"read: LBA out of range \(status 0h/80h\)"):
            await device.read_into(device.size - PAGE, page_buffer(PAGE))
        await device.read_into(0, page_buffer(PAGE))


# ── what breaks ──────────────────────────────────────────────────────────────────────────────────────────────


def is_write(command: wire.Command) -> bool:
    return command.opcode == wire.Io.WRITE


def filled(byte: bytes) -> memoryview:
    data = page_buffer(PAGE)
    data[:] = byte * PAGE
    return data


async def test_a_write_is_under_way_before_anybody_waits_for_it() -> None:
    target = MemoryTarget(hold=is_write)
    async with opened(target) as initiator:
        device = RdmaDevice(initiator)
        begun = [device.begin_write(number * PAGE, filled(b"%d" % number)) for number in range(4)]
        for one in begun:
            assert one is not None
            await trio.to_thread.run_sync(one.start)
        await trio.testing.wait_all_tasks_blocked()
        assert asked(target, wire.Io.WRITE) == 4
        target.hold = lambda _: False
        target.release()
        for one in reversed(begun):
            assert one is not None
            await one.land()
        assert target.media[: 4 * PAGE] == b"".join(b"%d" % number * PAGE for number in range(4))


async def test_no_more_writes_are_begun_than_are_of_use() -> None:
    async with opened(MemoryTarget(size=32 * MIB)) as initiator:
        device, begun = RdmaDevice(initiator), []
        while (one := device.begin_write(0, page_buffer(4 * MIB))) is not None:
            begun.append(one)
            one.start()
        assert len(begun) == 4
        for one in begun:
            await one.land()
        large = device.begin_write(0, page_buffer(20 * MIB))
        assert large is not None, "one that is larger goes alone"
        assert device.begin_write(0, page_buffer(PAGE)) is None
        large.start()
        await large.land()
        assert device.begin_write(0, page_buffer(0)) is not None


async def test_a_write_that_was_begun_ends_with_its_device() -> None:
    target = MemoryTarget(hold=is_write)
    async with opened(target) as initiator:
        device = RdmaDevice(initiator)
        begun = device.begin_write(0, filled(b"x"))
        assert begun is not None
        begun.start()
        await trio.testing.wait_all_tasks_blocked()
        await device.aclose()
        with pytest.raises(DeviceClosed):
            await begun.land()
        target.release()
        assert target.media[:PAGE] == bytes(PAGE)


async def test_a_write_that_was_begun_and_is_late_never_comes(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget(hold=is_write, is_deaf=True)
    async with opened(target) as initiator:
        device, data = RdmaDevice(initiator), filled(b"x")
        begun = device.begin_write(0, data)
        assert begun is not None
        begun.start()
        with pytest.raises(DeviceTimeout) as raised:
            await begun.land()
        assert raised.value.pending is None
        data[:] = b"!" * PAGE  # somebody else's by now
        target.release()
        assert target.media[:PAGE] == bytes(PAGE)


async def test_what_is_late_is_aborted_and_its_memory_free(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget()
    target.media[:] = b"L" * target.size
    async with opened(target, io_timeout=1.0) as device:
        target.hold = lambda command: command.opcode == wire.Io.READ
        into = page_buffer(PAGE)
        with pytest.raises(TransportTimeout, match=r"read had no answer in 1\.0 s"):
            await device.read_into(0, into)
        target.hold = lambda _: False
        target.release()
        assert into == bytes(PAGE)
        assert device.sessions == 1
        await device.read_into(0, into)
        assert into == b"L" * PAGE


async def test_what_is_not_aborted_either_is_fenced_off(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget(is_deaf=True)
    target.media[:] = b"L" * target.size
    async with opened(target, io_timeout=1.0) as device:
        target.hold = lambda command: command.opcode == wire.Io.READ
        into = page_buffer(PAGE)
        began = trio.current_time()
        with pytest.raises(TransportTimeout):
            await device.read_into(0, into)
        assert trio.current_time() - began == pytest.approx(1.5)
        target.hold = lambda _: False
        target.release()
        assert (into == bytes(PAGE), target.dropped) == (True, 1)
        await device.read_into(0, into)
        assert device.sessions == 2


async def test_a_read_goes_on_after_the_connection_broke(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget()
    target.media[:PAGE] = b"K" * PAGE
    async with opened(target) as device, trio.open_nursery() as nursery:
        target.hold = lambda command: command.opcode == wire.Io.READ
        into = page_buffer(PAGE)
        nursery.start_soon(device.read_into, 0, into)
        await trio.testing.wait_all_tasks_blocked()
        target.hold = lambda _: False
        target.kill()
        await trio.sleep(1.0)
        target.is_down = False
        await trio.sleep(3.0)
        assert into == b"K" * PAGE
        assert device.sessions == 2


async def test_a_write_whose_connection_broke_is_its_callers_affair(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target = MemoryTarget()
    async with opened(target) as device:
        target.hold = lambda command: command.opcode == wire.Io.WRITE
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                with pytest.raises(TransportBroken):
                    await device.write_from(0, page_buffer(PAGE))

            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            target.cut()
        assert asked(target, wire.Io.WRITE) == 1


class Way:
    """One of several ways to a target.

    :ivar is_down: nobody connects by it
    :ivar regions: memory that is registered by it
    """

    def __init__(self, target: MemoryTarget) -> None:
        self.is_down = False
        self.regions: list[Region] = []
        self._target = target

    async def connect(self, request: wire.CmRequest) -> MemoryConnection:
        if self.is_down:
            await trio.lowlevel.checkpoint()
            raise TransportBroken("no answer")
        return await self._target.connect(request)

    def register(self, memory: memoryview | GpuSpan) -> Region:
        self.regions.append(self._target.register(memory))
        return self.regions[-1]


async def test_a_read_goes_on_over_another_way(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget()
    target.media[: 8 * PAGE] = bytes(range(256)) * (8 * PAGE // 256)
    first, second = Way(target), Way(target)
    async with open_initiator([first, second], WHO, 1) as device:
        used = len(first.regions)
        assert used
        assert not second.regions
        target.hold = lambda command: command.opcode == wire.Io.READ
        into = page_buffer(8 * PAGE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.read_into, 0, into)
            await trio.testing.wait_all_tasks_blocked()
            first.is_down, target.hold = True, lambda _: False
            target.cut()
        assert into == target.media[: 8 * PAGE]
        assert second.regions, "the memory is registered where the bytes come from"
        first.is_down, second.is_down = False, True
        target.cut()
        await device.read_into(0, into)
        assert device.sessions == 3
    assert not target.regions


async def test_a_read_lands_in_memory_of_a_gpu() -> None:
    target, gpu = MemoryTarget(limit_shift=1), FakeCuda()
    target.media[:] = bytes(range(256)) * (target.size // 256)
    address = gpu.allocate(4 * PAGE)
    async with opened(target) as device:
        await device.read_into(PAGE, GpuSpan(gpu, address + PAGE, 3 * PAGE))
        assert gpu.memory[address] == bytes(PAGE) + target.media[PAGE : 4 * PAGE]
        assert asked(target, wire.Io.READ) == 2
        assert not target.regions
        gpu.free(address)
        with pytest.raises(CudaError, match="are allocated at"):
            await device.read_into(PAGE, GpuSpan(gpu, address, PAGE))
        with pytest.raises(ValueError, match="whole blocks"):
            await device.read_into(PAGE, GpuSpan(gpu, address, 512))


async def test_ways_that_are_down_are_passed_over(autojump_clock: trio.testing.MockClock) -> None:
    first, second = Way(MemoryTarget()), Way(MemoryTarget())
    first.is_down = True
    async with open_initiator([first, second], WHO, 1) as device:
        await device.flush()
    second.is_down = True
    with pytest.raises(TransportBroken, match="no answer"):
        async with open_initiator([first, second], WHO, 1):
            pass


@pytest.mark.parametrize("kind", [2, 3])
async def test_a_namespace_by_its_uuid(kind: int) -> None:
    """By its NGUID (2) where it has no UUID (3)."""
    uuid = UUID(int=7 << 64)
    target = MemoryTarget(uuid=uuid)
    assert unpack_uuid(bytes([kind]) + pack_uuid(uuid)[1:]) == uuid
    async with open_initiator([target], WHO, uuid) as device:
        into = page_buffer(PAGE)
        await device.read_into(0, into)
    with pytest.raises(NotSupported, match=f"no namespace {UUID(int=8)}, or it is not active"):
        async with open_initiator([target], WHO, UUID(int=8)):
            pass


def test_a_namespace_is_looked_for_in_lists_of_any_length() -> None:
    """The list says where the next one goes on, until one is not full."""
    wanted = UUID(int=9)
    numbers = [*range(1, 2 * ACTIVE_MAX, 2), 5000]
    steps = find_namespace(wanted)
    asked, lists = next(steps), 0
    while asked.what != "asking for namespace 5000":  # type: ignore[union-attr]
        assert isinstance(asked, Ask)
        command = asked.command(wire.NO_DATA)
        if command.words[0] == wire.Cns.ACTIVE_NAMESPACES:
            lists += 1
            told = [number for number in numbers if number > command.nsid][:ACTIVE_MAX]
            data = struct.pack(f"<{len(told)}I", *told).ljust(4096, b"\0")
        else:
            data = pack_uuid(wanted if command.nsid == 5000 else UUID(int=command.nsid << 32))
        asked = steps.send(Answer(0, data))
    assert lists == 2


@pytest.mark.parametrize("data", [b"\x03\x04\0\0abcd".ljust(4096, b"\0"), bytes(100)])
def test_identifiers_that_are_none(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack_uuid(data)


def test_a_namespace_without_identifiers_has_no_uuid() -> None:
    assert unpack_uuid(bytes(4096)) is None
    assert unpack_uuid(pack_uuid(UUID(int=0))) is None


async def test_a_target_that_stays_away_is_a_timeout(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget()
    async with opened(target, io_timeout=4.0) as device:
        target.kill()
        began = trio.current_time()
        with pytest.raises(TransportTimeout, match=r"no connection in 4\.0 s"):
            await device.read_into(0, page_buffer(PAGE))
        assert trio.current_time() - began == pytest.approx(4.0)


async def test_silence_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget()
    async with opened(target) as device:
        await trio.sleep(10)
        assert device.sessions == 1
        assert sum(command.opcode == wire.Admin.KEEP_ALIVE for _, command in target.commands) >= 8
        target.hold = lambda command: command.opcode == wire.Admin.KEEP_ALIVE
        await trio.sleep(4)
        target.hold = lambda _: False
        await trio.sleep(1)
        assert device.sessions == 2


async def test_closing_ends_what_is_under_way() -> None:
    target = MemoryTarget()
    async with opened(target) as device, trio.open_nursery() as nursery:
        target.hold = lambda command: command.opcode == wire.Io.READ

        async def read() -> None:
            with pytest.raises(TransportClosed):
                await device.read_into(0, page_buffer(PAGE))

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await device.aclose()


async def test_giving_up_ends_what_is_under_way_at_once(autojump_clock: trio.testing.MockClock) -> None:
    target = MemoryTarget()
    async with opened(target) as initiator, trio.open_nursery() as nursery:
        device, began = RdmaDevice(initiator), trio.current_time()
        target.hold = lambda command: command.opcode == wire.Io.WRITE

        async def write() -> None:
            with pytest.raises(DeviceGivenUp):
                await device.write_from(0, page_buffer(PAGE))

        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        device.give_up()
        with pytest.raises(DeviceLost):
            await device.write_from(0, page_buffer(PAGE))
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == began
        assert not target.regions


@pytest.mark.parametrize("seed", range(50))
async def test_whatever_breaks_nothing_hangs_and_no_byte_is_late(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    rng = Random(seed)
    target = MemoryTarget(size=MIB, limit_shift=rng.choice([0, 1, 3]))
    target.media[:] = Random(0).randbytes(MIB)
    content = bytes(target.media)
    handed_on: list[memoryview] = []

    async def trouble() -> None:
        for _ in range(6):
            await trio.sleep(rng.uniform(0.1, 2))
            target.is_deaf = rng.random() < 0.3
            rng.choice([target.kill, target.cut, target.release])()
            await trio.sleep(rng.uniform(0, 1))
            target.is_down = False

    async def engine(device: Initiator) -> None:
        for _ in range(8):
            await trio.sleep(rng.uniform(0, 1))
            into = page_buffer(4 * PAGE)
            at = rng.randrange(200) * PAGE
            began = trio.current_time()
            try:
                await device.read_into(at, into)
                assert into == content[at : at + 4 * PAGE]
            except (TransportError, CommandFailed):
                pass
            assert trio.current_time() - began <= 2.0 + 0.5 + 0.01
            into[:] = b"\xa5" * into.nbytes
            handed_on.append(into)

    async with opened(target, io_timeout=2.0) as device:
        target.rng = rng
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            for _ in range(4):
                nursery.start_soon(engine, device)
        target.rng = None
        target.release()
        target.is_down = False
        await trio.sleep(10)
        into = page_buffer(PAGE)
        await device.read_into(0, into)
        assert into == content[:PAGE], "it goes on as if nothing had been"
    assert all(view == b"\xa5" * view.nbytes for view in handed_on)
    assert not target.regions


async def test_cancelling_does_not_cut_short_what_has_begun() -> None:
    target = MemoryTarget()
    target.media[:PAGE] = b"K" * PAGE
    ended = False
    into = page_buffer(PAGE)

    async def read(device: Initiator) -> None:
        nonlocal ended
        with scope:
            await device.read_into(0, into)
        ended = True

    scope = trio.CancelScope()
    async with opened(target) as device, trio.open_nursery() as nursery:
        target.hold = lambda command: command.opcode == wire.Io.READ
        nursery.start_soon(read, device)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not ended, "the target still writes into the memory"
        target.release()
        await trio.testing.wait_all_tasks_blocked()
        assert ended
    assert into == b"K" * PAGE


async def test_a_namespace_that_came_back_as_another_is_not_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target = MemoryTarget()
    async with opened(target, io_timeout=3.0) as device:
        size = target.size
        target.size //= 2
        target.cut()
        with pytest.raises(TransportTimeout, match="no connection"):
            await device.read_into(0, page_buffer(PAGE))
        target.size = size
        await trio.sleep(6)
        await device.read_into(0, page_buffer(PAGE))
        assert device.sessions == 2


async def test_answers_to_what_was_not_asked_end_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target = MemoryTarget()
    async with opened(target) as device:
        for answer in (wire.Completion(0x7777).pack(), b"short"):
            connection = target.connections[-1]
            connection._answers.append(answer)
            connection._news.set()
            await trio.sleep(1)
            assert not connection.is_open
            await device.read_into(0, page_buffer(PAGE))
    assert device.sessions == 3


async def test_a_controller_that_refuses_a_sign_of_life_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target = MemoryTarget()
    async with opened(target) as device:
        target.refuses = {wire.Admin.KEEP_ALIVE}
        await trio.sleep(1.5)
        target.refuses = set()
        await trio.sleep(1.5)
        assert device.sessions == 2


async def test_a_target_that_gives_no_sign_of_life_is_connected_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target = MemoryTarget()
    async with opened(target) as device:
        target.hold = lambda command: command.opcode == wire.Admin.KEEP_ALIVE
        await trio.sleep(WHO.keep_alive)
        assert (device.sessions, device.is_connected) == (1, True)
        target.hold = lambda _: False
        await trio.sleep(WHO.keep_alive)
        assert (device.sessions, device.is_connected) == (2, True)
