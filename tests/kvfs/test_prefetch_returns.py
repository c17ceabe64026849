"""Returns: hazards, the index, ranking by it, what is saved."""

from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.prefetch.idle import Entry, Idle
from kvfs.prefetch.returns import BUCKETS, EDGES, WIDTHS, Kind, Returns, bucket, gittins

QUICK = ("tool_use",)
SLOW = ("end_turn",)
hazards = st.lists(st.floats(0, 10), min_size=BUCKETS, max_size=BUCKETS)


def exponential(mean: float, kind: Kind = QUICK, many: int = 4000) -> Returns:
    """Learnt from returns whose ages are exponential, through the queue that watches them."""
    returns = Returns()
    idle: Idle[int] = Idle(returns)
    rng = Random(1)
    events = sorted(
        [(float(number), 0, number) for number in range(many)]
        + [(number + rng.expovariate(1 / mean), 1, number) for number in range(many)]
    )
    entries: dict[int, Entry[int]] = {}
    for now, back, number in events:
        idle.age(now)
        if back:
            idle.returned(entries.pop(number), now)
        else:
            entries[number] = idle.add(number, kind, now)
    return returns


@pytest.mark.parametrize("age", [0.0, 0.5, 1.0, 3.7, 100.0, 1e6])
def test_an_age_is_in_its_bucket(age: float) -> None:
    at = bucket(age)
    assert EDGES[at] <= age
    assert at + 1 == BUCKETS or age < EDGES[at + 1]


def test_a_clock_that_goes_back_is_no_age() -> None:
    assert bucket(-5.0) == 0


@pytest.mark.parametrize("mean", [3.0, 40.0, 600.0])
def test_the_index_of_a_constant_hazard_is_the_hazard(mean: float) -> None:
    """Who returns at a constant rate is worth that rate at any age: there is nothing to wait for."""
    assert gittins([1 / mean] * BUCKETS) == pytest.approx([1 / mean] * BUCKETS)


def test_a_constant_hazard_is_learnt() -> None:
    learnt = exponential(40.0).hazards(QUICK)
    for at in range(5, bucket(100.0)):
        assert learnt[at] == pytest.approx(1 / 40, rel=0.25)


def test_what_is_about_to_return_is_worth_more_than_its_hazard_says() -> None:
    rates = [0.0] * BUCKETS
    rates[bucket(5.0)] = 1.0
    indices = gittins(rates)
    assert 0 < indices[0] < indices[bucket(5.0) - 1] < indices[bucket(5.0)]
    assert indices[bucket(5.0) + 1 :] == [0.0] * (BUCKETS - bucket(5.0) - 1)


@given(hazards)
def test_an_index_lies_between_the_hazards_to_come(rates: list[float]) -> None:
    for at, index in enumerate(gittins(rates)):
        assert index <= max(rates[at:]) * (1 + 1e-9)
        chance = -math.expm1(-rates[at] * WIDTHS[at])
        alone = rates[at] if chance > 1e-9 else 0.0
        assert index >= alone * (1 - 1e-6)


@given(hazards)
def test_an_index_is_the_best_of_all_times_to_give_up(rates: list[float]) -> None:
    for start, index in enumerate(gittins(rates)):
        alive, returns, waited = 1.0, 0.0, 0.0
        quotients = []
        for rate, width in list(zip(rates, WIDTHS, strict=True))[start:]:
            chance = -math.expm1(-rate * width)
            returns += alive * chance
            waited += alive * (chance / rate if rate else width)
            alive *= 1 - chance
            quotients.append(returns / waited)
        assert index == pytest.approx(max(quotients), rel=1e-9)


def test_an_unknown_kind_is_like_all_others() -> None:
    returns = exponential(40.0)
    assert returns.hazards(("never", "seen")) == pytest.approx(returns.hazards(QUICK), rel=0.5)


