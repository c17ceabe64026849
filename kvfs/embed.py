"""Opening a pool in an engine's own process."""

from __future__ import annotations

import os
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from blockdev.tasks import background
from kvfs import control
from kvfs.assemble import assembled
from kvfs.cache import Cache
from kvfs.cache.api import Tier
from kvfs.cache.reading import PoolSource
from kvfs.cache.straight import Straight
from kvfs.config import Config, load_config, parse_address
from kvfs.learnt import remembering
from kvfs.metrics import CachesCollector, from_trio, serve_metrics
from kvfs.prefetcher import Mode, Prefetcher
from kvfs.report import GAUGES, statistics_of_cache
from kvfs.state import PoolFolder, StateDirectory, default_root
from kvfs.watch import Watch
from rdma.buffers import Arena, allocate
from rdma.host_memory import PAGE
from rdma.stream import open_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kvfs.assemble import Assembly
    from kvfs.cache import Namespace
    from kvfs.cache.reading import PoolExtent
    from kvfs.config import Address
    from kvfs.state import CacheSocket
    from rdma.stream import Stream


@asynccontextmanager
async def open_cache(
    pool: str | Config,
    *,
    namespace: Namespace | None = None,
    memory: int | None = None,
    buffers: int = 0,
    state: Path | None = None,
    metrics: str | None = None,
) -> AsyncIterator[Cache]:
    """Be a member of a pool for the length of the block, as a mount is, without a mount.

    :param pool: its name, or a configuration of it
    :param namespace: of the keys that are hashes
    :param memory: bytes of the DRAM tier, instead of the configuration's; it has what `prefetch` brings and what cannot
        be moved directly
    :param buffers: bytes for `Cache.lease`, locked in memory
    :param state: the state directory; by default the one that the command uses
    :param metrics: `host:port` where to serve Prometheus metrics, for hosts without a mount; a mount that serves metrics shows
        those of all caches of its pool anyway
    :raises UnknownPool, ConfigError, FramesError: `memory` is too little, or more than the system gives
    :raises LockRefused: the system does not let us lock that much
    :raises PoolBusy, MissingDevice, WrongDomain, FormatError, DeviceError: as a mount
    """
    directory = StateDirectory(state or default_root(os.environ, os.geteuid()))
    if isinstance(pool, Config):
        folder, config = directory.folder(pool.name), pool
    else:
        folder = directory.known(pool)
        config = load_config(folder.config)
    if memory is not None:
        config = replace(config, memory=memory)
    address = None if metrics is None else parse_address(metrics)
    arena = _arena(buffers)
    try:
        # The outer one only sees to it that errors leave as themselves: the inner nurseries put them into groups.
        async with background(), _members(folder, config) as (assembly, stream, tier):
            cache = Cache(assembly.pool, tier, stream, namespace, arena)
            figures = partial(statistics_of_cache, assembly.pool, assembly.frames, cache)
            async with background() as nursery:
                socket = folder.new_cache()
                await nursery.start(_answer, socket, figures)
                try:
                    with _served(address, config.name, socket.label, figures):
                        yield cache
                finally:
                    cache.close()
    finally:
        if arena is not None:
            arena.close()


@contextmanager
def _served(
    address: Address | None, pool: str, label: str, figures: Callable[[], control.Json]
) -> Iterator[None]:
    with ExitStack() as stack:
        if address is not None:
            snapshot = from_trio(figures)
            collector = CachesCollector(lambda: {label: snapshot()}, {"pool": pool}, GAUGES)
            stack.enter_context(serve_metrics(address, collector))
        yield


async def _answer(
    socket: CacheSocket,
    figures: Callable[[], control.Json],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Tell the command what the cache does, for as long as it is open."""

    async def stats(_arguments: control.Json, _report: control.Report) -> control.Json:
        return figures()

    await control.serve(socket.path, {"stats": stats}, task_status=task_status)


class _Parts(NamedTuple):
    assembly: Assembly
    stream: Stream[PoolExtent]
    tier: Tier


@asynccontextmanager
async def _members(folder: PoolFolder, config: Config) -> AsyncIterator[_Parts]:
    async with assembled(folder, config, "used by an engine") as assembly:
        straight = Straight(assembly.pool, assembly.opener.rdma.keeping)
        source = PoolSource(assembly.pool, assembly.frames, straight)
        async with (
            remembering(folder.learnt("requests")) as returns,
            open_stream(source) as stream,
            trio.open_nursery() as nursery,
        ):
            prefetcher = Prefetcher(assembly.frames, Mode(config.prefetch), trio.current_time)
            nursery.start_soon(prefetcher.run)
            nursery.start_soon(Watch(assembly.pool, assembly.returning, config, assembly.opener).run)
            yield _Parts(assembly, stream, Tier(assembly.frames, prefetcher, straight, returns))
            nursery.cancel_scope.cancel()


def _arena(size: int) -> Arena | None:
    if not size:
        return None
    whole = -(-size // PAGE) * PAGE
    return Arena(allocate(whole, lock=True), whole, PAGE)
