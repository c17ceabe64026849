"""References to slots and extents, as descriptors and index slots hold them.

Slot reference, 20 bytes:                       Extent, 28 bytes: the same, then

    offset  type  field                             offset  type  field
    0       u16   device, 0xFFFF = hole             20      u64   xxh3-64 of the extent's used bytes
    2       u16   0
    4       u32   region
    8       u32   slot
    12      u64   generation of the slot's use

The payload of an index slot is nothing but extents one after the other, in the order of the object. It needs
no frame of its own: the head records its xxh3. An index slot all of whose extents are holes is not stored: the head has
a hole in its place. The number of extents alone says which class the index slots of an object have, so that nothing
else need be known to find an extent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from blockdev.errors import FormatError
from blockdev.layout.page import Buffer
from blockdev.types import ExtentRef, SlotClass, SlotRef

_SLOT = struct.Struct("<H2xIIQ")
_EXTENT = struct.Struct("<H2xIIQQ")

SLOT_REF_SIZE = _SLOT.size
EXTENT_ENTRY_SIZE = _EXTENT.size
_SMALL_INDEXES_MAX = 16
"""Index slots of 64 KiB that an object has at most; one with more extents has slots of 512 KiB."""


def index_class(extents: int) -> SlotClass:
    """The class of the index slots of an object with so many extents, holes included."""
    small = extents <= _SMALL_INDEXES_MAX * entries_per_index(SlotClass.KIB64)
    return SlotClass.KIB64 if small else SlotClass.KIB512


def entries_per_index(slot_class: SlotClass) -> int:
    """Extents that one index slot of this class lists."""
    return slot_class.payload_size // EXTENT_ENTRY_SIZE


def pack_extents(extents: Iterable[ExtentRef]) -> bytes:
    """The payload of an index slot, or the list in a head."""
    pack = _EXTENT.pack
    return b"".join([pack(*extent) for extent in extents])


def unpack_extents(payload: Buffer) -> tuple[ExtentRef, ...]:
    """
    :raises FormatError: not a whole number of extents
    """
    if len(payload) % EXTENT_ENTRY_SIZE:
        raise FormatError(f"{len(payload)} bytes are not a list of extents")
    return tuple(map(ExtentRef._make, _EXTENT.iter_unpack(payload)))


def pack_slot_refs(refs: Iterable[SlotRef]) -> bytes:
    """References one after the other."""
    pack = _SLOT.pack
    return b"".join([pack(*ref) for ref in refs])


def unpack_slot_refs(data: Buffer) -> tuple[SlotRef, ...]:
    """
    :raises FormatError: not a whole number of references
    """
    if len(data) % SLOT_REF_SIZE:
        raise FormatError(f"{len(data)} bytes are not a list of slots")
    return tuple(map(SlotRef._make, _SLOT.iter_unpack(data)))
