"""Choices of blocks are judged fairly: nobody beats who sees the future, and nobody else sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scripts.lib.attention import capture, choices
from scripts.lib.attention.capture import BLOCK, Capture, Sizes, Turn, captures
from scripts.lib.attention.choices import WINDOW, Moment
from scripts.lib.decoder.forward import Decoder
from scripts.lib.decoder.tokens import Tokenizer
from tests.scripts.test_decoder import SHAPE, VOCABULARY, decoder

pytestmark = pytest.mark.numpy

BLOCKS = 40
CHOOSERS = (
    choices.oracle,
    choices.sketched,
    choices.sketched_together,
    choices.one_mean,
    choices.exact_query,
    choices.quest,
    choices.magic_counts,
    choices.recency,
)


def capture_of(seed: int) -> Capture:
    """Two layers and two heads of keys for four of queries; some blocks are read more than others, and go on being read."""
    rng = np.random.default_rng(seed)
    likes = rng.zipf(1.5, (2, 1, 2, BLOCKS)).clip(max=1000) / 1000

    def turn(tokens: int) -> Turn:
        mass = likes * rng.random((2, tokens, 2, BLOCKS))
        queries = rng.standard_normal((2, 4, tokens, 16))
        return Turn(queries.astype(np.float16), (mass / mass.sum(-1, keepdims=True)).astype(np.float16))

    keys = rng.standard_normal((2, 2, BLOCKS * BLOCK, 16)).astype(np.float16)
    return Capture(keys, turn(200), turn(256), turn(WINDOW))


@pytest.mark.parametrize("seed", range(3))
def test_nobody_beats_who_sees_the_window(seed: int) -> None:
    text = capture_of(seed)
    for moment in (Moment(text, text.same, 0), Moment(text, text.same, 128), Moment(text, text.switch, 0)):
        best = moment.worth(choices.oracle(moment))
        assert 0 < best <= 1
        for choose in CHOOSERS:
            assert moment.worth(choose(moment)) <= best + 1e-6
        together = [choices.oracle_together(moment), choices.sketched_together(moment)]
        assert all(np.array_equal(scores[:, 0], scores[:, 1]) for scores in together)


@pytest.mark.parametrize("choose", CHOOSERS[1:], ids=lambda choose: choose.__name__)
def test_nobody_else_sees_it(choose: choices.Chooser) -> None:
    """Another future, the same choice: all but the first query of the window is replaced."""
    text = capture_of(1)
    moment = Moment(text, text.same, 100)
    queries, mass = text.same.queries.copy(), text.same.mass.copy()
    queries[:, :, 101:] = 7
    mass[:, 100:] = mass[:, 100:, :, ::-1]
    other = replace(moment, turn=Turn(queries, mass))
    assert np.array_equal(choose(moment), choose(other))


def test_what_goes_on_being_read_is_chosen() -> None:
    text = capture_of(2)
    moment = Moment(text, text.same, 128)
    best, ours = (moment.worth(choose(moment)) for choose in (choices.oracle, choices.sketched))
    assert ours > 0.9 * best
    assert moment.count == 4


class Words(Tokenizer):
    """A token for each character."""

    def __init__(self) -> None:
        super().__init__([], [])

    def encode(self, text: str) -> list[int]:
        return [ord(character) % VOCABULARY for character in text]


def test_a_capture_is_what_the_model_attends_to_and_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(capture, "TEXTS", {"text": lambda: "0123 and so on. " * 40})
    sizes, loaded = Sizes(prefix=4 * BLOCK, turn=80, switch=64, history=70, stored=8), []

    def load() -> Decoder:
        model = decoder()
        model.tokenizer = Words()
        loaded.append(model)
        return model

    def read(names: Sequence[str] = ("text",)) -> Capture:
        return captures(sizes, names, load)["text"]

    first, second = read(), read()
    assert len(loaded) == 1
    assert "computing" in capsys.readouterr().err
    layers = len(range(0, SHAPE.layers, capture.LAYER_STEP))
    assert first.keys.shape == (layers, SHAPE.kv_heads, 4 * BLOCK, SHAPE.width)
    assert first.history.mass.shape == (layers, 70, SHAPE.kv_heads, 4)
    assert first.same.queries.shape == (layers, SHAPE.heads, 80, SHAPE.width)
    assert first.switch.mass.shape == (layers, 64, SHAPE.kv_heads, 4)
    assert first.history.mass[:, -1].sum(-1) == pytest.approx(np.ones((layers, SHAPE.kv_heads)), abs=0.01)
    assert (first.same.mass.sum(-1) <= 1.01).all()
    exact = choices.exact_query(Moment(first, first.same, 0))
    mass = first.same.mass[:, 0].astype(np.float32)
    assert exact == pytest.approx(mass / mass.sum(-1, keepdims=True), abs=0.02)
    assert np.array_equal(first.switch.mass, second.switch.mass)
