"""Ways to choose blocks before they are read, and what each is worth.

A choice is made for each head of keys in each layer, before a *window* of tokens reads. It may use all that happened before the
window, and the query of its first token. It is judged by its share of the mass that the window's tokens give to the
*middle* of the prefix: without the first block and the last 128 tokens, which everybody takes and which have most of all
mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvfs.prefetch.attended import HOT
from kvfs.prefetch.digests import Digests
from kvfs.prefetch.queries import attention_mass
from kvfs.prefetch.signatures import Signatures
from kvfs.prefetch.sketch import FOUND, RECENT, SINK, Probe, Sketch
from scripts.lib.attention.capture import BLOCK, Capture, Turn
from scripts.lib.decoder.model import Floats

WINDOW = 64
PART = 0.1
"""Of the middle's blocks are chosen."""
STEP = 4
"""Tokens whose mass is told at once."""
FADING = 0.97
MAGIC_BITS, MAGIC_TABLES, MAGIC_LEAST = 10, 150, 2

Scores: TypeAlias = NDArray[np.float32]
"""`(layers, kv_heads, blocks)`, the higher the better."""


@dataclass(frozen=True)
class Moment:
    """Where a window begins.

    :ivar turn: of the text, `same` or `switch`
    :ivar at: tokens of the turn before it
    """

    capture: Capture
    turn: Turn
    at: int

    @property
    def middle(self) -> slice:
        return slice(SINK // BLOCK, self.capture.history.mass.shape[-1] - RECENT // BLOCK)

    @property
    def count(self) -> int:
        """Blocks to choose."""
        return round(PART * int(self.middle.stop - self.middle.start))

    def past(self) -> Floats:
        """Mass until now, `(layers, tokens, kv_heads, blocks)`."""
        past = [self.capture.history.mass, self.turn.mass[:, : self.at]]
        return np.concatenate(past, axis=1, dtype=np.float32)

    def query(self) -> Floats:
        """Of the first token in the window, `(layers, kv_heads, heads that share it, width)`."""
        query = self.turn.queries[:, :, self.at].astype(np.float32)
        shape = len(query), self.capture.keys.shape[1], -1, query.shape[-1]
        return np.asarray(query.reshape(shape), np.float32)

    def window(self) -> Scores:
        """What is to be foreseen."""
        return np.asarray(self.turn.mass[:, self.at : self.at + WINDOW].sum(axis=1, dtype=np.float32))

    def worth(self, scores: Scores) -> float:
        """The share of the middle's mass in what these scores choose, the mean over layers and heads."""
        window = self.window()[..., self.middle]
        chosen = np.argsort(-scores[..., self.middle])[..., : self.count]
        mass = np.take_along_axis(window, chosen, -1).sum(axis=-1)
        return float((mass / window.sum(axis=-1)).mean())


Chooser: TypeAlias = Callable[[Moment], Scores]


def oracle(moment: Moment) -> Scores:
    """Sees the window."""
    return moment.window()


def recency(moment: Moment) -> Scores:
    """The last blocks."""
    shape = moment.window().shape
    return np.broadcast_to(np.arange(shape[-1], dtype=np.float32), shape)


def one_mean(moment: Moment) -> Scores:
    """The mass that was observed, in one mean that fades by 0.97 a token."""
    past = moment.past()
    fading = FADING ** np.arange(past.shape[1] - 1, -1, -1, dtype=np.float32)
    return np.asarray(np.einsum("t,ltkb->lkb", fading, past), np.float32)


def quest(moment: Moment) -> Scores:
    """Bounds from the least and the largest of each channel of keys, with the current query."""
    keys, queries = moment.capture.keys, moment.query()
    scores = np.zeros(moment.window().shape, np.float32)
    for layer, head in np.ndindex(*scores.shape[:2]):
        digests = Digests(1, keys.shape[-1], BLOCK)
        digests.append(keys[layer, head : head + 1].astype(np.float32))
        bounds = digests.bounds(queries[layer, head : head + 1], np.arange(len(digests)))
        scores[layer, head] = bounds[0].mean(axis=0)
    return scores


def magic_counts(moment: Moment) -> Scores:
    """How many tokens of a block share two hash buckets or more with the current query, as MagicPIG samples them."""
    keys, queries = moment.capture.keys.astype(np.float32), moment.query()
    planes = np.random.default_rng(0).standard_normal((keys.shape[-1], MAGIC_BITS * MAGIC_TABLES))
    planes = planes.astype(np.float32)
    powers = (1 << np.arange(MAGIC_BITS)).astype(np.float32)

    def buckets(vectors: Floats) -> Floats:
        bits = (vectors @ planes > 0).reshape(len(vectors), MAGIC_TABLES, MAGIC_BITS)
        return np.asarray(bits @ powers, np.float32)

    scores = np.zeros(moment.window().shape, np.float32)
    for layer, head in np.ndindex(*scores.shape[:2]):
        theirs = buckets(keys[layer, head] - keys[layer, head].mean(axis=0))
        for mine in buckets(queries[layer, head]):
            sampled = (theirs == mine).sum(axis=1) >= MAGIC_LEAST
            scores[layer, head] += sampled.reshape(-1, BLOCK).sum(axis=1)
    return scores


def exact_query(moment: Moment) -> Scores:
    """What the current query reads, exactly: needs all keys."""
    keys, queries = moment.capture.keys.astype(np.float32), moment.query()
    scores = queries @ keys.transpose(0, 1, 3, 2) / math.sqrt(keys.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    blocks = weights.reshape(*weights.shape[:-1], -1, BLOCK)
    return np.asarray(blocks.sum(axis=-1).mean(axis=2), np.float32)


def sketched(moment: Moment, *, hot: int = HOT, found: int = FOUND, exact: bool = False) -> Scores:
    """kvfs: what was observed at several speeds, and signatures for the current query; for each head by itself.

    :param exact: candidates are asked by the keys themselves, for which nobody has room, instead of signatures
    """
    steps, queries, keys = _steps(moment), moment.query(), moment.capture.keys
    scores = np.zeros(moment.window().shape, np.float32)
    for layer, head in np.ndindex(*scores.shape[:2]):
        one = slice(head, head + 1)
        sketch = _sketch(keys[layer, one], steps[layer, :, head], hot, found)
        if exact:
            assert sketch.probe is not None
            sketch.probe.signatures = _Keys(keys[layer, one].astype(np.float32))
        chosen = sketch.choose(moment.count, queries[layer, one])
        scores[layer, head, chosen] = np.arange(len(chosen), 0, -1)
    return scores


def sketched_together(moment: Moment) -> Scores:
    """The same, with one choice for all heads of a layer."""
    steps, queries, keys = _steps(moment).mean(axis=2), moment.query(), moment.capture.keys
    scores = np.zeros(moment.window().shape, np.float32)
    for layer in range(len(scores)):
        sketch = _sketch(keys[layer], steps[layer], HOT, FOUND)
        chosen = sketch.choose(moment.count, queries[layer])
        scores[layer, :, chosen] = np.arange(len(chosen), 0, -1)[:, None]
    return scores


def oracle_together(moment: Moment) -> Scores:
    """Sees the window, and makes one choice for all heads of a layer."""
    window = moment.window()
    return np.broadcast_to(window.mean(axis=1, keepdims=True), window.shape)


class _Keys(Signatures):
    """Keys themselves in the place of signatures: what candidates would have of the queries' attention, exactly."""

    def __init__(self, keys: Floats) -> None:
        heads, _, width = keys.shape
        super().__init__(heads, width, BLOCK)
        self._keys = keys.reshape(heads, -1, BLOCK, width)

    def __len__(self) -> int:
        return self._keys.shape[1]

    def shares(self, queries: Floats, blocks: NDArray[np.int64]) -> Floats:
        chosen = self._keys[:, blocks]
        return attention_mass(queries, chosen.reshape(len(chosen), -1, chosen.shape[-1]), BLOCK)


def _steps(moment: Moment) -> Floats:
    """What is told of the past: `(layers, steps, kv_heads, blocks)`."""
    past = moment.past()
    steps = past.reshape(len(past), -1, STEP, *past.shape[2:]).mean(axis=2)
    return np.asarray(steps, np.float32)


def _sketch(keys: NDArray[np.float16], steps: Floats, hot: int, found: int) -> Sketch:
    """Of keys `(heads, tokens, width)` and what was told of them, `(steps, blocks)`."""
    probe = Probe(len(keys), keys.shape[-1], BLOCK)
    probe.append(keys.astype(np.float32))
    sketch = Sketch(BLOCK, probe, hot=hot, found=found)
    sketch.grow(keys.shape[1] // BLOCK)
    for mass in steps:
        sketch.observe(mass, tokens=STEP)
    return sketch
