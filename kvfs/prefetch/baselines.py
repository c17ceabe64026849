"""Caches to compare with, as their papers have them, for blocks of any size. Pure.

tests/scripts/test_prediction_caches.py holds them against what libCacheSim 0.3.5 counts on the same requests. Sizes and
capacities are in one unit of the caller's: bytes; or blocks, each of size 1. What is larger than the cache is not held. A
block that comes back with another size is another version: what was there of the old one goes.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol


class Baseline(Protocol):
    """Made with a capacity."""

    def access(self, block: Hashable, size: int = 1) -> bool:
        """Ask for a block, which is there afterwards if it fits; whether it was there before."""


class _Queue:
    """Blocks with their sizes, the oldest first.

    :ivar size: of all
    """

    __slots__ = ("_sizes", "size")

    def __init__(self) -> None:
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def __contains__(self, block: object) -> bool:
        return block in self._sizes

    def get(self, block: Hashable) -> int | None:
        """Its size; None if it is not there."""
        return self._sizes.get(block)

    def add(self, block: Hashable, size: int) -> None:
        """Behind all others; it must not be there."""
        self._sizes[block] = size
        self.size += size

    def remove(self, block: Hashable) -> None:
        self.size -= self._sizes.pop(block)

    def pop(self) -> tuple[Hashable, int]:
        """Take out the oldest."""
        block, size = self._sizes.popitem(last=False)
        self.size -= size
        return block, size

    def renew(self, block: Hashable) -> None:
        """It is the youngest."""
        self._sizes.move_to_end(block)


class Lru:
    """Least recently used."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held = _Queue()

    def access(self, block: Hashable, size: int = 1) -> bool:
        held = self._held
        before = held.get(block)
        if before == size:
            held.renew(block)
            return True
        if before is not None:
            held.remove(block)
        if size <= self._capacity:
            held.add(block, size)
            while held.size > self._capacity:
                held.pop()
        return False


class LeafFirst:
    """Least recently used, but what belongs to a block only after all that follows the block: that would be of no use alone."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._held: dict[Hashable, _Leaf] = {}
        self._files: dict[Hashable, dict[Hashable, None]] = {}
        """Of each block, those that are held."""
        self._followers: Counter[Hashable] = Counter()
        self._leaves: list[tuple[int, Hashable]] = []
        """What nothing follows, and what once was such and is gone or was used again."""
        self._tick = 0

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def access(self, name: Hashable, size: int, block: Hashable, before: Hashable) -> bool:
        """As `Baseline.access`.

        :param block: that it is a part of
        :param before: the block that this one follows; None if it follows none
        """
        held = self._held.get(name)
        was = 0 if held is None else held.size
        if held is None:
            if size > self._capacity:
                return False
            held = self._held[name] = _Leaf(block, before)
            self._files.setdefault(block, {})[name] = None
            if before is not None:
                self._followers[before] += 1
        self._tick += 1
        held.tick, held.size = self._tick, size
        self._used += size - was
        if not self._followers[block]:
            heapq.heappush(self._leaves, (self._tick, name))
        while self._used > self._capacity:
            self._drop(*heapq.heappop(self._leaves))
        return was == size

    def _drop(self, tick: int, name: Hashable) -> None:
        held = self._held.get(name)
        if held is None or held.tick != tick or self._followers[held.block]:
            return
        del self._held[name], self._files[held.block][name]
        self._used -= held.size
        if held.before is None:
            return
        self._followers[held.before] -= 1
        if not self._followers[held.before]:
            for leaf in self._files.get(held.before, ()):
                heapq.heappush(self._leaves, (self._held[leaf].tick, leaf))


@dataclass(slots=True)
class _Leaf:
    block: Hashable
    before: Hashable
    tick: int = 0
    size: int = 0


class Arc:
    """Adaptive replacement (Megiddo and Modha, FAST'03), named as there: t1, t2 are held, b1, b2 remembered."""

    def __init__(self, capacity: int) -> None:
        self._c = capacity
        self._p = 0.0
        self._t1, self._t2, self._b1, self._b2 = (_Queue() for _ in range(4))

    def access(self, block: Hashable, size: int = 1) -> bool:
        held = self._t1 if block in self._t1 else self._t2
        before = held.get(block)
        if before == size:
            held.remove(block)
            self._t2.add(block, size)
            return True
        if before is not None:
            held.remove(block)
        if size > self._c:
            return False
        if block in self._b1:
            self._p = min(self._p + max(self._b2.size / self._b1.size, 1) * size, self._c)
            self._make_room(size, in_b2=False)
            self._b1.remove(block)
            self._t2.add(block, size)
        elif block in self._b2:
            self._p = max(self._p - max(self._b1.size / self._b2.size, 1) * size, 0)
            self._make_room(size, in_b2=True)
            self._b2.remove(block)
            self._t2.add(block, size)
        else:
            self._forget(size)
            self._make_room(size, in_b2=False)
            self._t1.add(block, size)
        return False

    def _forget(self, size: int) -> None:
        """What is new must find room among what was used once, and among all that is remembered."""
        t1, t2, b1, b2 = self._t1, self._t2, self._b1, self._b2
        while t1.size + b1.size + size > self._c:
            (b1 or t1).pop()
        while b2 and t1.size + b1.size + t2.size + b2.size + size > 2 * self._c:
            b2.pop()

    def _make_room(self, size: int, *, in_b2: bool) -> None:
        t1, t2 = self._t1, self._t2
        while t1.size + t2.size + size > self._c:
            if t1 and (not t2 or t1.size > self._p or (in_b2 and t1.size == self._p)):
                self._b1.add(*t1.pop())
            else:
                self._b2.add(*t2.pop())


class S3Fifo:
    """S3-FIFO (Yang and others, SOSP'23): a tenth for what is new, and what was wanted twice there is kept.

    As in libCacheSim, what comes before anything was let go fills the larger queue, too.
    """

    SMALL = 0.1
    OFTEN = 3

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._small_size = max(int(capacity * self.SMALL), 1)
        self._main_size = capacity - self._small_size
        self._small, self._main, self._ghosts = (_Queue() for _ in range(3))
        self._used: dict[Hashable, int] = {}
        self._evicted = False

    def access(self, block: Hashable, size: int = 1) -> bool:
        used = self._used.get(block)
        if used is not None:
            queue = self._small if block in self._small else self._main
            if queue.get(block) == size:
                self._used[block] = min(used + 1, self.OFTEN)
                return True
            queue.remove(block)
            del self._used[block]
        if size > self._capacity:
            return False
        ghost = block in self._ghosts
        if ghost:
            self._ghosts.remove(block)
        while self._small.size + self._main.size + size > self._capacity:
            self._evict()
        self._used[block] = 0
        filling = not self._evicted and self._small.size + size > self._small_size
        (self._main if ghost or filling else self._small).add(block, size)
        return False

    def _evict(self) -> None:
        self._evicted = True
        if self._main.size > self._main_size or not self._small:
            self._evict_main()
            return
        block, size = self._small.pop()
        if self._used[block] >= 2:
            self._used[block] = 0
            self._main.add(block, size)
            return
        del self._used[block]
        self._ghosts.add(block, size)
        while self._ghosts.size > self._main_size:
            self._ghosts.pop()

    def _evict_main(self) -> None:
        while True:
            block, size = self._main.pop()
            if not self._used[block]:
                del self._used[block]
                return
            self._used[block] -= 1
            self._main.add(block, size)
