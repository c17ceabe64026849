"""What ends in a child process: a fork copies the memory of a pool, but neither its locks nor its right to write."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Mortal(Protocol):
    """Something that a child process may not use."""

    def end_in_child(self) -> None:
        """Called in the child, right after the fork: do no I/O, and refuse what is asked from here on."""


_MORTALS: Final[weakref.WeakSet[Mortal]] = weakref.WeakSet()
_watching = False


def ends_in_children(thing: Mortal) -> None:
    """Have `thing.end_in_child` called in every child process, as long as it exists."""
    global _watching  # noqa: PLW0603 - os.register_at_fork cannot be undone, so once for the process
    _MORTALS.add(thing)
    if not _watching:
        os.register_at_fork(after_in_child=_end_all)
        _watching = True


def _end_all() -> None:
    for thing in list(_MORTALS):
        thing.end_in_child()
