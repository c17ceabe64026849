"""The product's own choices, as caches to compare with others: the very parts that mounts and engines run. Pure.

Nothing takes time here, and what a cache misses it has afterwards, if it is worth it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

from xxhash import xxh3_128_digest

from blockdev.types import ObjectId, SlotClass, Stamp
from kvfs.foretelling import Foretelling
from kvfs.predecessors import NONE, block_id
from kvfs.prefetch.keeping import Keeper, Request
from kvfs.prefetch.returns import Returns
from kvfs.prefetch.value import ByValue

if TYPE_CHECKING:
    from collections.abc import Hashable

    from blockdev.eviction import Policy
    from kvfs.uses import Part, Use

CLASS = SlotClass.MIB4
"""Of all slots: what is compared is who leaves, not how bytes lie on media."""
UNUSED_SHARE = 4
"""One in so many bytes of a mount's memory may be of what nobody has asked for yet."""


class PoolCache:
    """A full pool.

    :param capacity: in the unit of sizes
    :param policy: who decides what leaves; by value, if none is given
    """

    def __init__(self, capacity: int, policy: Policy | None = None) -> None:
        self._capacity = capacity
        self._policy: Policy = ByValue() if policy is None else policy
        self._sizes: dict[ObjectId, int] = {}
        self._used = 0
        self._ids: dict[Hashable, ObjectId] = {}
        self._labels: dict[Hashable, tuple[bytes, bytes]] = {}

    def use(self, use: Use) -> int:
        """Ask for a chain; how much of its beginning was there. What was not is stored then, and others leave."""
        served, leads = 0, True
        for part in use.parts():
            object_id = self._id(part.name)
            there = self._sizes.get(object_id) == use.size
            leads = leads and there
            served += use.size * leads
            if there:
                self._policy.touch(object_id, use.time)
            elif use.size <= self._capacity:
                self._store(object_id, part, use)
        return served

    def _store(self, object_id: ObjectId, part: Part, use: Use) -> None:
        if object_id in self._sizes:  # another version
            self._remove(object_id)
        self._make_room(use.size)
        label, _ = self._label(part.block)
        self._policy.named(object_id, label, Stamp(0))
        self._policy.follows(object_id, NONE if part.before is None else self._label(part.before)[1])
        self._policy.add(object_id, (CLASS,), use.time)
        self._sizes[object_id] = use.size
        self._used += use.size

    def _make_room(self, size: int) -> None:
        while self._used + size > self._capacity:
            self._remove(next(iter(self._policy.victims(CLASS))))

    def _remove(self, object_id: ObjectId) -> None:
        self._policy.remove(object_id)
        self._used -= self._sizes.pop(object_id)

    def _id(self, name: Hashable) -> ObjectId:
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = ObjectId(xxh3_128_digest(repr(name).encode()))
        return found

    def _label(self, block: Hashable) -> tuple[bytes, bytes]:
        """A name as engines have for a block, and what a pool knows the block by."""
        found = self._labels.get(block)
        if found is None:
            name = self._id(block).hex().encode()
            found = self._labels[block] = (name, block_id(name))
        return found


class MemoryCache:
    """The memory of a mount, behind which everything is that was ever stored: what leaves is the least recently used, and what
    will be opened next is fetched before. What is not in it is waited for, and nothing is lost by that.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[Hashable, int] = OrderedDict()
        self._used = 0
        self._unused: dict[Hashable, int] = {}
        self._unused_size = 0
        self._files: dict[Hashable, dict[Hashable, int]] = {}
        """Those of each block, and their sizes."""
        self._foretelling = Foretelling()

    def use(self, use: Use) -> int:
        """Ask for a chain; how much of what exists of its beginning need not be waited for."""
        served, leads = 0, True
        for part in use.parts():
            leads = leads and part.block in self._foretelling
            served += use.size * (leads and self._held.get(part.name) == use.size)
            self._files.setdefault(part.block, {})[part.name] = use.size
            self._hold(part.name, use.size)
            self._asked_for(part.name)
            if use.wanted and leads:
                change = self._foretelling.opened(part.block, use.reader, use.time)
                for block in change.fetch:
                    self._fetch(block)
            else:
                self._foretelling.published(part.block, part.before, use.time)
        return served

    def _fetch(self, block: Hashable) -> None:
        for name, size in self._files[block].items():
            has_room = (self._unused_size + size) * UNUSED_SHARE <= self._capacity
            if name not in self._held and has_room:
                self._unused[name] = size
                self._unused_size += size
                self._hold(name, size)

    def _hold(self, name: Hashable, size: int) -> None:
        self._used -= self._held.pop(name, 0)
        if size <= self._capacity:
            self._held[name] = size
            self._used += size
        while self._used > self._capacity:
            gone, size = self._held.popitem(last=False)
            self._used -= size
            self._asked_for(gone)

    def _asked_for(self, name: Hashable) -> None:
        """Or gone: it is not waiting any more."""
        self._unused_size -= self._unused.pop(name, 0)


class ToldCache:
    """The memory of an engine that tells when requests begin, end, and why (`Cache.begin`, `Cache.end`)."""

    def __init__(self, capacity: int) -> None:
        self._keeper = Keeper(capacity, Returns())
        self._running: list[tuple[float, int, Request, str]] = []
        self._number = 0

    def use(self, use: Use) -> int:
        """A request; how many blocks of its beginning were there."""
        running = self._running
        while running and running[0][0] <= use.time:
            ended, _, request, reason = heapq.heappop(running)
            self._keeper.end(request, ended, reason)
        request = self._keeper.begin(use.chain, use.time)
        if use.ended is not None:
            heapq.heappush(running, (use.ended, self._number, request, use.reason))
        self._number += 1
        return request.hits
