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

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain

import trio

from blockdev import layout, stamps
from blockdev.catalog import Catalog, Trust
from blockdev.catalogs import Catalogs, aside, is_aside
from blockdev.claims import Claims
from blockdev.errors import DeviceError, IntegrityError, Unavailable
from blockdev.eviction import Policy
from blockdev.media import Media
from blockdev.publication import extent_length, slots_of
from blockdev.reading import Reader
from blockdev.region import Region
from blockdev.room import Room
from blockdev.space import Space
from blockdev.tasks import for_each
from blockdev.types import (
    CHUNK_SLOTS,
    NAMED_KINDS,
    NO_ID,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    DirtyChunk,
    ExtentRef,
    Kind,
    ObjectId,
    RegionHeader,
    RegionId,
    RegionNo,
    RegionState,
    SlotAddress,
    SlotClass,
    SlotRef,
    Stamp,
)

log = logging.getLogger(__name__)


class Contradiction(Exception):
    """The catalogue says what the media deny: it must be built again."""


@dataclass(slots=True)
class Recovered:
    """What opening a pool found."""

    trust: Trust
    chunks: int = 0
    """Chunks of descriptors read."""
    garbage: int = 0
    """Slots freed that no object claimed."""
    broken: int = 0
    """Heads dropped because a part was missing."""
    damaged_regions: int = 0
    """Regions whose header is damaged."""
    unread_regions: int = 0
    """Regions whose records could not be read: until they are, the catalogue is not complete."""
    left_over: int = 0
    """Records that are outdone and could not be freed yet: they are to be looked at the next time, too."""
    high: Stamp = field(default=Stamp(0))
    owed: dict[ObjectId, tuple[SlotRef, ...]] = field(default_factory=dict)
    stranded: dict[ObjectId, list[SlotRef]] = field(default_factory=dict)
    """Parts of objects whose head is out of reach and not in the catalogue."""
    tombstones: list[Descriptor] = field(default_factory=list)
    aliases: list[Descriptor] = field(default_factory=list)
    doubtful: list[ObjectId] = field(default_factory=list)
    """Objects of other catalogues that what was found here has outdone."""

    def add(self, other: Recovered) -> None:
        """What opening another seat found."""
        if list(Trust).index(other.trust) > list(Trust).index(self.trust):
            self.trust = other.trust
        for name in ("chunks", "garbage", "broken", "damaged_regions", "unread_regions", "left_over"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.high = max(self.high, other.high)
        self.owed |= other.owed
        self.stranded |= other.stranded
        self.tombstones += other.tombstones
        self.aliases += other.aliases
        self.doubtful += other.doubtful


def chunk_of(address: SlotAddress) -> DirtyChunk:
    """The chunk of descriptors that a slot is in."""
    return DirtyChunk(address.device, address.region, address.slot // CHUNK_SLOTS)


def fill_space(
    media: Media, space: Space, devices: int, is_ours: Callable[[RegionHeader], bool] = lambda _: True
) -> int:
    """Tell `space` of our regions and of those in no use; returns how many have a damaged header and are not used.

    :param devices: how many the pool has, the missing ones included
    """
    damaged = 0
    for number in range(devices):
        if not media.available(DeviceNo(number)):
            space.drop_device(DeviceNo(number))
    for number, attached in media.devices.items():
        for region in range(attached.geometry.regions):
            region_id = RegionId(number, RegionNo(region))
            header = media.known_header(region_id)
            if header is None:
                damaged += 1
                space.drop_region(region_id)
            elif header.state is not RegionState.ACTIVE:
                space.add_unused(region_id)
            elif is_ours(header):
                space.add_region(region_of(media, region_id))
    return damaged


def region_of(media: Media, region_id: RegionId) -> Region:
    """An active region, of whose slots nothing is known. :raises Unavailable:"""
    header = media.header(region_id)
    return Region(region_id, header.slot_class, header.epoch, media.geometry(region_id).slots)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a recovery works on.

    :ivar view: what all members know, `catalog` among it
    :ivar space: has the regions that `catalog` speaks for, and perhaps others
    :ivar room: how garbage is made invalid; None for a pool that is only read
    """

    media: Media
    view: Catalogs
    space: Space
    reader: Reader
    room: Room | None


class Recovery:
    """One run over what one catalogue speaks for.

    :param regions: those regions
    """

    def __init__(self, ground: Ground, catalog: Catalog, regions: Collection[RegionId]) -> None:
        self._media = ground.media
        self._view = ground.view
        self._catalog = catalog
        self._regions = frozenset(regions)
        self._space = ground.space
        self._reader = ground.reader
        self._room = ground.room
        self._scanned: frozenset[DirtyChunk] = frozenset()
        self._found: dict[SlotRef, Descriptor] = {}

    async def run(self, trust: Trust, policy: Policy) -> Recovered:
        """Make catalogue, space and policy say what the media say. :raises OSError: the catalogue's disk"""
        result = Recovered(trust)
        if trust is Trust.STALE:
            self._catalog.clear()
        chunks = self._chunks(trust)
        result.chunks = len(chunks)
        result.unread_regions = await self._read(chunks)
        if trust is not Trust.CURRENT:
            await self._reconcile(result)
        await self._claim(result, policy)
        return result

    # ── 1. reading ───────────────────────────────────────────────────────────────────────────────────────

    def _chunks(self, trust: Trust) -> list[DirtyChunk]:
        if trust is Trust.CURRENT:
            return []
        regions = {region.id: region for region in self._space.regions() if region.id in self._regions}
        if trust is Trust.CRASHED:
            dirty = self._catalog.dirty_chunks()
            known = [
                c
                for c in dirty
                if (r := regions.get(RegionId(c.device, c.region))) and c.chunk * CHUNK_SLOTS < r.slots
            ]
            return sorted(known, key=lambda c: (c.device, c.region, c.chunk))
        return [
            DirtyChunk(*region_id, chunk)
            for region_id in sorted(regions)
            for chunk in range(self._media.geometry(region_id).chunks)
        ]

    async def _read(self, chunks: Collection[DirtyChunk]) -> int:
        """Read the records in these chunks; returns how many regions could not be."""
        self._scanned = frozenset(chunks)
        unread: set[RegionId] = set()

        async def read(chunk: DirtyChunk) -> None:
            region_id = RegionId(chunk.device, chunk.region)
            try:
                records = await self._media.read_chunk(region_id, chunk.chunk)
            except (DeviceError, Unavailable) as error:
                if self._media.reaches(region_id):
                    log.warning(
                        "region %d of device %d cannot be read (%s): its objects are misses",
                        *region_id[::-1],
                        error,
                    )
                self._space.drop_region(region_id)
                self._media.give_up(region_id)
                unread.add(region_id)
                return
            for record in self._space.load_chunk(region_id, chunk.chunk, records):
                self._found[record.ref] = record

        await for_each(chunks, read, at_once=16)
        self._found = {ref: record for ref, record in self._found.items() if self._media.reaches(ref)}
        if unread and self._room is not None:  # to be looked at the next time, whatever else is clean
            again = [c for c in chunks if RegionId(c.device, c.region) in unread]
            self._catalog.mark_dirty(*again)
        return len(unread)

    def _is_scanned(self, ref: SlotRef) -> bool:
        """Whether it is known what became of this use of a slot: by a scan, or because the catalogue is right."""
        return self._media.reaches(ref)

    # ── 2. and 3. what is live ───────────────────────────────────────────────────────────────────────────

    async def _reconcile(self, result: Recovered) -> None:
        self._drop_outdated(await self._half_gone())
        broken: list[Descriptor] = []
        candidates: list[Descriptor] = []
        for record in list(self._found.values()):
            if record.kind in {Kind.BODY, Kind.INDEX}:
                continue
            whole = _may_be(record) and (record.kind is not Kind.HEAD or await self._is_whole(record))
            if not whole:
                broken.append(record)
            candidates.append(record if whole else _as_tombstone(record))
        result.high = max((c.stamp for c in candidates), default=Stamp(0))
        by_ref = {r.ref: r for r in [*candidates, *await self._rivals(candidates)]}
        contenders = list(by_ref.values())
        resolution = stamps.resolve(contenders, self._is_scanned)
        outdone = self._freeable(resolution)
        self._enter(contenders, resolution, {record.ref for record in outdone})
        live = {record.ref for record in resolution.live.values()}
        result.doubtful += [r.object_id for r in contenders if not self._is_mine(r.ref) and r.ref not in live]
        orphans = self._drop_orphans() if result.trust is Trust.STALE and self._is_everything() else []
        result.broken = len(broken)
        parts = await self._unclaimed()
        garbage = [*outdone, *orphans, *parts]
        result.garbage = len(garbage)
        freed = await self._free(garbage)
        self._note_left_over(contenders, resolution, freed, result)

    async def _rivals(self, candidates: Iterable[Descriptor]) -> list[Descriptor]:
        """Records outside of the scanned chunks that those inside speak about: of the same name, or listed."""
        rivals: dict[SlotRef, Descriptor] = {}
        waiting = list(candidates)
        while waiting:
            record = waiting.pop()
            known = self._view.raw(record.directory, record.name)
            listed = [await self._read_record(ref) for ref in stamps.listed(record) if self._is_outside(ref)]
            for other in (*known, *listed):
                if other is not None and other.ref not in self._found and other.ref not in rivals:
                    rivals[other.ref] = other
                    waiting.append(other)
        return list(rivals.values())

    def _is_outside(self, ref: SlotRef) -> bool:
        """Whether a slot that a record lists exists and was not looked at. Media are not trusted."""
        if not self._media.reaches(ref) or chunk_of(ref.address) in self._scanned:
            return False
        return (
            not self._is_mine(ref) or ref.slot < self._media.geometry(RegionId(ref.device, ref.region)).slots
        )

    def _is_mine(self, ref: SlotRef) -> bool:
        """Whether a slot is in one of the regions. Those out of reach are nobody else's."""
        return RegionId(ref.device, ref.region) in self._regions or not self._media.reaches(ref)

    async def _read_record(self, ref: SlotRef) -> Descriptor | None:
        """The record of a name in this use of a slot; None if that is over, or cannot be read."""
        region = RegionId(ref.device, ref.region)
        try:
            if not self._is_mine(ref):
                await self._media.reload_header(region)
            if self._media.header(region).epoch != ref.generation >> 32:
                return None
            if ref.slot >= self._media.geometry(region).slots:
                return None
            record = await self._media.read_descriptor(ref.address)
        except (DeviceError, Unavailable):
            return None
        if record is None or record.generation != ref.generation or record.kind not in NAMED_KINDS:
            return None
        return record

    def _freeable(self, resolution: stamps.Resolution) -> list[Descriptor]:
        """What of the garbage may be made invalid: not others' records, nor what keeps one of these from coming back."""
        kept: set[SlotRef] = set()
        names: set[stamps.NameKey] = set()
        freeable = []
        for record in resolution.garbage:
            key = (resolution.same.get(record.directory, record.directory), record.name)
            if self._is_mine(record.ref) and key not in names and kept.isdisjoint(stamps.listed(record)):
                freeable.append(record)
            else:
                kept.add(record.ref)
                names.add(key)
        return freeable

    def _enter(
        self,
        contenders: Collection[Descriptor],
        resolution: stamps.Resolution,
        garbage: Collection[SlotRef],
    ) -> None:
        """Have the catalogue say what was resolved."""
        live = {record.ref for record in resolution.live.values()}
        bases = {record.head for record in resolution.live.values() if record.kind is Kind.ALIAS}
        for record in contenders:
            known = self._catalog.by_id(record.object_id)
            if known is not None and known.ref == record.ref and record.ref not in live:
                self._catalog.forget(known.object_id)
            if record.ref in bases and self._is_mine(record.ref):
                self._catalog.put(aside(record))
        for (directory, name), record in resolution.live.items():
            if self._is_mine(record.ref):
                self._catalog.put(replace(record, directory=directory, name=name))
        for record in contenders:
            found = self._found.get(record.ref)
            if found is not None and found.kind is Kind.TOMBSTONE and record.ref not in garbage:
                self._catalog.put(found)
                self._outdo(found)
            elif record.ref in live and self._is_mine(record.ref):
                self._outdo(record)

    def _outdo(self, record: Descriptor) -> None:
        """Have the catalogue say which records of others one of ours outdoes."""
        for ref in stamps.listed(record):
            if not self._is_mine(ref):
                self._catalog.outdo(ref, record.stamp)

    async def _half_gone(self) -> list[Descriptor]:
        """Catalogue entries that a scan contradicts: their head is another one now, or a part of them is not theirs."""
        outdated: list[Descriptor] = []
        for record in self._catalog.scan():
            if self._is_of_old_epoch(record):
                outdated.append(record)
            elif self._media.reaches(record.ref) and chunk_of(record.address) in self._scanned:
                found = self._found.get(record.ref)
                if found is None or (found.object_id, found.sequence) != (record.object_id, record.sequence):
                    outdated.append(record)
            elif self._touches_scanned(record) and not await self._is_whole(record):
                outdated.append(record)
                if self._media.reaches(record.ref):
                    self._found[record.ref] = record
        return outdated

    def _touches_scanned(self, record: Descriptor) -> bool:
        return any(not e.is_hole and chunk_of(e.address) in self._scanned for e in record.extents)

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
            self._catalog.forget(record.object_id)

    async def _is_whole(self, head: Descriptor) -> bool:
        """Whether every slot that a head lists says that it belongs to it. What is out of reach is believed."""
        count = -(-head.size // self._reader.extent_size) if not head.inline else 0
        if head.indexed:
            indexes = -(-count // layout.entries_per_index(layout.index_class(count)))
            if len(head.extents) != indexes or not await self._all_belong(head, head.extents, Kind.INDEX):
                return False
            if not self._media.reachable(head):
                return True
            try:
                extents = await self._reader.extents(head)
            except IntegrityError:
                return False
            except (DeviceError, Unavailable):
                return True
        else:
            extents = head.extents
        return len(extents) == count and await self._all_belong(head, extents, Kind.BODY)

    async def _all_belong(self, head: Descriptor, extents: Iterable[ExtentRef], kind: Kind) -> bool:
        """Media are not trusted: a slot that is listed may not exist, or be too small."""
        count = -(-head.size // self._reader.extent_size)
        for index, extent in enumerate(extents):
            if extent.is_hole or not self._media.reaches(extent):
                continue
            used = extent_length(head.size, index, self._reader.extent_size)
            if kind is Kind.INDEX:
                used = layout.index_class(count).payload_size
            if not self._has_slot(extent, used):
                return False
            if extent.ref != head.ref and not await self._belongs(head, extent.ref, kind):
                return False
        return True

    def _has_slot(self, extent: ExtentRef, used: int) -> bool:
        header = self._media.header(RegionId(extent.device, extent.region))
        geometry = self._media.class_geometry(extent.device, header.slot_class)
        return extent.slot < geometry.slots and used <= header.slot_class.payload_size

    async def _belongs(self, head: Descriptor, ref: SlotRef, kind: Kind) -> bool:
        if chunk_of(ref.address) in self._scanned:
            part = self._found.get(ref)
        else:
            try:
                part = await self._media.read_descriptor(ref.address)
            except (DeviceError, Unavailable):
                return True
        return part is not None and (part.kind, part.object_id, part.generation) == (
            kind,
            head.object_id,
            ref.generation,
        )

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
            waiting += [DirectoryId(r.object_id) for r in inside if r.kind is Kind.DIRECTORY]
        orphans = [record for group in children.values() for record in group]
        for record in orphans:
            self._catalog.forget(record.object_id)
        return orphans

    async def _unclaimed(self) -> list[Descriptor]:
        """Bodies and index slots that no live head lists."""
        parts = [record for record in self._found.values() if record.kind in {Kind.BODY, Kind.INDEX}]
        claims: dict[SlotRef, frozenset[SlotRef]] = {}
        unread: set[SlotRef] = set()
        for part in parts:
            if part.head is None or part.head in claims or part.head in unread:
                continue
            head = self._catalog.by_id(part.object_id)
            if head is not None and head.ref == part.head:
                slots = await self._slots(head)
                if slots is None:
                    unread.add(part.head)
                else:
                    claims[part.head] = frozenset(slots)
        return stamps.unclaimed([p for p in parts if p.head not in unread], claims, self._is_scanned)

    async def _slots(self, head: Descriptor) -> list[SlotRef] | None:
        """Every slot of an object; None if its index cannot be read."""
        try:
            extents = await self._reader.extents(head) if self._media.reachable(head) else head.extents
        except (IntegrityError, DeviceError, Unavailable):
            return None
        if head.indexed and extents is head.extents:
            return None
        self._reader.learn(head, extents)
        return slots_of(head, extents)

    async def _free(self, garbage: Iterable[Descriptor]) -> set[SlotRef]:
        """Make garbage invalid; returns the slots whose record is."""
        freed: set[SlotRef] = set()
        if self._room is None:
            return freed
        stopped = False
        for record in garbage:
            named = record.kind not in {Kind.BODY, Kind.INDEX}
            if named and stopped:
                continue  # see stamps.Resolution.garbage: a later one may keep this one from coming back
            if not self._media.reaches(record.ref):
                continue
            if chunk_of(record.address) not in self._scanned:
                self._space.claim(record.ref, record.object_id, record.sequence)
            done = await self._room.invalidate([record.ref])
            stopped = stopped or (named and not done)
            if done:
                freed.add(record.ref)
        await self._room.limbo.flush()  # what replaced it may leave before the next flush
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
        live = {record.ref for record in resolution.live.values()}
        for record in contenders:
            directory = resolution.same.get(record.directory, record.directory)
            successor = resolution.live.get((directory, record.name))
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
            if self._room is not None and self._is_mine(record.ref):
                self._room.mark(record.address)

    # ── 4. space and policy ──────────────────────────────────────────────────────────────────────────────

    async def _claim(self, result: Recovered, policy: Policy) -> None:
        """Mark the slots of everything in the catalogue as taken, and order it for eviction."""
        files: list[tuple[Stamp, ObjectId]] = []
        classes = self._strand(result)
        policy_first = list(classes)
        self._found = {}  # more than a KiB for each: what follows takes its place
        claims = Claims(self._media, self._space, self._scanned)
        special: list[Descriptor] = []
        for outline in self._catalog.outlines():
            result.high = max(result.high, outline.stamp)
            slots = outline.slots
            if not outline.is_plain and (record := self._catalog.by_id(outline.object_id)) is not None:
                special.append(record)
                slots = await self._slots(record) or slots_of(record, ())
            its_classes = claims.claim(outline.object_id, slots, outline.sequence)
            if outline.kind is Kind.HEAD and its_classes:
                files.append((outline.stamp, outline.object_id))
                classes[outline.object_id] = its_classes
                policy.named(outline.object_id, outline.name, outline.stamp)
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
        if claims.refused and trust is not Trust.STALE and self._room is not None:
            record = self._catalog.by_id(claims.refused[0])
            raise Contradiction(f"{record.name if record else claims.refused[0]!r} is not in its slots")

    def _strand(self, result: Recovered) -> dict[ObjectId, frozenset[SlotClass]]:
        """Find the parts of objects that nobody knows, since their head is out of reach: first to go."""
        for record in self._found.values():
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
        if not self._media.reaches(ref) or not self._is_mine(ref):
            return True
        if not self._space.in_use(ref):
            return False
        owner = self._space.region(RegionId(ref.device, ref.region)).owner(ref.slot)
        lives = self._catalog.by_id(owner) if owner is not None else None
        return lives is None or lives.ref != ref


def _may_be(record: Descriptor) -> bool:
    """Whether a record has an identity that it may have: media are not trusted."""
    if record.object_id == ObjectId(ROOT):
        return record.kind is Kind.DIRECTORY
    return record.object_id != NO_ID


def _as_tombstone(broken: Descriptor) -> Descriptor:
    return replace(broken, kind=Kind.TOMBSTONE)
