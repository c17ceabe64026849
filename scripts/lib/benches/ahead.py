"""Prefetch in a mount whose device is far away: 10 ms and 2 GB/s, many requests at once.

Each measurement is taken with prefetch and without, in turns, each time right after the pool was mounted, so that nothing
is in memory and all that is known is what the objects record. The device is a file in memory behind
`blockdev.testing.DistantDevice`: what is measured is the mount, not a disk.

Where traces of requests are named by --trace, or are in the folder KVFS_TRACES, they are replayed against what a mount
predicts with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvfs.errors import BadTrace
from kvfs.prefetcher import Mode
from kvfs.request_traces import read_requests as read
from kvfs.request_traces import unique_blocks
from scripts.lib.prediction.replay import replay
from scripts.lib.prediction.traces import named
from scripts.lib.sides import BLOCK, MIB, random_memory

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

LATENCY = 0.010
RATE = 2e9
MEMORY = 384 * MIB
CHAIN = 64
"""Files of 4 MiB that are written and read in order."""
OTHERS = 192
"""Of other writers, which are read at random: more than fit into memory."""
RANDOM_READS = 300
READERS = 2
"""That read at random while the chain is read."""
LEAD = 0.2
"""Seconds from looking up to reading."""
PACE = 0.016
"""Seconds from one file of the chain to the next, beside readers at random: what one reader without prefetch can keep to."""
SAMPLES = 1040
"""Of each round, with prefetch and without."""
ROUNDS = 5
QUICK_REQUESTS = 2000
MEMORIES = (5, 20)
"""Percent of a trace's unique blocks that memory has room for."""
MAIN = Path(__file__).parents[1] / "distant_mount.py"


