"""Names: look-ups, listings, starting with many files, and what each file costs in memory and in the catalogue.

The pools are forged (scripts/lib/forge.py): to store a million files through a mount takes half an hour. There is no
baseline: the bars are what engines need.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import trio

from blockdev.catalogs import catalog_folder
from blockdev.file_device import open_file_device
from blockdev.opening import OpenOptions, open_pool
from blockdev.superblocks import read_superblock
from scripts.lib.forge import Folder, device_size, file_name, forge
from scripts.lib.mounts import Kvfs
from scripts.lib.sides import BLOCK, Side, random_memory

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

FEW = 1000
MANY = 100_000
VERY_MANY = 1_000_000
THREADS = 8
LATER = 20
"""Times that each name is asked for once the kernel knows it."""
SAMPLE = 500
"""Names for each measurement of look-ups that the kernel cannot answer."""
MEMORY = "64MiB"
POOL = "forged"


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    sizes = (MANY,) if options.quick else (MANY, VERY_MANY)
    rounds = 2 if options.quick else 5
    folder = Path(tempfile.mkdtemp(prefix="kvfs-bench-", dir=options.folder))
    try:
        _requests(rows, folder / "requests")
        for files in sizes:
            forged = _Forged(rows, folder / f"{files}", files)
            forged.open(rounds)
            if files == sizes[-1]:
                forged.names(rounds)
                forged.listings()
            shutil.rmtree(folder / f"{files}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Forged:
    """A pool with one directory of a thousand files and one of very many."""

    def __init__(self, rows: Rows, folder: Path, files: int) -> None:
        folder.mkdir()
        self._rows = rows
        self._files = files
        self._many = files - FEW
        self._kvfs = Kvfs(folder)
        self._mount = folder / "mnt"
        self._device = folder / "device"
        self._kvfs.create(POOL, self._device, device_size(files))
        forge(self._device, [Folder("few", FEW), Folder("many", self._many)])

    def open(self, rounds: int) -> None:
        """Open the pool: first all is read from media, then the catalogue is believed."""
        bars = {"media": 10.0, "the catalogue": 1.0} if self._files == MANY else {}
        for source in ("media", *["the catalogue"] * rounds):
            seconds = trio.run(_open, self._device, self._kvfs.pool_folder(POOL))
            name = f"open {self._files:,} files from {source}"
            self._rows.add(name, "s", seconds, ceiling=bars.get(source))
        size = _catalogue_bytes(catalog_folder(self._kvfs.pool_folder(POOL), 0)) / self._files
        self._rows.add(f"catalogue, for each of {self._files:,} files", "bytes", size, ceiling=600)

    def names(self, rounds: int) -> None:
        """Look-ups that reach us, and those that the kernel answers."""
        for number in range(rounds):
            with self._kvfs.mounted(self._mount, "--memory", MEMORY, POOL) as path:
                (path / "few").stat(), (path / "many").stat()
                rng = random.Random(number)
                there = [path / "many" / file_name(i) for i in rng.sample(range(self._many), 4 * SAMPLE)]
                few = [path / "few" / file_name(i) for i in rng.sample(range(FEW), SAMPLE)]
                absent = [path / "many" / file_name(VERY_MANY + i) for i in range(4 * SAMPLE)]
                self._compare(few, there[:SAMPLE])
                self._accesses("there", there[SAMPLE:])
                self._accesses("not there", absent)

    def _compare(self, few: Sequence[Path], many: Sequence[Path]) -> None:
        """By the median of single look-ups in turns: whatever else the machine does meets both."""
        seconds: tuple[list[float], list[float]] = [], []
        for pair in zip(few, many, strict=True):
            for path, taken in zip(pair, seconds, strict=True):
                begun = time.perf_counter()
                os.access(path, os.F_OK)
                taken.append(time.perf_counter() - begun)
        among_few, among_many = map(statistics.median, seconds)
        self._rows.add("look-up, 1 thread", "µs", among_many * 1e6)
        name = f"look-up among {self._many:,} names, against one among {FEW:,}"
        self._rows.add(name, "ratio", among_many / among_few, ceiling=1.25)

    def _accesses(self, what: str, paths: Sequence[Path]) -> None:
        names = [os.fsencode(path) for path in paths]
        first, later = _accesses(names, 1), _accesses(names, LATER)
        self._rows.add(f"first access() of names {what}, {THREADS} threads", "1/s", first, floor=3000)
        self._rows.add(f"later access() of names {what}, {THREADS} threads", "1/s", later, floor=100_000)

    def listings(self) -> None:
        """List a huge directory, after which the kernel knows every file in it."""
        bare = self._bare_memory()
        with self._kvfs.mounted(self._mount, "--memory", MEMORY, POOL) as path:
            for when in ("first", "again"):
                begun = time.perf_counter()
                with os.scandir(path / "many") as entries:
                    count = sum(1 for _ in entries)
                rate = count / (time.perf_counter() - begun)
                if count != self._many:
                    raise OSError(f"{count} entries")
                self._rows.add(f"scandir of {self._many:,} files, {when}", "1/s", rate, floor=60_000)
            grown = self._kvfs.memory(POOL) - bare
            self._rows.add(
                f"memory, for each of {self._files:,} files that the kernel knows",
                "bytes",
                grown / self._files,
                ceiling=1024,
            )

    def _bare_memory(self) -> int:
        """Of a mount of nothing."""
        folder = self._mount.parent / "empty"
        folder.mkdir()
        kvfs = Kvfs(folder)
        kvfs.create(POOL, folder / "device", device_size(0))
        with kvfs.mounted(folder / "mnt", "--memory", MEMORY, POOL) as path:
            os.listdir(path)  # noqa: PTH208
            return kvfs.memory(POOL)


async def _open(device: Path, folder: Path) -> float:
    """Seconds to open a pool."""
    opened = await open_file_device(device)
    options = OpenOptions((await read_superblock(opened)).domain)
    begun = time.perf_counter()
    async with open_pool([opened], folder, options):
        return time.perf_counter() - begun


def _accesses(names: Sequence[bytes], times: int) -> float:
    """access() of every name so many times, by several threads; how many a second."""
    parts = [names[number::THREADS] for number in range(THREADS)]

    def work(part: Sequence[bytes]) -> None:
        for _ in range(times):
            for name in part:
                os.access(name, os.F_OK)

    with ThreadPoolExecutor(THREADS) as pool:
        begun = time.perf_counter()
        list(pool.map(work, parts))
        return len(names) * times / (time.perf_counter() - begun)


def _catalogue_bytes(folder: Path) -> int:
    """Bytes of the pages that tables occupy: without those that are free for what comes next."""
    with lmdb.open(str(folder), readonly=True, lock=False, max_dbs=8) as environment:
        names = [bytes(key) for key, _ in environment.begin().cursor()]
        tables = [environment.open_db(name, create=False) for name in names]
        with environment.begin() as transaction:
            stats = [transaction.stat(table) for table in tables]
    return sum(s["psize"] * (s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"]) for s in stats)


def _requests(rows: Rows, folder: Path) -> None:
    """How many requests the kernel makes of a store and of a load, as vLLM's do them."""
    folder.mkdir()
    kvfs = Kvfs(folder)
    kvfs.create(POOL, folder / "device", 512 << 20)
    few = range(20)
    with kvfs.mounted(folder / "mnt", "--memory", "256MiB", POOL) as path:
        side = Side("kvfs", path, random_memory(BLOCK))
        side.store(range(1000, 1001), 1)  # whatever is asked for once
        measured = (("store", side.store, 10), ("first load", side.load, 5), ("later load", side.load, 4))
        for what, work, ceiling in measured:
            before = kvfs.requests(path)
            work(few, 1)
            count = (kvfs.requests(path) - before) / len(few)
            rows.add(f"requests of a {what} of 4 MiB", "count", count, ceiling=ceiling)
