"""Tells the kernel what to forget, from a thread of its own.

A notification can block inside the kernel for as long as a request about the same directory waits for its answer. So
nothing that answers requests ever waits for one: it leaves a note here. The notes are bounded and each is kept once;
what does not fit is counted and dropped, which costs at most that the kernel believes an old name for a while. Data
are never wrong for it, because an open checks what it opens.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import pyfuse3

log = logging.getLogger(__name__)

_JOIN = 5.0
"""Seconds that the thread may take to end; one stuck in the kernel ends with the mount."""


@dataclass(frozen=True, slots=True)
class NotifyStatistics:
    queued: int
    sent: int
    unknown: int
    """The kernel did not know the name."""
    failed: int
    dropped: int
    """Did not fit the queue."""


class Notifier:
    """A bounded queue of names for the kernel to forget, and the thread that empties it.

    :param limit: most names that wait
    :param send: tells the kernel; raises OSError
    """

    def __init__(
        self, limit: int = 65536, send: Callable[[int, bytes], None] = pyfuse3.invalidate_entry
    ) -> None:
        self._limit = limit
        self._send = send
        self._waiting: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        self._condition = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvfs-notify", daemon=True)
        self._sent = self._unknown = self._failed = self._dropped = 0

    def start(self) -> None:
        self._thread.start()

    def entry(self, parent: int, name: bytes) -> None:
        """Have the kernel forget a name in a directory. Never waits."""
        with self._condition:
            if self._closing or (parent, name) in self._waiting:
                return
            if len(self._waiting) >= self._limit:
                self._dropped += 1
                return
            self._waiting[parent, name] = None
            self._condition.notify()

    def close(self) -> None:
        """Send nothing any more; to be called before the mount's connection goes."""
        with self._condition:
            self._closing = True
            self._waiting.clear()
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN)

    def statistics(self) -> NotifyStatistics:
        with self._condition:
            return NotifyStatistics(
                len(self._waiting), self._sent, self._unknown, self._failed, self._dropped
            )

    def _run(self) -> None:
        while (note := self._next()) is not None:
            try:
                self._send(*note)
            except FileNotFoundError:
                self._unknown += 1
            except OSError as error:
                self._failed += 1
                log.debug("the kernel did not take a notification: %s", error)
            else:
                self._sent += 1

    def _next(self) -> tuple[int, bytes] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._closing)
            return None if self._closing else self._waiting.popitem(last=False)[0]
