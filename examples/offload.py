#!/usr/bin/env python3
"""What an engine does to the mount, without an engine: stores KV blocks as files, looks them up, loads them back.

The files are laid out and written as vLLM's `fs` tier does it: 64-hex names in 4096 × 256 directories, a temporary
file opened with O_DIRECT, one write of the whole block, a rename; a look-up is one access(2) a block; a load is one
O_DIRECT read. Block N always has the same name and the same bytes, so a later process can tell right from wrong.

    python examples/offload.py /mnt/kv/engine store 0 1024
    python examples/offload.py /mnt/kv/engine load 0 1024
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import mmap
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
BLOCK_SIZE = 4 * MIB
THREADS = 4
ERRORS_SHOWN = 3


class Blocks:
    """The KV blocks of an imaginary model: for each number a name and content that follow from it."""

    def __init__(self, root: Path, size: int = BLOCK_SIZE) -> None:
        """:param size: bytes of a block, a multiple of the page size"""
        self.size = size
        self._root = root / "demo_model_5f1c0a7be2d4_r0"
        noise = random.Random(0).randbytes(size)
        self._noise = memoryview(noise + noise)

    def key(self, number: int) -> bytes:
        return hashlib.sha256(b"block %d" % number).digest()

    def path(self, number: int) -> Path:
        name = self.key(number).hex()
        return self._root / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"

    def content(self, number: int) -> Iterator[bytes | memoryview]:
        """Its bytes, in pieces: the key, then noise rotated by a distance of its own, so that no part of a block
        is right in the place of another's."""
        key = self.key(number)
        start = int.from_bytes(key[:8], "little") % self.size
        yield key
        yield self._noise[start : start + self.size - len(key)]

    def fill(self, number: int, buffer: mmap.mmap) -> None:
        """Make the block in `buffer`."""
        at = 0
        for piece in self.content(number):
            buffer[at : at + len(piece)] = bytes(piece) if len(piece) < mmap.PAGESIZE else piece
            at += len(piece)

    def is_in(self, number: int, buffer: mmap.mmap) -> bool:
        """Whether `buffer` holds the block, every byte of it."""
        at = 0
        for piece in self.content(number):
            if buffer[at : at + len(piece)] != piece:
                return False
            at += len(piece)
        return True


@dataclass
class Outcome:
    """What became of a batch of blocks."""

    done: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    corrupt: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds else 0.0


class Engine:
    """Stores and loads blocks with a few threads, one block at a time each, as the engines do."""

    def __init__(self, blocks: Blocks, threads: int = THREADS) -> None:
        self._blocks = blocks
        self._threads = threads
        self._local = threading.local()

    def store(self, numbers: Iterable[int]) -> Outcome:
        """Write what is not there yet. Blocks that are there count as missed work, not as bytes."""
        return self._run(self._store, numbers)

    def load(self, numbers: Iterable[int]) -> Outcome:
        """Read and compare: `done` was right, `missed` was absent, `corrupt` was wrong."""
        return self._run(self._load, numbers)

    def present(self, numbers: Iterable[int]) -> list[int]:
        """Look-ups, one access(2) each."""
        return [number for number in numbers if os.access(self._blocks.path(number), os.F_OK)]

    def _run(self, work: Callable[[int, Outcome], None], numbers: Iterable[int]) -> Outcome:
        outcome = Outcome()

        def one(number: int) -> None:
            try:
                work(number, outcome)
            except OSError as error:
                outcome.errors.append(f"block {number}: {error.strerror}")

        begun = time.monotonic()
        with ThreadPoolExecutor(self._threads) as pool:
            for _ in pool.map(one, numbers):
                pass
        outcome.seconds = time.monotonic() - begun
        outcome.bytes = len(outcome.done) * self._blocks.size
        for several in (outcome.done, outcome.missed, outcome.corrupt):
            several.sort()
        return outcome

    def _store(self, number: int, outcome: Outcome) -> None:
        path = self._blocks.path(number)
        if path.exists():
            outcome.missed.append(number)
            return
        buffer = self._buffer()
        self._blocks.fill(number, buffer)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}_{secrets.token_hex(4)}.tmp")
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_DIRECT) as file:
            written = os.write(file, buffer)
        if written != self._blocks.size:
            outcome.errors.append(f"block {number}: short write of {written} bytes")
            return
        temporary.rename(path)
        outcome.done.append(number)

    def _load(self, number: int, outcome: Outcome) -> None:
        buffer = self._buffer()
        try:
            with opened(self._blocks.path(number), os.O_RDONLY | os.O_DIRECT) as file:
                length = os.readv(file, [buffer])
        except FileNotFoundError:
            outcome.missed.append(number)
            return
        right = length == self._blocks.size and self._blocks.is_in(number, buffer)
        (outcome.done if right else outcome.corrupt).append(number)

    def _buffer(self) -> mmap.mmap:
        """This thread's, page-aligned as O_DIRECT wants it, and reused: a fresh one costs more than the I/O."""
        if not hasattr(self._local, "buffer"):
            self._local.buffer = mmap.mmap(-1, self._blocks.size)
        buffer: mmap.mmap = self._local.buffer
        return buffer


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def main() -> int:
    parser = argparse.ArgumentParser(description="Store or load KV blocks as vLLM's fs tier does.")
    parser.add_argument("root", type=Path, help="directory in the mount")
    parser.add_argument("verb", choices=["store", "load"])
    parser.add_argument("first", type=int, help="number of the first block")
    parser.add_argument("count", type=int, help="how many")
    parser.add_argument("--block-size", type=int, default=BLOCK_SIZE, metavar="BYTES")
    parser.add_argument("--threads", type=int, default=THREADS)
    arguments = parser.parse_args()
    engine = Engine(Blocks(arguments.root, arguments.block_size), arguments.threads)
    numbers = range(arguments.first, arguments.first + arguments.count)
    outcome = engine.store(numbers) if arguments.verb == "store" else engine.load(numbers)
    done, missed = ("stored", "there already") if arguments.verb == "store" else ("loaded", "missed")
    print(
        f"{len(outcome.done)} {done}, {len(outcome.missed)} {missed}, {len(outcome.corrupt)} corrupt; "
        f"{outcome.seconds:.2f} s, {outcome.rate / 1e9:.2f} GB/s"
    )
    for error in itertools.islice(outcome.errors, ERRORS_SHOWN):
        print(error, file=sys.stderr)
    return 1 if outcome.corrupt or outcome.errors else 0


if __name__ == "__main__":
    sys.exit(main())
