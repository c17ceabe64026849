"""How much may be under way before anybody asks, so that the way to the devices is busy and nobody has to queue. Pure.

What a device takes at once and how fast it is, is not known, changes, and is shared with other hosts. But where loads wait in
a queue they take longer. So the time that a load takes when little is under way is remembered, and from how much longer it
takes now follows how many of those under way are waiting: none, and there may be more; two, and there must be fewer. (Vegas
does this for TCP.) Who then wants something himself finds about one load before his.
"""

from __future__ import annotations

import math

FIRST = 1
"""Loads that may be under way at first, and always: with one, none waits for another."""
MOST = 64
QUEUED = (1.0, 2.0)
"""Loads that wait: with fewer than the first there may be more under way, with more than the second there must be fewer."""
AGAIN = 512
"""Loads after which the time without a queue is measured again, with few under way: it is forgotten after twice as many, as
things change, and while some always wait it would else be taken for longer than it is."""
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
        self._shortest = math.inf
        self._shortest_before = math.inf
        self._usual = 0.0
        self._loads = 0
        self._is_new = True
        """It has not come to where some wait."""
        self._until_next = 0

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
        self._loads += 1
        self._usual += (SMOOTH if self._usual else 1.0) * (seconds - self._usual)
        if self._loads % AGAIN == 0:
            self._shortest_before, self._shortest = self._shortest, math.inf
            self.window, self._is_new, self._until_next = FIRST, True, flying
        self._shortest = min(self._shortest, seconds)
        queued = flying * (self._usual - min(self._shortest, self._shortest_before)) / self._usual
        self._until_next -= 1
        if self._is_new and queued < QUEUED[0]:
            self.window += flying >= self.window  # doubles as often as a load takes
        elif self._until_next <= 0:
            self._adjust(queued, flying)
        self.window = min(max(self.window, FIRST), MOST)

    def _adjust(self, queued: float, flying: int) -> None:
        """Once for as many loads as are under way: what it comes to shows only then."""
        self._is_new = False
        if queued > QUEUED[1]:
            self.window = min(self.window, round(flying - queued + QUEUED[0]))
        elif queued < QUEUED[0]:
            self.window += flying >= self.window
        self._until_next = max(flying, self.window)
