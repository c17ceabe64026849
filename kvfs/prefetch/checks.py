"""What an engine says of attention, looked at before any of it is believed. Pure; needs numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvfs.errors import BadAttention
from kvfs.prefetch.arrays import Floats, Ints, distinct

BLOCKS_MAX = 1 << 20
"""Of a context: 64 million tokens in blocks of 64."""
WIDTH_MAX = 1024
"""Of a head."""
OVER_ONE = 0.01
"""By which shares may add up to more than 1, as half-precision floats do."""


class Shape(NamedTuple):
    """Of the keys of a probe: heads, and channels of each."""

    heads: int
    width: int


def masses(mass: ArrayLike, blocks: ArrayLike | None) -> tuple[Floats, Ints]:
    """Shares and whose they are, as `Attended.observe` takes them.

    :raises BadAttention: not one share for each block, none of them negative or not a number, at most 1 together
    """
    shares = _array(mass, np.float32, "mass", 1)
    if (shares < 0).any() or shares.sum() > 1 + OVER_ONE:
        raise BadAttention("mass must be shares of all that was read: none below 0, at most 1 together")
    if blocks is None:
        numbers: Ints = np.arange(len(shares))
    else:
        numbers = _array(blocks, np.int64, "blocks", 1)
    if numbers.shape != shares.shape:
        raise BadAttention(
            f"mass of {shares.shape} for blocks of {numbers.shape}: give a share for each block"
        )
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < BLOCKS_MAX:
        raise BadAttention(f"blocks must be numbers from 0 to {BLOCKS_MAX - 1}, the position in the context")
    if len(distinct(numbers)) < len(numbers):
        raise BadAttention("blocks must be given once each: add up the shares of one")
    return shares, numbers


def keys_of(keys: ArrayLike, block: int, shape: Shape | None, before: int) -> Floats:
    """Keys of further blocks, `(heads, tokens, width)`.

    :param block: tokens of a block
    :param shape: of the keys that came before
    :param before: blocks that came before
    :raises BadAttention: another shape, no whole number of blocks, too many, or what is not a number
    """
    array = _array(keys, np.float32, "keys", 3)
    heads, tokens, width = array.shape
    _check_shape("keys", Shape(heads, width), shape)
    if not tokens or tokens % block:
        raise BadAttention(f"keys of {tokens} tokens: give whole blocks of {block}, as `begin` was told")
    if before + tokens // block > BLOCKS_MAX:
        raise BadAttention(f"a context has at most {BLOCKS_MAX} blocks")
    return array


def queries_of(queries: ArrayLike, shape: Shape | None, kept: int) -> Floats:
    """The last of some queries, `(heads, at most kept, width)`: a copy.

    :param shape: of the keys that they are asked about
    :raises BadAttention: another shape, no keys, or what is not a number
    """
    array = _array(queries, np.float32, "queries", 3)
    if shape is None:
        raise BadAttention(
            "queries say nothing without keys: give the keys of that layer before, or with them"
        )
    _check_shape("queries", Shape(array.shape[0], array.shape[2]), shape)
    if not array.shape[1]:
        raise BadAttention("there are no queries in (heads, 0, width): leave them out")
    return np.array(array[:, -kept:], np.float32)


def _check_shape(what: str, shape: Shape, wanted: Shape | None) -> None:
    if wanted is not None and shape != wanted:
        raise BadAttention(
            f"{what} of {shape.heads} heads {shape.width} wide; those before were {wanted.heads}, {wanted.width} wide"
        )
    if not shape.heads or not 1 <= shape.width <= WIDTH_MAX:
        raise BadAttention(
            f"{what} must be (heads, tokens, width), at least one head, at most {WIDTH_MAX} wide"
        )


def _array(values: ArrayLike, dtype: DTypeLike, what: str, axes: int) -> NDArray[Any]:
    try:
        given = np.asarray(values)
        whole = np.dtype(dtype).kind == "i"
        fits = not given.size or given.dtype.kind in ("iu" if whole else "iuf")
        with np.errstate(over="ignore"):  # becomes infinite, and is told as that
            array = given.astype(dtype, copy=False) if fits else None
    except (TypeError, ValueError, RuntimeError):
        array = None
    if array is None:
        raise BadAttention(f"{what} must be an array of {np.dtype(dtype)}, or of what becomes that")
    if array.ndim != axes:
        raise BadAttention(
            f"{what} has the shape {array.shape}; it must have {axes} {'axis' if axes == 1 else 'axes'}"
        )
    if not np.isfinite(array).all():
        raise BadAttention(f"{what} has values that are infinite or not numbers")
    return array
