"""How often blocks were used that were let go, in a few bytes a block. Pure."""

from __future__ import annotations

from array import array

FIRST = 1 << 12
"""Places, at first."""


class Seen:
    """A table in which each key has one place, with a part of the key and a count; the later key takes it from the earlier.

    So the latest stay, about as many as there are places, and one in 16,000 that was never here is taken for another.
    """

    def __init__(self) -> None:
        self._places = array("H", bytes(2 * FIRST))

    def note(self, key: int, uses: int) -> None:
        """Remember it. :param uses: below 4"""
        self._places[self._place(key)] = key >> 48 & ~3 | uses

    def uses(self, key: int) -> int:
        """How often it was used; 0 if that is not known."""
        found = self._places[self._place(key)]
        return found & 3 if found & ~3 == key >> 48 & ~3 else 0

    def room_for(self, blocks: int) -> None:
        """Remember as many blocks as that."""
        while len(self._places) < blocks:
            self._places += self._places  # with one more bit of the key it is in either half

    def _place(self, key: int) -> int:
        return key & (len(self._places) - 1)
