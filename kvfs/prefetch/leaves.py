"""Blocks in groups, and the order in which groups are let go. Pure.

Blocks of one kind, with slots of the same classes, that were used at about the same time are one group: they are worth the same,
so that to choose is to put groups in order, of which there are hundreds, not blocks. A group is a list through arrays: 16 bytes a
block, its group included.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable, Iterator
from operator import attrgetter

from kvfs.prefetch.returns import Kind

Rank = tuple[float, int]
_RANK = attrgetter("rank")


class Group:
    """A list of blocks, the first to go in front.

    :ivar epoch: about when they were used, in the order of time
    :ivar used: when the latest was, seconds
    :ivar rank: groups go in the order of this
    """

    __slots__ = ("epoch", "first", "kind", "last", "mask", "rank", "used")

    def __init__(self, mask: int = 0, kind: Kind = (), epoch: int = 0) -> None:
        self.mask = mask
        self.kind = kind
        self.epoch = epoch
        self.first = self.last = 0
        self.used = 0.0
        self.rank: Rank = (0.0, 0)


class Leaves:
    """Which group each block is in, if any, and the groups' order.

    Blocks are numbers from 1 on; `grow` makes room for one more.

    :param rank: what a group is worth now
    """

    def __init__(self, rank: Callable[[Group], Rank]) -> None:
        self._rank = rank
        self._group: list[Group | None] = [None]
        self._next = array("I", [0])
        self._previous = array("I", [0])
        self._groups: dict[tuple[int, Kind, int], Group] = {}
        self._order: list[Group] = []
        self._oldest: dict[int, float] = {}

    def grow(self) -> None:
        """One more block, that is in no group."""
        self._group.append(None)
        self._next.append(0)
        self._previous.append(0)

    def __len__(self) -> int:
        """Groups."""
        return len(self._groups)

    def __contains__(self, number: int) -> bool:
        return self._group[number] is not None

    def at(self, mask: int, kind: Kind, epoch: int, used: float) -> Group:
        """The group of these blocks."""
        where = (mask, kind, epoch)
        group = self._groups.get(where)
        if group is None:
            group = self._groups[where] = Group(mask, kind, epoch)
            group.used = used
            self._insert(group)
        elif group.used < used:
            group.used = used
        return group

    def append(self, number: int, group: Group) -> None:
        """A block becomes the last of a group. It must be in none."""
        self._group[number] = group
        last = group.last
        group.last = number
        self._previous[number] = last
        if last:
            self._next[last] = number
        else:
            group.first = number

    def prepend(self, number: int, group: Group) -> None:
        """A block becomes the first of a group. It must be in none."""
        self._group[number] = group
        first = group.first
        group.first = number
        self._next[number] = first
        if first:
            self._previous[first] = number
        else:
            group.last = number

    def leave(self, number: int) -> None:
        """A block is in no group any more. Nothing if it is in none."""
        group = self._group[number]
        if group is None:
            return
        self._group[number] = None
        before, after = self._previous[number], self._next[number]
        if before:
            self._next[before] = after
            self._previous[number] = 0
        else:
            group.first = after
        if after:
            self._previous[after] = before
            self._next[number] = 0
        else:
            group.last = before

    def of(self, group: Group) -> Iterator[int]:
        """Its blocks, first to last; they may leave meanwhile. Mostly the first is all that is asked for."""
        first = group.first
        if not first:
            return
        yield first
        rest = []
        number = group.first
        while number:
            rest.append(number)
            number = self._next[number]
        yield from (number for number in rest if number != first and self._group[number] is group)

    def in_order(self, slot_class: int) -> Iterator[Group]:
        """Groups of blocks that hold a slot of this class, the first to go in front."""
        order = self._order
        while order and not order[0].first:
            group = order.pop(0)
            del self._groups[group.mask, group.kind, group.epoch]
        for group in [*order]:
            if group.first and group.mask >> slot_class & 1:
                yield group

    def oldest(self, mask: int) -> float:
        """When the blocks that hold slots of one of these classes were used that were used longest ago, or a little
        earlier; infinity if there are none."""
        return min((used for its, used in self._oldest.items() if its & mask), default=float("inf"))

    def look_at_ages(self) -> None:
        """Let `oldest` be exact again."""
        self._oldest = {}
        for group in self._groups.values():
            if group.first:
                self._note_age(group)

    def sort(self) -> None:
        """Put all groups in order, and forget those that are empty."""
        self._groups = {where: group for where, group in self._groups.items() if group.first}
        for group in self._groups.values():
            group.rank = self._rank(group)
        self.look_at_ages()
        self._order = sorted(self._groups.values(), key=_RANK)

    def _insert(self, group: Group) -> None:
        group.rank = self._rank(group)
        self._note_age(group)
        insort(self._order, group, key=_RANK)

    def _note_age(self, group: Group) -> None:
        before = self._oldest.get(group.mask)
        if before is None or group.used < before:
            self._oldest[group.mask] = group.used
