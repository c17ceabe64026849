"""What a full pool lets go, by what it is worth: an eviction policy over a forest of blocks. Pure.

Files that engines name after one block go together. Which block goes is decided by `forest.py`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from blockdev.types import ObjectId, SlotClass, Stamp
from kvfs.predecessors import NONE, block_id
from kvfs.prefetch.forest import Forest
from kvfs.prefetch.returns import Returns


class ByValue:
    """An eviction policy: see `blockdev.eviction.Policy`.

    Objects have numbers from 1 on; those of one block are a list.

    :param returns: what is learnt of returns, by this policy and before
    """

    def __init__(self, returns: Returns | None = None) -> None:
        self._forest = Forest(Returns() if returns is None else returns)
        self._numbers: dict[ObjectId, int] = {}
        self._ids: list[ObjectId | None] = [None]
        self._masks = bytearray(1)
        self._blocks = array("I", [0])
        self._after = array("I", [0])
        self._vacant = array("I")
        self._first = array("I", [0])
        """Of each block, its first object."""
        self._objects: Counter[int] = Counter()
        """How many objects have slots of the same classes."""
        self._told: dict[ObjectId, tuple[int, int]] = {}
        """Blocks, and what they follow, of those that were not added yet."""
        self._offered: ObjectId | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._numbers

    def add(self, object_id: ObjectId, classes: Iterable[SlotClass], now: float) -> None:
        mask = sum({1 << slot_class for slot_class in classes})
        number = self._numbers.get(object_id)
        if number is None:
            key, parent = self._told.pop(object_id, (_key_of(object_id), 0))
            block = self._put(object_id, mask, key)
            self._forest.follow(block, parent)
        else:
            block = self._blocks[number]
            self._objects[self._masks[number]] -= 1
            self._objects[mask] += 1
            self._masks[number] = mask
            self._forest.hold(block, self._mask(block))
        self._forest.write(block)
        self._forest.use(block, now)

    def named(self, object_id: ObjectId, name: bytes, stamp: Stamp) -> None:
        key = _short(block_id(name))
        number = self._numbers.get(object_id)
        if number is None:
            self._told[object_id] = (key, self._told.get(object_id, (0, 0))[1])
            return
        forest, block = self._forest, self._blocks[number]
        if forest.numbers.keys[block] != key:
            mask, parent, used = self._masks[number], forest.parent_key(block), forest.last_use(block)
            forest.removed(block)
            self._take(object_id)
            block = self._put(object_id, mask, key)
            forest.follow(block, parent)
            forest.write(block)
            forest.use(block, used)

    def follows(self, object_id: ObjectId, predecessor: bytes) -> None:
        parent = 0 if predecessor == NONE else _short(predecessor)
        number = self._numbers.get(object_id)
        if number is None:
            self._told[object_id] = (self._told.get(object_id, (_key_of(object_id), 0))[0], parent)
        else:
            self._forest.follow(self._blocks[number], parent)

    def touch(self, object_id: ObjectId, now: float) -> None:
        number = self._numbers.get(object_id)
        if number is not None:
            self._forest.use(self._blocks[number], now)

    def remove(self, object_id: ObjectId) -> None:
        self._told.pop(object_id, None)
        number = self._numbers.get(object_id)
        if number is None:
            return
        block = self._blocks[number]
        is_last = self._first[block] == number and not self._after[number]
        if object_id == self._offered:
            self._forest.count_evicted()
            if is_last:
                self._forest.let_go(block)
        elif is_last:
            self._forest.removed(block)
        self._take(object_id)

    def victims(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        if not any(count for mask, count in self._objects.items() if mask >> slot_class & 1):
            return
        for block in self._forest.candidates(slot_class):
            for object_id, mask in self._files(block):
                if mask >> slot_class & 1 and object_id in self._numbers:
                    self._offered = object_id
                    yield object_id

    def unfinished(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        return iter(())

    def order(self) -> Iterator[ObjectId]:
        blocks = {*self._blocks[1:]} - {0}
        for block in sorted(blocks, key=self._forest.ticks.__getitem__):
            yield from (object_id for object_id, _ in self._files(block))

    def last_used(self, object_id: ObjectId) -> float:
        """As far as whole regions are compared by it: an object that goes is no younger than the oldest like it."""
        return self._forest.used(self._blocks[self._numbers[object_id]])

    def is_unfinished(self, object_id: ObjectId) -> bool:
        return False

    def classes(self, object_id: ObjectId) -> frozenset[SlotClass]:
        mask = self._masks[self._numbers[object_id]]
        return frozenset(slot_class for slot_class in SlotClass if mask >> slot_class & 1)

    def figures(self) -> dict[str, Any]:
        """What it has done, for people."""
        return {"policy": "value", **self._forest.figures()}

    def _files(self, block: int) -> list[tuple[ObjectId, int]]:
        """The objects of a block, and the classes of each."""
        found = []
        number = self._first[block]
        while number:
            object_id = self._ids[number]
            assert object_id is not None
            found.append((object_id, self._masks[number]))
            number = self._after[number]
        return found

    def _mask(self, block: int) -> int:
        """The classes of all objects of a block."""
        mask, number = 0, self._first[block]
        while number:
            mask |= self._masks[number]
            number = self._after[number]
        return mask

    def _put(self, object_id: ObjectId, mask: int, key: int) -> int:
        block = self._forest.block(key)
        while len(self._first) <= block:
            self._first.append(0)
        number = self._new(object_id)
        self._masks[number] = mask
        self._blocks[number] = block
        self._after[number] = self._first[block]
        self._first[block] = number
        self._objects[mask] += 1
        self._forest.hold(block, mask | self._forest.masks[block])
        return block

    def _new(self, object_id: ObjectId) -> int:
        if self._vacant:
            number = self._vacant.pop()
            self._ids[number] = object_id
        else:
            number = len(self._ids)
            self._ids.append(object_id)
            self._masks.append(0)
            self._blocks.append(0)
            self._after.append(0)
        self._numbers[object_id] = number
        return number

    def _take(self, object_id: ObjectId) -> None:
        number = self._numbers.pop(object_id)
        block = self._blocks[number]
        if self._first[block] == number:
            self._first[block] = self._after[number]
        else:
            before = self._first[block]
            while self._after[before] != number:
                before = self._after[before]
            self._after[before] = self._after[number]
        self._objects[self._masks[number]] -= 1
        self._ids[number] = None
        self._blocks[number] = 0
        self._vacant.append(number)
        self._forest.hold(block, self._mask(block))


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")


def _key_of(object_id: ObjectId) -> int:
    """Of an object whose name is not known."""
    return _short(object_id)
