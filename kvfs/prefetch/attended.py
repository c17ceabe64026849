"""Which blocks of a context attention will read next, judged by what it has read: one choice, of a layer group or of a head
in it. Pure; needs numpy.

What attention reads, it goes on reading: a mean of the mass that each block has had, which fades exponentially, says more
than any estimate from keys (H2O and SnapKV keep tokens by sums of it). Here it fades at several speeds, and a block's
score is the product of its shares in each mean, raised to a power: a product of experts, each of which may say no. Attention
also moves: who copies a passage reads one block after the other. So a block gains if the one before it was read
more in the last ten tokens than in the last hundred.

Powers were fitted to what a small model attends to in three of four texts and judged on the fourth, each in turn.
"""

from __future__ import annotations

import numpy as np

from kvfs.prefetch.arrays import Floats, Growing, Ints

TIMES = np.array([3.0, 10.0, 30.0, 100.0, 1000.0], np.float32)
"""Tokens after which what was seen counts for 1/e in each mean."""
POWERS = np.array([0.2, 0.25, 0.25, 0.5, 0.25], np.float32)
NOW, LATELY, LONG = 1, 3, 4
"""Which of the times tell that attention has come to the block before, and which tells what is hot at all."""
MOVING = 0.65
"""The power of that."""
FLOOR = 0.01
"""Of an even share: less is nothing, lest what was never read be worth less than nothing."""
HOT = 2048
"""Blocks that are ranked at most. To have been read a tenth of the time for ten tokens is a thousandth of the slowest mean,
and no more than a thousand blocks can have that: what is not among the hottest was not read to speak of."""


class Attended:
    """Means of the mass that blocks have had.

    Blocks are numbers from 0. Memory is 29 bytes a block; what an observation costs depends on the blocks in it, what a
    ranking costs on `hot`, and neither on the length of the context.

    :param hot: blocks that are ranked at most
    """

    def __init__(self, hot: int = HOT) -> None:
        self._hot = hot
        self._now = 0
        self._means = Growing((len(TIMES),), np.float32)
        self._seen = Growing((), np.int64)
        self._listed = Growing((), np.bool_)
        self._list: Ints = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._seen)

    def grow(self, blocks: int) -> None:
        """The context has so many blocks now; new ones have not been read. Never fewer than it had."""
        more = blocks - len(self)
        if more > 0:
            self._means.append(np.zeros((more, len(TIMES)), np.float32))
            self._seen.append(np.full(more, self._now, np.int64))
            self._listed.append(np.zeros(more, np.bool_))

    def observe(self, mass: Floats, blocks: Ints | None = None, tokens: int = 1) -> None:
        """Attention has read.

        :param mass: `(n,)`, the share of each block in what was read, on average over the tokens, and over heads that read
            together
        :param blocks: `(n,)`, which blocks these are, none twice; without it, the first `n`. Others have had none
        :param tokens: that have read
        :raises ValueError: there are not as many blocks as masses, or there is no such block
        """
        blocks = np.arange(len(mass)) if blocks is None else np.asarray(blocks, np.int64)
        if blocks.shape != mass.shape or (len(blocks) and not 0 <= blocks.min() <= blocks.max() < len(self)):
            raise ValueError(
                f"mass of {mass.shape} for blocks of {blocks.shape}; there are {len(self)} blocks"
            )
        self._now += tokens
        gains = 1 - np.exp(-tokens / TIMES)
        self._means.rows[blocks] = self._faded(blocks) + mass[:, None] * gains
        self._seen.rows[blocks] = self._now
        new = blocks[~self._listed.rows[blocks]]
        self._listed.rows[new] = True
        self._list = np.concatenate([self._list, new])
        if len(self._list) > 2 * self._hot:
            self._shorten()

    def hottest(self) -> Ints:
        """The blocks with the most mass in the slowest mean, `hot` at least if so many were read, in no order."""
        return self._list

    def shares(self, blocks: Ints) -> Floats:
        """How the mass of the last thirty tokens or so is divided among these blocks, `(n,)`; the sum is 1, or 0."""
        mass = self._faded(blocks)[:, 2]
        return np.asarray(mass / max(float(mass.sum()), 1e-30), np.float32)

    def expect(self, blocks: Ints) -> Floats:
        """How likely each of these is read next, compared with the others: logarithms, up to a constant.

        :param blocks: `(n,)`, in any order
        :returns: `(n,)`
        """
        means = self._faded(blocks)
        totals = means.sum(axis=0) + np.float32(1e-30)
        floor = np.float32(FLOOR / max(len(blocks), 1))
        before = self._faded(np.maximum(blocks - 1, 0))[:, [NOW, LATELY]] / totals[[NOW, LATELY]] + floor
        moved = np.where(blocks > 0, np.log(before[:, 0] / before[:, 1]), 0)
        return np.asarray(np.log(means / totals + floor) @ POWERS + MOVING * moved, np.float32)

    def _faded(self, blocks: Ints) -> Floats:
        """Means of blocks, `(n, times)`, as of now."""
        age = (self._now - self._seen.rows[blocks]).astype(np.float32)
        return np.asarray(self._means.rows[blocks] * np.exp(age[:, None] / -TIMES), np.float32)

    def _shorten(self) -> None:
        """Keep the hottest. Nothing is lost with the others: unread, they fade as all do, and whoever is read is back."""
        mass = self._faded(self._list)[:, LONG]
        order = np.argpartition(-mass, self._hot)
        self._listed.rows[self._list[order[self._hot :]]] = False
        self._list = self._list[order[: self._hot]]
