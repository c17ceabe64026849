"""Puts a new version on media, in the order that makes it whole or absent; see `pool` for what must hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import trio
from xxhash import xxh3_64_intdigest

from blockdev import layout
from blockdev.errors import DeviceError, DeviceTimeout, RecordTooLarge, Unavailable
from blockdev.media import Media
from blockdev.memory import PageBuffers, padded
from blockdev.publication import (
    Home,
    NewObject,
    body_record,
    directory_id,
    extent_length,
    head_record,
    slots_of,
)
from blockdev.reading import Reader
from blockdev.room import Room
from blockdev.sources import Sources
from blockdev.tasks import for_each
from blockdev.types import (
    HOLE,
    NO_ID,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    ExtentRef,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotClass,
    SlotNo,
    SlotRef,
    Xxh3,
    stored,
)
from blockdev.versions import Versions

Arrived = Callable[[], Awaitable[None]]
"""Waits until nothing is written any more into the slots of a new version, and raises BlockError if one of them does not
hold what it should. It may be called again. Everything but the head is made ready meanwhile.
"""

OWED_ROOM = [SlotRef(DeviceNo(0), RegionNo(0), SlotNo(0), Generation(0))] * 4
"""Superseded slots for which every record keeps room."""


@dataclass(slots=True)
class Consumed:
    """The slots that a publication has taken."""

    fresh: list[SlotRef]
    """Reserved, nothing recorded in them yet."""
    recorded: list[SlotRef] = field(default_factory=list)
    """Their descriptor says, or may say, that they belong to the object."""
    is_open: bool = False
    """Whether the head was written is not known and never will be in this session: they may be its."""

    @property
    def all(self) -> list[SlotRef]:
        return list(dict.fromkeys([*self.fresh, *self.recorded]))


class Publisher:
    """Writes the records of new versions.

    :param extent_size: bytes per extent
    """

    def __init__(
        self,
        media: Media,
        room: Room,
        reader: Reader,
        versions: Versions,
        sources: Sources,
        *,
        extent_size: int,
    ) -> None:
        self._media = media
        self._room = room
        self._reader = reader
        self._versions = versions
        self._sources = sources
        self._extent_size = extent_size
        self._buffers = PageBuffers()

    async def base_extents(self, new: NewObject) -> tuple[ExtentRef, ...]:
        """:raises IntegrityError, Unavailable, DeviceError:"""
        return await self._reader.extents(new.base) if new.base is not None else ()

    def consumed(self, new: NewObject) -> Consumed:
        """The reserved slots in `new`."""
        return Consumed([e.ref for _, e in stored(new.extents) if self._room.is_reserved(e.ref)])

    async def abandon(self, consumed: Consumed) -> None:
        """Free what a failed publication had taken."""
        recorded = set(consumed.recorded)
        for ref in consumed.all:
            if consumed.is_open:
                self._room.quarantine(ref)
            elif ref in recorded:
                await self._room.invalidate([ref])
            else:
                self._room.give_back(ref)

    async def write(
        self,
        new: NewObject,
        old: Descriptor | None,
        current: Descriptor | None,
        taken: Consumed,
        arrived: Arrived | None = None,
    ) -> Descriptor:
        """Make `new` durable as the successor of `old`; afterwards its head is on media.

        The caller holds the locks of the name, of `old` and of the base.

        :param old: what the name stands for now
        :param current: what the base's object is now, under whatever name
        :param arrived: waits for the payloads that are still on their way
        :raises ValueError: `new` contradicts itself
        :raises RecordTooLarge, NoSpace, IntegrityError, Unavailable, DeviceError:
        """
        self._check_fits(new)
        await self._check_extents(new, taken)
        current = await self._keepable(new, current)
        if current is None and new.base is not None:
            new = await self._copied(new, taken)
        object_id = _identity(new, old, current) or self._new_id(new)
        home = await self._place(await self._home(current, taken))
        indexes = await self._write_indexes(new, home.ref, object_id, taken)
        await self._write_bodies(new, home.ref, object_id, taken)
        heir, key = current.object_id if current is not None else None, (new.directory, new.name)
        owed = await self._versions.debts.inherit(heir, old, key)
        stamp = self._sources.next_stamp(old, current)
        head = head_record(new, home, object_id, stamp, indexes, owed)
        if arrived is not None:
            await arrived()
        await self._room.barrier([*taken.all, head.ref])
        await self._write_first_head(head, taken)
        before = await self._versions.slots(current) if current is not None else []
        self._enter(head, new.extents, taken)
        if current is not None:
            kept = set(slots_of(head, new.extents))
            await self._versions.drop(current, [ref for ref in before if ref not in kept], stamp)
        return head

    def _new_id(self, new: NewObject) -> ObjectId:
        if new.kind is not Kind.DIRECTORY:
            return self._sources.new_id()
        # One that was made here may have another name by now.
        numbered = (directory_id(new.directory, new.name, number) for number in count())
        return next(one for one in numbered if not self._versions.exists(one))

    async def _write_first_head(self, head: Descriptor, taken: Consumed) -> None:
        try:
            await self.write_head(head)
            await self._room.barrier([head.ref])
        except (DeviceError, Unavailable):
            taken.is_open = not self._media.available(head.address.device)
            raise

    async def _check_extents(self, new: NewObject, taken: Consumed) -> None:
        """
        :raises ValueError: an extent that is neither reserved nor the base's
        :raises Unavailable: one whose slot failed meanwhile
        """
        known = {*taken.fresh, *(extent.ref for _, extent in stored(await self.base_extents(new)))}
        for _, extent in stored(new.extents):
            if extent.ref in known:
                continue
            if self._room.has_failed(extent.ref):
                raise Unavailable(f"slot {tuple(extent.address)} failed while {new.name!r} was written")
            raise ValueError(f"slot {tuple(extent.ref)} was not reserved for {new.name!r}")

    def _check_fits(self, new: NewObject) -> None:
        owed = OWED_ROOM
        count = -(-new.size // self._extent_size)
        if new.kind is Kind.HEAD and len(new.extents) != (0 if new.inline else count):
            raise ValueError(f"{len(new.extents)} extents for {new.size} bytes in {new.name!r}")
        if layout.max_inline(new.name, new.xattrs, owed) < len(new.inline):
            raise RecordTooLarge(f"the attributes of {new.name!r} do not fit its record")
        if layout.descriptor_room(new.name, new.xattrs, owed) < layout.EXTENT_ENTRY_SIZE * _INDEXES_MAX:
            raise RecordTooLarge(f"the attributes of {new.name!r} do not fit its record")

    async def _keepable(self, new: NewObject, current: Descriptor | None) -> Descriptor | None:
        """`current`, if `new` keeps slots of it and can be published by rewriting its head."""
        shared = {one for _, one in stored(await self.base_extents(new))} & {
            one for _, one in stored(new.extents)
        }
        wanted = {extent.ref for extent in shared}
        if (
            current is None
            or not wanted
            or not self._versions.is_ours(current)
            or (current.directory, current.name) != (new.directory, new.name)
        ):
            return None
        there = {extent.ref for _, extent in stored(await self._reader.extents(current))}
        return current if wanted <= there else None

    async def _copied(self, new: NewObject, taken: Consumed) -> NewObject:
        """`new` with what it shares with its base copied to slots of its own."""
        base = new.base
        assert base is not None
        shared = frozenset(extent for _, extent in stored(await self.base_extents(new)))
        extents = list(new.extents)
        for index, extent in stored(new.extents):
            if extent not in shared:
                continue
            length = extent_length(new.size, index, self._extent_size)
            ref = await self._room.reserve(self._room.class_for(length))
            taken.fresh.append(ref)
            with self._buffers.take(self._extent_size) as buffer:
                await self._reader.read_extent(base, index, buffer)
                await self._room.write_payload(ref, buffer[: padded(length)])
            extents[index] = ExtentRef(*ref, extent.xxh3)
        return replace(new, extents=tuple(extents))

    async def _home(self, current: Descriptor | None, taken: Consumed) -> SlotRef:
        if current is not None:
            return current.ref
        if not taken.fresh:
            taken.fresh.append(await self._room.reserve(SlotClass.INLINE))
        return taken.fresh[0]

    async def _place(self, ref: SlotRef) -> Home:
        return Home(ref, *await self._room.place(ref))

    async def _write_bodies(
        self, new: NewObject, head: SlotRef, object_id: ObjectId, taken: Consumed
    ) -> None:
        own = frozenset(taken.fresh)

        async def write(part: tuple[int, ExtentRef]) -> None:
            index, extent = part
            size = extent_length(new.size, index, self._extent_size)
            await self._write_body(Kind.BODY, extent.ref, head, object_id, (index, size), taken)

        bodies = [
            (index, extent)
            for index, extent in stored(new.extents)
            if extent.ref in own and extent.ref != head
        ]
        if bodies:
            await for_each(bodies, write, at_once=min(len(bodies), _BODIES_AT_ONCE))

    async def _write_body(
        self,
        kind: Kind,
        ref: SlotRef,
        head: SlotRef,
        object_id: ObjectId,
        part: tuple[int, int],
        taken: Consumed,
    ) -> None:
        record = body_record(kind, await self._place(ref), head, object_id, *part)
        taken.recorded.append(ref)
        await self._room.write_record(record)

    async def _write_indexes(
        self, new: NewObject, head: SlotRef, object_id: ObjectId, taken: Consumed
    ) -> list[ExtentRef]:
        owed = OWED_ROOM
        if len(new.extents) <= layout.max_extents(new.name, new.xattrs, owed):
            return []
        slot_class = layout.index_class(len(new.extents))
        step = layout.entries_per_index(slot_class)
        indexes: list[ExtentRef] = []
        needed = {index // step for index, _ in stored(new.extents)}
        for number, start in enumerate(range(0, len(new.extents), step)):
            if number not in needed:
                indexes.append(HOLE)
                continue
            entries = layout.pack_extents(new.extents[start : start + step])
            ref = await self._room.reserve(slot_class)
            taken.fresh.append(ref)
            with self._buffers.take(padded(len(entries))) as buffer:
                buffer[:] = entries.ljust(len(buffer), b"\0")
                await self._room.write_payload(ref, buffer)
            await self._write_body(Kind.INDEX, ref, head, object_id, (number, len(entries)), taken)
            indexes.append(ExtentRef(*ref, Xxh3(xxh3_64_intdigest(entries))))
        return indexes

    async def write_head(self, head: Descriptor) -> None:
        """Write a record that speaks for a name, so that afterwards it is known whether it is there.

        A device that leaves that open is lost: a record that came up later would speak for a name again.

        :raises Unavailable, DeviceError: it is not there
        """
        try:
            await self._room.write_record(head)
        except DeviceError as error:
            device = head.address.device
            if isinstance(error, DeviceTimeout):
                self._media.mark_lost(device)
                raise
            try:
                found = await self._media.read_descriptor(head.address)  # noqa: ASYNC120 - shielded by the pool
            except (DeviceError, Unavailable):
                self._room.note_late(head.address)
                self._media.mark_lost(device)
                raise error from None
            if found != head:
                raise
            self._room.note_written(head)

    async def write_root(self, mode: int, uid: int, gid: int, old: Descriptor | None) -> Descriptor:
        """Give the root directory, which has no record until it is changed, its first one.

        :param old: one that is out of reach
        :raises NoSpace, Unavailable, DeviceError:
        """
        now = self._sources.wall_ns()
        new = NewObject(DirectoryId(NO_ID), b"", mode, uid, gid, now, 0, kind=Kind.DIRECTORY)
        taken = Consumed([await self._room.reserve(SlotClass.INLINE)])
        try:
            place = await self._place(taken.fresh[0])
            owed = (old.ref,) if old is not None else ()
            head = head_record(new, place, ObjectId(ROOT), self._sources.next_stamp(old), (), owed)
            await self._write_first_head(head, taken)
        except BaseException:
            await self.abandon(taken)  # noqa: ASYNC102 - shielded by the pool, and every I/O has a deadline
            raise
        self._enter(head, (), taken)
        return head

    def _enter(self, head: Descriptor, extents: Sequence[ExtentRef], taken: Consumed) -> None:
        """Make a durable head known: one step, without an await."""
        for ref in taken.all:
            self._room.publish(ref, head.object_id)
        taken.fresh.clear()
        taken.recorded.clear()
        self._reader.learn(head, extents)
        self._versions.remember(head)
        if head.kind is Kind.HEAD:
            self._versions.arrived(head, extents, trio.current_time())


def _identity(new: NewObject, old: Descriptor | None, current: Descriptor | None) -> ObjectId | None:
    """The identity that a new version continues, if it does."""
    if current is not None:
        return current.object_id
    if new.kind is Kind.DIRECTORY and old is not None and old.kind is Kind.DIRECTORY:
        return old.object_id  # it cannot be reached: what is in it finds itself in its successor
    return None


_BODIES_AT_ONCE = 8
"""Body records that one publication writes at the same time."""
_INDEXES_MAX = 30
"""Index slots for which every record keeps room: 1 TiB in extents of 2 MiB needs 28."""
