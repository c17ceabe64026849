"""Attention that reads where a test says."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 64
AWAY = 6.0
"""How far a key lies from all others in its own direction."""


def mass_on(blocks: int, *hot: int) -> Any:
    """`(blocks,)`: shares of a context of which these have 90 %."""
    mass = np.full(blocks, 0.1 / blocks, np.float32)
    mass[list(hot)] += np.float32(0.9 / len(hot))
    return mass


def keys_with(blocks: int, block: int, needle: int) -> Any:
    """`(1, tokens, WIDTH)`: noise, and in the middle of one block a key that `query_for` reads."""
    keys = np.random.default_rng(1).standard_normal((1, blocks * block, WIDTH), np.float32)
    keys[0, needle * block + block // 2] = AWAY * _direction(needle)
    return keys


def query_for(needle: int) -> Any:
    """`(1, 2, WIDTH)`"""
    return np.tile(AWAY * _direction(needle), (1, 2, 1)).astype(np.float32)


def always(blocks: int, block: int) -> set[int]:
    """The blocks of the first 64 tokens and of the last 128."""
    tokens = range(blocks * block)
    return {token // block for token in [*tokens[:64], *tokens[-128:]]}


def _direction(seed: int) -> Any:
    return np.sign(np.random.default_rng(seed).standard_normal(WIDTH)).astype(np.float32)
