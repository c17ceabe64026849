"""What an engine calls; made by `kvfs.open_cache`.

    async with kvfs.open_cache("hot", namespace=Namespace("llama-3-70b", rank=2)) as cache:
        await cache.put(digest, layer)
        sizes = cache.lookup(digests)
        async with cache.stream(zip(digests, buffers)) as arrivals:
            async for one in arrivals:
                ...

A cache is a member of its pool, as a mount is: each sees what the others publish. What must always hold:

- Every byte is compared with its checksum before its outcome is told.
- An object stays what it is while it is read: its version is pinned from the first look until the last byte.
- A put is whole or absent, and there for this cache's readers when it returns.
- Bad arguments are found before anything is begun, and nothing has changed then.

Everything here belongs to the trio thread; other threads use `kvfs.sync`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import trio

from blockdev.errors import Missing, Raced
from kvfs.cache.buffers import Buffer, readable, writable
from kvfs.cache.figures import CacheStatistics
from kvfs.cache.folders import Finder
from kvfs.cache.gpu import DriverOf, GpuMemory
from kvfs.cache.keys import Key, Namespace, Place, place_of
from kvfs.cache.layers import Layers
from kvfs.cache.pin import Pin
from kvfs.cache.putting import Putter
from kvfs.cache.reading import Arrivals, CacheReader, Got, Job, Pair
from kvfs.cache.requests import BLOCK, Mode, Reading, Requests
from kvfs.errors import BadBuffer, CacheClosed, NoObject
from kvfs.prefetch.observation import Observation
from rdma.cuda import open_driver
from rdma.errors import NoBuffers
from rdma.stream import Priority

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from blockdev.pool import Pool
    from kvfs.cache.reading import PoolExtent
    from kvfs.cache.straight import Straight
    from kvfs.frames import FrameCache
    from kvfs.prefetch.returns import Returns
    from kvfs.prefetcher import Prefetcher
    from rdma.buffers import Arena, Lease
    from rdma.stream import Stream


class Tier(NamedTuple):
    """The DRAM tier, what fetches into it, which is running, what goes past it, and what was learnt of requests that come
    back.
    """

    frames: FrameCache
    prefetcher: Prefetcher
    straight: Straight
    returns: Returns


class Cache:
    """See the module. Every call may raise CacheClosed, and BadKey or WrongNamespace for a key.

    Buffers have the buffer protocol (bytearray, mmap, numpy arrays) or are tensors of the CPU or of a CUDA GPU. Bytes move
    without a copy where a buffer is memory of the host that begins on a page and is whole pages, as `lease` gives them.

    :param driver_of: the CUDA driver of a GPU, by its number; asked when memory of one is given
    """

    def __init__(
        self,
        pool: Pool,
        tier: Tier,
        stream: Stream[PoolExtent],
        namespace: Namespace | None,
        arena: Arena | None,
        driver_of: DriverOf = open_driver,
    ) -> None:
        frames, self._prefetcher, self._straight, returns = tier
        self._pool = pool
        self._requests = Requests(pool, frames, self._prefetcher, returns)
        self._frames = frames
        self._stream = stream
        self._arena = arena
        self._driver_of = functools.cache(driver_of)
        self._reader = CacheReader(pool, frames, stream, self._straight)
        self._putter = Putter(pool, frames)
        self._removed = 0
        self._closed = False
        self.namespace = namespace

    def close(self) -> None:
        """Refuse everything from here on; `open_cache` does this at its end."""
        self._closed = True

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────

    def lookup(self, keys: Iterable[Key]) -> list[int | None]:
        """For each key, the bytes of its object; None if it is not there. Reads nothing from devices."""
        places = [self._place(key) for key in keys]
        finder = Finder(self._pool)
        return [finder.size_of(place) for place in places]

    def pin(self, key: Key) -> Pin:
        """Keep an object from being evicted. :raises NoObject: it is not there"""
        place = self._place(key)
        record = Finder(self._pool).find(place)
        if record is not None:
            try:
                return Pin(self._pool, record)
            except Raced:
                pass
        raise NoObject(f"{place} is not there")

    # ── what will be wanted ──────────────────────────────────────────────────────────────────────────────

    def begin(  # noqa: PLR0913 - as `attend`
        self,
        request: Hashable,
        keys: Iterable[Key],
        *,
        deadline: float = math.inf,
        mode: Mode = "dense",
        budget: float | None = None,
        block: int = BLOCK,
        groups: Iterable[Iterable[Key]] = (),
    ) -> int:
        """Say that a request has arrived which will read these blocks, a chain from its root on. What is there of its
        beginning is brought into the DRAM tier, in this order, as far as that has room, and kept there for 10 s at least
        unless the request ends.

        In sparse mode, which is **lossy**, only a choice of them is brought and read by `layers`: the engine's attention must
        leave out the rest, and what it answers differs from what it would have answered.

        :param request: names it for `attend`, `choose`, `layers` and `end`
        :param keys: of its blocks; where each layer group has objects of its own, those of group 0
        :param deadline: when that is no longer worth beginning, by trio's clock
        :param mode: `dense`: all is read; what `attend` is told decides on the order in a layer. `sparse`: see above
        :param budget: in sparse mode, the share of blocks of each layer to read, above 0, at most 1; the first 64 tokens and the
            last 128 are read in any case
        :param block: tokens of a block
        :param groups: the keys of the same blocks in layer group 1, 2 and so on; these are brought behind those before
        :returns: how many blocks are there, in all groups that were named
        :raises BadKey: a request of that name has begun already, or a group has not as many blocks as group 0
        :raises BadAttention: the mode, the budget or the block cannot be
        :raises NoNumpy: sparse mode needs it
        """
        reading = Reading(mode, budget, block)
        places = [[self._place(key) for key in each] for each in (keys, *groups)]
        return self._requests.begin(request, places, deadline, reading)

    def attend(  # noqa: PLR0913 - an engine says what it has
        self,
        request: Hashable,
        group: int,
        *,
        mass: ArrayLike | None = None,
        blocks: ArrayLike | None = None,
        tokens: int = 1,
        queries: ArrayLike | None = None,
        keys: ArrayLike | None = None,
    ) -> None:
        """Say what attention of a layer group has read, so that `layers` knows what it will read. It is known until the request
        ends, and for requests after it that begin with the same blocks, while 256 MiB suffice for all that ended.

        A request takes 29 bytes a block and layer group, with keys 34 a head and token more, and 9 a channel and block.

        :param group: of layers, 0 to 1023: the position in `keys` and `groups` of `begin`, and in what is given to `layers`
        :param mass: `(n,)`, the share of each block in what was read: the mean over queries, heads and layers of the group;
            none below 0, at most 1 together
        :param blocks: `(n,)`, which blocks these are by their position in the context, each once; by default the first `n`.
            Others have had nothing
        :param tokens: that have read that, 1 or more
        :param queries: `(heads, n, width)`, of tokens that read next: of one layer of the group, for each head of keys
            those that read it, with their positions rotated in. The last 32 have a say, until 128 more tokens have read
        :param keys: `(heads, tokens, width)`, of the same layer, of further whole blocks from the beginning of the context on;
            queries need them. What is kept is 256 bits and a norm of each, and bounds of each block
        :raises BadKey: the request has not begun, or has ended
        :raises BadAttention: something does not fit; nothing was noted then
        :raises NoNumpy: it is not installed
        """
        self._check_open()
        said = Observation(mass, blocks, queries, keys, tokens)
        self._requests.attend(request, group, said)

    def choose(self, request: Hashable, group: int) -> list[int]:
        """Which blocks of a layer group to read by what is known now, the most wanted first, by their positions: for engines that
        load in their own way. Of all blocks that `begin` named; in sparse mode, as many as the budget says.

        :param group: as in `attend`
        :raises BadKey: the request has not begun, or has ended
        """
        self._check_open()
        return self._requests.choose(request, group)

    def end(self, request: Hashable, stop_reason: str = "") -> None:
        """Say that a request is over: nothing more is brought for it. What stays in the DRAM tier is what is likely to
        be wanted again, as far as requests that ended for this reason have taught.

        :param stop_reason: the engine's, such as `tool_use`
        :raises BadKey: no request of that name has begun
        """
        self._check_open()
        self._requests.end(request, stop_reason)

    def hint(self, keys: Iterable[Key]) -> None:
        """Say that these may be wanted: they move away from eviction, and are brought into the DRAM tier while devices have
        little else to do. What is not there is passed over."""
        self._requests.hint([self._place(key) for key in keys])

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    async def get_into(self, key: Key, into: Buffer, *, deadline: float = math.inf) -> int:
        """Read an object into memory; returns its bytes, what `into` has beyond them stays as it was.

        :param deadline: when it is no longer worth beginning, by trio's clock
        :raises NoObject: it is not there
        :raises BadBuffer: the buffer is too small, read-only, not in one piece, or not memory of this host
        :raises TransferExpired, BlockError, FramesError: it cannot be read: a miss, too
        """
        [got] = await self.get_many_into([(key, into)], deadline=deadline)
        if got.error is not None:
            raise got.error
        return got.length

    async def get_many_into(self, pairs: Iterable[Pair], *, deadline: float = math.inf) -> list[Got]:
        """Read many objects, each into its memory; the outcomes in the order of the pairs.

        :raises BadBuffer: for one of them, before anything is read
        """
        jobs = self._jobs(pairs)
        async with self._reader.stream(jobs, Priority.DEMAND, deadline, together=True) as arrivals:
            outcomes = [got async for got in arrivals]
        return sorted(outcomes, key=lambda got: got.index)

    @asynccontextmanager
    async def stream(self, pairs: Iterable[Pair], *, deadline: float = math.inf) -> AsyncIterator[Arrivals]:
        """Read many objects, each into its memory; the outcomes as they arrive.

        Leaving the block ends what has not arrived; behind it the memory is the caller's again, but for what the outcome
        of an object says is `pending`.

        :raises BadBuffer: for one of them, before anything is read
        """
        async with self._reader.stream(self._jobs(pairs), Priority.DEMAND, deadline) as arrivals:
            yield arrivals

    @asynccontextmanager
    async def layers(
        self,
        layers: Iterable[Iterable[Pair]],
        *,
        deadline: float = math.inf,
        request: Hashable | None = None,
    ) -> AsyncIterator[Layers]:
        """As `stream`, for objects that are the layers of a request: they are read in this order, and each layer can be waited
        for. Every one arrives, or its outcome says why not; leaving the block ends those that have not.

        With a request, each layer is a layer group, and has the blocks of its context from the first one on, as many as are to
        be read. What attention will read of them, by what `attend` was told, is read first; in sparse mode, alone. What
        was not chosen is there for `get_into` as ever.

        :param request: that has begun
        :raises BadKey: it has not begun, or has ended
        :raises BadBuffer: for one of them, before anything is read
        """
        each = [[*pairs] for pairs in layers]
        jobs = self._jobs(pair for pairs in each for pair in pairs)
        sizes = [len(pairs) for pairs in each]
        chosen: list[Sequence[int]] = [range(size) for size in sizes]
        if request is not None:
            for group, size in enumerate(sizes):
                chosen[group] = self._requests.choose(request, group, size)
                await trio.lowlevel.checkpoint()  # one takes 2 ms where a context is long
        begins = accumulate(sizes, initial=0)
        wanted = [
            jobs[begin + number] for begin, numbers in zip(begins, chosen, strict=False) for number in numbers
        ]
        async with self._reader.stream(wanted, Priority.DEMAND, deadline) as arrivals:
            yield Layers(arrivals, sizes, chosen)

    @asynccontextmanager
    async def prefetch_into(
        self, pairs: Iterable[Pair], *, deadline: float = math.inf
    ) -> AsyncIterator[Arrivals]:
        """As `stream`, for what is only likely to be wanted: it goes after all that is."""
        async with self._reader.stream(self._jobs(pairs), Priority.PREFETCH, deadline) as arrivals:
            yield arrivals

    async def prefetch(self, keys: Iterable[Key]) -> int:
        """Begin to bring objects into the DRAM tier, as far as it has frames that nobody needs.

        :returns: how many extents are on their way now
        """
        finder = Finder(self._pool)
        records = [finder.find(place) for place in [self._place(key) for key in keys]]
        begun = 0
        for record in records:
            if record is not None:
                extents = enumerate(await self._pool.extents(record))
                stored = [(index, extent.ref) for index, extent in extents if not extent.is_hole]
                begun += self._frames.read_ahead(record, stored)
        return begun

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, key: Key, data: Buffer, *, replace: bool = True, writer: int | None = None) -> None:
        """Store bytes under a key, whole or not at all. They must not change until this returns.

        :param writer: who puts this. What one writer puts in succession is taken for a chain that will be wanted in that
            order; by default each task is one
        :raises Exists: there is an object already, and `replace` is false
        :raises BadBuffer: the memory is not in one piece, or not of this host
        :raises NoSpace, BlockError, FramesError: nothing was stored
        """
        who = id(trio.lowlevel.current_task()) if writer is None else writer
        await self._putter.put(self._place(key), readable(data, self._driver_of), who, replace=replace)

    async def remove(self, key: Key) -> bool:
        """Remove an object; whether it was there. Who reads it goes on. :raises BlockError: it may still be there"""
        record = Finder(self._pool).find(self._place(key))
        if record is None:
            return False
        try:
            await self._pool.remove(record)
        except Missing:
            return False
        self._removed += 1
        return True

    # ── memory and figures ───────────────────────────────────────────────────────────────────────────────

    def lease(self, size: int) -> Lease:
        """Memory for transfers without a copy, from what `open_cache(buffers=…)` set aside.

        :raises NoBuffers: there is no such piece now, or none was set aside
        :raises ValueError: there never is
        """
        self._check_open()
        if self._arena is None:
            raise NoBuffers("no memory was set aside to be leased: give open_cache 'buffers'")
        return self._arena.lease(size)

    @contextmanager
    def rechecked(self, buffer: Buffer) -> Iterator[None]:
        """For the length of the block, have network cards write extents straight into this memory of a GPU, whole pages of
        which are given to be read into. **Such bytes are not compared with their checksum**: their descriptor and their region's header
        are read again behind them, which proves only that they were not replaced meanwhile. It is done for extents that this
        process has compared since their device was last connected; all others are compared as ever, in the DRAM tier.

        The memory must stay until reads into it have ended.

        :raises BadBuffer: it is not memory of a GPU
        :raises RecheckRefused: no device of the pool is reached over RDMA, or no network card reaches the memory; says why
        :raises CudaError: there is no driver
        """
        self._check_open()
        memory = writable(buffer, self._driver_of)
        if not isinstance(memory, GpuMemory):
            raise BadBuffer(
                "only memory of a GPU can be read into without being compared: the host's is compared where it is"
            )
        with self._straight.into(memory):
            yield

    def statistics(self) -> CacheStatistics:
        """A frozen snapshot."""
        reads, puts, straight = self._reader.counts, self._putter.counts, self._straight.counts
        return CacheStatistics(
            hits=reads.hits,
            misses=reads.misses,
            failed=reads.failed,
            bytes=reads.bytes,
            bytes_copied=reads.bytes_copied + straight.bytes_compared,
            puts=puts.puts,
            put_bytes=puts.bytes,
            put_bytes_copied=puts.bytes_copied,
            removed=self._removed,
            bytes_straight=straight.bytes,
            stream=self._stream.statistics(),
            prefetch=self._prefetcher.statistics(),
        )

    def _jobs(self, pairs: Iterable[Pair]) -> list[Job]:
        return [
            Job(index, key, self._place(key), writable(into, self._driver_of))
            for index, (key, into) in enumerate(pairs)
        ]

    def _place(self, key: Key) -> Place:
        self._check_open()
        return place_of(key, self.namespace)

    def _check_open(self) -> None:
        if self._closed:
            raise CacheClosed("the cache is closed")
