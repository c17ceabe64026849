"""What newer records owe to older ones, so that nothing that was replaced or removed comes back to life.

A record that was outdone and could not be made invalid (its device is missing, or fails) is found again by a scan. So
whatever outdoes it must stay as long. Each record lists what it outdoes; before it may go, all of that must be invalid
on media, or be listed in a tombstone, which stays until a scan finds all of it gone.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from blockdev import layout
from blockdev.catalogs import Catalogs
from blockdev.errors import DeviceError, NoSpace, Unavailable
from blockdev.room import Room
from blockdev.sources import Sources
from blockdev.stamps import NameKey
from blockdev.types import Descriptor, DirectoryId, Kind, ObjectId, SlotClass, SlotRef

log = logging.getLogger(__name__)

_OWED_MAX = 3
"""Superseded slots that a record may list before they are looked after; `publisher.OWED_ROOM` is kept for them."""
_NAME = b"tombstone"


class Tombstones:
    """Lists of records that must stay dead, in inline slots of their own.

    A tombstone outdoes whatever it lists and is older than it. Its own name is in a directory that never was, so that
    it does not speak for what is stored later under the name of something that it lists. The last one written is
    filled up before another slot is taken: one for each object that is evicted while a device is missing would be dear.
    """

    def __init__(self, room: Room, catalogs: Catalogs, sources: Sources, known: Iterable[Descriptor]) -> None:
        self._room = room
        self._catalogs = catalogs
        self._sources = sources
        self._lock = trio.Lock()
        self._all = {tombstone.ref: tombstone for tombstone in known}
        self._over: defaultdict[SlotRef, set[SlotRef]] = defaultdict(set)
        """Per tombstone, what it lists that is known to be invalid."""
        self._last: Descriptor | None = None
        self._spare: SlotRef | None = None

    def absorb(self, known: Iterable[Descriptor]) -> None:
        """Look after the tombstones of another seat, too."""
        self._all |= {tombstone.ref: tombstone for tombstone in known}

    async def prepare(self) -> None:
        """See that a tombstone can be written when the pool is full of what needs one to go."""
        if self._spare is None and (self._last is None or not self._has_room(self._last.supersedes)):
            with suppress(NoSpace):
                spare = await self._room.reserve(SlotClass.INLINE)
                if self._spare is None:
                    self._spare = spare
                else:  # another one was faster
                    self._room.give_back(spare)

    async def bury(self, refs: Sequence[SlotRef], *, patient: bool) -> bool:
        """List `refs` (a few) durably.

        :param patient: let others go if there is no slot
        :returns: False if there is no slot and `patient` is false
        :raises NoSpace, Unavailable, DeviceError: whether it was written is not known
        """
        # Told now: some may come to us while it is written.
        theirs = [ref for ref in refs if not self._room.is_ours(ref)]
        spare = None
        if patient and not self._has_room(refs):
            spare = await self._room.reserve(SlotClass.INLINE)  # may bury others: not with the lock held
        async with self._lock:
            if self._has_room(refs):
                if spare is not None:
                    self._room.give_back(spare)
                await self._extend(refs, theirs)
                return True
            slot = spare or self._room.take(SlotClass.INLINE) or self._take_spare()
            if slot is None:
                return False
            await self._begin(slot, refs, theirs)
            return True

    def _take_spare(self) -> SlotRef | None:
        spare, self._spare = self._spare, None
        return spare

    def _has_room(self, refs: Sequence[SlotRef]) -> bool:
        last = self._last
        return last is not None and layout.descriptor_room(_NAME, (), (*last.supersedes, *refs)) >= 0

    async def _extend(self, refs: Sequence[SlotRef], theirs: Iterable[SlotRef]) -> None:
        last, self._last = (
            self._last,
            None,
        )  # if this fails, both pages list what was listed before: leave it at that
        assert last is not None
        tombstone = replace(
            last,
            sequence=last.sequence + 1,
            stamp=self._sources.next_stamp(),
            supersedes=(*last.supersedes, *refs),
        )
        await self._write(tombstone)
        self._enter(tombstone, theirs)

    async def _begin(self, slot: SlotRef, refs: Sequence[SlotRef], theirs: Iterable[SlotRef]) -> None:
        object_id = self._sources.new_id()
        try:
            epoch, sequence = await self._room.place(slot)
            tombstone = Descriptor(
                Kind.TOMBSTONE,
                slot.address,
                epoch,
                slot.generation,
                sequence + 1,
                stamp=self._sources.next_stamp(),
                object_id=object_id,
                directory=DirectoryId(object_id),
                name=_NAME,
                supersedes=tuple(refs),
            )
            await self._write(tombstone)
        except (DeviceError, Unavailable):
            await self._room.invalidate([slot])  # noqa: ASYNC120 - shielded by the pool
            raise
        self._room.publish(slot, tombstone.object_id)
        self._enter(tombstone, theirs)

    def _enter(self, tombstone: Descriptor, theirs: Iterable[SlotRef]) -> None:
        self._last = self._all[tombstone.ref] = tombstone
        self._catalogs.put(tombstone)
        self._catalogs.outdo(theirs, tombstone.stamp)

    async def sweep(self, limit: int) -> None:
        """Look at some of what is listed, and free tombstones all of whose records are invalid by now.

        :param limit: most slots to look at
        """
        async with self._lock:
            for tombstone in list(self._all.values()):
                over = self._over[tombstone.ref]
                waiting = [ref for ref in tombstone.supersedes if ref not in over]
                for ref in waiting[: max(0, limit)]:
                    if not await self._room.ensure_invalid(ref):
                        break
                    over.add(ref)
                limit -= len(waiting)
                if len(over) == len(tombstone.supersedes):
                    await self._drop(tombstone)
                if limit <= 0:
                    return

    async def _drop(self, tombstone: Descriptor) -> None:
        self._all.pop(tombstone.ref)
        self._over.pop(tombstone.ref)
        if self._last is not None and self._last.ref == tombstone.ref:
            self._last = None
        self._catalogs.forget(tombstone)
        for ref in tombstone.supersedes:
            self._catalogs.not_outdone(ref)
        with trio.CancelScope(shield=True):
            await self._room.invalidate([tombstone.ref])

    async def _write(self, tombstone: Descriptor) -> None:
        await self._room.write_record(tombstone)
        await self._room.barrier([tombstone.ref])


class Debts:
    """What every live object still owes.

    :param owed: per object, the slots of older records that are not known to be invalid on media
    """

    def __init__(
        self,
        room: Room,
        catalogs: Catalogs,
        sources: Sources,
        owed: dict[ObjectId, tuple[SlotRef, ...]],
        tombstones: Iterable[Descriptor] = (),
    ) -> None:
        self._room = room
        self._catalogs = catalogs
        self._owed = owed
        self._left: dict[NameKey, tuple[SlotRef, ...]] = {}
        """Per name, the slots of records that nothing stands for any more and that may still be valid on media."""
        self._tombstones = Tombstones(room, catalogs, sources, tombstones)

    def of(self, object_id: ObjectId) -> tuple[SlotRef, ...]:
        """Slots that must be invalid before this object may go, lest a scan brings them back."""
        return self._owed.get(object_id, ())

    def add(self, object_id: ObjectId, ref: SlotRef) -> None:
        """An object owes a slot more."""
        self._owed[object_id] = (*self.of(object_id), ref)

    async def inherit(
        self, heir: ObjectId | None, old: Descriptor | None, key: NameKey
    ) -> tuple[SlotRef, ...]:
        """What a record owes that continues `heir` and takes the name `key` from `old`; few enough for a record."""
        owed = [*self._left.get(key, ())]
        if heir is not None:
            owed += self.of(heir)
        if old is not None and old.object_id != heir:
            others = [record.ref for record in self._catalogs.behind(old) if record.ref != old.ref]
            owed += [*self.of(old.object_id), *others, old.ref]
        owed = list(dict.fromkeys(owed))
        if not all(map(self._room.reaches, owed)):
            await self._tombstones.prepare()
        if len(owed) <= _OWED_MAX:
            return tuple(owed)
        last = owed.pop() if old is not None and owed[-1] == old.ref else None
        owed = [ref for ref in owed if not await self._room.ensure_invalid(ref)]
        if len(owed) >= _OWED_MAX and await self.try_to_bury(owed, patient=False):
            owed = []
        return (*owed, last) if last is not None else tuple(owed)

    def take_over(self, head: Descriptor) -> None:
        """A record is durable: what it lists is its debt from now on."""
        self._left.pop((head.directory, head.name), None)
        if head.supersedes:
            self._owed[head.object_id] = head.supersedes
        else:
            self._owed.pop(head.object_id, None)

    def forgive(self, object_id: ObjectId) -> None:
        """Others owe it now."""
        self._owed.pop(object_id, None)

    async def settle(self, object_id: ObjectId) -> bool:
        """Find out whether what the object replaced is invalid on media, all of it."""
        await self._paid(object_id)
        return not self.of(object_id)

    async def _paid(self, object_id: ObjectId) -> list[SlotRef]:
        """Strike off what the object owed to records that are invalid on media by now; returns their slots."""
        over = [ref for ref in self.of(object_id) if await self._room.ensure_invalid(ref)]
        left = tuple(ref for ref in self.of(object_id) if ref not in over)
        if left:
            self._owed[object_id] = left
        else:
            self.forgive(object_id)
        return over

    async def bury(self, record: Descriptor) -> None:
        """Have a tombstone answer for a record and for what it owes.

        :raises NoSpace, Unavailable, DeviceError: whether it does is not known
        """
        refs = (*self.of(record.object_id), record.ref)
        await self._tombstones.bury(refs, patient=True)
        self.forgive(record.object_id)

    async def bury_all(self, refs: Sequence[SlotRef]) -> None:
        """Have a tombstone answer for records of others. :raises NoSpace, Unavailable, DeviceError: see `bury`"""
        await self._tombstones.bury(refs, patient=True)

    async def sweep(self, limit: int) -> None:
        """See what became of some of what is owed to other members' records, and of tombstones.

        :param limit: most slots to look at
        """
        await self._tombstones.sweep(limit)
        owing = [i for i, refs in self._owed.items() if not all(map(self._room.is_ours, refs))]
        for object_id in owing[:limit]:
            for ref in await self._paid(object_id):
                self._catalogs.not_outdone(ref)

    def absorb(self, owed: dict[ObjectId, tuple[SlotRef, ...]], tombstones: Iterable[Descriptor]) -> None:
        """Take over what another seat's objects owe."""
        self._owed |= owed
        self._tombstones.absorb(tombstones)

    async def clear(self, record: Descriptor, *, patient: bool = False) -> bool:
        """Whether a record may go now: nothing would come back.

        :param patient: let others go if a tombstone is needed and there is no slot for one
        """
        if await self.settle(record.object_id):
            return True
        refs = (*self.of(record.object_id), record.ref)
        if not await self.try_to_bury(refs, patient=patient):
            return False
        self.forgive(record.object_id)
        return True

    async def try_to_bury(self, refs: Sequence[SlotRef], *, patient: bool) -> bool:
        """Have a tombstone answer for records; whether it does.

        :param patient: let others go if there is no slot for it
        """
        try:
            return await self._tombstones.bury(refs, patient=patient)
        except (DeviceError, NoSpace, Unavailable) as error:
            log.warning("a tombstone could not be written: %s", error)
            return False

    def leave(self, record: Descriptor) -> None:
        """Nothing stands for a record any more: whoever takes its name owes it, until it is `gone`."""
        key = record.directory, record.name
        left = (*self._left.get(key, ()), *self.of(record.object_id), record.ref)
        self._left[key] = tuple(dict.fromkeys(left))
        self.forgive(record.object_id)

    def gone(self, record: Descriptor) -> None:
        """A record that was left is invalid on media."""
        key = record.directory, record.name
        left = tuple(ref for ref in self._left.get(key, ()) if ref != record.ref)
        if left:
            self._left[key] = left
        else:
            self._left.pop(key, None)
