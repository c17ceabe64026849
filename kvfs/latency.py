"""How long operations take: histograms with fixed bounds, cheap enough for every read."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BOUNDS = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets in seconds, from a read out of memory to a device's deadline; the last is open."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A snapshot of a Stopwatch.

    :ivar bounds: upper bounds of the buckets, seconds
    :ivar counts: operations per bucket, one more than bounds: the last took longer than all of them
    :ivar sum: seconds of all operations together
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Stopwatch:
    """Counts operations by how long they took.

    :param clock: seconds, never going back
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    @contextmanager
    def time(self) -> Iterator[None]:
        """Take the time of a block, also of one that fails: a time-out must not look fast."""
        start = self._clock()
        try:
            yield
        finally:
            self.add(self._clock() - start)

    def add(self, seconds: float) -> None:
        """Count one operation."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def statistics(self) -> Histogram:
        """A frozen snapshot."""
        return Histogram(BOUNDS, tuple(self._counts), self._sum)
