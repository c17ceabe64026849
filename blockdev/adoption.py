"""Taking over what members that ended had: their seats, regions and catalogues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from blockdev.catalog import Catalog, Trust
from blockdev.catalog_upkeep import begin_sessions, give_up
from blockdev.eviction import Policy
from blockdev.ground import Ground, region_of
from blockdev.membership import Membership
from blockdev.pool import Pool
from blockdev.recovered import Contradiction, Recovered
from blockdev.recovery import Recovery
from blockdev.slots import Slots
from blockdev.space import Space
from blockdev.types import RegionId

log = logging.getLogger(__name__)


class Adoption:
    """Satisfies `follow.Adopter`.

    :param boot_id: names this boot of the system
    :param open_catalog: opens a seat's catalogue, and says how far it can be believed; given the superblocks' sequences
    :param slots_for: the slots of a space, for whoever frees them in this catalogue's name
    """

    def __init__(
        self,
        membership: Membership,
        policy: Policy,
        *,
        boot_id: str,
        open_catalog: Callable[[int, dict[UUID, int]], tuple[Catalog, Trust]],
        slots_for: Callable[[Space, Catalog], Slots],
    ) -> None:
        self._membership = membership
        self._policy = policy
        self._boot_id = boot_id
        self._open_catalog = open_catalog
        self._slots_for = slots_for

    async def adopt(self, pool: Pool) -> list[int]:
        """Take over the seats of members that ended; returns them.

        Until it is done their objects are as another member's: what they have is recovered aside.

        :raises BlockError, OSError:
        """
        leases = self._membership.leases
        before = set(leases.seats)
        self._membership.take_free_seats(pool.media)
        adopted = [seat for seat in leases.seats if seat not in before]
        for seat in adopted:
            log.info("taking over what member %d of pool %s had", seat, pool.name)
            await self._adopt_one(pool, seat)
        return adopted

    async def _adopt_one(self, pool: Pool, seat: int) -> None:
        media, catalogs, membership = pool.media, pool.catalog, self._membership
        await media.reload_headers()
        regions = await membership.take_regions_of(seat, media)
        catalogs.close_other(seat)
        sequences = {a.superblock.device: a.superblock.sequence for a in media.devices.values()}
        catalog, trust = self._open_catalog(seat, sequences)
        catalogs.add_other(seat, catalog)
        try:
            space, slots, found = await self._recover_aside(pool, catalog, trust, regions)
            begin_sessions(media, [catalog], self._boot_id)
        except BaseException:  # the next turn tries again
            catalogs.close_other(seat)
            membership.leave(seat, regions)
            raise
        catalog.followed = lambda: not membership.alone
        catalogs.add_own(seat, catalog)
        for region in regions:
            catalogs.assign(region, seat)
        pool.absorb(space, slots, found)

    async def _recover_aside(
        self, pool: Pool, catalog: Catalog, trust: Trust, regions: list[RegionId]
    ) -> tuple[Space, Slots, Recovered]:
        while True:
            space = Space()
            for region in regions:
                space.add_region(region_of(pool.media, region))
            slots = self._slots_for(space, catalog)
            ground = Ground(pool.media, pool.catalog, space, pool.reader, slots)
            try:
                found = await Recovery(ground, catalog, regions).run(trust, self._policy)
            except (Contradiction, OSError) as error:
                give_up(catalog, error)
                trust = Trust.STALE
                continue
            return space, slots, found
