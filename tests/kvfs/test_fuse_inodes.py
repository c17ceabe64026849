"""What a number stands for, and what it costs to remember it."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace

from blockdev.layout import pack_descriptor
from blockdev.types import (
    ROOT,
    Descriptor,
    DeviceNo,
    Epoch,
    ExtentRef,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotAddress,
    SlotNo,
    Stamp,
    Xxh3,
)
from kvfs.fuse.inodes import InodeTable

TIME = 1_800_000_000_000_000_000


def record(number: int, *, version: int = 0) -> Descriptor:
    """Of a file as engines name them, of one extent."""
    address = SlotAddress(DeviceNo(0), RegionNo(1), SlotNo(number))
    generation = Generation((1 << 32) + version)
    return Descriptor(
        Kind.HEAD, address, Epoch(1), generation, 3 + version,
        stamp=Stamp(TIME + number + version),
        object_id=ObjectId((number + 1).to_bytes(16, "big")),
        directory=ROOT,
        name=hashlib.sha256(b"%d" % number).hexdigest().encode() + b".bin",
        mtime_ns=TIME, ctime_ns=TIME, btime_ns=TIME,
        size=100, stored_size=100,
        extents=(ExtentRef(*address, generation, Xxh3(number)),),
    )  # fmt: skip


def test_a_version_that_is_renamed_here_keeps_its_inode():
    table = InodeTable()
    first = record(0)
    inode = table.of_record(first)
    renamed = replace(first, name=b"new", stamp=Stamp(first.stamp + 1), sequence=4)
    table.renew(renamed)
    assert table.of_packed(pack_descriptor(renamed)) is inode
    assert inode.record == renamed
    assert inode.place == (ROOT, b"new")
    table.renew(first)
    assert inode.record == renamed, "what is older changes nothing"
    assert table.at((ROOT, b"new")) == [inode]
    assert table.at((ROOT, first.name)) == []


def test_a_version_that_is_renamed_elsewhere_has_another_inode():
    table = InodeTable()
    first = record(0)
    inode = table.of_record(first)
    renamed = replace(first, name=b"new", stamp=Stamp(first.stamp + 1), sequence=4)
    assert table.of_packed(pack_descriptor(renamed)) is not inode
    assert inode.record == first


def test_another_version_has_another_inode():
    table = InodeTable()
    old, new = table.of_record(record(0)), table.of_record(record(0, version=1))
    assert old is not new
    assert table.versions(record(0).object_id) == [old, new]
    table.drop(new)
    assert table.versions(record(0).object_id) == [old]
    table.drop(old)
    assert table.versions(record(0).object_id) == []
    assert len(table) == 1, "the root"


def test_what_stands_for_nothing_keeps_its_place():
    table = InodeTable()
    inode = table.of_record(record(0))
    table.bind(inode, None)
    assert (inode.record, inode.place, inode.parent) == (None, (ROOT, record(0).name), ROOT)
    assert table.versions(record(0).object_id) == []
    table.bind(inode, record(1))
    assert inode.place == (ROOT, record(1).name)
    assert table.of_record(record(1)) is inode


def test_a_file_that_the_kernel_remembers_costs_less_than_700_bytes():
    """With the eviction order's 190 and the slot's 40 that is less than a KiB for each."""
    count = 20_000
    table = InodeTable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            table.of_packed(pack_descriptor(record(number)))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / count < 700
