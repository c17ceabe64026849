"""Caches to compare with, as their papers have them. Pure.

tests/scripts/test_prediction_caches.py holds them against what libCacheSim 0.3.5 counts on the same requests.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Protocol


class Baseline(Protocol):
    """Made with a capacity, in blocks."""

    def access(self, block: Hashable) -> bool:
        """Ask for a block, which is there afterwards; whether it was there before."""


class Lru:
    """Least recently used."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[Hashable, None] = OrderedDict()

    def access(self, block: Hashable) -> bool:
        held = self._held
        if block in held:
            held.move_to_end(block)
            return True
        if len(held) >= self._capacity:
            held.popitem(last=False)
        held[block] = None
        return False


class Arc:
    """Adaptive replacement (Megiddo and Modha, FAST'03), named as there: t1, t2 are held, b1, b2 remembered."""

    def __init__(self, capacity: int) -> None:
        self._c = capacity
        self._p = 0.0
        self._t1, self._t2, self._b1, self._b2 = (OrderedDict[Hashable, None]() for _ in range(4))

    def access(self, block: Hashable) -> bool:
        if block in self._t1 or block in self._t2:
            (self._t1 if block in self._t1 else self._t2).pop(block)
            self._t2[block] = None
            return True
        if block in self._b1:
            self._p = min(self._p + max(len(self._b2) / len(self._b1), 1), self._c)
            self._replace(in_b2=False)
            del self._b1[block]
            self._t2[block] = None
        elif block in self._b2:
            self._p = max(self._p - max(len(self._b1) / len(self._b2), 1), 0)
            self._replace(in_b2=True)
            del self._b2[block]
            self._t2[block] = None
        else:
            self._make_room()
            self._t1[block] = None
        return False

    def _make_room(self) -> None:
        recent = len(self._t1) + len(self._b1)
        everything = recent + len(self._t2) + len(self._b2)
        if recent >= self._c:
            if len(self._t1) < self._c:
                self._b1.popitem(last=False)
                self._replace(in_b2=False)
            else:
                self._t1.popitem(last=False)
        elif everything >= self._c:
            if everything >= 2 * self._c:
                self._b2.popitem(last=False)
            self._replace(in_b2=False)

    def _replace(self, *, in_b2: bool) -> None:
        if self._t1 and (len(self._t1) > self._p or (in_b2 and len(self._t1) == self._p)):
            self._b1[self._t1.popitem(last=False)[0]] = None
        elif self._t2:
            self._b2[self._t2.popitem(last=False)[0]] = None


class S3Fifo:
    """S3-FIFO (Yang and others, SOSP'23): a tenth for what is new, and what was wanted twice there is kept.

    As in libCacheSim, what comes before anything was let go fills the larger queue, too.
    """

    SMALL = 0.1
    OFTEN = 3

    def __init__(self, capacity: int) -> None:
        self._small_size = max(int(capacity * self.SMALL), 1)
        self._main_size = capacity - self._small_size
        self._small: deque[Hashable] = deque()
        self._main: deque[Hashable] = deque()
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._used: dict[Hashable, int] = {}
        self._evicted = False

    def access(self, block: Hashable) -> bool:
        if block in self._used:
            self._used[block] = min(self._used[block] + 1, self.OFTEN)
            return True
        ghost = block in self._ghosts
        if ghost:
            del self._ghosts[block]
        while len(self._used) >= self._small_size + self._main_size:
            self._evict()
        self._used[block] = 0
        filling = not self._evicted and len(self._small) >= self._small_size
        (self._main if ghost or filling else self._small).append(block)
        return False

    def _evict(self) -> None:
        self._evicted = True
        if len(self._main) > self._main_size or not self._small:
            self._evict_main()
            return
        block = self._small.popleft()
        if self._used[block] >= 2:
            self._used[block] = 0
            self._main.append(block)
            return
        del self._used[block]
        self._ghosts[block] = None
        if len(self._ghosts) > self._main_size:
            self._ghosts.popitem(last=False)

    def _evict_main(self) -> None:
        while self._used[self._main[0]]:
            block = self._main.popleft()
            self._used[block] -= 1
            self._main.append(block)
        del self._used[self._main.popleft()]
