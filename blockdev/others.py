"""What we say about other members' objects, and what we do about what they say of ours.

A member changes only its own slots. So the new name or attributes of another's object are an ALIAS in a slot of ours,
its removal a TOMBSTONE, its replacement a head that lists it; each counts at once, by its stamp. The owner follows our
catalogue and folds it in: it rewrites its own record as the alias says, or lets the object go. Then ours is garbage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from blockdev import layout
from blockdev.catalogs import Catalogs, aliased
from blockdev.errors import DeviceError, Unavailable
from blockdev.locks import KeyedLocks
from blockdev.media import Media
from blockdev.publisher import OWED_ROOM, Consumed, Publisher
from blockdev.room import Room
from blockdev.sources import Sources
from blockdev.stamps import age
from blockdev.types import Descriptor, Kind, ObjectId, RegionId, SlotClass, SlotRef
from blockdev.versions import Versions

log = logging.getLogger(__name__)


class Tools(NamedTuple):
    """What it works with."""

    media: Media
    catalogs: Catalogs
    room: Room
    publisher: Publisher
    versions: Versions
    sources: Sources


class Verdict(NamedTuple):
    """What is to become of our record `own`: what `alias` says, in place of our `old` of that name, or nothing."""

    own: Descriptor
    alias: Descriptor | None = None
    old: Descriptor | None = None


class Others:
    """See the module. The caller holds the locks of names and objects.

    :param aliases: of ours, found when the pool was opened
    """

    def __init__(self, tools: Tools, aliases: Iterable[Descriptor]) -> None:
        self._media = tools.media
        self._catalogs = tools.catalogs
        self._room = tools.room
        self._publisher = tools.publisher
        self._versions = tools.versions
        self._sources = tools.sources
        self._aliases = {alias.ref: alias for alias in aliases}
        """Of ours; of an object there are several after we took over a seat that had spoken of it, too."""

    def absorb(self, aliases: Iterable[Descriptor]) -> None:
        """Look after the aliases of another seat, too."""
        self._aliases |= {alias.ref: alias for alias in aliases}

    def is_ours(self, record: Descriptor) -> bool:
        """Whether we may change the object that `record` shows."""
        return self._catalogs.is_ours(record)

    # ── of theirs ────────────────────────────────────────────────────────────────────────────────────────

    async def alias(self, wanted: Descriptor, old: Descriptor | None) -> Descriptor:
        """Give another's object the name and attributes of `wanted`, which is otherwise what it is now.

        :param old: what the name stands for now
        :raises NoSpace, RecordTooLarge, Unavailable, DeviceError:
        """
        known = self._catalogs.by_id(wanted.object_id)
        own = self._catalogs.alias(wanted.object_id)
        owed = await self._few(self._outdone_by_alias(wanted, known, own, old))
        stamp = self._sources.next_stamp(known, old)
        slot = own.ref if own is not None else await self._room.reserve(SlotClass.INLINE)
        taken = Consumed([slot] if own is None else [])
        try:
            epoch, sequence = await self._room.place(slot)
            record = Descriptor(
                Kind.ALIAS,
                slot.address,
                epoch,
                slot.generation,
                sequence + 1,
                stamp,
                wanted.object_id,
                wanted.directory,
                wanted.name,
                wanted.mode,
                wanted.uid,
                wanted.gid,
                wanted.mtime_ns,
                stamp,
                wanted.btime_ns,
                xattrs=wanted.xattrs,
                supersedes=owed,
                head=wanted.ref,
            )
            layout.pack_descriptor(record)
            taken.recorded += taken.fresh
            await self._publisher.write_head(record)
            await self._room.barrier([record.ref])
        except BaseException:
            await self._publisher.abandon(taken)  # noqa: ASYNC102 - shielded by the pool
            raise
        self._room.publish(slot, record.object_id)
        self._aliases[record.ref] = record
        self._catalogs.put(record)
        self._catalogs.outdo([wanted.ref, *owed], stamp)
        if old is not None and old.object_id != record.object_id:
            await self._versions.replaced(old, record)
        return replace(wanted, stamp=stamp, ctime_ns=stamp)

    def _outdone_by_alias(
        self, wanted: Descriptor, known: Descriptor | None, own: Descriptor | None, old: Descriptor | None
    ) -> list[SlotRef]:
        listed = [*(own.supersedes if own is not None else ())]
        for record in (known, old):
            if record is not None:
                listed += [other.ref for other in self._catalogs.behind(record)]
        mine = {wanted.ref, own.ref if own is not None else wanted.ref}
        return [ref for ref in dict.fromkeys(listed) if ref not in mine]

    async def _few(self, refs: list[SlotRef]) -> tuple[SlotRef, ...]:
        """As many as a record has room for; a tombstone answers for the others."""
        if len(refs) >= len(OWED_ROOM):
            await self._versions.debts.bury_all(refs)
            return ()
        return tuple(refs)

    async def remove(self, record: Descriptor) -> None:
        """Remove another's object. :raises NoSpace, Unavailable, DeviceError:"""
        await self._versions.debts.bury_all([other.ref for other in self._catalogs.behind(record)])
        for one in self._catalogs.repeats(record):
            if self._room.is_ours(one.ref):
                await self._versions.leave(one)
        alias = self._catalogs.alias(record.object_id)
        if alias is not None:
            await self._drop_alias(alias)
        self._catalogs.commit()

    async def outdo_rivals(self, record: Descriptor) -> None:
        """Before an object of ours leaves its name: what it has outdone there must not come back.

        :raises NoSpace, Unavailable, DeviceError:
        """
        rivals = self._rivals(record)
        if rivals:
            await self._versions.debts.bury_all(rivals)

    async def try_to_outdo_rivals(self, record: Descriptor) -> bool:
        """As `outdo_rivals`, if that takes no other object's room; whether it was done."""
        rivals = self._rivals(record)
        return not rivals or await self._versions.debts.try_to_bury(rivals, patient=False)

    def _rivals(self, record: Descriptor) -> list[SlotRef]:
        rivals = [
            other.ref
            for other in self._catalogs.behind(record)
            if other.object_id != record.object_id
            and (other.directory, other.name) == (record.directory, record.name)
            and age(other) < age(record)  # what has outdone it stays
        ]
        return rivals + [other.ref for other in self._catalogs.repeats(record)]

    def beaten(self, record: Descriptor | None) -> list[Descriptor]:
        """Objects of ours that `record` has outdone under its name: what replaces it answers for them, too."""
        if record is None:
            return []
        return [
            other
            for other in self._catalogs.behind(record)
            if other.object_id != record.object_id
            and other.kind not in {Kind.ALIAS, Kind.DIRECTORY}
            and self._room.is_ours(other.ref)
        ]

    async def _drop_alias(self, alias: Descriptor) -> None:
        self._aliases.pop(alias.ref, None)
        self._catalogs.forget(alias)
        await self._room.invalidate([alias.ref])

    # ── of ours ──────────────────────────────────────────────────────────────────────────────────────────

    def verdict(self, object_id: ObjectId) -> Verdict | None:
        """What others have made of an object of ours; None if it stands."""
        own = self.own(object_id)
        if own is None:
            return None
        stamp = self._catalogs.outdone_by(own)
        if stamp is None:
            if own.kind is Kind.DIRECTORY:
                return Verdict(own) if self._is_made_again(own) else None
            counts = self._catalogs.get(own.directory, own.name)
            return Verdict(own) if counts is not None and counts.object_id != object_id else None
        aliases = [
            record
            for record in self._catalogs.raw_by_id(object_id)
            if record.kind is Kind.ALIAS
            and record.head == own.ref
            and record.stamp > own.stamp
            and not self._catalogs.is_outdone(record)
        ]
        if aliases:  # the latest that is seen: what outdoes us may be a later one that is not seen yet
            latest = max(aliases, key=age)
            return Verdict(own, latest, self._ours_of_name(latest))
        return Verdict(own)

    def _is_made_again(self, own: Descriptor) -> bool:
        """Whether another's later record, which we reach, stands for the same directory."""
        counts = self._catalogs.by_id(own.object_id)
        return counts is not None and counts.ref != own.ref and self._room.reaches(counts.ref)

    def _ours_of_name(self, alias: Descriptor) -> Descriptor | None:
        """Our object that has the name of an alias of another."""
        for catalog in self._catalogs.own.values():
            record = catalog.get(alias.directory, alias.name)
            if record is None or record.object_id == alias.object_id:
                continue
            return None if self._catalogs.has_moved(record) else record
        return None

    def own(self, object_id: ObjectId) -> Descriptor | None:
        """Our record of an object of ours, as it is on media."""
        owner = self._catalogs.owner(object_id)
        return owner.by_id(object_id) if owner is not None else None

    async def take_over(self, own: Descriptor, alias: Descriptor, old: Descriptor | None) -> None:
        """Make our record say what an alias says. :raises Unavailable, DeviceError:"""
        owed = await self._versions.debts.inherit(own.object_id, old, (alias.directory, alias.name))
        sequence = await self._room.sequence_of(own.address) + 1
        head = replace(aliased(own, alias), supersedes=owed, sequence=sequence)
        await self._publisher.write_head(head)
        await self._room.barrier([head.ref])
        self._versions.remember(head)
        if old is not None:
            await self._versions.replaced(old, head)

    # ── garbage of ours ──────────────────────────────────────────────────────────────────────────────────

    async def sweep(self, limit: int, locks: KeyedLocks[ObjectId]) -> None:
        """Free the aliases that owners have taken over, and what else is over.

        :param limit: most aliases, and most other slots, to look at
        :param locks: of objects; not held, as an alias that is being rewritten is looked at the next time
        """
        for alias in list(self._aliases.values())[:limit]:
            with locks.try_hold(alias.object_id) as held:
                if held and self._aliases.get(alias.ref) is alias:
                    await self._sweep_alias(alias)
        await self._versions.debts.sweep(limit)

    async def _sweep_alias(self, alias: Descriptor) -> None:
        if await self._is_over(alias):
            await self._drop_alias(alias)
            for ref in (alias.head, *alias.supersedes):
                if ref is not None:
                    self._catalogs.not_outdone(ref, alias.stamp)
        else:  # at the end: the next ones are looked at the next time
            self._aliases[alias.ref] = self._aliases.pop(alias.ref)

    async def _is_over(self, alias: Descriptor) -> bool:
        base = alias.head
        assert base is not None
        # To whoever looks at the catalogues it is not; the media may say more, if the owner was stopped.
        known = self._catalogs.raw_by_id(alias.object_id)
        if any(record.ref == base and record.stamp < alias.stamp for record in known):
            return False
        try:
            await self._media.reload_header(RegionId(base.device, base.region))
            if not await self._room.ensure_invalid(base):
                record = await self._media.read_descriptor(base.address)
                if record is None or record.stamp < alias.stamp:
                    return False
        except (DeviceError, Unavailable):
            return False
        return all([await self._room.ensure_invalid(ref) for ref in alias.supersedes])
