"""Being one of the members of a pool on this host: its seats, and the regions that they write."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import trio

from blockdev.board import Board
from blockdev.catalogs import Catalogs, catalog_folder
from blockdev.errors import PoolBusy
from blockdev.lease import SEATS, Leases, seat_identity
from blockdev.media import Media
from blockdev.types import DeviceNo, RegionHeader, RegionId, RegionNo, RegionState

log = logging.getLogger(__name__)

FOLLOW_PERIOD = 0.03
"""Seconds between two looks at what other members changed."""
GRACE = 2 * FOLLOW_PERIOD + 1.0
"""Seconds for which a freed slot is left alone while there are others, who may not have seen yet that it was."""
_OPENING_PATIENCE = 10.0
"""Seconds for which another member may take its seats."""
_REGION_PATIENCE = 1.0
"""Seconds for which another member may look whether a region is free."""
_NAMING_PATIENCE = 1.0
"""Seconds for which another member may make a directory; one that was stopped over it holds nobody up for longer."""
_POLL = 0.02
_NAMING_POLL = 0.001
_LOOK_AGAIN = 0.2
"""Seconds between looks for regions that others gave up."""


class Membership:
    """One member's seats and regions; see `lease`. Satisfies `Leasing`."""

    def __init__(self, folder: Path, pool: UUID, domain: str, leases: Leases) -> None:
        self.leases = leases
        self.claimed: list[RegionId] = []
        """Regions that came to us from nobody: our catalogue knows nothing of them."""
        self._folder = folder
        self._identities = {seat_identity(pool, domain, seat): seat for seat in range(SEATS)}
        self._names = {seat: identity for identity, seat in self._identities.items()}
        self._aside: set[RegionId] = set()
        """Regions that are being taken over: leased, and not to be written to yet."""
        self._looked = -_LOOK_AGAIN
        self._naming = trio.Lock()
        self._media: Media | None = None
        self._catalogs: Catalogs | None = None
        self.board = Board.open(
            folder / f"{pool}.board", self.seat, self._names[self.seat], self.leases.others
        )

    @property
    def seat(self) -> int:
        """The seat that we came with: what we lease from now on is written in its name."""
        return self.leases.seats[0]

    @property
    def identity(self) -> UUID:
        """Of the seat that we came with."""
        return self._names[self.seat]

    @property
    def alone(self) -> bool:
        """Whether the pool has no other members now."""
        return self.leases.alone

    def close(self) -> None:
        """Leave: the seats and regions are free for others."""
        self.board.close()
        self.leases.close()

    def seat_of(self, header: RegionHeader) -> int | None:
        """The seat that writes to a region; None if no seat of this domain does."""
        return self._identities.get(header.writer)

    # ── coming ───────────────────────────────────────────────────────────────────────────────────────────

    def take_free_seats(self, media: Media) -> None:
        """Take the seats that nobody holds and that have something: regions, or a catalogue."""
        writers = {header.writer for header in _headers(media) if header.state is RegionState.ACTIVE}
        for seat, name in self._names.items():
            if name in writers or catalog_folder(self._folder, seat).exists():
                self.leases.take_seat(seat)

    async def take_regions(self, media: Media) -> dict[int, list[RegionId]]:
        """Lease the regions of our seats, and those whose writer is no seat here; by seat.

        The latter are our first seat's from now on.

        :raises DeviceError, Unavailable:
        """
        taken: dict[int, list[RegionId]] = {seat: [] for seat in self.leases.seats}
        for header in _headers(media):
            if header.state is not RegionState.ACTIVE:
                continue
            region, seat = RegionId(header.device_no, header.region), self.seat_of(header)
            if seat is None and self.leases.acquire_region(region):
                await media.write_header(replace(header, writer=self.identity, sequence=header.sequence + 1))
                taken[self.seat].append(region)
                self.claimed.append(region)
            elif seat in taken and await self._lease_soon(region):
                taken[seat].append(region)
        return taken

    async def take_regions_of(self, seat: int, media: Media) -> list[RegionId]:
        """Lease the regions of one seat of ours."""
        headers = [h for h in _headers(media) if h.state is RegionState.ACTIVE and self.seat_of(h) == seat]
        regions = [RegionId(header.device_no, header.region) for header in headers]
        self._aside.update(regions)
        return [region for region in regions if await self._lease_soon(region)]

    def end_adoption(self) -> None:
        """What was taken over is ours now, or was left."""
        self._aside.clear()

    def blank(self, seats: Iterable[int], writers: Collection[int]) -> list[int]:
        """Those of these seats that have nothing. :param writers: seats that have regions"""
        return sorted(set(seats) - set(writers) - set(self.seats_there()))

    def incomplete_seats(self, media: Media) -> set[int]:
        """Seats of ours with regions that are not ours, since they were out of reach when we took the seat."""
        assert self._catalogs is not None
        return {
            seat
            for header in _headers(media)
            if header.state is RegionState.ACTIVE
            and (seat := self.seat_of(header)) in self._catalogs.own
            and not self.is_ours(RegionId(header.device_no, header.region))
            and seat is not None
        }

    async def leave(self, seats: Iterable[int], regions: Iterable[RegionId]) -> None:
        """Give up seats that were taken, all at once, and their regions; if that cannot be, when we end."""
        with trio.CancelScope(shield=True), suppress(PoolBusy):
            async with opening(self.leases):
                for region in regions:
                    self.leases.release_region(region)
                for seat in seats:
                    self.leases.leave_seat(seat)

    async def _lease_soon(self, region: RegionId) -> bool:
        """Lease a region that can only be locked for a moment, by who looks whether it is free."""
        with trio.move_on_after(_REGION_PATIENCE):
            while not self.leases.acquire_region(region):  # noqa: ASYNC110 - another process ends it
                await trio.sleep(_POLL)
            return True
        log.warning("region %d of device %d stays locked by another process: not used", *region[::-1])
        return False

    @asynccontextmanager
    async def naming(self) -> AsyncIterator[None]:
        """While a directory is made and written into our catalogue, no other member makes one: there would be two of one
        name, each with what its maker puts into it."""
        if self.alone:
            yield
            return
        assert self._catalogs is not None
        async with self._naming:
            is_ours = False
            with trio.move_on_after(_NAMING_PATIENCE):
                while not (is_ours := self.leases.begin_naming()):  # noqa: ASYNC110 - another process ends it
                    await trio.sleep(_NAMING_POLL)
            try:
                with suppress(OSError):  # of the catalogues' disk, as whoever follows and commits will tell
                    # Who has just come, too.
                    self._catalogs.see_others({*self.seats_there(), *self.leases.others()})
                yield
                with suppress(OSError):
                    self._catalogs.commit()
            finally:
                if is_ours:
                    self.leases.end_naming()

    def begin(self, media: Media, catalogs: Catalogs) -> None:
        """From here on leases can be asked for."""
        self._media, self._catalogs = media, catalogs

    def seats_there(self) -> list[int]:
        """The seats that have a catalogue, whether anybody holds them or not."""
        return seats_there(self._folder)

    # ── regions ──────────────────────────────────────────────────────────────────────────────────────────

    def is_ours(self, region: RegionId) -> bool:
        assert self._catalogs is not None
        return self._catalogs.assigned(region) is not None

    def lease(self, region: RegionId) -> bool:
        assert self._catalogs is not None
        return region not in self._aside and self.leases.acquire_region(region)

    def keep(self, region: RegionId) -> None:
        assert self._catalogs is not None
        self._catalogs.assign(region, self.seat)
        self.board.wish_no_more()

    def release(self, region: RegionId) -> None:
        assert self._catalogs is not None
        if region in self._aside:
            return  # while we looked whether it is free, it came to us with a seat
        self._catalogs.unassign(region)
        self.leases.release_region(region)

    def wish(self) -> None:
        if not self.alone and any(f.regions > self._regions + 1 for f in self.board.figures().values()):
            self.board.wish()

    def should_give(self) -> bool:
        """Whether somebody with fewer regions asks for one, and we are who has most."""
        figures = self.board.figures()
        fewest = min((f.regions for f in figures.values() if f.wish), default=None)
        most = max(((f.regions, -seat) for seat, f in figures.items()), default=(0, 0))
        return fewest is not None and self._regions > fewest + 1 and (self._regions, -self.seat) > most

    @property
    def _regions(self) -> int:
        assert self._catalogs is not None
        return self._catalogs.regions

    def free(self) -> list[RegionId]:
        now = trio.current_time()
        if now - self._looked < _LOOK_AGAIN:
            return []
        self._looked = now
        assert self._media is not None
        return [
            region
            for region in _regions(self._media)
            if not self.is_ours(region)
            and region not in self._aside
            and not self.leases.is_region_held(region)
        ]


