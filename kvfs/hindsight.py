"""What caches of any size and policy would have had of what a trace asks for. Pure.

Judged is what is asked for. A file that is published is in memory then, so caches are told of it, and that is no hit.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvfs.own_caches import MemoryCache, PoolCache, ToldCache
from kvfs.prefetch.baselines import Arc, Baseline, LeafFirst, Lru, S3Fifo

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from kvfs.uses import Use, Uses

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Sizes of caches, of all that is different in a trace."""
Cache = Callable[["Use"], int]
"""Asks a cache for a chain, and returns how much of its beginning was there, in the unit of sizes."""
BEST = "belady"
"""Belady's choice, which knows the future, need not keep what it is asked for and may keep a part: nobody serves more, but
for who fetches what he was not asked for."""
FOR_REQUESTS = "ours_told"
"""This one needs requests: files do not tell when one is over."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """A size of cache.

    :ivar share: of all that is different
    :ivar size: that it holds, in the unit of the trace
    :ivar hits: the part of what was asked for that was there, by policy
    """

    share: float
    size: int
    hits: dict[str, float]

    @property
    def percent(self) -> str:
        """The share, for people."""
        return f"{100 * self.share:.3g}%"


def _one_by_one(cache: Baseline) -> Cache:
    def use(use: Use) -> int:
        served, leads = 0, True
        for name in use.chain:
            leads = cache.access(name, use.size) and leads
            served += use.size * leads
        return served

    return use


def _leaves_first(capacity: int) -> Cache:
    """Of a chain that does not fit, the beginning stays: what follows is not even tried."""
    cache = LeafFirst(capacity)

    def use(use: Use) -> int:
        served, leads = 0, True
        for name, block, before in use.parts():
            leads = cache.access(name, use.size, block, before) and leads
            served += use.size * leads
            if name not in cache:
                break
        return served

    return use


POLICIES: dict[str, Callable[[int], Cache]] = {
    "lru": lambda capacity: _one_by_one(Lru(capacity)),
    "leaf_lru": _leaves_first,
    "arc": lambda capacity: _one_by_one(Arc(capacity)),
    "s3fifo": lambda capacity: _one_by_one(S3Fifo(capacity)),
    "ours": lambda capacity: PoolCache(capacity).use,
    "ours_ahead": lambda capacity: MemoryCache(capacity).use,
    FOR_REQUESTS: lambda capacity: ToldCache(capacity).use,
}
NAMES = (*POLICIES, BEST)


def policies_for(uses: Uses) -> tuple[str, ...]:
    """Those that can be judged by a trace."""
    return tuple(name for name in NAMES if name != FOR_REQUESTS or uses.unit == "blocks")


def ratios(
    uses: Uses,
    shares: Sequence[float] = SHARES,
    policies: Sequence[str] | None = None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Ratios]:
    """How much of what is asked for caches of these sizes would have served.

    :param policies: some of `policies_for`, which are all by default
    :param told: called with how many caches have been judged, and how many there are
    """
    names = policies_for(uses) if policies is None else policies
    total, wanted = uses.total, max(uses.wanted, 1)
    found = []
    for at, share in enumerate(shares):
        size = max(round(total * share), 1)
        hits: dict[str, float] = {}
        for number, name in enumerate(names):
            hits[name] = _served(name, uses.each, size) / wanted
            told(at * len(names) + number + 1, len(shares) * len(names))
        found.append(Ratios(share, size, hits))
    return found


def _served(name: str, uses: Sequence[Use], size: int) -> int:
    if name == BEST:
        return best(uses, size)
    cache = POLICIES[name](size)
    return sum(cache(use) * use.wanted for use in uses)


def best(uses: Sequence[Use], capacity: int) -> int:
    """What whoever knows the future serves: what is wanted latest goes first (Belady 1966), of a chain its end.

    Where sizes differ, whole files are a problem that nobody solves in time; so of the last one a part may stay. That is
    Belady's choice among single bytes, and no choice of whole files serves more of them.
    """
    held: dict[Hashable, _Held] = {}
    latest: list[tuple[int, int, Hashable]] = []
    served = used = 0
    for use, nexts in zip(uses, _nexts(uses), strict=True):
        if use.wanted:
            served += _leading(use, held)
        for depth, (name, wanted) in enumerate(zip(use.chain, nexts, strict=True)):
            before = held.pop(name, None)
            used -= 0 if before is None else before.size
            if wanted < len(uses):
                held[name] = _Held(use.size, wanted)
                used += use.size
                heapq.heappush(latest, (-wanted, -depth, name))
        while used > capacity:
            wanted, _, name = latest[0]
            last = held.get(name)
            if last is None or last.wanted != -wanted:
                heapq.heappop(latest)
                continue
            gone = min(last.size, used - capacity)
            used -= gone
            last.size -= gone
            if not last.size:
                del held[name]
    return served


@dataclass(slots=True)
class _Held:
    """:ivar wanted: the number of the use that wants it next"""

    size: int
    wanted: int


def _nexts(uses: Sequence[Use]) -> list[list[int]]:
    """For each use and each of its chain, the number of the next use that wants this version; as many as there are, if none."""
    never = len(uses)
    following: dict[Hashable, int] = {}
    nexts: list[list[int]] = []
    for number in range(never - 1, -1, -1):
        use = uses[number]
        nexts.append([following.get(name, never) for name in use.chain])
        following.update(dict.fromkeys(use.chain, number if use.wanted else never))
    nexts.reverse()
    return nexts


def _leading(use: Use, held: dict[Hashable, _Held]) -> int:
    served = 0
    for name in use.chain:
        there = held.get(name)
        served += 0 if there is None else there.size
        if there is None or there.size < use.size:
            break
    return served


def distances(uses: Iterable[Use]) -> Counter[int]:
    """How much else was used since something was last, each time that it is asked for again: how often, by the power of two
    below it. An LRU cache that has room for that and it has the hit. (Mattson 1970, with Fenwick's tree.)"""
    seen = [(name, use.size, use.wanted) for use in uses for name in use.chain]
    tree = [0] * (len(seen) + 1)
    last: dict[Hashable, tuple[int, int]] = {}
    found: Counter[int] = Counter()

    def add(at: int, what: int) -> None:
        while at < len(tree):
            tree[at] += what
            at += at & -at

    def sum_to(at: int) -> int:
        total = 0
        while at:
            total += tree[at]
            at -= at & -at
        return total

    for number, (name, size, wanted) in enumerate(seen, start=1):
        before = last.get(name)
        if before is not None:
            at, held = before
            if wanted:
                between = sum_to(number - 1) - sum_to(at)
                found[between.bit_length() - 1 if between else 0] += 1
            add(at, -held)
        add(number, size)
        last[name] = (number, size)
    return found