@dataclass
class Distant:
    """A pool on a device that is far away.

    :ivar shown: the statistics of the last mount
    :ivar first: whether the first of two measurements was with prefetch, `on` or `off`
    """

    folder: Path
    shown: dict[str, Any] = field(default_factory=dict)
    first: str = "off"

    @property
    def path(self) -> Path:
        return self.folder / "mnt"

    @contextmanager
    def mounted(self, prefetch: str, *, new: bool = False, latency: float = LATENCY) -> Iterator[Path]:
        """For the length of the block."""
        self.path.mkdir(exist_ok=True)
        told = {
            "device": str(self.folder / "device"),
            "state": str(self.folder / "state"),
            "path": str(self.path),
            "memory": MEMORY,
            "prefetch": prefetch,
            "new": new,
            "latency": latency,
            "rate": RATE,
        }
        with subprocess.Popen(
            [sys.executable, str(MAIN), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise OSError("the mount did not come up")
            try:
                yield self.path
            finally:
                shown, _ = process.communicate("")
                self.shown = json.loads(shown)


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    folder = Path(tempfile.mkdtemp(prefix="kvfs-bench-", dir=options.folder or "/dev/shm"))
    try:
        distant = Distant(folder)
        _fill(distant)
        for _ in range(1 if options.quick else 3):
            _serial(rows, distant)
            _looked_up(rows, distant)
            _random(rows, distant)
        for _ in range(1 if options.quick else ROUNDS):
            for pace in (PACE, 0.0):
                _interference(rows, distant, SAMPLES, pace)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for path in named(options.trace):
        _replayed(rows, path, QUICK_REQUESTS if options.quick else None)


def _replayed(rows: Rows, path: Path, requests: int | None) -> None:
    """A trace, against what a mount predicts with: what was fetched in vain, and what had to be waited for all the same."""
    try:
        asked = read(path)[:requests]
    except (OSError, BadTrace) as error:
        sys.exit(f"scripts/bench: {error}")
    blocks = unique_blocks(asked)
    for percent in MEMORIES:
        began = time.perf_counter()
        ahead, without = (replay(asked, blocks * percent // 100, mode) for mode in (Mode.ON, Mode.OFF))
        seconds = time.perf_counter() - began
        name = f"{path.name.split('.')[0]}, memory for {percent} %"
        shown = ahead.prefetch
        fetched = sum(shown.fetched_by_source.values())
        rows.add(
            f"{name}: wasted of what was fetched",
            "part",
            sum(shown.wasted_by_source.values()) / fetched,
            ceiling=0.2,
        )
        rows.add(f"{name}: loads that waited", "part", ahead.waited / ahead.loads)
        rows.add(f"{name}: loads that waited, without prefetch", "part", without.waited / without.loads)
        rows.add(f"{name}: a load, all that is replayed", "µs", seconds / (ahead.loads + without.loads) * 1e6)


def _fill(distant: Distant) -> None:
    """A chain, and files of which each has a writer of its own."""
    payload = random_memory(BLOCK)
    with (distant.folder / "device").open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, (CHAIN + OTHERS) * BLOCK * 5 // 4 + 512 * MIB)
    with distant.mounted("off", new=True, latency=0.0) as path:
        for number in range(CHAIN):
            _store(path / f"chain-{number:04}", payload)
        for number in range(OTHERS):
            thread = threading.Thread(target=_store, args=(path / f"other-{number:04}", payload))
            thread.start()
            thread.join()


def _store(path: Path, payload: mmap.mmap) -> None:
    draft = path.with_name(f"{path.name}.{threading.get_native_id()}.tmp")
    handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DIRECT, 0o600)
    try:
        os.write(handle, payload)
    finally:
        os.close(handle)
    draft.rename(path)


_own = threading.local()


def _load(path: Path) -> float:
    """Read a file as engines do; returns the seconds that it took."""
    if not hasattr(_own, "buffer"):
        _own.buffer = mmap.mmap(-1, BLOCK)
        _own.buffer[:] = bytes(BLOCK)
    began = time.perf_counter()
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        if os.readv(handle, [_own.buffer]) != BLOCK:
            raise OSError(f"{path} is too short")
    finally:
        os.close(handle)
    return time.perf_counter() - began


def _both(
    distant: Distant, measure: Callable[[Path], float], report: Callable[[dict[str, Any]], None]
) -> tuple[float, float]:
    """With prefetch, and without; who goes first changes."""
    distant.first = "on" if distant.first == "off" else "off"
    measured = {}
    for prefetch in (distant.first, "off" if distant.first == "on" else "on"):
        with distant.mounted(prefetch) as path:
            measured[prefetch] = measure(path)
        if prefetch == "on":
            report(distant.shown)
    return measured["on"], measured["off"]


def _serial(rows: Rows, distant: Distant) -> None:
    """One reader, in the order in which the files were written."""

    def measure(path: Path) -> float:
        return sum(_load(path / f"chain-{number:04}") for number in range(CHAIN))

    def report(shown: dict[str, Any]) -> None:
        wasted, fetched = (
            sum(shown["prefetch"][f"{what}_by_source"].values()) for what in ("wasted", "fetched")
        )
        rows.add(
            "serial reader: wasted of what was fetched", "part", (wasted + 0.0) / max(fetched, 1), ceiling=0.2
        )

    ahead, without = _both(distant, measure, report)
    rows.add(f"serial reader of {CHAIN} files: without", "GB/s", CHAIN * BLOCK / without / 1e9)
    rows.add(f"serial reader of {CHAIN} files: with prefetch", "GB/s", CHAIN * BLOCK / ahead / 1e9)
    rows.add("serial reader: how many times faster", "ratio", without / ahead, floor=3.0)


def _looked_up(rows: Rows, distant: Distant) -> None:
    """A reader whose engine looks up the names and reads the files a while later; and what looking up costs that again."""
    again: list[float] = []

    def measure(path: Path) -> float:
        names = [path / f"chain-{number:04}" for number in range(CHAIN)]
        _access(names)
        again.append(min(_access(names) for _ in range(20)))
        time.sleep(LEAD)
        return sum(_load(name) for name in names[: CHAIN // 4])

    ahead, without = _both(distant, measure, lambda _: None)
    if distant.first == "off":
        again.reverse()
    rows.add(f"looked up {LEAD:g} s before: how many times faster", "ratio", without / ahead)
    rows.add(f"looking up {CHAIN} names again: with prefetch", "µs", again[0] * 1e6)
    rows.add(f"looking up {CHAIN} names again: without", "µs", again[1] * 1e6)


def _access(names: list[Path]) -> float:
    began = time.perf_counter()
    if not all(os.access(name, os.F_OK) for name in names):
        raise OSError("a name is not there")
    return time.perf_counter() - began


def _random(rows: Rows, distant: Distant) -> None:
    """One reader who reads anything next, of the chain or not."""
    names = [f"chain-{number:04}" for number in range(CHAIN)] + [
        f"other-{number:04}" for number in range(OTHERS)
    ]

    def measure(path: Path) -> float:
        rng = random.Random(1)
        return sum(_load(path / rng.choice(names)) for _ in range(RANDOM_READS))

    def report(shown: dict[str, Any]) -> None:
        fetched = sum(shown["prefetch"]["fetched_by_source"].values())
        rows.add("random reader: fetched in vain, of what was read", "part", fetched / (RANDOM_READS * BLOCK))

    ahead, without = _both(distant, measure, report)
    rows.add(
        "random reader: seconds with prefetch, divided by without", "ratio", ahead / without, ceiling=1.02
    )


def _interference(rows: Rows, distant: Distant, samples: int, pace: float) -> None:
    """Readers at random, while another one reads the chain again and again: as fast in both cases, or as fast as it can."""
    names = [f"other-{number:04}" for number in range(OTHERS)]

    def measure(path: Path) -> float:
        over = threading.Event()
        taken: list[float] = []

        def chain() -> None:
            due = time.perf_counter()
            for number in itertools.count():
                if over.is_set():
                    return
                _load(path / f"chain-{number % CHAIN:04}")
                due += pace
                time.sleep(max(due - time.perf_counter(), 0.0))

        def others(seed: int) -> list[float]:
            rng = random.Random(seed)
            return [_load(path / rng.choice(names)) for _ in range(samples // READERS)]

        with ThreadPoolExecutor(READERS + 1) as pool:
            reading = pool.submit(chain)
            for each in pool.map(others, range(READERS)):
                taken += each
            over.set()
            reading.result()
        return _percentile(taken, 99)

    ahead, without = _both(distant, measure, lambda _: None)
    beside = (
        f"p99 of {samples} reads on demand, beside a chain that is read as fast{'' if pace else ' as can be'}"
    )
    rows.add(f"{beside}: without", "ms", without * 1e3)
    rows.add(f"{beside}: with prefetch", "ms", ahead * 1e3)
    rows.add(
        f"{beside}: with prefetch, divided by without",
        "ratio",
        ahead / without,
        ceiling=1.25 if pace else None,
    )


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]
