"""Opening pools: from devices to a Pool.

A pool is opened from any set of its devices, in any order and under any names: superblocks say which is which. Devices
that are missing leave the pool degraded, their objects are misses.

Order when it is opened for writing: superblocks with the next sequence (from here on a catalogue kept elsewhere is known
to be stale), recovery, the catalogue's session.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import trio

from blockdev.adoption import Adoption
from blockdev.ahead import Ahead
from blockdev.catalog import Catalog, Trust
from blockdev.catalog_upkeep import begin_sessions, distrust_together, give_up, keep_committing, settle
from blockdev.catalogs import Catalogs, catalog_folder
from blockdev.debts import Debts
from blockdev.device import Device
from blockdev.eviction import Lru, Policy, TemporaryFirst
from blockdev.follow import Follower
from blockdev.ground import Ground, fill_space
from blockdev.lease import SEATS, Leases, seat_identity
from blockdev.media import Media
from blockdev.membership import GRACE, Membership, opening, others_there, seats_there
from blockdev.parts import Parts
from blockdev.pool import Pool
from blockdev.reading import Reader
from blockdev.recovered import Contradiction, Recovered
from blockdev.recovery import Recovery
from blockdev.returning import Returning
from blockdev.room import Room
from blockdev.seat_catalogs import SeatCatalogs
from blockdev.slots import SlotOptions, Slots
from blockdev.sources import Sources
from blockdev.space import Space
from blockdev.superblocks import attach, check_domain, device_table, next_sequences, read_again
from blockdev.tasks import background
from blockdev.types import DeviceNo, DirtyChunk, RegionId, RegionState, Superblock
from blockdev.versions import Versions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How to open a pool.

    :ivar domain: ours; a pool of another one is refused
    :ivar flush: make each publication durable against power loss (`durability: flush`), not only against kill -9
    :ivar boot_id: names this boot of the system
    :ivar wall_ns: the wall clock, ns since 1970
    :ivar entropy: random bytes for identities
    :ivar policy: makes the eviction policy
    :ivar is_temporary: whether a name is one that its writer means to change soon: what keeps it for 10 minutes is evicted
        before anything else
    """

    domain: str
    flush: bool = False
    readonly: bool = False
    purpose: str = ""
    """For people who find the pool busy, such as "mounted on /mnt/kv"."""
    grace: Callable[[], float] = lambda: 0.0
    """Least seconds for which a freed slot is not used again, asked at each; more while there are other members."""
    boot_id: str = field(default_factory=lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    wall_ns: Callable[[], int] = time.time_ns
    entropy: Callable[[int], bytes] = secrets.token_bytes
    policy: Callable[[], Policy] = Lru
    is_temporary: Callable[[bytes], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class Opened:
    """A pool that is open, and what opening it found."""

    pool: Pool
    recovered: Recovered
    missing: tuple[DeviceNo, ...]
    returning: Returning


@asynccontextmanager
async def open_pool(devices: Sequence[Device], folder: Path, options: OpenOptions) -> AsyncIterator[Opened]:
    """Open the pool of these devices, as one of its members or only to read; they are closed with it.

    :param folder: where this host keeps the pool's locks and catalogues
    :raises WrongDomain: it is coordinated elsewhere
    :raises PoolBusy: somebody must be alone with it, or it has as many members as it can have
    :raises FormatError, DeviceError, OSError:
    """
    async with AsyncExitStack() as stack:
        for device in devices:
            stack.push_async_callback(device.aclose)
        attached = await attach(devices)
        superblock = replace(attached[0].superblock, devices=device_table(attached))
        check_domain(attached, options.domain)
        media = Media(superblock.pool, attached)
        stack.push_async_callback(media.aclose)  # those that came back are others than those that were given
        opener = _Opener(folder, media, superblock, options, stack)
        await opener.open()
        parts, recovered = await opener.run()
        pool = Pool(parts)
        returning = Returning(pool, parts, opener.begin_session)
        opener.begin_session()
        media.on_lost.append(lambda _: opener.begin_session())
        missing = tuple(DeviceNo(n) for n in range(len(superblock.devices)) if n not in media.devices)
        try:
            async with background() as nursery:
                if not options.readonly:
                    nursery.start_soon(keep_committing, opener.catalogs)
                    nursery.start_soon(opener.ahead.run)
                    assert opener.membership is not None
                    follower = Follower(pool, opener.membership, opener.adoption(), recovered.doubtful)
                    nursery.start_soon(follower.run)
                yield Opened(pool, recovered, missing, returning)
        finally:
            pool.close()
            if not options.readonly:
                with trio.CancelScope(shield=True):
                    complete = not (recovered.unread_regions or recovered.left_over)
                    clean = complete and not opener.room.counters.failed
                    await settle(media, opener.catalogs, opener.policy.order(), clean=clean)


@dataclass(slots=True)
class _Opener:
    """Wires the parts of one pool."""

    folder: Path
    media: Media
    superblock: Superblock
    options: OpenOptions
    stack: AsyncExitStack
    membership: Membership | None = None
    catalogs: Catalogs = field(init=False)
    trusts: dict[int, Trust] = field(default_factory=dict)
    """By seat, ours; for who only reads, those that can be believed, and what is scanned for the others."""
    regions: dict[int, list[RegionId]] = field(default_factory=dict)
    policy: Policy = field(init=False)
    room: Room = field(init=False)
    ahead: Ahead = field(init=False)
    damaged: int = 0
    """Regions whose header is damaged."""

    # ── who we are ───────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Take seats and regions, and open catalogues. :raises PoolBusy, DeviceError, OSError:"""
        if self.options.readonly:
            await self._load_headers()
            self._look()
            return
        pool = self.superblock.pool
        leases = self.stack.enter_context(Leases.open(self.folder, pool))
        async with opening(leases):
            leases.join(self.options.purpose)
            self.membership = Membership(self.folder, pool, self.options.domain, leases)
            self.stack.callback(self.membership.close)
            others = not self.membership.alone
            await read_again(self.media, self.superblock.devices)  # not before: others may have changed them
            await self._load_headers()
            self.membership.take_free_seats(self.media)
            if others:  # one may have left a seat since, after it had made the seat's regions its own
                await self.media.reload_headers()
            self.regions = await self.membership.take_regions(self.media)
            before = {a.superblock.device: a.superblock.sequence for a in self.media.devices.values()}
            if self.membership.alone:
                await next_sequences(self.media, self.superblock.devices)
        blank = self.membership.blank(leases.seats, [seat for seat, its in self.regions.items() if its])
        own: dict[int, Catalog] = {}
        for seat in leases.seats:
            own[seat], self.trusts[seat] = self._open_catalog(seat, before)
        distrust_together(own, self.trusts, blank)
        self._assign(own)
        self._distrust(self.membership.claimed)
        self.catalogs.see_others(seats_there(self.folder))
        self.membership.begin(self.media, self.catalogs)

    def _distrust(self, claimed: Sequence[RegionId]) -> None:
        """See that regions which came to our first seat from nobody are scanned."""
        seat = next(iter(self.trusts))
        if not claimed or self.trusts[seat] is Trust.STALE:
            return
        for region in claimed:
            chunks = range(self.media.geometry(region).chunks)
            self.catalogs.mark_dirty(*(DirtyChunk(*region, chunk) for chunk in chunks))
        self.trusts[seat] = Trust.CRASHED

    async def _load_headers(self) -> None:
        for number in self.media.devices:
            await self.media.load_headers(number, repair=not self.options.readonly)

    def _open_catalog(self, seat: int, sequences: dict[UUID, int]) -> tuple[Catalog, Trust]:
        catalog = Catalog.open(
            catalog_folder(self.folder, seat), self.superblock.pool, readonly=self.options.readonly
        )
        self.stack.callback(catalog.close, clean=False)
        return catalog, catalog.trust(self.options.boot_id, sequences)

    def _assign(self, own: dict[int, Catalog]) -> None:
        self.catalogs = Catalogs(self.folder, self.superblock.pool, own)
        self.stack.callback(self.catalogs.close_others)
        for seat, regions in self.regions.items():
            for region in regions:
                self.catalogs.assign(region, seat)

    def _look(self) -> None:
        """For who only reads: believe the catalogues of members that live, or that can be believed; scan the rest."""
        pool, domain = self.superblock.pool, self.options.domain
        live = others_there(self.folder, pool)
        sequences = {a.superblock.device: a.superblock.sequence for a in self.media.devices.values()}
        identities = {seat_identity(pool, domain, seat): seat for seat in range(SEATS)}
        own: dict[int, Catalog] = {}
        for seat in seats_there(self.folder):
            catalog, trust = self._open_catalog(seat, sequences)
            if trust is Trust.CURRENT or (trust is Trust.CRASHED and seat in live):
                own[seat], self.trusts[seat] = catalog, Trust.CURRENT
        unseen: list[RegionId] = []
        for attached in self.media.devices.values():
            for header in attached.headers.values():
                if header.state is RegionState.ACTIVE:
                    seat = identities.get(header.writer, SEATS)
                    region = RegionId(header.device_no, header.region)
                    (self.regions.setdefault(seat, []) if seat in own else unseen).append(region)
        if unseen or not own:
            scratch = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="kvfs-catalogue-")))
            own[SEATS] = Catalog.open(scratch, pool)
            self.stack.callback(own[SEATS].close, clean=False)
            self.trusts[SEATS], self.regions[SEATS] = Trust.STALE, unseen
        self._assign(own)

    def begin_session(self) -> None:
        """From here on our catalogues follow the devices that are there now. :raises OSError:"""
        if not self.options.readonly:
            begin_sessions(self.media, self.catalogs.own.values(), self.options.boot_id)

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> tuple[Parts, Recovered]:
        """Recover what our seats have. :raises BlockError, OSError:"""
        while True:
            space = Space()
            self._prepare(space)
            reader = Reader(self.media, self.superblock.extent_class.payload_size)
            slots = None if self.options.readonly else self.room
            ground = Ground(self.media, self.catalogs, space, reader, slots)
            regions = {region: seat for seat, regions in self.regions.items() for region in regions}
            recovery = Recovery(ground, SeatCatalogs(self.catalogs.own, regions))
            try:
                recovered = await recovery.run(self.trusts, self.policy)
            except (Contradiction, OSError) as error:
                give_up(self.catalogs.own.values(), error, readonly=self.options.readonly)
                self.trusts = dict.fromkeys(self.trusts, Trust.STALE)
                continue
            recovered.damaged_regions = self.damaged
            return self._wire(space, reader, recovered), recovered

    def _prepare(self, space: Space) -> None:
        membership = self.membership
        options = self.options
        self.policy = TemporaryFirst(options.policy(), options.is_temporary, options.wall_ns)
        ours = {region for regions in self.regions.values() for region in regions}
        self.damaged = fill_space(
            self.media,
            space,
            len(self.superblock.devices),
            lambda header: RegionId(header.device_no, header.region) in ours,
        )
        self.room = Room(self.media, space, self.catalogs, self.policy, self._slot_options(), membership)
        self.ahead = Ahead(self.room, space, self.media)

    def _slot_options(self) -> SlotOptions:
        identity = UUID(int=0) if self.membership is None else self.membership.identity
        return SlotOptions(identity, self.superblock.extent_class, self.options.flush, self._grace)

    def _grace(self) -> float:
        """Others may still read what was freed: those who came before they could know that it was."""
        least = self.options.grace()
        return least if self.membership is None or self.membership.alone else max(least, GRACE)

    def adoption(self) -> Adoption:
        """What takes over the seats of members that end."""
        assert self.membership is not None
        return Adoption(
            self.membership,
            self.policy,
            boot_id=self.options.boot_id,
            open_catalog=self._open_catalog,
            slots_for=lambda space, catalogs: Slots(self.media, space, catalogs, self._slot_options()),
        )

    def _wire(self, space: Space, reader: Reader, recovered: Recovered) -> Parts:
        options = self.options
        sources = Sources(options.wall_ns, options.entropy, recovered.high)
        debts = Debts(self.room, self.catalogs, sources, recovered.owed, recovered.tombstones)
        versions = Versions(self.catalogs, self.policy, self.room, reader, debts, recovered.stranded)
        if self.membership is not None:
            versions.pins.elsewhere = self.membership.board
            membership = self.membership
            for catalog in self.catalogs.own.values():
                catalog.followed = lambda: not membership.alone
        return Parts(
            self.superblock,
            self.media,
            self.catalogs,
            space,
            self.policy,
            self.room,
            reader,
            versions,
            sources,
            self.membership,
            recovered.aliases,
        )
