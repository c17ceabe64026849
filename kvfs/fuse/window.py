"""Bounds what is under way between the data lane and pyfuse3.

pyfuse3 writes its answers while it holds Python's lock. If the socket between us were full, it would wait for our
thread to empty it, which waits for that lock: so there are never more answers than fit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_OVERHEAD = 2048
"""Bytes that the system counts for a message besides its own."""


class Window:
    """Sends requests on, as long as their answers fit; others wait in order.

    :param limit: bytes of answers, at most; one always fits
    :param send: sends a message; may raise OSError
    """

    def __init__(self, limit: int, send: Callable[[bytes], object]) -> None:
        self._limit = limit
        self._send = send
        self._lock = threading.Lock()
        self._costs: dict[int, int] = {}
        self._total = 0
        self._held: deque[tuple[int | None, bytes, int]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no answer is to come."""
        return not self._costs

    def send(self, unique: int | None, message: bytes, cost: int) -> None:
        """Send a request, now or when its turn has come.

        :param unique: its number; None if it is not answered
        :param cost: bytes that its answer may have
        :raises OSError: it cannot be sent
        """
        with self._lock:
            self._held.append((unique, message, cost + _OVERHEAD))
            self._flush()

    def answered(self, unique: int) -> None:
        """The answer to a request was taken out of the socket.

        :raises OSError: the next one cannot be sent
        """
        with self._lock:
            self._total -= self._costs.pop(unique, 0)
            self._flush()

    def _flush(self) -> None:
        while self._held:
            unique, message, cost = self._held[0]
            if unique is not None and self._costs and self._total + cost > self._limit:
                return
            self._held.popleft()
            if unique is not None:
                self._costs[unique] = cost
                self._total += cost
            self._send(message)
