"""The Cache API for threads: each call waits for its answer. Any number of threads may call at once.

    with kvfs.sync.open_cache("hot", namespace=Namespace("llama-3-70b")) as cache:
        cache.put(digest, layer)
        with cache.stream(zip(digests, buffers)) as arrivals:
            for one in arrivals:
                ...

The cache itself runs in a thread of its own, with trio. Bytes are moved by the devices' threads from and into the
callers' memory; what passes between threads is who asked for what.

Deadlines are seconds from the call.
"""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from blockdev.forks import ends_in_children
from kvfs import embed
from kvfs.errors import CacheClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager

    from kvfs.cache import Arrivals, Cache, CacheStatistics, Got, Key, Pair, Pin
    from kvfs.cache.buffers import Buffer
    from kvfs.cache.layers import Layers
    from kvfs.config import Config
    from rdma.buffers import Lease

T = TypeVar("T")


class BlockingCache:
    """See `kvfs.cache.Cache`, whose methods these are. Made by `open_cache`."""

    def __init__(self, cache: Cache, token: trio.lowlevel.TrioToken) -> None:
        self._cache = cache
        self._token = token
        self._is_parents = False
        ends_in_children(self)

    def end_in_child(self) -> None:
        """After a fork, the child has no thread that would answer."""
        self._is_parents = True

    def lookup(self, keys: Iterable[Key]) -> list[int | None]:
        return self._call(self._cache.lookup, keys)

    def pin(self, key: Key) -> BlockingPin:
        return BlockingPin(self._call(self._cache.pin, key), self)

    def begin(
        self,
        request: Hashable,
        keys: Iterable[Key],
        *,
        deadline: float = math.inf,
        **reading: Any,  # noqa: ANN401 - of Cache.begin
    ) -> int:
        """:param deadline: seconds from now"""
        return self._call(lambda: self._cache.begin(request, keys, deadline=_at(deadline), **reading))

    def attend(self, request: Hashable, group: int, **said: Any) -> None:  # noqa: ANN401 - of Cache.attend
        self._call(lambda: self._cache.attend(request, group, **said))

    def choose(self, request: Hashable, group: int) -> list[int]:
        return self._call(self._cache.choose, request, group)

    def end(self, request: Hashable, stop_reason: str = "") -> None:
        self._call(self._cache.end, request, stop_reason)

    def hint(self, keys: Iterable[Key]) -> None:
        self._call(self._cache.hint, keys)

    def get_into(self, key: Key, into: Buffer, *, deadline: float = math.inf) -> int:
        """:param deadline: seconds from now"""
        return self._wait(lambda: self._cache.get_into(key, into, deadline=_at(deadline)))

    def get_many_into(self, pairs: Iterable[Pair], *, deadline: float = math.inf) -> list[Got]:
        """:param deadline: seconds from now"""
        return self._wait(lambda: self._cache.get_many_into(pairs, deadline=_at(deadline)))

    @contextmanager
    def stream(self, pairs: Iterable[Pair], *, deadline: float = math.inf) -> Iterator[BlockingArrivals]:
        """:param deadline: seconds from now"""
        with self._arrivals(lambda: self._cache.stream(pairs, deadline=_at(deadline))) as arrivals:
            yield arrivals

    @contextmanager
    def layers(
        self,
        layers: Iterable[Iterable[Pair]],
        *,
        deadline: float = math.inf,
        request: Hashable | None = None,
    ) -> Iterator[BlockingLayers]:
        """:param deadline: seconds from now"""
        with self._entered(
            lambda: self._cache.layers(layers, deadline=_at(deadline), request=request)
        ) as coming:
            yield BlockingLayers(coming, self)

    @contextmanager
    def prefetch_into(
        self, pairs: Iterable[Pair], *, deadline: float = math.inf
    ) -> Iterator[BlockingArrivals]:
        """:param deadline: seconds from now"""
        with self._arrivals(lambda: self._cache.prefetch_into(pairs, deadline=_at(deadline))) as arrivals:
            yield arrivals

    def prefetch(self, keys: Iterable[Key]) -> int:
        return self._wait(lambda: self._cache.prefetch(keys))

    def put(self, key: Key, data: Buffer, *, replace: bool = True) -> None:
        writer = threading.get_ident()
        self._wait(lambda: self._cache.put(key, data, replace=replace, writer=writer))

    def remove(self, key: Key) -> bool:
        return self._wait(lambda: self._cache.remove(key))

    def lease(self, size: int) -> Lease:
        self._check_process()
        return self._cache.lease(size)  # any thread may

    @contextmanager
    def rechecked(self, buffer: Buffer) -> Iterator[None]:
        context = self._cache.rechecked(buffer)
        self._call(context.__enter__)
        try:
            yield
        finally:
            self._call(context.__exit__, None, None, None)

    def statistics(self) -> CacheStatistics:
        return self._call(self._cache.statistics)

    @contextmanager
    def _arrivals(
        self, make: Callable[[], AbstractAsyncContextManager[Arrivals]]
    ) -> Iterator[BlockingArrivals]:
        with self._entered(make) as arrivals:
            yield BlockingArrivals(arrivals, self)

    @contextmanager
    def _entered(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        async def enter() -> tuple[AbstractAsyncContextManager[T], T]:
            context = make()
            return context, await context.__aenter__()

        context, entered = self._wait(enter)
        try:
            yield entered
        finally:  # the outcome of the block is the caller's affair: the context only has to end
            self._wait(lambda: context.__aexit__(None, None, None))

    def _call(self, work: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - what `work` takes
        self._check_process()
        try:
            return trio.from_thread.run_sync(work, *arguments, trio_token=self._token)
        except trio.RunFinishedError:
            raise CacheClosed("the cache is closed") from None

    def _wait(self, work: Callable[[], Awaitable[T]]) -> T:
        self._check_process()
        try:
            return trio.from_thread.run(work, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise CacheClosed("the cache is closed") from None

    def _check_process(self) -> None:
        if self._is_parents:
            raise CacheClosed("the cache belongs to the parent of this process: open one after the fork")


class BlockingArrivals:
    """See `kvfs.cache.Arrivals`."""

    def __init__(self, arrivals: Arrivals, cache: BlockingCache) -> None:
        self._arrivals = arrivals
        self._cache = cache

    def cancel(self) -> None:
        self._cache._call(self._arrivals.cancel)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Got:
        got = self._cache._wait(self._next)
        if got is None:
            raise StopIteration
        return got

    async def _next(self) -> Got | None:
        return await anext(self._arrivals, None)


class BlockingLayers:
    """See `kvfs.cache.layers.Layers`."""

    def __init__(self, layers: Layers, cache: BlockingCache) -> None:
        self._layers = layers
        self._cache = cache

    def __len__(self) -> int:
        return len(self._layers)

    def chosen(self, layer: int) -> list[int]:
        return self._layers.chosen(layer)  # does not change

    def loaded(self, layer: int) -> list[int]:
        return self._cache._wait(lambda: self._layers.loaded(layer))

    def ready(self, layer: int) -> list[Got]:
        return self._cache._wait(lambda: self._layers.ready(layer))


class BlockingPin:
    """See `kvfs.cache.Pin`.

    :ivar size: bytes of the object
    """

    def __init__(self, pin: Pin, cache: BlockingCache) -> None:
        self._pin = pin
        self._cache = cache
        self.size = pin.size

    def close(self) -> None:
        self._cache._call(self._pin.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _at(deadline: float) -> float:
    """In the cache's thread: a moment of its clock."""
    return trio.current_time() + deadline


class _Opening:
    """The cache's thread, from its start until it has ended."""

    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[Cache]]) -> None:
        self._open = open_it
        self._opened = threading.Event()
        self._ending = trio.Event()
        self._error: BaseException | None = None
        self.cache: BlockingCache | None = None
        self._thread = threading.Thread(target=self._run, name="kvfs-cache", daemon=True)

    def start(self) -> BlockingCache:
        """Returns when the cache is open. :raises: what opening it raised"""
        self._thread.start()
        self._opened.wait()
        if self.cache is None:
            self._thread.join()
            assert self._error is not None
            raise self._error
        return self.cache

    def end(self) -> None:
        """Close it. :raises: what closing it raised"""
        assert self.cache is not None
        self.cache._call(self._ending.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - is raised in the thread that asked
            self._error = error
        finally:
            self._opened.set()

    async def _main(self) -> None:
        async with self._open() as cache:
            self.cache = BlockingCache(cache, trio.lowlevel.current_trio_token())
            self._opened.set()
            await self._ending.wait()


@contextmanager
def open_cache(pool: str | Config, **options: Any) -> Iterator[BlockingCache]:  # noqa: ANN401 - of kvfs.open_cache
    """Be a member of a pool for the length of the block; takes and raises what `kvfs.open_cache` does."""
    opening = _Opening(partial(embed.open_cache, pool, **options))
    cache = opening.start()
    try:
        yield cache
    finally:
        opening.end()
