"""Parts of packed records, read where they lie: a fraction of the work of unpacking all of one.

For what goes through very many records, or keeps them. Each takes what `pack_descriptor` made; what it does not look
at may be damaged.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from blockdev.errors import FormatError
from blockdev.layout.descriptor import FIXED_SIZE, HAS_HEAD, INDEXED
from blockdev.layout.extents import EXTENT_ENTRY_SIZE, SLOT_REF_SIZE, unpack_extents
from blockdev.types import NO_DEVICE, DirectoryId, ExtentRef, Kind, ObjectId, RegionId, SlotRef, Stamp

_OUTLINE = struct.Struct("<8BHHIIIQQQ16s")
_GLANCE = struct.Struct("<BBxBBB2xH2xII4xQ8xQ16s16s56xQ")
_PLACE = struct.Struct("<H2xI20x")  # of an extent: where it is
_STATUS = struct.Struct("<96xIII4xqq8xQQ")
_KINDS = tuple(Kind)
_OBJECT = slice(48, 64)
_DIRECTORY = slice(64, 80)
_PREDECESSOR = slice(80, 96)


class Outline(NamedTuple):
    """What a record says of slots, and the little that is needed to make something of that.

    :ivar extents: as in the record
    :ivar is_plain: there is no more to it: no index, and nothing that it must outlive
    """

    kind: Kind
    object_id: ObjectId
    stamp: Stamp
    ref: SlotRef
    sequence: int
    extents: tuple[ExtentRef, ...]
    name: bytes
    is_plain: bool
    predecessor: bytes

    @property
    def slots(self) -> list[SlotRef]:
        """Every slot that the record itself names, its own first."""
        others = [extent.ref for extent in self.extents if not extent.is_hole and extent[:4] != self.ref]
        return [self.ref, *others]


def outline_descriptor(packed: bytes) -> Outline:
    """The outline of a record that `pack_descriptor` made, a third of the work of unpacking it.

    What it does not look at may be damaged.

    :raises FormatError: not a record
    """
    try:
        (
            kind, flags, _, name_length, extent_count, superseded_count, _, _,
            device, _, region, slot, _, generation, sequence, stamp, object_id,
        ) = _OUTLINE.unpack_from(packed)  # fmt: skip
        extents: tuple[ExtentRef, ...] = ()
        start = FIXED_SIZE + SLOT_REF_SIZE * (flags & HAS_HEAD > 0)
        name = packed[start : start + name_length]
        if extent_count:
            start += name_length + SLOT_REF_SIZE * superseded_count
            extents = unpack_extents(packed[start : start + EXTENT_ENTRY_SIZE * extent_count])
        is_plain = not (flags & (INDEXED | HAS_HEAD) or superseded_count)
        ref = SlotRef(device, region, slot, generation)
        return Outline(
            _KINDS[kind], object_id, stamp, ref, sequence, extents, name, is_plain, packed[_PREDECESSOR]
        )
    except (struct.error, IndexError) as error:
        raise FormatError(f"not a descriptor: {error}") from error


class Glance(NamedTuple):
    """The little that tells whether a file is there, and how large it is.

    :ivar directory: with `name`: what the record speaks for
    :ivar regions: where its slots are, in any order; some may come twice
    """

    directory: DirectoryId
    name: bytes
    ref: SlotRef
    stamp: Stamp
    size: int
    regions: list[RegionId]


def glance_descriptor(packed: bytes) -> Glance | None:
    """A glance at a file's record, a fifth of the work of unpacking it; None for what takes more than a glance: what is
    no file, and one whose extents are in index slots.

    :raises FormatError: not a record
    """
    try:
        (
            kind, flags, name_length, extent_count, superseded_count,
            device, region, slot, generation, stamp, _, directory, size,
        ) = _GLANCE.unpack_from(packed)  # fmt: skip
        if kind != Kind.HEAD or flags:
            return None
        stop = FIXED_SIZE + name_length
        regions = [RegionId(device, region)]
        if extent_count:
            start = stop + SLOT_REF_SIZE * superseded_count
            entries = _PLACE.iter_unpack(packed[start : start + EXTENT_ENTRY_SIZE * extent_count])
            regions += [RegionId(*place) for place in entries if place[0] != NO_DEVICE]
        ref = SlotRef(device, region, slot, generation)
        return Glance(directory, packed[FIXED_SIZE:stop], ref, stamp, size, regions)
    except struct.error as error:
        raise FormatError(f"not a descriptor: {error}") from error


class Status(NamedTuple):
    """What stat(2) says of an object; as in `Descriptor`."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    ctime_ns: int
    size: int
    stored_size: int


def packed_status(packed: bytes) -> Status:
    """:raises FormatError: not a record"""
    try:
        return Status._make(_STATUS.unpack_from(packed))
    except struct.error as error:
        raise FormatError(f"not a descriptor: {error}") from error


def packed_kind(packed: bytes) -> Kind:
    """What the record speaks for."""
    return _KINDS[packed[0]]


def packed_object(packed: bytes) -> ObjectId:
    """Whose record it is."""
    return ObjectId(packed[_OBJECT])


def packed_parent(packed: bytes) -> DirectoryId:
    """The directory that it is in."""
    return DirectoryId(packed[_DIRECTORY])


def packed_place(packed: bytes) -> tuple[DirectoryId, bytes]:
    """The directory and the name that it speaks for."""
    start = FIXED_SIZE + (SLOT_REF_SIZE if packed[1] & HAS_HEAD else 0)
    return packed_parent(packed), packed[start : start + packed[3]]
