from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kvfs.fuse.ranges import Ranges

LIMIT = 40
bounds = st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT))
steps = st.lists(st.one_of(st.tuples(st.just("add"), bounds), st.tuples(st.just("cut"), bounds)))


@given(steps, bounds)
def test_like_a_set_of_positions(steps, probe):
    ranges = Ranges()
    model: set[int] = set()
    for what, (start, stop) in steps:
        if what == "add":
            ranges.add(start, stop)
            model |= set(range(start, stop))
        else:
            ranges.cut(start)
            model = {position for position in model if position < start}
        found = list(ranges)
        assert {position for start, stop in found for position in range(start, stop)} == model
        assert all(start < stop for start, stop in found)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
        assert bool(ranges) == bool(model)
    start, stop = probe
    wanted = set(range(start, stop))
    gaps = ranges.gaps(start, stop)
    assert {position for start, stop in gaps for position in range(start, stop)} == wanted - model
    assert gaps == sorted(gaps)
    assert all(start < stop for start, stop in gaps)
    assert ranges.covers(start, stop) == (wanted <= model)
