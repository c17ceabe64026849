"""What a trace says that caches are asked for, whatever its schema. Pure.

A recorded trace tells of files, one after the other, and their sizes in bytes. A trace of requests tells of chains of blocks, of
which nobody knows the bytes: each counts as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvfs.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from kvfs.request_traces import Asked
    from kvfs.traces import Event, Requests


@dataclass(frozen=True, slots=True)
class Use:
    """A file that is asked for or put there; or the blocks of a request.

    :ivar time: seconds
    :ivar chain: the file; or the blocks from the root of their context on, of which each is of use only with all before it
    :ivar size: of each of them, in the trace's unit
    :ivar wanted: asked for, rather than only put there
    :ivar reader: whose use it is
    :ivar block: that the file is a part of; None for blocks, each of which is one
    :ivar before: the block that this one follows; None where that is not known
    :ivar ended: when the request was over, seconds; None where that is not known
    :ivar reason: why it ended
    """

    time: float
    chain: tuple[Hashable, ...]
    size: int = 1
    wanted: bool = True
    reader: Hashable = None
    block: Hashable = None
    before: Hashable = None
    ended: float | None = None
    reason: str = ""

    def parts(self) -> Iterator[Part]:
        """Each of the chain."""
        if self.block is not None:
            yield Part(self.chain[0], self.block, self.before)
            return
        before: Hashable = None
        for block in self.chain:
            yield Part(block, block, before)
            before = block


class Part(NamedTuple):
    """A file or block by itself: what it is called, the block that it is a part of, and the one that it follows."""

    name: Hashable
    block: Hashable
    before: Hashable


class Uses(NamedTuple):
    """What caches see of a trace.

    :ivar unit: of sizes: `bytes` or `blocks`
    """

    each: Sequence[Use]
    unit: str

    @property
    def total(self) -> int:
        """The size of all that is different."""
        sizes: dict[Hashable, int] = {}
        for use in self.each:
            sizes.update(dict.fromkeys(use.chain, use.size))
        return sum(sizes.values())

    @property
    def wanted(self) -> int:
        """The size of all that is asked for, however often."""
        return sum(use.size * len(use.chain) for use in self.each if use.wanted)


def uses_of(trace: Trace | Requests) -> Uses:
    """Of a recorded trace, what is opened and published; of requests, all blocks."""
    if isinstance(trace, Trace):
        return Uses(_of_files(trace.events), "bytes")
    return Uses(_of_requests(trace.asked), "blocks")


def _of_files(events: Iterable[Event]) -> list[Use]:
    """A block follows what it followed when it was heard of first: so none follows itself, however long the way round."""
    found: list[Use] = []
    before: dict[str, str | None] = {}
    for event in events:
        if event.what in ("open", "publish"):
            if event.block not in before and event.before not in ("", event.block):
                before.setdefault(event.before, None)
                before[event.block] = event.before
            before.setdefault(event.block, None)
            found.append(
                Use(
                    event.time,
                    (event.name,),
                    max(event.size, 1),
                    wanted=event.what == "open",
                    reader=event.reader,
                    block=event.block,
                    before=before[event.block],
                )
            )
    return found


def _of_requests(asked: Iterable[Asked]) -> list[Use]:
    return [
        Use(one.time, one.chain, reader=number, ended=one.ended, reason=one.reason)
        for number, one in enumerate(asked)
    ]
