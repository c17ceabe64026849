"""Reads and writes past pyfuse3: that they go there, and that nothing else can tell."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from blockdev.types import MIB
from kvfs.fuse.mount import Mount
from tests.e2e.helpers import fails, names, some_bytes
from tests.e2e.mounts import POOL
from tests.e2e.mounts import Mount as Volume
from tests.e2e.serving import EXTENT, Setup, serve_fresh, served

pytestmark = pytest.mark.fuse

WITH_LANE = Setup(lane=True, frames=24)
THREADS = 16


@pytest.fixture(scope="module", params=[True, False], ids=["lane", "plain"])
def volume(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    with served(
        tmp_path_factory.mktemp("kvfs"), Setup(lane=request.param, device_mib=768, frames=24)
    ) as mount:
        yield mount.path


@pytest.fixture
def folder(volume: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = volume / request.node.originalname
    folder.mkdir(exist_ok=True)
    yield folder
    for path in folder.iterdir():
        path.unlink()


async def counted(tmp_path: Path, work: Callable[[Path], object], setup: Setup = WITH_LANE) -> Any:
    """What a mount counted while a thread did something with it."""
    mounts: list[Mount] = []
    ready = trio.Event()

    def note(mount: Mount) -> None:
        mounts.append(mount)
        ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_fresh, tmp_path, setup, note)
        await ready.wait()
        await trio.to_thread.run_sync(work, tmp_path / "mnt")
        counts = mounts[0].statistics().lane
        nursery.cancel_scope.cancel()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvfs")]
    return counts


def store(path: Path, data: bytes, step: int = MIB) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for start in range(0, len(data), step):
        assert os.pwrite(descriptor, data[start : start + step], start) == len(data[start : start + step])
    os.close(descriptor)


async def test_what_engines_do_needs_no_waiting(tmp_path):
    data = some_bytes(EXTENT)

    def work(folder: Path) -> None:
        for number in range(5):
            store(folder / f"{number}.tmp", data)
            (folder / f"{number}.tmp").rename(folder / f"{number}")
            assert (folder / f"{number}").read_bytes() == data

    counts = await counted(tmp_path, work)
    assert counts.writes > 0
    assert counts.reads > 0
    assert (counts.slow_reads, counts.slow_writes) == (0, 0)
    assert counts.passed > 0


async def test_a_large_file_waits_once_an_extent_at_most(tmp_path):
    data = some_bytes(4 * EXTENT + 5)
    counts = await counted(tmp_path, lambda folder: store(folder / "f", data, EXTENT // 8))
    assert counts.writes > counts.slow_writes
    assert counts.slow_writes <= 4


async def test_holes_and_inline_files_are_read_without_waiting(tmp_path):
    def work(folder: Path) -> None:
        (folder / "small").write_bytes(b"small")
        with (folder / "sparse").open("wb") as file:
            file.seek(2 * EXTENT)
            file.write(b"end")
        assert (folder / "small").read_bytes() == b"small"
        assert (folder / "sparse").read_bytes() == bytes(2 * EXTENT) + b"end"

    counts = await counted(tmp_path, work)
    assert counts.slow_reads == 0


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("direct", [0, os.O_DIRECT], ids=["buffered", "direct"])
def test_parts_written_at_once_and_out_of_order(folder, direct):
    data = mmap.mmap(-1, 4 * EXTENT)
    data.write(some_bytes(4 * EXTENT, 3))
    parts = list(range(0, len(data), MIB))
    random.Random(5).shuffle(parts)
    with opened(folder / "f", os.O_RDWR | os.O_CREAT | direct) as descriptor:
        view = memoryview(data)

        def put(start: int) -> None:
            assert os.pwrite(descriptor, view[start : start + MIB], start) == MIB

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, parts))
        view.release()
    assert (folder / "f").read_bytes() == data[:]
    data.close()


def test_what_another_descriptor_writes_is_read_at_once(folder):
    data = some_bytes(EXTENT)
    with (
        opened(folder / "f", os.O_WRONLY | os.O_CREAT) as writer,
        opened(folder / "f", os.O_RDONLY | os.O_DIRECT) as reader,
    ):
        for start in range(0, EXTENT, EXTENT // 4):
            os.pwrite(writer, data[start : start + EXTENT // 4], start)
            assert os.fstat(reader).st_size == start + EXTENT // 4
            assert os.pread(reader, EXTENT, 0) == data[: start + EXTENT // 4]


def test_every_close_of_a_descriptor_publishes(folder):
    descriptor = os.open(folder / "f", os.O_WRONLY | os.O_CREAT)
    os.pwrite(descriptor, b"1" * MIB, 0)
    os.close(os.dup(descriptor))
    assert (folder / "f").read_bytes() == b"1" * MIB
    os.pwrite(descriptor, b"2" * MIB, MIB)
    child = os.fork()
    if child == 0:
        try:
            os.pwrite(descriptor, b"3" * MIB, 2 * MIB)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (folder / "f").read_bytes() == b"1" * MIB + b"2" * MIB + b"3" * MIB
    os.pwrite(descriptor, b"4" * MIB, 0)
    os.close(descriptor)
    assert (folder / "f").read_bytes() == b"4" * MIB + b"2" * MIB + b"3" * MIB


def test_mappings(folder):
    with opened(folder / "f", os.O_RDWR | os.O_CREAT) as descriptor:
        os.pwrite(descriptor, b"1" * EXTENT, 0)
        os.ftruncate(descriptor, EXTENT + 4096)
        with mmap.mmap(descriptor, EXTENT + 4096) as mapping:
            assert mapping[:4] == b"1111"
            mapping[EXTENT - 2 : EXTENT + 2] = b"abcd"
            mapping[8192:8195] = b"xyz"
    expected = bytearray(b"1" * EXTENT + bytes(4096))
    expected[EXTENT - 2 : EXTENT + 2] = b"abcd"
    expected[8192:8195] = b"xyz"
    with (
        opened(folder / "f", os.O_RDONLY) as descriptor,
        mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapping,
    ):
        assert mapping[:] == expected


def test_times_that_are_set_after_writing_stay(folder):
    with opened(folder / "f", os.O_WRONLY | os.O_CREAT) as descriptor:
        os.pwrite(descriptor, b"1" * MIB, 0)
        before = os.fstat(descriptor).st_mtime_ns
        os.pwrite(descriptor, b"2" * MIB, 0)
        assert os.fstat(descriptor).st_mtime_ns > before
        os.utime(descriptor, ns=(5, 7))
        assert os.fstat(descriptor).st_mtime_ns == 7
    assert (folder / "f").stat().st_mtime_ns == 7


def test_who_may_not_write_does_not(folder):
    (folder / "f").write_bytes(b"1")
    with opened(folder / "f", os.O_RDONLY) as descriptor, fails(errno.EBADF):
        os.pwrite(descriptor, b"2", 0)


def test_files_that_are_replaced_while_they_are_read(folder):
    """Each read of an open file is of one version, whatever happens to its name."""
    size = EXTENT
    (folder / "f").write_bytes(b"\0" * size)
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            with opened(folder / "f", os.O_RDONLY | os.O_DIRECT) as descriptor:
                data = os.pread(descriptor, size, 0)
                if len(data) != size or data.count(data[:1]) != size:
                    wrong.append((len(data), set(data)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        (folder / f"{number}.tmp").write_bytes(bytes([number]) * size)
        (folder / f"{number}.tmp").rename(folder / "f")
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


class Crowd:
    """Threads that do to their own files all that can be done, and to each other's what does not change bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong: list[object] = []

    def work(self, number: int) -> None:
        try:
            self._work(random.Random(number), number)
        except BaseException as error:
            self.wrong.append(error)
            raise

    def _work(self, rng: random.Random, number: int) -> None:
        for turn in range(6):
            path = self.folder / f"{number}.{turn}"
            model = bytearray()
            with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
                for _ in range(12):
                    self._step(rng, descriptor, model)
                if rng.random() < 0.3:
                    path.unlink()
                    self._check(os.pread(descriptor, len(model) + 1, 0), model, path)
                    continue
                other = path.with_suffix(f".{turn}x")
                path.rename(other)
                self._step(rng, descriptor, model)
                self._check(os.pread(descriptor, len(model) + 1, 0), model, other)
            self._check(other.read_bytes(), model, other)
            if rng.random() < 0.5:
                other.unlink()

    def _step(self, rng: random.Random, descriptor: int, model: bytearray) -> None:
        what = rng.random()
        at = rng.randrange(3 * EXTENT // 2)
        if what < 0.6:
            data = rng.randbytes(rng.choice([100, 4096, 300_000]))
            assert os.pwrite(descriptor, data, at) == len(data)
            model.extend(bytes(max(0, at + len(data) - len(model))))
            model[at : at + len(data)] = data
        elif what < 0.7:
            os.ftruncate(descriptor, at)
            model.extend(bytes(max(0, at - len(model))))
            del model[at:]
        elif what < 0.8:
            os.fsync(descriptor)
        elif what < 0.9:
            os.close(os.dup(descriptor))
        else:
            self._check(os.pread(descriptor, 10_000, at), model[at : at + 10_000], descriptor)
        assert os.fstat(descriptor).st_size == len(model)

    def _check(self, found: bytes, expected: bytes | bytearray, what: object) -> None:
        if found != expected:
            self.wrong.append((what, len(found), len(expected)))


def test_a_crowd(folder):
    crowd = Crowd(folder)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(crowd.work, range(THREADS)))
    assert not crowd.wrong
    assert all(path.name.endswith("x") for path in folder.iterdir())


