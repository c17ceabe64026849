"""The contents of directories, in an order that survives changes between two calls."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from operator import itemgetter

from kvfs.fuse.inodes import Inode
from kvfs.fuse.volume import Volume

DOTS = (b".", b"..")
Found = tuple[bytes, bytes | None]
"""A name, and its packed record if that was read just now."""
_MARK_EVERY = 1024
"""Entries between the places that a listing remembers for good."""


class Listing:
    """An open directory: `seek`, then `peek` and `accept` in turn.

    An entry's position is how many came before it. The kernel goes on where it stopped, or a few entries before that
    if its caller's buffer was full, or, after seekdir(3), anywhere. Positions are found again by name, of which the
    latest and every so often one are remembered, so what comes and goes meanwhile neither hides nor repeats an entry
    that stays.
    """

    def __init__(self, volume: Volume, inode: Inode) -> None:
        self.inode = inode
        self.position = 0
        self._volume = volume
        self._directory = inode.directory
        self._stream: Iterator[Found] = iter(())
        self._next: Found | None = None
        self._marks: dict[int, bytes] = {len(DOTS): b""}
        self._recent: dict[int, bytes] = {}

    def seek(self, position: int) -> None:
        """Go to the entry that has so many before it."""
        if position != self.position or position <= len(DOTS):
            self._restart(position)
        self._recent = {self.position: self._recent[self.position]} if self.position in self._recent else {}

    def _restart(self, position: int) -> None:
        self._next = None
        if position < len(DOTS):
            dots: list[Found] = [(name, None) for name in DOTS[position:]]
            self._stream = itertools.chain(dots, self._behind(b""))
            self.position = position
            return
        self.position, after = self._before(position)
        self._stream = self._behind(after)
        while self.position < position and self.peek() is not None:
            self.accept()

    def _before(self, position: int) -> tuple[int, bytes]:
        """The nearest remembered place up to a position, and the name that comes before it."""
        if position in self._recent:
            return position, self._recent[position]
        known = max(mark for mark in self._marks if mark <= position)
        return known, self._marks[known]

    def _behind(self, after: bytes) -> Iterator[Found]:
        """Names greater than `after`, in order, each once. What is gone by the time it comes may be among them."""
        published: Iterator[Found] = self._volume.pool.entries(self._directory, after)
        names = self._volume.overlay.names(self._directory, after)
        return _merged(published, [name for name, _ in names]) if names else published

    def peek(self) -> tuple[bytes, Inode] | None:
        """The next entry; None at the end. The same again until it is accepted, unless it is gone meanwhile."""
        while True:
            found = self._next or next(self._stream, None)
            if found is None:
                return None
            name, packed = found
            inode = self._inode(name, packed)
            if inode is not None:
                self._next = name, None
                return name, inode
            self._next = None

    def _inode(self, name: bytes, packed: bytes | None) -> Inode | None:
        if packed is not None:
            return self._volume.inodes.of_packed(packed)
        return self.inode if name in DOTS else self._volume.current(self._directory, name)

    def accept(self) -> None:
        """The entry was sent."""
        assert self._next is not None
        name, _ = self._next
        self.position += 1
        self._recent[self.position] = b"" if name in DOTS else name
        if self.position % _MARK_EVERY == 0:
            self._marks[self.position] = name
        self._next = None


def _merged(published: Iterator[Found], drafts: Iterable[bytes]) -> Iterator[Found]:
    """Published names and those of drafts, in order, each once."""
    last = b""
    for found in heapq.merge(published, ((name, None) for name in drafts), key=itemgetter(0)):
        if found[0] != last:
            last = found[0]
            yield found
