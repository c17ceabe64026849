"""The pages by which members tell each other what they did and what they hold. Pure: codecs and arithmetic.

Change log
    Each member writes a ring of pages in a region that it leases. A page is never written twice in one round: every
    group of changes gets the next page, after the descriptors that it speaks of are written. Descriptors are the
    truth and the log is a hint where to look; a follower that missed a page, or that meets another epoch, scans the
    member's regions instead. The body:

    offset  type  field
    0       16s   UUID of the member
    16      u32   epoch of the log's region
    20      u16   number of changes, at most 60
    22      u16   0
    24      u64   sequence of the page, from 1 on; page = sequence % pages of the ring
    32      u64   time of writing, ns since 1970: for people and for lag, never for order
    40      64s   each change

    A change:

    0       u8    kind (ChangeKind)
    1       u8    0
    2       u16   device
    4       u32   region
    8       u32   slot
    12      u64   generation
    20      u64   sequence of the slot's descriptor after the change
    28      u64   stamp
    36      16s   object id
    52      12s   0

    Why 60 records of 64 bytes: one page is one write of the smallest unit that is never torn into two valid halves,
    and a fixed size makes the n-th change a multiplication.

Pin pages
    The objects that a member's readers hold, so that the owner of their slots does not reuse them. A member has a fixed
    number of parts; each is a pair of pages (page = sequence % 2) that stands alone, and an object stays in its part
    while it is held: any mixture of old and new parts holds what both agree on. The body:

    0       16s   UUID of the member
    16      u32   epoch of the region that they are in
    20      u16   part
    22      u16   number of objects
    24      u64   sequence
    32      16s   each object id
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from blockdev.errors import RecordTooLarge
from blockdev.layout.page import BODY_MAX, Buffer, seal, unseal
from blockdev.types import (
    MIB,
    NO_ID,
    PAGE,
    ByteOffset,
    DeviceNo,
    Epoch,
    Generation,
    ObjectId,
    RegionNo,
    SlotNo,
    SlotRef,
    Stamp,
)

LOG_MAGIC = b"kvfslog\0"
LOG_VERSION = 1
PINS_MAGIC = b"kvfspins"
PINS_VERSION = 1

_LOG = struct.Struct("<16sIHHQQ")
_CHANGE = struct.Struct("<BxHIIQQQ16s12x")
_PINS = struct.Struct("<16sIHHQ")

CHANGES_PER_PAGE = 60
PINS_PER_PAGE = (BODY_MAX - _PINS.size) // len(NO_ID)
RING_PAGES_MIN = MIB // PAGE
RING_PAGES_MAX = 4 * MIB // PAGE


class ChangeKind(IntEnum):
    """What a member did."""

    PUBLISH = 1
    RENAME = 2
    FREE = 3
    PIN = 4
    TOMBSTONE = 5
    ADOPT = 6


class Change(NamedTuple):
    """One change to the record of one slot."""

    kind: ChangeKind
    ref: SlotRef
    """The slot, and the generation that the change is about."""
    sequence: int
    """Of the slot's descriptor after the change."""
    stamp: Stamp
    object_id: ObjectId


@dataclass(frozen=True, slots=True)
class LogPage:
    """One page of a member's change log."""

    member: UUID
    epoch: Epoch
    sequence: int
    written_ns: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class PinPage:
    """One part of what a member's readers hold."""

    member: UUID
    epoch: Epoch
    part: int
    sequence: int
    objects: tuple[ObjectId, ...]


def encode_log_page(pool: UUID, page: LogPage) -> bytes:
    """
    :raises RecordTooLarge: more than `CHANGES_PER_PAGE` changes, or a number does not fit its field
    """
    if len(page.changes) > CHANGES_PER_PAGE:
        raise RecordTooLarge(f"{len(page.changes)} changes in a page for {CHANGES_PER_PAGE}")
    _check_ids(change.object_id for change in page.changes)
    try:
        fixed = _LOG.pack(page.member.bytes, page.epoch, len(page.changes), 0, page.sequence, page.written_ns)
        changes = b"".join(
            _CHANGE.pack(kind, *ref, sequence, stamp, object_id)
            for kind, ref, sequence, stamp, object_id in page.changes
        )
    except struct.error as error:
        raise RecordTooLarge(f"a number does not fit its field: {error}") from error
    return seal(LOG_MAGIC, LOG_VERSION, pool, fixed + changes)


def decode_log_page(pool: UUID, page: Buffer) -> LogPage | None:
    """The page's contents; None if it is not a valid page of a change log of this pool.

    :raises UnknownVersion: it is sound, of this pool and of a later version
    """
    found = unseal(LOG_MAGIC, LOG_VERSION, pool, page)
    if found is None or len(found[1]) < _LOG.size:
        return None
    body = found[1]
    member, epoch, count, reserved, sequence, written_ns = _LOG.unpack_from(body)
    if reserved or count > CHANGES_PER_PAGE or len(body) != _LOG.size + count * _CHANGE.size:
        return None
    changes = _unpack_changes(body[_LOG.size :])
    return (
        None if changes is None else LogPage(UUID(bytes=member), Epoch(epoch), sequence, written_ns, changes)
    )


