"""Opens that must find another inode than they asked for. Pure.

The kernel opens an inode that a name led it to earlier. If that is not what the open should get (a version since
replaced, or a published one that is to be written to), it is answered with ESTALE. The kernel then looks the name up
again, twice in fact (once to find that its entry is wrong, once to make a new one), and opens what it was told; all
that in the same thread. The application sees one open(2). There is no second retry: an open that comes again must be
served somehow, for instance one through /proc/self/fd, which has no name to look up.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from blockdev.types import DirectoryId

_REMEMBERED = 4096


class Retry(NamedTuple):
    """What a thread is to find when it looks the name up again."""

    directory: DirectoryId
    name: bytes
    writing: bool


class Retries:
    """One pending retry a thread; the oldest are forgotten, since a thread may have been killed meanwhile."""

    def __init__(self) -> None:
        self._pending: OrderedDict[int, Retry] = OrderedDict()

    def expect(self, thread: int, retry: Retry) -> None:
        """The thread is about to be sent back to the name."""
        self._pending[thread] = retry
        self._pending.move_to_end(thread)
        if len(self._pending) > _REMEMBERED:
            self._pending.popitem(last=False)

    def is_writing(self, thread: int, directory: DirectoryId, name: bytes) -> bool:
        """Whether this look-up belongs to an open for writing that was sent back."""
        return self._pending.get(thread) == Retry(directory, name, writing=True)

    def take(self, thread: int) -> Retry | None:
        """The retry that an open of this thread ends, if any."""
        return self._pending.pop(thread, None)