@asynccontextmanager
async def opening(leases: Leases) -> AsyncIterator[None]:
    """While seats are taken: all that are free by one, as what a member had that held several belongs together.

    :raises PoolBusy: another member does not come to an end with that
    """
    try:
        with trio.fail_after(_OPENING_PATIENCE):
            while not leases.begin_opening():  # noqa: ASYNC110 - another process ends it
                await trio.sleep(_POLL)
    except trio.TooSlowError:
        raise PoolBusy(
            f"another process has been opening the pool for {_OPENING_PATIENCE:.0f} s: see which of "
            f"{[holder.pid for holder in leases.holders()]} does not go on"
        ) from None
    try:
        yield
    finally:
        leases.end_opening()


def seats_there(folder: Path) -> list[int]:
    """The seats that have a catalogue."""
    there = catalog_folder(folder, 0).parent
    names = [path.name for path in there.iterdir()] if there.exists() else []
    return sorted(int(name) for name in names if name.isdecimal() and int(name) < SEATS)


def others_there(folder: Path, pool: UUID) -> list[int]:
    """The seats that members hold, as seen by who is none and changes nothing."""
    if not folder.exists() or not any(folder.glob(f"{pool}.lock")):
        return []
    with Leases.open(folder, pool) as leases:
        return leases.others()


def _headers(media: Media) -> list[RegionHeader]:
    return [header for region in _regions(media) if (header := media.known_header(region)) is not None]


def _regions(media: Media) -> Iterable[RegionId]:
    for number, attached in media.devices.items():
        if not attached.lost:
            yield from (RegionId(DeviceNo(number), RegionNo(n)) for n in range(attached.geometry.regions))
