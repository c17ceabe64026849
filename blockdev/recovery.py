"""From media back to a pool: what is there, what it means, what is garbage.

The media are the truth. A catalogue that was closed clean is believed as it is; after a kill -9 only the chunks that
were being changed are read again; otherwise everything is. In each case the same steps follow:

1. read the chunks' records;
2. believe a head only if it is whole: each slot that it lists must say that it belongs to this object. One that is not
   whole stands for nothing, but is as good as a tombstone for what is older;
3. let the highest stamp decide about each name;
4. enter what is live into the catalogue, and make invalid what is not.

What cannot be read (a device that is missing, a region whose header is damaged or that fails) is out of reach: nothing
is concluded from its absence. It may be there again the next time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from blockdev import stamps
from blockdev.catalog import Trust
from blockdev.catalogs import aside, is_aside
from blockdev.eviction import Policy
from blockdev.ground import Ground
from blockdev.inventory import Inventory
from blockdev.recovered import Recovered
from blockdev.scan import Scan
from blockdev.seat_catalogs import SeatCatalogs, worst
from blockdev.types import (
    NO_ID,
    ROOT,
    Descriptor,
    DirectoryId,
    Kind,
    ObjectId,
    RegionId,
    RegionState,
    SlotRef,
    Stamp,
)
from blockdev.wholeness import Wholeness


class Recovery:
    """One run over what some catalogues speak for."""

    def __init__(self, ground: Ground, catalog: SeatCatalogs) -> None:
        self._media = ground.media
        self._view = ground.view
        self._catalog = catalog
        self._regions = catalog.regions
        self._space = ground.space
        self._slots = ground.slots
        self._scan = Scan(ground, catalog)
        self._wholeness = Wholeness(ground, self._scan)
        self._inventory = Inventory(ground, catalog, self._scan)

    async def run(self, trusts: Mapping[int, Trust], policy: Policy) -> Recovered:
        """Make catalogues, space and policy say what the media say.

        :param trusts: what each seat's catalogue is worth
        :raises Contradiction: they are not worth that
        :raises OSError: the catalogues' disk
        """
        result = Recovered(worst(trusts))
        self._catalog.clear_stale(trusts)
        result.unread_regions = await self._scan.run(trusts)
        result.chunks = len(self._scan.chunks)
        if result.trust is not Trust.CURRENT:
            await self._reconcile(result)
        await self._inventory.take(result, policy)
        return result

    # ── 2. and 3. what is live ───────────────────────────────────────────────────────────────────────────

    async def _reconcile(self, result: Recovered) -> None:
        self._drop_outdated(await self._half_gone())
        broken: list[Descriptor] = []
        candidates: list[Descriptor] = []
        for record in list(self._scan.found.values()):
            if record.kind in {Kind.BODY, Kind.INDEX}:
                continue
            whole = _may_be(record) and (
                record.kind is not Kind.HEAD or await self._wholeness.is_whole(record)
            )
            if not whole:
                broken.append(record)
            candidates.append(record if whole else _as_tombstone(record))
        result.high = max((c.stamp for c in candidates), default=Stamp(0))
        by_ref = {r.ref: r for r in [*candidates, *await self._rivals(candidates)]}
        contenders = list(by_ref.values())
        resolution = stamps.resolve(contenders, self._is_known)
        outdone = self._freeable(resolution)
        freeable = {record.ref for record in outdone}
        beaten = self._beaten(contenders, resolution, freeable)
        self._enter(contenders, resolution, freeable)
        for record, stamp in beaten:
            self._catalog.put(aside(record))
            self._catalog.outdo(record.ref, stamp)
        live = {record.ref for record in resolution.live.values()}
        result.doubtful += [
            r.object_id for r in contenders if not self._scan.is_mine(r.ref) and r.ref not in live
        ]
        orphans = self._drop_orphans() if result.trust is Trust.STALE and self._is_everything() else []
        result.broken = len(broken)
        parts = await self._unclaimed()
        garbage = [*outdone, *orphans, *parts]
        result.garbage = len(garbage)
        freed = await self._free(garbage)
        self._note_left_over(contenders, resolution, freed | {record.ref for record, _ in beaten}, result)

    def _is_known(self, ref: SlotRef) -> bool:
        """Whether it is known what became of this use of a slot: by a scan, or because the catalogue is right."""
        return self._media.reaches(ref)

    async def _rivals(self, candidates: Iterable[Descriptor]) -> list[Descriptor]:
        """Records outside of the scanned chunks that those inside speak about, or that speak about those: of the same
        name, listed, or an ALIAS of the same object.
        """
        rivals: dict[SlotRef, Descriptor] = {}
        waiting = list(candidates)
        while waiting:
            record = waiting.pop()
            key = record.directory, record.name
            seats = self._catalog.seats
            known = [
                *self._catalog.raw(*key),
                *self._catalog.aliases(record.object_id),
                *self._view.raw(*key, without=seats),
                *self._view.aliases(record.object_id, without=seats),
            ]
            listed = [
                await self._scan.read_record(ref)
                for ref in stamps.listed(record)
                if self._scan.is_outside(ref)
            ]
            for other in (*known, *listed):
                if other is not None and other.ref not in self._scan.found and other.ref not in rivals:
                    rivals[other.ref] = other
                    waiting.append(other)
        return list(rivals.values())

    def _freeable(self, resolution: stamps.Resolution) -> list[Descriptor]:
        """What of the garbage may be made invalid: not others' records, nor what keeps one of these from coming back."""
        kept: set[SlotRef] = set()
        names: set[stamps.NameKey] = set()
        freeable = []
        for record in resolution.garbage:
            key = _name(record, resolution)
            if self._scan.is_mine(record.ref) and key not in names and kept.isdisjoint(stamps.listed(record)):
                freeable.append(record)
            else:
                kept.add(record.ref)
                names.add(key)
        return freeable

    def _beaten(
        self,
        contenders: Iterable[Descriptor],
        resolution: stamps.Resolution,
        freeable: Collection[SlotRef],
    ) -> list[tuple[Descriptor, Stamp]]:
        """Objects of ours that may not be freed yet, each with the stamp of another member's record that has its name: that
        one owes nothing for them. They are let go like any object that another member has outdone.
        """
        counted = {record.ref for record in resolution.live.values()} | _bases(resolution)
        beaten = []
        for record in contenders:
            ours = self._scan.is_mine(record.ref) and record.kind in {Kind.HEAD, Kind.SYMLINK}
            if not ours or record.ref in counted or record.ref in freeable:
                continue
            successor = resolution.live.get(_name(record, resolution))
            if successor is not None and not self._scan.is_mine(successor.ref):
                beaten.append((record, successor.stamp))
        return beaten

    def _enter(
        self,
        contenders: Collection[Descriptor],
        resolution: stamps.Resolution,
        garbage: Collection[SlotRef],
    ) -> None:
        """Have the catalogue say what was resolved."""
        live = {record.ref for record in resolution.live.values()}
        bases = _bases(resolution)
        for record in contenders:
            if record.ref not in live:
                self._catalog.forget(record)
            is_twin = DirectoryId(record.object_id) in resolution.same and record.ref not in garbage
            if (record.ref in bases or is_twin) and self._scan.is_mine(record.ref):
                self._catalog.put(aside(record))
        for (directory, name), record in resolution.live.items():
            if self._scan.is_mine(record.ref):
                self._catalog.put(replace(record, directory=directory, name=name))
        for record in contenders:
            found = self._scan.found.get(record.ref)
            if found is not None and found.kind is Kind.TOMBSTONE and record.ref not in garbage:
                self._catalog.put(found)
                self._outdo(found)
            elif record.ref in live and self._scan.is_mine(record.ref):
                self._outdo(record)

    def _outdo(self, record: Descriptor) -> None:
        """Have the catalogue say which records of others one of ours outdoes."""
        for ref in stamps.listed(record):
            if not self._scan.is_mine(ref) or (record.kind is Kind.ALIAS and ref == record.head):
                self._catalog.outdo(ref, record.stamp)

    async def _half_gone(self) -> list[Descriptor]:
        """Catalogue entries that a scan contradicts: their head is another one now, or a part of them is not theirs."""
        outdated: list[Descriptor] = []
        for record in self._catalog.scan():
            if self._is_of_old_epoch(record):
                outdated.append(record)
            elif self._media.reaches(record.ref) and self._scan.has_read(record.address):
                found = self._scan.found.get(record.ref)
                if found is None or (found.object_id, found.sequence) != (record.object_id, record.sequence):
                    outdated.append(record)
            elif self._touches_scanned(record) and not await self._wholeness.is_whole(record):
                outdated.append(record)
                if self._media.reaches(record.ref):
                    self._scan.found[record.ref] = record
        return outdated

    def _touches_scanned(self, record: Descriptor) -> bool:
        return any(not e.is_hole and self._scan.has_read(e.address) for e in record.extents)

    def _is_of_old_epoch(self, record: Descriptor) -> bool:
        """Whether a region that it is in was formatted since."""
        for ref in [record.ref, *(extent.ref for extent in record.extents if not extent.is_hole)]:
            header = self._media.known_header(RegionId(ref.device, ref.region))
            if header is not None and (
                header.state is not RegionState.ACTIVE or header.epoch != ref.generation >> 32
            ):
                return True
        return False

    def _drop_outdated(self, outdated: Iterable[Descriptor]) -> None:
        for record in outdated:
            self._catalog.forget(record)

    def _is_everything(self) -> bool:
        """Whether this is the whole pool, all of it within reach."""
        devices = self._media.devices
        complete = len(devices) == len(next(iter(devices.values())).superblock.devices)
        headers = [header for attached in devices.values() for header in attached.headers.values()]
        return (
            complete
            and len(headers) == sum(attached.geometry.regions for attached in devices.values())
            and all(
                RegionId(header.device_no, header.region) in self._regions
                for header in headers
                if header.state is RegionState.ACTIVE
            )
        )

    def _drop_orphans(self) -> list[Descriptor]:
        """Take out what no path leads to. Only when everything was seen, since a directory may be elsewhere."""
        children: dict[DirectoryId, list[Descriptor]] = {}
        for record in self._catalog.scan():
            if record.object_id != ObjectId(ROOT) and not is_aside(record):
                children.setdefault(record.directory, []).append(record)
        waiting = [ROOT]
        while waiting:
            inside = children.pop(waiting.pop(), ())
            waiting += [DirectoryId(r.object_id) for r in inside if stamps.is_directory(r)]
        orphans = [record for group in children.values() for record in group]
        for record in orphans:
            self._catalog.forget(record)
        return orphans

    async def _unclaimed(self) -> list[Descriptor]:
        """Bodies and index slots that no live head lists."""
        parts = [record for record in self._scan.found.values() if record.kind in {Kind.BODY, Kind.INDEX}]
        claims: dict[SlotRef, frozenset[SlotRef]] = {}
        unread: set[SlotRef] = set()
        for part in parts:
            if part.head is None or part.head in claims or part.head in unread:
                continue
            head = self._catalog.by_id(part.object_id)
            if head is not None and head.ref == part.head:
                slots = await self._inventory.slots(head)
                if slots is None:
                    unread.add(part.head)
                else:
                    claims[part.head] = frozenset(slots)
        return stamps.unclaimed([p for p in parts if p.head not in unread], claims, self._is_known)

    async def _free(self, garbage: Iterable[Descriptor]) -> set[SlotRef]:
        """Make garbage invalid; returns the slots whose record is."""
        freed: set[SlotRef] = set()
        if self._slots is None:
            return freed
        stopped = False
        for record in garbage:
            named = record.kind not in {Kind.BODY, Kind.INDEX}
            if named and stopped:
                continue  # see stamps.Resolution.garbage: a later one may keep this one from coming back
            if not self._media.reaches(record.ref):
                continue
            if not self._scan.has_read(record.address):
                self._space.claim(record.ref, record.object_id, record.sequence)
            done = await self._slots.invalidate([record.ref])
            stopped = stopped or (named and not done)
            if done:
                freed.add(record.ref)
        await self._slots.limbo.flush()  # what replaced it may leave before the next flush
        return freed

    def _note_left_over(
        self,
        contenders: Iterable[Descriptor],
        resolution: stamps.Resolution,
        freed: Collection[SlotRef],
        result: Recovered,
    ) -> None:
        """What is outdone and still valid is owed by what has its name, and looked at again the next time.

        It stays because it outdoes something out of reach in turn, or could not be freed.
        """
        live = {record.ref for record in resolution.live.values()} | _bases(resolution)
        for record in contenders:
            successor = resolution.live.get(_name(record, resolution))
            if (
                successor is None
                or record.ref in live
                or record.ref in freed
                or record.kind is Kind.TOMBSTONE
            ):
                continue
            if DirectoryId(record.object_id) in resolution.same:
                continue  # a directory made twice
            owed = (*result.owed.get(successor.object_id, ()), record.ref)
            result.owed[successor.object_id] = owed
            result.left_over += 1
            if self._slots is not None and self._scan.is_mine(record.ref):
                self._slots.mark(record.address)


def _name(record: Descriptor, resolution: stamps.Resolution) -> stamps.NameKey:
    return resolution.same.get(record.directory, record.directory), record.name


def _may_be(record: Descriptor) -> bool:
    """Whether a record has an identity that it may have: media are not trusted."""
    if record.object_id == ObjectId(ROOT):
        return record.kind is Kind.DIRECTORY
    return record.object_id != NO_ID


def _bases(resolution: stamps.Resolution) -> set[SlotRef | None]:
    """The slots of what live aliases stand for."""
    return {record.head for record in resolution.live.values() if record.kind is Kind.ALIAS}


def _as_tombstone(broken: Descriptor) -> Descriptor:
    return replace(broken, kind=Kind.TOMBSTONE)
