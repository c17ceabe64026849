"""Who reads which chain, where all that is seen is that blocks are wanted, by any thread of any process. Pure.

Engines read a chain with one thread, or with one of many for each block, and many chains at a time. So a reader is known by
where it is: whoever wants the block after the one that was wanted last by a reader is taken for that reader. That is forgotten
soon, or else of who reads at random every second block would seem to continue something.
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


@dataclass(frozen=True, slots=True)
class Progress:
    """What a block that is wanted says.

    :ivar position: how many blocks of the chain this reader had wanted before, and those between; 0 for a first one
    :ivar fetch: blocks to fetch now, in the order in which they will be wanted
    :ivar cancel: blocks that will not be wanted after all
    """

    position: int
    fetch: tuple[Hashable, ...] = ()
    cancel: tuple[Hashable, ...] = ()


def is_sentinel(position: int) -> bool:
    """Whether to be told each time a block here is wanted is worth it where most are not told of.

    The first two show which chain it is. From there on a reader is expected to go as far again as it has come, and it is
    enough to see that it has.
    """
    return position < KNOWN or (position >= FIRST and position & (position - 1) == 0)


class Streams:
    """All readers."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._readers: OrderedDict[Hashable, Follower] = OrderedDict()
        """By the block that each wanted last."""
        self._expected: dict[Hashable, Follower] = {}
        self._threads: OrderedDict[int, Hashable] = OrderedDict()

    def read(self, block: Hashable, thread: int) -> None:
        """Learn in which order a thread reads."""
        before = self._threads.pop(thread, None)
        self._threads[thread] = block
        if before is not None and before != block:
            self._chains.read(before, block)
        if len(self._threads) > THREADS:
            self._threads.popitem(last=False)

    def wanted(self, block: Hashable) -> Progress:
        """A block that exists is looked up or read."""
        there = self._readers.get(block)
        if there is not None:  # looked up and then read, or another rank's
            self._readers.move_to_end(block)
            return Progress(there.seen - 1)
        self._chains.note(block)
        reader = self._continues(block) or Follower(self._chains)
        before = reader.ahead[:]
        step = reader.reached(block)
        for passed in before[: len(before) + len(step.fetch) - len(reader.ahead)]:
            self._expected.pop(passed, None)
        self._expected.update(dict.fromkeys(step.fetch, reader))
        self._readers[block] = reader
        if len(self._readers) > READERS:
            self._leave(self._readers.popitem(last=False)[1])
        return Progress(reader.seen - 1, step.fetch, step.cancel)

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
