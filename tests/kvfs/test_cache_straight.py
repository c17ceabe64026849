"""Extents from RDMA devices straight into memory of a GPU: where that is done, where it is refused, and what it leaves behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from blockdev.creating import CreateOptions, create_pool
from blockdev.errors import BlockError
from blockdev.pool import Pool
from blockdev.types import PAGE, DeviceNo, SlotClass
from kvfs.cache import Cache
from kvfs.errors import BadBuffer, CacheClosed, NoObject, RecheckRefused
from rdma import nvme_wire as wire
from rdma.cuda import GpuSpan
from rdma.errors import MemoryRefused
from rdma.memory_target import MemoryTarget
from rdma.testing import FakeCuda
from tests.blockdev.pools import DOMAIN, EXTENT, REGION, found, made, pattern, payload_at, put
from tests.conftest import ExpectLog
from tests.kvfs.caches import cache_of, direct
from tests.kvfs.test_cache_gpu import Tensor
from tests.rdma.test_pool_over_fabric import SIZE, devices, opened


@dataclass
class Card:
    """A network card, by which memory is kept registered with a target.

    :ivar refuses: it does not reach the GPU
    """

    target: MemoryTarget
    refuses: bool = False

    @contextmanager
    def keeping(self, memory: Sequence[GpuSpan]) -> Iterator[None]:
        if self.refuses:
            raise MemoryRefused("the RDMA device does not reach 2097152 bytes of the GPU")
        with ExitStack() as stack:
            for span in memory:
                stack.callback(self.target.register(span).close)
            yield


@dataclass
class Host:
    """An engine's process, with a GPU, whose pool is on a target that it reaches over RDMA."""

    target: MemoryTarget
    card: Card
    gpu: FakeCuda
    pool: Pool
    cache: Cache

    def tensor(self, size: int = EXTENT) -> Tensor:
        return Tensor(self.gpu, size)

    async def compare(self, name: bytes) -> None:
        """Read an object past the cache."""
        record = found(self.pool, name)
        for index in range(len(record.extents)):
            await self.pool.read_extent(record, index, direct(EXTENT))

    def straight(self) -> tuple[int, int]:
        """Bytes that went straight, and that were copied."""
        now = self.cache.statistics()
        return now.bytes_straight, now.bytes_copied


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    target, gpu = MemoryTarget(SIZE), FakeCuda()
    card = Card(target)
    async with devices([target]) as there:
        await create_pool(there, CreateOptions("test", DOMAIN, SlotClass.MIB2, REGION))
    async with (
        opened([target], tmp_path) as pool,
        cache_of(pool, driver_of=lambda _: gpu, keeping=card.keeping) as cache,
    ):
        yield Host(target, card, gpu, pool, cache)
    assert not target.regions


async def test_what_was_compared_goes_straight_into_the_gpu(host: Host) -> None:
    await put(host.pool, b"x", 2 * EXTENT)
    await host.compare(b"x")
    into = host.tensor(2 * EXTENT)
    with host.cache.rechecked(into):
        assert await host.cache.get_into("x", into) == 2 * EXTENT
    assert into.content == pattern(2 * EXTENT, b"x")
    assert host.straight() == (2 * EXTENT, 0)
    assert host.gpu.settled == 1 + 2, "what the card has written is to be seen by what the GPU does next"


async def test_what_was_not_compared_is_compared_first(host: Host) -> None:
    await put(host.pool, b"x", EXTENT)
    into = host.tensor()
    with host.cache.rechecked(into):
        await host.cache.get_into("x", into)
    assert into.content == pattern(EXTENT, b"x")
    assert host.straight() == (0, EXTENT)


async def test_a_connection_that_was_made_anew_is_a_reason_to_compare(host: Host) -> None:
    await put(host.pool, b"x", EXTENT)
    await host.compare(b"x")
    host.target.cut()
    await host.pool.media.device(DeviceNo(0)).read_into(0, direct(PAGE))  # which waits for the next one
    into = host.tensor()
    with host.cache.rechecked(into):
        await host.cache.get_into("x", into)
    assert into.content == pattern(EXTENT, b"x")
    assert host.straight() == (0, EXTENT)


