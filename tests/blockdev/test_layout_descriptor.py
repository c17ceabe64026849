# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blockdev import layout
from blockdev.errors import BadName, FormatError, RecordTooLarge, UnknownVersion
from blockdev.layout.page import BODY_MAX, seal
from blockdev.types import (
    HEAD_EXTENTS_MAX,
    HOLE,
    NAMED_KINDS,
    NO_ID,
    PAGE,
    ROOT,
    Descriptor,
    ExtentRef,
    Kind,
    RegionId,
    SlotAddress,
    SlotClass,
    SlotRef,
)
from tests.blockdev.records import damage, damaged, descriptors, extents, slot_refs

POOL = UUID("5a5a5a5a-0000-4000-8000-000000000001")
OTHER_POOL = UUID("5a5a5a5a-0000-4000-8000-000000000002")
HERE = SlotAddress(1, 2, 3)
HEAD = Descriptor(Kind.HEAD, HERE, 7, 7 << 32, 4, object_id=b"o" * 16, directory=b"d" * 16, name=b"name")
NAME_OFFSET = 152
"""Of the name in a record without a head reference."""


def sealed(body: bytes, pool: UUID = POOL, version: int = layout.DESCRIPTOR_VERSION) -> bytes:
    return seal(layout.DESCRIPTOR_MAGIC, version, pool, body)


def with_field(record: Descriptor, offset: int, form: str, value: object) -> bytes:
    """A sound page whose record has another value in one field."""
    body = bytearray(layout.pack_descriptor(record))
    struct.pack_into(form, body, offset, value)
    return sealed(bytes(body))


class TestRoundTrip:
    @given(descriptors())
    def test_packed(self, record):
        assert layout.unpack_descriptor(layout.pack_descriptor(record)) == record

    @given(descriptors())
    def test_outline(self, record):
        outline = layout.outline_descriptor(layout.pack_descriptor(record))
        same = ("kind", "object_id", "stamp", "ref", "sequence", "extents", "name")
        assert all(getattr(outline, name) == getattr(record, name) for name in same)
        assert outline.is_plain == (not record.indexed and not record.supersedes and record.head is None)
        stored = [extent.ref for extent in record.extents if not extent.is_hole]
        assert outline.slots[0] == record.ref
        assert set(outline.slots) == {record.ref, *stored}

    @given(descriptors())
    def test_glance(self, record):
        glance = layout.glance_descriptor(layout.pack_descriptor(record))
        if record.kind is not Kind.HEAD or record.indexed or record.head is not None:
            assert glance is None
            return
        slots = [record, *(extent for extent in record.extents if not extent.is_hole)]
        places = [slot.address if slot is record else slot for slot in slots]
        assert glance == layout.Glance(
            record.directory,
            record.name,
            record.ref,
            record.stamp,
            record.size,
            [RegionId(place.device, place.region) for place in places],
        )

    @given(descriptors(kinds=tuple(NAMED_KINDS)))
    def test_parts(self, record):
        packed = layout.pack_descriptor(record)
        assert layout.packed_kind(packed) is record.kind
        assert layout.packed_object(packed) == record.object_id
        assert layout.packed_parent(packed) == record.directory
        assert layout.packed_place(packed) == (record.directory, record.name)
        status = layout.packed_status(packed)
        assert status._asdict() == {name: getattr(record, name) for name in status._fields}

    @given(descriptors())
    def test_page(self, record):
        page = layout.encode_descriptor(POOL, record)
        assert len(page) == PAGE
        assert layout.decode_descriptor(POOL, memoryview(bytearray(page))) == record

    def test_root(self):
        root = Descriptor(Kind.DIRECTORY, HERE, 1, 1, 1, object_id=ROOT)
        assert layout.decode_descriptor(POOL, layout.encode_descriptor(POOL, root)) == root

    def test_largest(self):
        head = replace(
            HEAD,
            name=b"n" * 255,
            extents=(ExtentRef(1, 2, 3, 4, 5),) * HEAD_EXTENTS_MAX,
            head=SlotRef(1, 2, 3, 4),
        )
        assert layout.unpack_descriptor(layout.pack_descriptor(head)) == head
        assert layout.max_extents(b"n" * 255, ((b"user.a", bytes(900)),)) == HEAD_EXTENTS_MAX

    @given(st.lists(extents, max_size=200))
    def test_extents(self, listed):
        packed = layout.pack_extents(listed)
        assert len(packed) == len(listed) * layout.EXTENT_ENTRY_SIZE
        assert layout.unpack_extents(memoryview(packed)) == tuple(listed)

    def test_extents_fill_an_index_slot(self):
        for slot_class in (SlotClass.KIB64, SlotClass.KIB512):
            used = layout.entries_per_index(slot_class) * layout.EXTENT_ENTRY_SIZE
            assert 0 <= slot_class.payload_size - used < layout.EXTENT_ENTRY_SIZE

    def test_small_index_slots_serve_all_but_the_largest_objects(self):
        most = 16 * layout.entries_per_index(SlotClass.KIB64)
        assert layout.index_class(97) is layout.index_class(most) is SlotClass.KIB64
        assert layout.index_class(most + 1) is SlotClass.KIB512

    def test_part_of_an_extent(self):
        with pytest.raises(FormatError):
            layout.unpack_extents(bytes(29))


