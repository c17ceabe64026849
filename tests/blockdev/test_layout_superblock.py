# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blockdev import layout
from blockdev.errors import BadSuperblock, RecordTooLarge, UnknownVersion
from blockdev.layout.page import seal
from blockdev.types import KIB, MIB, PAGE, DeviceEntry, RegionHeader, RegionState, SlotClass, Superblock
from tests.blockdev.records import damage, damaged, region_headers, superblocks

POOL, DEVICE, MEMBER, OTHER = (UUID(int=0x4A << 120 | n) for n in range(4))
SUPERBLOCK = Superblock(
    pool=POOL,
    device=DEVICE,
    device_no=1,
    domain="local:somewhere",
    name="a",
    region_size=256 * MIB,
    data_offset=MIB,
    extent_class=SlotClass.MIB2,
    devices=(DeviceEntry(OTHER, 1024 * MIB), DeviceEntry(DEVICE, 2048 * MIB)),
    sequence=8,
)
HEADER = RegionHeader(POOL, 1, 2, RegionState.ACTIVE, MEMBER, 3, SlotClass.MIB2, False, 4)


class TestSuperblock:
    @given(superblocks())
    def test_round_trip(self, superblock):
        page = layout.encode_superblock(superblock)
        assert len(page) == PAGE
        assert layout.decode_superblock(memoryview(page)) == superblock

    @given(st.binary(max_size=200) | st.binary(min_size=PAGE, max_size=PAGE))
    def test_random_bytes(self, data):
        with pytest.raises(BadSuperblock):
            layout.decode_superblock(data)

    @given(st.binary(max_size=300))
    def test_random_bodies(self, body):
        with pytest.raises(BadSuperblock):
            layout.decode_superblock(seal(layout.SUPERBLOCK_MAGIC, 1, POOL, body))

    @given(superblocks(), st.data())
    def test_changed_bodies(self, superblock, data):
        body = bytearray(layout.encode_superblock(superblock)[40:])
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, 100))] = data.draw(st.integers(0, 255))
        page = seal(layout.SUPERBLOCK_MAGIC, 1, POOL, bytes(body[: 48 + 24 * len(superblock.devices)]))
        try:
            found = layout.decode_superblock(page)
        except BadSuperblock:
            return
        assert layout.decode_superblock(layout.encode_superblock(found)) == found

    @given(superblocks(), damage)
    def test_damaged_pages(self, superblock, how):
        page = layout.encode_superblock(superblock)
        broken = damaged(page, how)
        assume(broken != page)
        with pytest.raises(BadSuperblock):
            layout.decode_superblock(broken)

    def test_later_version(self):
        body = layout.encode_superblock(SUPERBLOCK)[40:]
        later = seal(layout.SUPERBLOCK_MAGIC, 2, POOL, body)
        with pytest.raises(UnknownVersion, match="version 2"):
            layout.decode_superblock(later)
        with pytest.raises(UnknownVersion):
            layout.pick_superblock([layout.encode_superblock(SUPERBLOCK), later])

    def test_largest(self):
        entries = tuple(DeviceEntry(UUID(int=n), n) for n in range(layout.DEVICES_MAX))
        full = replace(SUPERBLOCK, devices=entries, device=entries[1].uuid, domain="d" * 255, name="n" * 64)
        assert layout.decode_superblock(layout.encode_superblock(full)) == full

    @pytest.mark.parametrize(
        "change",
        [
            {"domain": "d" * 256},
            {"name": "n" * 65},
            {"name": "ñ" * 33},
            {"devices": (DeviceEntry(OTHER, 0), DeviceEntry(DEVICE, 0)) * 65},
            {"sequence": 2**64},
        ],
    )
    def test_too_large(self, change):
        with pytest.raises(RecordTooLarge):
            layout.encode_superblock(replace(SUPERBLOCK, **change))

    @pytest.mark.parametrize(
        "change",
        [
            {"extent_class": SlotClass.KIB64},
            {"region_size": 0},
            {"region_size": PAGE + 512},
            {"data_offset": 512 * KIB},
            {"data_offset": MIB + 512},
            {"device_no": 2},
            {"device_no": 0},
            {"domain": "lokal:ñ"},
        ],
    )
    def test_contradictions(self, change):
        with pytest.raises(BadSuperblock):
            layout.encode_superblock(replace(SUPERBLOCK, **change))

    def test_pages_are_where_they_say(self):
        assert [layout.superblock_offset(n) for n in (4, 5)] == [0, 512 * KIB]


