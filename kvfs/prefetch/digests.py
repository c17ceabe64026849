"""Where among all blocks of a context to look for what a query reads, without looking at all. Pure; needs numpy.

Of each block the least and the largest value of every channel of its keys are kept: they bound what any key in it can score
with a query (Quest). Eight blocks have such bounds in common, and eight of those, and so on: a tree, in which a search goes down
from the top and keeps the most promising nodes of each level. What it finds are candidates: bounds of many keys are loose.
"""

from __future__ import annotations

import math

import numpy as np

from kvfs.prefetch.arrays import Floats, Growing, Ints

FAN = 8
"""Nodes that one above has bounds for."""


class Digests:
    """Bounds of the keys of some heads.

    1.2 values for each channel of two tokens in a block; a search costs as much as there are levels, the logarithm of the
    blocks.

    :param heads: of keys
    :param width: of a head
    :param block: tokens of a block
    """

    def __init__(self, heads: int, width: int, block: int) -> None:
        self._shape = (heads, width)
        self._block = block
        self._levels: list[Growing] = []
        """From blocks up: `(nodes, heads, least and largest of each channel)`."""

    def __len__(self) -> int:
        return len(self._levels[0]) if self._levels else 0

    def append(self, keys: Floats) -> None:
        """The keys of further blocks, `(heads, tokens, width)`.

        :raises ValueError: another shape, or no whole number of blocks
        """
        heads, tokens, width = keys.shape
        if (heads, width) != self._shape or tokens % self._block or not tokens:
            raise ValueError(
                f"keys of {keys.shape}; must be ({self._shape[0]}, blocks of {self._block}, {self._shape[1]})"
            )
        blocks = keys.reshape(heads, -1, self._block, width)
        rows = np.concatenate([blocks.min(axis=2), blocks.max(axis=2)], axis=-1).transpose(1, 0, 2)
        at = len(self)
        for level in self._levels:
            level.append(rows, at)
            at //= FAN
            rows = self._above(level, at)
        while not self._levels or len(self._levels[-1]) > FAN:
            if self._levels:
                rows = self._above(self._levels[-1], 0)
            self._levels.append(Growing((heads, 2 * width), np.float32))
            self._levels[-1].append(rows)

    def bounds(self, queries: Floats, nodes: Ints, level: int = 0) -> Floats:
        """What no key below these nodes exceeds, divided by the root of the width as attention does.

        :param queries: `(heads, n, width)`
        :param nodes: `(m,)`; at level 0, blocks
        :returns: `(heads, n, m)`
        """
        digests = self._levels[level].rows[nodes].transpose(1, 2, 0)
        sides = np.concatenate([np.minimum(queries, 0), np.maximum(queries, 0)], axis=-1)
        return np.asarray(sides @ digests / math.sqrt(self._shape[1]), np.float32)

    def candidates(self, queries: Floats, count: int) -> Ints:
        """Blocks in which a key may score high, `count` at most, in no order.

        A node is as promising as it is for the query that it promises most, compared with the best for that query.

        :param queries: `(heads, n, width)`
        """
        nodes: Ints = np.arange(len(self._levels[-1]) if self._levels else 0)
        for level in reversed(range(len(self._levels))):
            scores = self.bounds(queries, nodes, level)
            promise = (scores - scores.max(axis=-1, keepdims=True)).max(axis=(0, 1))
            if len(nodes) > count:
                nodes = nodes[np.argpartition(-promise, count)[:count]]
            if level:
                nodes = (nodes[:, None] * FAN + np.arange(FAN)).ravel()
                nodes = nodes[nodes < len(self._levels[level - 1])]
        return nodes

    def _above(self, level: Growing, at: int) -> Floats:
        """The nodes above a level, from `at` on."""
        below, width = level.rows[at * FAN :], self._shape[1]
        begins = np.arange(0, len(below), FAN)
        least = np.minimum.reduceat(below[..., :width], begins)
        largest = np.maximum.reduceat(below[..., width:], begins)
        return np.concatenate([least, largest], axis=-1)
