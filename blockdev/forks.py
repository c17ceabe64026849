"""What ends in a child process: a fork copies the memory of a pool, but neither its locks nor its right to write.

A child that has a copy of an open file keeps alive what hangs on it after its parent has ended: a lock, a socket that
somebody connects to, a mount that nobody answers any more. So it has none.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol


class Mortal(Protocol):
    """Something that a child process may not use."""

    def end_in_child(self) -> None:
        """Called in the child, right after the fork: do no I/O, and refuse what is asked from here on."""


_MORTALS: Final[weakref.WeakSet[Mortal]] = weakref.WeakSet()
_FDS: Final[set[int]] = set()
_watching = False


def ends_in_children(thing: Mortal) -> None:
    """Have `thing.end_in_child` called in every child process, as long as it exists."""
    _watch()
    _MORTALS.add(thing)


def close_in_children(fd: int) -> None:
    """Have a child process close its copy of this open file, until `forget`."""
    _watch()
    _FDS.add(fd)


def forget(fd: int) -> None:
    """This process is about to close the file itself."""
    _FDS.discard(fd)


@contextmanager
def closed_in_children(fd: int) -> Iterator[None]:
    """`close_in_children` while it is entered."""
    close_in_children(fd)
    try:
        yield
    finally:
        forget(fd)


def _watch() -> None:
    global _watching  # noqa: PLW0603 - os.register_at_fork cannot be undone, so once for the process
    if not _watching:
        os.register_at_fork(after_in_child=_end_all)
        _watching = True


def _end_all() -> None:
    for thing in list(_MORTALS):
        thing.end_in_child()
    while _FDS:
        with suppress(OSError):
            os.close(_FDS.pop())
