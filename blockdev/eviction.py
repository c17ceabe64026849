"""Which objects to let go first. Pure.

A policy sees which slot classes an object occupies, because a slot is made free by letting go an object that holds one
of its class. 10^7 objects must fit, so `Lru` keeps arrays and one dictionary: about 200 bytes an object, its id included.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, Protocol

from blockdev.types import ObjectId, SlotClass, Stamp


class Policy(Protocol):
    """The order in which objects are let go. Times are seconds on the caller's clock."""

    def add(self, object_id: ObjectId, classes: Iterable[SlotClass], now: float) -> None:
        """An object was stored (or its classes changed); that counts as a use."""

    def named(self, object_id: ObjectId, name: bytes, stamp: Stamp) -> None:
        """An object has had this name since `stamp`. Comes before or after it is added, better before, and at each new name."""

    def follows(self, object_id: ObjectId, predecessor: bytes) -> None:
        """An object was published after what has this hash, see `Descriptor.predecessor`. Comes as `named` does."""

    def touch(self, object_id: ObjectId, now: float) -> None:
        """An object was wanted. Nothing if it is not known."""

    def remove(self, object_id: ObjectId) -> None:
        """An object is gone. Nothing if it is not known."""

    def victims(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        """Objects that hold a slot of this class, the one to let go first at the front.

        Objects may be added, used and removed between steps: what is gone or was used meanwhile does not come.
        """

    def unfinished(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        """Objects that are no victims, since somebody is about to use them for the first time; else as `victims`."""

    def last_used(self, object_id: ObjectId) -> float:
        """When it was; minus infinity for one that goes before whatever was ever used. :raises KeyError: not known"""

    def is_unfinished(self, object_id: ObjectId) -> bool:
        """Whether it is one of `unfinished`."""

    def classes(self, object_id: ObjectId) -> frozenset[SlotClass]:
        """The classes of its slots. :raises KeyError: it is not known"""

    def order(self) -> Iterator[ObjectId]:
        """All objects, as `victims`: adding them again in this order restores it."""

    def figures(self) -> dict[str, Any]:
        """What there is to tell people: names and plain values."""

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

    def named(self, object_id: ObjectId, name: bytes, stamp: Stamp) -> None:
        pass

    def follows(self, object_id: ObjectId, predecessor: bytes) -> None:
        pass

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

    def unfinished(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        return iter(())

    def order(self) -> Iterator[ObjectId]:
        return self._walk(list(self._lists.values()))

    def last_used(self, object_id: ObjectId) -> float:
        return self._used[self._entries[object_id]]

    def is_unfinished(self, object_id: ObjectId) -> bool:
        return False

    def classes(self, object_id: ObjectId) -> frozenset[SlotClass]:
        mask = self._mask[self._entries[object_id]]
        return frozenset(slot_class for slot_class in SlotClass if mask >> slot_class & 1)

    def figures(self) -> dict[str, Any]:
        return {"policy": "lru"}

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


class TemporaryFirst:
    """Another policy, but what still has a temporary file's name long after it got it goes first.

    Whoever wrote it has died, or would have given it its final name by now; until then that is about to come, and it is
    no victim.

    :param is_temporary: whether a name is a temporary file's
    :param wall_ns: the clock that stamps follow
    """

    PATIENCE = 600 * 10**9
    """Nanoseconds."""

    def __init__(
        self, policy: Policy, is_temporary: Callable[[bytes], bool], wall_ns: Callable[[], int]
    ) -> None:
        self._policy = policy
        self._is_temporary = is_temporary
        self._wall_ns = wall_ns
        self._since: dict[ObjectId, Stamp] = {}
        """When those with such a name got it, whether the other policy knows them or not yet."""
        self._temporary = Lru()
        """Those of them that it knows, in the order in which they were told of."""

    def __len__(self) -> int:
        return len(self._policy)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._policy

    def add(self, object_id: ObjectId, classes: Iterable[SlotClass], now: float) -> None:
        self._policy.add(object_id, classes, now)
        if object_id in self._since:
            self._temporary.add(object_id, self._policy.classes(object_id), now)

    def named(self, object_id: ObjectId, name: bytes, stamp: Stamp) -> None:
        self._policy.named(object_id, name, stamp)
        if not self._is_temporary(name):
            if self._since.pop(object_id, None) is not None:
                self._temporary.remove(object_id)
            return
        self._since[object_id] = stamp
        if object_id in self._policy:
            self._temporary.add(object_id, self._policy.classes(object_id), 0.0)

    def follows(self, object_id: ObjectId, predecessor: bytes) -> None:
        self._policy.follows(object_id, predecessor)

    def touch(self, object_id: ObjectId, now: float) -> None:
        self._policy.touch(object_id, now)

    def remove(self, object_id: ObjectId) -> None:
        self._policy.remove(object_id)
        if self._since.pop(object_id, None) is not None:
            self._temporary.remove(object_id)

    def victims(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        yield from filter(self._is_abandoned, self._temporary.victims(slot_class))
        for object_id in self._policy.victims(slot_class):
            if object_id not in self._since:  # an abandoned one has had its turn
                yield object_id

    def unfinished(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        return filter(self.is_unfinished, self._temporary.victims(slot_class))

    def order(self) -> Iterator[ObjectId]:
        """The other policy's; who adds them again tells their names again."""
        return self._policy.order()

    def last_used(self, object_id: ObjectId) -> float:
        used = self._policy.last_used(object_id)
        return -math.inf if self._is_abandoned(object_id) else used

    def is_unfinished(self, object_id: ObjectId) -> bool:
        return object_id in self._since and not self._is_abandoned(object_id)

    def classes(self, object_id: ObjectId) -> frozenset[SlotClass]:
        return self._policy.classes(object_id)

    def figures(self) -> dict[str, Any]:
        return self._policy.figures()

    def _is_abandoned(self, object_id: ObjectId) -> bool:
        since = self._since.get(object_id)
        return since is not None and self._wall_ns() - since >= self.PATIENCE
