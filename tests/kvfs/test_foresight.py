"""What look-ups and opens of a mount's files make it fetch: counted in reads, driven as the kernel drives it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
import trio

from blockdev.types import Descriptor, SlotRef
from kvfs.frames import Arena, FrameCache, open_frames
from kvfs.fuse.attributes import Attributes, RootAttributes
from kvfs.fuse.foresight import SPARING
from kvfs.fuse.inodes import Inode
from kvfs.fuse.link import PlainLink
from kvfs.fuse.mount import Mount, MountOptions
from kvfs.fuse.volume import Caller
from kvfs.prefetch.streams import READERS, is_sentinel
from kvfs.prefetcher import Mode
from tests.conftest import ExpectLog
from tests.kvfs.fake_pool import EXTENT, FakePool

FRAMES = 512
WRITER, READER = Caller(1, 2, 100), Caller(1, 2, 200)


def block_hash(number: int) -> bytes:
    return b"%064x" % (number + 0xABCDEF)


@dataclass
class Reads:
    """Counts what reads of a pool ask for, by slot."""

    pool: FakePool
    slots: list[SlotRef] = field(default_factory=list)

    async def read_extent(self, record: Descriptor, index: int, into: memoryview) -> int:
        self.slots.append(record.extents[index].ref)
        return await self.pool.read_extent(record, index, into)


@dataclass
class Bench:
    """A mount of a pool, and who reads and writes there."""

    pool: FakePool
    mount: Mount
    frames: FrameCache
    reads: Reads

    async def store(self, name: bytes, thread: int = 100) -> None:
        """As engines do: a temporary file, then its name."""
        caller, root = Caller(1, 2, thread), self.mount.volume.inodes.root
        files, tree = self.mount.files, self.mount.tree
        handle, _ = await files.create(root, name + b".17.tmp", 0o600, os.O_RDWR | os.O_CREAT, caller)
        await files.write(handle.number, 0, name.ljust(EXTENT, b"."))
        await files.flush(handle.number)
        await files.release(handle.number)
        await tree.rename((root, name + b".17.tmp"), (root, name), replace=True, caller=caller)

    async def look_up(self, name: bytes, thread: int = 200) -> Inode:
        inode = await self.mount.tree.lookup(self.mount.volume.inodes.root, name, Caller(1, 2, thread))
        assert inode is not None
        return inode

    async def load(self, name: bytes, thread: int = 200) -> None:
        """Open and read; what was read is right."""
        inode = await self.look_up(name, thread)
        handle = await self.mount.files.open(inode, os.O_RDONLY, Caller(1, 2, thread))
        assert bytes(await self.mount.files.read(handle.number, 0, EXTENT)) == name.ljust(EXTENT, b".")
        await self.mount.files.release(handle.number)

    def has(self, name: bytes) -> bool:
        record = self.mount.volume.pool.lookup(self.mount.volume.inodes.root.directory, name)
        return record is not None and all(self.frames.holds(extent.ref) for extent in record.extents)

    async def settle(self) -> None:
        """Until nothing is under way."""
        while self.frames.statistics().loading or self.mount.prefetcher.statistics().expected:  # noqa: ASYNC110
            await trio.sleep(0.01)


@asynccontextmanager
async def mounted(pool: FakePool, mode: Mode = Mode.ON) -> AsyncIterator[Bench]:
    """A mount, with nothing in memory."""
    reads = Reads(pool)
    arena = Arena(FRAMES * EXTENT, EXTENT, huge_pages=False)
    async with open_frames(arena, reads, patience=0.1) as frames, trio.open_nursery() as nursery:
        options = MountOptions(lane=False, prefetch=mode)
        mount = Mount(pool, frames, options, nursery, PlainLink("/", "test", allow_other=False))
        nursery.start_soon(mount.prefetcher.run)
        yield Bench(pool, mount, frames, reads)
        nursery.cancel_scope.cancel()


async def stored(names: list[bytes], threads: list[int] | None = None) -> FakePool:
    """A pool with files, published one after the other."""
    pool = FakePool()
    async with mounted(pool) as b:
        for name, thread in zip(names, threads or [100] * len(names), strict=True):
            await b.store(name, thread)
    return pool


NAMES = [block_hash(number) + b".bin" for number in range(40)]


async def test_files_are_there_before_a_reader_after_a_remount(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with mounted(await stored(NAMES)) as b:
        waited = 0
        for name in NAMES:
            waited += not b.has(name)
            await b.load(name)
            await b.settle()
        assert waited == 2
        assert len(b.reads.slots) == len(set(b.reads.slots)) == len(NAMES)
        shown = b.mount.prefetcher.statistics()
        assert shown.used_by_source["chain"] == (len(NAMES) - 2) * EXTENT
        assert shown.accuracy_by_source["chain"] == 1.0


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.OBSERVE])
async def test_only_if_it_may(mode: Mode, autojump_clock: trio.testing.MockClock) -> None:
    async with mounted(await stored(NAMES), mode) as b:
        for name in NAMES:
            assert not b.has(name)
            await b.load(name)
        used = b.mount.prefetcher.statistics().used_by_source["chain"]
        assert used == (0 if mode is Mode.OFF else (len(NAMES) - 2) * EXTENT)


async def test_looking_up_two_names_loads_them_and_what_follows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with mounted(await stored(NAMES)) as b:
        await b.look_up(NAMES[0])
        await b.settle()
        assert not b.reads.slots
        await b.look_up(NAMES[1])
        await b.settle()
        assert [number for number in range(40) if b.has(NAMES[number])] == list(range(10))


async def test_what_will_be_read_first_is_there_first(autojump_clock: trio.testing.MockClock) -> None:
    """Where not all that is looked up has room, and loads take longer and longer."""
    async with mounted(await stored(NAMES)) as b:
        limit = b.mount.prefetcher._unused_limit = 16
        for name in NAMES:
            await b.look_up(name)
            await trio.sleep(0.001)
        await trio.sleep(1)
        assert b.mount.prefetcher.statistics().expected == len(NAMES) - limit
        assert [number for number, name in enumerate(NAMES) if b.has(name)] == list(range(limit))


async def test_looking_up_sentinels_only_loads_all(autojump_clock: trio.testing.MockClock) -> None:
    """The kernel answers for the others."""
    async with mounted(await stored(NAMES)) as b:
        for number, name in enumerate(NAMES):
            if is_sentinel(number):
                await b.look_up(name)
        await b.settle()
        assert all(map(b.has, NAMES))


async def test_the_kernel_is_told_to_ask_again_for_sentinels(autojump_clock: trio.testing.MockClock) -> None:
    async with mounted(await stored(NAMES)) as b:
        attributes = Attributes(b.mount.volume, RootAttributes(0o040755, 0, 0, 0))
        for number, name in enumerate(NAMES):
            inode = await b.look_up(name)
            assert (attributes.of(inode).entry_timeout == 0) is is_sentinel(number)
            inode = await b.look_up(name)  # it does
            assert (attributes.of(inode).entry_timeout == 0) is is_sentinel(number)


async def test_who_looks_at_random_is_answered_by_the_kernel_the_next_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    names = [block_hash(number) + b".bin" for number in range(500)]
    async with mounted(await stored(names)) as b:
        attributes = Attributes(b.mount.volume, RootAttributes(0o040755, 0, 0, 0))
        rng = Random(1)
        asked_again = 0
        for name in rng.sample(names, len(names)):
            inode = await b.look_up(name, rng.randrange(200, 208))
            asked_again += attributes.of(inode).entry_timeout == 0
        assert 0 < asked_again <= SPARING + len(names) / SPARING


async def test_names_looked_up_in_no_order_are_asked_for_twice_at_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    names = [b"%d" % number for number in range(3 * READERS)]
    async with mounted(await stored(names)) as b:
        attributes = Attributes(b.mount.volume, RootAttributes(0o040755, 0, 0, 0))
        for times in range(3):
            for number in range(0, 3 * READERS, 2):
                entry = attributes.of(await b.look_up(names[number]))
                assert entry.entry_timeout > 0 or times == 0


async def test_the_beginning_of_what_is_read_is_always_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with mounted(await stored(NAMES)) as b:
        attributes = Attributes(b.mount.volume, RootAttributes(0o040755, 0, 0, 0))
        for _ in range(4):
            for number, name in enumerate(NAMES):
                if is_sentinel(number):
                    assert attributes.of(await b.look_up(name)).entry_timeout == 0


async def test_all_ranks_and_halves_of_a_block_go_together(autojump_clock: trio.testing.MockClock) -> None:
    parts = [b"_llama_%d_2_%s" % (rank, half) for rank in range(2) for half in (b"k", b"v")]
    names = [[block_hash(number) + part for part in parts] for number in range(10)]
    writers = [[rank, rank] for rank in range(2)]
    flat = [name for block in names for name in block]
    pool = await stored(flat, [thread for _ in names for pair in writers for thread in pair])
    async with mounted(pool) as b:
        await b.load(names[0][0])
        await b.load(names[1][0])
        await b.settle()
        assert all(b.has(name) for block in names[2:] for name in block)


async def test_one_file_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with mounted(await stored(NAMES)) as b:
        for name in (NAMES[7], NAMES[20], NAMES[3]):
            await b.load(name)
            await b.settle()
        assert len(b.reads.slots) == 3


async def test_a_reader_that_goes_elsewhere_costs_what_was_under_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    names = [b"a-%d" % n for n in range(30)]
    other = [b"b-%d" % n for n in range(10)]
    pool = await stored([*names, *other], [1] * 30 + [2] * 10)
    async with mounted(pool) as b:
        for name in names[:3]:
            await b.load(name)
        for name in other:
            await b.load(name)
        await b.settle()
        assert sum(map(b.has, names)) <= 3 + 8


async def test_the_order_of_reading_is_learnt_where_that_of_writing_is_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    order = NAMES[::2] + NAMES[1::2]
    async with mounted(await stored(order)) as b:
        waited = []
        for _ in range(4):
            b.frames.forget([*b.reads.slots])
            await trio.sleep(600)  # until it is forgotten how wrong the first order was
            waited.append(0)
            for name in NAMES:
                waited[-1] += not b.has(name)
                await b.load(name)
                await b.settle()
        assert waited[-1] < 9  # as many as the reader had before it when they were forgotten
        assert len(b.reads.slots) <= 4 * len(NAMES) + 40


async def test_what_is_gone_is_not_fetched(autojump_clock: trio.testing.MockClock) -> None:
    pool = await stored(NAMES)
    async with mounted(pool) as b:
        for name in NAMES[3:6]:
            record = pool.lookup(b.mount.volume.inodes.root.directory, name)
            assert record is not None
            await pool.remove(record)
        await b.load(NAMES[0])
        await b.load(NAMES[1])
        await b.settle()
        assert b.has(NAMES[2])
        assert not any(map(b.has, NAMES[3:6]))


async def test_a_bug_fails_no_request(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, expect_log: ExpectLog
) -> None:
    expect_log("nothing is fetched ahead any more", count=1)
    async with mounted(await stored(NAMES)) as b:
        monkeypatch.setattr(b.mount.volume.foresight, "_streams", None)
        for name in NAMES[:4]:
            await b.load(name)
        assert len(b.reads.slots) == 4
