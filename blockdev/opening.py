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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import trio

from blockdev import layout
from blockdev.catalog import Catalog, Trust
from blockdev.debts import Debts
from blockdev.device import Device
from blockdev.errors import (
    BlockError,
    DeviceError,
    DeviceMismatch,
    NoSpace,
    Unavailable,
    WrongDomain,
)
from blockdev.eviction import Lru, Policy
from blockdev.media import Attached, Media
from blockdev.memory import page_buffer
from blockdev.pool import Parts, Pool
from blockdev.reading import Reader
from blockdev.recovery import Contradiction, Recovered, Recovery, fill_space
from blockdev.returning import Returning
from blockdev.room import Room, RoomOptions
from blockdev.sources import Sources
from blockdev.space import Space
from blockdev.superblocks import read_superblock
from blockdev.tasks import background
from blockdev.types import (
    EXTENT_CLASSES,
    MIB,
    PAGE,
    DeviceEntry,
    DeviceNo,
    Epoch,
    RegionHeader,
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
    """

    domain: str
    flush: bool = False
    readonly: bool = False
    grace: float = 0.0
    writer_is_live: bool = False
    """Read-only: another process keeps the catalogue current."""
    boot_id: str = field(default_factory=lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    wall_ns: Callable[[], int] = time.time_ns
    entropy: Callable[[int], bytes] = secrets.token_bytes
    policy: Callable[[], Policy] = Lru


# ── superblocks ──────────────────────────────────────────────────────────────────────────────────────────────


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
    returning: Returning


@asynccontextmanager
async def open_pool(devices: Sequence[Device], folder: Path, options: OpenOptions) -> AsyncIterator[Opened]:
    """Open the pool of these devices; they are closed with it.

    :param folder: where this host keeps the pool's catalogue
    :raises WrongDomain: it is coordinated elsewhere
    :raises FormatError, DeviceError, OSError:
    """
    async with AsyncExitStack() as stack:
        for device in devices:
            stack.push_async_callback(device.aclose)
        attached = await _attach(devices)
        table = _table(attached)
        superblock = replace(attached[0].superblock, devices=table)
        _check_domain(attached, options.domain)
        media = Media(superblock.pool, attached)
        for number in media.devices:
            await media.load_headers(number, repair=not options.readonly)
        before = {a.superblock.device: a.superblock.sequence for a in attached}
        if not options.readonly:
            await _next_sequences(media, table)
        stack.push_async_callback(media.aclose)  # those that came back are others than those that were given
        catalog, trust = _open_catalog(folder, superblock.pool, before, options, stack)
        opener = _Opener(media, catalog, superblock, options)
        parts, recovered = await opener.run(trust)
        pool = Pool(parts)
        returning = Returning(pool, parts, opener.begin_session)
        if not options.readonly:
            opener.begin_session()
            media.on_lost.append(lambda _: opener.begin_session())
        missing = tuple(DeviceNo(n) for n in range(len(table)) if n not in media.devices)
        try:
            async with background() as nursery:
                if not options.readonly:
                    nursery.start_soon(_keep_committing, catalog)
                yield Opened(pool, recovered, missing, returning)
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


def _open_catalog(
    folder: Path, pool: UUID, sequences: dict[UUID, int], options: OpenOptions, stack: AsyncExitStack
) -> tuple[Catalog, Trust]:
    catalog = Catalog.open(folder, pool, readonly=options.readonly)
    stack.callback(catalog.close, clean=False)
    trust = catalog.trust(options.boot_id, sequences)
    if not options.readonly or trust is Trust.CURRENT:
        return catalog, trust
    if trust is Trust.CRASHED and options.writer_is_live:
        return catalog, Trust.CURRENT
    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvfs-catalogue-"))
    temporary = Catalog.open(Path(scratch), pool)
    stack.callback(temporary.close, clean=False)
    return temporary, Trust.STALE


async def _next_sequences(media: Media, table: tuple[DeviceEntry, ...]) -> None:
    for attached in media.devices.values():
        known = attached.superblock
        await media.write_superblock(replace(known, devices=table, sequence=known.sequence + 1))
    await media.flush(media.devices)


@dataclass(slots=True)
class _Opener:
    """Wires the parts of one pool."""

    media: Media
    catalog: Catalog
    superblock: Superblock
    options: OpenOptions
    policy: Policy = field(init=False)
    room: Room = field(init=False)

    def begin_session(self) -> None:
        """From here on the catalogue follows the devices that are there now. :raises OSError:"""
        present = [a.superblock for a in self.media.devices.values() if not a.lost]
        self.catalog.begin_session(self.options.boot_id, {s.device: s.sequence for s in present})

    async def run(self, trust: Trust) -> tuple[Parts, Recovered]:
        try:
            return await self._recover(trust)
        except (Contradiction, OSError) as error:
            if isinstance(error, OSError) and not self.catalog.failed:
                raise
            what = "is damaged" if isinstance(error, OSError) else "contradicts the media"
            if self.options.readonly:
                raise BlockError(f"the catalogue {what}: {error}; mount the pool once") from error
            log.warning("the catalogue %s (%s): it is built again from the media", what, error)
            self.catalog.clear()  # and with it what it remembers as dirty, before `Room` looks at that
            return await self._recover(Trust.STALE)

    async def _recover(self, trust: Trust) -> tuple[Parts, Recovered]:
        options, superblock = self.options, self.superblock
        space = Space()
        self.policy = options.policy()
        reader = Reader(self.media, superblock.extent_class.payload_size)
        room = RoomOptions(_new_uuid(), superblock.extent_class, options.flush, options.grace)
        self.room = Room(self.media, space, self.catalog, self.policy, room)
        damaged = fill_space(self.media, space, len(superblock.devices))
        recovery = Recovery(self.media, self.catalog, space, reader, None if options.readonly else self.room)
        recovered = await recovery.run(trust, self.policy)
        recovered.damaged_regions = damaged
        sources = Sources(options.wall_ns, options.entropy, recovered.high)
        debts = Debts(self.room, sources, recovered.owed)
        versions = Versions(self.catalog, self.policy, self.room, reader, debts, recovered.stranded)
        parts = Parts(
            superblock,
            self.media,
            self.catalog,
            space,
            self.policy,
            self.room,
            reader,
            versions,
            sources,
            options.readonly,
        )
        return parts, recovered


async def _keep_committing(catalog: Catalog) -> None:
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
    opener.catalog.save_order(opener.policy.order())
    opener.catalog.close(clean=complete and not opener.room.counters.failed)