def test_writers_that_share_a_file(folder):
    """16 threads write their own parts of one file, over and over, while others sync, cut off its end and list."""
    part = EXTENT // 8
    with opened(folder / "f", os.O_RDWR | os.O_CREAT) as descriptor:
        os.ftruncate(descriptor, THREADS * part)
        stop = threading.Event()

        def disturb() -> None:
            while not stop.is_set():
                os.fsync(descriptor)
                os.ftruncate(descriptor, (THREADS + 1) * part)
                os.ftruncate(descriptor, THREADS * part)
                names(folder)

        def write(number: int) -> bytes:
            rng = random.Random(number)
            data = b""
            for _ in range(10):
                data = rng.randbytes(part)
                for start in range(0, part, part // 4):
                    os.pwrite(descriptor, data[start : start + part // 4], number * part + start)
            return data

        other = threading.Thread(target=disturb)
        other.start()
        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(write, range(THREADS)))
        stop.set()
        other.join()
        assert os.pread(descriptor, 2 * THREADS * part, 0) == b"".join(parts)
    assert (folder / "f").read_bytes() == b"".join(parts)


def test_more_files_open_than_frames(folder):
    """Each has something prepared or in memory; nobody is refused for that. The pool is so large that none is evicted."""
    with_data = {}
    descriptors = [os.open(folder / f"{number}", os.O_WRONLY | os.O_CREAT) for number in range(60)]
    for number, descriptor in enumerate(descriptors):
        with_data[number] = some_bytes(100_000, number)
        os.pwrite(descriptor, with_data[number], 0)
    for descriptor in descriptors:
        os.close(descriptor)
    assert all((folder / f"{number}").read_bytes() == data for number, data in with_data.items())


def test_long_lists_and_many_requests_at_once(folder):
    """More answers under way than the socket to pyfuse3 would take at once."""
    for number in range(300):
        (folder / f"{number:0200}").touch()
    with ThreadPoolExecutor(64) as pool:
        lists = list(pool.map(lambda _: len(names(folder)), range(64)))
    assert lists == [300] * 64


def test_a_full_pool_refuses_the_first_write(tmp_path):
    with served(tmp_path, Setup(lane=True, device_mib=40, region_mib=8)) as mount:
        descriptors = []

        def write_to_ever_more() -> None:
            for number in range(40):
                descriptors.append(os.open(mount.path / f"{number}", os.O_WRONLY | os.O_CREAT))
                os.pwrite(descriptors[-1], bytes(4096), 0)

        with fails(errno.ENOSPC):
            write_to_ever_more()
        with fails(errno.ENOSPC):
            os.pwrite(descriptors[-1], bytes(4096), 0)
        with fails(errno.ENOSPC):
            os.close(descriptors.pop())
        for descriptor in descriptors:
            os.close(descriptor)


def test_a_stop_while_many_write(tmp_path):
    """What was closed is there; nobody hangs."""
    script = """
import json, os, sys, threading
folder = sys.argv[1]
done = []
def work(n):
    try:
        for i in range(10000):
            fd = os.open(f"{folder}/{n}.{i}", os.O_WRONLY | os.O_CREAT)
            os.write(fd, bytes([n]) * 1_000_000)
            os.close(fd)
            done.append(f"{n}.{i}")
            if len(done) == 20: print("go", flush=True)
            os.unlink(f"{folder}/{n}.{i - 3}") if i > 3 else None
            if i > 3: done.remove(f"{n}.{i - 3}")
    except OSError as error:
        pass
threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps(done))
"""
    with (
        served(tmp_path, WITH_LANE) as mount,
        subprocess.Popen([sys.executable, "-c", script, mount.path], stdout=subprocess.PIPE) as crowd,
    ):
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == b"go\n"
        mount.stop()
        done = json.loads(crowd.stdout.read())
    with served(tmp_path, WITH_LANE) as mount:
        there = names(mount.path)
        assert there.issuperset(done)
        for name in done:
            assert set((mount.path / name).read_bytes()) == {int(name.partition(".")[0])}


@pytest.mark.parametrize("options", [(), ("--no-lane",)], ids=["default", "no-lane"])
def test_the_command_says_whether_there_is_a_lane(tmp_path, options):
    with closing(Volume(tmp_path)) as volume:
        volume.command("mount", *options, "--memory", "64MiB", POOL, str(volume.path))
        (volume.path / "f").write_bytes(b"1" * EXTENT)
        counted = {name: count for name, count in volume.statistics().items() if "lane" in name}
        if options:
            assert counted == {"mount.lane": "-"}
        else:
            assert int(counted["mount.lane.writes"]) > 0
