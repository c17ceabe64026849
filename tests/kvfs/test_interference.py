"""How much longer demand takes beside what is fetched ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.interference import Interference

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=30)


@pytest.mark.parametrize("beside", [False, True])
def test_loads_of_one_kind_say_nothing(*, beside: bool) -> None:
    seen = Interference()
    assert seen.ratio is None
    seen.loaded(0.01, beside=beside)
    assert seen.ratio is None


@given(TIMES, TIMES)
def test_it_is_the_quotient_of_the_means(alone: list[float], beside: list[float]) -> None:
    seen = Interference()
    for seconds in alone:
        seen.loaded(seconds, beside=False)
    for seconds in beside:
        seen.loaded(seconds, beside=True)
    expected = (sum(beside) / len(beside)) / (sum(alone) / len(alone))
    assert seen.ratio == pytest.approx(expected)
    assert (sum(seen.alone.counts), sum(seen.beside.counts)) == (len(alone), len(beside))
