"""Creating pools, and opening them: from devices to a Pool.

A pool is opened from any set of its devices, in any order and under any names: superblocks say which is which. Devices
that are missing leave the pool degraded, their objects are misses.

Order when a pool is made: region headers, flush, superblocks, flush. Without a superblock it is not a pool.
Order when it is opened for writing: superblocks with the next sequence (from here on a catalogue kept elsewhere is known
to be stale), recovery, the catalogue's session.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import trio

from blockdev import layout
from blockdev.ahead import Ahead
from blockdev.catalog import Catalog, Trust
from blockdev.catalogs import Catalogs, catalog_folder
from blockdev.debts import Debts
from blockdev.device import Device
from blockdev.errors import (
    BadSuperblock,
    BlockError,
    DeviceError,
    DeviceMismatch,
    FormatError,
    NoSpace,
    Unavailable,
    WrongDomain,
)
from blockdev.eviction import Lru, Policy, TemporaryFirst
from blockdev.follow import Follower
from blockdev.lease import SEATS, Leases, seat_identity
from blockdev.media import Attached, Media
from blockdev.membership import GRACE, Membership, others_there, seats_there
from blockdev.memory import page_buffer
from blockdev.pool import Parts, Pool
from blockdev.reading import Reader
from blockdev.recovery import Contradiction, Ground, Recovered, Recovery, fill_space, region_of
from blockdev.room import Room, RoomOptions
from blockdev.sources import Sources
from blockdev.space import Space
from blockdev.tasks import background
from blockdev.types import (
    EXTENT_CLASSES,
    MIB,
    PAGE,
    DeviceEntry,
    DeviceNo,
    DirtyChunk,
    Epoch,
    RegionHeader,
    RegionId,
    RegionNo,
    RegionState,
    SlotClass,
    Superblock,
)
from blockdev.versions import Versions

log = logging.getLogger(__name__)

_COMMIT_BUSY = 0.005
_COMMIT_IDLE = 0.05
"""Seconds between looks whether the catalogue has changes to commit."""
_CHECK_READERS = 10.0
"""Seconds."""
_REGIONS_MIN = 4
"""One for directories and small files, and some for extents."""


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """How a pool is to be.

    :ivar domain: who coordinates it, `local:<uuid>` or `etcd:<cluster id>`
    :ivar region_size: bytes; None chooses by the devices' sizes
    """

    name: str
    domain: str
    extent_class: SlotClass = SlotClass.MIB4
    region_size: int | None = None


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


# ── superblocks ──────────────────────────────────────────────────────────────────────────────────────────────


async def read_superblock(device: Device) -> Superblock:
    """The device's current superblock.

    :raises BadSuperblock: not a kvfs device, or both pages are damaged
    :raises UnknownVersion: written by a newer kvfs
    :raises DeviceError:
    """
    if device.size < layout.superblock_offset(1) + PAGE:
        raise BadSuperblock(f"{device.name} is too small to be a kvfs device")
    pages = [page_buffer(PAGE), page_buffer(PAGE)]
    for sequence, page in enumerate(pages):
        await device.read_into(layout.superblock_offset(sequence), page)
    try:
        return layout.pick_superblock(pages)
    except FormatError as error:
        raise type(error)(f"{device.name}: {error}") from error


async def _write_superblock(device: Device, superblock: Superblock) -> None:
    page = page_buffer(PAGE)
    page[:] = layout.encode_superblock(superblock)
    await device.write_from(layout.superblock_offset(superblock.sequence), page)


def _geometry(superblock: Superblock) -> layout.DeviceGeometry:
    size = superblock.devices[superblock.device_no].size
    return layout.DeviceGeometry(size, superblock.data_offset, superblock.region_size)


# ── creating ─────────────────────────────────────────────────────────────────────────────────────────────────


async def create_pool(devices: Sequence[Device], options: CreateOptions) -> Superblock:
    """Make a pool of these devices, whatever they hold. Returns the first one's superblock.

    :raises NoSpace: a device is too small
    :raises ValueError: no devices, too many, no such extent size, or regions that hold no extent
    :raises DeviceError:
    """
    if not 1 <= len(devices) <= layout.DEVICES_MAX:
        raise ValueError(f"a pool has 1 to {layout.DEVICES_MAX} devices")
    if options.extent_class not in EXTENT_CLASSES:
        raise ValueError(f"no extent size: {options.extent_class.name}")
    sizes = [device.size for device in devices]
    region_size = options.region_size or layout.default_region_size(sizes, options.extent_class)
    if region_size % PAGE or not layout.RegionGeometry(region_size, options.extent_class).slots:
        raise ValueError(f"a region of {region_size} bytes does not hold one extent, or is not whole pages")
    table = tuple(DeviceEntry(_new_uuid(), size) for size in sizes)
    first = Superblock(
        pool=_new_uuid(),
        device=table[0].uuid,
        device_no=DeviceNo(0),
        domain=options.domain,
        name=options.name,
        region_size=region_size,
        data_offset=layout.DEFAULT_DATA_OFFSET,
        extent_class=options.extent_class,
        devices=table,
        sequence=1,
    )
    for device in devices:
        check_size(device, region_size)
    superblocks = [replace(first, device=e.uuid, device_no=DeviceNo(n)) for n, e in enumerate(table)]
    for device, superblock in zip(devices, superblocks, strict=True):
        await _prepare(device, superblock)
    for device, superblock in zip(devices, superblocks, strict=True):
        await _introduce(device, superblock)
    return first


def check_size(device: Device, region_size: int) -> None:
    """:raises NoSpace: the device holds too few regions"""
    least = layout.DEFAULT_DATA_OFFSET + _REGIONS_MIN * region_size
    if device.size < least:
        raise NoSpace(
            f"{device.name} has {device.size // MIB} MiB; at least {-(-least // MIB)} MiB are needed"
        )


async def _prepare(device: Device, superblock: Superblock) -> None:
    """Erase old superblocks and write both pages of every region header."""
    zero = page_buffer(PAGE)
    for sequence in (0, 1):
        await device.write_from(layout.superblock_offset(sequence), zero)
    geometry = _geometry(superblock)
    pair = page_buffer(layout.PAIR)
    for number in range(geometry.regions):
        for sequence in (2, 3):
            header = RegionHeader(
                pool=superblock.pool,
                device_no=superblock.device_no,
                region=RegionNo(number),
                state=RegionState.UNUSED,
                writer=UUID(int=0),
                epoch=Epoch(0),
                slot_class=SlotClass.INLINE,
                unproven=False,
                sequence=sequence,
            )
            start = sequence % 2 * PAGE
            pair[start : start + PAGE] = layout.encode_region_header(header)
        await device.write_from(geometry.region_offset(RegionNo(number)), pair)
    await device.flush()


async def _introduce(device: Device, superblock: Superblock) -> None:
    """Write both pages of a device's superblock."""
    for sequence in (superblock.sequence, superblock.sequence + 1):
        await _write_superblock(device, replace(superblock, sequence=sequence))
    await device.flush()