async def test_only_memory_that_was_opened_and_whole_pages_of_it(host: Host) -> None:
    await put(host.pool, b"x", EXTENT)
    await put(host.pool, b"odd", EXTENT - 1)
    for name in (b"x", b"odd"):
        await host.compare(name)
    opened_one, other, odd = host.tensor(), host.tensor(), host.tensor()
    with host.cache.rechecked(opened_one), host.cache.rechecked(odd):
        await host.cache.get_into("odd", odd)
        assert host.straight() == (0, EXTENT - 1)
        await host.cache.get_into("x", other)
        assert host.straight() == (0, 2 * EXTENT - 1)
    await host.cache.get_into("x", opened_one)
    assert host.straight()[0] == 0, "behind its block everything is compared"
    assert opened_one.content == other.content == pattern(EXTENT, b"x")
    assert odd.content[:-1] == pattern(EXTENT - 1, b"odd")


async def test_who_did_not_ask_for_it_gets_no_bytes_that_went_straight(
    host: Host, expect_log: ExpectLog
) -> None:
    expect_log("object dropped", count=1)
    await put(host.pool, b"x", EXTENT)
    await host.compare(b"x")
    host.target.media[payload_at(host.pool, found(host.pool, b"x").ref)] ^= 1  # rots, with nobody the wiser
    straight, other = host.tensor(), host.tensor()
    with host.cache.rechecked(straight):
        first, second = await host.cache.get_many_into([("x", straight), ("x", other)])
    assert first.error is None
    assert straight.content != pattern(EXTENT, b"x"), "which is what was asked for"
    assert isinstance(second.error, BlockError)


async def test_a_version_stays_what_it_is_while_it_goes_straight(host: Host) -> None:
    record = await put(host.pool, b"x", EXTENT)
    await host.compare(b"x")
    into, held = host.tensor(), []

    def is_payload(command: wire.Command) -> bool:
        held.extend([command] if command.opcode == wire.Io.READ and command.words[2] & 0xFFFF > 1 else [])
        return command in held

    with host.cache.rechecked(into):
        host.target.hold = is_payload
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.cache.get_into, "x", into)
            await trio.testing.wait_all_tasks_blocked()
            assert held
            host.target.hold = lambda _: False
            await host.pool.remove(record)
            host.target.release()
    assert into.content == pattern(EXTENT, b"x")
    assert host.straight() == (0, EXTENT), "that it was removed made it worth comparing"
    with pytest.raises(NoObject):
        await host.cache.get_into("x", into)


async def test_a_card_that_does_not_reach_the_gpu_is_refused(host: Host) -> None:
    into = host.tensor()
    host.card.refuses = True
    refused = pytest.raises(RecheckRefused, match="does not reach 2097152 bytes of the GPU")
    with refused, host.cache.rechecked(into):
        pass
    await put(host.pool, b"x", EXTENT)
    await host.cache.get_into("x", into)
    assert into.content == pattern(EXTENT, b"x"), "as ever, through the host"


async def test_memory_of_the_host_is_always_compared(host: Host) -> None:
    with pytest.raises(BadBuffer, match="only memory of a GPU"), host.cache.rechecked(direct(EXTENT)):
        pass


async def test_a_closed_cache_opens_nothing(host: Host) -> None:
    host.cache.close()
    with pytest.raises(CacheClosed), host.cache.rechecked(host.tensor()):
        pass


async def test_devices_of_the_kernel_are_refused(tmp_path: Path) -> None:
    gpu, bench = FakeCuda(), await made(tmp_path)
    async with bench.pool() as pool, cache_of(pool, driver_of=lambda _: gpu) as cache:
        with (
            pytest.raises(
                RecheckRefused, match=r"no device of pool 'test' is read over RDMA .*'kvfs pool status'"
            ),
            cache.rechecked(Tensor(gpu, EXTENT)),
        ):
            pass
