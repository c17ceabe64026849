"""What could have been done about a recorded trace: caches of any size and policy, and what follows what. Pure.

Judged are opens to read. A file that is published is in memory then, so caches are told of it, and that is no hit.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvfs.prefetch.baselines import Arc, Baseline, Lru, S3Fifo
from kvfs.prefetch.chains import Chains
from kvfs.prefetch.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvfs.traces import Event

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Sizes of caches, of all files that are opened or published."""
POLICIES: dict[str, Callable[[int], Baseline]] = {"lru": Lru, "arc": Arc, "s3fifo": S3Fifo}
BEST = "belady"
"""Belady's choice, which knows the future and need not keep what it is asked for: nobody has more hits."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """A size of cache.

    :ivar share: of all files
    :ivar files: that it holds
    :ivar hits: share of opens that found the file there, by policy
    """

    share: float
    files: int
    hits: dict[str, float]


@dataclass(frozen=True, slots=True)
class Following:
    """What chains of blocks foretell.

    :ivar opened: blocks that were opened, each once until another one is by the same thread
    :ivar foretold: of these, those that were expected then
    :ivar expected: blocks that were expected at some time, each of which is fetched or given up again
    """

    opened: int
    foretold: int
    expected: int


Access = tuple[str, bool]
"""A file, and whether it is opened rather than published."""


def accesses(events: Iterable[Event]) -> list[Access]:
    """What caches see."""
    return [(event.name, event.what == "open") for event in events if event.what in ("open", "publish")]


def ratios(seen: Sequence[Access], shares: Iterable[float] = SHARES) -> list[Ratios]:
    """How many opens caches of these sizes would have served."""
    unique, opens = len({name for name, _ in seen}), sum(is_open for _, is_open in seen)
    found = []
    for share in shares:
        files = max(round(unique * share), 1)
        hits = {name: _hits(make(files), seen) for name, make in POLICIES.items()}
        hits[BEST] = best_hits(seen, files)
        found.append(Ratios(share, files, {name: count / max(opens, 1) for name, count in hits.items()}))
    return found


def _hits(cache: Baseline, seen: Iterable[Access]) -> int:
    return sum(cache.access(name) and is_open for name, is_open in seen)


def best_hits(seen: Sequence[Access], files: int) -> int:
    """Opens that whoever knows the future serves: what is opened latest goes first (Belady 1966)."""
    never = len(seen)
    following: dict[str, int] = {}
    nexts = []
    for number in range(len(seen) - 1, -1, -1):
        name, is_open = seen[number]
        nexts.append(following.get(name, never))
        if is_open:
            following[name] = number
    nexts.reverse()
    held: dict[str, int] = {}
    latest: list[tuple[int, str]] = []
    hits = 0
    for (name, is_open), wanted in zip(seen, nexts, strict=True):
        hits += held.pop(name, None) is not None and is_open
        if wanted < never:
            held[name] = wanted
            heapq.heappush(latest, (-wanted, name))
        while len(held) > files:
            wanted, name = heapq.heappop(latest)
            if held.get(name) == -wanted:
                del held[name]
    return hits


def distances(seen: Sequence[Access]) -> Counter[int]:
    """How many other files were used since a file was last, for each open of one that was used before: the number of opens
    by the power of two below it. An LRU cache of as many files has the hit. (Mattson 1970, with Fenwick's tree.)"""
    tree = [0] * (len(seen) + 1)
    last: dict[str, int] = {}
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

    for number, (name, is_open) in enumerate(seen, start=1):
        before = last.get(name)
        if before is not None:
            if is_open:
                between = sum_to(number - 1) - sum_to(before)
                found[between.bit_length() - 1 if between else 0] += 1
            add(before, -1)
        add(number, 1)
        last[name] = number
    return found


def following(events: Iterable[Event]) -> Following:
    """How well it is known which block comes next, from what was published and read after what. Only the past is used."""
    chains = Chains()
    streams = Streams(chains)
    threads: dict[str, int] = {}
    there: set[str] = set()
    waiting: set[object] = set()
    latest: dict[int, str] = {}
    opened = foretold = expected = 0
    for event in events:
        thread = threads.setdefault(event.reader, len(threads))
        if event.what == "publish":
            if event.before and event.block not in there and event.before != event.block:
                chains.published(event.before, event.block)
            there.add(event.block)
        elif event.what == "open" and latest.get(thread) != event.block:
            latest[thread] = event.block
            there.add(event.block)
            opened += 1
            foretold += event.block in waiting
            waiting.discard(event.block)
            streams.read(event.block, thread)
            progress = streams.wanted(event.block, thread)
            waiting -= {*progress.cancel}
            new = {one for one in progress.fetch if one in there} - waiting
            expected += len(new)
            waiting |= new
    return Following(opened, foretold, expected)
