# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdev.layout import (
    DEFAULT_DATA_OFFSET,
    PAIR,
    SUPERBLOCK_OFFSETS,
    DeviceGeometry,
    RegionGeometry,
    default_region_size,
)
from blockdev.types import CHUNK_SLOTS, EXTENT_CLASSES, GIB, MIB, PAGE, SlotClass

region_sizes = st.integers(1, 64 * 1024).map(lambda pages: pages * PAGE)


def areas(geometry: RegionGeometry, slots: range) -> list[tuple[int, int]]:
    """First and last-plus-one byte of the header pair and of everything that belongs to these slots."""
    found = [(0, PAIR)]
    payload = geometry.slot_class.payload_size
    for slot in slots:
        found.append((geometry.descriptor_offset(slot), geometry.descriptor_offset(slot) + PAIR))
        if payload:
            found.append((geometry.payload_offset(slot), geometry.payload_offset(slot) + payload))
    return found


@given(region_sizes, st.sampled_from(SlotClass))
def test_areas_do_not_overlap_and_are_inside(size, slot_class):
    geometry = RegionGeometry(size, slot_class)
    found = sorted(areas(geometry, range(min(geometry.slots, 600))))
    assert all(end <= start for (_, end), (start, _) in pairwise(found))
    if geometry.slots:
        # Ends grow with the slot's number, so the last one bounds all.
        last = geometry.slots - 1
        descriptors_end = geometry.descriptor_offset(last) + PAIR
        assert descriptors_end <= size
        if slot_class.payload_size:
            assert descriptors_end <= geometry.payload_offset(0)
            assert geometry.payload_offset(last) + slot_class.payload_size <= size


@given(region_sizes, st.sampled_from([c for c in SlotClass if c is not SlotClass.INLINE]))
def test_payloads_are_aligned_to_their_size(size, slot_class):
    geometry = RegionGeometry(size, slot_class)
    for slot in range(min(geometry.slots, 50)):
        assert geometry.payload_offset(slot) % slot_class.payload_size == 0


@given(region_sizes, st.sampled_from(SlotClass))
def test_one_more_slot_would_not_fit(size, slot_class):
    slots = RegionGeometry(size, slot_class).slots + 1
    payload = slot_class.payload_size
    descriptors = (slots + 1) * PAIR
    start = -(-descriptors // payload) * payload if payload else descriptors
    assert start + slots * payload > size


@given(region_sizes, st.sampled_from(SlotClass))
def test_chunks_cover_every_slot_once(size, slot_class):
    geometry = RegionGeometry(size, slot_class)
    spans = [geometry.chunk_span(chunk) for chunk in range(geometry.chunks)]
    assert [slot for first, count in spans for slot in range(first, first + count)] == list(
        range(geometry.slots)
    )
    assert all(0 < count <= CHUNK_SLOTS for _, count in spans)


def test_outside():
    geometry = RegionGeometry(64 * MIB, SlotClass.MIB2)
    for wrong in (-1, geometry.slots):
        with pytest.raises(ValueError, match="slot"):
            geometry.descriptor_offset(wrong)
        with pytest.raises(ValueError, match="slot"):
            geometry.payload_offset(wrong)
    for wrong in (-1, geometry.chunks):
        with pytest.raises(ValueError, match="chunk"):
            geometry.chunk_span(wrong)
    with pytest.raises(ValueError, match="inline"):
        RegionGeometry(64 * MIB, SlotClass.INLINE).payload_offset(0)


@pytest.mark.parametrize(
    "slot_class, slots",
    [
        ("INLINE", 32767),
        ("KIB64", 3640),
        ("KIB512", 504),
        ("MIB2", 127),
        ("MIB4", 63),
        ("MIB8", 31),
        ("MIB16", 15),
    ],
)
def test_slots_of_a_usual_region(slot_class, slots):
    assert RegionGeometry(256 * MIB, SlotClass[slot_class]).slots == slots


@given(st.integers(0, 64 * GIB), st.integers(0, 2**20), st.integers(1, 2**20))
def test_regions_are_inside_the_device_and_adjacent(size, offset_pages, region_pages):
    device = DeviceGeometry(size, offset_pages * PAGE, region_pages * PAGE)
    count = device.regions
    assert count >= 0
    if count:
        assert device.region_offset(0) == device.data_offset
        last = device.region_offset(count - 1)
        assert last == device.data_offset + (count - 1) * device.region_size
        assert last + device.region_size <= size < last + 2 * device.region_size
    for wrong in (-1, count):
        with pytest.raises(ValueError, match="region"):
            device.region_offset(wrong)


def test_region_0_is_behind_the_superblocks():
    assert max(SUPERBLOCK_OFFSETS) + PAGE <= DEFAULT_DATA_OFFSET


@given(st.lists(st.integers(1, 2**50), min_size=1, max_size=4), st.sampled_from(EXTENT_CLASSES))
def test_default_region_size(sizes, extent_class):
    size = default_region_size(sizes, extent_class)
    assert size & (size - 1) == 0
    assert 4 * extent_class.payload_size <= size <= 16 * GIB
    assert RegionGeometry(size, extent_class).slots >= 3
    regions = DeviceGeometry(min(sizes), DEFAULT_DATA_OFFSET, size).regions
    assert regions >= 16 or size == 4 * extent_class.payload_size


@pytest.mark.parametrize(
    "device, region", [(64 * MIB, 8 * MIB), (GIB, 32 * MIB), (17 * GIB, 256 * MIB), (2048 * GIB, 16 * GIB)]
)
def test_default_region_sizes_of_usual_devices(device, region):
    assert default_region_size([4 * device, device], SlotClass.MIB2) == region
