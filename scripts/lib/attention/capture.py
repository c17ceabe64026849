"""Queries, keys and attention's mass of real texts; computed once and kept in ~/.cache/kvfs/attention.

A request's context is a stored *prefix* and a new *turn*. Two turns follow each prefix: one that goes on with its subject,
and one that asks for a passage far back and quotes it. What the turn's own tokens get of the attention is not of interest:
they are not loaded from anywhere.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.lib.decoder.forward import Context, Decoder
from scripts.lib.decoder.model import Floats
from scripts.lib.decoder.texts import TEXTS

BLOCK = 64
LAYER_STEP = 2
SWITCH = "\n\nQuestion: what does the text say about this? Quote it word for word.\nAnswer:\n\n"
"""How a turn begins that asks for something else."""
VERSION = 1


@dataclass(frozen=True)
class Sizes:
    """Tokens.

    :ivar history: of the prefix, at its end, whose attention is kept
    :ivar stored: of the prefix, at its end, whose queries are kept
    """

    prefix: int
    turn: int
    switch: int
    history: int
    stored: int = 64


@dataclass(frozen=True)
class Turn:
    """:ivar queries: `(layers, heads, tokens, width)`
    :ivar mass: `(layers, tokens, kv_heads, blocks)`: how each token's attention is divided among the prefix's blocks, the
        mean over the heads that share a head of keys
    """

    queries: NDArray[np.float16]
    mass: NDArray[np.float16]


@dataclass(frozen=True)
class Capture:
    """One text.

    :ivar keys: of the prefix, `(layers, kv_heads, tokens, width)`
    :ivar history: the end of the prefix
    :ivar same: the turn that goes on
    :ivar switch: the turn that asks for something else
    """

    keys: NDArray[np.float16]
    history: Turn
    same: Turn
    switch: Turn


def captures(sizes: Sizes, names: Sequence[str], load: Callable[[], Decoder]) -> dict[str, Capture]:
    """Of each text; computed if they are not there, at about 150 tokens a second and core.

    :param load: makes the model, if it is needed
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvfs/attention"
    paths = {name: folder / f"{name}-{_mark(sizes, name)}.npz" for name in names}
    missing = [name for name in names if not paths[name].exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        recorder = _Recorder(load(), sizes)
        for name in missing:
            print(f"scripts/bench attention: computing what is attended to in {name!r}", file=sys.stderr)
            _save(paths[name], recorder.capture(TEXTS[name]()))
    return {name: _read(path) for name, path in paths.items()}


def _mark(sizes: Sizes, name: str) -> str:
    """Changes with all that a capture depends on, but for the code of this module: that has VERSION."""
    text = f"{VERSION} {astuple(sizes)} {TEXTS[name]()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _save(path: Path, capture: Capture) -> None:
    arrays: dict[str, Any] = {"keys": capture.keys}
    for field in fields(Capture)[1:]:
        arrays |= {
            f"{field.name}_{key}": value for key, value in asdict(getattr(capture, field.name)).items()
        }
    aside = path.with_suffix(".part.npz")
    np.savez(aside, allow_pickle=False, **arrays)
    aside.rename(path)


def _read(path: Path) -> Capture:
    with np.load(path) as found:
        turns = {
            field.name: Turn(found[f"{field.name}_queries"], found[f"{field.name}_mass"])
            for field in fields(Capture)[1:]
        }
        return Capture(keys=found["keys"], **turns)


class _Recorder:
    """Runs the model over a text and keeps what is needed."""

    def __init__(self, decoder: Decoder, sizes: Sizes) -> None:
        self._decoder = decoder
        self._sizes = sizes

    def capture(self, text: str) -> Capture:
        sizes, encode = self._sizes, self._decoder.tokenizer.encode
        tokens = encode(text)
        prefix = tokens[: sizes.prefix]
        passage = tokens[sizes.prefix // 4 :]
        context = Context(self._decoder.shape, sizes.prefix + max(sizes.turn, sizes.switch))
        history = self._run(context, prefix, sizes.stored, sizes.history)
        keys = context.kv[::LAYER_STEP, 0, :, : sizes.prefix].copy()
        turns = []
        for turn in (tokens[sizes.prefix :][: sizes.turn], (encode(SWITCH) + passage)[: sizes.switch]):
            context.length = sizes.prefix
            turns.append(self._run(context, turn, len(turn), len(turn)))
        return Capture(keys, history, *turns)

    def _run(self, context: Context, tokens: Sequence[int], queries: int, masses: int) -> Turn:
        """Append tokens; keep the queries and the masses of the last ones."""
        shape, begin = self._decoder.shape, context.length
        layers = len(range(0, shape.layers, LAYER_STEP))
        blocks = self._sizes.prefix // BLOCK
        kept = np.zeros((layers, shape.heads, len(tokens), shape.width), np.float16)
        mass = np.zeros((layers, len(tokens), shape.kv_heads, blocks), np.float16)

        def watch(layer: int, asked: Floats, weights: Floats) -> None:
            if layer % LAYER_STEP:
                return
            at = context.length - begin
            rows = slice(at, at + asked.shape[1])
            kept[layer // LAYER_STEP, :, rows] = asked
            prefix = weights[:, :, : self._sizes.prefix]
            sums = np.add.reduceat(prefix, np.arange(0, prefix.shape[-1], BLOCK), axis=-1)
            together = sums.reshape(shape.kv_heads, -1, *sums.shape[1:]).mean(axis=1)
            mass[layer // LAYER_STEP, rows, :, : together.shape[-1]] = together.transpose(1, 0, 2)

        self._decoder.extend(context, tokens, watch)
        return Turn(kept[:, :, len(tokens) - queries :], mass[:, len(tokens) - masses :])
