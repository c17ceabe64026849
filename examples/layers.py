#!/usr/bin/env python3
"""What an engine does with the Cache API: the layers of a request leave, and come back while it computes.

Eight threads put the KV blocks of one request, a block for each layer. The engine forgets them, looks them up, and streams
them back into one buffer in the order of the layers; it begins to compute with a layer as soon as that has arrived, while
the next ones are on their way. What it prints says how much of the loading was hidden behind the computing.

    kvfs pool create hot /var/tmp/kvfs-drive --size 4GiB
    python examples/layers.py hot
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import kvfs
from kvfs import sync
from kvfs.errors import KvfsError

MIB = 1 << 20
LAYERS = 32
LAYER_SIZE = 4 * MIB
COMPUTE_MS = 4.0
THREADS = 8
MEMORY = 64 * MIB
NAMESPACE = kvfs.Namespace("demo-model", rank=0)


@dataclass(frozen=True)
class Request:
    """The layers of an imaginary request: for each a key and content that follow from its number."""

    layers: int
    size: int

    @property
    def keys(self) -> list[bytes]:
        return [hashlib.sha256(b"request, layer %d" % layer).digest() for layer in range(self.layers)]

    def content(self, layer: int) -> bytes:
        return random.Random(layer).randbytes(self.size)


class Layers:
    """Which layers have arrived. The thread that loads says it, the one that computes waits for it."""

    def __init__(self, count: int) -> None:
        self._arrived = [False] * count
        self._news = threading.Condition()

    def note(self, layer: int) -> None:
        with self._news:
            self._arrived[layer] = True
            self._news.notify_all()

    def wait_for(self, layer: int) -> None:
        with self._news:
            self._news.wait_for(lambda: self._arrived[layer])


@dataclass(frozen=True)
class Times:
    """Seconds of one pass over all layers, when loading and computing take turns, and when they overlap."""

    loading: float
    computing: float
    together: float

    @property
    def hidden(self) -> float:
        """Which share of the loading did not make the pass longer."""
        longer = max(0.0, self.together - self.computing)
        return max(0.0, 1 - longer / self.loading) if self.loading else 1.0


class Engine:
    """Stores and loads one request.

    :param compute: seconds that it computes with each layer; a GPU would, so the processor is free meanwhile
    """

    def __init__(self, cache: sync.BlockingCache, request: Request, compute: float) -> None:
        self._cache = cache
        self._request = request
        self._compute = compute

    def store(self) -> None:
        """Put every layer, some at a time."""
        with ThreadPoolExecutor(THREADS) as pool:
            jobs = enumerate(self._request.keys)
            list(pool.map(lambda job: self._cache.put(job[1], self._request.content(job[0])), jobs))

    def forget(self) -> None:
        """Remove every layer."""
        for key in self._request.keys:
            self._cache.remove(key)

    def present(self) -> int:
        """How many layers, from the first one on, are there."""
        sizes = self._cache.lookup(self._request.keys)
        return next((layer for layer, size in enumerate(sizes) if size is None), len(sizes))

    def run(self, buffer: memoryview) -> Times:
        """Load into the buffer, then compute; then both at once.

        :raises KvfsError: a layer did not come
        """
        begun = time.monotonic()
        self._load(buffer, Layers(self._request.layers))
        loading = time.monotonic() - begun
        begun = time.monotonic()
        for _ in range(self._request.layers):
            time.sleep(self._compute)
        computing = time.monotonic() - begun
        buffer[:] = bytes(len(buffer))
        begun = time.monotonic()
        self._overlapped(buffer)
        return Times(loading, computing, time.monotonic() - begun)

    def wrong(self, buffer: memoryview) -> list[int]:
        """Layers that are not as they were stored."""
        return [
            layer
            for layer, part in enumerate(self._parts(buffer))
            if part != memoryview(self._request.content(layer))
        ]

    def _overlapped(self, buffer: memoryview) -> None:
        arrived = Layers(self._request.layers)
        with ThreadPoolExecutor(1) as loader:
            loading = loader.submit(self._load, buffer, arrived)
            for layer in range(self._request.layers):
                arrived.wait_for(layer)
                time.sleep(self._compute)
            loading.result()

    def _load(self, buffer: memoryview, arrived: Layers) -> None:
        error: Exception | None = None
        pairs = zip(self._request.keys, self._parts(buffer), strict=True)
        with self._cache.stream(pairs) as arrivals:
            for got in arrivals:
                error = error or got.error
                arrived.note(got.index)
        if error is not None:
            raise error

    def _parts(self, buffer: memoryview) -> Sequence[memoryview]:
        size = self._request.size
        return [buffer[at : at + size] for at in range(0, len(buffer), size)]


@contextmanager
def engine(options: argparse.Namespace) -> Iterator[tuple[Engine, memoryview]]:
    """An engine, and memory for all layers of its request that devices can write into."""
    request = Request(options.layers, options.layer_size)
    size = request.layers * request.size
    with (
        sync.open_cache(
            options.pool, namespace=NAMESPACE, memory=MEMORY, buffers=size, state=options.state_dir
        ) as cache,
        cache.lease(size) as lease,
    ):
        yield Engine(cache, request, options.compute_ms / 1000), lease.view


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Put, drop, look up and stream the layers of a request.")
    parser.add_argument("pool", help="name of a pool; it may be mounted at the same time")
    parser.add_argument("--state-dir", type=Path, help="where kvfs keeps what it knows about pools")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--layer-size", type=int, default=LAYER_SIZE, metavar="BYTES")
    parser.add_argument("--compute-ms", type=float, default=COMPUTE_MS, help="of each layer")
    options = parser.parse_args(arguments)
    try:
        with engine(options) as (worker, buffer):
            worker.store()
            print(f"{worker.present()} of {options.layers} layers are there")
            times = worker.run(buffer)
            wrong = worker.wrong(buffer)
            worker.forget()
    except KvfsError as error:
        print(f"layers: {error}", file=sys.stderr)
        return 1
    print(
        f"loading {times.loading * 1e3:.0f} ms, computing {times.computing * 1e3:.0f} ms, together "
        f"{times.together * 1e3:.0f} ms: {times.hidden:.0%} of the loading was hidden; {len(wrong)} layers wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
