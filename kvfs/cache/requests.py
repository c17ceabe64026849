"""Requests that an engine has told of: what they will read is fetched, and what stays is what will come back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import trio

from kvfs.cache.folders import Finder
from kvfs.cache.keys import Place
from kvfs.errors import BadAttention, BadKey, NoNumpy
from kvfs.prefetch.keeping import Keeper, Request
from kvfs.prefetch.planner import Source

if TYPE_CHECKING:
    from blockdev.pool import Pool
    from blockdev.types import Descriptor, SlotRef
    from kvfs.frames import FrameCache
    from kvfs.prefetch.contexts import Context, Contexts
    from kvfs.prefetch.observation import Observation
    from kvfs.prefetch.returns import Returns
    from kvfs.prefetcher import Prefetcher

HINTED = 0.5
"""The chance that what is hinted at is wanted, before anything is known."""


Mode = Literal["dense", "sparse"]
"""Whether attention reads every block of a context, or is content with some."""
BLOCK = 64
"""Tokens of a block, by default."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a request reads its context.

    :ivar budget: in sparse mode, the share of the blocks of each layer that is read
    :ivar block: tokens of a block

    :raises BadAttention: a budget that is no share, or not one for this mode
    """

    mode: Mode = "dense"
    budget: float | None = None
    block: int = BLOCK

    def __post_init__(self) -> None:
        if self.mode not in ("dense", "sparse"):
            raise BadAttention(f"mode {self.mode!r} is neither 'dense' nor 'sparse'")
        if self.is_sparse and (self.budget is None or not 0 < self.budget <= 1):
            raise BadAttention(
                f"budget {self.budget}: sparse mode needs the share of blocks to read, above 0 and at most 1"
            )
        if not self.is_sparse and self.budget is not None:
            raise BadAttention("a budget is for sparse mode: in dense mode everything is read")
        if self.block < 1:
            raise BadAttention(f"a block of {self.block} tokens: give 1 or more")

    @property
    def is_sparse(self) -> bool:
        return self.mode == "sparse"


@dataclass(slots=True)
class _Running:
    """
    :ivar places: of each layer group, its blocks
    :ivar context: what is known of its attention, if anything is or must be
    """

    kept: Request
    places: list[list[Place]]
    reading: Reading
    context: Context | None


class Requests:
    """Those that have begun and not ended, and what was learnt of those before.

    Which extents leave the DRAM tier first is decided by `prefetch.keeping`: by how likely the context is to come back, given
    why earlier ones ended and how long they stayed away; where that would have served less than the least recently used, it
    is that.
    """

    def __init__(self, pool: Pool, frames: FrameCache, prefetcher: Prefetcher, returns: Returns) -> None:
        self._pool = pool
        self._frames = frames
        self._prefetcher = prefetcher
        self._keeper = Keeper(frames.count, returns, self._drop)
        self._running: dict[Hashable, _Running] = {}
        self._contexts: Contexts | None = None
        """There once somebody speaks of attention: who does not needs no numpy."""

    def begin(
        self, request: Hashable, groups: Sequence[Sequence[Place]], deadline: float, reading: Reading
    ) -> int:
        """Fetch what is there of the beginning of a chain, and will be read, group after group; returns how many blocks are there
        in all groups.

        :param groups: for each layer group, the same blocks
        :raises BadKey: the request has begun already, or a group has more blocks than another
        :raises NoNumpy: it is to be read in sparse mode
        """
        if request in self._running:
            raise BadKey(f"request {request!r} has begun already: end it first")
        if len({len(places) for places in groups}) > 1:
            raise BadKey(
                f"groups of {', '.join(str(len(places)) for places in groups)} blocks: each needs a key for every block"
            )
        if reading.is_sparse:
            self._need_contexts()
        context = None if self._contexts is None else self._contexts.begin(groups[0], reading.block)
        rows = self._there([*zip(*groups, strict=True)])
        for group, places in enumerate(groups):
            chosen = _chosen(context, reading, group, len(rows)) if reading.is_sparse else range(len(rows))
            for number in chosen:
                record = rows[number][group]
                self._prefetcher.want(places[number], [record], Source.ARRIVED, 1.0, deadline)
        kept = self._keeper.begin(
            [place for row in zip(*groups, strict=True) for place in row], trio.current_time()
        )
        self._running[request] = _Running(kept, [[*places] for places in groups], reading, context)
        return len(rows)

    def attend(self, request: Hashable, group: int, said: Observation) -> None:
        """Note what attention has read.

        :raises BadKey: the request has not begun
        :raises BadAttention: it does not fit; nothing has changed then
        """
        running = self._of(request)
        contexts = self._need_contexts()
        context = running.context or contexts.begin(running.places[0], running.reading.block)
        running.context = context
        context.attend(group, said)

    def choose(self, request: Hashable, group: int, blocks: int | None = None) -> list[int]:
        """Which of the first so many blocks of a layer group to read, the most wanted first; of all that it began with, by default.

        :raises BadKey: the request has not begun
        """
        running = self._of(request)
        count = len(running.places[0]) if blocks is None else blocks
        return _chosen(running.context, running.reading, group, count)

    def end(self, request: Hashable, stop_reason: str) -> None:
        """Fetch nothing more for it. :raises BadKey: it has not begun"""
        running = self._of(request)
        del self._running[request]
        if running.context is not None:
            self._need_contexts().end(running.places[0], running.context)
        wanted = {place for other in self._running.values() for places in other.places for place in places}
        mine = (place for places in running.places for place in places)
        self._prefetcher.cancel(place for place in mine if place not in wanted)
        self._keeper.end(running.kept, trio.current_time(), stop_reason)

    def hint(self, places: Sequence[Place]) -> None:
        """They may be wanted: they are fetched if nothing better is to do, and evicted later."""
        finder = Finder(self._pool)
        for place in places:
            record = finder.find(place)
            if record is not None:
                self._pool.touch(record)
                self._prefetcher.want(place, [record], Source.RETURN, HINTED)

    def _of(self, request: Hashable) -> _Running:
        running = self._running.get(request)
        if running is None:
            raise BadKey(f"request {request!r} has not begun, or has ended")
        return running

    def _there(self, rows: Sequence[Sequence[Place]]) -> list[list[Descriptor]]:
        """What is there of the beginning of a chain, of which a block is there with all its groups; it is evicted later."""
        finder, found = Finder(self._pool), []
        for places in rows:
            records = [record for record in map(finder.find, places) if record is not None]
            if len(records) < len(places):
                break
            for record in records:
                self._pool.touch(record)
            found.append(records)
        return found

    def _need_contexts(self) -> Contexts:
        if self._contexts is None:
            try:
                from kvfs.prefetch.contexts import Contexts  # noqa: PLC0415 - needs numpy, which others do without
            except ImportError:
                raise NoNumpy("attention needs numpy: pip install 'kvfs[attention]'") from None
            self._contexts = Contexts()
        return self._contexts

    def _drop(self, block: Hashable) -> None:
        self._frames.demote(self._slots(block))

    def _slots(self, block: Hashable) -> list[SlotRef]:
        assert isinstance(block, Place)
        record = Finder(self._pool).find(block)
        return [] if record is None else [extent.ref for extent in record.extents if not record.indexed]


def _chosen(context: Context | None, reading: Reading, group: int, blocks: int) -> list[int]:
    """Which of the first so many blocks a request reads, the most wanted first."""
    if context is None:
        return [*range(blocks)]
    return context.choose(group, blocks, 1.0 if reading.budget is None else reading.budget)