def _unpack_changes(data: bytes) -> tuple[Change, ...] | None:
    changes = []
    for kind, device, region, slot, generation, sequence, stamp, object_id in _CHANGE.iter_unpack(data):
        if not ChangeKind.PUBLISH <= kind <= ChangeKind.ADOPT:
            return None
        ref = SlotRef(DeviceNo(device), RegionNo(region), SlotNo(slot), Generation(generation))
        changes.append(Change(ChangeKind(kind), ref, sequence, Stamp(stamp), ObjectId(object_id)))
    return tuple(changes)


def _check_ids(ids: Iterable[ObjectId]) -> None:
    """
    :raises ValueError: an id that would come back as another one
    """
    if any(len(object_id) != len(NO_ID) for object_id in ids):
        raise ValueError("object ids are 16 bytes")


def encode_pin_page(pool: UUID, page: PinPage) -> bytes:
    """One page, to be written as page `page.sequence % 2` of the part's pair.

    :raises RecordTooLarge: more than `PINS_PER_PAGE` objects, or a number does not fit its field
    """
    if len(page.objects) > PINS_PER_PAGE:
        raise RecordTooLarge(f"{len(page.objects)} objects in a page for {PINS_PER_PAGE}")
    _check_ids(page.objects)
    try:
        fixed = _PINS.pack(page.member.bytes, page.epoch, page.part, len(page.objects), page.sequence)
    except struct.error as error:
        raise RecordTooLarge(f"a number does not fit its field: {error}") from error
    return seal(PINS_MAGIC, PINS_VERSION, pool, fixed + b"".join(page.objects))


def decode_pin_page(pool: UUID, page: Buffer) -> PinPage | None:
    """The page's contents; None if it is not a valid pin page of this pool.

    :raises UnknownVersion: it is sound, of this pool and of a later version
    """
    found = unseal(PINS_MAGIC, PINS_VERSION, pool, page)
    if found is None or len(found[1]) < _PINS.size:
        return None
    body = found[1]
    member, epoch, part, count, sequence = _PINS.unpack_from(body)
    if len(body) != _PINS.size + count * len(NO_ID):
        return None
    objects = tuple(ObjectId(body[at : at + len(NO_ID)]) for at in range(_PINS.size, len(body), len(NO_ID)))
    return PinPage(UUID(bytes=member), Epoch(epoch), part, sequence, objects)


def pick_pin_page(pool: UUID, pair: Buffer, member: UUID, epoch: Epoch, part: int) -> PinPage | None:
    """The page that counts of a part's pair (8192 bytes). None: unknown, so everything may be held.

    :raises UnknownVersion: see `decode_pin_page`
    """
    view = memoryview(pair)
    best: PinPage | None = None
    for number in (0, 1):
        found = decode_pin_page(pool, view[number * PAGE : (number + 1) * PAGE])
        if found is None or found.sequence % 2 != number:
            continue
        if (found.member, found.epoch, found.part) != (member, epoch, part):
            continue
        if best is None or found.sequence > best.sequence:
            best = found
    return best


@dataclass(frozen=True, slots=True)
class Ring:
    """Where the pages of a log are."""

    offset: ByteOffset
    """Where the ring begins, bytes."""
    pages: int

    def position(self, sequence: int) -> ByteOffset:
        """Where the page with this sequence is, or will be, bytes."""
        return ByteOffset(self.offset + sequence % self.pages * PAGE)

    def oldest(self, newest: int) -> int:
        """The smallest sequence that is still in the ring when `newest` has been written."""
        return max(1, newest - self.pages + 1)

    def replayable(self, seen: int, newest: int) -> bool:
        """Whether everything after page `seen` can still be read; else the member's regions must be scanned."""
        return seen + 1 >= self.oldest(newest)


class Followed(NamedTuple):
    """What a follower does with the next part of a ring."""

    pages: tuple[LogPage, ...]
    """To be applied, in this order."""
    rescan: bool
    """After them something was missed, and the log cannot tell what: scan the member's regions."""


def follow(last: LogPage, window: Sequence[LogPage | None]) -> Followed:
    """Judge the pages read from the positions after `last`, the page that was applied last.

    What the ring held a round ago, and a page that is being written, end the reading without harm; a later page
    beyond them, or one of a later epoch, tells that something is missing.
    """
    pages: list[LogPage] = []
    expected = last.sequence + 1
    for page in window:
        if page is None or page.epoch < last.epoch:
            continue
        if page.epoch > last.epoch or page.member != last.member or page.sequence > expected:
            return Followed(tuple(pages), rescan=True)
        if page.sequence == expected:
            pages.append(page)
            expected += 1
    return Followed(tuple(pages), rescan=False)


def newest_page(pages: Sequence[LogPage | None], member: UUID, epoch: Epoch) -> LogPage | None:
    """The last page that a member wrote in an epoch, from a reading of its whole ring in order of position."""
    own = (
        page
        for number, page in enumerate(pages)
        if page is not None
        and (page.member, page.epoch, page.sequence % len(pages)) == (member, epoch, number)
    )
    return max(own, key=lambda page: page.sequence, default=None)
