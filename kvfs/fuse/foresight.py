"""What requests to a mount say of requests to come.

Names are looked up before files are read, and read in the order in which they were published. So a look-up or an open of two
blocks that follow each other is the beginning of a list, and the rest of it is fetched. A block is whatever the files have
in common that engines name after one hash (`names.block_of`): all ranks' and halves of it go together.

What follows what is recorded in the objects themselves, and found in the catalogue: a mount knows from its beginning on what
others have written. In which order files are read is learnt beside that, for as long as the mount lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from blockdev.types import Kind
from kvfs.predecessors import block_id
from kvfs.prefetch.chains import Chains
from kvfs.prefetch.planner import Source
from kvfs.prefetch.streams import KNOWN_TOGETHER, Progress, Streams, is_sentinel

if TYPE_CHECKING:
    from blockdev.types import Descriptor, DirectoryId
    from kvfs.prefetcher import Prefetcher

BLOCKS = 1 << 16
"""That are known at once. What is forgotten is found in the catalogue again, but for the order in which it was read."""
FILES = 64
"""Of one block, at most: ranks, groups of layers, halves."""
PAUSE = 10**9
"""Nanoseconds between two blocks of one writer after which the second is taken for another context's."""
SPARING = 32
"""Look-ups of which one, in the long run, may be answered so that the kernel asks again each time. It takes fifty times as long
to ask us as to ask the kernel: were every look-up that may begin a list answered so, who looks at random would pay for it."""
CHANCE = 0.9
"""That what follows is wanted. The same for all: what is wanted sooner goes first, whoever has confirmed more."""


class Catalogue(Protocol):
    """What is needed of the pool."""

    def lookup(self, directory: DirectoryId, name: bytes) -> Descriptor | None: ...

    def published_after(self, predecessor: bytes, limit: int) -> list[Descriptor]: ...


class _Place(NamedTuple):
    """Where a file is, and when it was published."""

    directory: DirectoryId
    name: bytes
    born: int


class Foresight:
    """Of one mount. Everything here needs custody of its state, and fails nobody."""

    def __init__(self, pool: Catalogue, prefetcher: Prefetcher) -> None:
        self._pool = pool
        self._prefetcher = prefetcher
        self._chains = Chains(self._recall, BLOCKS)
        self._streams = Streams(self._chains)
        self._places: OrderedDict[bytes, tuple[_Place, ...]] = OrderedDict()
        """The files of each block, as far as they were seen."""
        self._found: dict[tuple[DirectoryId, bytes], Descriptor] = {}
        """What the catalogue has said during this request, in which nothing changes."""
        self._allowance = float(SPARING)
        """Answers by which the kernel may be made to ask again now."""

    def looked_up(self, record: Descriptor, thread: int) -> bool:
        """A name was looked up; whether the kernel is to ask again, so that the next look-up is seen, too.

        With a first block that is so until it is seen a second time and nobody has gone on from there: most names that are
        looked up in no order are no beginnings. And only as often as is spared, see SPARING.
        """
        if not self._prefetcher.is_on or record.kind is not Kind.HEAD or not record.extents:
            return False
        self._allowance = min(self._allowance + 1 / SPARING, SPARING)
        try:
            self._found = {(record.directory, record.name): record}
            block = block_id(record.name)
            is_new = block not in self._places
            self._see(block, record)
            progress = self._streams.wanted(block, thread)
            self._follow(progress)
            if progress.sure:
                self._want_listed(block, progress.position)
            may_begin = progress.position > 0 or is_new or progress.again or self._streams.is_head(block)
            return may_begin and is_sentinel(progress.position) and self._spares(record)
        except Exception as error:  # noqa: BLE001 - whatever it was, the look-up is answered
            self._prefetcher.fail(error)
            return False

    def _spares(self, record: Descriptor) -> bool:
        """Whether the kernel is made to ask again for this one, which it need not where nothing would be fetched."""
        if self._allowance < 1 or self._prefetcher.has(record):
            return False
        self._allowance -= 1
        return True

    def has(self, record: Descriptor) -> bool:
        """Whether every extent that an object's record lists is in memory."""
        return self._prefetcher.has(record)

    def opened(self, record: Descriptor, thread: int) -> None:
        """A file is being opened to be read."""
        if not self._prefetcher.is_on:
            return
        try:
            self._found.clear()
            block = block_id(record.name)
            self._see(block, record)
            self._streams.read(block, thread)
            self._follow(self._streams.wanted(block, thread))
        except Exception as error:  # noqa: BLE001 - as above
            self._prefetcher.fail(error)

    def _see(self, block: bytes, record: Descriptor) -> None:
        """A file's block is known from now on."""
        if block not in self._places and self._follows(record, record.predecessor):
            self._chains.published(record.predecessor, block)
        self._note(block, record)

    def _follows(self, record: Descriptor, predecessor: bytes) -> bool:
        """Whether what a writer had published before is known, and was published so soon before that it is of one context."""
        return any(record.btime_ns - born <= PAUSE for *_, born in self._places.get(predecessor, ()))

    def _note(self, block: bytes, record: Descriptor) -> None:
        places, place = self._places.get(block, ()), _Place(record.directory, record.name, record.btime_ns)
        if place in places:
            return
        others = tuple(other for other in places if other[:2] != place[:2])
        if len(others) < FILES:
            self._places[block] = (*others, place)
        if len(self._places) > BLOCKS:
            self._places.popitem(last=False)

    def _recall(self, parent: object) -> Iterable[bytes]:
        """What was published after a block, by anybody, as the catalogue knows it."""
        assert isinstance(parent, bytes)
        found: dict[bytes, None] = {}
        for record in reversed(self._pool.published_after(parent, FILES)):
            block = block_id(record.name)
            if block != parent and self._follows(record, parent):
                self._found[record.directory, record.name] = record
                self._note(block, record)
                found[block] = None
        return found

    def _want_listed(self, block: bytes, position: int) -> None:
        """Who looks up several in their order will read them all; also those before it was clear that it does."""
        earlier: object = block
        for _ in range(position + 1 if position < KNOWN_TOGETHER else 1):
            if isinstance(earlier, bytes):
                self._want(earlier, Source.ARRIVED, 1.0)
                earlier = self._chains.parent(earlier)

    def _follow(self, progress: Progress) -> None:
        self._prefetcher.cancel(progress.cancel)
        for block in progress.fetch:
            assert isinstance(block, bytes)
            self._want(block, Source.CHAIN, CHANCE)

    def _files(self, block: bytes) -> list[Descriptor]:
        """The files of a block, as far as they are known and there."""
        places = self._places.get(block, ())
        there = [(place, self._look(place)) for place in places]
        found = [record for _, record in there if record is not None and record.kind is Kind.HEAD]
        if len(found) < len(places):
            self._places[block] = tuple(place for place, record in there if record in found)
        return found

    def _look(self, place: _Place) -> Descriptor | None:
        found = self._found.get(place[:2])
        return self._pool.lookup(place.directory, place.name) if found is None else found

    def _want(self, block: bytes, source: Source, chance: float) -> None:
        files = self._prefetcher.expected(block) or self._files(block)
        if not files:
            self._places.pop(block, None)
            self._chains.forget(block)
        self._prefetcher.want(block, files, source, chance)
