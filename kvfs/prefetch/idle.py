"""What is idle, in the order in which it may be let go: cheapest first. Pure.

All that became idle in one bucket of age, is of one kind and of about the same size is worth the same, so to rank is to order buckets, of which
there are hundreds, not entries, of which there may be millions. Entries move from bucket to bucket as they age, oldest
first, so a queue for each bucket is enough. Entries that were let go are still waited for: who learns only from what it
kept would believe that nothing ever comes back late.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvfs.prefetch.returns import BUCKETS, EDGES, Kind, Returns

T = TypeVar("T")
LEAST = 1e-6
"""A smaller part is nothing: parts are added up as floating-point numbers."""
AGAIN = 512
"""So many things become idle before the order of the buckets is worked out again."""


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """Something idle.

    :ivar magnitude: the binary logarithm of its size
    :ivar since: when it became idle, seconds on the caller's clock
    :ivar left: the part of it that has not come back
    """

    what: T
    kind: Kind
    magnitude: int
    since: float
    left: float = 1.0
    bucket: int = 0


@dataclass(slots=True)
class _Waiting(Generic[T]):
    """Entries of a kind and age: all of them, and those that may be let go; the oldest in front."""

    all: deque[Entry[T]] = field(default_factory=deque)
    held: dict[Entry[T], None] = field(default_factory=dict)


class Idle(Generic[T]):
    """What is idle. Times never go back; if the clock does, nothing ages meanwhile."""

    def __init__(self, returns: Returns) -> None:
        self._returns = returns
        self._kinds: dict[tuple[Kind, int], list[_Waiting[T]]] = {}
        self._due: list[tuple[float, int, list[_Waiting[T]], int]] = []
        """When the first of a queue moves on, for each that has any."""
        self._watched = 0
        self._order: list[_Waiting[T]] = []
        self._added = 0

    def add(self, what: T, kind: Kind, now: float, size: float = 1.0) -> Entry[T]:
        """Something became idle, and is held.

        :param size: what it costs to hold it for what its return is worth: bytes, if all returns are worth the same; 1, if
            they are worth what they cost
        """
        entry = Entry(what, kind, math.frexp(size)[1], now)
        waiting = self._kinds.get((kind, entry.magnitude))
        if waiting is None:
            waiting = self._kinds[kind, entry.magnitude] = [_Waiting() for _ in range(BUCKETS)]
            self._added = 0
        self._append(entry, waiting, 0)
        waiting[0].held[entry] = None
        if self._added % AGAIN == 0:
            self.rank()
        self._added += 1
        return entry

    def let_go(self, entry: Entry[T]) -> None:
        """It is held no longer; it may come back all the same."""
        self._kinds[entry.kind, entry.magnitude][entry.bucket].held.pop(entry, None)

    def returned(self, entry: Entry[T], now: float, part: float = 1.0) -> None:
        """A part of it was wanted again, and is not idle any more."""
        self._returns.returned(entry.kind, now - entry.since, part)
        entry.left -= part

    def age(self, now: float) -> None:
        """Time has passed: what is old enough moves on. Costs nothing where nothing is."""
        due = self._due
        while due and due[0][0] <= now:
            _, _, queues, at = heapq.heappop(due)
            entries = queues[at].all
            while entries and entries[0].since + EDGES[at + 1] <= now:
                self._move(entries.popleft(), queues, at)
            if entries:
                self._watch(entries[0], queues, at)

    def cheapest(self) -> Iterator[Entry[T]]:
        """What is held, least worth holding first, the oldest first of what is worth the same.

        Entries may be let go meanwhile.
        """
        for waiting in self._order:
            if waiting.held:
                yield from list(waiting.held)

    def rank(self) -> None:
        """Put kinds and ages in order, by what was learnt until now. Done by itself every `AGAIN` times."""
        indices = {kind: self._returns.indices(kind) for kind, _ in self._kinds}
        ranked = [
            (math.ldexp(worth, -magnitude), -at, number, waiting)
            for number, ((kind, magnitude), queues) in enumerate(self._kinds.items())
            for at, (worth, waiting) in enumerate(zip(indices[kind], queues, strict=True))
        ]
        self._order = [waiting for *_, waiting in sorted(ranked, key=lambda item: item[:3])]

    def worth(self, entry: Entry[T]) -> float:
        """Returns a second that may be expected for holding it, for each unit of its size."""
        return math.ldexp(self._returns.indices(entry.kind)[entry.bucket], -entry.magnitude)

    def _move(self, entry: Entry[T], queues: list[_Waiting[T]], at: int) -> None:
        here, there = queues[at], queues[at + 1]
        if entry in here.held:
            del here.held[entry]
            there.held[entry] = None
        elif entry.left < LEAST:
            return
        entry.bucket = at + 1
        self._append(entry, queues, at + 1)
        if entry.left >= LEAST:
            self._returns.passed(entry.kind, at, entry.left)

    def _append(self, entry: Entry[T], queues: list[_Waiting[T]], at: int) -> None:
        if at + 1 == BUCKETS:
            return
        if not queues[at].all:
            self._watch(entry, queues, at)
        queues[at].all.append(entry)

    def _watch(self, first: Entry[T], queues: list[_Waiting[T]], at: int) -> None:
        self._watched += 1  # makes ties comparable
        heapq.heappush(self._due, (first.since + EDGES[at + 1], self._watched, queues, at))
