"""What a pool counts, and what it says of its room."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from blockdev.parts import Parts
from blockdev.reading import ReadCounters
from blockdev.slots import RoomCounters
from blockdev.space import SpaceTotals
from blockdev.types import DeviceNo


@dataclass(slots=True)
class PoolCounters:
    """Events since the pool was opened."""

    published: int = 0
    published_bytes: int = 0
    removed: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    evicted_unread: int = 0
    """Evicted without having been used since they were stored or the pool was opened."""
    evicted_ahead: int = 0
    """Evicted before anybody waited for the room."""
    evicted_temporary: int = 0
    """Evicted because they still had a temporary file's name long after they were written."""
    quarantined: int = 0
    """Objects dropped because their bytes were wrong."""


class RoomTotals(NamedTuple):
    """Payload bytes of a pool."""

    total: int
    used: int
    """Held by objects."""
    held: int
    """Reserved by writers or pinned by readers: what cannot be evicted now."""


class LimboTotals(NamedTuple):
    """Freed slots that may not be used again yet, and what that cost."""

    slots: int
    bytes: int
    """Of payload."""
    waits: int
    """Times a writer waited for them: back-pressure."""
    waited_seconds: float
    """In all of these waits."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot; counters are since the pool was opened."""

    pool: PoolCounters
    reads: ReadCounters
    room: RoomCounters
    limbo: LimboTotals
    space: SpaceTotals
    totals: RoomTotals
    objects: int
    """Files, directories and symlinks."""
    unreachable_devices: tuple[DeviceNo, ...]
    """Missing or lost."""
    eviction: dict[str, Any]
    """What the policy tells of itself."""


class Figures:
    """Sums up a pool, for those who ask and for the other members."""

    def __init__(self, parts: Parts, counters: PoolCounters) -> None:
        self._superblock = parts.superblock
        self._media = parts.media
        self._catalogs = parts.catalog
        self._space = parts.space
        self._room = parts.room
        self._reader = parts.reader
        self._versions = parts.versions
        self._policy = parts.policy
        self._board = None if parts.membership is None else parts.membership.board
        self._counters = counters

    def show(self) -> None:
        """Let the other members see what we have."""
        if self._board is not None:
            used = self._space.totals().live
            self._board.say(regions=self._catalogs.regions, used=used, held=self._held)

    def totals(self) -> RoomTotals:
        """Payload bytes; regions not in use yet count as free."""
        space = self._space.totals()
        others = self._board.figures().values() if self._board is not None else ()
        regions = space.unused_regions + sum(figures.regions for figures in others)
        return RoomTotals(
            total=space.total + regions * self._superblock.region_size,
            used=space.live + sum(figures.used for figures in others),
            held=self._held + sum(figures.held for figures in others),
        )

    @property
    def _held(self) -> int:
        space = self._space.totals()
        return min(space.live, self._versions.pins.bytes) + space.reserved

    def _limbo_totals(self) -> LimboTotals:
        space, counters = self._space.totals(), self._room.limbo.counters
        slots = sum(totals.limbo for totals in space.classes)
        return LimboTotals(slots, space.limbo, counters.waits, counters.seconds)

    def statistics(self) -> PoolStatistics:
        """A snapshot of counters and sums."""
        return PoolStatistics(
            pool=replace(self._counters),
            reads=replace(self._reader.counters),
            room=replace(self._room.counters),
            limbo=self._limbo_totals(),
            space=self._space.totals(),
            totals=self.totals(),
            objects=self._catalogs.count,
            unreachable_devices=tuple(
                DeviceNo(number)
                for number in range(len(self._superblock.devices))
                if not self._media.available(DeviceNo(number))
            ),
            eviction=self._policy.figures(),
        )
