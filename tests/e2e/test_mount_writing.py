"""Writing: every way in which bytes get into a file, and when they are published."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.helpers import fails, names, some_bytes
from tests.e2e.serving import EXTENT, Setup, served
from tests.e2e.syscalls import fallocate, mapped

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("kvfs"), Setup()) as mount:
        yield mount.path


@pytest.fixture
def folder(volume: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = volume / request.node.name
    folder.mkdir()
    yield folder
    for path in folder.iterdir():
        path.unlink()


def page_aligned(length: int, seed: int = 0) -> mmap.mmap:
    buffer = mmap.mmap(-1, length)
    buffer.write(some_bytes(length, seed))
    return buffer


@pytest.mark.parametrize(
    "length", [0, 1, 2000, 4096, 65536, 65537, 600_000, EXTENT - 1, EXTENT, EXTENT + 1, 5 * EXTENT // 2]
)
def test_any_length_comes_back(folder, length):
    data = some_bytes(length)
    (folder / "tmp").write_bytes(data)
    (folder / "tmp").rename(folder / "block")
    assert (folder / "block").stat().st_size == length
    assert (folder / "block").read_bytes() == data


@pytest.mark.parametrize("chunk", [4096, 100_001, EXTENT + 4096])
def test_writes_in_any_order(folder, chunk):
    data = some_bytes(2 * EXTENT + 5000)
    starts = list(range(0, len(data), chunk))
    random.Random(1).shuffle(starts)
    descriptor = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    for start in starts:
        piece = data[start : start + chunk]
        assert os.pwrite(descriptor, piece, start) == len(piece)
    assert os.pread(descriptor, len(data), 0) == data
    os.close(descriptor)
    assert (folder / "f").read_bytes() == data


@pytest.mark.parametrize("how", ["open", "fcntl"])
def test_direct_io(folder, how):
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    descriptor = os.open(folder / "f", flags | (os.O_DIRECT if how == "open" else 0), 0o644)
    if how == "fcntl":
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    data = page_aligned(EXTENT + 8192)
    assert os.pwrite(descriptor, data, 0) == len(data)
    into = mmap.mmap(-1, len(data))
    assert os.preadv(descriptor, [into], 0) == len(data)
    assert into[:] == data[:]
    os.close(descriptor)
    assert (folder / "f").read_bytes() == data[:]


def test_unaligned_direct_io(folder):
    descriptor = os.open(folder / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    data = some_bytes(10_001)
    assert os.pwrite(descriptor, data, 3) == len(data)
    assert os.pread(descriptor, 1000, 7) == data[4:1004]
    os.close(descriptor)
    assert (folder / "f").read_bytes() == b"\0\0\0" + data


def test_append(folder):
    path = folder / "f"
    for piece in (b"one", b"two"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, piece)
        os.write(descriptor, piece)
        os.close(descriptor)
    assert path.read_bytes() == b"oneonetwotwo"


def test_synchronous_writes(folder):
    descriptor = os.open(folder / "f", os.O_WRONLY | os.O_CREAT | os.O_SYNC)
    os.write(descriptor, b"1")
    assert (folder / "f").read_bytes() == b"1"
    os.write(descriptor, b"2")
    os.close(descriptor)
    assert (folder / "f").read_bytes() == b"12"


def test_truncation(folder):
    path = folder / "f"
    data = some_bytes(EXTENT + 1000)
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(EXTENT + 10)
        file.truncate(EXTENT + 100)
        assert file.read() == data[: EXTENT + 10] + bytes(90)
    assert path.read_bytes() == data[: EXTENT + 10] + bytes(90)
    os.truncate(path, 100)
    assert path.stat().st_size == 100
    assert path.read_bytes() == data[:100]
    os.truncate(path, 3 * EXTENT)
    assert path.read_bytes() == data[:100] + bytes(3 * EXTENT - 100)
    path.open("wb").close()
    assert path.read_bytes() == b""


def test_truncating_what_is_being_written(folder):
    with (folder / "f").open("w+b") as file:
        file.write(b"a" * 10_000)
        file.flush()
        file.truncate(5000)
        file.seek(7000)
        file.write(b"b")
        file.seek(0)
        assert file.read() == b"a" * 5000 + bytes(2000) + b"b"
    assert (folder / "f").read_bytes() == b"a" * 5000 + bytes(2000) + b"b"


def test_a_sparse_file_of_a_tebibyte(tmp_path):
    with served(tmp_path, Setup(device_mib=240, region_mib=34, extent="MIB16", frames=6)) as mount:
        use_a_tebibyte(mount.path / "slab")


def use_a_tebibyte(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 1 << 40)
    data = some_bytes(100_000)
    places = [0, (1 << 39) + 12345, (1 << 40) - len(data)]
    for place in places:
        assert os.pwrite(descriptor, data, place) == len(data)
    os.fsync(descriptor)
    for place in places:
        assert os.pread(descriptor, len(data), place) == data
    assert os.pread(descriptor, 10, 1 << 35) == bytes(10)
    os.pwrite(descriptor, b"again", 1 << 39)
    os.close(descriptor)
    assert path.stat().st_size == 1 << 40
    assert path.stat().st_blocks * 512 < 80 << 20
    with path.open("rb") as file:
        assert os.pread(file.fileno(), 5, 1 << 39) == b"again"
        assert os.pread(file.fileno(), len(data), places[1]) == data
        assert os.pread(file.fileno(), 2 * len(data), places[2]) == data


def test_a_slab_is_overwritten_in_place(folder):
    """Sixteen slots over two extents, overwritten in random order, with a version published now and then."""
    slot, slots = EXTENT // 8, 16
    descriptor = os.open(folder / "slab", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.ftruncate(descriptor, slot * slots)
    expected = [bytes(slot)] * slots
    rng = random.Random(3)
    for step in range(60):
        index = rng.randrange(slots)
        data = page_aligned(slot, seed=step)
        os.pwrite(descriptor, data, index * slot)
        expected[index] = data[:]
        if step % 7 == 0:
            os.fsync(descriptor)
        probe = rng.randrange(slots)
        assert os.pread(descriptor, slot, probe * slot) == expected[probe]
    os.close(descriptor)
    assert (folder / "slab").read_bytes() == b"".join(expected)


def test_a_duplicate_that_is_closed_early(folder):
    descriptor = os.open(folder / "f", os.O_WRONLY | os.O_CREAT)
    duplicate = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC)
    os.write(duplicate, b"first")
    os.close(duplicate)
    assert (folder / "f").read_bytes() == b"first"
    os.write(descriptor, b"second")
    assert (folder / "f").read_bytes() == b"first"
    os.close(descriptor)
    assert (folder / "f").read_bytes() == b"firstsecond"


def test_fork_with_a_half_written_file(folder):
    data = some_bytes(EXTENT + 7)
    descriptor = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, data[:1000])
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.write(descriptor, data[1000:])
    assert os.pread(descriptor, len(data), 0) == data
    os.close(descriptor)
    assert (folder / "f").read_bytes() == data


def test_rename_of_a_file_that_is_still_open(folder):
    data = some_bytes(EXTENT + 70_000)
    descriptor = os.open(folder / "tmp", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, len(data))
    os.write(descriptor, data[:100])
    os.write(descriptor, data[100:])
    (folder / "tmp").rename(folder / "final")
    assert (folder / "final").read_bytes() == data
    os.pwrite(descriptor, b"late", 0)
    os.close(descriptor)
    assert (folder / "final").read_bytes() == b"late" + data[4:]
    assert names(folder) == {"final"}


def test_rename_of_an_open_file_over_another(folder):
    (folder / "final").write_bytes(b"old")
    with (folder / "final").open("rb") as reader, (folder / "tmp").open("wb") as writer:
        writer.write(b"new")
        writer.flush()
        os.fsync(writer.fileno())
        writer.write(b"er")
        writer.flush()
        (folder / "tmp").rename(folder / "final")
        assert reader.read() == b"old"
        assert (folder / "final").read_bytes() == b"newer"
    assert names(folder) == {"final"}


def test_stores_through_a_mapping(folder):
    length = 3 * 4096
    descriptor = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, length)
    with mapped(descriptor, length) as mapping:
        mapping.store(0, b"early")
        os.close(descriptor)
        assert (folder / "f").read_bytes()[:5] == b"early"
        (folder / "f").rename(folder / "g")
        mapping.store(4096, b"late")
    data = (folder / "g").read_bytes()
    assert data[:5] == b"early"
    assert data[4096:4100] == b"late"
    assert len(data) == length


def test_reading_through_a_mapping(folder):
    data = some_bytes(EXTENT + 5000)
    (folder / "f").write_bytes(data)
    with (folder / "f").open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    assert view[:] == data
    view.close()


def test_what_is_not_offered_fails_cleanly(folder):
    descriptor = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    with fails(errno.EOPNOTSUPP):
        fallocate(descriptor, 4096)
    with fails(errno.ENOTTY):
        fcntl.ioctl(descriptor, termios.TCGETS, bytes(64))
    os.close(descriptor)


def test_a_write_open_that_writes_nothing_publishes_nothing(folder):
    path = folder / "f"
    path.write_bytes(b"1")
    before = path.stat()
    with path.open("r+b") as file:
        assert file.read() == b"1"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.read_bytes() == b"1"


def test_two_writers_share_a_file(folder):
    path = folder / "f"
    with path.open("wb") as one, path.open("r+b") as two:
        one.write(b"aaaa")
        one.flush()
        two.seek(2)
        two.write(b"bb")
        two.flush()
        assert os.pread(two.fileno(), 10, 0) == b"aabb"
    assert path.read_bytes() == b"aabb"


def test_copy_range(folder):
    (folder / "a").write_bytes(some_bytes(100_000))
    with (folder / "a").open("rb") as source, (folder / "b").open("wb") as target:
        left = 100_000
        while left:
            left -= os.copy_file_range(source.fileno(), target.fileno(), left)
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
