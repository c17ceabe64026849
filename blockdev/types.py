"""The vocabulary of a pool: numbers with units, identities, and the records that live on media. Pure.

Everything here is a value. How a record looks on media is in `layout`; what may be done with it is in `pool`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, NewType
from uuid import UUID

DeviceNo = NewType("DeviceNo", int)
"""Ordinal of a device in its pool's table, 0-based; stable for the pool's life, unlike a path."""
RegionNo = NewType("RegionNo", int)
SlotNo = NewType("SlotNo", int)
ByteOffset = NewType("ByteOffset", int)
Generation = NewType("Generation", int)
"""How often a slot was handed out; the upper 32 bits are the region's epoch, so it only ever grows."""
Epoch = NewType("Epoch", int)
"""How often a region was formatted or changed hands; only ever grows."""
Stamp = NewType("Stamp", int)
"""Hybrid logical clock, nanoseconds; the highest stamp is the truth about a name."""
Xxh3 = NewType("Xxh3", int)
ObjectId = NewType("ObjectId", bytes)
"""16 bytes, random, never reused."""
DirectoryId = NewType("DirectoryId", bytes)
"""The ObjectId of a directory."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

PAGE = 4 * KIB
"""Unit of all metadata on media, in bytes."""
NAME_MAX = 255
"""Longest name, in bytes."""
HEAD_EXTENTS_MAX = 96
"""Most extents that a head lists itself; a larger object lists its index slots there instead."""
NO_DEVICE = DeviceNo(0xFFFF)
"""Device number of an extent that is a hole."""
NO_ID = ObjectId(bytes(16))
ROOT = DirectoryId(bytes(15) + b"\x01")


class SlotClass(IntEnum):
    """Payload size of a region's slots. `INLINE` slots keep their payload in the descriptor."""

    INLINE = 0
    KIB64 = 1
    KIB512 = 2
    MIB2 = 3
    MIB4 = 4
    MIB8 = 5
    MIB16 = 6

    @property
    def payload_size(self) -> int:
        """Bytes of payload area in one slot; 0 for inline."""
        return _PAYLOAD_SIZE[self]


_PAYLOAD_SIZE = (0, 64 * KIB, 512 * KIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)

EXTENT_CLASSES = (SlotClass.MIB2, SlotClass.MIB4, SlotClass.MIB8, SlotClass.MIB16)
"""The classes that a pool may choose as its extent size."""


class Kind(IntEnum):
    """What a descriptor says of its slot."""

    FREE = 0
    HEAD = 1
    BODY = 2
    INDEX = 3
    DIRECTORY = 4
    SYMLINK = 5
    TOMBSTONE = 6
    ALIAS = 7


NAMED_KINDS = frozenset({Kind.HEAD, Kind.DIRECTORY, Kind.SYMLINK, Kind.TOMBSTONE, Kind.ALIAS})
"""Kinds whose descriptor speaks for a name in a directory."""


class SlotAddress(NamedTuple):
    """Where a slot is."""

    device: DeviceNo
    region: RegionNo
    slot: SlotNo


class SlotRef(NamedTuple):
    """One use of a slot: its place and the generation of that use."""

    device: DeviceNo
    region: RegionNo
    slot: SlotNo
    generation: Generation

    @property
    def address(self) -> SlotAddress:
        return SlotAddress(self.device, self.region, self.slot)


class ExtentRef(NamedTuple):
    """One extent of an object as its head records it; `xxh3` covers the extent's used bytes."""

    device: DeviceNo
    region: RegionNo
    slot: SlotNo
    generation: Generation
    xxh3: Xxh3

    @property
    def address(self) -> SlotAddress:
        return SlotAddress(self.device, self.region, self.slot)

    @property
    def ref(self) -> SlotRef:
        return SlotRef(self.device, self.region, self.slot, self.generation)

    @property
    def is_hole(self) -> bool:
        return self.device == NO_DEVICE


HOLE = ExtentRef(NO_DEVICE, RegionNo(0), SlotNo(0), Generation(0), Xxh3(0))


class Extents(tuple[ExtentRef, ...]):
    """Those of a file that may be long, and little of it stored: half a million holes in 1 TiB. To do anything with each
    takes a second, to look at each 10 ms; so that is done once."""

    @cached_property
    def stored(self) -> list[tuple[int, ExtentRef]]:
        """See `stored`."""
        return _stored(self)


def stored(extents: Iterable[ExtentRef]) -> list[tuple[int, ExtentRef]]:
    """Those that are no holes, each with its index. Not to be changed."""
    return extents.stored if isinstance(extents, Extents) else _stored(extents)


