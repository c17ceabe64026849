"""How many of a request's leading blocks a cache has; and the best that any could have."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence

from scripts.lib.prediction.traces import Asked

Access = Callable[[Hashable], bool]
"""Asks a cache for a block, which is there afterwards if the cache wants it; returns whether it was there before."""


def prefix_hits(access: Access, chain: Iterable[Hashable]) -> int:
    """Ask for all blocks of a chain; returns how many at its beginning were there."""
    hits, leading = 0, True
    for block in chain:
        leading = access(block) and leading
        hits += leading
    return hits


def belady(asked: Sequence[Asked], capacity: int) -> int:
    """Prefix hits of who knows the future and need not store what it asks for: nobody has more.

    What is wanted latest goes first (Belady 1966); of a chain, its end first.
    """
    never = len(asked)
    following: dict[Hashable, int] = {}
    nexts: list[list[int]] = []
    for number in range(len(asked) - 1, -1, -1):
        chain = asked[number].chain
        nexts.append([following.get(block, never) for block in chain])
        following.update(dict.fromkeys(chain, number))
    nexts.reverse()
    held: dict[Hashable, int] = {}
    latest: list[tuple[int, int, int]] = []
    hits = 0
    for number, request in enumerate(asked):
        hits += prefix_hits(held.__contains__, request.chain)
        for depth, (block, wanted) in enumerate(zip(request.chain, nexts[number], strict=True)):
            held.pop(block, None)
            if wanted < never:
                held[block] = wanted
                heapq.heappush(latest, (-wanted, -depth, block))
        while len(held) > capacity:
            wanted, _, block = heapq.heappop(latest)
            if held.get(block) == -wanted:
                del held[block]
    return hits
