"""How much longer who asks has to wait because something is being fetched that nobody has asked for yet. Pure.

Loads on demand are told apart by whether anything was being fetched ahead when they began. What begins only later does not
count: the longer a load takes, the likelier something is begun meanwhile, so slow loads would seem to be slow because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfs.latency import Stopwatch

if TYPE_CHECKING:
    from kvfs.latency import Histogram


class Interference:
    """Of one mount, since it began."""

    def __init__(self) -> None:
        self._alone = Stopwatch()
        self._beside = Stopwatch()

    def loaded(self, seconds: float, *, beside: bool) -> None:
        """A load on demand has ended well.

        :param seconds: that it took
        :param beside: something was being fetched ahead when it began
        """
        (self._beside if beside else self._alone).add(seconds)

    @property
    def alone(self) -> Histogram:
        """Loads beside which nothing was being fetched ahead."""
        return self._alone.statistics()

    @property
    def beside(self) -> Histogram:
        """The others."""
        return self._beside.statistics()

    @property
    def ratio(self) -> float | None:
        """The mean time of loads beside others' fetches, in units of that of loads alone; None if there were none of one."""
        means = [_mean(self.beside), _mean(self.alone)]
        return means[0] / means[1] if means[0] is not None and means[1] else None


def _mean(times: Histogram) -> float | None:
    count = sum(times.counts)
    return times.sum / count if count else None
