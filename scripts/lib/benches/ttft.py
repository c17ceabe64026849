"""The time to the first token of a request whose context was computed before: computed again, loaded, or there already.

A small model on the CPU stands for an engine. Its keys and values are stored through a mount, and come back through a mount
and through the Cache API, on demand or from the DRAM tier into which they had been fetched before the request came. Every
way must give the very scores of tokens that computing them again gives.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.lib.decoder.blocks import block_bytes
from scripts.lib.decoder.first_token import POOL, Request, Trial
from scripts.lib.decoder.forward import Decoder
from scripts.lib.decoder.texts import TEXTS
from scripts.lib.decoder.weights import NoModel, load
from scripts.lib.mounts import Kvfs

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

CONTEXTS = (1024, 2048, 4096, 7680)
QUICK_CONTEXTS = (1024,)
"""Tokens that were computed before; whole blocks, and room for the new turn below the model's 8,192."""
TURN = 32
"""New tokens."""
ROUNDS = 5
POOL_SIZE = 1 << 30
GPU_FLOPS, GPU_LINK = 4e14, 25e9
"""What an H100-class GPU does in 16-bit prefills, and a PCIe 5 x16 slot or two network ports of 100 Gbit/s carry; assumed."""


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    try:
        decoder = Decoder(load())
    except NoModel as error:
        sys.exit(f"scripts/bench: {error}: scripts/lib/engines-venv smollm2 installs it")
    contexts, rounds = (QUICK_CONTEXTS, 1) if options.quick else (CONTEXTS, ROUNDS)
    rows.notes += _notes(decoder)
    folder = Path(tempfile.mkdtemp(prefix="kvfs-bench-", dir=options.folder))
    try:
        kvfs = Kvfs(folder)
        kvfs.create(POOL, folder / "device", POOL_SIZE)
        tokens = decoder.tokenizer.encode(TEXTS["reference"]())
        for length in contexts:
            request = Request(decoder, tokens[:length], tokens[length : length + TURN])
            Trial(rows, kvfs, folder, request).run(rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _notes(decoder: Decoder) -> list[str]:
    shape = decoder.shape
    return [
        f"model: {shape.name}, {shape.layers} layers, {shape.heads} heads of queries and {shape.kv_heads} of keys, {shape.width} "
        f"wide, 32-bit floats in numpy on one core; keys and values: {shape.kv_bytes} bytes a token, in objects "
        f"of {block_bytes(shape)} bytes; the new turn has {TURN} tokens",
        "a GPU changes computing, not loading: a model of 8 billion parameters with 131,072 bytes a token computes 8,192 tokens "
        f"again in {2 * 8e9 * 8192 / GPU_FLOPS:.2f} s at {GPU_FLOPS / 1e12:.0f} TFLOP/s and loads them in "
        f"{131072 * 8192 / GPU_LINK:.3f} s at {GPU_LINK / 1e9:.0f} GB/s (assumed, not measured); unpacking is a copy that a paged KV "
        "cache does without, and loading in the order of layers hides behind computing as far as that takes as long",
        "mount, fetched before: by `kvfs prefetch`, whose own time is a row; it is a process that begins, asks the mount and ends",
    ]
