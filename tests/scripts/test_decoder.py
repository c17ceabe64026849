"""The small decoder computes what the textbook says, however its tokens come, and its contexts can be stored in blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scripts.lib.decoder.blocks import LAYERS, TOKENS, block_bytes, blocks
from scripts.lib.decoder.forward import CHUNK, Context, Decoder
from scripts.lib.decoder.model import Floats, Layer, Shape, Weights
from scripts.lib.decoder.texts import TEXTS
from scripts.lib.decoder.tokens import Tokenizer

pytestmark = pytest.mark.numpy

SHAPE = Shape("tiny", layers=LAYERS, heads=4, kv_heads=2, width=8, base=1e4, epsilon=1e-5, context=1024)
VOCABULARY = 50


def decoder() -> Decoder:
    rng = np.random.default_rng(0)
    wide, narrow, inner = SHAPE.heads * SHAPE.width, SHAPE.kv_heads * SHAPE.width, 48

    def matrix(*shape: int) -> Floats:
        return rng.standard_normal(shape, np.float32) / math.sqrt(shape[0])

    layers = tuple(
        Layer(
            1 + matrix(wide),
            1 + matrix(wide),
            matrix(wide, wide),
            matrix(wide, narrow),
            matrix(wide, narrow),
            matrix(wide, wide),
            matrix(wide, inner),
            matrix(wide, inner),
            matrix(inner, wide),
        )
        for _ in range(SHAPE.layers)
    )
    weights = Weights(SHAPE, matrix(VOCABULARY, wide) * 5, 1 + matrix(wide), layers, Tokenizer([], []))
    return Decoder(weights)


def tokens(count: int) -> list[int]:
    return [int(number) for number in np.random.default_rng(1).integers(0, VOCABULARY, count)]


def textbook(model: Decoder, numbers: list[int]):
    """All tokens at once, one head and one position after the other; keys and values rounded as a cache rounds them."""
    weights = model._weights
    rows = weights.embedding[numbers].astype(np.float64)

    def normal(row, gain):
        return row / np.sqrt((row**2).mean(-1, keepdims=True) + SHAPE.epsilon) * gain

    def turned(row, position):
        pairs = row.reshape(-1, 2)
        angle = position * SHAPE.base ** (-2 * np.arange(len(pairs)) / SHAPE.width)
        turn = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * angle)
        return np.stack([turn.real, turn.imag], 1).ravel()

    for layer in weights.layers:
        inputs = normal(rows, layer.attn_norm)
        mixed = np.zeros_like(rows)
        for head in range(SHAPE.heads):
            mine = slice(head * SHAPE.width, (head + 1) * SHAPE.width)
            other = head // (SHAPE.heads // SHAPE.kv_heads)
            theirs = slice(other * SHAPE.width, (other + 1) * SHAPE.width)
            queries = [turned(row, n) for n, row in enumerate((inputs @ layer.attn_q)[:, mine])]
            keys = np.array([turned(row, n) for n, row in enumerate((inputs @ layer.attn_k)[:, theirs])])
            keys = keys.astype(np.float16).astype(np.float64)
            values = (inputs @ layer.attn_v)[:, theirs].astype(np.float16).astype(np.float64)
            for position, query in enumerate(queries):
                scores = np.exp(keys[: position + 1] @ query / math.sqrt(SHAPE.width))
                mixed[position, mine] = scores @ values[: position + 1] / scores.sum()
        rows = rows + mixed @ layer.attn_output
        inputs = normal(rows, layer.ffn_norm)
        gate = inputs @ layer.ffn_gate
        rows = rows + (gate / (1 + np.exp(-gate)) * (inputs @ layer.ffn_up)) @ layer.ffn_down
    return normal(rows[-1], weights.norm) @ weights.embedding.T


def test_scores_are_the_textbooks() -> None:
    model, numbers = decoder(), tokens(20)
    scores = model.extend(Context(SHAPE, 20), numbers)
    assert scores == pytest.approx(textbook(model, numbers), abs=0.02)


@pytest.mark.parametrize("cut", [1, 7, CHUNK, CHUNK + 1])
def test_a_context_may_come_in_parts(cut: int) -> None:
    model, numbers = decoder(), tokens(CHUNK + 20)
    whole, parts = Context(SHAPE, len(numbers)), Context(SHAPE, len(numbers))
    expected = model.extend(whole, numbers)
    model.extend(parts, numbers[:cut])
    assert model.extend(parts, numbers[cut:]) == pytest.approx(expected, abs=0.02)
    assert whole.length == parts.length == len(numbers)


def test_what_is_watched_is_attention() -> None:
    """Each position divides one among itself and those before it; layers are ready before they are watched."""
    model, seen = decoder(), []

    def watch(layer: int, queries: Floats, weights: Floats) -> None:
        seen.append(("watched", layer))
        assert queries.shape == (SHAPE.heads, 9, SHAPE.width)
        assert weights.sum(axis=-1) == pytest.approx(np.ones((SHAPE.heads, 9)), abs=1e-5)
        assert not np.triu(weights, 1).any()

    model.extend(Context(SHAPE, 9), tokens(9), watch, lambda layer: seen.append(("ready", layer)))
    assert seen == [(what, layer) for layer in range(SHAPE.layers) for what in ("ready", "watched")]


def test_a_context_comes_back_from_its_blocks() -> None:
    model, numbers = decoder(), tokens(TOKENS + 5)
    context, again = Context(SHAPE, 600), Context(SHAPE, 600)
    model.extend(context, numbers[:TOKENS])
    stored = {block.name: block.pack(context) for block in blocks(SHAPE, numbers)}
    assert {len(content) for content in stored.values()} == {block_bytes(SHAPE)}
    for block in blocks(SHAPE, numbers):
        block.unpack(again, memoryview(stored[block.name]))
    again.length = TOKENS
    assert np.array_equal(model.extend(again, numbers[TOKENS:]), model.extend(context, numbers[TOKENS:]))


def test_blocks_are_named_by_all_that_precedes_them() -> None:
    shape = Shape("two groups", 2 * LAYERS, 4, 2, 8, 1e4, 1e-5, 1024)
    first, other = tokens(2 * TOKENS), tokens(2 * TOKENS)
    other[0] += 1
    names = [block.name for block in blocks(shape, first)]
    assert [block.group for block in blocks(shape, first)] == [0, 0, 1, 1]
    assert not set(names) & {block.name for block in blocks(shape, other)}
    assert set(names) > {block.name for block in blocks(shape, first[: TOKENS + 9])}


def test_text_becomes_the_longest_tokens_that_merges_make() -> None:
    letters = [*"abcx", "Ġ", "Ċ", "1", "2", "Ã", "©"]
    tokenizer = Tokenizer([*letters, "ab", "abc", "Ġa", "Ã©"], ["a b", "ab c", "Ġ a", "Ã ©"])
    names = dict(enumerate([*letters, "ab", "abc", "Ġa", "Ã©"]))

    def pieces(text: str) -> list[str]:
        return [names[number] for number in tokenizer.encode(text)]

    assert pieces("abcx") == ["abc", "x"]
    assert pieces("x ab") == ["x", "Ġ", "ab"]
    assert pieces("x ax") == ["x", "Ġa", "x"]
    assert pieces("12") == ["1", "2"]
    assert pieces("é\n") == ["Ã©", "Ċ"]
    assert pieces("") == []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_texts_are_long_and_the_same_each_time(name: str) -> None:
    text = TEXTS[name]()
    assert len(text) > 50_000
    assert text == TEXTS[name]()
