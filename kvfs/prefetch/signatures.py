"""What a query would read, estimated from the signs of keys: 256 bits and a norm for each token. Pure; needs numpy 2.

A signature has a bit for each of a number of random directions: on which side of it a key lies (SimHash, Charikar 2002).
How many bits of two vectors differ tells the angle between them. The directions are orthogonal in groups as large as a
head is wide (super-bit LSH, Ji et al. 2012), which halves the error for nothing. Keys lie together far
from the origin, so they are centred first, as MagicPIG does; that takes the same from all scores of a query. And since scores are
inner products, not angles, the norm is kept: without it the estimate is worth little. Blocks are never hashed as a whole:
the mean of 64 keys resembles none.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvfs.prefetch.arrays import Floats, Growing, Ints

BITS = 256
WORDS = BITS // 64
COSINES = np.cos(np.pi * np.arange(BITS + 1) / BITS).astype(np.float32)
"""Of the angle, by how many bits differ."""


class Signatures:
    """Signatures of the keys of some heads, block by block.

    34 bytes for each token and head.

    :param heads: of keys
    :param width: of a head
    :param block: tokens of a block
    :param seed: of the directions; signatures of different seeds cannot be compared
    """

    def __init__(self, heads: int, width: int, block: int, seed: int = 0) -> None:
        self._heads, self._width, self._block = heads, width, block
        self._directions = directions(width, seed)
        self._centre: Floats | None = None
        self._codes = Growing((heads, WORDS, block), np.uint64)
        self._norms = Growing((heads, block), np.float16)

    def __len__(self) -> int:
        return len(self._codes)

    def append(self, keys: Floats) -> None:
        """The keys of further blocks, `(heads, tokens, width)`, as they are cached, with their positions rotated in.

        The mean of the first ones is the centre of all.

        :raises ValueError: another shape, or no whole number of blocks
        """
        keys = np.asarray(keys, np.float32)
        heads, tokens, width = keys.shape
        if (heads, width, tokens % self._block) != (self._heads, self._width, 0) or not tokens:
            raise ValueError(
                f"keys of {keys.shape}; must be ({self._heads}, blocks of {self._block}, {self._width})"
            )
        if self._centre is None:
            self._centre = keys.mean(axis=1, keepdims=True)
        centred = keys - self._centre
        codes = self._signs(centred).reshape(heads, -1, self._block, WORDS)
        norms = np.linalg.norm(centred, axis=-1).reshape(heads, -1, self._block)
        self._codes.append(codes.transpose(1, 0, 3, 2))
        self._norms.append(norms.transpose(1, 0, 2).astype(np.float16))

    def shares(self, queries: Floats, blocks: Ints) -> Floats:
        """How these queries' attention would be divided among these blocks, if there were no others.

        :param queries: `(heads, n, width)`: of each head of keys those that read it, rotated
        :param blocks: `(m,)`
        :returns: `(m,)`, the mean over all queries; the sum is 1
        """
        codes, norms = self._codes.rows[blocks], self._norms.rows[blocks].astype(np.float32)
        signs = self._signs(queries)
        lengths = np.linalg.norm(queries, axis=-1) / math.sqrt(self._width)
        total = np.zeros(len(blocks), np.float32)
        for head, number in np.ndindex(*lengths.shape):
            differ = np.bitwise_count(codes[:, head] ^ signs[head, number, :, None])
            scores = (
                COSINES.take(differ.sum(axis=1, dtype=np.uint16)) * norms[:, head] * lengths[head, number]
            )
            mass = np.exp(scores - scores.max(initial=-np.inf)).sum(axis=1)
            total += mass / mass.sum()
        return np.asarray(total / lengths.size, np.float32)

    def _signs(self, vectors: Floats) -> NDArray[np.uint64]:
        """`(…, width)` → `(…, WORDS)`"""
        bits = np.packbits(vectors @ self._directions > 0, axis=-1)
        return np.asarray(np.ascontiguousarray(bits).view(np.uint64), np.uint64)


def directions(width: int, seed: int = 0) -> Floats:
    """`(width, BITS)`: as many random directions; every `width` in succession are orthogonal to each other."""
    rng = np.random.default_rng(seed)
    groups = [np.linalg.qr(rng.standard_normal((width, width)))[0] for _ in range(-(-BITS // width))]
    return np.concatenate(groups, axis=1)[:, :BITS].astype(np.float32)