async def add_device(present: Sequence[Device], new: Device, *, degraded: bool = False) -> Superblock:
    """Add `new` to the pool of which `present` are all devices; nobody may have it open. Returns its superblock.

    The new device knows of itself before the others know of it: after a crash in between, the longer table counts.

    :param degraded: others may be missing. One that comes back learns of the new one from the others, unless it was
        given a device of its own meanwhile: then they do not agree any more
    :raises DeviceMismatch: devices of the pool are missing
    :raises NoSpace: it is too small
    :raises ValueError: the pool has as many devices as it can have
    :raises FormatError, DeviceError:
    """
    attached = await _attach(present)
    table = _table(attached)
    if len(attached) != len(table) and not degraded:
        raise DeviceMismatch(
            "a device can be added only while all others are there, unless one is lost for good and that is forced"
        )
    if len(table) >= layout.DEVICES_MAX:
        raise ValueError(f"a pool has at most {layout.DEVICES_MAX} devices")
    first = attached[0].superblock
    check_size(new, first.region_size)
    entry = DeviceEntry(_new_uuid(), new.size)
    grown = (*table, entry)
    superblock = replace(first, device=entry.uuid, device_no=DeviceNo(len(table)), devices=grown, sequence=1)
    await _prepare(new, superblock)
    await _introduce(new, superblock)
    for one in attached:
        known = replace(one.superblock, devices=grown, sequence=one.superblock.sequence + 1)
        await _write_superblock(one.device, known)
        await one.device.flush()
    return superblock


