"""Which regions a member may write to."""

from __future__ import annotations

from typing import Protocol

from blockdev.types import RegionId


class Leasing(Protocol):
    """The regions of a pool, among its members."""

    @property
    def alone(self) -> bool:
        """Whether the pool has no other members now."""

    def is_ours(self, region: RegionId) -> bool:
        """Whether we write to a region, or did until it was lost."""

    def lease(self, region: RegionId) -> bool:
        """Become a region's writer; False if another member is. Nobody may have written to it just before: look."""

    def release(self, region: RegionId) -> None:
        """Write to a region no more."""

    def wish(self) -> None:
        """Ask the others for a region, if they have more."""

    def free(self) -> list[RegionId]:
        """Regions that are nobody's and that we did not know to be; they may have been formatted since."""


class Everything:
    """The leases of whoever is alone with a pool: every region is ours."""

    alone = True

    def is_ours(self, region: RegionId) -> bool:
        return True

    def lease(self, region: RegionId) -> bool:
        return True

    def release(self, region: RegionId) -> None:
        pass

    def wish(self) -> None:
        pass

    def free(self) -> list[RegionId]:
        return []