def test_what_was_learnt_survives_being_saved() -> None:
    returns = exponential(40.0)
    again = Returns.from_json(json.loads(json.dumps(returns.as_json())))
    assert again.hazards(QUICK) == returns.hazards(QUICK)


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"version": 2},
        {"version": 1, "all": [[1.0], [1.0]], "kinds": []},
        {"version": 1, "all": 3, "kinds": []},
        {"version": 1, "all": [[0.0] * BUCKETS] * 2, "kinds": [[["x"]]]},
        {"version": 1, "all": [[-1.0] * BUCKETS] * 2, "kinds": []},
        {"version": 1, "all": [[math.nan] * BUCKETS] * 2, "kinds": []},
        {"version": 1, "all": [[10**400] * BUCKETS] * 2, "kinds": []},
    ],
)
def test_anything_else_is_refused(saved: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"learnt of returns|buckets|no number"):
        Returns.from_json(saved)


def test_a_stay_is_as_many_buckets_that_passed() -> None:
    at_once, one_by_one = Returns(), Returns()
    for age in (0.5, 3.0, 1000.0):
        at_once.stayed(QUICK, age, 0.5)
        for at in range(bucket(age)):
            one_by_one.passed(QUICK, at, 0.5)
        for returns in (at_once, one_by_one):
            returns.returned(QUICK, age, 0.5)
    assert at_once.hazards(QUICK) == pytest.approx(one_by_one.hazards(QUICK))
    assert at_once.as_json() == one_by_one.as_json()


def test_what_has_faded_gives_way_to_what_is_new() -> None:
    returns = exponential(40.0)
    for _ in range(30):
        returns.fade(0.5)
    for _ in range(200):
        returns.returned(QUICK, 2.0)
    assert returns.indices(QUICK)[bucket(2.0)] > 10 / 40


def test_a_factor_must_be_one() -> None:
    with pytest.raises(ValueError, match="factor"):
        Returns().fade(1.5)


def test_the_cheapest_go_first() -> None:
    returns = exponential(5.0)
    for _ in range(100):
        for at in range(BUCKETS):
            returns.passed(SLOW, at)
    idle: Idle[str] = Idle(returns)
    for name, kind, since, size in [
        ("slow", SLOW, 0.0, 1.0),
        ("old", QUICK, 1.0, 1.0),
        ("large", QUICK, 1.0, 64.0),
        ("young", QUICK, 1.1, 1.0),
    ]:
        idle.add(name, kind, since, size)
    idle.age(10.0)
    assert [entry.what for entry in idle.cheapest()] == ["slow", "large", "old", "young"]
    worth = [idle.worth(entry) for entry in idle.cheapest()]
    assert worth == sorted(worth)


def test_what_was_let_go_is_still_learnt_from() -> None:
    kept, dropped = Returns(), Returns()
    for returns, drop in ((kept, False), (dropped, True)):
        idle: Idle[int] = Idle(returns)
        entry = idle.add(0, QUICK, 0.0)
        if drop:
            idle.let_go(entry)
            assert not list(idle.cheapest())
        idle.age(50.0)
        idle.returned(entry, 60.0)
    assert kept.as_json() == dropped.as_json()
    assert sum(kept.as_json()["all"][0]) == 1


@given(st.lists(st.tuples(st.floats(0, 50), st.booleans()), max_size=60))
def test_every_second_that_is_over_is_counted_once(steps: list[tuple[float, bool]]) -> None:
    returns = Returns()
    idle: Idle[int] = Idle(returns)
    waiting: list[Entry[int]] = []
    now, waited, back = 0.0, 0.0, 0
    for number, (pause, comes_back) in enumerate(steps):
        now += pause
        idle.age(now)
        if comes_back and waiting:
            entry = waiting.pop(0)
            waited += now - entry.since
            back += 1
            idle.let_go(entry)
            idle.returned(entry, now)
        else:
            waiting.append(idle.add(number, QUICK, now))
    for entry in waiting:
        waited += EDGES[bucket(now - entry.since)]
    seen = returns.as_json()["all"]
    assert sum(seen[0]) == pytest.approx(back)
    assert sum(seen[1]) == pytest.approx(waited)
