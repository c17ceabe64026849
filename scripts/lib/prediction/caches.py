"""How many of a request's leading blocks a cache has."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

Access = Callable[[Hashable], bool]
"""Asks a cache for a block, which is there afterwards if the cache wants it; returns whether it was there before."""


def prefix_hits(access: Access, chain: Iterable[Hashable]) -> int:
    """Ask for all blocks of a chain; returns how many at its beginning were there."""
    hits, leading = 0, True
    for block in chain:
        leading = access(block) and leading
        hits += leading
    return hits
