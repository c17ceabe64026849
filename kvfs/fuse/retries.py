"""Opens that must find another inode than they asked for. Pure.

The kernel opens an inode that a name led it to earlier. If that is not what the open should get (a version since
replaced, or a published one that is to be written to), it is answered with ESTALE. The kernel then looks the name up
again, twice in fact (once to find that its entry is wrong, once to make a new one), and opens what it was told; all
that in the same thread. The application sees one open(2). There is no second retry: an open that comes again must be
served somehow, for instance one through /proc/self/fd, which has no name to look up.
"""

from __future__ import annotations

from collections import OrderedDict

from kvfs.fuse.inodes import Place

_REMEMBERED = 4096


class Retries:
    """Retries that are under way; the oldest are forgotten, since a thread may have been killed meanwhile.

    A thread has at most one. But all threads of other PID namespaces may look like one, number 0, so that a thread's
    retries are kept apart by name.
    """

    def __init__(self) -> None:
        self._pending: OrderedDict[tuple[int, Place], bool] = OrderedDict()

    def expect(self, thread: int, place: Place, *, writing: bool) -> None:
        """The thread is about to be sent back to the name, to find what can be written to or what is published."""
        self._pending[thread, place] = writing
        self._pending.move_to_end((thread, place))
        if len(self._pending) > _REMEMBERED:
            self._pending.popitem(last=False)

    def is_writing(self, thread: int, place: Place) -> bool:
        """Whether this look-up belongs to an open for writing that was sent back."""
        return self._pending.get((thread, place), False)

    def take(self, thread: int, place: Place) -> bool:
        """An open of that name begins; whether it is a retry."""
        return self._pending.pop((thread, place), None) is not None
