"""A context as an engine stores it: an object for some tokens and some layers, keys and values in it, 16 bits each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.lib.decoder.forward import Context
from scripts.lib.decoder.model import Shape

TOKENS = 512
LAYERS = 10
"""3.75 MiB: what fits an extent of 4 MiB."""


@dataclass(frozen=True)
class Block:
    """:ivar digest: of all tokens up to its end
    :ivar group: of `LAYERS` layers
    :ivar at: its first token
    """

    digest: str
    group: int
    at: int

    @property
    def name(self) -> str:
        return f"{self.digest}-{self.group}.bin"

    def pack(self, context: Context) -> bytes:
        """Its bytes."""
        return bytes(self._part(context).tobytes())

    def unpack(self, context: Context, content: memoryview) -> None:
        """Put its bytes where they belong."""
        part = self._part(context)
        part[...] = np.frombuffer(content, np.float16).reshape(part.shape)

    def _part(self, context: Context) -> NDArray[np.float16]:
        layers = slice(self.group * LAYERS, (self.group + 1) * LAYERS)
        return context.kv[layers, :, :, self.at : self.at + TOKENS]


def block_bytes(shape: Shape) -> int:
    """Of one object."""
    return shape.kv_bytes // shape.layers * LAYERS * TOKENS


def blocks(shape: Shape, tokens: Sequence[int]) -> list[Block]:
    """Those of a context, in the order in which a forward pass needs them: layers first. An incomplete one is left out."""
    digests = list(_digests(tokens))
    groups = range(shape.layers // LAYERS)
    return [Block(digest, group, n * TOKENS) for group in groups for n, digest in enumerate(digests)]


def _digests(tokens: Sequence[int]) -> Iterator[str]:
    digest = hashlib.sha256()
    for at in range(0, len(tokens) - TOKENS + 1, TOKENS):
        digest.update(np.asarray(tokens[at : at + TOKENS], np.int32).tobytes())
        yield digest.hexdigest()[:32]
