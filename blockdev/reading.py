"""Extents from media, verified: no byte leaves here that is not what its object's head recorded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio
from xxhash import xxh3_64_intdigest

from blockdev import layout
from blockdev.errors import ChecksumError, FormatError, Raced
from blockdev.media import Media
from blockdev.memory import PageBuffers, padded
from blockdev.publication import extent_length
from blockdev.rechecking import Compared
from blockdev.types import HOLE, Descriptor, ExtentRef, Extents, Kind, RegionId, SlotRef, stored

_TURNS: Final = 2
"""Of the scheduler, in which a task that was just started begins its read. Reads of a device tend to end together, and it was
idle while all of them were checked: 2 of 22 ms."""


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

    :ivar extent_size: bytes per extent
    :ivar compared: where it notes what was compared with its checksum, if somebody wants to know
    """

    _KEEP_EXTENTS = 1 << 18
    """Most extents in lists that are kept after they were read from index slots; about 50 MB."""

    def __init__(self, media: Media, extent_size: int) -> None:
        self._media = media
        self.extent_size = extent_size
        self._buffers = PageBuffers()
        self._lists: OrderedDict[SlotRef, tuple[ExtentRef, ...]] = OrderedDict()
        """By `_first_index`."""
        self._kept = 0
        self._regions: dict[SlotRef, frozenset[RegionId]] = {}
        """Where the extents of indexed versions are, by `_first_index`."""
        self.counters = ReadCounters()
        self.compared: Compared | None = None

    async def extents(self, head: Descriptor) -> tuple[ExtentRef, ...]:
        """All extents of an object.

        :raises ChecksumError, Raced, Unavailable, DeviceError:
        """
        if not head.indexed:
            return head.extents
        key = _first_index(head)
        if key is None:
            return await self._read_indexes(head)
        known = self._lists.get(key)
        if known is None:
            known = await self._read_indexes(head)
            self._keep(key, known)
        else:
            self._lists.move_to_end(key)
        return known

    def _keep(self, key: SlotRef, extents: tuple[ExtentRef, ...]) -> None:
        self._drop(key)  # two may have read it at once
        self._lists[key] = extents
        self._kept += len(extents)
        while self._kept > self._KEEP_EXTENTS and len(self._lists) > 1:
            self._drop(next(iter(self._lists)))

    def _drop(self, key: SlotRef) -> None:
        self._kept -= len(self._lists.pop(key, ()))

    def learn(self, head: Descriptor, extents: Iterable[ExtentRef]) -> None:
        """These are the extents of a version that its name now stands for: from here on it may be reachable."""
        key = _first_index(head)
        if key is not None:
            self._regions[key] = frozenset(RegionId(e.device, e.region) for _, e in stored(extents))

    def forget(self, head: Descriptor) -> None:
        """A version is gone."""
        key = _first_index(head)
        if key is not None:
            self._drop(key)
            self._regions.pop(key, None)

    def reachable(self, head: Descriptor) -> bool:
        """Whether every slot of an object, symlink or directory is where it can be read."""
        if not self._media.reachable(head):
            return False
        key = _first_index(head)
        if key is None:
            return True
        regions = self._regions.get(key)
        return regions is not None and all(map(self._media.reaches, regions))

    def is_there(self, head: Descriptor) -> bool:
        """Whether its name is more than a miss. Of a directory all is known that there is to be read, and a lost one
        must not take what is in it along, which may be anywhere."""
        return head.kind is Kind.DIRECTORY or self.reachable(head)

    def is_there_packed(self, packed: bytes) -> bool:
        """As `is_there`, of a packed record, unpacked only where it must be."""
        try:
            outline = layout.outline_descriptor(packed)
            if outline.kind is Kind.DIRECTORY:
                return True
            if outline.is_plain:
                return all(map(self._media.reaches, outline.slots))
            return self.reachable(layout.unpack_descriptor(packed))
        except FormatError:
            return False

    async def _read_indexes(self, head: Descriptor) -> tuple[ExtentRef, ...]:
        total = -(-head.size // self.extent_size)
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
        return Extents(found)

    async def read_extent(
        self, head: Descriptor, index: int, into: memoryview, landed: Callable[[], None] | None = None
    ) -> int:
        """Fill `into` with extent `index`; returns its used bytes.

        :param into: page-aligned, at least the extent's used bytes rounded up to a page
        :param landed: called when the device has done its part, each time that it was asked. What it lets begin does so
            before the bytes are checked
        :raises ChecksumError: the bytes are wrong, twice
        :raises Raced: the slot was reused meanwhile
        :raises Unavailable, DeviceError:
        """
        with self._media.pace.demand():
            return await self._read_extent(head, index, into, landed)

    async def _read_extent(
        self, head: Descriptor, index: int, into: memoryview, landed: Callable[[], None] | None = None
    ) -> int:
        length = extent_length(head.size, index, self.extent_size)
        if not head.extents:
            into[:length] = head.inline
            return length
        ref = (await self.extents(head))[index]
        if ref.is_hole:
            into[:length] = bytes(length)
            return length
        await self._read_verified(head, ref, length, into, landed)
        self.counters.extents += 1
        self.counters.bytes += length
        return length

    async def _read_verified(
        self,
        head: Descriptor,
        ref: ExtentRef,
        length: int,
        into: memoryview,
        landed: Callable[[], None] | None = None,
    ) -> None:
        device, compared = self._media.device(ref.device), self.compared
        for attempt in range(2):
            await self.check_epoch(head, ref)
            before = None if compared is None else compared.connection_of(device)
            await self._media.read_payload(ref.address, into[: padded(length)])
            if landed is not None:
                landed()
                for _ in range(_TURNS):
                    await trio.lowlevel.cancel_shielded_checkpoint()
            if xxh3_64_intdigest(into[:length]) == ref.xxh3:
                self.counters.reread += attempt
                if compared is not None:
                    compared.note(ref, before, device)
                return
            record = await self._media.read_descriptor(ref.address)
            if record is not None and (record.generation, record.object_id) != (
                ref.generation,
                head.object_id,
            ):
                raise self._raced(head, ref)
        await self.check_epoch(head, ref, again=True)
        self.counters.checksum_errors += 1
        raise ChecksumError(f"{head.name!r}: slot {tuple(ref.address)} holds other bytes than were written")

    async def check_epoch(self, head: Descriptor, ref: ExtentRef, *, again: bool = False) -> None:
        """See that the slot's region was not formatted since: where its slots are may have changed.

        :param again: look at media, since another process may have formatted it
        :raises Raced, Unavailable, DeviceError:
        """
        region, epoch = RegionId(ref.device, ref.region), ref.generation >> 32
        if again or self._media.header(region).epoch != epoch:
            await self._media.reload_header(region)
            if self._media.header(region).epoch != epoch:
                raise self._raced(head, ref)

    def _raced(self, head: Descriptor, ref: ExtentRef) -> Raced:
        self.counters.raced += 1
        return Raced(f"slot {tuple(ref.address)} was reused while {head.name!r} was read")

    async def verify(self, head: Descriptor) -> None:
        """Read all of an object, in the background. :raises ChecksumError, Raced, Unavailable, DeviceError:"""
        extents: Sequence[ExtentRef] = await self.extents(head)
        for index in range(len(extents)):
            async with self._media.pace.turn():
                with self._buffers.take(self.extent_size) as buffer:
                    await self._read_extent(head, index, buffer)


def _first_index(head: Descriptor) -> SlotRef | None:
    """The first index slot: no other version has it, and a renamed one keeps it. None: it has none, or only holes."""
    if not head.indexed:
        return None
    return next((index.ref for index in head.extents if not index.is_hole), None)
