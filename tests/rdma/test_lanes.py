"""What a device is asked next."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma.lanes import Lane, Priority


@dataclass(eq=False)
class Item:
    size: int
    priority: Priority = Priority.DEMAND
    deadline: float = 0.0
    is_waiting: bool = True
    together: bool = False


def take(lane: Lane[Item]) -> Item | None:
    taken = lane.take()
    if taken is None:
        return None
    taken[0].is_waiting = False
    return taken[0]


def filled(limit: int, *items: Item) -> Lane[Item]:
    lane: Lane[Item] = Lane(limit)
    for item in items:
        lane.put(item)
    return lane


def test_demand_goes_before_prefetch_and_the_earliest_deadline_first() -> None:
    late, soon = Item(1, deadline=9.0), Item(1, deadline=1.0)
    ahead = Item(1, Priority.PREFETCH, deadline=0.5)
    first, second = Item(1, deadline=5.0), Item(1, deadline=5.0)
    lane = filled(100, ahead, late, first, second, soon)
    assert [take(lane) for _ in range(6)] == [soon, first, second, late, ahead, None]


def test_bytes_under_way_are_bounded_and_nobody_overtakes() -> None:
    large, small = Item(60), Item(1, deadline=1.0)
    lane = filled(100, Item(50), large, small)
    lane.put(Item(60, deadline=0.5))
    assert take(lane) is not None
    assert take(lane) is None, "the small one waits behind the large one"
    lane.ended(50, Priority.DEMAND)
    assert take(lane) is large
    assert lane.bytes_running == 60


def test_what_is_wanted_together_gets_twice_as_much() -> None:
    lane = filled(100, *(Item(50, together=True) for _ in range(5)))
    assert [take(lane) is not None for _ in range(5)] == [True] * 4 + [False]
    lane.put(Item(50, deadline=-1.0))
    lane.ended(50, Priority.DEMAND)
    assert take(lane) is None, "who looks at each as it comes does not share the device with so much"
    for _ in range(2):
        lane.ended(50, Priority.DEMAND)
    first = take(lane)
    assert first is not None
    assert not first.together


def test_what_is_larger_than_the_bound_goes_alone() -> None:
    huge = Item(500)
    lane = filled(100, Item(1, deadline=-1.0), huge)
    take(lane)
    assert take(lane) is None
    lane.ended(1, Priority.DEMAND)
    assert take(lane) is huge


def test_prefetch_leaves_room_for_who_waits() -> None:
    lane = filled(100, *(Item(30, Priority.PREFETCH) for _ in range(3)))
    assert take(lane) is not None
    assert take(lane) is None, "two would be more than half"
    demand = Item(60)
    lane.put(demand)
    assert take(lane) is demand
    assert lane.running == 2


def test_urgency_may_grow_and_shrink_while_it_waits() -> None:
    rising, falling, other = Item(1, Priority.PREFETCH), Item(1), Item(1, deadline=5.0)
    lane = filled(100, rising, falling, other)
    rising.priority, falling.priority = Priority.DEMAND, Priority.PREFETCH
    lane.put(rising)
    lane.put(falling)
    assert [take(lane) for _ in range(4)] == [rising, other, falling, None]


@given(st.lists(st.tuples(st.integers(1, 80), st.sampled_from(Priority), st.integers(0, 3)), min_size=1))
def test_everything_gets_its_turn_within_the_bound(wanted: list[tuple[int, Priority, int]]) -> None:
    lane = filled(100, *(Item(size, priority, deadline) for size, priority, deadline in wanted))
    running: list[tuple[Item, Priority]] = []
    begun = 0
    while begun < len(wanted):
        while (taken := lane.take()) is not None:
            taken[0].is_waiting = False
            running.append(taken)
            begun += 1
            assert lane.bytes_running <= 100
        assert running, "something is under way, or may begin"
        item, priority = running.pop(0)
        lane.ended(item.size, priority)
    assert lane.take() is None


@pytest.mark.parametrize("priority", list(Priority))
def test_what_has_ended_counts_no_more(priority: Priority) -> None:
    lane = filled(10, Item(10, priority))
    take(lane)
    assert (lane.running, lane.bytes_running) == (1, 10)
    lane.ended(10, priority)
    assert (lane.running, lane.bytes_running) == (0, 0)
