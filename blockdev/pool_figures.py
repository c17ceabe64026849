"""What a pool counts, and what it says of its room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from blockdev.reading import ReadCounters
from blockdev.room import RoomCounters
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