async def set_domain(devices: Sequence[Device], domain: str) -> None:
    """Take a pool over into another coordination domain; nobody may have it open. :raises FormatError, DeviceError:"""
    for one in await _attach(devices):
        taken = replace(one.superblock, domain=domain, sequence=one.superblock.sequence + 1)
        await _write_superblock(one.device, taken)
        await one.device.flush()


async def erase(device: Device) -> None:
    """Make a device no device of a pool any more. :raises DeviceError:"""
    zero = page_buffer(PAGE)
    for sequence in (0, 1):
        await device.write_from(layout.superblock_offset(sequence), zero)
    await device.flush()


def _new_uuid() -> UUID:
    return UUID(bytes=secrets.token_bytes(16), version=4)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _attach(devices: Sequence[Device]) -> list[Attached]:
    """
    :raises DeviceMismatch: of different pools, given twice, smaller than recorded, or not of the pool any more
    :raises FormatError, DeviceError:
    """
    if not devices:
        raise DeviceMismatch("no device of the pool is there")
    attached: list[Attached] = []
    for device in devices:
        superblock = await read_superblock(device)
        size = superblock.devices[superblock.device_no].size
        if device.size < size:
            raise DeviceMismatch(f"{device.name} has shrunk: {device.size} bytes, the pool uses {size}")
        for other in attached:
            if other.superblock.pool != superblock.pool:
                raise DeviceMismatch(f"{device.name} belongs to another pool than {other.device.name}")
            if other.superblock.device == superblock.device:
                raise DeviceMismatch(f"{device.name} and {other.device.name} are the same device of the pool")
        attached.append(Attached(device, superblock, _geometry(superblock)))
    _check_agreement(attached)
    return attached


def _table(attached: Sequence[Attached]) -> tuple[DeviceEntry, ...]:
    """The pool's devices: where adding one was cut off, some know of it and others do not yet."""
    return max((a.superblock.devices for a in attached), key=len)


def _check_agreement(attached: Sequence[Attached]) -> None:
    """See that the devices tell of one and the same pool.

    :raises DeviceMismatch: one was being added when that was cut off, and its number went to another since; or media
        of different pools were mixed
    """
    table = _table(attached)
    first = attached[0].superblock
    for one in attached:
        its = one.superblock
        shape = (its.region_size, its.data_offset, its.extent_class)
        if its.devices != table[: len(its.devices)] or shape != (
            first.region_size,
            first.data_offset,
            first.extent_class,
        ):
            raise DeviceMismatch(
                f"{one.device.name} does not agree with the other devices about what the pool consists of: "
                "it is not used by the pool any more"
            )


@dataclass(frozen=True, slots=True)
class Opened:
    """A pool that is open, and what opening it found."""

    pool: Pool
    recovered: Recovered
    missing: tuple[DeviceNo, ...]


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
        attached = await _attach(devices)
        superblock = replace(attached[0].superblock, devices=_table(attached))
        _check_domain(attached, options.domain)
        media = Media(superblock.pool, attached)
        opener = _Opener(folder, media, superblock, options, stack)
        await opener.open()
        pool, recovered = await opener.run()
        opener.begin_session()
        media.on_lost.append(lambda _: opener.begin_session())
        missing = tuple(DeviceNo(n) for n in range(len(superblock.devices)) if n not in media.devices)
        try:
            async with background() as nursery:
                if not options.readonly:
                    nursery.start_soon(_keep_committing, opener.catalogs)
                    nursery.start_soon(opener.ahead.run)
                    assert opener.membership is not None
                    follower = Follower(pool, opener.membership, opener, recovered.doubtful)
                    nursery.start_soon(follower.run)
                yield Opened(pool, recovered, missing)
        finally:
            pool.close()
            if not options.readonly:
                with trio.CancelScope(shield=True):
                    await _settle(opener, complete=not (recovered.unread_regions or recovered.left_over))


