"""Requests that an engine has told of: what they will read is fetched, and what stays is what will come back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from kvfs.cache.folders import Finder
from kvfs.cache.keys import Place
from kvfs.errors import BadKey
from kvfs.prefetch.keeping import Keeper, Request
from kvfs.prefetch.planner import Source
from kvfs.prefetch.returns import Returns

if TYPE_CHECKING:
    from blockdev.pool import Pool
    from blockdev.types import SlotRef
    from kvfs.frames import FrameCache
    from kvfs.prefetcher import Prefetcher

HINTED = 0.5
"""The chance that what is hinted at is wanted, before anything is known."""


class _Running(NamedTuple):
    kept: Request
    places: list[Place]


class Requests:
    """Those that have begun and not ended, and what was learnt of those before.

    Which extents leave the DRAM tier first is decided by `prefetch.keeping`: by how likely the context is to come back, given
    why earlier ones ended and how long they stayed away; where that would have served less than the least recently used, it
    is that.
    """

    def __init__(self, pool: Pool, frames: FrameCache, prefetcher: Prefetcher) -> None:
        self._pool = pool
        self._frames = frames
        self._prefetcher = prefetcher
        self._keeper = Keeper(frames.count, Returns(), self._drop)
        self._running: dict[Hashable, _Running] = {}

    def begin(self, request: Hashable, places: Sequence[Place], deadline: float) -> int:
        """Fetch what is there of the beginning of a chain; returns how many blocks that are.

        :raises BadKey: the request has begun already
        """
        if request in self._running:
            raise BadKey(f"request {request!r} has begun already: end it first")
        found = self._fetch(places, Source.ARRIVED, 1.0, deadline)
        self._running[request] = _Running(self._keeper.begin(places, trio.current_time()), [*places])
        return found

    def end(self, request: Hashable, stop_reason: str) -> None:
        """Fetch nothing more for it. :raises BadKey: it has not begun"""
        running = self._running.pop(request, None)
        if running is None:
            raise BadKey(f"request {request!r} has not begun, or has ended")
        wanted = {place for other in self._running.values() for place in other.places}
        self._prefetcher.cancel(place for place in running.places if place not in wanted)
        self._keeper.end(running.kept, trio.current_time(), stop_reason)

    def hint(self, places: Sequence[Place]) -> None:
        """They may be wanted: they are fetched if nothing better is to do, and evicted later."""
        finder = Finder(self._pool)
        for place in places:
            record = finder.find(place)
            if record is not None:
                self._pool.touch(record)
                self._prefetcher.want(place, [record], Source.RETURN, HINTED)

    def _fetch(self, places: Sequence[Place], source: Source, chance: float, deadline: float) -> int:
        finder = Finder(self._pool)
        for number, place in enumerate(places):
            record = finder.find(place)
            if record is None:
                return number
            self._pool.touch(record)
            self._prefetcher.want(place, [record], source, chance, deadline)
        return len(places)

    def _drop(self, block: Hashable) -> None:
        self._frames.demote(self._slots(block))

    def _slots(self, block: Hashable) -> list[SlotRef]:
        assert isinstance(block, Place)
        record = Finder(self._pool).find(block)
        return [] if record is None else [extent.ref for extent in record.extents if not record.indexed]
