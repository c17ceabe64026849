"""When what is idle comes back: hazards by kind and age, and what holding it is worth. Pure.

A kind is whatever is known when something becomes idle: why the engine stopped, whether it was a first turn, how often
it was used. For each kind, and for all of them together, returns and the time that was waited for them are counted by
age. The ratio is the hazard; from it follows the Gittins index: the largest chance of a return for each second of
holding, over all times at which one may give up. What has the highest index is worth its memory most. The hazard itself
would be a bad score: it throws out what ended a second ago and will be back in five. (Gittins 1979; for caches: Lhd and
EVA rank by the same quotient.)

Each observation counts once for what it is an observation of, a session or a part of a chain, not once a byte: a few very
long contexts would else decide what is believed of all.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

RATIO = 1.6
EDGES = (0.0, *(RATIO**power for power in range(27)))
"""Ages at which the buckets begin, seconds; the last begins after 56 hours and is open."""
BUCKETS = len(EDGES)
WIDTHS = (*(upper - lower for lower, upper in pairwise(EDGES)), EDGES[-1])
"""Seconds; of the open one, what a decision reckons with."""
FEW = 30.0
"""Observations of a kind that count as much as what is known of all kinds together."""
FIRST_HAZARD = 0.01
"""Returns a second in the first bucket before anything was seen; each later one has less by `RATIO`, as in LRU."""
VERSION = 1

Kind = tuple[Hashable, ...]
"""Whatever is known when something becomes idle. To be saved, it holds only strings, numbers and booleans."""


def bucket(age: float) -> int:
    """The bucket of an age in seconds; a clock that went back counts as no age."""
    return max(bisect_right(EDGES, age) - 1, 0)


def gittins(hazards: Sequence[float]) -> list[float]:
    """The index for each bucket, returns a second, of something that has reached its beginning.

    :param hazards: returns a second, one for each bucket
    """
    chances = [-math.expm1(-hazard * width) for hazard, width in zip(hazards, WIDTHS, strict=True)]
    waits = [
        chance / hazard if hazard > 0 else width
        for chance, hazard, width in zip(chances, hazards, WIDTHS, strict=True)
    ]
    to_come = list(accumulate(reversed([*hazards[1:], 0.0]), max))[
        ::-1
    ]  # the highest hazard after each bucket
    indices = []
    for start in range(BUCKETS):
        alive, returns, waited, best = 1.0, 0.0, 0.0, 0.0
        for at in range(start, BUCKETS):
            returns += alive * chances[at]
            waited += alive * waits[at]
            alive *= 1 - chances[at]
            best = max(best, returns / waited)
            if to_come[at] <= best:  # waiting for less adds less: true at once where hazards fall
                break
        indices.append(best)
    return indices


@dataclass(slots=True)
class Histogram:
    """Returns and seconds waited, by age.

    :ivar over: stays that ended in each bucket, whose time in those before it is not in `waited` yet
    """

    returns: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    waited: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    over: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)

    def returned(self, age: float, weight: float) -> None:
        at = bucket(age)
        self.returns[at] += weight
        self.waited[at] += weight * max(age - EDGES[at], 0.0)

    def passed(self, at: int, weight: float) -> None:
        self.waited[at] += weight * WIDTHS[at]

    def settle(self) -> None:
        """Bring `waited` up to date."""
        beyond = 0.0
        for at in reversed(range(BUCKETS)):
            self.waited[at] += beyond * WIDTHS[at]
            beyond += self.over[at]
        self.over = [0.0] * BUCKETS

    def fade(self, factor: float) -> None:
        self.settle()
        self.returns = [value * factor for value in self.returns]
        self.waited = [value * factor for value in self.waited]


class Returns:
    """What was learnt of all kinds.

    Nothing is recorded for a stay that is neither over nor past a bucket's end, so what is still waiting biases nothing
    but the bucket in which it is.
    """

    def __init__(self) -> None:
        self._all = Histogram()
        self._kinds: dict[Kind, Histogram] = {}

    def returned(self, kind: Kind, age: float, weight: float = 1.0) -> None:
        """Something came back.

        :param age: seconds since it became idle
        :param weight: the part of it that came back
        """
        self._of(kind).returned(age, weight)
        self._all.returned(age, weight)

    def passed(self, kind: Kind, at: int, weight: float = 1.0) -> None:
        """Something, or a part of it, stayed away from the beginning to the end of a bucket."""
        self._of(kind).passed(at, weight)
        self._all.passed(at, weight)

    def stayed(self, kind: Kind, age: float, weight: float = 1.0) -> None:
        """Something stayed away for so long: all at once what `passed` says of each bucket that is over."""
        at = bucket(age)
        self._of(kind).over[at] += weight
        self._all.over[at] += weight

    def hazards(self, kind: Kind) -> list[float]:
        """Returns a second, by age; what is not known of the kind is taken from all kinds, in proportion."""
        common = self._common()
        seen = self._kinds.get(kind)
        if seen is None:
            return common
        seen.settle()
        expected = sum(hazard * waited for hazard, waited in zip(common, seen.waited, strict=True))
        ratio = (sum(seen.returns) + FEW / 10) / (expected + FEW / 10)
        return [
            (returns + FEW * width * ratio * hazard) / (waited + FEW * width)
            for returns, waited, hazard, width in zip(seen.returns, seen.waited, common, WIDTHS, strict=True)
        ]

    def indices(self, kind: Kind) -> list[float]:
        """What holding one of this kind is worth, by bucket of its age: returns a second."""
        return gittins(self.hazards(kind))

    def fade(self, factor: float) -> None:
        """Let what was learnt count for less: once a day by a half, say.

        :raises ValueError: a factor not within 0 and 1
        """
        if not 0 <= factor <= 1:
            raise ValueError(f"a factor within 0 and 1, not {factor}")
        for histogram in (self._all, *self._kinds.values()):
            histogram.fade(factor)

    def as_json(self) -> dict[str, Any]:
        """All that was learnt, as plain values; `from_json` takes it back."""
        for histogram in (self._all, *self._kinds.values()):
            histogram.settle()
        return {
            "version": VERSION,
            "all": [self._all.returns, self._all.waited],
            "kinds": [[list(kind), seen.returns, seen.waited] for kind, seen in self._kinds.items()],
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Returns:
        """:raises ValueError: not what `as_json` gave, or of another version: begin anew"""
        returns = cls()
        try:
            if saved["version"] != VERSION:
                raise ValueError(f"version {saved['version']} of what was learnt of returns, not {VERSION}")
            returns._all = _histogram(*saved["all"])
            returns._kinds = {tuple(kind): _histogram(*parts) for kind, *parts in saved["kinds"]}
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not what was learnt of returns: {error!r}") from error
        return returns

    def _of(self, kind: Kind) -> Histogram:
        seen = self._kinds.get(kind)
        if seen is None:
            seen = self._kinds[kind] = Histogram()
        return seen

    def _common(self) -> list[float]:
        self._all.settle()
        hazards: list[float] = []
        before = FIRST_HAZARD * RATIO
        for returns, waited, width in zip(self._all.returns, self._all.waited, WIDTHS, strict=True):
            before = (returns + before / RATIO * FEW * width) / (waited + FEW * width)
            hazards.append(before)
        return hazards


def _histogram(returns: Sequence[float], waited: Sequence[float]) -> Histogram:
    if len(returns) != BUCKETS or len(waited) != BUCKETS:
        raise ValueError(f"histograms of {len(returns)} and {len(waited)} buckets, not {BUCKETS}")
    values = [float(value) for value in (*returns, *waited)]
    if not all(0 <= value < math.inf for value in values):
        raise ValueError("a histogram with what is no number of returns or seconds")
    return Histogram(values[:BUCKETS], values[BUCKETS:])
