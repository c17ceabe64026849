"""Opens that must find another inode than they asked for. Pure.

The kernel opens an inode that a name led it to earlier. If that is not what the open should get (a version since
replaced, or a published one that is to be written to), it is answered with ESTALE. The kernel then looks the name up
again, twice in fact (once to find that its entry is wrong, once to make a new one), and opens what it was told; all
that in the same thread, and nothing else in between. The application sees one open(2). There is no second retry: an
open that comes again must be served somehow, for instance one through /proc/self/fd, which has no name to look up.

The name that is looked up need not be the one that the inode has now: it may have been renamed meanwhile. So a retry
is recognised by its thread. Only threads of other PID namespaces, which all look like number 0, are told apart by the
name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from kvfs.fuse.inodes import Place

_REMEMBERED = 4096
_LASTING = 5.0
"""Seconds. A retry follows at once, or never if the thread was killed or a directory on the way refused it."""
_FOREIGN = 0


@dataclass(slots=True)
class _Retry:
    writing: bool
    until: float
    missed: bool = False
    """One look-up found nothing."""


class Retries:
    """Retries that are under way, a bounded number.

    :param clock: seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pending: OrderedDict[Hashable, _Retry] = OrderedDict()

    def expect(self, thread: int, place: Place, *, writing: bool) -> None:
        """The thread is about to be sent back to the name, to find what can be written to or what is published."""
        key = _key(thread, place)
        self._pending[key] = _Retry(writing, self._clock() + _LASTING)
        self._pending.move_to_end(key)
        if len(self._pending) > _REMEMBERED:
            self._pending.popitem(last=False)

    def is_writing(self, thread: int, place: Place) -> bool:
        """Whether this look-up of a file belongs to an open for writing that was sent back."""
        retry = self._pending.get(_key(thread, place))
        return retry is not None and retry.writing and retry.until >= self._clock()

    def missed(self, thread: int, place: Place) -> None:
        """The thread learns that there is no such name: the second time, its open fails."""
        key = _key(thread, place)
        retry = self._pending.get(key)
        if retry is not None and retry.missed:
            del self._pending[key]
        elif retry is not None:
            retry.missed = True

    def take(self, thread: int, place: Place) -> bool:
        """The thread opens a file; whether that ends a retry."""
        retry = self._pending.pop(_key(thread, place), None)
        return retry is not None and retry.until >= self._clock()


def _key(thread: int, place: Place) -> Hashable:
    return thread if thread != _FOREIGN else place