def _stored(extents: Iterable[ExtentRef]) -> list[tuple[int, ExtentRef]]:
    return [
        (index, extent)
        for index, extent in enumerate(extents)
        if extent is not HOLE and extent.device != NO_DEVICE
    ]


class DeviceEntry(NamedTuple):
    """A row of the pool's device table, kept in every superblock."""

    uuid: UUID
    size: int
    """Bytes of the device that the pool uses."""


@dataclass(frozen=True, slots=True)
class Superblock:
    """What a device says of itself and of its pool."""

    pool: UUID
    device: UUID
    device_no: DeviceNo
    domain: str
    """Who coordinates the pool: `local:<uuid>` or `etcd:<cluster id>`; at most 255 bytes of ASCII."""
    name: str
    """The pool's name for people; at most 64 bytes of UTF-8."""
    region_size: int
    """Bytes."""
    data_offset: ByteOffset
    """Where region 0 begins."""
    extent_class: SlotClass
    devices: tuple[DeviceEntry, ...]
    sequence: int
    """Grows with every write of this device's superblock, that is at least once for each time the pool is
    opened for writing: a catalogue that remembers another number is stale."""


class RegionState(IntEnum):
    """`UNUSED` has never been formatted, `ACTIVE` holds slots, `RETIRED` is being wiped for another class."""

    UNUSED = 0
    ACTIVE = 1
    RETIRED = 2


@dataclass(frozen=True, slots=True)
class RegionHeader:
    """A region's state; identifies itself so that a misplaced page is never believed."""

    pool: UUID
    device_no: DeviceNo
    region: RegionNo
    state: RegionState
    writer: UUID
    """The member that writes into this region."""
    epoch: Epoch
    slot_class: SlotClass
    unproven: bool
    """Adopted without a fence: trust only what a checksum confirms."""
    sequence: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The record of one slot. Which fields mean something depends on `kind`; the others keep their defaults."""

    kind: Kind
    address: SlotAddress
    """Where this page lives: a page found elsewhere is not believed."""
    epoch: Epoch
    """The region's epoch when it was written: pages of earlier epochs are not believed."""
    generation: Generation
    """For FREE: the generation of the slot's next use. Otherwise: of this use."""
    sequence: int
    """Grows with every write of this slot's pair; the higher valid one counts. Page = sequence % 2."""
    stamp: Stamp = Stamp(0)
    object_id: ObjectId = NO_ID
    directory: DirectoryId = DirectoryId(NO_ID)
    name: bytes = b""
    mode: int = 0
    """st_mode, file type included."""
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    btime_ns: int = 0
    size: int = 0
    """Logical size in bytes: st_size of a head, used bytes of this slot for a body or index."""
    stored_size: int = 0
    """Bytes on media after the codec; equal to `size` less holes for codec 0."""
    codec: int = 0
    """0: bytes as they are. No other codec is defined in version 1."""
    indexed: bool = False
    """`extents` lists index slots, whose payload lists the extents."""
    extents: tuple[ExtentRef, ...] = ()
    supersedes: tuple[SlotRef, ...] = ()
    """Slots that an older record of the same name holds, to be invalid before this record may go."""
    predecessor: bytes = bytes(16)
    """128-bit hash of what the same writer published before, as the caller identifies it; zeros if none."""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    """User attributes: (name with its `user.` prefix, value), sorted by name."""
    inline: bytes = b""
    """Payload of an inline head; target of a symlink."""
    index: int = 0
    """Of a body or index: its position in the object."""
    head: SlotRef | None = None
    """Of a body or index: the object's head. Of a tombstone or alias: the record it replaces."""

    @property
    def ref(self) -> SlotRef:
        return SlotRef(*self.address, self.generation)


class RegionId(NamedTuple):
    """Names one region of the pool."""

    device: DeviceNo
    region: RegionNo


@dataclass(frozen=True, slots=True)
class DirtyChunk:
    """`CHUNK_SLOTS` consecutive descriptors of a region that may differ from the catalogue."""

    device: DeviceNo
    region: RegionNo
    chunk: int

    @property
    def where(self) -> RegionId:
        return RegionId(self.device, self.region)


CHUNK_SLOTS = 128
"""Descriptors are scanned, and marked for a scan after a crash, in chunks of this many slots (1 MiB)."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What another member changed: what a name stands for, or an object, in existence, name, attributes or content."""

    object_id: ObjectId
    directory: DirectoryId
    name: bytes
