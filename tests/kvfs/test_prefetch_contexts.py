"""What requests' attention has read decides what is loaded; what does not fit is refused and changes nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfs.errors import BadAttention
from kvfs.prefetch.checks import BLOCKS_MAX, WIDTH_MAX
from kvfs.prefetch.contexts import FRESH, GROUPS, Context, Contexts
from kvfs.prefetch.observation import Observation
from tests.kvfs.attention import always, keys_with, mass_on, query_for

pytestmark = pytest.mark.numpy

BLOCK = 64
BLOCKS = 100


def said(**values: Any) -> Observation:
    return Observation(**values)


@pytest.fixture
def context() -> Context:
    return Context(BLOCK)


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.integers(0, 60),
    known=st.integers(0, 80),
    hot=st.integers(0, 79),
    budget=st.floats(0.001, 1),
    block=st.sampled_from([16, 64, 128, 4096]),
)
def test_a_choice_is_as_large_as_its_budget(
    blocks: int, known: int, hot: int, budget: float, block: int
) -> None:
    context = Context(block)
    if known:
        context.attend(0, said(mass=mass_on(known, hot % known), tokens=64))
    chosen = context.choose(0, blocks, budget)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(blocks))
    assert always(blocks, block) <= set(chosen)
    assert len(chosen) == max(math.ceil(budget * blocks), len(always(blocks, block)))
    assert set(context.choose(0, blocks, 1.0)) == set(range(blocks))


def test_what_was_read_comes_after_what_always_counts(context: Context) -> None:
    context.attend(0, said(mass=mass_on(BLOCKS, 40, 60), tokens=64))
    order = context.choose(0, BLOCKS, 1.0)
    assert set(order[:3]) == {0, BLOCKS - 2, BLOCKS - 1}
    assert set(order[3:5]) == {40, 60}
    assert set(context.choose(0, BLOCKS, 0.05)) == {0, BLOCKS - 2, BLOCKS - 1, 40, 60}


def test_attention_may_read_elsewhere(context: Context) -> None:
    context.attend(0, said(mass=[], tokens=5))
    context.attend(0, said(mass=mass_on(BLOCKS, 40), tokens=64))
    context.attend(0, said(mass=[], tokens=5))
    assert context.choose(0, BLOCKS, 0.04)[3] == 40


def test_groups_are_chosen_for_alone(context: Context) -> None:
    context.attend(1, said(mass=mass_on(BLOCKS, 40), tokens=64))
    context.attend(2, said(mass=[0.5], blocks=[60], tokens=64))
    assert [context.choose(group, BLOCKS, 0.04)[3] for group in (1, 2)] == [40, 60]
    assert context.choose(0, BLOCKS, 0.04)[3] == BLOCKS - 3  # of which nothing is known: the last first


def test_a_query_finds_what_was_never_read(context: Context) -> None:
    keys = keys_with(BLOCKS, BLOCK, 33)
    context.attend(0, said(keys=keys[:, : 50 * BLOCK]))
    context.attend(0, said(keys=keys[:, 50 * BLOCK :], queries=query_for(33)))
    assert context.choose(0, BLOCKS, 0.04)[3] == 33


def test_a_query_grows_old(context: Context) -> None:
    context.attend(0, said(keys=keys_with(BLOCKS, BLOCK, 33), queries=query_for(33)))
    context.attend(0, said(mass=mass_on(BLOCKS, 70), tokens=FRESH - 1))
    assert 33 in context.choose(0, BLOCKS, 0.05)
    context.attend(0, said(mass=mass_on(BLOCKS, 70), tokens=1))
    assert 33 not in context.choose(0, BLOCKS, 0.05)


def test_arrays_may_change_after_they_were_told(context: Context) -> None:
    mass, keys, query = mass_on(BLOCKS, 40), keys_with(BLOCKS, BLOCK, 33), query_for(33)
    context.attend(0, said(mass=mass, keys=keys, queries=query, tokens=64))
    before = context.choose(0, BLOCKS, 0.2)
    for array in (mass, keys, query):
        array[:] = 0
    assert context.choose(0, BLOCKS, 0.2) == before


GOOD = mass_on(BLOCKS, 40)


@pytest.mark.parametrize(
    "group, values, message",
    [
        (-1, {"mass": GOOD}, "layer group -1 is not between 0 and"),
        (GROUPS, {"mass": GOOD}, "is not between"),
        (0, {}, "nothing was said"),
        (0, {"blocks": [1]}, "blocks without mass"),
        (0, {"mass": GOOD, "tokens": 0}, "0 tokens cannot have read"),
        (0, {"mass": GOOD.reshape(10, 10)}, r"mass has the shape \(10, 10\); it must have 1 axis"),
        (0, {"mass": "much"}, "mass must be an array of float32"),
        (0, {"mass": [[0.1], [0.1, 0.2]]}, "mass must be an array"),
        (0, {"mass": [0.1, math.nan]}, "mass has values that are infinite or not numbers"),
        (0, {"mass": [1e300]}, "mass has values that are infinite"),
        (0, {"mass": [-0.1, 0.2]}, "none below 0, at most 1 together"),
        (0, {"mass": [0.9, 0.9]}, "at most 1 together"),
        (0, {"mass": [0.1], "blocks": [1, 2]}, r"mass of \(1,\) for blocks of \(2,\)"),
        (0, {"mass": [0.1, 0.1], "blocks": [3, 3]}, "once each"),
        (0, {"mass": [0.1], "blocks": [-1]}, "blocks must be numbers from 0"),
        (0, {"mass": [0.1], "blocks": [BLOCKS_MAX]}, "blocks must be numbers from 0"),
        (0, {"mass": [0.1], "blocks": [0.5]}, "blocks must be an array of int64"),
        (0, {"keys": np.zeros((2, 65, 64))}, "give whole blocks of 64"),
        (0, {"keys": np.zeros((2, 0, 64))}, "give whole blocks of 64"),
        (0, {"keys": np.zeros((0, 64, 64))}, "at least one head"),
        (0, {"keys": np.zeros((1, 64, WIDTH_MAX + 1))}, "at most 1024 wide"),
        (0, {"keys": np.zeros((64, 64))}, "keys has the shape"),
        (0, {"keys": np.full((1, 64, 8), np.inf)}, "keys has values"),
        (1, {"keys": np.zeros((3, 64, 64))}, "keys of 3 heads 64 wide; those before were 1, 64 wide"),
        (1, {"queries": np.zeros((1, 4, 32))}, "queries of 1 heads 32 wide"),
        (1, {"queries": np.zeros((1, 0, 64))}, "there are no queries"),
        (0, {"queries": np.zeros((1, 4, 64))}, "give the keys of that layer"),
        (1, {"mass": GOOD, "keys": np.zeros((1, 64, 64)), "queries": np.full((1, 1, 64), math.nan)}, "queries"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    context: Context, group: int, values: dict[str, Any], message: str
) -> None:
    context.attend(1, said(mass=mass_on(BLOCKS, 20), keys=keys_with(BLOCKS, BLOCK, 33)))
    before = context.size, context.choose(0, BLOCKS, 0.2), context.choose(1, BLOCKS, 0.2)
    with pytest.raises(BadAttention, match=message) as caught:
        context.attend(group, said(**values))
    assert "\n" not in str(caught.value)
    assert (context.size, context.choose(0, BLOCKS, 0.2), context.choose(1, BLOCKS, 0.2)) == before


def test_a_context_has_an_end(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvfs.prefetch.checks.BLOCKS_MAX", 3)
    context.attend(0, said(keys=np.ones((1, 3 * BLOCK, 8))))
    with pytest.raises(BadAttention, match="at most 3 blocks"):
        context.attend(0, said(keys=np.ones((1, BLOCK, 8))))


# ---- requests that go on ---------------------------------------------------------------------------------------


def ended(contexts: Contexts, chain: str, hot: int, block: int = BLOCK) -> Context:
    context = contexts.begin(chain, block)
    context.attend(0, said(mass=mass_on(BLOCKS, hot), tokens=64))
    contexts.end(chain, context)
    return context


def test_the_next_turn_goes_on_with_what_was_read() -> None:
    contexts = Contexts()
    short, long = ended(contexts, "ab", 40), contexts.begin("abX", BLOCK)
    assert long is short
    contexts.end("ab", short)
    longer = ended(contexts, "cde", 50)
    assert contexts.begin("cd", BLOCK) not in (short, longer)
    assert contexts.begin("cde", 2 * BLOCK) is not longer
    assert contexts.begin("cdefg", BLOCK) is longer
    assert contexts.begin("cdefg", BLOCK) is not longer  # another request has it


def test_the_longest_beginning_counts() -> None:
    contexts = Contexts()
    one, two = contexts.begin("a", BLOCK), contexts.begin("ab", BLOCK)
    contexts.end("ab", two)
    contexts.end("a", one)
    assert contexts.begin("abc", BLOCK) is two


def test_requests_that_ended_take_so_much_at_most() -> None:
    probe = Contexts()
    size = ended(probe, "x", 40).size
    contexts = Contexts(idle_bytes=3 * size)
    for name in "abcd":
        ended(contexts, name, 40)
    assert len(contexts) == 3
    assert contexts.begin("a", BLOCK).size == 0
    assert contexts.begin("b", BLOCK).size == size
    assert len(contexts) == 2
    ended(contexts, "cx", 40)  # takes the place of what it went on with
    assert len(contexts) == 2


def test_what_is_too_large_alone_is_forgotten_alone() -> None:
    probe = Contexts()
    size = ended(probe, "x", 40).size
    contexts = Contexts(idle_bytes=2 * size)
    ended(contexts, "a", 40)
    huge = contexts.begin("b", BLOCK)
    huge.attend(0, said(mass=mass_on(3 * BLOCKS, 40)))
    contexts.end("b", huge)
    contexts.end("", contexts.begin("", BLOCK))
    assert len(contexts) == 1


def test_two_that_end_alike_count_once() -> None:
    contexts = Contexts()
    one, two = contexts.begin("a", BLOCK), contexts.begin("a", BLOCK)
    contexts.end("a", one)
    contexts.end("a", two)
    assert len(contexts) == 1
    assert contexts.begin("a", BLOCK) is two
