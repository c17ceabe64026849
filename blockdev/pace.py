"""Background work that leaves devices to those who wait for data.

While data was wanted a moment ago, background work is done by one task at a time, which then rests so long that it has
worked a fixed part of the time: whoever reads meets at most one piece of work on the device, and it goes on all the same.
At other times it runs as fast as it can. So work comes in pieces that take little time: one extent, one chunk.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

_RECENT = 0.1
"""Seconds after which what was wanted is forgotten: longer than between two reads of an engine that loads."""
_DUTY = 0.25
"""Part of the time that background work takes while data is wanted."""
_REST_MAX = 1.0
"""Most seconds of rest after one piece, however long it took: a device that answers late still gets scrubbed."""


class Pace:
    """Shared by all who read from the devices of a pool and all who work in the background.

    :param clock: seconds, growing
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._wanting = 0
        self._wanted_at = -math.inf
        self._one = trio.Lock()

    @contextmanager
    def demand(self) -> Iterator[None]:
        """Around what somebody waits for."""
        self._wanting += 1
        try:
            yield
        finally:
            self._wanting -= 1
            self._wanted_at = self._clock()

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for data, or did a moment ago."""
        return self._wanting > 0 or self._clock() - self._wanted_at < _RECENT

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around a piece of background work; others take their turns after it. Not within another turn."""
        if not self.is_busy:
            await trio.lowlevel.checkpoint()
            yield
            return
        async with self._one:
            began = self._clock()
            yield
            await self._rest(self._clock() - began)

    async def rest(self, worked: float) -> None:
        """For work that cannot be cut into turns: rest, after so many seconds of it, if data is wanted."""
        if self.is_busy:
            await self._rest(worked)
        else:
            await trio.lowlevel.checkpoint()

    @staticmethod
    async def _rest(worked: float) -> None:
        await trio.sleep(min(worked * (1 / _DUTY - 1), _REST_MAX))
