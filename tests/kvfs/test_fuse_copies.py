"""Copies for the kernel: which files get one, which opens are told of it, and what is let go."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest
import trio
from trio.testing import MockClock

from blockdev.types import (
    MIB,
    ROOT,
    Descriptor,
    DeviceNo,
    Epoch,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotAddress,
    SlotNo,
)
from kvfs.fuse.copies import Copies
from kvfs.fuse.inodes import Inode, InodeTable
from kvfs.fuse.ports import MustWait

LIMIT = 16 * MIB
SIZE = 4 * MIB


@dataclass
class FakeKernel:
    """:ivar known: the files that it reads by itself"""

    known: dict[int, int] = field(default_factory=dict)
    refuses: int = 0
    closed: int = 0
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def new_file(self) -> int:
        assert not self.closed
        return os.memfd_create("copy")

    def back(self, fd: int) -> int:
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        number = next(self._numbers)
        self.known[number] = os.dup(fd)
        return number

    def let_go(self, number: int) -> None:
        os.close(self.known.pop(number))

    def close(self) -> None:
        self.closed += 1

    def content(self, number: int) -> bytes:
        return os.pread(self.known[number], LIMIT, 0)


@dataclass
class FakeReader:
    parts: Sequence[memoryview]

    def views(self, offset: int, length: int) -> Sequence[memoryview]:
        assert (offset, length) == (0, sum(map(len, self.parts)))
        return self.parts


@dataclass
class FakeReaders:
    """Of files that hold their object id again and again, in extents of 2 MiB."""

    away: bool = False
    opened: int = 0
    meanwhile: Callable[[], object] = lambda: None

    def open_now(self, record: Descriptor) -> FakeReader:
        if self.away:
            raise MustWait
        self.opened += 1
        self.meanwhile()
        content = memoryview(record.object_id * (record.size // 16))
        return FakeReader([content[at : at + 2 * MIB] for at in range(0, record.size, 2 * MIB)])

    def close(self, reader: FakeReader) -> None:
        self.opened -= 1


@dataclass
class Bench:
    kernel: FakeKernel
    readers: FakeReaders
    copies: Copies
    inodes: InodeTable

    def inode(self, number: int, size: int = SIZE) -> Inode:
        record = Descriptor(
            Kind.HEAD, SlotAddress(DeviceNo(0), RegionNo(0), SlotNo(number)), Epoch(1), Generation(1), 1,
            object_id=ObjectId(number.to_bytes(16, "big")), directory=ROOT, name=b"%d" % number, size=size,
        )  # fmt: skip
        inode = self.inodes.of_record(record)
        inode.lookups = 1
        return inode

    def open(self, inode: Inode) -> int:
        number = self.copies.opened(inode, hit=True)
        inode.handles += 1
        return number

    def close(self, inode: Inode, number: int) -> None:
        if number:
            self.copies.closed(inode)
        inode.handles -= 1

    async def use(self, inode: Inode) -> int:
        """Open and close it; the copy that the open was told of."""
        number = self.open(inode)
        self.close(inode, number)
        await self.settled()
        return number

    async def copied(self, inode: Inode) -> int:
        assert [await self.use(inode) for _ in range(2)] == [0, 0]
        return await self.use(inode)

    async def settled(self) -> None:
        while self.copies._wanted:  # noqa: ASYNC110 - they are made one after the other
            await trio.sleep(0.1)


@asynccontextmanager
async def bench(kernel: FakeKernel | None = None) -> AsyncIterator[Bench]:
    kernel = kernel or FakeKernel()
    readers = FakeReaders()
    async with trio.open_nursery() as nursery:
        soon = trio.lowlevel.current_trio_token().run_sync_soon
        copies = Copies(kernel, readers, nursery, soon, limit=LIMIT)  # type: ignore[arg-type]
        inodes = InodeTable()
        inodes.on_drop = copies.forget
        yield Bench(kernel, readers, copies, inodes)
        copies.close()
    assert kernel.known == {}
    assert kernel.closed == 1
    assert readers.opened == 0


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps while all tasks wait, and would while a thread is at work."""

    async def at_once(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)


