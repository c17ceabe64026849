"""Readers and writers of one name: who sees which version."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.helpers import fails, names, some_bytes
from tests.e2e.serving import EXTENT, Setup, served
from tests.e2e.syscalls import mapped

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("kvfs"), Setup(whole_limit=2 * EXTENT)) as mount:
        yield mount.path


@pytest.fixture
def folder(volume: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = volume / request.node.name
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("extents", [1, 2, 3], ids=lambda extents: f"{extents}-extents")
def test_an_old_reader_sees_old_bytes_throughout(folder, extents):
    """Half its pages are cached while a writer reopens the file, writes and closes it."""
    path = folder / "f"
    old, new = some_bytes(extents * EXTENT, 1), some_bytes(extents * EXTENT, 2)
    path.write_bytes(old)
    with path.open("rb", buffering=0) as reader:
        half = len(old) // 2
        assert os.pread(reader.fileno(), half, 0) == old[:half]
        with path.open("r+b", buffering=0) as writer:
            assert os.pwrite(writer.fileno(), new[:half], 0) == half
            assert os.pread(reader.fileno(), len(old), 0) == old
            assert os.pread(writer.fileno(), len(old), 0) == new[:half] + old[half:]
            with path.open("rb", buffering=0) as between:
                assert os.pread(between.fileno(), len(old), 0) == old
            assert os.pwrite(writer.fileno(), new[half:], half) == len(new) - half
        assert os.pread(reader.fileno(), len(old), 0) == old
        assert path.read_bytes() == new
        assert os.pread(reader.fileno(), len(old), 0) == old
        assert os.fstat(reader.fileno()).st_size == len(old)


@pytest.mark.parametrize("extents", [1, 3], ids=lambda extents: f"{extents}-extents")
def test_versions_that_share_extents(folder, extents):
    """Each version changes a few bytes; a reader of each sees its own, in whatever order they read."""
    path = folder / "f"
    content = bytearray(some_bytes(extents * EXTENT - 999))
    path.write_bytes(content)
    readers = [(path.open("rb", buffering=0), bytes(content))]
    for step in range(4):
        at = step * len(content) // 4
        with path.open("r+b", buffering=0) as writer:
            os.pwrite(writer.fileno(), b"step", at)
        content[at : at + 4] = b"step"
        readers.append((path.open("rb", buffering=0), bytes(content)))
    random.Random(5).shuffle(readers)
    for reader, expected in readers:
        with reader:
            assert os.pread(reader.fileno(), len(expected), 0) == expected


def test_what_is_published_by_fsync_is_seen_and_later_writes_are_not(folder):
    path = folder / "f"
    with path.open("wb", buffering=0) as writer:
        writer.write(b"1111")
        os.fsync(writer.fileno())
        os.pwrite(writer.fileno(), b"2", 0)
        assert path.read_bytes() == b"1111"
        assert os.fstat(writer.fileno()).st_size == 4
        os.pwrite(writer.fileno(), b"22222", 0)
        assert os.fstat(writer.fileno()).st_size == 5
        assert path.stat().st_size == 4
        os.fsync(writer.fileno())
        assert path.read_bytes() == b"22222"
    assert path.read_bytes() == b"22222"


def test_truncating_open_is_seen_only_when_closed(folder):
    path = folder / "f"
    path.write_bytes(b"old")
    with path.open("wb", buffering=0) as writer:
        assert path.read_bytes() == b"old"
        writer.write(b"new one")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new one"


def test_rename_over_a_file_that_others_read(folder):
    data = [some_bytes(EXTENT + 10_000, seed) for seed in range(5)]
    path = folder / "f"
    readers = []
    for content in data:
        (folder / "tmp").write_bytes(content)
        (folder / "tmp").rename(path)
        readers.append(path.open("rb", buffering=0))
    for reader, content in zip(readers, data, strict=True):
        with reader:
            assert os.pread(reader.fileno(), len(content), 0) == content
            assert Path(f"/proc/self/fd/{reader.fileno()}").read_bytes() == content
    assert path.read_bytes() == data[-1]


def test_a_writer_of_a_file_that_is_replaced_goes_on_alone(folder):
    path = folder / "f"
    path.write_bytes(b"first")
    with path.open("r+b", buffering=0) as writer:
        writer.write(b"F")
        (folder / "tmp").write_bytes(b"second")
        (folder / "tmp").rename(path)
        os.pwrite(writer.fileno(), b"X", 4)
        os.fsync(writer.fileno())
        assert os.pread(writer.fileno(), 9, 0) == b"FirsX"
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"second"


def test_reopening_through_proc(folder):
    """An open that has no name to look up is served, whatever it asks for."""
    path = folder / "f"
    path.write_bytes(b"0123456789")
    with path.open("rb", buffering=0) as reader:
        link = Path(f"/proc/self/fd/{reader.fileno()}")
        assert link.read_bytes() == b"0123456789"
        with link.open("r+b", buffering=0) as writer:
            writer.write(b"ab")
            assert os.pread(writer.fileno(), 10, 0) == b"ab23456789"
            assert os.pread(reader.fileno(), 10, 0) == b"0123456789"
        assert path.read_bytes() == b"ab23456789"
        assert link.read_bytes() == b"0123456789"
    with path.open("r+b", buffering=0) as writer:
        writer.write(b"xy")
        assert Path(f"/proc/self/fd/{writer.fileno()}").read_bytes() == b"xy23456789"
        with Path(f"/proc/self/fd/{writer.fileno()}").open("r+b", buffering=0) as again:
            assert again.read() == b"xy23456789"


def test_an_old_mapping_keeps_its_bytes(folder):
    path = folder / "f"
    old = some_bytes(EXTENT)
    path.write_bytes(old)
    with path.open("r+b", buffering=0) as file, mapped(file.fileno(), len(old)) as mapping:
        with path.open("r+b", buffering=0) as other:
            os.pwrite(other.fileno(), b"other", 0)  # shares the draft, as on any file system
            assert mapping.load(0, 5) == b"other"
        (folder / "tmp").write_bytes(b"replaced")
        (folder / "tmp").rename(path)
        assert mapping.load(5, len(old)) == old[5:]
        assert path.read_bytes() == b"replaced"


def test_readers_never_see_a_mixture(folder):
    """Threads that read while others rewrite and replace: every read is one whole version, and there always is one."""
    path = folder / "f"
    length = EXTENT + 4096
    path.write_bytes(bytes([0]) * length)
    stop = threading.Event()

    def read() -> int:
        count = 0
        while not stop.is_set():
            data = path.read_bytes()
            assert len(data) == length
            assert data == data[:1] * length
            count += 1
        return count

    def rewrite() -> None:
        for value in range(1, 12):
            if value % 3:
                with path.open("r+b", buffering=0) as file:
                    for start in range(0, length, EXTENT // 2):
                        os.pwrite(file.fileno(), bytes([value]) * min(EXTENT // 2, length - start), start)
            else:
                (folder / "tmp").write_bytes(bytes([value]) * length)
                (folder / "tmp").rename(path)

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            pool.submit(rewrite).result()
        finally:
            stop.set()
        assert all(reader.result() > 0 for reader in readers)
    assert path.read_bytes() == bytes([11]) * length


def test_many_openers_at_once(folder):
    """More than there are frames; every one reads all of its file while the others have theirs open."""
    count, length = 64, 300_000
    for number in range(count):
        (folder / f"{number}").write_bytes(some_bytes(length, number))
    everybody = threading.Barrier(count)

    def use(number: int) -> None:
        with (folder / f"{number}").open("rb", buffering=0) as file:
            everybody.wait(30)
            assert os.pread(file.fileno(), length, 0) == some_bytes(length, number)
            everybody.wait(30)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(use, range(count)))


def test_many_writers_at_once(folder):
    """More half-written files than there are frames."""
    count, length = 24, 1_000_000
    everybody = threading.Barrier(count)

    def use(number: int) -> None:
        data = some_bytes(length, number)
        with (folder / f"{number}.tmp").open("wb", buffering=0) as file:
            file.write(data[:1000])
            everybody.wait(30)
            file.write(data[1000:])
            everybody.wait(30)
        (folder / f"{number}.tmp").rename(folder / f"{number}")

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(use, range(count)))
    for number in range(count):
        assert (folder / f"{number}").read_bytes() == some_bytes(length, number)


def test_no_room(tmp_path):
    """The second request of a file runs out of space: nothing of it is ever seen, and every later call says so."""
    with served(tmp_path, Setup(device_mib=40, region_mib=8)) as mount:
        pinned = []
        with fails(errno.ENOSPC):
            for number in range(1000):
                path = mount.path / f"held-{number}"
                path.write_bytes(some_bytes(EXTENT, number))
                pinned.append(path.open("rb"))
        assert len(pinned) >= 3
        pinned.pop().close()
        held = {path.name for path in mount.path.iterdir()} - {
            f"held-{len(pinned)}",
            f"held-{len(pinned) + 1}",
        }
        path = mount.path / "tmp"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        assert os.write(descriptor, some_bytes(EXTENT)) == EXTENT
        with fails(errno.ENOSPC):
            os.write(descriptor, b"one byte too many")
        for call in (lambda: os.write(descriptor, b"x"), lambda: os.fsync(descriptor)):
            with fails(errno.ENOSPC):
                call()
        with fails(errno.ENOSPC):
            path.rename(mount.path / "final")
        with fails(errno.ENOSPC):
            os.close(descriptor)
        there = names(mount.path)
        assert not {"tmp", "final"} & there
        assert held <= there
        for file in pinned:
            assert len(file.read()) == EXTENT
            file.close()
        (mount.path / "later").write_bytes(some_bytes(EXTENT))
        assert (mount.path / "later").read_bytes() == some_bytes(EXTENT)


def test_evicted_files_are_misses(tmp_path):
    with served(tmp_path, Setup(device_mib=40, region_mib=8)) as mount:
        for number in range(40):
            (mount.path / f"{number}").write_bytes(some_bytes(EXTENT, number))
        there = names(mount.path)
        assert "39" in there
        assert "0" not in there
        with fails(errno.ENOENT):
            (mount.path / "0").read_bytes()
        assert not (mount.path / "0").exists()
        for name in there:
            assert (mount.path / name).read_bytes() == some_bytes(EXTENT, int(name))


def test_evicted_files_that_the_kernel_remembers_are_made_again(tmp_path):
    """An open that may make a file never fails because the file was evicted a moment ago."""
    with served(tmp_path, Setup(device_mib=48, region_mib=8)) as mount:
        for seed in range(3):
            for number in range(30):
                (mount.path / f"{number:02}").write_bytes(some_bytes(EXTENT, seed))
        assert (mount.path / "29").read_bytes() == some_bytes(EXTENT, 2)
        assert not (mount.path / "00").exists()
