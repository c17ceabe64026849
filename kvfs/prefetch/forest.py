"""Blocks, what follows what, and which of them to let go first: those that are worth their room least, leaves first. Pure.

A block is idle from its use on, and how soon blocks of its kind come back is learnt (`returns.py`). A kind is how often a block
was used, and whether something ever followed it in its chain. A block that something follows stays, as what follows would
be of no use without it; and the end of a chain that is being written is taken for one that something follows. What follows a
block that had to go is of no use and goes first: so a chain that is not worth its room is not stored any further.

Where a cache that lets go the least recently used, leaves first, would serve more (`shadow.py`), leaves are in the order of their last
use, until that is over.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from kvfs.prefetch.leaves import Group, Leaves, Rank
from kvfs.prefetch.numbers import Numbers
from kvfs.prefetch.returns import Kind, Returns, bucket
from kvfs.prefetch.seen import Seen
from kvfs.prefetch.shadow import Shadow

USES = 3
"""Beyond so many there is no difference."""
TOGETHER = 1.0
"""Seconds within which several uses of a block are one: of its files, one after the other."""
REQUEST = 10.0
"""Seconds between the first and the last use of a chain's blocks by one request, at most."""
GROUPS = 64
"""Groups of one kind that a pool's blocks would fill, if all were used once."""
SMALLEST, LARGEST = 256, 4096
"""Uses that make one group."""
LEARN = 256
"""So many are let go before what was learnt is looked at again, or a quarter of all."""
WRITTEN = 16
"""Chains that are being written, at most. Their ends are worth what blocks are that something follows."""
LOOKS = 16
"""Blocks are let go before it is looked up anew how old the oldest group is."""
HOPS = 4
"""A block follows the nearest before it that has slots of the same classes, if that is no further."""

_FOLLOWED, _GONE = 4, 8
_KINDS: tuple[Kind, ...] = tuple((flags & 3, bool(flags & _FOLLOWED)) for flags in range(8))
ORPHAN: Kind = ("orphan",)
"""What follows a block that had to go."""


