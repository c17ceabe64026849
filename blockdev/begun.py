"""Reads and writes that a device has under way without a thread each.

They are begun where they are wanted, and one task notices how they end. A kernel or file system that does not have such
reads, or writes, is asked once; from then on whoever wants one takes a thread. One that has them, but would always have to
wait, as for what does not fit into one request of the device, is asked again from time to time.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import trio
from outcome import Error, Value

from blockdev.kernel_aio import AioQueue, Operation

if TYPE_CHECKING:
    from outcome import Outcome

log = logging.getLogger(__name__)

_NEVER: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EINVAL})
"""Where the kernel has no such transfers of this file, or we may not make them."""
_PATIENCE: Final = 16
"""Transfers of a kind in succession that the kernel would have waited for, before none is begun for a while."""
_REST: Final = 1.0
"""Seconds."""

Ended = Callable[["Outcome[None]"], None]


class Unfinished(Exception):
    """The kernel would have had to wait, or did less than all of it: it is to be done as usual."""


@dataclass(slots=True)
class _Kind:
    """Reads, or writes.

    :ivar refused: the kernel does not have them
    :ivar unfinished: of the last ones in succession, how many
    :ivar rests_until: a moment of trio's clock
    """

    refused: bool = False
    unfinished: int = 0
    rests_until: float = 0.0


class _UnderWay(NamedTuple):
    """The buffer belongs to the kernel."""

    operation: Operation
    buffer: memoryview
    ended: Ended


class BegunTransfers:
    """Those of one device. Made in the trio thread; another thread may begin one while the trio thread waits.

    :param depth: most of them under way
    :param in_memory: the device is a file in memory
    :raises OSError: the system does not have them
    """

    def __init__(self, depth: int, *, in_memory: bool) -> None:
        self._in_memory = in_memory
        self._queue = AioQueue(depth)
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        self._numbers = itertools.count()
        self._under_way: dict[int, _UnderWay] = {}
        self._kinds = {operation: _Kind() for operation in Operation}
        self._closing = False
        self._reaping = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._reap)

    def deadline(self, seconds: float) -> float:
        """When so many seconds are over, on trio's clock."""
        return self._clock.current_time() + seconds

    def serves(self, operation: Operation) -> bool:
        """Whether it makes sense to begin one."""
        kind = self._kinds[operation]
        return not (kind.refused or self._closing) and kind.rests_until <= self._clock.current_time()

    def begin(
        self, operation: Operation, fd: int, offset: int, buffer: memoryview, ended: Ended
    ) -> Callable[[], None]:
        """A transfer to be; returns what gives it to the device, for any thread to call.

        :param ended: told in the trio thread what became of it, with OSError or Unfinished where it failed
        """
        number = next(self._numbers)
        self._under_way[number] = _UnderWay(operation, buffer, ended)
        return partial(self._start, operation, number, fd, offset, buffer)

    def _start(self, operation: Operation, number: int, fd: int, offset: int, buffer: memoryview) -> None:
        try:
            self._queue.begin(operation, fd, offset, buffer, number, in_memory=self._in_memory)
        except OSError as error:
            if error.errno in _NEVER:
                log.info("%ss take threads: %s", operation.name.lower(), error.strerror)
                self._kinds[operation].refused = True
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
        operation, buffer, ended = self._under_way.pop(number)
        kind = self._kinds[operation]
        if result == buffer.nbytes:
            kind.unfinished = 0
            ended(Value(None))
        elif result >= 0 or result == -errno.EAGAIN:
            kind.unfinished += 1
            if kind.unfinished % _PATIENCE == 0:
                kind.rests_until = self._clock.current_time() + _REST
            ended(Error(Unfinished()))
        else:
            ended(Error(OSError(-result, os.strerror(-result))))

    def close(self) -> None:
        """Begin none any more. What is stuck is noticed as long as trio runs."""
        self._closing = True
        if not self._under_way:
            self._reaping.cancel()
