"""What other members change: which numbers become stale, what the kernel is told, and what stays."""

from __future__ import annotations

import errno

from blockdev.types import ROOT, Descriptor, Foreign
from kvfs.fuse.attributes import RootAttributes
from kvfs.fuse.foreign import ForeignChanges
from tests.e2e.helpers import fails
from tests.kvfs.test_fuse_tree import READ, WRITE, A, Kernel, kernel, until


def told(k: Kernel, *changes: Descriptor | None) -> list[int]:
    """What the kernel hears of the names and objects of these records; None for anything."""
    k.told.clear()
    foreign = ForeignChanges(k.volume, RootAttributes(0o40700, 0, 0, 0), k.volume.services.memory._nursery)
    for record in changes:
        foreign.changed(None if record is None else Foreign(record.object_id, record.directory, record.name))
    return sorted(set(k.told) - {1})


def record_of(k: Kernel, name: bytes) -> Descriptor:
    record = k.pool.lookup(ROOT, name)
    assert record is not None
    return record


async def test_what_did_not_change_is_not_told():
    async with kernel() as k:
        await k.store(b"f", b"1")
        assert told(k, record_of(k, b"f")) == []


async def test_attributes_keep_the_number():
    async with kernel() as k:
        inode = await k.store(b"f", b"1")
        changed = await k.pool.update(record_of(k, b"f"), mode=0o100741)
        assert told(k, changed) == [inode.number]
        assert not inode.stale
        assert inode.record == changed


async def test_a_removed_file_is_stale_and_open_ones_go_on():
    async with kernel() as k:
        inode = await k.store(b"f", b"1")
        reader = await k.open(b"f", READ)
        record = record_of(k, b"f")
        await k.pool.remove(record)
        assert told(k, record) == [inode.number]
        assert inode.stale
        assert not k.volume.is_missing(inode), "it is open"
        assert bytes(await k.files.read(reader.number, 0, 10)) == b"1"
        with fails(errno.ESTALE):
            await k.files.open(inode, READ, A)
        await k.close(reader)
        assert k.volume.is_missing(inode)


async def test_a_renamed_file_has_another_number_even_if_it_was_looked_up_before_it_was_told():
    async with kernel() as k:
        inode = await k.store(b"old", b"1")
        before = record_of(k, b"old")
        await k.pool.rename(before, ROOT, b"new")
        found = await k.found(b"new")
        assert found is not inode
        assert told(k, before) == [inode.number]
        assert (inode.stale, found.stale) == (True, False)
        assert k.volume.is_missing(inode)


async def test_a_replaced_file_is_found_by_its_name():
    async with kernel() as k:
        inode = await k.store(b"f", b"1")
        await k.store(b"g", b"2")
        await k.pool.rename(record_of(k, b"g"), ROOT, b"f")
        assert inode.number in told(k, record_of(k, b"f"))
        assert inode.stale
        assert await k.content(b"f") == b"2"


async def test_a_draft_is_looked_at_when_it_ends():
    async with kernel() as k:
        await k.store(b"f", b"1")
        writer = await k.open(b"f", WRITE)
        await k.files.write(writer.number, 0, b"2")
        await k.files.flush(writer.number)
        record = record_of(k, b"f")
        await k.pool.remove(record)
        told(k, record)
        assert not writer.inode.stale
        await k.files.release(writer.number)
        assert writer.inode.stale


async def test_after_a_gap_everything_is_looked_at():
    async with kernel() as k:
        inodes = [await k.store(b"%d" % number, b"1") for number in range(5)]
        await k.pool.remove(record_of(k, b"3"))

        async def has_room() -> None:
            await k.volume.pool.extents(record_of(k, b"1"))  # lets others run

        k.volume.invalidator.has_room = has_room  # type: ignore[method-assign]
        told(k, None)
        await until(lambda: inodes[3].stale)
        assert [inode.stale for inode in inodes] == [False, False, False, True, False]
