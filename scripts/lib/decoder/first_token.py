"""One request whose context was computed before, in every way in which it can come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvfs import sync
from scripts.lib.decoder.blocks import LAYERS, Block, block_bytes, blocks
from scripts.lib.decoder.forward import Context, Decoder, Ready
from scripts.lib.decoder.model import Floats
from scripts.lib.mounts import Kvfs

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

POOL = "bench"
THREADS = 8
FETCH_SECONDS = 30
MEMORY = 320 << 20
"""Of the DRAM tier: all of the longest context, and as much again as a mount needs."""


@dataclass
class Request:
    """:ivar prefix: tokens that were computed before
    :ivar turn: new tokens
    """

    decoder: Decoder
    prefix: Sequence[int]
    turn: Sequence[int]

    def empty(self) -> Context:
        return Context(self.decoder.shape, len(self.prefix) + len(self.turn))

    def blocks(self) -> list[Block]:
        return blocks(self.decoder.shape, self.prefix)

    def first_token(self, context: Context, ready: Ready | None = None) -> Floats:
        """Compute the new turn behind a prefix that is there, or comes while it computes."""
        context.length = len(self.prefix)
        return self.decoder.extend(context, self.turn, ready=ready)


@dataclass
class _Times:
    """Seconds by what they were spent for."""

    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.parts[part] = self.parts.get(part, 0) + time.perf_counter() - begun


class _Arrived:
    """Which groups of layers are there: one thread says it, the one that computes waits for it."""

    def __init__(self, each: int) -> None:
        self._missing: dict[int, int] = {}
        self._each = each
        self._news = threading.Condition()

    def note(self, group: int) -> None:
        with self._news:
            self._missing[group] = self._missing.get(group, self._each) - 1
            self._news.notify_all()

    def wait_for(self, layer: int) -> None:
        with self._news:
            self._news.wait_for(lambda: self._missing.get(layer // LAYERS) == 0)


class Trial:
    """All ways, for one length of context."""

    def __init__(self, rows: Rows, kvfs: Kvfs, folder: Path, request: Request) -> None:
        self._rows = rows
        self._kvfs = kvfs
        self._mount = folder / "mnt"
        self._request = request
        self._name = f"{len(request.prefix):,} tokens"
        self._blocks = request.blocks()
        self._size = block_bytes(request.decoder.shape)
        self._back = request.empty()
        """Where contexts come back; an engine's memory is there before any request, so its pages are not counted."""

    def run(self, rounds: int) -> None:
        """Compute once, store, and come back in every way."""
        context, times = self._request.empty(), _Times()
        with times.of("computing the context"):
            self._request.decoder.extend(context, self._request.prefix)
        with times.of("computing the turn"):
            self._expected = self._request.first_token(context)
        self._tell("computed again", times)
        size = len(self._blocks) * self._size
        self._rows.add(f"{self._name}: keys and values", "MB", size / 1e6)
        with self._mounted():
            for block in self._blocks:
                (self._mount / block.name).write_bytes(block.pack(context))
        for _ in range(rounds):
            self._there(context)
            self._through_the_mount(fetched=False)
            self._through_the_mount(fetched=True)
            with (
                sync.open_cache(
                    POOL, memory=MEMORY, buffers=size, state=self._kvfs.pool_folder(POOL).parent
                ) as cache,
                cache.lease(size) as lease,
            ):
                self._parts = [lease.view[at : at + self._size] for at in range(0, size, self._size)]
                self._through_the_cache(cache, "on demand")
                self._in_the_order_of_layers(cache)
                self._fetch(cache)
                self._through_the_cache(cache, "fetched before")

    def _there(self, context: Context) -> None:
        """In the engine's own memory: nothing to load."""
        times = _Times()
        with times.of("computing the turn"):
            scores = self._request.first_token(context)
        self._tell("in the engine's memory", times, scores)

    def _through_the_mount(self, *, fetched: bool) -> None:
        memory = memoryview(bytearray(b"\1" * (len(self._blocks) * self._size)))

        def read(number: int) -> None:
            with (self._mount / self._blocks[number].name).open("rb", buffering=0) as file:
                part = memory[number * self._size : (number + 1) * self._size]
                if file.readinto(part) != self._size:
                    raise OSError("short read")

        with self._mounted(), ThreadPoolExecutor(THREADS) as pool:
            if fetched:
                begun = time.perf_counter()
                self._kvfs("prefetch", *(str(self._mount / block.name) for block in self._blocks))
                self._fetched("mount", begun)
            parts = [memory[at : at + self._size] for at in range(0, len(memory), self._size)]
            way = f"mount, {'fetched before' if fetched else 'on demand'}"
            self._load(way, lambda: list(pool.map(read, range(len(self._blocks)))), parts)

    def _through_the_cache(self, cache: sync.BlockingCache, how: str) -> None:
        def load() -> None:
            for got in cache.get_many_into(zip(self._keys(), self._parts, strict=True)):
                if got.error is not None:
                    raise got.error

        self._load(f"Cache API, {how}", load, self._parts)

    def _load(self, way: str, load: Callable[[], object], parts: Sequence[memoryview]) -> None:
        """Everything, then compute."""
        context, times = self._emptied(), _Times()
        with times.of("loading"):
            load()
        with times.of("unpacking"):
            for block, part in zip(self._blocks, parts, strict=True):
                block.unpack(context, part)
        with times.of("computing the turn"):
            scores = self._request.first_token(context)
        self._tell(way, times, scores)

    def _in_the_order_of_layers(self, cache: sync.BlockingCache) -> None:
        """Compute with a layer as soon as it is there, while the next ones are on their way."""
        context, times = self._emptied(), _Times()
        groups = 1 + max(block.group for block in self._blocks)
        arrived = _Arrived(len(self._blocks) // groups)

        def load() -> None:
            with cache.stream(zip(self._keys(), self._parts, strict=True)) as arrivals:
                for got in arrivals:
                    if got.error is not None:
                        raise got.error
                    self._blocks[got.index].unpack(context, self._parts[got.index])
                    arrived.note(self._blocks[got.index].group)

        with times.of("everything at once"), ThreadPoolExecutor(1) as loader:
            loading = loader.submit(load)
            scores = self._request.first_token(context, arrived.wait_for)
            loading.result()
        self._tell("Cache API, on demand in the order of layers", times, scores)

    def _emptied(self) -> Context:
        """With nothing in it that could be taken for what is to come."""
        self._back.kv.fill(np.nan)
        return self._back

    def _fetch(self, cache: sync.BlockingCache) -> None:
        """What happens before the request comes; it is not part of its time."""
        begun, expected = time.perf_counter(), len(self._blocks)
        while expected > 0:
            expected -= cache.prefetch(self._keys())  # begins some at a time
            if time.perf_counter() > begun + FETCH_SECONDS:
                raise OSError(f"{expected} objects were not fetched")
            time.sleep(0.002)
        self._fetched("Cache API", begun)
        time.sleep(0.1)  # for the last ones, of which nothing tells when they have come

    def _fetched(self, where: str, begun: float) -> None:
        seconds = time.perf_counter() - begun
        self._rows.add(f"{self._name}, {where}: fetching, before", "ms", seconds * 1e3)

    def _tell(self, way: str, times: _Times, scores: Floats | None = None) -> None:
        if scores is not None and not np.array_equal(scores, self._expected):
            raise AssertionError(f"{way}: the first token's scores differ from those of computing again")
        name = f"{self._name}, {way}"
        self._rows.add(f"{name}: time to the first token", "ms", sum(times.parts.values()) * 1e3)
        if len(times.parts) > 1:
            for part, seconds in times.parts.items():
                self._rows.add(f"{name}: {part}", "ms", seconds * 1e3)

    def _keys(self) -> list[str]:
        return [f"/{block.name}" for block in self._blocks]

    @contextmanager
    def _mounted(self) -> Iterator[None]:
        with self._kvfs.mounted(self._mount, "--memory", str(MEMORY), POOL):
            yield
