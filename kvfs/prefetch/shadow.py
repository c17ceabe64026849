"""What a cache of the same size would have had that lets go the least recently used, on a sample of blocks. Pure.

A block is in the sample if its key ends in enough zero bits. All of its uses are then seen, and none of the others', so the
sample is a workload of its own, on a cache of as small a part of the size (Waldspurger et al., Shards, 2015). When more
than `LIMIT` blocks of the sample are held, the sample is halved: memory is bounded, whatever the pool's size.

What was let go is remembered for a while. When it is stored anew, it was missed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kvfs.prefetch.keeping import Guard
from kvfs.prefetch.returns import Kind, Returns, bucket

LIMIT = 4096
"""Blocks of the sample that are held, at most."""
GHOSTS = 4
"""So many times as many as are held are remembered after they were let go."""
FEW = 64
"""And so many more."""


@dataclass(slots=True)
class _Stay:
    """A block since it was last used.

    :ivar held: it was not let go
    """

    kind: Kind
    since: float
    held: bool = True


class Shadow:
    """
    :param returns: learns when blocks of the sample come back
    :ivar gained, regret: uses in the sample that only we could serve, and that only the least recently used could
    """

    def __init__(self, returns: Returns) -> None:
        self.gained = 0
        self.regret = 0
        self._returns = returns
        self._guard = Guard()
        self._mask = 0
        self._held = 0
        self._stays: dict[int, _Stay] = {}
        self._lru: OrderedDict[int, None] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    @property
    def trusted(self) -> bool:
        """Whether value is to decide what leaves."""
        return self._guard.trusted

    @property
    def one_in(self) -> int:
        """The part of all blocks that is in the sample."""
        return self._mask + 1

    def __len__(self) -> int:
        """Blocks of the sample that are held."""
        return self._held

    def used(self, key: int, kind: Kind, now: float) -> None:
        """A block was used, or stored.

        :param kind: what is known of it from now on
        """
        if key & self._mask:
            return
        stay = self._stays.get(key)
        if stay is not None:
            self._judge(ours=stay.held, theirs=key in self._lru)
            self._learn(stay, now)
            self._returns.returned(stay.kind, now - stay.since)
        self._ghosts.pop(key, None)
        self._held += stay is None or not stay.held
        self._stays[key] = _Stay(kind, now)
        self._lru[key] = None
        self._lru.move_to_end(key)
        while len(self._lru) > self._held:
            self._lru.popitem(last=False)
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
            ghost, _ = self._ghosts.popitem(last=False)
            self._learn(self._stays.pop(ghost), now)
            self._lru.pop(ghost, None)

    def removed(self, key: int) -> None:
        """A block was removed, by somebody who did not want it: neither cache has it, and nobody is to blame."""
        stay = self._stays.pop(key, None)
        if stay is not None:
            self._held -= stay.held
            self._ghosts.pop(key, None)
            self._lru.pop(key, None)

    def _judge(self, *, ours: bool, theirs: bool) -> None:
        self.gained += ours and not theirs
        self.regret += theirs and not ours
        self._guard.note(1, int(ours), int(theirs))

    def _learn(self, stay: _Stay, now: float) -> None:
        """It stayed away until now."""
        for at in range(bucket(now - stay.since)):
            self._returns.passed(stay.kind, at)

    def _halve(self) -> None:
        self._mask = self._mask * 2 + 1
        for key in [key for key in self._stays if key & self._mask]:
            self.removed(key)