class TestPickSuperblock:
    OLDER = layout.encode_superblock(replace(SUPERBLOCK, sequence=8))
    NEWER = layout.encode_superblock(replace(SUPERBLOCK, sequence=9))

    def test_highest_sequence(self):
        assert layout.pick_superblock([self.OLDER, self.NEWER]).sequence == 9
        later = layout.encode_superblock(replace(SUPERBLOCK, sequence=10))
        assert layout.pick_superblock([later, self.NEWER]).sequence == 10

    @given(damage)
    def test_the_other_page_when_one_is_damaged(self, how):
        broken = damaged(self.NEWER, how)
        assume(broken != self.NEWER)
        assert layout.pick_superblock([self.OLDER, broken]).sequence == 8
        assert layout.pick_superblock([damaged(self.OLDER, how), self.NEWER]).sequence == 9

    def test_misplaced_or_missing(self):
        with pytest.raises(BadSuperblock):
            layout.pick_superblock([self.NEWER, self.OLDER])
        with pytest.raises(BadSuperblock):
            layout.pick_superblock([bytes(PAGE), bytes(PAGE)])


class TestRegionHeader:
    @given(region_headers)
    def test_round_trip(self, header):
        page = layout.encode_region_header(header)
        assert len(page) == PAGE
        assert layout.decode_region_header(header.pool, memoryview(page)) == header

    @given(st.binary(max_size=100) | st.binary(min_size=PAGE, max_size=PAGE))
    def test_random_bytes(self, data):
        assert layout.decode_region_header(POOL, data) is None

    @given(st.binary(max_size=50) | st.binary(min_size=40, max_size=40))
    def test_random_bodies(self, body):
        found = layout.decode_region_header(POOL, seal(layout.REGION_HEADER_MAGIC, 1, POOL, body))
        assert found is None or layout.encode_region_header(found)[40 : 40 + len(body)] == body

    @given(region_headers, damage)
    def test_damaged_pages(self, header, how):
        page = layout.encode_region_header(header)
        broken = damaged(page, how)
        assume(broken != page)
        assert layout.decode_region_header(header.pool, broken) is None

    def test_of_another_pool_or_version(self):
        page = layout.encode_region_header(HEADER)
        assert layout.decode_region_header(OTHER, page) is None
        later = seal(layout.REGION_HEADER_MAGIC, 2, POOL, page[40:80])
        with pytest.raises(UnknownVersion):
            layout.decode_region_header(POOL, later)
        # What an older pool left on the device is not our business, whatever its version.
        assert layout.decode_region_header(OTHER, later) is None

    def test_numbers_beyond_their_field(self):
        with pytest.raises(RecordTooLarge):
            layout.encode_region_header(replace(HEADER, epoch=2**32))

    def test_pick(self):
        even, odd = (layout.encode_region_header(replace(HEADER, sequence=n)) for n in (4, 5))
        assert layout.pick_region_header(POOL, even + odd, 1, 2).sequence == 5
        later = layout.encode_region_header(replace(HEADER, sequence=6))
        assert layout.pick_region_header(POOL, later + odd, 1, 2).sequence == 6
        assert layout.pick_region_header(POOL, even + bytes(PAGE), 1, 2).sequence == 4
        assert layout.pick_region_header(POOL, odd + even, 1, 2) is None
        assert layout.pick_region_header(POOL, even + odd, 1, 3) is None
        assert layout.pick_region_header(POOL, even + odd, 2, 2) is None
        with pytest.raises(ValueError, match="8192"):
            layout.pick_region_header(POOL, even, 1, 2)
