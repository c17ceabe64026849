"""Which block each writer published before: blocks that are likely to be read in that order. Pure."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_128_digest

from kvfs.names import block_of

_WRITERS_REMEMBERED = 1024
_NAMES_REMEMBERED = 1 << 12
"""Whose block is known without parsing them again: each is asked about when it is foretold, looked up, and opened."""
NONE = bytes(16)
"""The predecessor of what has none."""


@lru_cache(_NAMES_REMEMBERED)
def block_id(name: bytes) -> bytes:
    """128-bit hash of the block that a file of this name is a part of."""
    return xxh3_128_digest(block_of(name))


class _Last(NamedTuple):
    block: bytes
    before: bytes


class Predecessors:
    """The block that each writer published before: a chain of blocks that are likely read in that order."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, _Last] = OrderedDict()

    def of(self, writer: int, name: bytes) -> bytes:
        """The id of the writer's block before this one; zeros if there is none. The halves of one block have the same."""
        last = self._last.get(writer)
        if last is None:
            return NONE
        return last.before if last.block == block_id(name) else last.block

    def note(self, writer: int, name: bytes) -> None:
        """A writer has published a file."""
        block, last = block_id(name), self._last.get(writer)
        if last is None or last.block != block:
            self._last[writer] = _Last(block, NONE if last is None else last.block)
        self._last.move_to_end(writer)
        if len(self._last) > _WRITERS_REMEMBERED:
            self._last.popitem(last=False)
