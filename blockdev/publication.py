"""From the content of a new version to the records that make it an object. Pure.

Where the head goes: into the slot of the object's first stored extent, so that an object of one extent costs one
payload and one page; an object without stored extents takes an inline slot. A version that keeps slots of the version
before it keeps that one's head slot too and is published by rewriting its page: bodies name their head's slot, and
records that name another slot would be garbage to whoever rebuilds the pool.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from xxhash import xxh3_128_digest

from blockdev.types import (
    Descriptor,
    DirectoryId,
    Epoch,
    ExtentRef,
    Kind,
    ObjectId,
    SlotRef,
    Stamp,
    stored,
)


@dataclass(frozen=True, slots=True)
class NewObject:
    """What is to be published under a name.

    `extents[i]` covers the bytes from `i * extent_size` on; each is `HOLE`, a slot that was reserved and written, or an
    extent of `base` whose used bytes are the same in both. With `inline`, there are no extents and
    `size == len(inline)`.
    """

    directory: DirectoryId
    name: bytes
    mode: int
    """st_mode with its file type."""
    uid: int
    gid: int
    mtime_ns: int
    size: int
    """Bytes."""
    extents: tuple[ExtentRef, ...] = ()
    inline: bytes = b""
    kind: Kind = Kind.HEAD
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    predecessor: bytes = bytes(16)
    base: Descriptor | None = None
    """The version that this one was made from: its extents may be kept, its birth time is."""
    replace: bool = True
    """Whether the name may be taken already."""


@dataclass(frozen=True, slots=True)
class Home:
    """The slot whose descriptor becomes the head."""

    ref: SlotRef
    epoch: Epoch
    sequence: int
    """Of the slot's current record."""


def head_record(
    new: NewObject,
    home: Home,
    object_id: ObjectId,
    stamp: Stamp,
    indexes: Sequence[ExtentRef],
    owed: Sequence[SlotRef],
) -> Descriptor:
    """The head (or directory, or symlink) of `new`.

    :param indexes: index slots that list the extents, if there are too many for the head
    :param owed: what this record replaces and must outlive
    """
    base = new.base
    held = len(stored(new.extents))
    return Descriptor(
        kind=new.kind,
        address=home.ref.address,
        epoch=home.epoch,
        generation=home.ref.generation,
        sequence=home.sequence + 1,
        stamp=stamp,
        object_id=object_id,
        directory=new.directory,
        name=new.name,
        mode=new.mode,
        uid=new.uid,
        gid=new.gid,
        mtime_ns=new.mtime_ns,
        ctime_ns=stamp,
        btime_ns=base.btime_ns if base is not None else stamp,
        size=new.size,
        stored_size=new.size if held == len(new.extents) else _stored_bytes(new, held),
        indexed=bool(indexes),
        extents=tuple(indexes) or new.extents,
        supersedes=tuple(owed),
        predecessor=new.predecessor,
        xattrs=new.xattrs,
        inline=new.inline,
    )


def _stored_bytes(new: NewObject, held: int) -> int:
    return new.size * held // len(new.extents) if new.extents else len(new.inline)


def body_record(
    kind: Kind, place: Home, head: SlotRef, object_id: ObjectId, index: int, size: int
) -> Descriptor:
    """The record of a slot that belongs to an object whose head is elsewhere.

    :param kind: `BODY` of an extent, `INDEX` of an index slot
    :param index: its position among the object's extents, or index slots
    :param size: used bytes
    """
    return Descriptor(
        kind=kind,
        address=place.ref.address,
        epoch=place.epoch,
        generation=place.ref.generation,
        sequence=place.sequence + 1,
        object_id=object_id,
        index=index,
        size=size,
        stored_size=size,
        head=head,
    )


def directory_id(parent: DirectoryId, name: bytes, number: int) -> ObjectId:
    """The identity of a directory that is made under a name, where the first `number` ones are taken.

    It follows from the name: when two members make a directory at once, or it is made again while the device with its
    record is away, it is the same directory, and what is in the one is in the other.
    """
    return ObjectId(xxh3_128_digest(b"%b%b/%d" % (parent, name, number)))


def extent_length(size: int, index: int, extent_size: int) -> int:
    """Used bytes of extent `index` of an object of `size` bytes."""
    return max(0, min(extent_size, size - index * extent_size))


def slots_of(head: Descriptor, extents: Iterable[ExtentRef]) -> list[SlotRef]:
    """Every slot that a version holds, its head first; `extents` as `Reader.extents` resolves them."""
    listed = stored(head.extents)
    resolved = stored(extents) if extents is not head.extents else []
    return list(dict.fromkeys([head.ref, *(extent.ref for _, extent in (*listed, *resolved))]))


def moved(
    record: Descriptor, directory: DirectoryId, name: bytes, stamp: Stamp, owed: Sequence[SlotRef]
) -> Descriptor:
    """`record` under another name, as the next page of its slot."""
    return replace(
        record,
        directory=directory,
        name=name,
        stamp=stamp,
        ctime_ns=stamp,
        sequence=record.sequence + 1,
        supersedes=tuple(owed),
    )


def directory_mode(mode: int) -> int:
    """`mode` as a directory's."""
    return stat.S_IFDIR | stat.S_IMODE(mode)


def symlink_mode() -> int:
    """The mode of every symlink."""
    return stat.S_IFLNK | 0o777
