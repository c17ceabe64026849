"""Whether what was sampled of a process is flat or growing. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MIB = 1 << 20
LEAST_SAMPLES = 12
"""After warming up; fewer tell nothing."""
LEAST_SECONDS = 60.0
"""The same."""
WARMING = 1 / 3
"""Part of the time that a process is given to warm up."""


class Trend(StrEnum):
    """What became of a figure."""

    FLAT = "flat"
    GROWING = "growing"
    TOO_SHORT = "too short to tell"


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a figure may have grown: some of it, and a part of what it was."""

    some: float
    part: float


ALLOWANCES = {
    "memory": Allowance(12 * MIB, 0.03),
    "descriptors": Allowance(8, 0.0),
    "threads": Allowance(8, 0.0),
}
RULE = (
    "the first third of a process's life is warming up; of the rest, the median of the last third may not be more than the"
    " median of the first third and an allowance (memory: 12 MiB and 3 %; descriptors: 8; threads: 8); less than"
    f" {LEAST_SECONDS:.0f} s or {LEAST_SAMPLES} samples are too short to tell; memory is VmRSS without the pages of files"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process.

    :ivar at: seconds
    :ivar memory: bytes that are its own: without pages of mapped files, which the kernel may take back
    """

    at: float
    memory: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Course:
    """How a figure went after warming up."""

    first: float
    median: float
    last: float
    trend: Trend


def course(times: Sequence[float], values: Sequence[float], allowance: Allowance) -> Course:
    """Of one figure; `times` in seconds, ascending, one for each value.

    :raises ValueError: there are none
    """
    if not times:
        raise ValueError("no samples")
    warm_from = times[0] + (times[-1] - times[0]) * WARMING
    warm = [value for at, value in zip(times, values, strict=True) if at >= warm_from]
    third = max(1, len(warm) // 3)
    first, last = statistics.median(warm[:third]), statistics.median(warm[-third:])
    trend = Trend.GROWING if last > first * (1 + allowance.part) + allowance.some else Trend.FLAT
    if len(warm) < LEAST_SAMPLES or times[-1] - warm_from < LEAST_SECONDS:
        trend = Trend.TOO_SHORT
    return Course(first, statistics.median(warm), last, trend)


def courses(samples: Sequence[Sample]) -> dict[str, Course]:
    """Of every figure."""
    times = [sample.at for sample in samples]
    return {
        name: course(times, [getattr(sample, name) for sample in samples], allowance)
        for name, allowance in ALLOWANCES.items()
    }


def as_json(samples: Sequence[Sample]) -> dict[str, Any]:
    """What a report shows of a process."""
    body: dict[str, Any] = {"seconds": round(samples[-1].at - samples[0].at, 1), "samples": len(samples)}
    for name, of in courses(samples).items():
        body[name] = {"first": of.first, "median": of.median, "last": of.last, "trend": of.trend.value}
    return body
