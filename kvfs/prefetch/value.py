"""Which objects of a pool to let go first: those that are worth their room least, leaves of chains first. Pure.

Files that engines name after one block go together. A block is idle from its use on, and how soon blocks of its kind come back
is learnt (`returns.py`). A kind is how often a block was used, and whether something ever followed it in its chain. A block that
something follows stays, as what follows would be of no use without it; so does the end of a chain that is being written.

Blocks of one kind that were used at about the same time are one group: to choose, groups are put in order, not blocks. Where
a least-recently-used cache would serve more (`shadow.py`), groups are in the order of their last use, until that is over.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any

from blockdev.types import ObjectId, SlotClass, Stamp
from kvfs.predecessors import NONE, block_id
from kvfs.prefetch.returns import Kind, Returns, bucket
from kvfs.prefetch.shadow import Shadow

USES = 3
"""Beyond so many there is no difference."""
TOGETHER = 1.0
"""Seconds within which several uses of a block are one: of its files, one after the other."""
REQUEST = 10.0
"""Seconds between the first and the last use of a chain's blocks by one request, at most."""
GROUPS = 64
"""Groups of one kind that a pool's objects would fill, if all were used once."""
LARGEST = 4096
"""Uses that make one group, at most."""
AGAIN = 256
"""So many objects are let go before groups are put in order again, or a sixteenth of all if that is less."""
LEARN = 1024
"""So many are let go before what was learnt is looked at again, or a quarter of all."""
WRITTEN = 16
"""Chains that are being written, at most; and an eighth of all blocks."""
BATCH = 64
"""Blocks of a group that are looked at together."""


class _Block:
    """Files that are used together.

    :ivar files, masks: the objects, and for each the classes of its slots, as bits
    :ivar followed: something has ever come after it in its chain
    :ivar children: blocks that come after it now
    :ivar group: where it is; None if something follows it, or it is not there
    """

    __slots__ = (
        "children", "epoch", "files", "followed", "group", "key", "masks", "parent", "tick", "used", "uses",
    )  # fmt: skip

    def __init__(self, key: int) -> None:
        self.key = key
        self.files: tuple[ObjectId, ...] = ()
        self.masks = b""
        self.parent: _Block | None = None
        self.children = 0
        self.followed = False
        self.uses = 0
        self.used = 0.0
        self.epoch = 0
        self.tick = 0
        self.group: _Group | None = None

    @property
    def mask(self) -> int:
        """The classes of all files."""
        whole = 0
        for mask in self.masks:
            whole |= mask
        return whole

    @property
    def kind(self) -> Kind:
        return (self.uses, self.followed)


class _Group:
    """Blocks of one kind, with slots of the same classes, that were used at about the same time."""

    __slots__ = ("blocks", "epoch", "kind", "mask", "rank", "used")

    def __init__(self, mask: int, kind: Kind, epoch: int) -> None:
        self.mask = mask
        self.kind = kind
        self.epoch = epoch
        self.blocks: dict[_Block, None] = {}
        self.used = 0.0
        self.rank = (0.0, 0)


