"""Which name each writer published before: names that are likely to be read in that order. Pure."""

from __future__ import annotations

from collections import OrderedDict

from xxhash import xxh3_128_digest

_WRITERS_REMEMBERED = 1024


class Predecessors:
    """The name that each writer published before: a chain of names that are likely read in that order."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, bytes] = OrderedDict()

    def of(self, writer: int) -> bytes:
        """128-bit hash of the writer's last name; zeros if there is none."""
        return self._last.get(writer, bytes(16))

    def note(self, writer: int, name: bytes) -> None:
        self._last[writer] = xxh3_128_digest(name)
        self._last.move_to_end(writer)
        if len(self._last) > _WRITERS_REMEMBERED:
            self._last.popitem(last=False)
