"""How well it is known which block comes next, from what was looked up, read and published after what. Pure.

What a mount learns from and expects is what is learnt from and expected here (`fuse.foresight`), and only the past is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvfs.prefetch.chains import Chains
from kvfs.prefetch.streams import KNOWN_TOGETHER, Progress, Streams
from kvfs.traces import Event, Trace

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from kvfs.request_traces import Asked
    from kvfs.traces import Requests

PAUSE = 1.0
"""Seconds between two blocks of one writer after which the second is taken for another context's."""


class Change(NamedTuple):
    """What is expected from now on, in the order in which it will be wanted; and what is not any more."""

    fetch: tuple[Hashable, ...]
    cancel: tuple[Hashable, ...] = ()


class Foretelling:
    """Of all readers. Blocks that were neither published nor opened before are never expected, as nobody could fetch them."""

    def __init__(self) -> None:
        self._chains = Chains()
        self._streams = Streams(self._chains)
        self._threads: dict[Hashable, int] = {}
        self._there: dict[Hashable, float] = {}
        """When each block was first heard of."""

    def __contains__(self, block: object) -> bool:
        """Whether a block exists, as far as is known."""
        return block in self._there

    def published(self, block: Hashable, before: Hashable, time: float) -> None:
        """A block was written. :param before: what its writer had written before; None if nothing"""
        if block in self._there:
            return
        self._there[block] = time
        if before is not None and time - self._there.get(before, float("-inf")) <= PAUSE:
            self._chains.published(before, block)

    def looked_up(self, block: Hashable, reader: Hashable, time: float) -> Change:
        """There is such a block, as somebody was told. Who looks up several in their order will read them all."""
        self._there.setdefault(block, time)
        progress = self._streams.wanted(block, self._thread(reader))
        listed: list[Hashable] = []
        if progress.sure:
            earlier: Hashable | None = block
            for _ in range(progress.position + 1 if progress.position < KNOWN_TOGETHER else 1):
                if earlier is not None:
                    listed.append(earlier)
                    earlier = self._chains.parent(earlier)
        return self._change(progress, listed)

    def opened(self, block: Hashable, reader: Hashable, time: float) -> Change:
        """A block is read."""
        self._there.setdefault(block, time)
        thread = self._thread(reader)
        self._streams.read(block, thread)
        return self._change(self._streams.wanted(block, thread), [])

    def _change(self, progress: Progress, listed: list[Hashable]) -> Change:
        ahead = (block for block in progress.fetch if block in self._there)
        return Change((*listed, *ahead), progress.cancel)

    def _thread(self, reader: Hashable) -> int:
        return self._threads.setdefault(reader, len(self._threads))


@dataclass(frozen=True, slots=True)
class Following:
    """What chains of blocks foretell.

    :ivar opened: blocks that were opened, each once until another one is by the same thread
    :ivar foretold: of these, those that were expected then
    :ivar expected: blocks that were expected at some time, each of which is fetched or given up again
    """

    opened: int
    foretold: int
    expected: int


def following(trace: Trace | Requests) -> Following:
    """How well it goes with a trace. A look-up tells what is wanted, and is no use of it: that is the open."""
    events = trace.events if isinstance(trace, Trace) else _events(trace.asked)
    foretelling = Foretelling()
    waiting: set[Hashable] = set()
    latest: dict[str, str] = {}
    opened = foretold = expected = 0
    for event in events:
        change = Change(())
        if event.what == "publish":
            foretelling.published(event.block, event.before or None, event.time)
        elif event.what == "lookup" and event.known:
            change = foretelling.looked_up(event.block, event.reader, event.time)
        elif event.what == "open" and latest.get(event.reader) != event.block:
            latest[event.reader] = event.block
            opened += 1
            foretold += event.block in waiting
            waiting.discard(event.block)
            change = foretelling.opened(event.block, event.reader, event.time)
        waiting.difference_update(change.cancel)
        new = {*change.fetch} - waiting
        expected += len(new)
        waiting |= new
    return Following(opened, foretold, expected)


def _events(asked: Iterable[Asked]) -> Iterator[Event]:
    """What a mount would see of requests: the blocks that there are of the beginning are read, the others are written."""
    there: set[int] = set()
    for number, request in enumerate(asked):
        before, leads = "", True
        for block in request.chain:
            leads = leads and block in there
            name = str(block)
            what = "open" if leads else "publish"
            there.add(block)
            yield Event(request.time, what, name, name, str(number), 1, before=before)
            before = name
