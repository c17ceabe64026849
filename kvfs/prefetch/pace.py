"""How much may be under way before anybody asks, so that the way to the devices is busy and nobody has to queue. Pure.

What a device takes at once and how fast it is, is not known, changes, and is shared with other hosts. But where loads wait in
a queue they take longer. So the time that a load takes when little is under way is remembered, and from how much longer it
takes now follows how many of those under way are waiting: none, and there may be more; two, and there must be fewer. (Vegas
does this for TCP.) Who then wants something himself finds about one load before his.
"""

from __future__ import annotations

FIRST = 2
"""Loads that may be under way at first, and always."""
MOST = 64
QUEUED = (1.0, 2.0)
"""Loads that wait: with fewer than the first there may be more under way, with more than the second there must be fewer."""
FORGET = 0.002
"""How much of the difference is forgotten with each load that took longer than the shortest one."""
SMOOTH = 0.25
"""The weight of the latest load."""
GUESS = 0.005
"""Seconds that a load takes, before one has."""


class Pace:
    """For loads of about one size.

    :param size: bytes of a load
    :ivar window: loads that may be under way
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.window = FIRST
        self._shortest = 0.0
        self._usual = 0.0

    @property
    def seconds(self) -> float:
        """That a load takes now."""
        return self._usual or GUESS

    @property
    def rate(self) -> float:
        """Bytes a second that arrive if as much is under way as may be."""
        return self.window * self._size / self.seconds

    def landed(self, seconds: float, flying: int) -> None:
        """A load has ended.

        :param seconds: that it took
        :param flying: loads under way while it was, itself included
        """
        seconds = max(seconds, 1e-6)
        if not self._usual:
            self._shortest = self._usual = seconds
        self._shortest = min(self._shortest + FORGET * (seconds - self._shortest), seconds)
        self._usual += SMOOTH * (seconds - self._usual)
        queued = flying * (self._usual - self._shortest) / self._usual
        if queued < QUEUED[0] and flying >= self.window:
            self.window = min(self.window + 1, MOST)
        elif queued > QUEUED[1]:
            self.window = max(self.window - 1, FIRST)
