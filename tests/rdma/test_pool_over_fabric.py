"""A pool whose devices are namespaces over initiators: made, filled, read into callers' memory, and through broken connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import trio.testing

from blockdev.creating import CreateOptions, create_pool
from blockdev.opening import OpenOptions, open_pool
from blockdev.pool import Pool
from blockdev.types import MIB, ROOT, SlotClass
from kvfs.rdma_device import RdmaDevice
from rdma import nvme_wire as wire
from rdma.bring_up import Identity
from rdma.initiator import open_initiator
from rdma.memory_target import MemoryTarget
from tests.blockdev.pools import DOMAIN, EXTENT, REGION, content, pattern, put
from tests.kvfs.caches import cache_of, direct

SIZE = MIB + 4 * REGION


@asynccontextmanager
async def devices(targets: list[MemoryTarget]) -> AsyncIterator[list[RdmaDevice]]:
    async with AsyncExitStack() as stack:
        made = []
        for number, target in enumerate(targets):
            who = Identity(f"nqn.2014-08.org.example:kv{number}", "nqn.2014-08.org.example:host", bytes(16))
            made.append(RdmaDevice(await stack.enter_async_context(open_initiator([target], who, 1))))
        yield made


@asynccontextmanager
async def opened(targets: list[MemoryTarget], folder: Path) -> AsyncIterator[Pool]:
    async with (
        devices(targets) as there,
        open_pool(there, folder, OpenOptions(DOMAIN, boot_id="boot")) as pool,
    ):
        yield pool.pool


async def test_a_pool_over_two_targets(tmp_path: Path) -> None:
    targets = [MemoryTarget(SIZE), MemoryTarget(SIZE)]
    async with devices(targets) as there:
        await create_pool(there, CreateOptions("test", DOMAIN, SlotClass.MIB2, REGION))
    async with opened(targets, tmp_path) as pool:
        await put(pool, b"large", 3 * EXTENT + 17)
        await put(pool, b"small", 100)
    async with opened(targets, tmp_path) as pool, cache_of(pool) as cache:
        for name, size in ((b"large", 3 * EXTENT + 17), (b"small", 100)):
            record = pool.lookup(ROOT, name)
            assert record is not None
            assert await content(pool, record) == pattern(size, name)
            into = direct(size)
            assert await cache.get_into(name.decode(), into) == size
            assert into == pattern(size, name)
    assert all(any(command.opcode == wire.Io.READ for _, command in target.commands) for target in targets)
    assert not any(target.regions for target in targets)


async def test_reads_go_on_when_the_connection_breaks_under_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rng = Random(1)
    targets = [MemoryTarget(SIZE)]
    async with devices(targets) as there:
        await create_pool(there, CreateOptions("test", DOMAIN, SlotClass.MIB2, REGION))
    async with opened(targets, tmp_path) as pool, cache_of(pool) as cache:
        for number in range(5):
            await put(pool, b"%d" % number, EXTENT)
        for number in range(5):
            targets[0].hold = lambda command: command.opcode == wire.Io.READ and rng.random() < 0.5
            into = direct(EXTENT)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cache.get_into, str(number), into)
                await trio.testing.wait_all_tasks_blocked()
                targets[0].hold = lambda _: False
                targets[0].cut()
            assert into == pattern(EXTENT, b"%d" % number)
        assert cache.statistics().failed == 0
