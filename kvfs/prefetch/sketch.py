"""Which blocks of a long context to fetch first: what is believed of one layer group. Pure; needs numpy.

Exact attention needs every block, so the choice is an order for it; only an engine that attends to chosen blocks alone
may leave out the rest, and that loses something.

History goes first: `Attended` knows what was read. Where a layer group has a probe, that is keys' signatures and digests of one of
its layers, a new query has a say. Both look at candidates only, the hottest blocks, those behind them, and those that
the digests find, so that a choice among a million tokens costs little more than one among a hundred thousand.
"""

from __future__ import annotations

import numpy as np

from kvfs.prefetch.arrays import Floats, Ints, distinct
from kvfs.prefetch.attended import FLOOR, HOT, Attended
from kvfs.prefetch.digests import Digests
from kvfs.prefetch.signatures import Signatures

SINK = 64
RECENT = 128
"""Tokens at the beginning and end of a context that always count, as attention rests on them: half of all of it and more."""
QUERY = 0.2
"""The power of what a new query seems to read. More helps where the subject has just changed, and harms elsewhere."""
FOUND = 128
"""Candidates that digests find."""
LOOKED_AT = 256
"""Candidates whose signatures are looked at."""


class Probe:
    """What is kept of the keys of a layer, so that queries can be asked about blocks that are not here.

    :param heads: of keys
    :param width: of a head
    :param block: tokens of a block
    """

    def __init__(self, heads: int, width: int, block: int) -> None:
        self.signatures = Signatures(heads, width, block)
        self.digests = Digests(heads, width, block)

    def append(self, keys: Floats) -> None:
        """The keys of further blocks, `(heads, tokens, width)`.

        :raises ValueError: another shape, or no whole number of blocks
        """
        self.signatures.append(keys)
        self.digests.append(keys)


class Sketch:
    """What is believed of one layer group of a context, or of one head in it: whatever is chosen for as one.

    :param block: tokens of a block
    :param probe: of one of its layers, for the same blocks; several sketches may have the same
    :param hot: blocks that history ranks at most
    :param found: blocks that a probe adds at most
    :ivar probe: may be given later
    """

    def __init__(
        self, block: int = 64, probe: Probe | None = None, *, hot: int = HOT, found: int = FOUND
    ) -> None:
        self._attended = Attended(hot)
        self.probe = probe
        self._found = found
        self._sinks = -(-SINK // block)
        self._recent = -(-RECENT // block)

    def __len__(self) -> int:
        """Blocks of the context."""
        return len(self._attended)

    def grow(self, blocks: int) -> None:
        """The context has so many blocks now."""
        self._attended.grow(blocks)

    def observe(self, mass: Floats, blocks: Ints | None = None, tokens: int = 1) -> None:
        """Attention has read; see `Attended.observe`.

        :raises ValueError: there are not as many blocks as masses, or there is no such block
        """
        self._attended.observe(mass, blocks, tokens)

    def shares(self, blocks: Ints) -> Floats:
        """What to remember of blocks when the context goes, for `observe` when they come back; see `Attended.shares`."""
        return self._attended.shares(blocks)

    def always(self) -> Ints:
        """The blocks that are fetched in any case and before all others: the first and the last ones."""
        sinks = np.arange(min(self._sinks, len(self)))
        return np.concatenate([sinks, np.arange(max(len(self) - self._recent, len(sinks)), len(self))])

    def choose(self, count: int, queries: Floats | None = None) -> Ints:
        """Which of the others to fetch, the most wanted first.

        :param count: so many; fewer if there are no more. Of whom nothing is known, the last come first
        :param queries: `(heads, n, width)`: new ones, for each head of the probe's keys those that read it; without a
            probe they change nothing
        """
        candidates, found = self._candidates(queries)
        scores = self._attended.expect(candidates)
        if self.probe is not None and queries is not None:
            scores += QUERY * self._asked(self.probe, queries, candidates, scores, found)
        best = candidates[np.argsort(-scores)[:count]]
        return best if len(best) == count else self._filled(best, count)

    def _filled(self, chosen: Ints, count: int) -> Ints:
        """As many as there should be, with the last ones that were not chosen."""
        end = len(self) - self._recent
        others = np.arange(end - 1, max(end - count, self._sinks) - 1, -1)
        others = others[~np.isin(others, chosen)]
        return np.concatenate([chosen, others[: count - len(chosen)]])

    def _candidates(self, queries: Floats | None) -> tuple[Ints, Ints]:
        """Blocks to rank, ascending, and those of them that the probe found."""
        hot = self._attended.hottest()
        found: Ints = np.zeros(0, np.int64)
        if self.probe is not None and queries is not None:
            found = self.probe.digests.candidates(queries, self._found)
        every = distinct(np.concatenate([hot, hot + 1, found]))
        inside = every[(every >= self._sinks) & (every < len(self) - self._recent)]
        return inside, found[np.isin(found, inside)]

    def _asked(self, probe: Probe, queries: Floats, candidates: Ints, scores: Floats, found: Ints) -> Floats:
        """Logarithms of what the queries seem to read of each candidate; of those not looked at, what was read lately."""
        rest = max(LOOKED_AT - len(found), 0)
        known = candidates < len(probe.signatures)
        hopeful = np.argsort(-np.where(known, scores, -np.inf))[:rest]
        places = distinct(np.concatenate([hopeful[known[hopeful]], np.searchsorted(candidates, found)]))
        shares = self._attended.shares(candidates)
        if len(places):
            shares[places] = probe.signatures.shares(queries, candidates[places])
        return np.asarray(np.log(shares + FLOOR / max(len(candidates), 1)), np.float32)