def _check_domain(attached: Sequence[Attached], ours: str) -> None:
    """Devices differ where taking the pool over was cut off: then nobody may have it before it is taken again.

    :raises WrongDomain:
    """
    for one in attached:
        its = one.superblock
        if its.domain != ours:
            raise WrongDomain(
                f"pool {its.name!r} is coordinated by {its.domain}, this host's domain is {ours}"
            )


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
        leases.join(self.options.purpose)
        self.membership = Membership(self.folder, pool, self.options.domain, leases)
        self.stack.callback(self.membership.close)
        async with self.membership.opening():
            await self._load_headers()  # not before: others may have changed them
            self.membership.take_free_seats(self.media)
            self.regions = await self.membership.take_regions(self.media)
            before = {a.superblock.device: a.superblock.sequence for a in self.media.devices.values()}
            if self.membership.alone:
                await _next_sequences(self.media, self.superblock.devices)
        own = {seat: self._open_catalog(seat, before) for seat in leases.seats}
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

    def _open_catalog(self, seat: int, sequences: dict[UUID, int]) -> Catalog:
        catalog = Catalog.open(
            catalog_folder(self.folder, seat), self.superblock.pool, readonly=self.options.readonly
        )
        self.stack.callback(catalog.close, clean=False)
        self.trusts[seat] = catalog.trust(self.options.boot_id, sequences)
        return catalog

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
            catalog = self._open_catalog(seat, sequences)
            if seat in live and self.trusts[seat] is Trust.CRASHED:
                self.trusts[seat] = Trust.CURRENT
            if self.trusts[seat] is Trust.CURRENT:
                own[seat] = catalog
            else:
                del self.trusts[seat]
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

    async def run(self) -> tuple[Pool, Recovered]:
        """Recover what our seats have. :raises BlockError, OSError:"""
        while True:
            seat = -1
            space = Space()
            self._prepare(space)
            reader = Reader(self.media, self.superblock.extent_class.payload_size)
            total: Recovered | None = None
            try:
                for seat, catalog in self.catalogs.own.items():
                    recovered = await self._recover(seat, catalog, space, reader)
                    if total is None:
                        total = recovered
                    else:
                        total.add(recovered)
            except (Contradiction, OSError) as error:
                self._give_up(seat, self.catalogs.own[seat], error)
                continue
            assert total is not None
            total.damaged_regions = self.damaged
            return self._wire(space, reader, total), total

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
        self.room = Room(self.media, space, self.catalogs, self.policy, self._room_options(), membership)
        self.ahead = Ahead(self.room, space, self.media)

    def _room_options(self) -> RoomOptions:
        identity = UUID(int=0) if self.membership is None else self.membership.identity
        return RoomOptions(identity, self.superblock.extent_class, self.options.flush, self._grace)

    def _grace(self) -> float:
        """Others may still read what was freed: those who came before they could know that it was."""
        least = self.options.grace()
        return least if self.membership is None or self.membership.alone else max(least, GRACE)

    async def adopt(self, pool: Pool) -> list[int]:
        """Take over the seats of members that ended; returns them.

        Until it is done their objects are as another member's: what they have is recovered aside.
        """
        membership = self.membership
        assert membership is not None
        before = set(membership.leases.seats)
        membership.take_free_seats(self.media)
        adopted = [seat for seat in membership.leases.seats if seat not in before]
        for seat in adopted:
            log.info("taking over what member %d of pool %s had", seat, self.superblock.name)
            await self._adopt_one(pool, seat)
        return adopted

    async def _adopt_one(self, pool: Pool, seat: int) -> None:
        membership = self.membership
        assert membership is not None
        await self.media.reload_headers()
        regions = await membership.take_regions_of(seat, self.media)
        self.catalogs.close_other(seat)
        sequences = {a.superblock.device: a.superblock.sequence for a in self.media.devices.values()}
        catalog = self._open_catalog(seat, sequences)
        self.catalogs.add_other(seat, catalog)
        try:
            space, room, found = await self._recover_aside(pool, seat, catalog, regions)
            begin_sessions(self.media, [catalog], self.options.boot_id)
        except BaseException:  # the next turn tries again
            self.catalogs.close_other(seat)
            membership.leave(seat, regions)
            raise
        catalog.followed = lambda: not membership.alone
        self.catalogs.add_own(seat, catalog)
        for region in regions:
            self.catalogs.assign(region, seat)
        pool.absorb(space, room, found)

    async def _recover_aside(
        self, pool: Pool, seat: int, catalog: Catalog, regions: list[RegionId]
    ) -> tuple[Space, Room, Recovered]:
        while True:
            space = Space()
            for region in regions:
                space.add_region(region_of(self.media, region))
            room = Room(self.media, space, catalog, self.policy, self._room_options())
            ground = Ground(self.media, self.catalogs, space, pool.reader, room)
            try:
                found = await Recovery(ground, catalog, regions).run(self.trusts[seat], self.policy)
            except (Contradiction, OSError) as error:
                self._give_up(seat, catalog, error)
                continue
            return space, room, found

    async def _recover(self, seat: int, catalog: Catalog, space: Space, reader: Reader) -> Recovered:
        room = None if self.options.readonly else self.room
        ground = Ground(self.media, self.catalogs, space, reader, room)
        return await Recovery(ground, catalog, self.regions.get(seat, ())).run(self.trusts[seat], self.policy)

    def _give_up(self, seat: int, catalog: Catalog, error: Contradiction | OSError) -> None:
        if isinstance(error, OSError) and not catalog.failed:
            raise error
        what = "is damaged" if isinstance(error, OSError) else "contradicts the media"
        if self.options.readonly:
            raise BlockError(f"the catalogue {what}: {error}; mount the pool once") from error
        log.warning("the catalogue %s (%s): it is built again from the media", what, error)
        catalog.clear()  # and with it what it remembers as dirty, before `Room` looks at that
        self.trusts[seat] = Trust.STALE

    def _wire(self, space: Space, reader: Reader, recovered: Recovered) -> Pool:
        options = self.options
        sources = Sources(options.wall_ns, options.entropy, recovered.high)
        debts = Debts(self.room, self.catalogs, sources, recovered.owed, recovered.tombstones)
        versions = Versions(self.catalogs, self.policy, self.room, reader, debts, recovered.stranded)
        if self.membership is not None:
            versions.pins.elsewhere = self.membership.board
            membership = self.membership
            for catalog in self.catalogs.own.values():
                catalog.followed = lambda: not membership.alone
        parts = Parts(
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
        return Pool(parts)


def begin_sessions(media: Media, catalogs: Iterable[Catalog], boot_id: str) -> None:
    """From here on these catalogues follow the devices that are there now. :raises OSError:"""
    present = {a.superblock.device: a.superblock.sequence for a in media.devices.values() if not a.lost}
    for catalog in catalogs:
        catalog.begin_session(boot_id, present)


async def _next_sequences(media: Media, table: tuple[DeviceEntry, ...]) -> None:
    for attached in media.devices.values():
        known = attached.superblock
        await media.write_superblock(replace(known, devices=table, sequence=known.sequence + 1))
    await media.flush(media.devices)


async def _keep_committing(catalog: Catalogs) -> None:
    """A catalogue that cannot be written, on a disk that is full, ends nothing: what it has committed can still be
    read, what is stored meanwhile may be missing until the pool is opened again and the media are read.
    """
    checked = trio.current_time()
    failing = False
    while True:
        await trio.sleep(_COMMIT_BUSY if catalog.has_changes else _COMMIT_IDLE)
        try:
            if catalog.commit_due(trio.current_time()):
                failing = False
        except OSError as error:
            if not failing:
                log.error(
                    "the catalogue cannot be written (%s): free space there, then mount the pool again", error
                )
            failing = True
        if trio.current_time() - checked > _CHECK_READERS:
            catalog.reader_check()  # a reader that was killed would keep old pages from being reused
            checked = trio.current_time()


async def _settle(opener: _Opener, *, complete: bool) -> None:
    """Leave media and catalogue so that the next opening believes them.

    :param complete: the catalogue says all that the media say, as far as they were there
    :raises OSError:
    """
    media = opener.media
    for number in list(media.devices):
        if media.available(number):
            with suppress(
                DeviceError, Unavailable
            ):  # it is lost then, and the catalogue does not speak for it
                await media.flush([number])
    order = list(opener.policy.order())
    for catalog in opener.catalogs.own.values():
        catalog.save_order(order)
    opener.catalogs.close(clean=complete and not opener.room.counters.failed)
