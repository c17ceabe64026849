"""What attention would have said: exact scores of a few queries that were kept. Pure; needs numpy.

Fast kernels for attention do not tell how much each block was read. Eight of the last 64 queries tell nearly as much, if
they are kept and asked while the keys are still there: at the end of a request, for its next turn.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from kvfs.prefetch.arrays import Floats

EVERY = 8
KEPT = 8


def attention_mass(queries: Floats, keys: Floats, block: int) -> Floats:
    """How queries divide their attention among blocks, exactly; all keys are before all queries.

    :param queries: `(heads, n, width)`: for each head of keys, those that read it
    :param keys: `(heads, tokens, width)`
    :param block: tokens of a block; the last one may have fewer
    :returns: `(blocks,)`, the mean over all queries; the sum is 1
    """
    scores = np.asarray(queries, np.float32) @ np.asarray(keys, np.float32).transpose(0, 2, 1)
    scores /= math.sqrt(keys.shape[-1])
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    mass = np.add.reduceat(weights.mean(axis=(0, 1)), np.arange(0, keys.shape[1], block))
    return np.asarray(mass, np.float32)


class StoredQueries:
    """Every eighth of the last 64 queries of some heads."""

    def __init__(self) -> None:
        self._kept: deque[Floats] = deque(maxlen=KEPT)
        self._seen = 0

    def note(self, queries: Floats) -> None:
        """The queries of the tokens that follow, `(heads, tokens, width)`; copies those that it keeps."""
        first = -self._seen % EVERY
        self._seen += queries.shape[1]
        for number in range(first, queries.shape[1], EVERY)[-KEPT:]:
            self._kept.append(queries[:, number].astype(np.float32))

    def mass(self, keys: Floats, block: int) -> Floats:
        """How they divide their attention among the blocks of a context.

        :param keys: `(key_heads, tokens, width)`; as many heads of queries in succession share one of these as there are
            more of them
        :returns: `(blocks,)`, what `Attended.observe` takes as the mean over `EVERY * KEPT` tokens
        :raises ValueError: none was noted
        """
        if not self._kept:
            raise ValueError("no query was noted")
        stacked = np.stack(self._kept, axis=1)
        return attention_mass(stacked.reshape(len(keys), -1, stacked.shape[-1]), keys, block)
