"""Extents from media, verified: no byte leaves here that is not what its object's head recorded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from blockdev import layout
from blockdev.errors import ChecksumError, Raced
from blockdev.media import Media, PageBuffers, padded
from blockdev.publication import extent_length
from blockdev.types import HOLE, Descriptor, ExtentRef, ObjectId, Stamp


@dataclass(slots=True)
class ReadCounters:
    extents: int = 0
    bytes: int = 0
    raced: int = 0
    checksum_errors: int = 0
    reread: int = 0
    """Extents whose first read was wrong and whose second was right."""


class Reader:
    """Reads objects of one pool.

    :param extent_size: bytes per extent
    """

    _KEEP_LISTS = 256

    def __init__(self, media: Media, extent_size: int) -> None:
        self._media = media
        self._extent_size = extent_size
        self._buffers = PageBuffers()
        self._lists: OrderedDict[tuple[ObjectId, Stamp], tuple[ExtentRef, ...]] = OrderedDict()
        self.counters = ReadCounters()

    async def extents(self, head: Descriptor) -> tuple[ExtentRef, ...]:
        """All extents of an object, those in index slots included.

        :raises ChecksumError, Raced, Unavailable, DeviceError:
        """
        if not head.indexed:
            return head.extents
        key = (head.object_id, head.stamp)
        known = self._lists.get(key)
        if known is None:
            known = await self._read_indexes(head)
            self._lists[key] = known
            while len(self._lists) > self._KEEP_LISTS:
                self._lists.popitem(last=False)
        self._lists.move_to_end(key)
        return known

    def forget(self, object_id: ObjectId, stamp: Stamp) -> None:
        self._lists.pop((object_id, stamp), None)

    async def _read_indexes(self, head: Descriptor) -> tuple[ExtentRef, ...]:
        total = -(-head.size // self._extent_size)
        found: list[ExtentRef] = []
        slot_class = layout.index_class(total)
        for ref in head.extents:
            count = min(layout.entries_per_index(slot_class), total - len(found))
            if ref.is_hole:
                found += [HOLE] * count
                continue
            length = count * layout.EXTENT_ENTRY_SIZE
            with self._buffers.take(slot_class.payload_size) as buffer:
                await self._read_verified(head, ref, length, buffer)
                found += layout.unpack_extents(buffer[:length])
        return tuple(found)

    async def read_extent(self, head: Descriptor, index: int, into: memoryview) -> int:
        """Fill `into` with extent `index`; returns its used bytes.

        :param into: page-aligned, at least the extent's used bytes rounded up to a page
        :raises ChecksumError: the bytes are wrong, twice
        :raises Raced: the slot was reused meanwhile
        :raises Unavailable, DeviceError:
        """
        length = extent_length(head.size, index, self._extent_size)
        if not head.extents:
            into[:length] = head.inline
            return length
        ref = (await self.extents(head))[index]
        if ref.is_hole:
            into[:length] = bytes(length)
            return length
        await self._read_verified(head, ref, length, into)
        self.counters.extents += 1
        self.counters.bytes += length
        return length

    async def _read_verified(self, head: Descriptor, ref: ExtentRef, length: int, into: memoryview) -> None:
        for attempt in range(2):
            await self._media.read_payload(ref.address, into[: padded(length)])
            if xxh3_64_intdigest(into[:length]) == ref.xxh3:
                self.counters.reread += attempt
                return
            record = await self._media.read_descriptor(ref.address)
            if record is not None and (record.generation, record.object_id) != (
                ref.generation,
                head.object_id,
            ):
                self.counters.raced += 1
                raise Raced(f"slot {tuple(ref.address)} was reused while {head.name!r} was read")
        self.counters.checksum_errors += 1
        raise ChecksumError(f"{head.name!r}: slot {tuple(ref.address)} holds other bytes than were written")

    async def verify(self, head: Descriptor) -> None:
        """Read all of an object. :raises ChecksumError, Raced, Unavailable, DeviceError:"""
        extents: Sequence[ExtentRef] = await self.extents(head)
        for index in range(len(extents)):
            with self._buffers.take(self._extent_size) as buffer:
                await self.read_extent(head, index, buffer)
