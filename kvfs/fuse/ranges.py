"""Which bytes of something have been written. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """A set of byte positions, kept as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(start, stop) in order."""
        return zip(self._starts, self._stops, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start: int, stop: int) -> None:
        """Add `[start, stop)`; nothing if that is empty."""
        if start >= stop:
            return
        # What overlaps or touches the new range becomes part of it.
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def cut(self, end: int) -> None:
        """Remove everything from `end` on."""
        keep = bisect_left(self._starts, end)
        del self._starts[keep:]
        del self._stops[keep:]
        if keep and self._stops[-1] > end:
            self._stops[-1] = end

    def covers(self, start: int, stop: int) -> bool:
        """Whether all of `[start, stop)` is in the set."""
        if start >= stop:
            return True
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and self._stops[at] >= stop

    @property
    def prefix(self) -> int:
        """How many positions from 0 on are in the set without a gap."""
        return self._stops[0] if self._starts and not self._starts[0] else 0

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of `[start, stop)` that are not in the set, in order."""
        found = []
        at = bisect_right(self._stops, start)
        while start < stop:
            begin = self._starts[at] if at < len(self._starts) else stop
            if begin > start:
                found.append((start, min(begin, stop)))
            if at >= len(self._starts):
                break
            start = max(start, self._stops[at])
            at += 1
        return found
