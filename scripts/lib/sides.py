"""A directory in which a benchmark stores and loads files, as engines do, and takes the time of each call."""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import cast

MIB = 1 << 20
BLOCK = 4 * MIB
LARGE = 16 * MIB


def random_memory(size: int) -> mmap.mmap:
    """Page-aligned memory full of random bytes."""
    memory = mmap.mmap(-1, size)
    memory[:] = os.urandom(size)
    return memory


_own = threading.local()


def _buffer() -> memoryview:
    """Memory of this thread to load into, used again and again as engines do: fresh pages cost more than a load."""
    if not hasattr(_own, "buffer"):
        _own.buffer = memoryview(mmap.mmap(-1, LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        _own.buffer[:] = bytes(LARGE)
    return cast("memoryview", _own.buffer)


class Side:
    """One of the directories.

    :param payload: what is stored, of which smaller files take the beginning
    :param synchronous: end buffered stores with fdatasync: what is closed here is not yet on the disk
    :ivar calls: seconds of each call by its name, gathered since it was emptied
    """

    def __init__(self, name: str, folder: Path, payload: mmap.mmap, *, synchronous: bool = False) -> None:
        self.name = name
        self.folder = folder
        self.calls: defaultdict[str, list[float]] = defaultdict(list)
        self._payload = memoryview(payload)
        self._synchronous = synchronous

    def store(self, numbers: range, threads: int, *, size: int = BLOCK, flags: int = os.O_DIRECT) -> float:
        """Store files: a temporary one, one write, a rename. Returns bytes a second."""

        def one(number: int) -> None:
            draft, final = self.folder / f"{number}.tmp", self.folder / f"{number}.bin"
            with self._time("open"):
                handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | flags, 0o644)
            try:
                with self._time("write"):
                    written = os.write(handle, self._payload[:size])
                if written != size:
                    raise OSError("short write")
                if self._synchronous and not flags & os.O_DIRECT:
                    os.fdatasync(handle)
            finally:
                with self._time("close"):
                    os.close(handle)
            with self._time("rename"):
                draft.rename(final)

        return size * len(numbers) / _timed(one, numbers, threads)

    def load(self, numbers: range, threads: int, *, size: int = BLOCK, flags: int = os.O_DIRECT) -> float:
        """Load files that were stored, each with one read. Returns bytes a second."""

        def one(number: int) -> None:
            with self._time("open"):
                handle = os.open(self.folder / f"{number}.bin", os.O_RDONLY | flags)
            try:
                buffer = _buffer()[:size]
                with self._time("read"):
                    length = os.readv(handle, [buffer])
                if length != size or buffer[-8:] != self._payload[size - 8 : size]:
                    raise OSError("wrong bytes")
            finally:
                with self._time("close"):
                    os.close(handle)

        return size * len(numbers) / _timed(one, numbers, threads)

    def forget(self, numbers: range) -> None:
        """Drop what the page cache has of these files."""
        for number in numbers:
            handle = os.open(self.folder / f"{number}.bin", os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)

    def missing(self, names: int = 200) -> float:
        """Seconds to find that a name, which nobody asked for before, is not there."""
        begun = time.perf_counter()
        for _ in range(names):
            os.access(self.folder / secrets.token_hex(8), os.F_OK)
        return (time.perf_counter() - begun) / names

    def clear(self) -> None:
        """Remove every file."""
        for path in self.folder.iterdir():
            path.unlink()

    @contextmanager
    def _time(self, call: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.calls[call].append(time.perf_counter() - begun)


def _timed(work: Callable[[int], None], numbers: range, threads: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        ready = threading.Barrier(threads)
        list(pool.map(lambda _: (_buffer(), ready.wait()), range(threads)))  # before the clock starts
        begun = time.perf_counter()
        list(pool.map(work, numbers))
        return time.perf_counter() - begun


class RawFile:
    """A file of the disk, every byte of it written, read and written at random places past the page cache."""

    def __init__(self, path: Path, payload: mmap.mmap, blocks: int) -> None:
        self._payload = memoryview(payload)[:BLOCK]
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
        os.posix_fallocate(self._fd, 0, blocks * BLOCK)
        self.blocks = blocks
        self.write(threads=1)

    def write(self, threads: int) -> float:
        """Bytes a second of writes of 4 MiB."""
        return BLOCK * self.blocks / _timed(self._write, range(self.blocks), threads)

    def read(self, threads: int) -> float:
        """Bytes a second of reads of 4 MiB."""
        return BLOCK * self.blocks / _timed(self._read, range(self.blocks), threads)

    def page(self) -> float:
        """Seconds to write a page of 4 KiB, in place."""
        page = self._payload[:4096]
        return _timed(
            lambda n: self._all(os.pwrite(self._fd, page, n * BLOCK), 4096), range(self.blocks), 1
        ) / (self.blocks)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, number: int) -> None:
        self._all(os.pwrite(self._fd, self._payload, number * BLOCK), BLOCK)

    def _read(self, number: int) -> None:
        self._all(os.preadv(self._fd, [_buffer()[:BLOCK]], number * BLOCK), BLOCK)

    @staticmethod
    def _all(done: int, size: int) -> None:
        if done != size:
            raise OSError("short transfer")
