"""Files that are opened again and again are read by the kernel itself, and nobody can tell."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from blockdev.types import MIB
from tests.e2e.helpers import LANE, fails, some_bytes
from tests.e2e.mounts import Mount

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.passthrough,
    pytest.mark.skipif(not LANE, reason="without the lane, pyfuse3 answers"),
]

SIZES = [MIB, 2 * MIB, 2 * MIB + 1, 5 * MIB + 4097]
BYTES = 64 * MIB
"""Most that copies take: a quarter of the memory that the mount has."""
VERSIONS = [bytes([number]) * 2 * MIB for number in range(8)]


@pytest.fixture
def mount(shared_mount: Mount) -> Mount:
    return shared_mount


def opens(mount: Mount) -> int:
    """That were told of a copy."""
    return int(mount.statistics()["mount.copies.opens"])


def have_copied(mount: Mount, path: Path) -> None:
    """Read a file until it is read from a copy."""
    before = opens(mount)
    for _ in range(20):
        for _ in range(20):
            path.read_bytes()
        if opens(mount) > before:
            return
    raise AssertionError(f"{path.name} is never read from a copy")


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", SIZES)
def test_every_way_to_read_finds_the_same(mount: Mount, size: int) -> None:
    data, path = some_bytes(size, size), mount.path / str(size)
    path.write_bytes(data)
    have_copied(mount, path)
    before = opens(mount)
    assert path.read_bytes() == data
    with opened(path) as fd:
        assert os.fstat(fd).st_size == size
        assert os.pread(fd, 5000, size - 100) == data[-100:]
        assert os.pread(fd, 5000, size) == b""
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == data
    memory = mmap.mmap(-1, 8 * MIB)
    with opened(path, os.O_DIRECT) as fd:
        assert os.readv(fd, [memory]) == size
        assert memory[:size] == data
    assert opens(mount) == before + 3


def test_who_has_an_old_version_open_keeps_it(mount: Mount) -> None:
    old, new = some_bytes(2 * MIB, 1), some_bytes(2 * MIB, 2)
    path, draft = mount.path / "kept", mount.path / "kept.tmp"
    path.write_bytes(old)
    have_copied(mount, path)
    with opened(path) as before:
        draft.write_bytes(new)
        draft.rename(path)
        assert path.read_bytes() == new
        assert os.pread(before, len(old), 0) == old
        have_copied(mount, path)
        with opened(path) as now:
            path.unlink()
            assert os.pread(now, len(new), 0) == new
            assert os.pread(before, len(old), 0) == old
    assert not path.exists()


def test_nobody_writes_into_a_copy(mount: Mount) -> None:
    data, path = some_bytes(2 * MIB), mount.path / "changed"
    path.write_bytes(data)
    have_copied(mount, path)
    with opened(path) as fd:
        with fails(errno.EBUSY):
            os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
        with path.open("r+b") as file:  # by its name it is a version of its own
            file.write(b"new")
        assert os.pread(fd, 3, 0) == data[:3]
    assert path.read_bytes() == b"new" + data[3:]
    os.truncate(path, MIB)
    assert path.read_bytes() == (b"new" + data[3:])[:MIB]


def test_many_who_open_what_others_replace(mount: Mount) -> None:
    """Buffered, direct and mapped, at once, while copies come and go: each open has one whole version."""
    paths = [mount.path / f"many-{number}" for number in range(40)]  # more than there is room for
    for path in paths:
        path.write_bytes(VERSIONS[0])
    for path in paths[:4]:
        have_copied(mount, path)
    before = opens(mount)
    with ThreadPoolExecutor(5) as threads:
        work = [threads.submit(read, paths, seed) for seed in range(4)]
        work.append(threads.submit(replace, paths[:3]))
        for one in work:
            one.result()
    assert opens(mount) > before
    assert 0 < int(mount.statistics()["mount.copies.bytes"]) <= BYTES


def read(paths: list[Path], seed: int) -> None:
    memory = mmap.mmap(-1, len(VERSIONS[0]))
    for number in range(400):
        how = (number + seed) % 3
        with opened(paths[number * (seed + 1) % len(paths)], os.O_DIRECT if how == 0 else 0) as fd:
            if how == 1:
                with mmap.mmap(fd, len(memory), prot=mmap.PROT_READ) as mapped:
                    memory[:] = mapped[:]
            else:
                assert os.readv(fd, [memory]) == len(memory)
        assert memory[:] == VERSIONS[memory[0]]


def replace(paths: list[Path]) -> None:
    for number in range(60):
        path = paths[number % len(paths)]
        draft = path.with_suffix(".tmp")
        draft.write_bytes(VERSIONS[number % len(VERSIONS)])
        draft.rename(path)
