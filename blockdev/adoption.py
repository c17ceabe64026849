"""Taking over what members that ended had: their seats, regions and catalogues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import trio

from blockdev.catalog import Catalog, Trust
from blockdev.catalog_upkeep import begin_sessions, distrust_together, give_up
from blockdev.eviction import Policy
from blockdev.ground import Ground, region_of
from blockdev.membership import Membership
from blockdev.pool import Pool
from blockdev.recovered import Contradiction, Recovered
from blockdev.recovery import Recovery
from blockdev.seat_catalogs import SeatCatalogs
from blockdev.slots import Slots
from blockdev.space import Space
from blockdev.types import DeviceNo, RegionId

log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Records that are moved without letting others run."""


class Adoption:
    """Satisfies `follow.Adopter`.

    :param boot_id: names this boot of the system
    :param open_catalog: opens a seat's catalogue, and says how far it can be believed; given the superblocks' sequences
    :param slots_for: the slots of a space, for whoever frees them in the name of these catalogues
    """

    def __init__(
        self,
        membership: Membership,
        policy: Policy,
        *,
        boot_id: str,
        open_catalog: Callable[[int, dict[UUID, int]], tuple[Catalog, Trust]],
        slots_for: Callable[[Space, SeatCatalogs], Slots],
    ) -> None:
        self._membership = membership
        self._policy = policy
        self._boot_id = boot_id
        self._open_catalog = open_catalog
        self._slots_for = slots_for

    async def adopt(self, pool: Pool) -> list[int]:
        """Take over the seats of members that ended; returns them.

        Until it is done their objects are as another member's: what they have is recovered aside. Not while a device is
        lost: who reaches it may be faster, and half of what a seat has is no basis for going on in its name.

        :raises BlockError, OSError:
        """
        if any(attached.lost for attached in pool.media.devices.values()):
            return []
        leases = self._membership.leases
        before = set(leases.seats)
        if not leases.begin_opening():  # somebody comes, and takes them
            return []
        try:
            self._membership.take_free_seats(pool.media)
        finally:
            leases.end_opening()
        seats = [seat for seat in leases.seats if seat not in before]
        if seats:
            log.info("taking over what members %s of pool %s had", seats, pool.name)
            await self._take_over(pool, seats)
        for seat in leases.seats[1:]:
            if self._has_all(pool, seat):
                await self._dissolve(pool, seat)
        return seats

    def _has_all(self, pool: Pool, seat: int) -> bool:
        """Whether we reach all that a seat of ours may have, so that nobody will find more of it later."""
        devices = map(DeviceNo, range(len(pool.superblock.devices)))
        return all(map(pool.media.available, devices)) and seat not in self._membership.incomplete_seats(
            pool.media
        )

    async def _dissolve(self, pool: Pool, seat: int) -> None:
        """Make all that a seat has our first one's, so that seats do not run out.

        Each step leaves what the next one to take over both can go on from: regions of one seat, records of the other.
        """
        catalogs = pool.catalog
        for region in catalogs.assigned_to(seat):
            await pool.sign_region(region)
        for number, beaten in enumerate(catalogs.dissolve(seat)):
            if beaten is not None:
                pool.owe(beaten.by, beaten.record.ref)
            if number % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        self._membership.leases.leave_seat(seat)

    async def _take_over(self, pool: Pool, seats: list[int]) -> None:
        media, catalogs, membership = pool.media, pool.catalog, self._membership
        regions: dict[RegionId, int] = {}
        opened: dict[int, Catalog] = {}
        try:
            await media.reload_headers()
            for seat in seats:
                regions |= dict.fromkeys(await membership.take_regions_of(seat, media), seat)
            sequences = {a.superblock.device: a.superblock.sequence for a in media.devices.values()}
            trusts: dict[int, Trust] = {}
            blank = self._membership.blank(seats, regions.values())
            for seat in seats:
                catalogs.close_other(seat)
                opened[seat], trusts[seat] = self._open_catalog(seat, sequences)
            distrust_together(opened, trusts, blank)
            for seat in seats:
                catalogs.read_other(seat)  # as it was, until all is done
            space, slots, found = await self._recover_aside(pool, opened, trusts, regions)
            begin_sessions(media, opened.values(), self._boot_id)
        except BaseException:  # the next turn tries again
            for seat in seats:
                catalogs.close_other(seat)
            for catalog in opened.values():
                with suppress(OSError):  # it is not believed any more than before
                    catalog.close(clean=False)
            await membership.leave(seats, regions)  # noqa: ASYNC102 - shielded, and it gives up
            membership.end_adoption()
            raise
        for seat, catalog in opened.items():
            catalogs.close_other(seat)
            catalog.followed = lambda: not membership.alone
            catalogs.add_own(seat, catalog)
        for region, seat in regions.items():
            catalogs.assign(region, seat)
        pool.absorb(space, slots, found)
        membership.end_adoption()

    async def _recover_aside(
        self, pool: Pool, opened: dict[int, Catalog], trusts: dict[int, Trust], regions: dict[RegionId, int]
    ) -> tuple[Space, Slots, Recovered]:
        catalogs = SeatCatalogs(opened, regions)
        while True:
            space = Space()
            for region in regions:
                space.add_region(region_of(pool.media, region))
            slots = self._slots_for(space, catalogs)
            ground = Ground(pool.media, pool.catalog, space, pool.reader, slots)
            try:
                found = await Recovery(ground, catalogs).run(trusts, self._policy)
            except (Contradiction, OSError) as error:
                give_up(opened.values(), error)
                trusts = dict.fromkeys(trusts, Trust.STALE)
                continue
            return space, slots, found
