"""What a trace says about caches and chains."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.hindsight import BEST, Access, accesses, best_hits, distances, following, ratios
from kvfs.prefetch.baselines import Lru
from kvfs.traces import Event

Accesses = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60)


def test_what_caches_see() -> None:
    events = [Event(0, what, "x", "x") for what in ("lookup", "publish", "open", "remove", "gone")]
    assert accesses(events) == [("x", False), ("x", True)]


def test_hits_are_those_of_opens() -> None:
    seen: list[Access] = [("a", False), ("a", True), ("b", True), ("a", False), ("b", True)]
    (one,) = ratios(seen, (0.5,))
    assert (one.files, one.hits["lru"], one.hits[BEST]) == (1, 1 / 3, 2 / 3)


@given(Accesses, st.integers(1, 8))
def test_nobody_has_more_hits_than_who_knows_the_future(seen: list[Access], files: int) -> None:
    cache = Lru(files)
    assert best_hits(seen, files) >= sum(cache.access(name) and is_open for name, is_open in seen)


@given(Accesses)
def test_distances_tell_what_an_lru_cache_has(seen: list[Access]) -> None:
    found = distances(seen)
    for power in range(4):
        cache = Lru(1 << power)
        hits = sum(cache.access(name) and is_open for name, is_open in seen)
        nearer = sum(count for at, count in found.items() if at < power)
        # A bin holds distances from 2^at to 2^(at+1) - 1, and 0 beside 1: those below 2^power are certain hits.
        assert hits >= nearer
    assert sum(found.values()) == sum(
        is_open and any(name == before for before, _ in seen[:at]) for at, (name, is_open) in enumerate(seen)
    )


def chain_events(chains: int, length: int) -> list[Event]:
    events = []
    for chain in range(chains):
        before = ""
        for number in range(length):
            block = f"{chain}.{number}"
            events.append(Event(0, "publish", block, block, "w", 1, before=before))
            before = block
    order = list(range(chains))
    Random(1).shuffle(order)
    return events + [
        Event(1, "open", f"{chain}.{n}", f"{chain}.{n}", f"r{chain}", 1)
        for chain in order
        for n in range(length)
    ]


def test_chains_foretell_all_but_their_beginnings() -> None:
    found = following(chain_events(20, 12))
    assert found.opened == 240
    assert found.foretold >= 20 * 9
    assert found.foretold / found.expected == pytest.approx(1, abs=0.1)


def test_what_has_no_order_foretells_nothing() -> None:
    rng = Random(2)
    events = [Event(0, "publish", str(n), str(n), "w", 1) for n in range(200)]
    events += [Event(1, "open", name := str(rng.randrange(200)), name, "r", 1) for _ in range(500)]
    found = following(events)
    assert found.foretold < found.opened / 10
