"""Caches over small pools in memory, and memory to read into."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import trio

from blockdev.memory import page_buffer
from blockdev.pool import Pool
from kvfs.arena import Arena
from kvfs.cache import Cache, Namespace
from kvfs.cache.api import Tier
from kvfs.cache.gpu import DriverOf
from kvfs.cache.reading import PoolSource
from kvfs.cache.straight import Keeping, Straight
from kvfs.frames import FrameCache, open_frames
from kvfs.prefetch.returns import Returns
from kvfs.prefetcher import Mode, Prefetcher
from rdma.buffers import Arena as LeaseArena
from rdma.buffers import allocate
from rdma.cuda import open_driver
from rdma.stream import BYTES_UNDER_WAY, open_stream
from tests.blockdev.pools import EXTENT

NAMESPACE = Namespace("model")
LEASED = 2 * EXTENT


@asynccontextmanager
async def cache_of(
    pool: Pool,
    *,
    frames: int = 4,
    namespace: Namespace | None = NAMESPACE,
    driver_of: DriverOf = open_driver,
    bytes_under_way: int = BYTES_UNDER_WAY,
    keeping: Keeping = lambda _: nullcontext(),
) -> AsyncIterator[Cache]:
    """A cache of a pool, as `kvfs.open_cache` makes it."""
    straight = Straight(pool, keeping)
    async with (
        tiers_of(pool, frames=frames) as tier,
        open_stream(PoolSource(pool, tier, straight), bytes_under_way=bytes_under_way) as stream,
        trio.open_nursery() as nursery,
    ):
        arena = LeaseArena(allocate(LEASED), LEASED, EXTENT)
        prefetcher = Prefetcher(tier, Mode.ON, trio.current_time)
        nursery.start_soon(prefetcher.run)
        held = Tier(tier, prefetcher, straight, Returns())
        yield Cache(pool, held, stream, namespace, arena, driver_of)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def tiers_of(pool: Pool, *, frames: int) -> AsyncIterator[FrameCache]:
    async with open_frames(Arena(frames * EXTENT, EXTENT), pool) as tier:
        yield tier


def descriptors() -> int:
    """How many this process has open; what only garbage of earlier tests holds is not counted."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def direct(size: int) -> memoryview:
    """Memory that devices can read into."""
    return page_buffer(size)


def indirect(size: int) -> memoryview:
    """Memory that begins in the middle of a page."""
    return page_buffer(size + 64)[64:]
