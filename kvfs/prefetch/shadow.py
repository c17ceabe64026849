"""What a cache of the same size would have had that lets go the least recently used, leaves first; on a sample of blocks. Pure.

A block is in the sample if its key ends in enough zero bits. All of its uses are then seen, and none of the others', so the
sample is a workload of its own, on a cache of as small a part of the size (Waldspurger et al., Shards, 2015). When more
than `LIMIT` blocks of the sample are held, the sample is halved: memory is bounded, whatever the pool's size.

What was let go is remembered for a while. When it is stored anew, it was missed.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from kvfs.prefetch.keeping import Guard
from kvfs.prefetch.returns import Kind, Returns

LIMIT = 4096
"""Blocks of the sample that are held, at most."""
GHOSTS = 4
"""So many times as many as are held are remembered after they were let go."""
FEW = 64
"""And so many more."""

Turn = tuple[int, int]
"""When a block would go that was used now: earlier chains first, and of one its end first."""


@dataclass(slots=True)
class _Stay:
    """A block since it was last used.

    :ivar weight: how much is learnt of it
    :ivar held: it was not let go
    :ivar turn: when the least recently used would go; None if it has gone
    """

    kind: Kind
    since: float
    weight: float
    turn: Turn | None
    held: bool = True


class Shadow:
    """
    :param returns: learns when blocks of the sample come back
    :ivar mask: blocks whose key has none of these bits are in the sample
    :ivar gained, regret: uses in the sample that only we could serve, and that only the least recently used could
    """

    def __init__(self, returns: Returns) -> None:
        self.gained = 0
        self.regret = 0
        self.mask = 0
        self._returns = returns
        self._guard = Guard()
        self._held = 0
        self._stays: dict[int, _Stay] = {}
        self._order: list[tuple[Turn, int]] = []
        self._in_lru = 0
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    @property
    def trusted(self) -> bool:
        """Whether value is to decide what leaves."""
        return self._guard.trusted

    @property
    def one_in(self) -> int:
        """The part of all blocks that is in the sample."""
        return self.mask + 1

    def __len__(self) -> int:
        """Blocks of the sample that are held."""
        return self._held

    def used(self, key: int, kind: Kind, now: float, turn: Turn, weight: float = 1.0) -> None:
        """A block of the sample was used, or stored.

        :param kind: what is known of it from now on
        """
        stay = self._stays.get(key)
        if stay is not None:
            self._judge(ours=stay.held, theirs=stay.turn is not None)
            self._returns.stayed(stay.kind, now - stay.since, stay.weight)
            self._returns.returned(stay.kind, now - stay.since, stay.weight)
        self._ghosts.pop(key, None)
        self._held += stay is None or not stay.held
        self._in_lru += stay is None or stay.turn is None
        self._stays[key] = _Stay(kind, now, weight, turn)
        heapq.heappush(self._order, (turn, key))
        self._shrink()
        if self._held > LIMIT:
            self._halve()

    def is_now(self, key: int, kind: Kind) -> None:
        """More is known of a block, though it was not used."""
        stay = self._stays.get(key)
        if stay is not None:
            stay.kind = kind

    def let_go(self, key: int, now: float) -> None:
        """A block had to make room."""
        stay = self._stays.get(key)
        if stay is None or not stay.held:
            return
        stay.held = False
        self._held -= 1
        self._ghosts[key] = None
        while len(self._ghosts) > GHOSTS * self._held + FEW:
            ghost = self._stays[next(iter(self._ghosts))]
            self._returns.stayed(ghost.kind, now - ghost.since, ghost.weight)
            self.removed(next(iter(self._ghosts)))

    def removed(self, key: int) -> None:
        """A block was removed, by somebody who did not want it: neither cache has it, and nobody is to blame."""
        stay = self._stays.pop(key, None)
        if stay is not None:
            self._held -= stay.held
            self._in_lru -= stay.turn is not None
            self._ghosts.pop(key, None)

    def _shrink(self) -> None:
        """Let as many go as we have."""
        while self._in_lru > self._held:
            turn, key = heapq.heappop(self._order)
            stay = self._stays.get(key)
            if stay is not None and stay.turn == turn:
                stay.turn = None
                self._in_lru -= 1
        if len(self._order) > 2 * self._in_lru + FEW:
            self._order = [(stay.turn, key) for key, stay in self._stays.items() if stay.turn is not None]
            heapq.heapify(self._order)

    def _judge(self, *, ours: bool, theirs: bool) -> None:
        self.gained += ours and not theirs
        self.regret += theirs and not ours
        self._guard.note(1, int(ours), int(theirs))

    def _halve(self) -> None:
        self.mask = self.mask * 2 + 1
        for key in [key for key in self._stays if key & self.mask]:
            self.removed(key)
