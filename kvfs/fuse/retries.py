"""Opens that must find another inode than they asked for. Pure.

The kernel opens an inode that a name led it to earlier. If that is not what the open should get (a version since
replaced, or a published one that is to be written to), it is answered with ESTALE. The kernel then looks the name up
again, twice in fact (once to find that its entry is wrong, once to make a new one), and opens what it was told; all
that in the same thread, and nothing else in between. The application sees one open(2). There is no second retry: what
a look-up found is kept until the open comes, however often the name is given to others meanwhile, and an open that
comes again without a look-up must be served as it is: it came through /proc/self/fd, which has no name to look up.

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
_LASTING = 60.0
"""Seconds. A retry follows at once, or never if the thread was killed or a directory on the way refused it. At once may be
long if this process was stopped in between."""
_FOREIGN = 0


def nothing() -> None:
    """Keeps nothing."""


@dataclass(slots=True)
class Retry:
    """One open that was sent back.

    :ivar writing: it is to find what can be written to, else what is published
    :ivar only: the place of what was asked for, where it is not known that an open follows; then it counts for one of
        that place alone, and only if the name was looked up since
    :ivar until: when it counts no more
    :ivar looked_up: the name was looked up since
    :ivar missed: one look-up found nothing
    :ivar release: gives back what the last look-up found and keeps
    """

    writing: bool
    until: float
    only: Place | None = None
    looked_up: bool = False
    missed: bool = False
    release: Callable[[], None] = nothing


class Retries:
    """Retries that are under way, a bounded number.

    :param clock: seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pending: OrderedDict[Hashable, Retry] = OrderedDict()

    def expect(self, thread: int, place: Place, *, writing: bool, opens: bool = True) -> None:
        """The thread is about to be sent back to the name.

        :param opens: it asked for an open; else it may not be about to open anything
        """
        self._forget_old()
        key = _key(thread, place)
        self._drop(key)
        self._pending[key] = Retry(writing, self._clock() + _LASTING, None if opens else place)
        if len(self._pending) > _REMEMBERED:
            self._drop(next(iter(self._pending)))

    def of(self, thread: int, place: Place) -> Retry | None:
        """The retry that a look-up of a file belongs to."""
        self._forget_old()
        return self._pending.get(_key(thread, place))

    def found(self, retry: Retry, release: Callable[[], None]) -> None:
        """The look-up found something that is kept until `release`."""
        retry.release()
        retry.looked_up, retry.release = True, release

    def missed(self, thread: int, place: Place) -> None:
        """The look-up found nothing: the second time, the open fails."""
        retry = self.of(thread, place)
        if retry is not None and retry.missed:
            self._drop(_key(thread, place))
        elif retry is not None:
            retry.looked_up = retry.missed = True

    def take(self, thread: int, place: Place) -> Retry | None:
        """The thread opens a file: the retry that this ends, to be released when the open is done."""
        self._forget_old()
        retry = self._pending.pop(_key(thread, place), None)
        if retry is not None and retry.only is not None and not (retry.looked_up and retry.only == place):
            retry.release()
            return None
        return retry

    def _forget_old(self) -> None:
        now = self._clock()
        while self._pending:
            key, retry = next(iter(self._pending.items()))
            if retry.until >= now:
                return
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        retry = self._pending.pop(key, None)
        if retry is not None:
            retry.release()


def _key(thread: int, place: Place) -> Hashable:
    return thread if thread != _FOREIGN else place
