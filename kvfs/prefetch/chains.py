"""Which block follows which: what a reader of two blocks of a known chain will read next. Pure.

A chain is the sequence of blocks of one context, each identified by a hash of all that precedes it, so a block has one
parent and its children are continuations. Engines read a chain from its root on. For each block the most recent child
is kept, and the one before it that was used more often: the next turn of a conversation goes through the most recent
ones, and where conversations alternate, through the other. (Majority trends of strides, as Leap has for pages, have
nothing to count here: the "trend" of a chain is the pointer to the child.)

Who hands over hashes says what the parent is (`learn`). Where only files are seen, the order has to tell in which they were
published, and that in which they are read, if that is seen twice: the first time may be chance.

Many engines store the last, incomplete block of a prompt as well. The next turn has another one in its place, so such a
dead end is expected only if experience says that dead ends come back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

KNOWN = 2
"""Blocks of a chain that must have been read before anything is expected: one may be a system prompt shared by all."""
FIRST = 8
"""Blocks that are fetched ahead of a reader at first."""
MOST = 512
"""Blocks that are expected at once, at most: 128K tokens at 256 a block."""
WORTHWHILE = 0.3
"""Dead ends are expected if this part of those seen before came back."""


Recall = Callable[[Hashable], Iterable[Hashable]]
"""The children of a block that are known elsewhere, the latest at the end."""


class _Node:
    """A block; nodes refer to each other, so that following a chain looks nothing up.

    :ivar rival: the block after which it was read last, if that is not its parent
    """

    __slots__ = (
        "block",
        "exists",
        "frequent",
        "frequent_uses",
        "parent",
        "recent",
        "recent_uses",
        "rival",
        "uses",
    )

    def __init__(self, block: Hashable) -> None:
        self.block = block
        self.exists = True
        self.uses = 0
        self.parent: _Node | None = None
        self.rival: Hashable = None
        self.recent: _Node | None = None
        self.recent_uses = 0
        self.frequent: _Node | None = None
        self.frequent_uses = 0

    def followed_by(self, child: _Node) -> None:
        """Another child than the most recent one; of the two that were there, the one used more often stays."""
        uses = 1
        if child is self.frequent:
            uses += self.frequent_uses
        if child is self.frequent or self.recent_uses >= self.frequent_uses:
            self.frequent, self.frequent_uses = self.recent, self.recent_uses
        self.recent, self.recent_uses = child, uses

    def left_by(self, child: _Node) -> None:
        """What was taken for a child is another's."""
        if self.recent is child:
            self.recent, self.recent_uses = self.frequent, self.frequent_uses
            self.frequent, self.frequent_uses = None, 0
        elif self.frequent is child:
            self.frequent, self.frequent_uses = None, 0


