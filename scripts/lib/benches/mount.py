"""A mount against a plain directory of the same disk: the same calls with the same flags, in turns.

A store is what engines do: an O_DIRECT temporary file, one write, a rename. A cold load finds neither side's bytes in
memory: O_DIRECT on the plain directory, a DRAM tier of a few extents under the mount.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

MIB = 1 << 20
BLOCK = 4 * MIB
MEMORY = "96MiB"


class Side:
    """One of the two directories, and how its rounds went."""

    def __init__(self, folder: Path, payload: mmap.mmap) -> None:
        self.folder = folder
        self.payload = memoryview(payload)

    def store(self, numbers: range, threads: int) -> float:
        """Seconds to store the blocks of these numbers."""
        return _timed(self._store, numbers, threads)

    def load(self, numbers: range, threads: int, *, flags: int = os.O_DIRECT) -> float:
        return _timed(lambda n: self._load(n, flags), numbers, threads)

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def _store(self, number: int) -> None:
        draft, final = self.folder / f"{number}.tmp", self.folder / f"{number}.bin"
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT, 0o644)
        try:
            if os.write(handle, self.payload) != BLOCK:
                raise OSError("short write")
        finally:
            os.close(handle)
        draft.rename(final)

    def _load(self, number: int, flags: int) -> None:
        handle = os.open(self.folder / f"{number}.bin", os.O_RDONLY | flags)
        try:
            with mmap.mmap(-1, BLOCK) as buffer:
                if os.readv(handle, [buffer]) != BLOCK or buffer[-8:] != self.payload[-8:]:
                    raise OSError("wrong bytes")
        finally:
            os.close(handle)


def _timed(work: Callable[[int], None], numbers: range, threads: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: None, range(threads)))  # threads exist before the clock starts
        begun = time.perf_counter()
        list(pool.map(work, numbers))
        return time.perf_counter() - begun


@contextmanager
def mounted(folder: Path, size: str, *options: str) -> Iterator[Path]:
    """An embedded pool in `folder`, mounted."""
    mount_point, state = folder / "mnt", folder / "state"
    mount_point.mkdir()
    command = [sys.executable, "-m", "kvfs", "--state-dir", str(state)]
    subprocess.run([*command, "mount", "--size", size, *options, str(mount_point)], check=True)
    try:
        yield mount_point
    finally:
        subprocess.run([*command, "umount", str(mount_point)], check=False)


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    blocks = 48 if options.quick else 256
    rounds = 2 if options.quick else 5
    folder = Path(tempfile.mkdtemp(prefix="kvfs-bench-", dir=options.folder))
    payload = mmap.mmap(-1, BLOCK)
    payload[:] = os.urandom(BLOCK)
    try:
        (folder / "plain").mkdir()
        size = f"{blocks * 4 * 3 // 2 + 1024}MiB"
        with mounted(folder, size, "--memory", MEMORY) as mount_point:
            for number in range(rounds):
                _round(rows, Side(folder / "plain", payload), Side(mount_point, payload), blocks, number)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _round(rows: Rows, plain: Side, ours: Side, blocks: int, number: int) -> None:
    sides = (plain, ours) if number % 2 else (ours, plain)  # neither side always goes first
    for threads in (1, 16):
        few = range(min(blocks, 64) if threads == 1 else blocks)  # more than twice the DRAM tier: cold
        _compare(
            rows,
            f"store of 4 MiB, O_DIRECT, {threads} threads",
            len(few),
            [s.store(few, threads) for s in sides],
            sides,
            ours,
        )
        _compare(
            rows,
            f"cold load of 4 MiB, O_DIRECT, {threads} threads",
            len(few),
            [s.load(few, threads) for s in sides],
            sides,
            ours,
        )
        if threads == 1:
            warm = range(min(8, len(few)))
            for side in sides:
                side.load(warm, 1, flags=0)
            _compare(
                rows,
                "warm buffered load of 4 MiB, 1 thread",
                len(warm),
                [s.load(warm, 1, flags=0) for s in sides],
                sides,
                ours,
            )
        for side in sides:
            side.clear()


def _compare(
    rows: Rows, name: str, blocks: int, seconds: list[float], sides: tuple[Side, Side], ours: Side
) -> None:
    took = dict(zip((side is ours for side in sides), seconds, strict=True))
    rows.add(f"{name}: kvfs", "GB/s", blocks * BLOCK / took[True] / 1e9)
    rows.add(f"{name}: plain directory", "GB/s", blocks * BLOCK / took[False] / 1e9)
    rows.add(name, "ratio", took[False] / took[True])
