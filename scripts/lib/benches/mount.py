"""Reading and writing files: kvfs against a plain directory of the same disk, with the same calls and flags, in turns.

A store is what engines do: a temporary file, one write, a rename. A cold load finds the bytes in neither side's memory:
what was stored before does not fit the DRAM tier, and the page cache is dropped. The plain directory checks nothing;
kvfs computes and compares a checksum of every byte.

Besides: what the disk does without a file system, what kvfs does without a disk (stores into a pool in memory, loads
from the DRAM tier), and where the time of one file goes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.lib.mounts import Kvfs
from scripts.lib.parts import parts
from scripts.lib.sides import BLOCK, LARGE, MIB, RawFile, Side, random_memory

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

MEMORY = "256MiB"
"""Of the DRAM tier: for 16 threads to store at once, and less than half of what a cold load goes through."""
MEMORY_SIDE = Path("/dev/shm")
_SETTLED = 0.3
"""Seconds."""
FLOORS = {
    "store 4 MiB, O_DIRECT, 1 thread": 0.8,
    "store 4 MiB, O_DIRECT, 16 threads": 0.85,
    "cold load 4 MiB, O_DIRECT, 1 thread": 0.65,
    "cold load 4 MiB, O_DIRECT, 16 threads": 0.8,
    "warm buffered re-read 4 MiB": 0.75,
    "warm buffered re-read 16 MiB": 0.85,
    "cold buffered read 16 MiB": 0.75,
}
"""Of kvfs's rate divided by the plain directory's."""
MEMORY_FLOORS = {"store": 2.5, "load": 4.0}
"""GB/s without a disk."""


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    blocks, rounds = (72, 3) if options.quick else (160, 5)
    folder = Path(tempfile.mkdtemp(prefix="kvfs-bench-", dir=options.folder))
    try:
        with ExitStack() as stack:
            bench = _Bench(rows, folder, blocks)
            bench.start(stack)
            for number in range(rounds):
                bench.round(number)
        _without_disk(rows, blocks // 2, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Bench:
    """The directories, and a round of measurements over all of them."""

    def __init__(self, rows: Rows, folder: Path, blocks: int) -> None:
        self._rows = rows
        self._folder = folder
        self._all = range(blocks)
        self._large = range(blocks // 4)
        self._few = {BLOCK: range(8), LARGE: range(3)}  # which are a quarter of what memory there is
        self._payload = random_memory(LARGE)
        plain = folder / "plain"
        plain.mkdir()
        self._plain = Side("plain directory", plain, self._payload, synchronous=True)
        self._sides = [self._plain]

    def start(self, stack: ExitStack) -> None:
        """Mount, for the length of the stack."""
        self._raw = RawFile(self._folder / "raw", self._payload, len(self._all) // 3)
        stack.callback(self._raw.close)
        size = str(len(self._all) * BLOCK * 2 + 1024 * MIB)
        for name, flags in (("kvfs", []), ("kvfs without the lane", ["--no-lane"])):
            folder = self._folder / name.replace(" ", "-")
            folder.mkdir()
            path = stack.enter_context(
                Kvfs(folder).mounted(folder / "mnt", "--size", size, "--memory", MEMORY, *flags)
            )
            self._sides.append(Side(name, path, self._payload))

    def round(self, number: int) -> None:
        """Every measurement once, on each side in turn; who goes first changes."""
        first = number % len(self._sides)
        order = self._sides[first:] + self._sides[:first]
        self._disk()
        for threads in (1, 16):
            name = f"4 MiB, O_DIRECT, {threads} thread{'s' if threads > 1 else ''}"
            self._compare(f"store {name}", order, lambda side: side.store(self._all, threads))  # noqa: B023
            if threads == 1:
                self._parts("store", order)
            self._compare(f"cold load {name}", order, lambda side: side.load(self._all, threads))  # noqa: B023
            if threads == 1:
                self._parts("cold load", order)
                self._warm("warm buffered re-read 4 MiB", order, BLOCK)
            for side in order:
                side.clear()
        self._buffered(order)

    def _buffered(self, order: Sequence[Side]) -> None:
        self._compare(
            "store 16 MiB, buffered", order, lambda side: side.store(self._large, 1, size=LARGE, flags=0)
        )
        for side in order:
            side.forget(self._large)
        self._compare(
            "cold buffered read 16 MiB", order, lambda side: side.load(self._large, 1, size=LARGE, flags=0)
        )
        self._warm("warm buffered re-read 16 MiB", order, LARGE)
        for side in order:
            side.clear()

    def _warm(self, name: str, order: Sequence[Side], size: int) -> None:
        few = self._few[size]

        def load(side: Side) -> float:
            return side.load(few, 1, size=size, flags=0)

        for side in order:
            load(side)
        self._compare(f"{name}, the first time", order, load)
        for side in order:
            load(side)
        time.sleep(_SETTLED)  # for what either side does meanwhile for files that are read again and again
        self._compare(name, order, load)

    def _compare(self, name: str, order: Sequence[Side], measure: Callable[[Side], float]) -> None:
        rates = {}
        for side in order:
            side.calls.clear()
            rates[side.name] = measure(side)
        for side in self._sides:
            self._rows.add(f"{name}: {side.name}", "GB/s", rates[side.name] / 1e9)
        for side in self._sides[1:]:
            ratio = rates[side.name] / rates[self._plain.name]
            if side.name == "kvfs":
                self._rows.add(name, "ratio", ratio, floor=FLOORS.get(name))
            else:
                self._rows.add(f"{name}, without the lane", "ratio", ratio)

    def _parts(self, what: str, order: Sequence[Side]) -> None:
        """Where the time of one file goes, as its calls say."""
        for side in order:
            _calls(self._rows, f"{what} 4 MiB, 1 thread: {side.name}", side)

    def _disk(self) -> None:
        for threads in (1, 16):
            name = f"the disk alone, 4 MiB, O_DIRECT, {threads} at once"
            self._rows.add(f"{name}: write", "GB/s", self._raw.write(threads) / 1e9)
            self._rows.add(f"{name}: read", "GB/s", self._raw.read(threads) / 1e9)
        self._rows.add("the disk alone: write a page", "µs", self._raw.page() * 1e6)
        for name, seconds in parts(self._folder, self._payload):
            self._rows.add(f"part of a store: {name}", "µs", seconds * 1e6)
        kvfs = self._sides[1]
        self._rows.add("part of a store: a request that the lane answers", "µs", kvfs.missing() * 1e6)


def _calls(rows: Rows, name: str, side: Side) -> None:
    for call, seconds in side.calls.items():
        rows.add(f"{name}: {call}", "µs", statistics.median(seconds) * 1e6)


def _without_disk(rows: Rows, blocks: int, rounds: int) -> None:
    """What the mount does when no disk is in the way."""
    if not _takes_direct_io(MEMORY_SIDE):
        sys.stderr.write(f"{MEMORY_SIDE} does not take O_DIRECT: rows from memory are left out\n")
        return
    folder = Path(tempfile.mkdtemp(prefix="kvfs-bench-", dir=MEMORY_SIDE))
    payload = random_memory(BLOCK)
    size, memory = blocks * BLOCK * 2 + 1024 * MIB, blocks * BLOCK * 3
    try:
        kvfs = Kvfs(folder)
        kvfs.create("memory", folder / "device", size)
        with kvfs.mounted(folder / "mnt", "--memory", str(memory), "memory") as path:
            side = Side("kvfs", path, payload)
            for _ in range(rounds):
                for threads in (1, 16):
                    side.calls.clear()
                    name = f"store 4 MiB into memory, {threads} thread{'s' if threads > 1 else ''}"
                    floor = MEMORY_FLOORS["store"] if threads > 1 else None
                    rows.add(name, "GB/s", side.store(range(blocks), threads) / 1e9, floor=floor)
                    if threads == 1:
                        _calls(rows, name, side)
                    side.calls.clear()
                    name = f"load 4 MiB from memory, {threads} thread{'s' if threads > 1 else ''}"
                    floor = MEMORY_FLOORS["load"] if threads > 1 else None
                    rows.add(name, "GB/s", side.load(range(blocks), threads) / 1e9, floor=floor)
                    if threads == 1:
                        _calls(rows, name, side)
                    side.clear()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _takes_direct_io(folder: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True