class TestRoom:
    @given(descriptors(sorted(NAMED_KINDS)))
    def test_whatever_fits_can_be_packed(self, record):
        room = layout.descriptor_room(record.name, record.xattrs, record.supersedes)
        full = replace(record, inline=bytes(room), extents=(), head=SlotRef(1, 2, 3, 4))
        assert len(layout.pack_descriptor(full)) == BODY_MAX
        with pytest.raises(RecordTooLarge):
            layout.pack_descriptor(replace(full, inline=bytes(room + 1)))

    def test_the_longest_payload_leaves_room_for_a_longer_name(self):
        assert layout.max_inline(b"n" * 255) == layout.INLINE_MAX
        assert layout.descriptor_room(b"n" * 255) - layout.INLINE_MAX > 1000

    def test_negative_when_nothing_fits(self):
        attributes = ((b"user.a", bytes(4000)),)
        assert layout.max_inline(b"n", attributes) < 0
        assert layout.max_extents(b"n", attributes) < 0

    @given(slot_refs)
    def test_too_many_of_anything(self, ref):
        with pytest.raises(RecordTooLarge):
            layout.pack_descriptor(replace(HEAD, extents=(HOLE,) * (HEAD_EXTENTS_MAX + 1)))
        with pytest.raises(RecordTooLarge):
            layout.pack_descriptor(replace(HEAD, extents=(HOLE,) * 256))
        with pytest.raises(RecordTooLarge):
            layout.pack_descriptor(replace(HEAD, supersedes=(ref,) * 256))

    @pytest.mark.parametrize(
        "change",
        [{"mtime_ns": 2**63}, {"uid": -1}, {"size": 2**64}, {"extents": (ExtentRef(1, 2, 3, -4, 5),)}],
    )
    def test_numbers_beyond_their_field(self, change):
        with pytest.raises(RecordTooLarge):
            layout.pack_descriptor(replace(HEAD, **change))

    @pytest.mark.parametrize("field", ["object_id", "directory", "predecessor"])
    def test_short_ids(self, field):
        with pytest.raises(ValueError, match="16 bytes"):
            layout.pack_descriptor(replace(HEAD, **{field: b"short"}))


BAD_NAMES = [b"", b".", b"..", b"a/b", b"/", b"a\0", b"n" * 256]


