"""Hypothesis strategies for what may be on media, and pages to damage."""

# mypy: disable-error-code="arg-type, union-attr"
# Plain numbers stand for those with units, here where the numbers are all there is.

from __future__ import annotations

from hypothesis import strategies as st

from blockdev.changelog import CHANGES_PER_PAGE, PINS_PER_PAGE, Change, ChangeKind, LogPage, PinPage
from blockdev.layout import INLINE_MAX, descriptor_room
from blockdev.types import (
    EXTENT_CLASSES,
    HEAD_EXTENTS_MAX,
    HOLE,
    NAMED_KINDS,
    NO_ID,
    PAGE,
    Descriptor,
    DeviceEntry,
    ExtentRef,
    Kind,
    RegionHeader,
    RegionState,
    SlotAddress,
    SlotClass,
    SlotRef,
    Superblock,
)

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ids = st.binary(min_size=16, max_size=16).filter(lambda b: b != NO_ID)
addresses = st.builds(SlotAddress, u16, u32, u32)
slot_refs = st.builds(SlotRef, u16, u32, u32, u64)
extents = st.one_of(st.just(HOLE), st.builds(ExtentRef, u16, u32, u32, u64, u64))


def _is_name(name: bytes) -> bool:
    return name not in {b".", b".."} and b"/" not in name and b"\0" not in name


names = st.binary(min_size=1, max_size=255).filter(_is_name)
xattr_names = st.binary(min_size=1, max_size=20).filter(lambda b: b"\0" not in b).map(b"user.".__add__)
xattrs = st.dictionaries(xattr_names, st.binary(max_size=40), max_size=5).map(
    lambda d: tuple(sorted(d.items()))
)


@st.composite
def descriptors(draw, kinds=tuple(Kind)):
    kind = draw(st.sampled_from(kinds))
    name = draw(names) if kind in NAMED_KINDS else b""
    attributes = draw(xattrs)
    superseded = tuple(draw(st.lists(slot_refs, max_size=3)))
    room = descriptor_room(name, attributes, superseded)
    inline = draw(st.binary(max_size=min(room, INLINE_MAX))) if draw(st.booleans()) else b""
    most = 0 if inline else draw(st.sampled_from([1, 3, HEAD_EXTENTS_MAX]))
    listed = tuple(draw(st.lists(extents, max_size=most)))
    head = draw(slot_refs) if kind in {Kind.BODY, Kind.INDEX} else draw(st.none() | slot_refs)
    return Descriptor(
        kind=kind,
        address=draw(addresses),
        epoch=draw(u32),
        generation=draw(u64),
        sequence=draw(u64),
        stamp=draw(u64),
        object_id=draw(ids),
        directory=draw(ids),
        name=name,
        mode=draw(u32),
        uid=draw(u32),
        gid=draw(u32),
        mtime_ns=draw(i64),
        ctime_ns=draw(i64),
        btime_ns=draw(i64),
        size=len(inline) or draw(u64),
        stored_size=draw(u64),
        indexed=bool(listed) and draw(st.booleans()),
        extents=listed,
        supersedes=superseded,
        predecessor=draw(st.binary(min_size=16, max_size=16)),
        xattrs=attributes,
        inline=inline,
        index=draw(u32),
        head=head,
    )


region_headers = st.builds(
    RegionHeader,
    pool=st.uuids(),
    device_no=u16,
    region=u32,
    state=st.sampled_from(RegionState),
    writer=st.uuids(),
    epoch=u32,
    slot_class=st.sampled_from(SlotClass),
    unproven=st.booleans(),
    sequence=u64,
)


@st.composite
def superblocks(draw):
    devices = draw(st.lists(st.builds(DeviceEntry, st.uuids(), u64), min_size=1, max_size=128))
    number = draw(st.integers(0, len(devices) - 1))
    return Superblock(
        pool=draw(st.uuids()),
        device=devices[number].uuid,
        device_no=number,
        domain=draw(st.text(st.characters(max_codepoint=127), max_size=255)),
        name=draw(st.text(max_size=16)),
        region_size=draw(st.integers(1, 2**50)) * PAGE,
        data_offset=draw(st.integers(129, 2**50)) * PAGE,
        extent_class=draw(st.sampled_from(EXTENT_CLASSES)),
        devices=tuple(devices),
        sequence=draw(u64),
    )


log_pages = st.builds(
    LogPage,
    member=st.uuids(),
    epoch=u32,
    sequence=u64,
    written_ns=u64,
    changes=st.lists(
        st.builds(Change, st.sampled_from(ChangeKind), slot_refs, u64, u64, ids), max_size=CHANGES_PER_PAGE
    ).map(tuple),
)
pin_pages = st.builds(
    PinPage,
    member=st.uuids(),
    epoch=u32,
    part=u16,
    sequence=u64,
    objects=st.lists(ids, max_size=PINS_PER_PAGE).map(tuple),
)

damage = st.one_of(
    st.lists(
        st.tuples(st.integers(0, PAGE - 1), st.integers(1, 255)),
        min_size=1,
        max_size=4,
        unique_by=lambda f: f[0],
    ),
    st.tuples(st.integers(0, PAGE // 512 - 1), st.binary(min_size=512, max_size=512)),
)
"""Bytes to flip, as (offset, mask); or a sector that holds something else, as (sector, contents)."""


def damaged(page: bytes, how) -> bytes:
    """`page` after `how` (see `damage`)."""
    broken = bytearray(page)
    if isinstance(how, tuple):
        sector, contents = how
        broken[sector * 512 : (sector + 1) * 512] = contents
    else:
        for offset, mask in how:
            broken[offset] ^= mask
    return bytes(broken)
