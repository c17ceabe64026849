"""Which versions exist: who reads them, what a newer one still owes the older, and how one leaves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blockdev.catalog import Catalog
from blockdev.errors import DeviceError, IntegrityError, Unavailable
from blockdev.eviction import Policy
from blockdev.publication import slots_of
from blockdev.reading import Reader
from blockdev.room import Room
from blockdev.stamps import next_stamp
from blockdev.types import NO_ID, Descriptor, Kind, ObjectId, SlotClass, SlotRef, Stamp

log = logging.getLogger(__name__)

_OWED_MAX = 3
"""Superseded slots that a record may list before they are looked after; `publisher.OWED_ROOM` is kept for them."""


class Pins:
    """Versions that somebody reads. Their slots are neither evicted nor reused."""

    def __init__(self) -> None:
        self._stamps: dict[ObjectId, Counter[Stamp]] = {}
        self.bytes = 0
        """Stored bytes of pinned versions, counted once a pin."""

    def add(self, record: Descriptor) -> None:
        self._stamps.setdefault(record.object_id, Counter())[record.stamp] += 1
        self.bytes += record.stored_size

    def remove(self, record: Descriptor) -> None:
        """:raises KeyError: it was not pinned"""
        stamps = self._stamps[record.object_id]
        if stamps[record.stamp] < 1:
            raise KeyError(record.stamp)
        stamps[record.stamp] -= 1
        self.bytes -= record.stored_size
        if not stamps[record.stamp]:
            del stamps[record.stamp]
        if not stamps:
            del self._stamps[record.object_id]

    def holds(self, record: Descriptor) -> bool:
        """Whether just this version is pinned."""
        return record.stamp in self._stamps.get(record.object_id, ())

    def __contains__(self, object_id: ObjectId) -> bool:
        return object_id in self._stamps

    def older_than(self, object_id: ObjectId, stamp: Stamp | None) -> Callable[[], bool]:
        """A question to ask later: is a version of the object older than `stamp` (any, if None) pinned?"""

        def pinned() -> bool:
            stamps = self._stamps.get(object_id, ())
            return bool(stamps) if stamp is None else any(held < stamp for held in stamps)

        return pinned


@dataclass(slots=True)
class Debts:
    """What is left of the past.

    :ivar owed: per object, the slots of older versions that are not known to be invalid on media
    :ivar high: the largest stamp seen
    """

    owed: dict[ObjectId, tuple[SlotRef, ...]]
    high: Stamp


@dataclass(frozen=True, slots=True)
class Sources:
    """Where times and identities come from.

    :ivar wall_ns: the wall clock, ns since 1970
    :ivar entropy: that many random bytes
    """

    wall_ns: Callable[[], int]
    entropy: Callable[[int], bytes]


class Versions:
    """Versions of objects on media, as the catalogue knows them."""

    def __init__(
        self, catalog: Catalog, policy: Policy, room: Room, reader: Reader, debts: Debts, sources: Sources
    ) -> None:
        self.pins = Pins()
        self.unread: set[ObjectId] = set()
        """Published since the pool was opened and not used yet."""
        self.wall_ns = sources.wall_ns
        self._entropy = sources.entropy
        self._catalog = catalog
        self._policy = policy
        self._room = room
        self._reader = reader
        self._owed = debts.owed
        self._high = debts.high

    def new_id(self) -> ObjectId:
        """An identity that no object had."""
        return ObjectId(self._entropy(len(NO_ID)))

    def next_stamp(self, *seen: Descriptor | None) -> Stamp:
        """A stamp later than every one so far."""
        largest = max([self._high, *(record.stamp for record in seen if record is not None)])
        self._high = next_stamp(self.wall_ns(), largest)
        return self._high

    # ── debts ────────────────────────────────────────────────────────────────────────────────────────────

    def owed_by(self, object_id: ObjectId) -> tuple[SlotRef, ...]:
        """Slots that must be invalid before this object may go, lest a scan brings them back."""
        return self._owed.get(object_id, ())

    async def inherit(self, heir: ObjectId | None, old: Descriptor | None) -> tuple[SlotRef, ...]:
        """What a record owes that continues `heir` and takes the name of `old`; few enough for a record."""
        owed = self._inherited(heir, old)
        if len(owed) > _OWED_MAX:
            for object_id in (heir, old.object_id if old is not None else None):
                if object_id is not None:
                    await self.settle(object_id)
            owed = self._inherited(heir, old)
        return owed

    def _inherited(self, heir: ObjectId | None, old: Descriptor | None) -> tuple[SlotRef, ...]:
        owed = list(self._owed.get(heir, ())) if heir is not None else []
        if old is not None and old.object_id != heir:
            owed += [*self._owed.get(old.object_id, ()), old.ref]
        return tuple(dict.fromkeys(owed))

    def remember(self, head: Descriptor) -> None:
        """Enter a durable record into the catalogue."""
        self._catalog.put(head)
        if head.supersedes:
            self._owed[head.object_id] = head.supersedes

    def arrived(self, object_id: ObjectId, classes: frozenset[SlotClass], now: float) -> None:
        """A file has a new version in slots of these classes."""
        self._policy.remove(object_id)
        self._policy.add(object_id, classes, now)
        self.unread.add(object_id)

    async def settle(self, object_id: ObjectId) -> bool:
        """Make what the object replaced invalid on media; whether all of it is."""
        left = [ref for ref in self._owed.get(object_id, ()) if not await self._room.ensure_invalid(ref)]
        if left:
            self._owed[object_id] = tuple(left)
        else:
            self._owed.pop(object_id, None)
        return not left

    # ── leaving ──────────────────────────────────────────────────────────────────────────────────────────

    async def slots(self, record: Descriptor) -> list[SlotRef]:
        """Every slot of a version, its head first."""
        try:
            return slots_of(record, await self._reader.extents(record))
        except (DeviceError, Unavailable, IntegrityError) as error:
            log.warning(
                "index of %r cannot be read (%s): its extents stay unused until a scan", record.name, error
            )
            return slots_of(record, ())

    async def free(self, record: Descriptor) -> bool:
        """Invalidate all slots of an object that no name stands for any more; whether its head is invalid."""
        self._policy.remove(record.object_id)
        self.unread.discard(record.object_id)
        slots = await self.slots(record)
        self._reader.forget(record.object_id, record.stamp)
        return await self._room.invalidate(slots, self.pins.older_than(record.object_id, None))

    async def drop(self, record: Descriptor, gone: Iterable[SlotRef], stamp: Stamp) -> None:
        """Free the slots that version `stamp` of an object does not share with the one before, `record`."""
        self._reader.forget(record.object_id, record.stamp)
        await self._room.invalidate(gone, self.pins.older_than(record.object_id, stamp), head_first=False)

    async def replaced(self, old: Descriptor, successor: Descriptor) -> None:
        """Free the object whose name `successor` took."""
        await self.free(old)
        self._owed.pop(old.object_id, None)
        if (
            not self._room.flushes
        ):  # else the debt stays until the successor leaves: a flush for each would be dear
            await self.settle(successor.object_id)

    async def remove(self, record: Descriptor) -> None:
        """Let an object go for good, leaving a tombstone if what it replaced cannot be made invalid now.

        :raises NoSpace: for a tombstone
        :raises Unavailable, DeviceError: it is still there
        """
        if not await self.settle(record.object_id):
            await self._entomb(record)
        self._catalog.delete(record.directory, record.name)
        if not await self.free(record):
            raise Unavailable(f"{record.name!r} is on a device that does not answer")

    async def _entomb(self, record: Descriptor) -> None:
        """Say in a slot of its own that the name stands for nothing, until all that it stood for is invalid."""
        ref = await self._room.reserve(SlotClass.INLINE)
        epoch, sequence = await self._room.place(ref)
        tombstone = Descriptor(
            Kind.TOMBSTONE,
            ref.address,
            epoch,
            ref.generation,
            sequence + 1,
            stamp=self.next_stamp(record),
            object_id=self.new_id(),
            directory=record.directory,
            name=record.name,
            supersedes=(*self.owed_by(record.object_id), record.ref),
        )
        try:
            await self._room.write_record(tombstone)
            await self._room.barrier([ref])
        except (DeviceError, Unavailable):
            await self._room.invalidate([ref])  # noqa: ASYNC120 - shielded by the pool
            raise
        self._room.publish(ref, tombstone.object_id)
