"""Random use of the mount: one file against a model, and many threads whose files prove themselves."""

from __future__ import annotations

import hashlib
import math
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from blockdev.types import MIB
from tests.e2e.serving import Setup, served
from tests.e2e.syscalls import mapped

pytestmark = pytest.mark.fuse

LARGEST = 7 * MIB
LONG = 850.0


class OneFile:
    """A file that is open all the time, and what it should hold."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self.model = bytearray()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.readers: list[tuple[IO[bytes], bytes]] = []
        self.renames = 0

    def _some(self, least: int, most: int) -> int:
        return int(math.exp(self.rng.uniform(math.log(least), math.log(most))))

    def _store(self, offset: int, data: bytes) -> None:
        self.model.extend(bytes(max(0, offset - len(self.model))))
        self.model[offset : offset + len(data)] = data

    def write(self) -> None:
        offset, data = self.rng.randrange(LARGEST), self.rng.randbytes(self._some(1, 3 * MIB))
        assert os.pwrite(self.descriptor, data, offset) == len(data)
        self._store(offset, data)

    def write_direct(self) -> None:
        offset, data = self.rng.randrange(LARGEST), self.rng.randbytes(self._some(1, MIB))
        descriptor = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        assert os.pwrite(descriptor, data, offset) == len(data)
        os.close(descriptor)
        self._store(offset, data)

    def append(self) -> None:
        data = self.rng.randbytes(self._some(1, 5000))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, data)
        os.close(descriptor)
        self.model.extend(data)

    def read(self) -> None:
        offset, length = self.rng.randrange(LARGEST), self._some(1, 3 * MIB)
        assert os.pread(self.descriptor, length, offset) == self.model[offset : offset + length]

    def truncate(self) -> None:
        size = self.rng.randrange(LARGEST)
        os.ftruncate(self.descriptor, size)
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))

    def truncating_open(self) -> None:
        if self.rng.random() < 0.3:
            os.close(os.open(self.path, os.O_WRONLY | os.O_TRUNC))
            self.model.clear()

    def sync(self) -> None:
        os.fsync(self.descriptor)
        assert self.path.read_bytes() == self.model

    def close_a_duplicate(self) -> None:
        os.close(os.dup(self.descriptor))
        assert self.path.read_bytes() == self.model

    def reopen(self) -> None:
        os.close(self.descriptor)
        assert self.path.stat().st_size == len(self.model)
        assert self.path.read_bytes() == self.model
        self.descriptor = os.open(self.path, os.O_RDWR)

    def rename(self) -> None:
        self.renames += 1
        target = self.path.with_name(f"renamed-{self.renames}")
        if self.rng.random() < 0.5:
            target.write_bytes(b"victim")
        self.path.rename(target)
        self.path = target
        assert self.path.read_bytes() == self.model

    def store_through_a_mapping(self) -> None:
        if not self.model:
            return
        with mapped(self.descriptor, len(self.model)) as mapping:
            offset = self.rng.randrange(len(self.model))
            data = self.rng.randbytes(min(len(self.model) - offset, self._some(1, 100_000)))
            mapping.store(offset, data)
            assert os.fstat(self.descriptor).st_size == len(self.model)
            assert mapping.load(offset, offset + len(data)) == data
        self._store(offset, data)
        assert os.pread(self.descriptor, len(self.model) + 1, 0) == self.model

    def load_through_a_mapping(self) -> None:
        if self.model:
            with mapped(self.descriptor, len(self.model)) as mapping:
                assert mapping.load(0, len(self.model)) == self.model

    def keep_a_version(self) -> None:
        """Open what is published now, or read what was opened so long ago."""
        if len(self.readers) < 3:
            os.fsync(self.descriptor)
            self.readers.append((self.path.open("rb", buffering=0), bytes(self.model)))
        else:
            self._read_old(self.rng.randrange(3))

    def _read_old(self, number: int) -> None:
        file, expected = self.readers.pop(number)
        with file:
            assert file.read() == expected

    def close(self) -> None:
        os.close(self.descriptor)
        while self.readers:
            self._read_old(0)
        assert self.path.read_bytes() == self.model


def use_one_file(file: OneFile, steps: int) -> None:
    rare = [
        file.append,
        file.truncate,
        file.truncating_open,
        file.sync,
        file.close_a_duplicate,
        file.reopen,
        file.rename,
        file.store_through_a_mapping,
        file.load_through_a_mapping,
        file.keep_a_version,
    ]
    for _ in range(steps):
        file.rng.choice([*[file.write, file.write_direct, file.read] * 3, *rare])()
    file.close()


@pytest.mark.parametrize(
    "steps", [120, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_one_file(tmp_path, steps):
    with served(tmp_path, Setup(device_mib=256, frames=6, whole_limit=4 * MIB), LONG) as mount:
        file = OneFile(mount.path / "f", random.Random(steps))
        use_one_file(file, steps)
    with served(tmp_path, Setup()) as mount:
        assert (mount.path / file.path.name).read_bytes() == file.model


def proving(rng: random.Random) -> bytes:
    """Content from which it can be told whether it is whole."""
    body = rng.randbytes(int(2 ** rng.uniform(3, 22)))
    return hashlib.sha256(body).digest() + body


def assert_whole(data: bytes) -> None:
    assert data == b"" or hashlib.sha256(data[32:]).digest() == data[:32]


class Worker:
    """One of many who use the same few names."""

    rewriting = threading.Lock()
    """Two who write to one file at a time make a mixture, as anywhere, and moving it publishes what has arrived."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        self.rng = random.Random(number)

    def _any(self) -> Path:
        return self.folder / f"name-{self.rng.randrange(12)}"

    def store(self) -> None:
        temporary = self.folder / f"temporary-{self.number}"
        temporary.write_bytes(proving(self.rng))
        temporary.rename(self._any())

    def read(self) -> None:
        assert_whole(self._any().read_bytes())

    def read_direct(self) -> None:
        descriptor = os.open(self._any(), os.O_RDONLY | os.O_DIRECT)
        try:
            size, data = os.fstat(descriptor).st_size, b""
            while len(data) < size:
                piece = os.pread(descriptor, MIB, len(data))
                assert piece
                data += piece
            assert_whole(data)
        finally:
            os.close(descriptor)

    def rewrite(self) -> None:
        data = proving(self.rng)
        with self.rewriting, self._any().open("r+b", buffering=0) as file:
            file.truncate(0)
            file.write(data[:1000])
            file.write(data[1000:])

    def truncate(self) -> None:
        with self.rewriting:
            os.close(os.open(self._any(), os.O_WRONLY | os.O_TRUNC))

    def unlink(self) -> None:
        self._any().unlink()

    def rename(self) -> None:
        with self.rewriting:
            self._any().rename(self._any())

    def list(self) -> None:
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                path.stat()

    def attribute(self) -> None:
        os.setxattr(self._any(), "user.a", self.rng.randbytes(20))

    def directory(self) -> None:
        one, two = self.folder / f"one-{self.number}", self.folder / f"two-{self.number}"
        one.mkdir()
        (one / "f").write_bytes(b"")
        one.rename(two)
        (two / "f").unlink()
        two.rmdir()

    def run(self, steps: int) -> None:
        ways: list[Callable[[], None]] = [
            *[self.store] * 3,
            *[self.read] * 5,
            self.read_direct,
            self.rewrite,
            self.truncate,
            self.unlink,
            self.rename,
            self.list,
            self.attribute,
            self.directory,
        ]
        for _ in range(steps):
            with suppress(FileNotFoundError):  # somebody else removed or evicted it
                self.rng.choice(ways)()


@pytest.mark.parametrize(
    "steps", [60, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_many_threads(tmp_path, steps):
    setup = Setup(device_mib=400, frames=6, whole_limit=4 * MIB)
    with served(tmp_path, setup, LONG) as mount:
        workers = [Worker(mount.path, number) for number in range(8)]
        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(lambda worker: worker.run(steps), workers))
        kept = {path.name: path.read_bytes() for path in mount.path.iterdir()}
        for data in kept.values():
            assert_whole(data)
    with served(tmp_path, setup) as mount:
        assert {path.name: path.read_bytes() for path in mount.path.iterdir()} == kept
