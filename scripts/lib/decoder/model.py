"""What a decoder of Llama's kind is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scripts.lib.decoder.tokens import Tokenizer

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """What the file says of the model.

    :ivar heads: of queries; as many in succession share one of the `kv_heads` as there are more of them
    :ivar width: of a head
    :ivar base: of the frequencies of rotary positions
    """

    name: str
    layers: int
    heads: int
    kv_heads: int
    width: int
    base: float
    epsilon: float
    context: int

    @property
    def kv_bytes(self) -> int:
        """Of keys and values of one token, in all layers, 16 bits each."""
        return self.layers * 2 * self.kv_heads * self.width * 2


@dataclass(frozen=True)
class Layer:
    """Matrices to multiply rows with from the right, but for the gains of the two norms."""

    attn_norm: Floats
    ffn_norm: Floats
    attn_q: Floats
    attn_k: Floats
    attn_v: Floats
    attn_output: Floats
    ffn_gate: Floats
    ffn_up: Floats
    ffn_down: Floats


@dataclass(frozen=True)
class Weights:
    """:ivar embedding: a row for each token; multiplied with from the right, it also makes the last layer's output
    into scores of tokens
    """

    shape: Shape
    embedding: Floats
    norm: Floats
    layers: tuple[Layer, ...]
    tokenizer: Tokenizer
