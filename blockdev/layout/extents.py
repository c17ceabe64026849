"""References to slots and extents, as descriptors and index slots hold them.

Slot reference, 20 bytes:                       Extent, 28 bytes: the same, then

    offset  type  field                             offset  type  field
    0       u16   device, 0xFFFF = hole             20      u64   xxh3-64 of the extent's used bytes
    2       u16   0
    4       u32   region
    8       u32   slot
    12      u64   generation of the slot's use

The payload of an index slot is nothing but extents one after the other, in the order of the object. It needs
no frame of its own: the head records its xxh3.
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
INDEX_CLASS = SlotClass.KIB64
"""The class whose slots hold lists of extents."""
EXTENTS_PER_INDEX = INDEX_CLASS.payload_size // EXTENT_ENTRY_SIZE
"""Extents that one index slot lists."""


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
