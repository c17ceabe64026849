"""Which versions exist: who reads them, and how one leaves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from blockdev.catalogs import Catalogs
from blockdev.debts import Debts
from blockdev.errors import DeviceError, IntegrityError, Unavailable
from blockdev.eviction import Policy
from blockdev.publication import slots_of
from blockdev.reading import Reader
from blockdev.room import Room
from blockdev.types import Descriptor, ExtentRef, Kind, ObjectId, SlotRef, Stamp

log = logging.getLogger(__name__)


class PinBoard(Protocol):
    """Where members see each other's pins; `Board` is one."""

    def pin(self, object_id: ObjectId) -> None: ...

    def unpin(self, object_id: ObjectId) -> None: ...

    def is_pinned(self, object_id: ObjectId) -> bool: ...


class Pins:
    """Versions that somebody reads. Their slots are neither evicted nor reused.

    :ivar elsewhere: the pins of other members, and where they see ours of their objects
    """

    def __init__(self) -> None:
        self.elsewhere: PinBoard | None = None
        self._stamps: dict[ObjectId, Counter[Stamp]] = {}
        self._shown: set[ObjectId] = set()
        self.bytes = 0
        """Stored bytes of pinned versions, counted once a pin."""

    def add(self, record: Descriptor, *, ours: bool = True) -> None:
        """:param ours: whether the object is; if not, its owner must see it"""
        if not ours and self.elsewhere is not None and record.object_id not in self._shown:
            self.elsewhere.pin(record.object_id)
            self._shown.add(record.object_id)
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
            if record.object_id in self._shown and self.elsewhere is not None:
                self._shown.discard(record.object_id)
                self.elsewhere.unpin(record.object_id)

    def holds(self, record: Descriptor) -> bool:
        """Whether just this version is pinned."""
        return record.stamp in self._stamps.get(record.object_id, ())

    def __contains__(self, object_id: ObjectId) -> bool:
        return object_id in self._stamps or self._is_pinned_elsewhere(object_id)

    def _is_pinned_elsewhere(self, object_id: ObjectId) -> bool:
        return self.elsewhere is not None and self.elsewhere.is_pinned(object_id)

    def older_than(self, object_id: ObjectId, stamp: Stamp | None) -> Callable[[], bool]:
        """A question to ask later: is a version of the object older than `stamp` (any, if None) pinned?

        Of other members' pins only the object is known.
        """

        def pinned() -> bool:
            if self._is_pinned_elsewhere(object_id):
                return True
            stamps = self._stamps.get(object_id, ())
            return bool(stamps) if stamp is None else any(held < stamp for held in stamps)

        return pinned


