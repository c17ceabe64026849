"""Where everything is. Pure arithmetic on sizes; no byte is read for it.

    device   superblock page 0 · … · superblock page 1 (512 KiB) · … · data offset: region 0 · region 1 · …
    region   header pair · descriptor pairs of slot 0, 1, 2, … · gap · payloads of slot 0, 1, 2, … · tail

A pair is two consecutive pages. Payloads are aligned to their own size relative to the region's start; the gap
and the tail are what the alignment leaves over. Slots of the inline class have no payload.

Why descriptors first and together: a region is scanned by reading one contiguous part, 128 slots a MiB, and a
DISCARD of payloads can never reach a descriptor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from blockdev.types import (
    CHUNK_SLOTS,
    GIB,
    MIB,
    PAGE,
    ByteOffset,
    RegionNo,
    SlotClass,
    SlotNo,
)

PAIR = 2 * PAGE
"""Bytes of a pair of pages."""
DEFAULT_DATA_OFFSET = ByteOffset(MIB)
"""Where region 0 begins unless told otherwise: behind the superblocks, and what partitions are aligned to."""

_REGION_SIZE_MAX = 16 * GIB
_REGIONS_WANTED = 64
_REGIONS_NEEDED = 16


@dataclass(frozen=True, slots=True)
class RegionGeometry:
    """Offsets within one region, in bytes relative to its start."""

    region_size: int
    slot_class: SlotClass
    slots: int = field(init=False)
    """Slots that fit; 0 if the region is too small for one."""
    _payloads: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        payload = self.slot_class.payload_size
        if payload:
            # n payloads leave (whole - n) payload sizes for n + 1 pairs.
            whole = self.region_size // payload
            slots = max(0, (whole * payload - PAIR) // (payload + PAIR))
            start = -(-(slots + 1) * PAIR // payload) * payload
        else:
            slots = max(0, self.region_size // PAIR - 1)
            start = (slots + 1) * PAIR
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "_payloads", start)

    def descriptor_offset(self, slot: SlotNo) -> ByteOffset:
        """Where the slot's pair begins.

        :raises ValueError: the region has no such slot
        """
        self._check(slot)
        return ByteOffset(PAIR * (1 + slot))

    def payload_offset(self, slot: SlotNo) -> ByteOffset:
        """Where the slot's payload begins.

        :raises ValueError: the region has no such slot, or its slots have no payload
        """
        self._check(slot)
        payload = self.slot_class.payload_size
        if not payload:
            raise ValueError("inline slots have no payload")
        return ByteOffset(self._payloads + slot * payload)

    @property
    def chunks(self) -> int:
        """Chunks of `CHUNK_SLOTS` descriptors, the last one maybe shorter."""
        return -(-self.slots // CHUNK_SLOTS)

    def chunk_span(self, chunk: int) -> tuple[SlotNo, int]:
        """First slot and number of slots of a chunk.

        :raises ValueError: the region has no such chunk
        """
        if not 0 <= chunk < self.chunks:
            raise ValueError(f"chunk {chunk} of {self.chunks}")
        first = chunk * CHUNK_SLOTS
        return SlotNo(first), min(CHUNK_SLOTS, self.slots - first)

    def _check(self, slot: SlotNo) -> None:
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} of {self.slots}")


@dataclass(frozen=True, slots=True)
class DeviceGeometry:
    """Where a device's regions are."""

    size: int
    """Bytes of the device that the pool uses."""
    data_offset: ByteOffset
    region_size: int

    @property
    def regions(self) -> int:
        """Whole regions that fit."""
        return max(0, self.size - self.data_offset) // self.region_size

    def region_offset(self, region: RegionNo) -> ByteOffset:
        """Where a region begins, in bytes from the device's start.

        :raises ValueError: the device has no such region
        """
        if not 0 <= region < self.regions:
            raise ValueError(f"region {region} of {self.regions}")
        return ByteOffset(self.data_offset + region * self.region_size)


def default_region_size(device_sizes: Iterable[int], extent_class: SlotClass) -> int:
    """Bytes of a region for a pool of these devices: a power of two, at most 16 GiB.

    The largest that gives the smallest device 64 regions, so that the space can be divided among the slot
    classes and handed over in small parts, but not less than 16 extents, since a region loses up to one to
    alignment. Devices too small for that get 16 regions, of at least 4 extents.
    """
    room = min(device_sizes) - DEFAULT_DATA_OFFSET
    extent = extent_class.payload_size
    for regions, least in ((_REGIONS_WANTED, 16 * extent), (_REGIONS_NEEDED, 4 * extent)):
        size = min(_REGION_SIZE_MAX, _power_of_two_below(room // regions))
        if size >= least:
            return size
    return 4 * extent


def _power_of_two_below(number: int) -> int:
    return 1 << number.bit_length() - 1 if number > 0 else 0
