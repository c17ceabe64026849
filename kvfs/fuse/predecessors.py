"""Which name each thread published before: names that are likely to be read in that order. Pure."""

from __future__ import annotations

from collections import OrderedDict

from xxhash import xxh3_128_digest

_WRITERS_REMEMBERED = 1024


class Predecessors:
    """The name that each writing thread published before: a chain of names that are likely read in that order."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, bytes] = OrderedDict()

    def of(self, thread: int) -> bytes:
        """128-bit hash of the thread's last name; zeros if there is none."""
        return self._last.get(thread, bytes(16))

    def note(self, thread: int, name: bytes) -> None:
        self._last[thread] = xxh3_128_digest(name)
        self._last.move_to_end(thread)
        if len(self._last) > _WRITERS_REMEMBERED:
            self._last.popitem(last=False)
