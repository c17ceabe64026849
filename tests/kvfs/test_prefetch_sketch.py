"""Sketches of attention: what was read is chosen, estimates are near, bounds hold, and long contexts cost little more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvfs.prefetch.arrays import Floats, Growing, distinct
from kvfs.prefetch.attended import LATELY, LONG, NOW, TIMES, Attended
from kvfs.prefetch.digests import FAN, Digests
from kvfs.prefetch.queries import EVERY, KEPT, StoredQueries, attention_mass
from kvfs.prefetch.signatures import Signatures, directions
from kvfs.prefetch.sketch import Probe, Sketch

pytestmark = pytest.mark.numpy

WIDTH = 64
BLOCK = 16


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def vectors(*shape: int, seed: int = 0) -> Floats:
    return rng(seed).standard_normal(shape, np.float32)


def peaked(blocks: int, *hot: int) -> Floats:
    """Mass of a context of which these blocks have 90 %."""
    mass = np.full(blocks, 0.1 / blocks, np.float32)
    mass[list(hot)] += 0.9 / len(hot)
    return mass


# ---- arrays ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=20))
def test_arrays_grow_as_lists_do(steps: list[tuple[int, int]]) -> None:
    growing, model = Growing((2,), np.int64), np.zeros((0, 2), np.int64)
    for count, at in steps:
        rows = np.arange(2 * count).reshape(count, 2)
        at = min(at, len(model))
        growing.append(rows, at)
        model = np.concatenate([model[:at], rows])
        assert growing.rows.tolist() == model.tolist()


@given(st.lists(st.integers(-5, 5)))
def test_distinct_numbers(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))


# ---- what was read --------------------------------------------------------------------------------------------


def test_what_is_read_is_expected() -> None:
    attended = Attended()
    attended.grow(100)
    for _ in range(50):
        attended.observe(peaked(100, 7, 30))
    scores = attended.expect(np.arange(100))
    assert set(np.argsort(-scores)[:2]) == {7, 30}


def test_what_is_read_no_more_fades_and_the_block_behind_a_newly_read_one_gains() -> None:
    attended = Attended()
    attended.grow(50)
    attended.observe(peaked(50, 10), tokens=500)
    attended.observe(peaked(50, 20), tokens=20)
    scores = attended.expect(np.arange(50))
    assert scores[20] > scores[10]
    assert scores[21] > scores[22]
    assert scores[11] < scores[12]


@settings(max_examples=40)
@given(st.data())
def test_means_are_those_of_the_definition_whichever_blocks_are_told(data: st.DataObject) -> None:
    """Against means of all blocks, faded at each step; blocks left out had no mass."""
    blocks = data.draw(st.integers(1, 12))
    attended, model = Attended(), np.zeros((len(TIMES), blocks))
    attended.grow(blocks)
    for _ in range(data.draw(st.integers(1, 10))):
        which = np.array(sorted(data.draw(st.sets(st.integers(0, blocks - 1), min_size=1))))
        tokens = data.draw(st.integers(1, 50))
        mass = rng(tokens).random(len(which), np.float32)
        attended.observe(mass, which, tokens)
        fading = np.exp(-tokens / TIMES)[:, None]
        model = model * fading
        model[:, which] += mass * (1 - fading)
    shares = model[2] / model[2].sum()
    assert attended.shares(np.arange(blocks)) == pytest.approx(shares, rel=1e-3, abs=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 8))
def test_the_hottest_are_those_of_the_slowest_mean_though_only_some_are_ranked(seed: int, hot: int) -> None:
    """Against a mean of all blocks: what left the list for want of mass could not have come back without being read."""
    blocks, random = 60, rng(seed)
    attended, mean = Attended(hot), np.zeros(blocks)
    attended.grow(blocks)
    for _ in range(40):
        which = np.sort(random.choice(blocks, 5, replace=False))
        mass = random.random(5).astype(np.float32)
        attended.observe(mass, which, tokens=3)
        mean *= np.exp(-3 / TIMES[LONG])
        mean[which] += mass * (1 - np.exp(-3 / TIMES[LONG]))
    assert hot <= len(attended.hottest()) <= 2 * hot
    assert set(np.argsort(-mean)[:hot]) <= set(attended.hottest().tolist())


def test_a_context_grows_and_what_is_new_was_not_read() -> None:
    attended = Attended()
    attended.grow(4)
    attended.observe(peaked(4, 2), tokens=10)
    attended.grow(8)
    attended.grow(3)
    assert len(attended) == 8
    assert attended.shares(np.arange(8))[4:].tolist() == [0, 0, 0, 0]
    assert TIMES[NOW] < TIMES[LATELY] < TIMES[LONG]


@pytest.mark.parametrize("blocks", [[0, 1], [0, 1, 9], [-1, 0, 1]])
def test_mass_of_blocks_that_are_not_there_is_refused(blocks: list[int]) -> None:
    attended = Attended()
    attended.grow(9)
    with pytest.raises(ValueError, match="there are 9 blocks"):
        attended.observe(np.ones(3, np.float32), np.array(blocks))


# ---- exact scores of stored queries ---------------------------------------------------------------------------


def test_mass_is_what_attention_gives() -> None:
    queries, keys = vectors(2, 3, WIDTH, seed=1), vectors(2, 40, WIDTH)
    mass = np.zeros(3)
    for head in range(2):
        for query in queries[head]:
            weights = np.exp(keys[head] @ query / WIDTH**0.5)
            weights /= weights.sum()
            mass += [weights[at : at + BLOCK].sum() for at in (0, BLOCK, 2 * BLOCK)]
    assert attention_mass(queries, keys, BLOCK) == pytest.approx(mass / 6, rel=1e-4)


@pytest.mark.parametrize("chunk", [1, 5, 64, 200])
def test_eight_of_the_last_64_queries_are_kept_however_they_come(chunk: int) -> None:
    queries, keys, stored = vectors(4, 200, WIDTH, seed=2), vectors(2, 64, WIDTH), StoredQueries()
    for at in range(0, 200, chunk):
        stored.note(queries[:, at : at + chunk])
    kept = queries[:, :200:EVERY][:, -KEPT:]
    exact = attention_mass(kept.reshape(2, -1, WIDTH), keys, BLOCK)
    assert stored.mass(keys, BLOCK) == pytest.approx(exact, rel=1e-4)


def test_without_queries_there_is_nothing_to_ask() -> None:
    with pytest.raises(ValueError, match="no query"):
        StoredQueries().mass(vectors(1, 16, WIDTH), BLOCK)


# ---- signatures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32, 64, 96, 128])
def test_directions_are_orthogonal_in_groups(width: int) -> None:
    first = directions(width)[:, :width]
    assert first.T @ first == pytest.approx(np.eye(width), abs=1e-5)
    assert directions(width).shape == (width, 256)


def test_estimates_are_near_what_attention_gives() -> None:
    """Of keys that lie together far from the origin, some of them long: correlation with the exact logarithms."""
    keys = vectors(1, 64 * BLOCK, WIDTH) * rng(3).uniform(0.5, 3, (1, 64 * BLOCK, 1)).astype(np.float32) + 2
    signatures, queries = Signatures(1, WIDTH, BLOCK), vectors(1, 4, WIDTH, seed=4)
    for at in range(0, keys.shape[1], 4 * BLOCK):
        signatures.append(keys[:, at : at + 4 * BLOCK])
    for number in range(4):
        query = queries[:, number : number + 1]
        estimated = signatures.shares(query, np.arange(64))
        assert estimated.sum() == pytest.approx(1, rel=1e-4)
        exact = attention_mass(query, keys, BLOCK)
        assert np.corrcoef(np.log(estimated), np.log(exact))[0, 1] > 0.7


def test_long_keys_count_for_more() -> None:
    """What makes norms worth keeping: the same direction, once short, once long."""
    query = vectors(1, 1, WIDTH)
    noise = vectors(1, 3 * BLOCK, WIDTH, seed=5)
    keys = noise.copy()
    keys[:, :BLOCK] += query[0] * 0.5
    keys[:, BLOCK : 2 * BLOCK] += query[0] * 2
    signatures = Signatures(1, WIDTH, BLOCK)
    signatures.append(np.concatenate([noise, keys], axis=1))
    short, long, none = signatures.shares(query, np.array([3, 4, 5]))
    assert long > 2 * short > 2 * none


@pytest.mark.parametrize("shape", [(2, BLOCK, WIDTH), (1, BLOCK + 1, WIDTH), (1, BLOCK, 32), (1, 0, WIDTH)])
def test_keys_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    for keeper in (Signatures(1, WIDTH, BLOCK), Digests(1, WIDTH, BLOCK)):
        with pytest.raises(ValueError, match="must be"):
            keeper.append(np.zeros(shape, np.float32))
        assert len(keeper) == 0


# ---- digests --------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3 * FAN), min_size=1, max_size=6), st.integers(0, 100))
@example([FAN, 1], 0)
@example([FAN * FAN, 1, FAN], 0)
def test_bounds_hold_at_every_level_however_the_context_grew(growth: list[int], seed: int) -> None:
    digests, parts = (
        Digests(2, 8, 4),
        [vectors(2, 4 * count, 8, seed=seed + n) for n, count in enumerate(growth)],
    )
    for part in parts:
        digests.append(part)
    keys, queries = np.concatenate(parts, axis=1), vectors(2, 3, 8, seed=seed + 50)
    scores = queries @ keys.transpose(0, 2, 1) / 8**0.5
    size, level = 4, 0
    while (nodes := -(-keys.shape[1] // size)) > 1:
        bounds = digests.bounds(queries, np.arange(nodes), level)
        best = np.maximum.reduceat(scores, np.arange(0, keys.shape[1], size), axis=-1)
        assert (bounds >= best - 1e-5).all()
        if nodes <= FAN:
            break
        size, level = size * FAN, level + 1
    assert len(digests) == sum(growth)


def test_a_search_finds_the_block_with_the_key_that_is_asked_for() -> None:
    keys = vectors(1, 1000 * BLOCK, WIDTH) * 0.1
    query = vectors(1, 1, WIDTH, seed=9)
    keys[0, 777 * BLOCK + 5] = query[0, 0]
    digests = Digests(1, WIDTH, BLOCK)
    digests.append(keys)
    found = digests.candidates(query, 8)
    assert 777 in found
    assert len(found) <= 8


def test_of_few_blocks_all_are_candidates_and_of_none_none() -> None:
    digests, query = Digests(1, WIDTH, BLOCK), vectors(1, 1, WIDTH)
    assert digests.candidates(query, 4).tolist() == []
    digests.append(vectors(1, 3 * BLOCK, WIDTH))
    assert sorted(digests.candidates(query, 4)) == [0, 1, 2]


# ---- all together ---------------------------------------------------------------------------------------------


def sketch_of(blocks: int, probe: Probe | None = None, **bounds: int) -> Sketch:
    sketch = Sketch(64, probe, **bounds)
    sketch.grow(blocks)
    return sketch


def test_the_first_and_the_last_blocks_are_always_taken_and_never_chosen() -> None:
    sketch = sketch_of(20)
    sketch.observe(peaked(20, 0, 18, 19), tokens=50)
    assert sketch.always().tolist() == [0, 18, 19]
    assert sorted(sketch.choose(100).tolist()) == list(range(1, 18))


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 4])
def test_a_short_context_is_taken_as_a_whole(blocks: int) -> None:
    sketch = sketch_of(blocks)
    assert sorted([*sketch.always().tolist(), *sketch.choose(10).tolist()]) == list(range(blocks))


def test_of_whom_nothing_is_known_the_last_come_first() -> None:
    assert sketch_of(20).choose(3).tolist() == [17, 16, 15]


def test_a_new_query_finds_what_was_never_read() -> None:
    """A needle: history says block 50, the query reads block 200. Without a probe it cannot be known."""
    blocks = 400
    keys, query = vectors(1, 64 * blocks, WIDTH), vectors(1, 1, WIDTH, seed=1) * 3
    keys[0, 200 * 64 : 201 * 64] += query[0]
    probe = Probe(1, WIDTH, 64)
    probe.append(keys)
    for asked, found in ((probe, True), (None, False)):
        sketch = sketch_of(blocks, asked)
        read = np.arange(40, 60)
        sketch.observe(np.full(20, 1 / 20, np.float32), read, tokens=200)
        chosen = sketch.choose(30, query)
        assert (200 in chosen) is found
        assert set(read) <= set(chosen)


def test_a_probe_that_is_behind_is_asked_for_what_it_has() -> None:
    probe = Probe(1, WIDTH, 64)
    probe.append(vectors(1, 64 * 10, WIDTH))
    sketch = sketch_of(40, probe)
    sketch.observe(peaked(40, 5, 30), tokens=50)
    chosen = sketch.choose(5, vectors(1, 1, WIDTH, seed=1))
    assert {5, 30} <= set(chosen)


def test_a_query_asks_about_what_was_read_though_digests_find_nothing_else() -> None:
    """All that they find are the last blocks, which are taken anyway."""
    probe, query = Probe(1, WIDTH, 64), vectors(1, 1, WIDTH)
    keys = vectors(1, 64 * 20, WIDTH, seed=3)
    keys[0, 64 * 18 :] += query[0] * 5
    keys[0, 64 * 7 : 64 * 8] += query[0]
    probe.append(keys)
    sketch = sketch_of(20, probe, found=2)
    sketch.observe(peaked(20, 3, 7), tokens=50)
    assert sketch.choose(2, query)[0] == 7


def test_an_empty_probe_says_nothing() -> None:
    sketch = sketch_of(20, Probe(1, WIDTH, 64))
    assert sketch.choose(3, vectors(1, 1, WIDTH)).tolist() == [17, 16, 15]
    sketch.observe(peaked(20, 3, 7), tokens=50)
    assert set(sketch.choose(2, vectors(1, 1, WIDTH))) == {3, 7}


def test_the_block_behind_what_is_read_comes_next() -> None:
    sketch = sketch_of(50)
    sketch.observe(np.ones(1, np.float32), np.array([20]), tokens=5)
    assert sketch.choose(3).tolist() == [20, 21, 47]


def test_what_is_remembered_is_known_again() -> None:
    before, after = sketch_of(50), sketch_of(50)
    before.observe(peaked(50, 20, 30), tokens=100)
    after.observe(before.shares(np.arange(50)), tokens=100)
    assert set(after.choose(2)) == {20, 30}


def test_one_shot_scan_does_not_displace_what_is_read_again() -> None:
    """A pass over everything, as a summary makes, leaves the blocks ahead that were read before and are read after it."""
    blocks = 2000
    sketch = sketch_of(blocks, hot=64)
    sketch.observe(peaked(blocks, 100, 500, 900), tokens=300)
    for at in range(0, blocks, 50):
        sketch.observe(np.full(50, 0.02, np.float32), np.arange(at, at + 50), tokens=2)
    sketch.observe(peaked(blocks, 100, 500, 900), tokens=10)
    assert set(sketch.choose(3)) == {100, 500, 900}


def test_a_choice_looks_at_no_more_blocks_of_a_longer_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """What choosing costs is what is ranked, whose signatures are looked at, and whose bounds: counted, not timed."""
    looked: list[int] = []
    for where, method, argument in (
        (Attended, "expect", 0),
        (Signatures, "shares", 1),
        (Digests, "bounds", 1),
    ):
        original = getattr(where, method)

        def counting(self, *arguments, _original=original, _at=argument):
            looked.append(len(arguments[_at]))
            return _original(self, *arguments)

        monkeypatch.setattr(where, method, counting)
    counts = {}
    for blocks in (2_000, 16_000):
        probe = Probe(1, 8, 4)
        probe.append(vectors(1, 4 * blocks, 8))
        sketch = Sketch(4, probe, hot=256, found=32)
        sketch.grow(blocks)
        for seed in range(20):
            sketch.observe(
                rng(seed).random(blocks // 2, np.float32), rng(seed).permutation(blocks)[: blocks // 2]
            )
        looked.clear()
        assert len(sketch.choose(100, vectors(1, 1, 8, seed=1))) == 100
        counts[blocks] = sum(looked)
    assert counts[16_000] < 1.5 * counts[2_000]
