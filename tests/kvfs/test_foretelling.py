"""What chains foretell of a trace."""

from __future__ import annotations

from random import Random

import pytest

from kvfs.foretelling import PAUSE, Foretelling, following
from kvfs.request_traces import Asked
from kvfs.traces import Event, Requests, Trace
from tests.kvfs.test_hindsight import chain_events


def trace(events: list[Event]) -> Trace:
    return Trace(events, 0, whole=True)


def test_chains_foretell_all_but_their_beginnings() -> None:
    found = following(trace(chain_events(20, 12)))
    assert found.opened == 240
    assert found.foretold >= 20 * 9
    assert found.foretold / found.expected == pytest.approx(1, abs=0.1)


def test_what_has_no_order_foretells_nothing() -> None:
    rng = Random(2)
    events = [Event(0, "publish", str(n), str(n), "w", 1) for n in range(200)]
    events += [Event(1, "open", name := str(rng.randrange(200)), name, "r", 1) for _ in range(500)]
    found = following(trace(events))
    assert found.foretold < found.opened / 10


def published(count: int) -> list[Event]:
    return [Event(0, "publish", str(n), str(n), "w", 1, before=str(n - 1) if n else "") for n in range(count)]


def looked_up(count: int) -> list[Event]:
    return [Event(1, "lookup", str(n), str(n), "r", 1, known=True) for n in range(count)]


def opened(count: int) -> list[Event]:
    return [Event(2, "open", str(n), str(n), "r", 1) for n in range(count)]


def test_names_that_are_looked_up_in_their_order_foretell_all_of_them() -> None:
    found = following(trace(published(30) + looked_up(30) + opened(30)))
    assert (found.opened, found.foretold, found.expected) == (30, 30, 30)


def test_a_look_up_is_no_use_of_what_was_expected() -> None:
    """Who looks names up and reads nothing has made all be fetched in vain."""
    found = following(trace(published(30) + looked_up(30)))
    assert (found.opened, found.foretold, found.expected) == (0, 0, 30)


def test_what_is_not_there_is_looked_up_for_nothing() -> None:
    missing = [Event(1, "lookup", str(n), str(n), "r") for n in range(30)]
    assert following(trace(missing)).expected == 0


def test_what_a_writer_wrote_after_a_pause_is_another_context() -> None:
    for pause, expected in ((PAUSE, ("c",)), (PAUSE * 1.1, ())):
        foretelling = Foretelling()
        for at, (before, block) in enumerate([(None, "a"), ("a", "b"), ("b", "c")]):
            foretelling.published(block, before, at * pause)
        foretelling.opened("a", "r", 100.0)
        assert foretelling.opened("b", "r", 100.0).fetch == expected


def test_requests_are_read_as_far_as_they_are_known() -> None:
    chains = [tuple(range(20)), tuple(range(20)), (*range(10), *range(100, 110)), tuple(range(20))]
    found = following(Requests([Asked(float(n), None, chain) for n, chain in enumerate(chains)]))
    assert found.opened == 20 + 10 + 20
    assert found.foretold == found.opened - 3 * 2


def test_another_future_changes_nothing_before_it() -> None:
    events = published(30) + looked_up(5) + opened(5)
    for cut in range(30, len(events)):
        past, more = following(trace(events[:cut])), following(trace([*events[:cut], *opened(30)]))
        assert past.opened <= more.opened
        assert past.expected <= more.expected
        assert past.foretold <= more.foretold
