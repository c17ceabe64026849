"""Who may look at and change a mount's state: the trio thread while it runs, and any thread while it waits for I/O.

All state belongs to the trio thread. What it does between two awaits is atomic, so at the moment when it goes to wait
for I/O everything is as it should be, and as long as it waits nothing changes. To have it woken for each request costs
more than most requests do; so another thread may take its place for a moment, if it waits for nothing and wakes up no
task, which needs the trio thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio


class Custody(trio.abc.Instrument):
    """Of the state of one mount. The trio thread has it within `kept`, but while it waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """In the trio thread: nobody else has it outside of this block."""
        self._lock.acquire()  # at once: it was let go before, or never taken
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            with suppress(KeyError):  # trio drops one that failed, and says so
                trio.lowlevel.remove_instrument(self)
            self._lock.release()

    def before_io_wait(self, timeout: float) -> None:
        if timeout:  # else it only looks what has come
            self._lock.release()

    def after_io_wait(self, timeout: float) -> None:
        if timeout:
            self._lock.acquire()

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """In another thread: whether it has it, which is only if nobody else has. To be left soon."""
        mine = self._lock.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._lock.release()
