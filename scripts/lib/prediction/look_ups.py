"""What it costs a mount to think about a look-up: with a real pool's catalogue, whose device is memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from blockdev.creating import CreateOptions, create_pool
from blockdev.memory import page_buffer
from blockdev.opening import OpenOptions, open_pool
from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.testing import MemoryDevice
from blockdev.types import GIB, MIB, PAGE, ROOT, Descriptor, ExtentRef, SlotClass, Xxh3
from kvfs.arena import Arena
from kvfs.frames import FrameCache, open_frames
from kvfs.fuse.foresight import Foresight
from kvfs.predecessors import Predecessors
from kvfs.prefetcher import Mode, Prefetcher

CHAINS, BLOCKS = 12, 32
FRAMES = 2048
THREAD = 1
_DOMAIN = "local:bench"


def seconds(rounds: int) -> list[float]:
    """What one core spends on each look-up of chains that nobody has asked for since mounting, in their order.

    :param rounds: mounts
    """
    return trio.run(_seconds, rounds)


async def _seconds(rounds: int) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="kvfs-bench-") as folder:
        device = MemoryDevice(GIB)
        await create_pool([device], CreateOptions("bench", _DOMAIN, SlotClass.MIB2, 64 * MIB))
        async with open_pool([device.reopen()], Path(folder), OpenOptions(_DOMAIN)) as opened:
            chains = [await _stored(opened.pool, number) for number in range(CHAINS)]
            arena = Arena(FRAMES * PAGE, PAGE, huge_pages=False)
            async with open_frames(arena, opened.pool) as frames:
                return [spent for _ in range(rounds) for spent in _looked_up(opened.pool, frames, chains)]


async def _stored(pool: Pool, chain: int) -> list[Descriptor]:
    predecessors, records = Predecessors(), []
    for number in range(BLOCKS):
        name = b"%064x.bin" % ((chain << 32 | number) * 0x9E3779B97F4A7C15 + (1 << 200))
        slot = await pool.reserve(PAGE)
        await pool.write(slot, page_buffer(PAGE))
        extents = (ExtentRef(*slot, Xxh3(0)),)
        new = NewObject(
            ROOT, name, 0o100644, 0, 0, 0, PAGE, extents, predecessor=predecessors.of(chain, name)
        )
        records.append(await pool.publish(new))
        predecessors.note(chain, name)
    return records


def _looked_up(pool: Pool, frames: FrameCache, chains: list[list[Descriptor]]) -> Iterator[float]:
    prefetcher = Prefetcher(frames, Mode.ON, time.monotonic)
    foresight = Foresight(pool, prefetcher)
    for chain in chains:
        for record in chain:
            begun = time.thread_time()
            foresight.looked_up(record, THREAD)
            yield time.thread_time() - begun
    if prefetcher.failed or not prefetcher.statistics().expected:
        raise AssertionError("nothing was expected")
