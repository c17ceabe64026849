"""Tells evictions from losses, as far as counters allow. Pure.

The mounts count what they let go: evicted, and quarantined because its bytes were wrong. While that count stands still
nothing may disappear, so a file that was stored and is a miss, with no departure between, is lost. Where something did
depart it may have been this file: that is an eviction, not a loss, and is bounded all the same: over the whole run, no
more may be found gone than departed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a file that was just stored is not there."""

    EVICTED = "evicted"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    """A member ended meanwhile, and what it counted last is not known."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Miss:
    """A file that was stored and is not there. Times in nanoseconds."""

    name: str
    by: int
    on: int
    stored_at: int
    missed_at: int


class Departures:
    """How many objects had left the pool by when, as members' counters say, across their restarts."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._counts: list[int] = []
        self._ends: list[int] = []
        self._past = 0
        self._now: dict[int, int] = {}
        self._damaged: dict[str, list[int]] = {}

    @property
    def total(self) -> int:
        """Departures that were counted."""
        return self._past + sum(self._now.values())

    def sample(self, at: int, counts: dict[int, int], *, all_answered: bool) -> None:
        """Members' counters, read between `at` and now; of those that could be asked. What the others have counted
        before they were stopped will be seen when all answer.
        """
        self._now |= counts
        if all_answered:
            self._times.append(at)
            self._counts.append(self.total)

    def ended(self, member: int, at: int) -> None:
        """The member's process is gone, without a last word; its counter begins anew."""
        self._ends.append(at)
        self._past += self._now.pop(member, 0)

    def damaged(self, name: str, at: int) -> None:
        self._damaged.setdefault(name, []).append(at)

    def covers(self, at: int) -> bool:
        """Whether a sample was begun after this time."""
        return bool(self._times) and self._times[-1] > at

    def reason(self, miss: Miss) -> Reason:
        """Why the file is gone; when `covers(miss.missed_at)`.

        The sample before the store must be whole before it, so it is the last but one that began before.
        """
        if self._damaged.get(miss.name):
            return Reason.DAMAGED
        before = bisect_left(self._times, miss.stored_at) - 2
        after = bisect_right(self._times, miss.missed_at)
        known = self._counts[before] if before >= 0 else 0
        if self._counts[min(after, len(self._counts) - 1)] > known:
            return Reason.EVICTED
        if any(miss.stored_at <= at <= miss.missed_at for at in self._ends):
            return Reason.UNKNOWN
        return Reason.LOST

    def unexplained(self, gone: int) -> int:
        """Files found gone beyond what departed. A member that ends has not told of what it let go last; it is
        given the benefit of a few.
        """
        return max(0, gone - self.total - UNTOLD * len(self._ends))


UNTOLD = 16
"""Departures that a member may count between the last time it is asked and its end, which follows at once."""