class Versions:
    """Versions of objects on media, as the catalogue knows them.

    :param stranded: parts of objects whose head is out of reach, so that the catalogue does not know them
    """

    def __init__(
        self,
        catalog: Catalogs,
        policy: Policy,
        room: Room,
        reader: Reader,
        debts: Debts,
        stranded: dict[ObjectId, list[SlotRef]],
    ) -> None:
        self.pins = Pins()
        self.unread: set[ObjectId] = set()
        """Published since the pool was opened and not used yet."""
        self.debts = debts
        self._catalog = catalog
        self._policy = policy
        self._room = room
        self._reader = reader
        self._stranded = stranded

    def is_ours(self, record: Descriptor) -> bool:
        """Whether we may change the object."""
        return self._catalog.is_ours(record)

    def exists(self, object_id: ObjectId) -> bool:
        """Whether an object is known, under whatever name."""
        return self._catalog.by_id(object_id) is not None

    def remember(self, head: Descriptor) -> None:
        """Enter a durable record into the catalogue."""
        for ref in head.supersedes:
            self._room.mark(ref.address)  # after a crash, what it owes is looked at
        self._catalog.put(head)
        self._catalog.outdo([ref for ref in head.supersedes if not self._room.is_ours(ref)], head.stamp)
        self.debts.take_over(head)

    def arrived(self, head: Descriptor, extents: Iterable[ExtentRef], now: float) -> None:
        """A file has a new version."""
        self._policy.remove(head.object_id)
        self._policy.named(head.object_id, head.name, head.stamp)
        self._policy.follows(head.object_id, head.predecessor)
        self._policy.add(head.object_id, self._room.classes(slots_of(head, extents)), now)
        self.unread.add(head.object_id)

    def renamed(self, head: Descriptor) -> None:
        """A file has a new name, and the same content."""
        self._policy.named(head.object_id, head.name, head.stamp)

    async def slots(self, record: Descriptor) -> list[SlotRef]:
        """Every slot of a version, its head first."""
        try:
            return slots_of(record, await self._reader.extents(record))
        except (DeviceError, Unavailable, IntegrityError) as error:
            log.warning(
                "index of %r cannot be read (%s): its extents stay unused until a scan", record.name, error
            )
            return slots_of(record, ())

    # ── leaving ──────────────────────────────────────────────────────────────────────────────────────────

    def found(self, record: Descriptor) -> bool:
        """Whether a record means nothing that no object claims, found when its slot was looked at for the first time.

        A tombstone and a directory may keep others alive or dead; only a scan of everything tells. Parts of an object
        whose index cannot be read are its own. Parts of one whose head is out of reach would be kept if there were
        room, but whoever looks at slots one by one has none.
        """
        if record.kind in {Kind.BODY, Kind.INDEX}:
            owner = self._catalog.by_id(record.object_id)
            return owner is None or owner.ref != record.head
        return record.kind in {Kind.HEAD, Kind.SYMLINK}

    async def may_leave(self, record: Descriptor) -> bool:
        """Whether an object may be let go: that gives room, and nothing older would come back."""
        if not any(map(self._room.reaches, await self.slots(record))):
            self._policy.remove(record.object_id)
            return False
        return await self.debts.clear(record)

    async def leave(self, record: Descriptor) -> bool:
        """Let an object go that may; whether its head is invalid."""
        self._room.mark(record.address)
        self.debts.leave(record)
        self._catalog.forget(record)
        return await self._free(record)

    async def leave_damaged(self, record: Descriptor) -> None:
        """Let an object go whose bytes are wrong; its slots are not used again."""
        for ref in await self.slots(record):
            self._room.quarantine(ref)  # before it is freed
        if await self.debts.clear(record, patient=True):
            await self.leave(record)
        else:  # its head stays, to keep what it replaced from coming back
            self.debts.leave(record)
            self._catalog.forget(record)
            self._policy.remove(record.object_id)

    async def _free(self, record: Descriptor) -> bool:
        """Invalidate all slots of an object that no name stands for any more; whether its head is invalid."""
        self._policy.remove(record.object_id)
        self.unread.discard(record.object_id)
        slots = await self.slots(record)
        self._reader.forget(record)
        if self._catalog.others:  # who sees the slot invalid must not find it in our catalogue any more
            self._catalog.commit()
        invalid = await self._room.invalidate(slots, self.pins.older_than(record.object_id, None))
        if invalid:
            self.debts.gone(record)
        return invalid

    async def drop(self, record: Descriptor, gone: Iterable[SlotRef], stamp: Stamp) -> None:
        """Free the slots that version `stamp` of an object does not share with the one before, `record`."""
        self._reader.forget(record)
        await self._room.invalidate(gone, self.pins.older_than(record.object_id, stamp))

    async def replaced(self, old: Descriptor, successor: Descriptor) -> None:
        """Free the object whose name `successor` took, if it is ours."""
        if self._room.is_ours(old.ref) or not self._room.reaches(old.ref):
            self._catalog.forget(old)
            await self._free(old)
            self.debts.forgive(old.object_id)
        if (
            not self._room.flushes
        ):  # else the debt stays until the successor leaves: a flush for each would be dear
            await self.debts.settle(successor.object_id)

    async def remove(self, record: Descriptor) -> None:
        """Let an object go for good, leaving a tombstone if it, or what it replaced, cannot be made invalid now.

        :raises NoSpace: for a tombstone
        :raises Unavailable, DeviceError: it may come back
        """
        buried = not (self._room.reaches(record.ref) and await self.debts.settle(record.object_id))
        if buried:
            await self.debts.bury(record)
        if await self.leave(record):
            await self._room.barrier([record.ref])
        elif not buried:
            await self.debts.bury(record)

    def absorb(self, stranded: dict[ObjectId, list[SlotRef]]) -> None:
        """Know of the parts that another seat has of objects out of reach."""
        self._stranded |= stranded

    def is_stranded(self, object_id: ObjectId) -> bool:
        return object_id in self._stranded

    async def drop_stranded(self, object_id: ObjectId) -> None:
        """Free the parts of an object whose head is out of reach: when it comes back, it is not whole."""
        self._policy.remove(object_id)
        await self._room.invalidate(self._stranded.pop(object_id))
