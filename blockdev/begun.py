"""Writes that a device has under way without a thread each.

They are begun where they are wanted, and one task notices how they end. A kernel or file system that does not have such
writes is asked once; then `begin` refuses, and whoever wanted to write takes a thread.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable
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
    :raises OSError: the system does not have them
    """

    def __init__(self, depth: int) -> None:
        self._queue = AioQueue(depth)
        self._clock = trio.lowlevel.current_clock()
        self._numbers = itertools.count()
        self._under_way: dict[int, tuple[memoryview, Ended]] = {}
        """The buffers belong to the kernel as long as they are here."""
        self._refused = self._closing = False
        self._reaping = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._reap)

    def deadline(self, seconds: float) -> float:
        """When so many seconds are over, on trio's clock."""
        return self._clock.current_time() + seconds

    def begin(self, fd: int, offset: int, buffer: memoryview, ended: Ended) -> bool:
        """Begin to write; False if that is not possible without waiting.

        :param ended: told in the trio thread what became of it, with OSError or Unfinished where it failed
        """
        if self._refused or self._closing:
            return False
        number = next(self._numbers)
        self._under_way[number] = (buffer, ended)
        try:
            self._queue.write(fd, offset, buffer, number)
        except OSError as error:
            del self._under_way[number]
            if error.errno in _NEVER:
                log.info("writes take threads: %s", error.strerror)
                self._refused = True
            return False
        return True

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
