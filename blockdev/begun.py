"""Writes that a device has under way without a thread each.

They are begun where they are wanted, and one task notices how they end. A kernel or file system that does not have such
writes is asked once; from then on whoever wants to write takes a thread.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from outcome import Error, Value

from blockdev.kernel_aio import AioQueue

if TYPE_CHECKING:
    from outcome import Outcome

log = logging.getLogger(__name__)

_NEVER: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EINVAL})
"""Where the kernel has no such writes to this file, or we may not make them."""

Ended = Callable[["Outcome[None]"], None]


class Unfinished(Exception):
    """The kernel would have had to wait, or did less than all of it: it is to be written as usual."""


class BegunWrites:
    """Those of one device. Made in the trio thread; another thread may begin one while the trio thread waits.

    :param depth: most writes under way
    :param in_memory: the device is a file in memory
    :raises OSError: the system does not have them
    """

    def __init__(self, depth: int, *, in_memory: bool) -> None:
        self._in_memory = in_memory
        self._queue = AioQueue(depth)
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        self._numbers = itertools.count()
        self._under_way: dict[int, tuple[memoryview, Ended]] = {}
        """The buffers belong to the kernel as long as they are here."""
        self._refused = self._closing = False
        self._reaping = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._reap)

    def deadline(self, seconds: float) -> float:
        """When so many seconds are over, on trio's clock."""
        return self._clock.current_time() + seconds

    @property
    def serves(self) -> bool:
        """Whether it makes sense to begin one."""
        return not (self._refused or self._closing)

    def begin(self, fd: int, offset: int, buffer: memoryview, ended: Ended) -> Callable[[], None]:
        """A write to be; returns what gives it to the device, for any thread to call.

        :param ended: told in the trio thread what became of it, with OSError or Unfinished where it failed
        """
        number = next(self._numbers)
        self._under_way[number] = (buffer, ended)
        return partial(self._start, number, fd, offset, buffer)

    def _start(self, number: int, fd: int, offset: int, buffer: memoryview) -> None:
        try:
            self._queue.write(fd, offset, buffer, number, in_memory=self._in_memory)
        except OSError as error:
            if error.errno in _NEVER:
                log.info("writes take threads: %s", error.strerror)
                self._refused = True
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._end, number, -errno.EAGAIN)

    async def _reap(self) -> None:
        try:
            with self._reaping:
                while self._under_way or not self._closing:
                    await trio.lowlevel.wait_readable(self._queue.fd)
                    for number, result in self._queue.reap():
                        self._end(number, result)
        finally:
            if not self._under_way:  # else the kernel would make us wait for what is stuck
                self._queue.close()

    def _end(self, number: int, result: int) -> None:
        buffer, ended = self._under_way.pop(number)
        if result == buffer.nbytes:
            ended(Value(None))
        elif result >= 0 or result == -errno.EAGAIN:
            ended(Error(Unfinished()))
        else:
            ended(Error(OSError(-result, os.strerror(-result))))

    def close(self) -> None:
        """Begin none any more. What is stuck is noticed as long as trio runs."""
        self._closing = True
        if not self._under_way:
            self._reaping.cancel()