class Forest:
    """Blocks are numbers from 1 on.

    :param returns: what is learnt of returns, here and before
    """

    def __init__(self, returns: Returns) -> None:
        self._returns = returns
        self.shadow = Shadow(returns)
        self.numbers = Numbers()
        self._seen = Seen()
        self._runs = array("I", [0])
        """Which request used it, about: the numbers of those that came later are higher."""
        self._leaves = Leaves(self._rank_of)
        self._inner = Group()
        """Blocks that something follows."""
        self._parents = array("I", [0])
        self._children = array("I", [0])
        self._flags = bytearray(1)
        """How often it was used, and `_FOLLOWED`: something has ever come after it; `_GONE`: it was let go."""
        self.masks = bytearray(1)
        """The classes of slots that it holds, as bits; 0 if it is not there."""
        self._used = array("d", [0.0])
        self.ticks = array("Q", [0])
        self._epochs = array("I", [0])
        self._places = array("H", [0])
        """How many blocks of its kind were before it in its chain when it was used."""
        self._there = 0
        self._writing: OrderedDict[int, None] = OrderedDict()
        self._cut: OrderedDict[int, None] = OrderedDict()
        """Ends of chains that had to go though something may follow: keys."""
        self._indices: dict[Kind, list[float]] = {}
        self._learnt = 0
        self._sorted = -1
        self._by_value = True
        self._run = 0
        self._epoch = 0
        self._epoch_ends = 0
        self.tick = 0
        self._now = 0.0
        self._looks = 0
        self.evicted = {"value": 0, "lru": 0}

    def __len__(self) -> int:
        """Blocks that are there."""
        return self._there

    # ── what becomes of blocks ───────────────────────────────────────────────────────────────────────────

    def block(self, key: int) -> int:
        """The number of a block, which may be new."""
        number = self.numbers.find(key)
        if not number:
            number = self.numbers.add(key)
            if number == len(self._flags):
                self._grow()
            self._flags[number] = self._seen.uses(key) | (_GONE if key in self._cut else 0)
            self._used[number] = -REQUEST - TOGETHER
        return number

    def hold(self, number: int, mask: int) -> None:
        """A block is there, with slots of these classes; with none, it is not there any more. Who comes is used next."""
        before = self.masks[number]
        if before == mask:
            return
        self.masks[number] = mask
        self._there += (not before) - (not mask)
        if not mask:
            self._writing.pop(number, None)
        if before:
            self._place(number)
        else:
            self._flags[number] &= ~_GONE
        if not mask:
            self._forget(number)

    def use(self, number: int, now: float) -> None:
        """A block that is there was stored or wanted."""
        self.tick += 1
        self.ticks[number] = self.tick
        if now > self._now:
            self._now = now
        flags = self._flags[number]
        if now - self._used[number] < TOGETHER and number in self._leaves:
            return
        parent = self._parents[number]
        if flags & 3 < USES:
            flags += 1
            self._flags[number] = flags
        place = 0
        if parent and now - self._used[parent] < REQUEST:
            run = self._runs[parent]
            if self._flags[parent] & 3 == flags & 3:
                place = min(self._places[parent] + 1, 0xFFFF)
        else:
            self._run += 1
            run = self._run
        self._runs[number] = run
        self._places[number] = place
        self._used[number] = now
        if self.tick >= self._epoch_ends:
            self._next_epoch()
        self._epochs[number] = self._epoch
        key = self.numbers.keys[number]
        if not key & self.shadow.mask:
            self.shadow.used(key, _KINDS[flags & 7], now, (run, -self.tick), 1 / (1 + place))
        if not self._children[number] or number not in self._leaves:
            self._place(number)

    def write(self, number: int) -> None:
        """A block is the end of a chain that is being written."""
        if self._children[number] or self._is_orphan(number):
            return
        self._writing[number] = None
        self._writing.move_to_end(number)
        while len(self._writing) > WRITTEN:
            self._place(self._writing.popitem(last=False)[0])

    def follow(self, number: int, key: int) -> None:
        """A block follows the one with this key, which may not be there."""
        if not key or self._parents[number] or self.numbers.keys[number] == key:
            return
        parent = self._similar(number, self.block(key))
        if not parent or parent == number or self._parents[parent] == number:
            return
        self._parents[number] = parent
        self._children[parent] += 1
        if self._children[parent] == 1:
            self._writing.pop(parent, None)
            self._place(parent)
        if not self._flags[parent] & _FOLLOWED:
            self._flags[parent] |= _FOLLOWED
            if not key & self.shadow.mask:
                self.shadow.is_now(key, _KINDS[self._flags[parent] & 7])
        if self._flags[parent] & _GONE and number in self._leaves:
            self._place(number)

    def parent_key(self, number: int) -> int:
        """The key of the block that it follows; 0 if there is none."""
        return self.numbers.keys[self._parents[number]]

    def let_go(self, number: int) -> None:
        """A block had to make room; `hold` comes after this."""
        key = self.numbers.keys[number]
        if number in self._writing or self._is_orphan(number):
            self._cut[key] = None
            if len(self._cut) > WRITTEN:
                self._cut.popitem(last=False)
        self._flags[number] |= _GONE
        if not key & self.shadow.mask:
            self.shadow.let_go(key, self._now)

    def count_evicted(self) -> None:
        """A file of a block had to make room."""
        self.evicted["value" if self._by_value else "lru"] += 1

    def removed(self, number: int) -> None:
        """A block was removed, by somebody who did not want it; `hold` comes after this."""
        key = self.numbers.keys[number]
        if not key & self.shadow.mask:
            self.shadow.removed(key)

    # ── who goes ─────────────────────────────────────────────────────────────────────────────────────────

    def candidates(self, slot_class: int) -> Iterator[int]:
        """Blocks that hold a slot of this class, the one to let go first in front. Blocks may come, be used and go
        meanwhile; who was used does not come."""
        began = self.tick
        self._give_up_writing(self._now - REQUEST)
        self._sort()
        stale = self._stale(slot_class)
        if stale:
            yield stale
        for group in self._leaves.in_order(slot_class):
            for number in self._leaves.of(group):
                if self.ticks[number] <= began:
                    yield number
        for number in self._leaves.of(self._inner):
            if self.ticks[number] <= began and self.masks[number] >> slot_class & 1:
                yield number

    def figures(self) -> dict[str, Any]:
        """What it has done, for people."""
        return {
            "trusted": int(self.shadow.trusted),
            "evicted_by_policy": dict(self.evicted),
            "sampled_gain": self.shadow.gained,
            "sampled_regret": self.shadow.regret,
            "sampled": len(self.shadow),
            "sample": self.shadow.one_in,
        }

    def last_use(self, number: int) -> float:
        """When a block was used, seconds."""
        return self._used[number]

    def used(self, number: int) -> float:
        """As far as whole regions are compared by it: a block that goes is no younger than the oldest like it."""
        return min(self._leaves.oldest(self.masks[number]), self._used[number])

    def _stale(self, slot_class: int) -> int:
        """A block that was used long before every end of a chain: what was taken to follow it is of other chains.

        One is looked at each time, in turns; 0 if it is none.
        """
        number = self._inner.first
        if not number:
            return 0
        self._looks += 1
        if self._looks % LOOKS == 0:
            self._leaves.look_at_ages()
        if self._used[number] + REQUEST < self._leaves.oldest(0xFF) and self.masks[number] >> slot_class & 1:
            return number
        self._leaves.leave(number)
        self._leaves.append(number, self._inner)
        return 0

    def _sort(self) -> None:
        """Put groups in order, if there was a new one since."""
        if self._sorted == self._epoch and self._by_value == self.shadow.trusted:
            return
        self._sorted = self._epoch
        self._by_value = self.shadow.trusted
        gone = sum(self.evicted.values())
        if gone >= self._learnt:
            self._learnt = gone + min(LEARN, self._there // 4)
            self._indices.clear()
        self._leaves.sort()

    def _rank_of(self, group: Group) -> Rank:
        if group.kind is ORPHAN:
            return (-1.0, group.epoch)
        if not self._by_value:
            return (0.0, group.epoch)
        indices = self._indices.get(group.kind)
        if indices is None:
            indices = self._indices[group.kind] = self._returns.indices(group.kind)
        return (indices[bucket(self._now - group.used)], group.epoch)

    # ── where blocks are ─────────────────────────────────────────────────────────────────────────────────

    def _is_orphan(self, number: int) -> bool:
        return bool(self._flags[self._parents[number]] & _GONE)

    def _give_up_writing(self, since: float) -> None:
        """Chains to which nothing was added since then are not being written."""
        while self._writing:
            number = next(iter(self._writing))
            if self._used[number] > since:
                return
            del self._writing[number]
            self._place(number)

    def _next_epoch(self) -> None:
        self._epoch += 1
        self._seen.room_for(self._there)
        self._epoch_ends = self.tick + min(max(self._there // GROUPS, SMALLEST), LARGEST)

    def _place(self, number: int) -> None:
        """Put a block where it belongs."""
        leaves = self._leaves
        leaves.leave(number)
        mask = self.masks[number]
        if not mask:
            return
        if self._children[number]:
            leaves.append(number, self._inner)
            return
        is_old = self._epochs[number] < self._epoch
        kind = _KINDS[self._flags[number] & 7 | (_FOLLOWED if number in self._writing else 0)]
        if self._is_orphan(number):
            kind = ORPHAN
        group = leaves.at(mask, kind, self._epochs[number], self._used[number])
        (leaves.prepend if is_old else leaves.append)(number, group)

    def _similar(self, number: int, parent: int) -> int:
        """The nearest of a chain that holds slots of the same classes; 0 if there is none near."""
        mask = self.masks[number]
        for _ in range(HOPS):
            theirs = self.masks[parent]
            if not parent or not mask or not theirs or theirs & mask:
                return parent
            parent = self._parents[parent]
        return 0

    def _forget(self, number: int) -> None:
        """Know no more of a block that is not there and that nothing follows."""
        while number and not self.masks[number] and not self._children[number]:
            self._seen.note(self.numbers.keys[number], self._flags[number] & 3)
            parent, self._parents[number] = self._parents[number], 0
            self._flags[number] = 0
            self.numbers.drop(number)
            if parent:
                self._children[parent] -= 1
                if not self._children[parent]:
                    self._place(parent)
            number = parent

    def _grow(self) -> None:
        self._leaves.grow()
        for values in (
            self._parents, self._children, self._used, self.ticks, self._runs, self._epochs, self._places,
        ):  # fmt: skip
            values.append(0)
        self._flags.append(0)
        self.masks.append(0)
