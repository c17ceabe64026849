"""The descriptor: the record of one slot, one of the two pages of its pair.

The body of the page; the same bytes are the catalogue's value for the record:

    offset  type  field
    0       u8    kind (types.Kind)
    1       u8    flags: 1 = `extents` lists index slots, 2 = a head reference follows the fixed part
    2       u8    codec; 0 is the only one in version 1
    3       u8    length of the name, bytes
    4       u8    number of extents
    5       u8    number of superseded slots
    6       u8    number of attributes
    7       u8    0
    8       u16   device               this page's own address: a page that was written to or
    10      u16   length of `inline`   read from the wrong place is not believed
    12      u32   region
    16      u32   slot
    20      u32   epoch of the region when this was written
    24      u64   generation
    32      u64   sequence of the pair; its lowest bit says in which page this is
    40      u64   stamp, hybrid logical clock, ns
    48      16s   object id
    64      16s   directory id
    80      16s   predecessor: hash of the block published before; zeros = none
    96      u32   mode
    100     u32   uid
    104     u32   gid
    108     u32   index of a body or index slot in its object
    112     i64   mtime, ns since 1970
    120     i64   ctime, ns since 1970
    128     i64   btime, ns since 1970
    136     u64   size, bytes
    144     u64   stored size, bytes
    152     20s   head: a slot reference; only with flag 2
    …       …     name
    …       20s   each superseded slot
    …       28s   each extent
    …       …     attributes: u8 length of name, u16 length of value, name, value; sorted by name
    …       …     inline payload, to the end of the body

Why this order: everything of fixed size first, so that one unpack reads it; then what is nearly always small; the
inline payload last, as the only part that is bytes of the user's. Each part's length is known from what is before
it, and together they must fill the body exactly: a length that lies is noticed.

96 extents and a name of 255 bytes leave room for 941 bytes of attributes and superseded slots.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from uuid import UUID

from blockdev.errors import BadName, FormatError, RecordTooLarge
from blockdev.layout.extents import (
    EXTENT_ENTRY_SIZE,
    SLOT_REF_SIZE,
    pack_extents,
    pack_slot_refs,
    unpack_extents,
    unpack_slot_refs,
)
from blockdev.layout.page import BODY_MAX, BODY_OFFSET, Buffer, seal, unseal
from blockdev.types import (
    HEAD_EXTENTS_MAX,
    NAME_MAX,
    NAMED_KINDS,
    NO_ID,
    PAGE,
    ROOT,
    Descriptor,
    DirectoryId,
    Epoch,
    Kind,
    ObjectId,
    SlotAddress,
    SlotRef,
)

DESCRIPTOR_MAGIC = b"kvfsdesc"
DESCRIPTOR_VERSION = 1
INLINE_MAX = 2560
"""Most bytes of payload in a descriptor. More would fit, but so must a longer name or an attribute later."""

_FIXED = struct.Struct("<8BHHIIIQQQ16s16s16sIIIIqqqQQ")
FIXED_SIZE = _FIXED.size
_ATTRIBUTE = struct.Struct("<BH")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_OFFSET = BODY_OFFSET + 32

INDEXED, HAS_HEAD = 1, 2
"""Flags."""
_KINDS = tuple(Kind)
_PREFIX = b"user."
_ROOT_ID = ObjectId(ROOT)
_NO_DIRECTORY = DirectoryId(NO_ID)

Attributes = Sequence[tuple[bytes, bytes]]


def check_name(name: bytes) -> None:
    """
    :raises BadName: not a name that a file may have
    """
    if not name or len(name) > NAME_MAX or name in {b".", b".."} or b"/" in name or b"\0" in name:
        raise BadName(f"not a file name: {name[: NAME_MAX + 1]!r}")


def descriptor_room(name: bytes, xattrs: Attributes = (), supersedes: Sequence[SlotRef] = ()) -> int:
    """Bytes left for extents or an inline payload; negative if the record does not fit even without."""
    attributes = sum(_ATTRIBUTE.size + len(key) + len(value) for key, value in xattrs)
    used = _FIXED.size + SLOT_REF_SIZE + len(name) + attributes + SLOT_REF_SIZE * len(supersedes)
    return BODY_MAX - used


def max_inline(name: bytes, xattrs: Attributes = (), supersedes: Sequence[SlotRef] = ()) -> int:
    """Longest payload, in bytes, that may be inline; negative if the record does not fit at all."""
    return min(INLINE_MAX, descriptor_room(name, xattrs, supersedes))


def max_extents(name: bytes, xattrs: Attributes = (), supersedes: Sequence[SlotRef] = ()) -> int:
    """Most extents (or index slots) that the head can list; negative if the record does not fit at all."""
    return min(HEAD_EXTENTS_MAX, descriptor_room(name, xattrs, supersedes) // EXTENT_ENTRY_SIZE)


def pack_descriptor(record: Descriptor) -> bytes:
    """The record without the page around it.

    :raises BadName: the name, or an attribute's, may not be on media
    :raises RecordTooLarge: it does not fit a page, or a number does not fit its field
    """
    _check_names(record)
    _check_ids(record)
    try:
        parts = [_pack_fixed(record)]
        if record.head is not None:
            parts.append(pack_slot_refs((record.head,)))
        parts += (record.name, pack_slot_refs(record.supersedes), pack_extents(record.extents))
        for key, value in record.xattrs:
            parts += (_ATTRIBUTE.pack(len(key), len(value)), key, value)
    except struct.error as error:
        raise RecordTooLarge(f"a number does not fit its field: {error}") from error
    parts.append(record.inline)
    body = b"".join(parts)
    if len(body) > BODY_MAX or len(record.extents) > HEAD_EXTENTS_MAX:
        raise RecordTooLarge(f"a record of {len(body)} bytes and {len(record.extents)} extents")
    return body


def _pack_fixed(record: Descriptor) -> bytes:
    return _FIXED.pack(
        record.kind,
        (INDEXED if record.indexed else 0) | (HAS_HEAD if record.head is not None else 0),
        record.codec,
        len(record.name),
        len(record.extents),
        len(record.supersedes),
        len(record.xattrs),
        0,
        record.address.device,
        len(record.inline),
        record.address.region,
        record.address.slot,
        record.epoch,
        record.generation,
        record.sequence,
        record.stamp,
        record.object_id,
        record.directory,
        record.predecessor,
        record.mode,
        record.uid,
        record.gid,
        record.index,
        record.mtime_ns,
        record.ctime_ns,
        record.btime_ns,
        record.size,
        record.stored_size,
    )


def unpack_descriptor(data: Buffer) -> Descriptor:
    """The inverse of `pack_descriptor`, for bytes of any origin.

    :raises FormatError: not a record, or its names may not be on media
    """
    body = bytes(data)
    try:
        return _unpack(body)
    except (struct.error, BadName, IndexError) as error:
        raise FormatError(f"not a descriptor: {error}") from error


def _unpack(body: bytes) -> Descriptor:
    (
        kind, flags, codec, name_length, extent_count, superseded_count, attribute_count, reserved,
        device, inline_length, region, slot, epoch, generation, sequence, stamp,
        object_id, directory, predecessor, mode, uid, gid, index,
        mtime, ctime, btime, size, stored_size,
    ) = _FIXED.unpack_from(body)  # fmt: skip
    if reserved or flags > INDEXED | HAS_HEAD or extent_count > HEAD_EXTENTS_MAX:
        raise FormatError("a descriptor with a field that version 1 does not have")
    head_end = _FIXED.size + (SLOT_REF_SIZE if flags & HAS_HEAD else 0)
    name_end = head_end + name_length
    superseded_end = name_end + superseded_count * SLOT_REF_SIZE
    extents_end = superseded_end + extent_count * EXTENT_ENTRY_SIZE
    xattrs, xattrs_end = _unpack_xattrs(body, extents_end, attribute_count)
    if xattrs_end + inline_length != len(body):
        raise FormatError("a descriptor whose lengths do not add up")
    record = Descriptor(
        _KINDS[kind],
        SlotAddress(device, region, slot),
        epoch,
        generation,
        sequence,
        stamp,
        object_id,
        directory,
        body[head_end:name_end],
        mode,
        uid,
        gid,
        mtime,
        ctime,
        btime,
        size,
        stored_size,
        codec,
        bool(flags & INDEXED),
        unpack_extents(body[superseded_end:extents_end]) if extent_count else (),
        unpack_slot_refs(body[name_end:superseded_end]) if superseded_count else (),
        predecessor,
        xattrs,
        body[xattrs_end:],
        index,
        unpack_slot_refs(body[_FIXED.size : head_end])[0] if flags & HAS_HEAD else None,
    )
    _check_names(record)
    return record


def encode_descriptor(pool: UUID, record: Descriptor) -> bytes:
    """One page, to be written as page `record.sequence % 2` of the slot's pair.

    :raises BadName, RecordTooLarge: see `pack_descriptor`
    :raises ValueError: the record contradicts itself
    """
    flaw = _flaw(record)
    if flaw:
        raise ValueError(flaw)
    return seal(DESCRIPTOR_MAGIC, DESCRIPTOR_VERSION, pool, pack_descriptor(record))


def decode_descriptor(pool: UUID, page: Buffer) -> Descriptor | None:
    """The record in a page; None if it is not valid, whatever the reason.

    :raises UnknownVersion: the page is sound, of this pool and of a later version
    """
    found = unseal(DESCRIPTOR_MAGIC, DESCRIPTOR_VERSION, pool, page)
    if found is None:
        return None
    try:
        record = unpack_descriptor(found[1])
    except FormatError:
        return None
    return None if _flaw(record) else record


def pick_descriptor(pool: UUID, pair: Buffer, address: SlotAddress, epoch: Epoch) -> Descriptor | None:
    """The record that counts of a slot's two pages (8192 bytes): the valid one of this address and epoch with
    the highest sequence. None: neither is valid, the slot must not be used.

    :raises UnknownVersion: see `decode_descriptor`
    """
    if len(pair) != 2 * PAGE:
        raise ValueError(f"a pair of pages has {2 * PAGE} bytes, not {len(pair)}")
    view = memoryview(pair)
    sequences = [_SEQUENCE.unpack_from(view, page * PAGE + _SEQUENCE_OFFSET)[0] for page in (0, 1)]
    later = 1 if sequences[1] > sequences[0] else 0
    for page in (later, 1 - later):
        if sequences[page] % 2 != page:
            continue
        record = decode_descriptor(pool, view[page * PAGE : (page + 1) * PAGE])
        if record is not None and record.address == address and record.epoch == epoch:
            return record
    return None


def _unpack_xattrs(body: bytes, at: int, count: int) -> tuple[tuple[tuple[bytes, bytes], ...], int]:
    found = []
    for _ in range(count):
        key_length, value_length = _ATTRIBUTE.unpack_from(body, at)
        key_start = at + _ATTRIBUTE.size
        value_start = key_start + key_length
        at = value_start + value_length
        found.append((body[key_start:value_start], body[value_start:at]))
    return tuple(found), at


def _check_names(record: Descriptor) -> None:
    """
    :raises BadName:
    """
    if record.kind not in NAMED_KINDS:
        if record.name:
            raise BadName(f"a {record.kind.name} descriptor has no name")
    elif record.kind is Kind.DIRECTORY and record.object_id == _ROOT_ID:
        if record.name or record.directory != _NO_DIRECTORY:
            raise BadName("the root directory has no name and no parent")
    else:
        check_name(record.name)
        if record.directory == _NO_DIRECTORY:
            raise BadName("a name in no directory")
    if record.xattrs:
        _check_xattr_names(key for key, _ in record.xattrs)


def _check_xattr_names(keys: Iterable[bytes]) -> None:
    """Only `user.` attributes: others (file capabilities) would give rights to whoever can write media.

    :raises BadName:
    """
    before = b""
    for key in keys:
        if not key.startswith(_PREFIX) or len(key) == len(_PREFIX) or len(key) > NAME_MAX or b"\0" in key:
            raise BadName(f"not the name of a user attribute: {key[: NAME_MAX + 1]!r}")
        if key <= before:
            raise BadName("attributes are not sorted by name, or one is there twice")
        before = key


def _check_ids(record: Descriptor) -> None:
    """Struct pads and cuts bytes silently: an id of another length would come back as another id."""
    if not len(record.object_id) == len(record.directory) == len(record.predecessor) == len(NO_ID):
        raise ValueError("ids are 16 bytes")


def _flaw(record: Descriptor) -> str:
    """Why this record cannot be on media although each field is legal; empty if it can."""
    if record.codec:
        return f"codec {record.codec} is not defined in version 1"
    if record.kind in {Kind.BODY, Kind.INDEX} and record.head is None:
        return "a body that names no head"
    if record.inline and (record.extents or len(record.inline) != record.size):
        return "an inline payload that is not the whole object"
    if record.indexed and not record.extents:
        return "indexed, without an index"
    return ""