class TestNames:
    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_refused_when_written(self, name):
        with pytest.raises(BadName):
            layout.check_name(name)
        with pytest.raises(BadName):
            layout.encode_descriptor(POOL, replace(HEAD, name=name))

    @pytest.mark.parametrize("name", [name for name in BAD_NAMES if 0 < len(name) < 256])
    @pytest.mark.parametrize("kind", sorted(NAMED_KINDS))
    def test_refused_when_read(self, name, kind):
        good = layout.pack_descriptor(replace(HEAD, kind=kind, name=b"n" * len(name)))
        bad = good[:NAME_OFFSET] + name
        assert layout.decode_descriptor(POOL, sealed(good)) is not None
        assert layout.decode_descriptor(POOL, sealed(bad)) is None
        with pytest.raises(FormatError):
            layout.unpack_descriptor(bad)

    def test_named_kinds_need_one(self):
        body = bytearray(layout.pack_descriptor(HEAD)[:NAME_OFFSET])
        body[3] = 0
        assert layout.decode_descriptor(POOL, sealed(bytes(body))) is None

    @pytest.mark.parametrize("kind", sorted(set(Kind) - NAMED_KINDS))
    def test_others_have_none(self, kind):
        with pytest.raises(BadName):
            layout.pack_descriptor(replace(HEAD, kind=kind))

    @pytest.mark.parametrize("change", [{"name": b"name"}, {"directory": b"d" * 16}])
    def test_the_root_is_nowhere_else(self, change):
        root = Descriptor(Kind.DIRECTORY, HERE, 1, 1, 1, object_id=ROOT)
        with pytest.raises(BadName):
            layout.pack_descriptor(replace(root, **change))

    def test_only_the_root_directory_is_in_no_directory(self):
        with pytest.raises(BadName):
            layout.pack_descriptor(replace(HEAD, directory=NO_ID))

    @pytest.mark.parametrize(
        "xattrs",
        [
            ((b"security.capability", b"x"),),
            ((b"trusted.overlay.opaque", b"y"),),
            ((b"user.", b""),),
            ((b"user.a\0", b""),),
            ((b"user." + b"a" * 251, b""),),
            ((b"user.b", b""), (b"user.a", b"")),
            ((b"user.a", b"1"), (b"user.a", b"2")),
        ],
    )
    def test_attributes(self, xattrs):
        with pytest.raises(BadName):
            layout.pack_descriptor(replace(HEAD, xattrs=xattrs))

    def test_foreign_attribute_on_media(self):
        good = layout.pack_descriptor(replace(HEAD, xattrs=((b"user.abcdef", b"v"),)))
        assert layout.decode_descriptor(POOL, sealed(good.replace(b"user.", b"trust"))) is None


class TestUntrusted:
    @given(st.binary(max_size=300) | st.binary(min_size=PAGE, max_size=PAGE))
    def test_random_bytes(self, data):
        assert layout.decode_descriptor(POOL, data) is None

    @given(st.binary(max_size=300))
    def test_random_bodies(self, body):
        # A right checksum proves nothing: whoever can write media can compute it.
        record = layout.decode_descriptor(POOL, sealed(body))
        assert record is None or layout.encode_descriptor(POOL, record)

    @given(st.binary(max_size=300))
    def test_outlines_of_random_bodies(self, body):
        try:
            outline = layout.outline_descriptor(body)
        except FormatError:
            return
        assert outline.kind in Kind

    @given(st.binary(max_size=300))
    def test_glances_at_random_bodies(self, body):
        with suppress(FormatError):
            layout.glance_descriptor(body)

    def test_the_status_of_too_few_bytes(self):
        with pytest.raises(FormatError):
            layout.packed_status(bytes(100))

    @given(descriptors(), damage)
    def test_damaged_pages(self, record, how):
        page = layout.encode_descriptor(POOL, record)
        broken = damaged(page, how)
        assume(broken != page)
        assert layout.decode_descriptor(POOL, broken) is None

    @given(descriptors(), st.data())
    def test_changed_bodies(self, record, data):
        body = bytearray(layout.pack_descriptor(record))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        found = layout.decode_descriptor(POOL, sealed(bytes(body)))
        # What is accepted is a record that could have been written.
        assert found is None or layout.decode_descriptor(POOL, layout.encode_descriptor(POOL, found)) == found

    @given(descriptors(), st.data())
    def test_cut_or_longer_bodies(self, record, data):
        body = layout.pack_descriptor(record)
        cut = data.draw(st.integers(0, len(body) - 1))
        assert layout.decode_descriptor(POOL, sealed(body[:cut])) is None
        assume(len(body) < BODY_MAX)
        assert layout.decode_descriptor(POOL, sealed(body + b"\0")) is None

    def test_of_another_pool(self):
        page = layout.encode_descriptor(OTHER_POOL, HEAD)
        assert layout.decode_descriptor(POOL, page) is None

    def test_later_version(self):
        body = layout.pack_descriptor(HEAD)
        with pytest.raises(UnknownVersion, match="kvfsdesc version 2"):
            layout.decode_descriptor(POOL, sealed(body, version=2))
        assert layout.decode_descriptor(POOL, sealed(body, version=0)) is None
        assert layout.decode_descriptor(POOL, sealed(body, OTHER_POOL, version=2)) is None

    @pytest.mark.parametrize(
        "offset, form, value",
        [
            pytest.param(0, "B", 8, id="kind"),
            pytest.param(1, "B", 4, id="flag"),
            pytest.param(1, "B", 1, id="indexed without extents"),
            pytest.param(2, "B", 1, id="codec"),
            pytest.param(4, "B", HEAD_EXTENTS_MAX + 1, id="extents"),
            pytest.param(7, "B", 1, id="reserved"),
        ],
    )
    def test_impossible_fields(self, offset, form, value):
        assert layout.decode_descriptor(POOL, with_field(HEAD, offset, form, value)) is None

    @pytest.mark.parametrize(
        "record",
        [
            replace(HEAD, codec=1),
            replace(HEAD, kind=Kind.BODY, name=b""),
            replace(HEAD, inline=b"four", size=5),
            replace(HEAD, inline=b"four", size=4, extents=(HOLE,)),
            replace(HEAD, indexed=True),
        ],
    )
    def test_contradictions(self, record):
        with pytest.raises(ValueError, match=r"."):
            layout.encode_descriptor(POOL, record)
        assert layout.decode_descriptor(POOL, sealed(layout.pack_descriptor(record))) is None