class Chains:
    """Parents and children of all blocks that exist. Blocks are any hashable identity but None.

    Learning costs about two microseconds a block, expecting a fraction of one.

    :param recall: asked for the children of a block where none is known here
    :param most: blocks that are known at once; of more, those heard of first are forgotten
    """

    def __init__(self, recall: Recall = lambda _: (), most: int | None = None) -> None:
        self._recall = recall
        self._most = most
        self._nodes: dict[Hashable, _Node] = {}
        self._dead_ends = [[1, 1], [1, 1]]
        """Came back, were replaced; of those used once and those used more often."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: object) -> bool:
        return block in self._nodes

    def learn(self, chain: Iterable[Hashable]) -> None:
        """A request has read or written these blocks, beginning at the root."""
        nodes = self._nodes
        parent: _Node | None = None
        for block in chain:
            node = nodes.get(block)
            if node is None:
                node = nodes[block] = _Node(block)
            node.uses += 1
            if parent is not None:
                node.parent = parent
                recent = parent.recent
                if recent is not None and recent.recent is None:
                    self._dead_ends[recent.uses - (recent is node) > 1][recent is not node] += 1
                if recent is node:
                    parent.recent_uses += 1
                else:
                    parent.followed_by(node)
            parent = node

    def note(self, block: Hashable) -> None:
        """A block exists."""
        self._node(block)

    def published(self, parent: Hashable, child: Hashable) -> None:
        """A writer has published one after the other: most likely its child."""
        before, node = self._node(parent), self._node(child)
        if node.parent is None or node.parent is before:
            self._adopt(before, node)

    def read(self, parent: Hashable, child: Hashable) -> None:
        """A reader has read one after the other. Whoever reads at random does that once; it is believed the second time."""
        before, node = self._node(parent), self._node(child)
        if node.parent is before or node.rival == parent:
            self._adopt(before, node)
        else:
            node.rival = parent

    def parent(self, block: Hashable) -> Hashable | None:
        """The block that it follows, if that is known."""
        node = self._nodes.get(block)
        return None if node is None or node.parent is None else node.parent.block

    def forget(self, block: Hashable) -> None:
        """The last copy of a block is gone. Nothing if it is not known."""
        node = self._nodes.pop(block, None)
        if node is not None:
            node.exists = False
            node.recent = node.frequent = node.parent = None

    def known(self, chain: Iterable[Hashable]) -> int:
        """How many blocks at the beginning of a chain exist."""
        count = 0
        for block in chain:
            if block not in self._nodes:
                break
            count += 1
        return count

    def expect(self, block: Hashable, most: int = MOST, until: Hashable = None) -> list[Hashable]:
        """The blocks that will be read after this one, in order; none if it is not known.

        :param most: at most so many
        :param until: those before this one, where readers begin again and again
        """
        expected: list[Hashable] = []
        node = self._nodes.get(block)
        while node is not None and len(expected) < most:
            if node.recent is None:
                for child in self._recall(node.block):
                    self.published(node.block, child)
            node = self._likely(node.recent) or self._likely(node.frequent)
            if node is None or node.block == until:
                break
            expected.append(node.block)
        return expected

    def _node(self, block: Hashable) -> _Node:
        node = self._nodes.get(block)
        if node is None:
            node = self._nodes[block] = _Node(block)
            if self._most is not None and len(self._nodes) > self._most:
                self.forget(next(iter(self._nodes)))
        return node

    def _adopt(self, parent: _Node, child: _Node) -> None:
        if child.parent is not None and child.parent is not parent:
            child.parent.left_by(child)
        child.parent, child.rival = parent, None
        if parent.recent is not child:
            parent.followed_by(child)

    def _likely(self, child: _Node | None) -> _Node | None:
        if child is None or not child.exists:
            return None
        if child.recent is None:
            back, replaced = self._dead_ends[child.uses > 1]
            if back < WORTHWHILE * (back + replaced):
                return None
        return child


@dataclass(frozen=True, slots=True)
class Step:
    """What a reader's progress changes.

    :ivar fetch: blocks to fetch now, in the order in which they will be wanted
    :ivar cancel: blocks that were to be fetched and will not be wanted
    """

    fetch: tuple[Hashable, ...] = ()
    cancel: tuple[Hashable, ...] = ()


class Follower:
    """Goes ahead of one reader whose further way is not known.

    How far: `FIRST` blocks, and as many as the reader has confirmed once that is more. A reader that leaves the chain
    early has then cost little, and nothing that is wanted is asked for later than `FIRST` blocks before it is read.

    :ivar needed: blocks that must have been reached before anything is expected
    :ivar seen: blocks of the chain that were reached, and those between that were passed unseen
    :ivar ahead: what is expected, in order
    """

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self.needed = KNOWN
        self.seen = 0
        self.ahead: list[Hashable] = []

    def reached(self, block: Hashable) -> Step:
        """The reader wants this block: hit or miss, predicted or not.

        What it passed on the way is wanted all the same: by others, or at once, as nobody has to ask for it.
        """
        cancel: tuple[Hashable, ...] = ()
        try:
            passed = self.ahead.index(block)
        except ValueError:
            passed = 0
            cancel, self.ahead = tuple(self.ahead), []
        else:
            del self.ahead[: passed + 1]
        self.seen = self.seen + passed + 1 if block in self._chains else 0
        if self.seen < self.needed:
            return Step((), cancel)
        last = self.ahead[-1] if self.ahead else block
        fetch = self._chains.expect(last, max(FIRST, self.seen) - len(self.ahead), until=block)
        self.ahead += fetch
        return Step(tuple(fetch), cancel)
