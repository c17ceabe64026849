"""The pace: as much under way as a device takes at once, and about one load more."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from kvfs.prefetch.pace import FIRST, MOST, Pace

SIZE = 4 << 20


def run(latency: float, rate: float, *, loads: int = 3000, noise: float = 0.0) -> tuple[Pace, float]:
    """Keep a window of loads under way; the pace, and the mean number that had to wait for the link at the end."""
    pace, rng = Pace(SIZE), Random(1)
    now = free = 0.0
    flying: list[tuple[float, float, int]] = []
    waited = []
    for _ in range(loads):
        while len(flying) < pace.window:
            began = max(now, free)
            free = began + SIZE / rate
            waited.append((began - now) / (SIZE / rate))
            late = rng.expovariate(1 / noise) if noise else 0.0
            heapq.heappush(flying, (free + latency + late, now, len(flying) + 1))
        now, started, count = heapq.heappop(flying)
        pace.landed(now - started, count)
    return pace, sum(waited[-500:]) / 500


@pytest.mark.parametrize("latency, rate", [(0.010, 2e9), (0.002, 5e9), (0.050, 1e9), (0.0002, 3e9)])
def test_the_link_is_busy_and_about_one_load_waits(latency: float, rate: float) -> None:
    pace, waiting = run(latency, rate)
    needed = (latency + SIZE / rate) / (SIZE / rate)
    assert needed <= pace.window + 1
    assert waiting <= 2.5
    assert pace.rate >= 0.75 * rate


def test_noise_does_not_let_it_grow_without_bounds() -> None:
    pace, waiting = run(0.010, 2e9, noise=0.002)
    assert FIRST <= pace.window <= 10
    assert waiting <= 2.5


def test_a_link_that_is_never_full_is_not_flooded() -> None:
    pace = Pace(SIZE)
    for _ in range(1000):
        pace.landed(0.01, pace.window)
    assert pace.window == MOST


def test_a_device_that_becomes_slow_gets_less() -> None:
    pace, _ = run(0.010, 2e9)
    before = pace.window
    for _ in range(20):
        pace.landed(0.1, before)
    assert pace.window <= FIRST + 1


def test_few_loads_do_not_widen_it() -> None:
    pace = Pace(SIZE)
    for _ in range(100):
        pace.landed(0.01, 1)
    assert pace.window <= FIRST + 1
