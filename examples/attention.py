#!/usr/bin/env python3
"""What an engine does that attends to some blocks of a context only, and what that costs in exactness.

One turn reads a whole context and tells the cache what its attention read. The next one reads a part of the blocks of each
layer group, those that the cache chose, and leaves out the rest. What it prints says how much of the context was
loaded and how far the outcome is from the exact one: **sparse mode is lossy**. Its keys are noise but for some that
queries look for; a model's are neither so easy nor so hard.

    kvfs pool create hot /var/tmp/kvfs-drive --size 4GiB
    python examples/attention.py hot
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kvfs
from kvfs import sync
from kvfs.errors import KvfsError

MIB = 1 << 20
GROUPS = 4
BLOCKS = 64
TOKENS = 64
"""Of a block."""
WIDTH = 64
SUBJECTS = 3
"""Blocks that queries of a group look for."""
BUDGET = 0.15
MEMORY = 64 * MIB
NAMESPACE = kvfs.Namespace("demo-attention")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Read:
    """What attention of one layer group came to.

    :ivar output: `(queries, WIDTH)`
    :ivar mass: `(blocks,)`, how it was divided among the blocks that it read
    """

    output: Floats
    mass: Floats


class Model:
    """One head of attention for each layer group, with keys and values that follow from a number."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.subjects = rng.permuted(np.tile(np.arange(2, BLOCKS - 3), (GROUPS, 1)), axis=1)[:, :SUBJECTS]
        self.cached = rng.standard_normal((GROUPS, BLOCKS, 2, TOKENS, WIDTH), np.float32)
        looked_for = rng.standard_normal((GROUPS, SUBJECTS, WIDTH), np.float32)
        for group in range(GROUPS):
            self.cached[group, self.subjects[group], 0, TOKENS // 2] = 2 * looked_for[group]
        self.queries = np.repeat(looked_for, 4, axis=1) + rng.standard_normal(
            (GROUPS, 4 * SUBJECTS, WIDTH), np.float32
        ) / np.float32(4)

    def keys(self, group: int) -> list[bytes]:
        """The names of a group's blocks."""
        return [hashlib.sha256(b"group %d, block %d" % (group, block)).digest() for block in range(BLOCKS)]

    def read(self, group: int, cached: Floats) -> Read:
        """Attend to these blocks, `(blocks, 2, TOKENS, WIDTH)`, as if there were no others."""
        keys, values = (cached[:, half].reshape(-1, WIDTH) for half in (0, 1))
        scores = self.queries[group] @ keys.T / np.sqrt(np.float32(WIDTH))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return Read(weights @ values, weights.mean(axis=0).reshape(-1, TOKENS).sum(axis=1))


class Engine:
    """Stores a context, and reads it in two turns."""

    def __init__(self, cache: sync.BlockingCache, model: Model) -> None:
        self._cache = cache
        self._model = model
        self._memory = np.zeros_like(model.cached)

    def store(self) -> None:
        for group in range(GROUPS):
            for key, block in zip(self._model.keys(group), self._model.cached[group], strict=True):
                self._cache.put(key, block)

    def forget(self) -> None:
        for group in range(GROUPS):
            for key in self._model.keys(group):
                self._cache.remove(key)

    def first_turn(self) -> list[Read]:
        """Read everything, and tell what attention read of it."""
        keys, *others = self._keys()
        self._cache.begin("first", keys, block=TOKENS, groups=others)
        reads = []
        for group, (_, read) in enumerate(self._turn("first")):
            self._cache.attend("first", group, mass=read.mass, tokens=TOKENS)
            reads.append(read)
        self._cache.end("first", "end_turn")
        return reads

    def second_turn(self, budget: float) -> list[tuple[list[int], Read]]:
        """Read a part: for each group, which blocks, and what it came to."""
        keys, *others = self._keys()
        self._cache.begin("second", keys, block=TOKENS, mode="sparse", budget=budget, groups=others)
        turn = self._turn("second")
        self._cache.end("second", "end_turn")
        return turn

    def _keys(self) -> list[list[bytes]]:
        """Of each layer group, its blocks."""
        return [self._model.keys(group) for group in range(GROUPS)]

    def _turn(self, request: str) -> list[tuple[list[int], Read]]:
        self._memory[:] = np.nan  # whoever reads what was not loaded shall see it
        pairs = [[*zip(keys, self._memory[at], strict=True)] for at, keys in enumerate(self._keys())]
        turn = []
        with self._cache.layers(pairs, request=request) as coming:
            for group in range(GROUPS):
                blocks = coming.loaded(group)
                turn.append((blocks, self._model.read(group, self._memory[group, blocks])))
        return turn


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Read a context whole, then in part; say what that changed.")
    parser.add_argument("pool", help="name of a pool; it may be mounted at the same time")
    parser.add_argument("--state-dir", type=Path, help="where kvfs keeps what it knows about pools")
    parser.add_argument("--budget", type=float, default=BUDGET, help="share of blocks to read")
    options = parser.parse_args(arguments)
    model = Model()
    try:
        with sync.open_cache(
            options.pool, namespace=NAMESPACE, memory=MEMORY, state=options.state_dir
        ) as cache:
            engine = Engine(cache, model)
            engine.store()
            try:
                exact = engine.first_turn()
                part = engine.second_turn(options.budget)
            finally:
                engine.forget()
    except KvfsError as error:
        print(f"attention: {error}", file=sys.stderr)
        return 1
    for group, ((blocks, read), whole) in enumerate(zip(part, exact, strict=True)):
        off = np.linalg.norm(read.output - whole.output) / np.linalg.norm(whole.output)
        print(
            f"group {group}: {len(blocks)} of {BLOCKS} blocks had {whole.mass[blocks].sum():.0%} of attention; "
            f"the outcome differs by {off:.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
