"""Who reads which chain, where all that is seen is that blocks are wanted, by any thread of any process. Pure.

Engines read a chain with one thread, or with any of many for each block, and many chains at a time. So a reader is known by
where it is: whoever wants the block after the one that was wanted last by a reader is taken for that reader. Where it is the
same thread, two blocks say that. Where it is another one, that may be chance, and it takes more; and where a reader was is
forgotten soon, or else of who reads at random every second block would seem to continue something.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from kvfs.prefetch.chains import FIRST, KNOWN, Chains, Follower

READERS = 32
"""That are followed at a time; also blocks that others may want before a reader goes on."""
THREADS = 256
"""Whose last block is known."""
HEADS = 1 << 14
"""Blocks that are known to be the beginning of what is read."""
KNOWN_TOGETHER = 4
"""Blocks after which more is expected of a reader that is several threads."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a block that is wanted says.

    :ivar position: how many blocks of the chain this reader had wanted before, and those between; 0 for a first one
    :ivar sure: it is one of a list that is being gone through
    :ivar again: the reader has not gone on since it wanted this block before
    :ivar fetch: blocks to fetch now, in the order in which they will be wanted, if they are not there; each may come twice
    :ivar cancel: blocks that will not be wanted after all
    """

    position: int
    sure: bool
    fetch: tuple[Hashable, ...] = ()
    cancel: tuple[Hashable, ...] = ()
    again: bool = False


def is_sentinel(position: int) -> bool:
    """Whether to be told each time a block here is wanted is worth it where most are not told of.

    The first two show which chain it is. From there on a reader is expected to go as far again as it has come, and it is
    enough to see that it has.
    """
    return position < KNOWN or (position >= FIRST and position & (position - 1) == 0)


class _Last:
    """What each thread did last."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, Hashable] = OrderedDict()

    def before(self, thread: int, block: Hashable) -> Hashable | None:
        """What it did before this one."""
        before = self._blocks.pop(thread, None)
        self._blocks[thread] = block
        if len(self._blocks) > THREADS:
            self._blocks.popitem(last=False)
        return before


class Streams:
    """All readers."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._readers: OrderedDict[Hashable, Follower] = OrderedDict()
        """By the block that each wanted last."""
        self._expected: dict[Hashable, Follower] = {}
        self._heads: OrderedDict[Hashable, None] = OrderedDict()
        self._last_read = _Last()
        self._last_wanted = _Last()

    def read(self, block: Hashable, thread: int) -> None:
        """Learn in which order a thread reads."""
        before = self._last_read.before(thread, block)
        if before is not None and before != block:
            self._chains.read(before, block)

    def wanted(self, block: Hashable, thread: int) -> Progress:
        """A block that exists is looked up or read."""
        before = self._last_wanted.before(thread, block)
        there = self._readers.get(block)
        if there is not None:  # looked up and then read, or another rank's
            self._readers.move_to_end(block)
            return Progress(there.seen - 1, there.seen >= there.needed, again=True)
        self._chains.note(block)
        reader = self._continues(block) or Follower(self._chains)
        if reader.seen and self._chains.parent(block) != before:
            reader.needed = KNOWN_TOGETHER
        ahead = reader.ahead[:]
        step = reader.reached(block)
        passed = len(ahead) + len(step.fetch) - len(reader.ahead)
        for gone in ahead[:passed]:
            self._expected.pop(gone, None)
        self._expected.update(dict.fromkeys(step.fetch, reader))
        self._readers[block] = reader
        if reader.seen == KNOWN and step.fetch:
            self._note_head(self._chains.parent(block))
        if len(self._readers) > READERS:
            self._leave(self._readers.popitem(last=False)[1])
        # Much may have happened to what was fetched long ago, so near the reader it is looked at again.
        near = tuple(one for one in reader.ahead[max(FIRST - passed, 0) : FIRST] if one not in step.fetch)
        return Progress(reader.seen - 1, reader.seen >= reader.needed, near + step.fetch, step.cancel)

    def is_head(self, block: Hashable) -> bool:
        """Whether readers have begun a chain with this block and gone on."""
        return block in self._heads

    def _note_head(self, block: Hashable) -> None:
        self._heads[block] = None
        self._heads.move_to_end(block)
        if len(self._heads) > HEADS:
            self._heads.popitem(last=False)

    def _continues(self, block: Hashable) -> Follower | None:
        """The reader of which this is the next block, or one that it is expected to come to."""
        reader = self._expected.get(block)
        if reader is None:
            parent = self._chains.parent(block)
            return None if parent is None else self._readers.pop(parent, None)
        at = next(block for block, one in self._readers.items() if one is reader)
        return self._readers.pop(at)

    def _leave(self, reader: Follower) -> None:
        for block in reader.ahead:
            if self._expected.get(block) is reader:
                del self._expected[block]
