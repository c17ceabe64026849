"""A pool in a dictionary, with small extents, that fails when it is told to."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import trio
from xxhash import xxh3_64_intdigest

from blockdev.device import Begun
from blockdev.errors import ChecksumError, Exists, IsDirectory, Missing, NoSpace, NotEmpty, Raced, Unavailable
from blockdev.layout import pack_descriptor
from blockdev.publication import NewObject
from blockdev.publisher import Arrived
from blockdev.types import (
    PAGE,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    Epoch,
    ExtentRef,
    Foreign,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotAddress,
    SlotNo,
    SlotRef,
    Stamp,
)
from kvfs.fuse.ports import Attributes, Xattrs

EXTENT = 4 * PAGE
SMALL = PAGE
"""Bytes of the smaller slot class."""
INLINE = 100


@dataclass
class Totals:
    total: int
    used: int
    held: int


class FakePool:
    """Keeps what `blockdev.pool.Pool` promises; every operation lets other tasks run.

    :ivar slots: contents of the slots in use
    :ivar reserved: slots that nobody published
    :ivar fail: raised once by the next call of that name
    """

    def __init__(self, capacity: int = 1000) -> None:
        self.name = "fake"
        self.extent_size = EXTENT
        self.on_gone: list[Callable[[Descriptor], None]] = []
        self.on_changed: list[Callable[[Foreign | None], None]] = []
        self.alone = True
        self.begins = False
        """Writes can be begun without waiting; they reach the media when they are awaited."""
        self.capacity = capacity
        self.lost: set[SlotRef] = set()
        """Slots on a device that is lost; writing to one fails."""
        self.lose_at_write = False
        """The next write loses the device of its slot."""
        self.slots: dict[SlotRef, bytearray] = {}
        self.reserved: set[SlotRef] = set()
        self.pins: Counter[tuple[ObjectId, Stamp]] = Counter()
        self.fail: dict[str, Exception] = {}
        self.writes = 0
        self.touched: list[ObjectId] = []
        self._limbo: dict[ObjectId, list[tuple[Stamp, SlotRef]]] = {}
        self._numbers = itertools.count(1000)
        self._records: dict[ObjectId, Descriptor] = {}

    async def _step(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        error = self.fail.pop(name, None)
        if error is not None:
            raise error

    # names

    def lookup(self, directory: DirectoryId, name: bytes) -> Descriptor | None:
        for record in self._records.values():
            if (record.directory, record.name) == (directory, name):
                return record
        return None

    def published_after(self, predecessor: bytes, limit: int) -> list[Descriptor]:
        found = [r for r in self._records.values() if r.predecessor == predecessor]
        return sorted(found, key=lambda record: record.stamp, reverse=True)[:limit]

    def entries(self, directory: DirectoryId, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        found = [r for r in self._records.values() if r.directory == directory and r.name > after]
        for record in sorted(found, key=lambda record: record.name):
            if record.object_id in self._records:
                yield record.name, pack_descriptor(record)

    def directory(self, directory: DirectoryId) -> Descriptor | None:
        return self._records.get(ObjectId(directory))

    def is_empty(self, directory: DirectoryId) -> bool:
        return next(self.entries(directory), None) is None

    # reading

    def touch(self, record: Descriptor) -> None:
        self.touched.append(record.object_id)

    def pin(self, record: Descriptor) -> None:
        self.pins[record.object_id, record.stamp] += 1

    def unpin(self, record: Descriptor) -> None:
        self.pins[record.object_id, record.stamp] -= 1
        assert self.pins[record.object_id, record.stamp] >= 0
        if not self.pins[record.object_id, record.stamp]:
            del self.pins[record.object_id, record.stamp]
        self._reap(record.object_id)

    def _reap(self, object_id: ObjectId) -> None:
        oldest = min((stamp for held, stamp in self.pins if held == object_id), default=None)
        left = []
        for stamp, ref in self._limbo.pop(object_id, []):
            if oldest is not None and oldest < stamp:
                left.append((stamp, ref))
            else:
                del self.slots[ref]
        if left:
            self._limbo[object_id] = left

    async def extents(self, record: Descriptor) -> tuple[ExtentRef, ...]:
        await self._step("extents")
        return record.extents

    async def read_extent(self, record: Descriptor, index: int, into: memoryview) -> int:
        await self._step("read_extent")
        length = max(0, min(EXTENT, record.size - index * EXTENT))
        if record.inline:
            into[:length] = record.inline
            return length
        extent = record.extents[index]
        if extent.is_hole:
            into[:length] = bytes(length)
            return length
        slot = self.slots.get(extent.ref)
        if slot is None:
            raise Raced("reused")
        if xxh3_64_intdigest(slot[:length]) != extent.xxh3:
            raise ChecksumError("wrong bytes")
        into[:length] = slot[:length]
        return length

    # writing

    def slot_size(self, length: int) -> int:
        return SMALL if length <= SMALL else EXTENT

    async def reserve(self, length: int) -> SlotRef:
        await self._step("reserve")
        if len(self.slots) >= self.capacity:
            raise NoSpace("full")
        return self._reserved(length)

    def _reserved(self, length: int) -> SlotRef:
        number = next(self._numbers)
        ref = SlotRef(DeviceNo(0), RegionNo(0), SlotNo(number), Generation(number))
        self.slots[ref] = bytearray(b"\xee" * self.slot_size(length))
        self.reserved.add(ref)
        return ref

    def try_reserve(self, length: int) -> SlotRef | None:
        if len(self.slots) >= self.capacity:
            return None
        return self._reserved(length)

    def is_lost(self, ref: SlotRef) -> bool:
        return ref in self.lost

    def give_back(self, ref: SlotRef) -> None:
        self.reserved.remove(ref)
        del self.slots[ref]

    async def write(self, ref: SlotRef, data: memoryview, at: int = 0) -> None:
        assert ref in self.reserved
        assert not len(data) % PAGE
        assert not at % PAGE
        assert at + len(data) <= len(self.slots[ref])
        await self._step("write")
        if self.lose_at_write:
            self.lost.add(ref)
            self.lose_at_write = False
        if self.is_lost(ref):
            raise Unavailable("the device is lost")
        assert ref in self.reserved, "given back while it was written"
        self.writes += 1
        self.slots[ref][at : at + len(data)] = data

    def begin_write(self, ref: SlotRef, data: memoryview) -> Begun | None:
        if self.is_lost(ref):
            raise Unavailable("the device is lost")
        return Begun(lambda: None, partial(self.write, ref, data)) if self.begins else None

    async def read_reserved(self, ref: SlotRef, into: memoryview) -> None:
        assert ref in self.reserved
        await self._step("read_reserved")
        into[:] = self.slots[ref][: len(into)]

    def inline_limit(self, name: bytes, xattrs: Xattrs = ()) -> int:
        return INLINE - sum(len(key) + len(value) for key, value in xattrs)

    async def publish(self, new: NewObject, arrived: Arrived | None = None) -> Descriptor:
        base = self._records.get(new.base.object_id) if new.base is not None else None
        kept = set(new.base.extents if new.base is not None else ()) & set(new.extents)
        fresh = [e.ref for e in new.extents if not e.is_hole and e not in kept]
        try:
            await self._step("publish")
            old = self._check_free(new)
            if arrived is not None:
                await arrived()
        except BaseException:
            if arrived is not None:
                with suppress(Exception):
                    await arrived()  # noqa: ASYNC102 - nothing may be written into slots that are freed
            for ref in fresh:
                self.give_back(ref)
            raise
        for index, extent in enumerate(new.extents):
            if not extent.is_hole:
                used = min(EXTENT, new.size - index * EXTENT)
                assert xxh3_64_intdigest(self.slots[extent.ref][:used]) == extent.xxh3
        self.reserved.difference_update(fresh)
        kept = {extent for extent in kept if not extent.is_hole}
        object_id = base.object_id if base is not None and kept else self._new_id()
        record = self._record(new, object_id)
        if old is not None and old.object_id != object_id:
            self._drop(old)
        self._records[object_id] = record
        if base is not None and kept:
            self._limbo_later(base, {e.ref for e in base.extents if not e.is_hole} - {e.ref for e in kept})
        return record

    def _check_free(self, new: NewObject) -> Descriptor | None:
        if new.directory != ROOT and ObjectId(new.directory) not in self._records:
            raise Missing("directory")
        old = self.lookup(new.directory, new.name)
        if old is not None and not new.replace:
            raise Exists("there")
        if old is not None and old.kind is Kind.DIRECTORY:
            raise IsDirectory("directory")
        return old

    def _record(self, new: NewObject, object_id: ObjectId) -> Descriptor:
        stamp = Stamp(next(self._numbers))
        return Descriptor(
            new.kind,
            SlotAddress(DeviceNo(0), RegionNo(0), SlotNo(0)),
            Epoch(0),
            Generation(0),
            0,
            stamp=stamp,
            object_id=object_id,
            directory=new.directory,
            name=new.name,
            mode=new.mode,
            uid=new.uid,
            gid=new.gid,
            mtime_ns=new.mtime_ns,
            ctime_ns=stamp,
            size=new.size,
            stored_size=new.size,
            extents=new.extents,
            xattrs=new.xattrs,
            inline=new.inline,
            predecessor=new.predecessor,
        )

    def _new_id(self) -> ObjectId:
        return ObjectId(next(self._numbers).to_bytes(16, "big"))

    def _drop(self, record: Descriptor) -> None:
        self._records.pop(record.object_id, None)
        self._limbo_later(record, {e.ref for e in record.extents if not e.is_hole})

    def _limbo_later(self, record: Descriptor, refs: set[SlotRef]) -> None:
        later = Stamp(next(self._numbers))
        self._limbo.setdefault(record.object_id, []).extend((later, ref) for ref in refs)
        self._reap(record.object_id)

    async def rename(
        self, record: Descriptor, directory: DirectoryId, name: bytes, *, replace: bool = True
    ) -> Descriptor:
        await self._step("rename")
        old = self.lookup(directory, name)
        if old is not None and not replace:
            raise Exists("there")
        if old is not None and old.object_id != record.object_id:
            self._drop(old)
        return self._change(record, directory=directory, name=name)

    async def update(self, record: Descriptor, **attributes: Unpack[Attributes]) -> Descriptor:
        await self._step("update")
        return self._change(record, **attributes)

    def _change(self, record: Descriptor, **changes: object) -> Descriptor:
        current = self._records.get(record.object_id)
        if current is None:
            raise Missing("gone")
        changed = replace(current, stamp=Stamp(next(self._numbers)), **changes)  # type: ignore[arg-type]
        self._records[record.object_id] = changed
        return changed

    async def update_root(self, mode: int, uid: int, gid: int) -> Descriptor:
        await self._step("update_root")
        new = NewObject(DirectoryId(bytes(16)), b"", mode, uid, gid, 0, 0, kind=Kind.DIRECTORY)
        self._records[ObjectId(ROOT)] = record = self._record(new, ObjectId(ROOT))
        return record

    async def remove(self, record: Descriptor) -> None:
        await self._step("remove")
        if record.object_id not in self._records:
            raise Missing("gone")
        if record.kind is Kind.DIRECTORY and not self.is_empty(DirectoryId(record.object_id)):
            raise NotEmpty("not empty")
        self._drop(self._records[record.object_id])

    def evict(self, record: Descriptor) -> None:
        """Let an object go, as the real pool does unasked."""
        self._drop(record)
        for callback in self.on_gone:
            callback(record)

    async def make_directory(
        self, directory: DirectoryId, name: bytes, mode: int, uid: int, gid: int
    ) -> Descriptor:
        return await self.publish(
            NewObject(directory, name, 0o040000 | mode, uid, gid, 0, 0, kind=Kind.DIRECTORY, replace=False)
        )

    async def make_symlink(
        self, directory: DirectoryId, name: bytes, target: bytes, uid: int, gid: int
    ) -> Descriptor:
        new = NewObject(
            directory, name, 0o120777, uid, gid, 0, len(target),
            kind=Kind.SYMLINK, inline=target, replace=False,
        )  # fmt: skip
        return await self.publish(new)

    def totals(self) -> Totals:
        return Totals(self.capacity * EXTENT, len(self.slots) * EXTENT, len(self.reserved) * EXTENT)