def pair(even: Descriptor | None, odd: Descriptor | None) -> memoryview:
    pages = [
        bytes(PAGE) if record is None else layout.encode_descriptor(POOL, record) for record in (even, odd)
    ]
    return memoryview(b"".join(pages))


class TestPick:
    def test_highest_sequence(self):
        older, newer = replace(HEAD, sequence=4), replace(HEAD, sequence=5)
        assert layout.pick_descriptor(POOL, pair(older, newer), HERE, 7) == newer
        assert layout.pick_descriptor(POOL, pair(replace(HEAD, sequence=6), newer), HERE, 7).sequence == 6

    @given(damage)
    def test_the_other_page_when_one_is_damaged(self, how):
        older, newer = replace(HEAD, sequence=4), replace(HEAD, sequence=5)
        pages = bytes(pair(older, newer))
        broken = pages[:PAGE] + damaged(pages[PAGE:], how)
        assume(broken != pages)
        assert layout.pick_descriptor(POOL, broken, HERE, 7) == older
        broken = damaged(pages[:PAGE], how) + pages[PAGE:]
        assert layout.pick_descriptor(POOL, broken, HERE, 7) == newer

    def test_neither(self):
        assert layout.pick_descriptor(POOL, pair(None, None), HERE, 7) is None

    @pytest.mark.parametrize(
        "change",
        [
            {"sequence": 7},  # an odd page in the even one's place
            {"epoch": 6},
            {"epoch": 8},
            {"address": SlotAddress(1, 2, 4)},
            {"address": SlotAddress(1, 3, 3)},
            {"address": SlotAddress(2, 2, 3)},
        ],
    )
    def test_misplaced_and_bygone_pages(self, change):
        stray = replace(HEAD, sequence=100)
        assert layout.pick_descriptor(POOL, pair(stray, HEAD), HERE, 7) == stray
        older = replace(HEAD, sequence=5)
        assert layout.pick_descriptor(POOL, pair(replace(stray, **change), older), HERE, 7) == older

    def test_a_pair_is_two_pages(self):
        with pytest.raises(ValueError, match="8192"):
            layout.pick_descriptor(POOL, bytes(PAGE), HERE, 7)
