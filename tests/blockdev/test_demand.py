"""Demand against a list of all reservations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blockdev.demand import Demand
from blockdev.types import SlotClass

CLASSES = [SlotClass.KIB64, SlotClass.MIB4]
steps = st.tuples(st.sampled_from(CLASSES), st.integers(1, 20), st.floats(0, 3, allow_nan=False))


@given(st.lists(steps), st.floats(0, 5), st.floats(0, 1e6))
def test_what_was_wanted_in_this_second_and_the_one_before(
    reservations: list[tuple[SlotClass, int, float]], later: float, start: float
) -> None:
    demand, now = Demand(), start
    seen: list[tuple[SlotClass, int, int]] = []
    for slot_class, held, after in reservations:
        now += after
        demand.note(slot_class, held, now)
        seen.append((slot_class, held, int(now)))
    now += later
    for slot_class in CLASSES:
        held_in = [
            [held for kind, held, second in seen if (kind, second) == (slot_class, int(now) - back)]
            for back in (0, 1)
        ]
        assert demand.per_second(slot_class, now) == max(map(len, held_in))
        assert demand.at_once(slot_class, now) == max(max(held, default=0) for held in held_in)


def test_nothing_is_wanted_at_first() -> None:
    assert Demand().per_second(SlotClass.INLINE, -1.0) == 0
    assert Demand().at_once(SlotClass.INLINE, 0.0) == 0
