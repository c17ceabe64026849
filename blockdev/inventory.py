"""What an opened pool starts from: which slots are taken, what is still owed, and in which order objects go."""

from __future__ import annotations

from itertools import chain

import trio

from blockdev.catalog import Trust
from blockdev.claims import Claims
from blockdev.errors import DeviceError, IntegrityError, Unavailable
from blockdev.eviction import Policy
from blockdev.ground import Ground
from blockdev.publication import slots_of
from blockdev.recovered import Contradiction, Recovered
from blockdev.scan import Scan
from blockdev.seat_catalogs import SeatCatalogs
from blockdev.types import Descriptor, Kind, ObjectId, RegionId, SlotClass, SlotRef, Stamp


class Inventory:
    """Of what some catalogues know, and of what a scan found beside it."""

    def __init__(self, ground: Ground, catalog: SeatCatalogs, scan: Scan) -> None:
        self._media = ground.media
        self._space = ground.space
        self._reader = ground.reader
        self._may_write = ground.slots is not None
        self._catalog = catalog
        self._scan = scan

    async def take(self, result: Recovered, policy: Policy) -> None:
        """Mark the slots of everything in the catalogue as taken, and order it for eviction."""
        files: list[tuple[Stamp, ObjectId]] = []
        classes = self._strand(result)
        policy_first = list(classes)
        self._scan.found = {}  # more than a KiB for each: what follows takes its place
        claims = Claims(self._media, self._space, self._scan.chunks)
        special: list[Descriptor] = []
        for outline in self._catalog.outlines():
            result.high = max(result.high, outline.stamp)
            slots = outline.slots
            if not outline.is_plain and (record := self._catalog.record_of(outline)) is not None:
                special.append(record)
                slots = await self.slots(record) or slots_of(record, ())
            its_classes = claims.claim(outline.object_id, slots, outline.sequence)
            if outline.kind is Kind.HEAD and its_classes:
                files.append((outline.stamp, outline.object_id))
                classes[outline.object_id] = its_classes
                policy.named(outline.object_id, outline.name, outline.stamp)
                policy.follows(outline.object_id, outline.predecessor)
        claims.finish()
        self._check_claims(claims, result.trust)
        for record in special:
            if record.kind is Kind.TOMBSTONE:
                result.tombstones.append(record)
            elif record.kind is Kind.ALIAS:
                result.aliases.append(record)
            else:
                self._note_debts(record, result)
        order = chain(policy_first, self._catalog.load_order(), (object_id for _, object_id in sorted(files)))
        now = trio.current_time()
        for object_id in order:
            if object_id in classes:
                policy.add(object_id, classes.pop(object_id), now)

    def _check_claims(self, claims: Claims, trust: Trust) -> None:
        # Who reads beside a writer sees its catalogue change, and needs no space.
        if claims.refused and trust is not Trust.STALE and self._may_write:
            record = self._catalog.by_id(claims.refused[0])
            raise Contradiction(f"{record.name if record else claims.refused[0]!r} is not in its slots")

    def _strand(self, result: Recovered) -> dict[ObjectId, frozenset[SlotClass]]:
        """Find the parts of objects that nobody knows, since their head is out of reach: first to go."""
        for record in self._scan.found.values():
            if (
                record.kind in {Kind.BODY, Kind.INDEX}
                and record.head is not None
                and not self._media.reaches(record.head)
                and self._catalog.by_id(record.object_id) is None
            ):
                result.stranded.setdefault(record.object_id, []).append(record.ref)
        return {object_id: self._media.classes(refs) for object_id, refs in result.stranded.items()}

    def _note_debts(self, record: Descriptor, result: Recovered) -> None:
        owed = [*result.owed.get(record.object_id, ()), *filter(self._is_owed, record.supersedes)]
        if owed:
            result.owed[record.object_id] = tuple(dict.fromkeys(owed))

    def _is_owed(self, ref: SlotRef) -> bool:
        """Whether a record that was replaced may come back. It cannot if it was renamed first, and lives."""
        if not self._media.reaches(ref) or not self._scan.is_mine(ref):
            return True
        if not self._space.in_use(ref):
            return False
        owner = self._space.region(RegionId(ref.device, ref.region)).owner(ref.slot)
        lives = self._catalog.by_id(owner) if owner is not None else None
        return lives is None or lives.ref != ref

    async def slots(self, head: Descriptor) -> list[SlotRef] | None:
        """Every slot of an object; None if its index cannot be read."""
        try:
            extents = await self._reader.extents(head) if self._media.reachable(head) else head.extents
        except (IntegrityError, DeviceError, Unavailable):
            return None
        if head.indexed and extents is head.extents:
            return None
        self._reader.learn(head, extents)
        return slots_of(head, extents)