async def test_the_third_open_is_told_of_a_copy(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)
        number = await b.copied(inode)
        assert number
        assert b.kernel.content(number) == inode.record.object_id * (SIZE // 16)  # type: ignore[union-attr]
        assert await b.use(inode) == number
        found = b.copies.statistics()
        assert (found.files, found.bytes, found.opens) == (1, SIZE, 2)


async def test_what_had_to_be_loaded_is_not_copied(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)
        assert [b.copies.opened(inode, hit=False) for _ in range(3)] == [0, 0, 0]
        assert await b.copied(inode)


async def test_one_is_made_once(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)
        b.readers.meanwhile = lambda: b.copies.opened(inode, hit=True)
        assert await b.copied(inode)
        assert len(b.kernel.known) == b.copies.statistics().files == 1
        assert b.copies.statistics().bytes == SIZE


async def test_one_is_made_when_nobody_opens_anything_or_after_a_while(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode, other = b.inode(1), b.inode(2)
        for _ in range(2):
            b.close(inode, b.open(inode))
        for _ in range(49):
            b.close(other, b.open(other))
            await trio.sleep(0.01)
        assert b.copies.statistics().files == 0
        for _ in range(5):
            b.close(other, b.open(other))
            await trio.sleep(0.01)
        await b.settled()
        assert b.copies.statistics().files >= 1


async def test_all_or_none_are_told(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)
        await b.use(inode)
        early = b.open(inode)
        await b.settled()
        assert b.copies.statistics().files == 1
        assert [early, b.open(inode)] == [0, 0]
        b.close(inode, 0)
        assert b.open(inode) == 0
        b.close(inode, 0)
        b.close(inode, 0)
        told = [b.open(inode), b.open(inode)]
        assert told[0] == told[1] != 0
        assert b.copies.is_open(inode)
        for number in told:
            b.close(inode, number)
        assert not b.copies.is_open(inode)


@pytest.mark.parametrize("size", [MIB - 16, LIMIT // 2 + 16])
async def test_small_and_large_files_have_none(autojump_clock: MockClock, size: int) -> None:
    async with bench() as b:
        assert await b.copied(b.inode(1, size)) == 0


async def test_what_was_opened_longest_ago_makes_room_but_not_while_it_is_open(
    autojump_clock: MockClock,
) -> None:
    async with bench() as b:
        inodes = [b.inode(number) for number in range(1, 6)]
        for inode in inodes[:4]:
            assert await b.copied(inode)
        held = b.open(inodes[0])
        assert await b.copied(inodes[4]) == 0
        await trio.sleep(10)
        await b.use(inodes[4])
        assert await b.use(inodes[4])
        assert b.copies.statistics().bytes == LIMIT
        assert b.open(inodes[0]) == held
        assert await b.use(inodes[1]) == 0
        for _ in range(2):
            b.close(inodes[0], held)


async def test_what_nobody_finds_any_more_makes_room_first(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inodes = [b.inode(number) for number in range(1, 6)]
        for inode in inodes[:4]:
            assert await b.copied(inode)
        inodes[2].gone = True
        assert await b.copied(inodes[4])
        assert await b.use(inodes[0])
        assert not b.copies.is_open(inodes[2])
        assert b.copies.statistics().files == 4


async def test_none_is_made_while_all_are_open(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inodes = [b.inode(number) for number in range(1, 6)]
        held = [(inode, await b.copied(inode) and b.open(inode)) for inode in inodes[:4]]
        assert await b.copied(inodes[4]) == 0
        for inode, number in held:
            b.close(inode, number)


async def test_it_goes_with_its_inode(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)
        assert await b.copied(inode)
        b.inodes.drop(inode)
        assert b.copies.statistics().files == 0
        assert b.kernel.known == {}


async def test_one_whose_inode_goes_while_it_is_made_is_not_kept(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)

        def forget() -> None:
            inode.lookups = 0
            b.inodes.drop(inode)

        b.readers.meanwhile = forget
        assert await b.copied(inode) == 0
        assert b.copies.statistics().files == 0


async def test_what_is_not_in_memory_is_asked_for_again_later(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)
        b.readers.away = True
        assert await b.copied(inode) == 0
        b.readers.away = False
        await b.use(inode)
        assert await b.use(inode)


@pytest.mark.parametrize("number, goes_on", [(errno.ENOSPC, True), (errno.EPERM, False)])
async def test_what_the_kernel_refuses(autojump_clock: MockClock, number: int, goes_on: bool) -> None:
    async with bench(FakeKernel(refuses=number)) as b:
        inode = b.inode(1)
        assert await b.copied(inode) == 0
        b.kernel.refuses = 0
        await b.use(inode)
        assert bool(await b.use(inode)) == goes_on


async def test_the_end_comes_while_one_is_made(autojump_clock: MockClock) -> None:
    async with bench() as b:
        inode = b.inode(1)
        b.readers.meanwhile = b.copies.close
        assert await b.copied(inode) == 0


async def test_without_a_kernel_there_are_none(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        soon = trio.lowlevel.current_trio_token().run_sync_soon
        copies = Copies(None, FakeReaders(), nursery, soon, limit=LIMIT)  # type: ignore[arg-type]
        inode = an_inode(InodeTable())
        assert [copies.opened(inode, hit=True) for _ in range(4)] == [0] * 4
        copies.close()


def an_inode(inodes: InodeTable) -> Inode:
    return Bench(FakeKernel(), FakeReaders(), None, inodes).inode(1)  # type: ignore[arg-type]