class ByValue:
    """An eviction policy: see `blockdev.eviction.Policy`.

    :param returns: what is learnt of returns, by this policy and before
    """

    def __init__(self, returns: Returns | None = None) -> None:
        self._returns = Returns() if returns is None else returns
        self._shadow = Shadow(self._returns)
        self._owners: dict[ObjectId, _Block] = {}
        self._blocks: dict[int, _Block] = {}
        self._told: dict[ObjectId, tuple[int, int]] = {}
        """Blocks, and what they follow, of those that were not added yet."""
        self._groups: dict[tuple[int, Kind, int], _Group] = {}
        self._masks: Counter[int] = Counter()
        """How many objects have slots of the same classes."""
        self._order: list[_Group] = []
        self._ranked = 0
        """How many will have gone when groups are put in order again."""
        self._indices: dict[Kind, list[float]] = {}
        self._learnt = 0
        self._by_value = True
        """How groups were put in order last."""
        self._oldest = 0.0
        """When the oldest group was used, or a little earlier."""
        self._followed: OrderedDict[_Block, None] = OrderedDict()
        """Blocks that something follows, the least recently used first."""
        self._writing: OrderedDict[_Block, None] = OrderedDict()
        self._offered: ObjectId | None = None
        self._epoch = 0
        self._epoch_uses = 0
        self._tick = 0
        self._now = 0.0
        self._evicted = {"value": 0, "lru": 0}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._owners

    # ── what becomes of objects ──────────────────────────────────────────────────────────────────────────

    def add(self, object_id: ObjectId, classes: Iterable[SlotClass], now: float) -> None:
        mask = sum({1 << slot_class for slot_class in classes})
        block = self._owners.get(object_id)
        if block is None:
            key, parent = self._told.pop(object_id, (_key_of(object_id), 0))
            block = self._put(object_id, mask, key)
            self._link(block, parent)
        else:
            at = block.files.index(object_id)
            self._masks[block.masks[at]] -= 1
            self._masks[mask] += 1
            block.masks = block.masks[:at] + bytes((mask,)) + block.masks[at + 1 :]
        self._use(block, now)
        self._write(block)

    def named(self, object_id: ObjectId, name: bytes, stamp: Stamp) -> None:
        key = _short(block_id(name))
        block = self._owners.get(object_id)
        if block is None:
            self._told[object_id] = (key, self._told.get(object_id, (0, 0))[1])
        elif block.key != key:
            mask = block.masks[block.files.index(object_id)]
            used, parent = block.used, block.parent
            self._take(object_id, block)
            self._shadow.removed(block.key)
            self._writing.pop(block, None)
            block = self._put(object_id, mask, key)
            self._link(block, 0 if parent is None else parent.key)
            self._use(block, used)
            self._write(block)

    def follows(self, object_id: ObjectId, predecessor: bytes) -> None:
        parent = 0 if predecessor == NONE else _short(predecessor)
        block = self._owners.get(object_id)
        if block is None:
            self._told[object_id] = (self._told.get(object_id, (_key_of(object_id), 0))[0], parent)
        else:
            self._link(block, parent)

    def touch(self, object_id: ObjectId, now: float) -> None:
        block = self._owners.get(object_id)
        if block is not None:
            self._use(block, now)

    def remove(self, object_id: ObjectId) -> None:
        self._told.pop(object_id, None)
        block = self._owners.get(object_id)
        if block is None:
            return
        was_last = len(block.files) == 1
        self._take(object_id, block)
        if object_id == self._offered:
            self._evicted["value" if self._by_value else "lru"] += 1
            if was_last:
                self._shadow.let_go(block.key, self._now)
        elif was_last:
            self._shadow.removed(block.key)
        if was_last:
            self._writing.pop(block, None)

    # ── who goes ─────────────────────────────────────────────────────────────────────────────────────────

    def victims(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        began = self._tick
        self._rank()
        latest = islice(reversed(self._writing), min(WRITTEN, len(self._blocks) // 8))
        spared = dict.fromkeys(block for block in latest if block.group is not None)
        yield from self._files(self._stale(), slot_class, began)
        for group in [*self._order]:
            if group.mask >> slot_class & 1:
                yield from self._files(self._of_group(group, spared), slot_class, began)
        if any(count for mask, count in self._masks.items() if mask >> slot_class & 1):
            yield from self._files([*self._followed], slot_class, began)
            yield from self._files(reversed(spared), slot_class, began)

    def unfinished(self, slot_class: SlotClass) -> Iterator[ObjectId]:
        return iter(())

    def order(self) -> Iterator[ObjectId]:
        for block in sorted(set(self._owners.values()), key=attrgetter("tick")):
            yield from block.files

    def last_used(self, object_id: ObjectId) -> float:
        """As far as whole regions are compared by it: an object that goes is no younger than the oldest like it."""
        block = self._owners[object_id]
        mask = block.mask
        return min(
            (group.used for group in self._order if group.blocks and group.mask & mask), default=block.used
        )

    def is_unfinished(self, object_id: ObjectId) -> bool:
        return False

    def classes(self, object_id: ObjectId) -> frozenset[SlotClass]:
        block = self._owners[object_id]
        mask = block.masks[block.files.index(object_id)]
        return frozenset(slot_class for slot_class in SlotClass if mask >> slot_class & 1)

    def figures(self) -> dict[str, Any]:
        """What it has done, for people."""
        return {
            "policy": "value",
            "trusted": int(self._shadow.trusted),
            "evicted_by_policy": dict(self._evicted),
            "sampled_gain": self._shadow.gained,
            "sampled_regret": self._shadow.regret,
            "sampled": len(self._shadow),
            "sample": self._shadow.one_in,
        }

    def _stale(self) -> Iterator[_Block]:
        """Blocks that were used long before every end of a chain: what was taken to follow them is of other chains."""
        for block in [*islice(self._followed, BATCH)]:
            if block.used + REQUEST >= self._oldest:
                return
            yield block

    def _of_group(self, group: _Group, spared: Container[_Block]) -> Iterator[_Block]:
        """Its blocks, a few at first: mostly the first one goes."""
        few = [*islice(group.blocks, BATCH)]
        yield from (block for block in few if block not in spared)
        if len(few) == BATCH:
            seen = set(few)
            yield from (block for block in [*group.blocks] if block not in spared and block not in seen)

    def _files(self, blocks: Iterable[_Block], slot_class: SlotClass, began: int) -> Iterator[ObjectId]:
        for block in blocks:
            for object_id, mask in zip(block.files, block.masks, strict=True):
                if block.tick <= began and mask >> slot_class & 1 and object_id in self._owners:
                    self._offered = object_id
                    yield object_id

    def _rank(self) -> None:
        """Put groups in order, if that was long ago."""
        gone = sum(self._evicted.values())
        if gone < self._ranked and self._by_value == self._shadow.trusted:
            return
        self._ranked = gone + min(AGAIN, len(self._blocks) // 16)
        self._by_value = self._shadow.trusted
        if gone >= self._learnt:
            self._learnt = gone + min(LEARN, len(self._blocks) // 4)
            self._indices.clear()
        self._sort()

    def _sort(self) -> None:
        for group in self._groups.values():
            group.rank = self._rank_of(group)
        self._order = sorted(self._groups.values(), key=attrgetter("rank"))
        self._oldest = min((group.used for group in self._order), default=self._now)

    def _rank_of(self, group: _Group) -> tuple[float, int]:
        if not self._by_value:
            return (0.0, group.epoch)
        indices = self._indices.get(group.kind)
        if indices is None:
            indices = self._indices[group.kind] = self._returns.indices(group.kind)
        return (indices[bucket(self._now - group.used)], group.epoch)

    def _insert(self, group: _Group) -> None:
        group.rank = self._rank_of(group)
        self._oldest = min(self._oldest, group.used)
        insort(self._order, group, key=attrgetter("rank"))
        if len(self._order) > 2 * len(self._groups) + GROUPS:  # of which most are empty
            self._sort()

    # ── where blocks are ─────────────────────────────────────────────────────────────────────────────────

    def _use(self, block: _Block, now: float) -> None:
        self._now = max(self._now, now)
        self._tick += 1
        block.tick = self._tick
        if not block.uses or now - block.used >= TOGETHER:
            block.uses = min(block.uses + 1, USES)
            self._shadow.used(block.key, block.kind, now)
        block.used = now
        block.epoch = self._next_epoch()
        self._enter(block)

    def _next_epoch(self) -> int:
        self._epoch_uses += 1
        if self._epoch_uses > min(len(self._blocks) // GROUPS, LARGEST):
            self._epoch += 1
            self._epoch_uses = 0
        return self._epoch

    def _enter(self, block: _Block) -> None:
        """Put it where it belongs."""
        self._withdraw(block)
        if not block.files:
            return
        if block.children:
            self._followed[block] = None
            return
        where = (block.mask, block.kind, block.epoch)
        group = self._groups.get(where)
        if group is None:
            group = self._groups[where] = _Group(*where)
            group.used = block.used
            self._insert(group)
        group.blocks[block] = None
        group.used = max(group.used, block.used)
        block.group = group

    def _withdraw(self, block: _Block) -> None:
        self._followed.pop(block, None)
        group, block.group = block.group, None
        if group is not None:
            del group.blocks[block]
            if not group.blocks:
                del self._groups[group.mask, group.kind, group.epoch]

    def _write(self, block: _Block) -> None:
        self._writing[block] = None
        self._writing.move_to_end(block)
        if len(self._writing) > WRITTEN:
            self._writing.popitem(last=False)

    def _put(self, object_id: ObjectId, mask: int, key: int) -> _Block:
        block = self._block(key)
        block.files = (*block.files, object_id)
        block.masks += bytes((mask,))
        self._owners[object_id] = block
        self._masks[mask] += 1
        return block

    def _take(self, object_id: ObjectId, block: _Block) -> None:
        at = block.files.index(object_id)
        self._masks[block.masks[at]] -= 1
        block.files = block.files[:at] + block.files[at + 1 :]
        block.masks = block.masks[:at] + block.masks[at + 1 :]
        del self._owners[object_id]
        self._enter(block)
        self._forget(block)

    def _block(self, key: int) -> _Block:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(key)
        return block

    def _link(self, block: _Block, key: int) -> None:
        """It follows the block with this key, which may not be there."""
        if not key or key == block.key or block.parent is not None:
            return
        parent = self._block(key)
        if parent.parent is block:
            return
        block.parent = parent
        parent.children += 1
        self._enter(parent)
        self._writing.pop(parent, None)
        if not parent.followed:
            parent.followed = True
            self._shadow.is_now(parent.key, parent.kind)

    def _forget(self, block: _Block) -> None:
        """Know no more of a block that is not there and that nothing follows."""
        gone: _Block | None = block
        while gone is not None and not gone.files and not gone.children:
            del self._blocks[gone.key]
            parent, gone.parent = gone.parent, None
            if parent is not None:
                parent.children -= 1
                self._enter(parent)
            gone = parent


def _short(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")


def _key_of(object_id: ObjectId) -> int:
    """Of an object whose name is not known."""
    return _short(object_id)
