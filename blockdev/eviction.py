"""Which objects to let go first. Pure.

A policy sees which slot classes an object occupies, because a slot is made free by letting go an object that holds one
of its class. 10^7 objects must fit, so `Lru` keeps arrays and one dictionary: about 200 bytes an object, its id included.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Protocol

from blockdev.types import ObjectId, SlotClass


class Policy(Protocol):
    """The order in which objects are let go. Times are seconds on the caller's clock."""

    def add(self, object_id: ObjectId, classes: Iterable[SlotClass], now: float) -> None:
        """An object was stored (or its classes changed); that counts as a use."""

    def touch(self, object_id: ObjectId, now: float) -> None:
        """An object was wanted. Nothing if it is not known."""

    def remove(self, object_id: ObjectId) -> None:
        """An object is gone. Nothing if it is not known."""

    def victims(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        """Objects that hold a slot of this class, the one to let go first at the front.

        Objects may be added, used and removed between steps: what is gone or was used meanwhile does not come.
        """

    def last_used(self, object_id: ObjectId) -> float:
        """:raises KeyError: it is not known"""

    def order(self) -> Iterator[ObjectId]:
        """All objects, as `victims`: adding them again in this order restores it."""

    def __contains__(self, object_id: object) -> bool: ...

    def __len__(self) -> int: ...


class _Cursor:
    """Where a walk over a list goes next. Moved on when that entry leaves its place."""

    __slots__ = ("next",)

    def __init__(self, entry: int) -> None:
        self.next = entry


class Lru:
    """Least recently used first.

    Objects with the same set of classes form one doubly linked list, coldest at the front; its ends meet in an entry
    that is no object. A walk over one class merges the few lists whose set contains it. An entry's tick counts uses, so
    ticks order entries across lists and tell whether one was used since a walk began.
    """

    def __init__(self) -> None:
        self._entries: dict[ObjectId, int] = {}
        self._ids: list[ObjectId | None] = []
        self._next = array("I")
        self._previous = array("I")
        self._mask = bytearray()
        self._used = array("d")
        self._ticks = array("Q")  # 0: not an object
        self._tick = 0
        self._vacant = array("I")
        self._lists: dict[int, int] = {}  # mask of classes → the list's end
        self._cursors: list[_Cursor] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._entries

    def add(self, object_id: ObjectId, classes: Iterable[SlotClass], now: float) -> None:
        mask = sum({1 << slot_class for slot_class in classes})
        entry = self._entries.get(object_id)
        if entry is None:
            entry = self._entries[object_id] = self._new_entry(object_id)
        else:
            self._unlink(entry)
        self._mask[entry] = mask
        if mask not in self._lists:
            self._lists[mask] = self._new_entry(None)
        self._append(entry, now)

    def touch(self, object_id: ObjectId, now: float) -> None:
        entry = self._entries.get(object_id)
        if entry is not None:
            self._unlink(entry)
            self._append(entry, now)

    def remove(self, object_id: ObjectId) -> None:
        entry = self._entries.pop(object_id, None)
        if entry is not None:
            self._unlink(entry)
            self._ids[entry] = None
            self._ticks[entry] = 0
            self._vacant.append(entry)

    def victims(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        return self._walk([end for mask, end in self._lists.items() if mask >> slot_class & 1])

    def order(self) -> Iterator[ObjectId]:
        return self._walk(list(self._lists.values()))

    def last_used(self, object_id: ObjectId) -> float:
        return self._used[self._entries[object_id]]

    def _walk(self, ends: list[int]) -> Iterator[ObjectId]:
        for tick, entry in merge(*[self._walk_list(end) for end in ends]):
            # The merge looks one entry ahead in each list: that one may be gone or used by now.
            object_id = self._ids[entry]
            if self._ticks[entry] == tick and object_id is not None:
                yield object_id

    def _walk_list(self, end: int) -> Iterator[tuple[int, int]]:
        began = self._tick
        cursor = _Cursor(self._next[end])
        self._cursors.append(cursor)
        try:
            while cursor.next != end and self._ticks[cursor.next] <= began:
                entry = cursor.next
                cursor.next = self._next[entry]
                yield self._ticks[entry], entry
        finally:
            self._cursors.remove(cursor)

    def _new_entry(self, object_id: ObjectId | None) -> int:
        """An entry outside of every list (that is: a list's end that points to itself)."""
        if self._vacant:
            entry = self._vacant.pop()
            self._ids[entry] = object_id
            self._next[entry] = self._previous[entry] = entry
            return entry
        entry = len(self._ids)
        self._ids.append(object_id)
        self._next.append(entry)
        self._previous.append(entry)
        self._mask.append(0)
        self._used.append(0.0)
        self._ticks.append(0)
        return entry

    def _append(self, entry: int, now: float) -> None:
        self._tick += 1
        self._ticks[entry] = self._tick
        self._used[entry] = now
        end = self._lists[self._mask[entry]]
        last = self._previous[end]
        self._next[last] = self._previous[end] = entry
        self._previous[entry] = last
        self._next[entry] = end

    def _unlink(self, entry: int) -> None:
        before, after = self._previous[entry], self._next[entry]
        self._next[before] = after
        self._previous[after] = before
        for cursor in self._cursors:
            if cursor.next == entry:
                cursor.next = after
