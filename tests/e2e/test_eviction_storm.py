"""Many threads in one directory of a pool that is fuller than full: whatever they ask for makes siblings go.

The kernel holds the directory while it waits for the answer to a create, rename or unlink, and the file while it sets an
attribute. If an eviction that such a request causes had to tell the kernel something that needs the same lock, both
would wait for ever.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blockdev.types import KIB, MIB
from tests.e2e.helpers import some_bytes
from tests.e2e.serving import EXTENT, Setup, served

pytestmark = pytest.mark.fuse

THREADS = 16
SETUP = Setup(device_mib=256, frames=48)
SIZES = (1 * KIB, 40 * KIB, 300 * KIB, EXTENT)
"""One for each class of slots."""
FULL = 1.1
STALL = 1.0
"""Seconds that no request may take, unless the disk itself does."""
STUCK_AFTER = 150.0


@dataclass
class Worst:
    """How long the slowest of each kind of request took, seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    count: int = 0

    @contextmanager
    def time(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        took = time.monotonic() - begun
        self.seconds[what] = max(took, self.seconds.get(what, 0.0))
        self.count += 1


class Storm:
    """What the threads do: they store, in turn, more than fits."""

    def __init__(self, folder: Path, end: float) -> None:
        self.folder = folder
        self.end = end
        self.data = [some_bytes(size, size) for size in SIZES]
        share = FULL * SETUP.device_mib * MIB / THREADS
        self.names = max(8, round(share / (sum(SIZES) / len(SIZES))))
        """Of each thread."""

    def run(self, thread: int) -> Worst:
        """:raises OSError: a store failed"""
        rng, worst, step = random.Random(thread), Worst(), 0
        while time.monotonic() < self.end:
            path = self.folder / f"{thread}-{step % self.names}"
            self._store(path, self.data[step % len(SIZES)], worst)
            self._use_siblings(rng, worst)
            step += 1
        assert step > self.names, "the pool was not filled"
        return worst

    def _store(self, path: Path, data: bytes, worst: Worst) -> None:
        draft = path.with_suffix(".tmp")
        with worst.time("create"):
            descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            with worst.time("write"):
                assert os.write(descriptor, data) == len(data)
        finally:
            with worst.time("close"):
                os.close(descriptor)
        with worst.time("rename"):
            draft.rename(path)

    def _use_siblings(self, rng: random.Random, worst: Worst) -> None:
        """Any of them may be gone: a miss."""

        def sibling() -> Path:
            return self.folder / f"{rng.randrange(THREADS)}-{rng.randrange(self.names)}"

        with worst.time("setxattr"), suppress(FileNotFoundError):
            os.setxattr(sibling(), "user.a", b"%d" % rng.randrange(1000))
        for _ in range(4):
            with worst.time("access"):
                os.access(sibling(), os.F_OK)
        if rng.random() < 0.2:
            with worst.time("unlink"), suppress(FileNotFoundError):
                sibling().unlink()
        with worst.time("read"), suppress(FileNotFoundError):
            data = sibling().read_bytes()
            assert data in self.data


@contextmanager
def disk_watched(folder: Path) -> Iterator[Callable[[], float]]:
    """Write beside the pool all the while; the worst that such a write took, seconds, is the disk's own doing."""
    over, worst = threading.Event(), [0.0]

    def watch() -> None:
        with (folder / "beside").open("wb", buffering=0) as file:
            while not over.wait(0.05):
                begun = time.monotonic()
                os.pwrite(file.fileno(), bytes(64 * KIB), 0)
                os.fdatasync(file.fileno())
                worst[0] = max(worst[0], time.monotonic() - begun)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: worst[0]
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("seconds", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_evicting_siblings_stalls_nobody(tmp_path: Path, seconds: int) -> None:
    with served(tmp_path, SETUP, STUCK_AFTER) as mount, disk_watched(tmp_path) as disk:
        folder = mount.path / "all"
        folder.mkdir()
        storm = Storm(folder, time.monotonic() + seconds)
        with ThreadPoolExecutor(THREADS) as threads:
            results = list(threads.map(storm.run, range(THREADS)))
        slowest = {what: max(r.seconds.get(what, 0.0) for r in results) for what in results[0].seconds}
        there = len(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted
        assert there < THREADS * storm.names, "nothing was evicted"
        assert max(slowest.values()) < max(STALL, 5 * disk()), (slowest, disk())
