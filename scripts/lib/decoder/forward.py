"""The forward pass: tokens in, keys and values kept, scores of the next token out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scripts.lib.decoder.model import Floats, Layer, Shape, Weights

CHUNK = 256
"""Tokens that are computed at once: their attention's scores stay below 80 MB at 8,192 tokens."""

Watch: TypeAlias = Callable[[int, Floats, Floats], None]
"""Told of each layer and chunk: the layer's number, queries `(heads, tokens, width)` and the attention's weights `(heads,
tokens, positions)`; both are gone afterwards."""


Ready: TypeAlias = Callable[[int], None]
"""Called before a layer reads the context, with its number; may wait until it has been loaded."""


class Context:
    """Keys and values of what was computed, 16 bits each; what a KV cache holds.

    :ivar kv: `(layers, keys or values, kv_heads, room, width)`; keys with their rotary positions
    :ivar length: tokens that are there
    """

    def __init__(self, shape: Shape, room: int) -> None:
        self.kv: NDArray[np.float16] = np.zeros(
            (shape.layers, 2, shape.kv_heads, room, shape.width), np.float16
        )
        self.length = 0


class Decoder:
    """Computes with weights that were loaded."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.shape = weights.shape
        self.tokenizer = weights.tokenizer

    def extend(
        self,
        context: Context,
        tokens: Sequence[int],
        watch: Watch | None = None,
        ready: Ready | None = None,
    ) -> Floats:
        """Append tokens, one at least, to a context, which must have room for them.

        :returns: for each token of the vocabulary the logarithm of its chance to be the next, up to a constant
        """
        rows: Floats = np.zeros((1, self.shape.heads * self.shape.width), np.float32)
        for at in range(0, len(tokens), CHUNK):
            rows = self._chunk(context, tokens[at : at + CHUNK], watch, ready)
        normal = _normal(rows[-1], self._weights.norm, self.shape.epsilon)
        return np.asarray(normal @ self._weights.embedding.T, np.float32)

    def _chunk(
        self, context: Context, tokens: Sequence[int], watch: Watch | None, ready: Ready | None
    ) -> Floats:
        shape = self.shape
        rows = self._weights.embedding[np.asarray(tokens)]
        turn = _turn(shape, np.arange(context.length, context.length + len(tokens)))
        for number, layer in enumerate(self._weights.layers):
            if ready is not None:
                ready(number)
            rows = rows + self._attention(context, number, rows, turn, watch)
            normal = _normal(rows, layer.ffn_norm, shape.epsilon)
            gate = normal @ layer.ffn_gate
            gate /= 1 + np.exp(-gate)
            rows = rows + (gate * (normal @ layer.ffn_up)) @ layer.ffn_down
        context.length += len(tokens)
        return np.asarray(rows, np.float32)

    def _attention(
        self, context: Context, number: int, rows: Floats, turn: tuple[Floats, Floats], watch: Watch | None
    ) -> Floats:
        shape, layer = self.shape, self._weights.layers[number]
        queries, keys, values = self._project(layer, rows)
        queries, keys = _turned(queries, turn), _turned(keys, turn)
        begin, end = context.length, context.length + len(rows)
        context.kv[number, 0, :, begin:end] = keys
        context.kv[number, 1, :, begin:end] = values
        kv = context.kv[number, :, :, :end].astype(np.float32)
        grouped = queries.reshape(shape.kv_heads, -1, shape.width)
        scores = grouped @ kv[0].transpose(0, 2, 1)
        scores = scores.reshape(shape.heads, len(rows), end)
        _softmax(scores, begin, 1 / math.sqrt(shape.width))
        if watch is not None:
            watch(number, queries, scores)
        mixed = scores.reshape(shape.kv_heads, -1, end) @ kv[1]
        mixed = mixed.reshape(shape.heads, len(rows), shape.width).transpose(1, 0, 2)
        return np.asarray(mixed.reshape(len(rows), -1) @ layer.attn_output, np.float32)

    def _project(self, layer: Layer, rows: Floats) -> tuple[Floats, Floats, Floats]:
        normal = _normal(rows, layer.attn_norm, self.shape.epsilon)
        queries, keys, values = (
            (normal @ matrix).reshape(len(rows), -1, self.shape.width).transpose(1, 0, 2)
            for matrix in (layer.attn_q, layer.attn_k, layer.attn_v)
        )
        return queries, keys, values


def _normal(rows: Floats, gain: Floats, epsilon: float) -> Floats:
    return np.asarray(rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + epsilon) * gain, np.float32)


def _turn(shape: Shape, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Cosines and sines of rotary positions, `(tokens, width / 2)`."""
    frequencies = shape.base ** (-np.arange(0, shape.width, 2) / shape.width)
    angles = positions[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _turned(vectors: Floats, turn: tuple[Floats, Floats]) -> Floats:
    """Rotate neighbours against each other: GGUF has the halves of a head interleaved."""
    cosines, sines = turn
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    turned = np.empty_like(vectors)
    turned[..., 0::2] = even * cosines - odd * sines
    turned[..., 1::2] = even * sines + odd * cosines
    return turned


def _softmax(scores: Floats, begin: int, scale: float) -> None:
    """In place, each row over the positions up to its own; the first row's is `begin`."""
    count = scores.shape[1]
    future = np.triu(np.full((count, count), -np.inf, np.float32), 1)
    scores[..., begin:] += future
    scores -= scores.max(axis=-1, keepdims=True)
    scores *= scale
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
