"""The planner: the most valuable first, in time, within its budget, nothing twice, and demand before all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvfs.prefetch.planner import BURST, LOOK_BACK, Planner, Source, Want

MIB = 1 << 20
RATE = 1000.0 * MIB


def want(
    block: object, source: Source = Source.ARRIVED, *, chance: float = 1.0, deadline: float = 100.0
) -> Want:
    return Want(block, source, MIB, chance, deadline, 0.01)


def started(planner: Planner, now: float) -> list[object]:
    return [each.block for each in planner.start(now)]


def test_the_most_valuable_goes_first_and_of_equals_the_most_urgent() -> None:
    planner = Planner(RATE)
    planner.offer([want("later"), want("soon", deadline=50.0), want("unsure", Source.CHAIN, chance=0.9)])
    assert started(planner, 1.0) == ["soon", "later", "unsure"]


def test_what_would_come_too_late_is_not_fetched() -> None:
    planner = Planner(RATE)
    planner.offer([want("late", deadline=1.0005), want("just", deadline=1.002)])
    assert started(planner, 1.0) == ["just"]
    assert started(planner, 2.0) == []


def test_nothing_is_fetched_twice_at_a_time() -> None:
    planner = Planner(RATE)
    planner.offer([want("a"), want("a", Source.CHAIN, chance=0.5)])
    assert started(planner, 1.0) == ["a"]
    planner.offer([want("a")])
    assert started(planner, 2.0) == []
    assert planner.demand("a", MIB, 2.0)
    planner.arrived("a")
    planner.offer([want("a")])
    assert started(planner, 3.0) == ["a"]


def test_what_a_reader_left_is_not_fetched() -> None:
    planner = Planner(RATE)
    planner.offer([want("flying")])
    planner.start(1.0)
    planner.offer([want(n) for n in range(5)])
    assert planner.cancel(["flying", *range(5), "unknown"]) == ["flying"]
    assert started(planner, 2.0) == []


def test_demand_is_paid_by_predictions() -> None:
    planner = Planner(RATE)
    planner.offer([want(n) for n in range(10)])
    assert not planner.demand("urgent", int(RATE * 2), 1.0)
    assert started(planner, 1.5) == []
    assert started(planner, 4.0)


def test_a_source_that_is_seldom_right_must_stop() -> None:
    planner = Planner(RATE)
    for _ in range(50):
        planner.judged(Source.CHAIN, used=False)
    planner.offer([want("a", Source.CHAIN), want("b", Source.RETURN)])
    assert started(planner, 1.0) == ["b"]
    for _ in range(LOOK_BACK):
        planner.judged(Source.CHAIN, used=True)
    assert started(planner, 2.0) == ["a"]


def test_a_share_is_of_one_source() -> None:
    planner = Planner(RATE)
    planner.offer([want((source, n), source, deadline=1e9) for source in Source for n in range(200)])
    taken = [each.source for each in planner.start(1e6)]
    assert len(set(Source)) == 4
    assert taken.count(Source.ARRIVED) == 100
    assert taken.count(Source.CHAIN) == 0  # what is certain has used up the link


def test_a_clock_that_jumps_gives_no_more_than_a_burst() -> None:
    planner = Planner(RATE)
    planner.offer([want(n, deadline=1e12) for n in range(1000)])
    planner.start(5.0)
    planner.start(-1e6)
    assert len(planner.start(1e9)) * MIB <= RATE * BURST + MIB


@given(
    st.lists(
        st.tuples(st.floats(0, 0.2), st.integers(0, 6), st.sampled_from(list(Source)), st.integers(0, MIB)),
        max_size=60,
    )
)
def test_no_more_is_sent_than_links_and_shares_allow(
    steps: list[tuple[float, int, Source, int]],
) -> None:
    planner, now = Planner(RATE), 0.0
    sent = dict.fromkeys(Source, 0)
    demanded = 0
    for number, (pause, wants, source, demand) in enumerate(steps):
        now += pause
        planner.offer([want((number, n), source, deadline=1e9) for n in range(wants * 30)])
        planner.demand(("demand", number), demand, now)
        demanded += demand
        for each in planner.start(now):
            sent[each.source] += each.size
    allowed = RATE * (now + BURST)
    for source, size in sent.items():
        assert size <= allowed * source.share + MIB
    assert sum(sent.values()) <= max(allowed - demanded, 0) + MIB * len(steps)
