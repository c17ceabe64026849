"""Names: what is looked up, listed, made, moved and removed."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.helpers import fails, names
from tests.e2e.serving import Setup, served
from tests.e2e.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("kvfs"), Setup()) as mount:
        yield mount.path


@pytest.fixture
def folder(volume: Path, request: pytest.FixtureRequest) -> Path:
    folder = volume / str(request.node.name)
    folder.mkdir()
    return folder


def test_a_file_is_found_by_its_name_from_creation_on(folder):
    path = folder / "block"
    assert not path.exists()
    with path.open("wb") as file:
        assert path.exists()
        assert names(folder) == {"block"}
        file.write(b"x" * 10)
        file.flush()
        assert path.stat().st_size == 10
        assert path.read_bytes() == b"x" * 10
    assert path.read_bytes() == b"x" * 10


def test_an_empty_file_is_published_when_closed(folder):
    (folder / "empty").open("wb").close()
    assert (folder / "empty").read_bytes() == b""
    os.close(os.open(folder / "readonly", os.O_CREAT | os.O_RDONLY))
    assert (folder / "readonly").stat().st_size == 0


def test_exclusive_creation_refuses_what_is_there(folder):
    path = folder / "block"
    with path.open("xb"), fails(errno.EEXIST):
        path.open("xb")
    with fails(errno.EEXIST):
        path.open("xb")


def test_directories(folder):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_bytes(b"1")
    with fails(errno.EEXIST):
        (folder / "a").mkdir()
    with fails(errno.ENOTEMPTY):
        (folder / "a" / "b").rmdir()
    with fails(errno.ENOTDIR):
        (folder / "a" / "b" / "file").rmdir()
    with fails(errno.EISDIR):
        (folder / "a").unlink()
    (folder / "a" / "b" / "file").unlink()
    (folder / "a" / "b").rmdir()
    assert names(folder / "a") == set()


def test_a_directory_that_is_made_again_is_a_new_one(folder):
    """Though the pool gives it the same identity: who is in the old one stays in nothing."""
    path = folder / "d"
    path.mkdir()
    inside = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        before = path.stat().st_ino
        path.rmdir()
        path.mkdir()
        assert path.stat().st_ino != before
        (path / "f").write_bytes(b"1")
        (path / "deeper").mkdir()
        with fails(errno.ENOENT):
            os.open("g", os.O_CREAT | os.O_WRONLY, dir_fd=inside)
    finally:
        os.close(inside)
    assert names(path) == {"f", "deeper"}
    assert (path / "f").read_bytes() == b"1"


def test_a_file_being_written_keeps_its_directory(folder):
    (folder / "d").mkdir()
    with (folder / "d" / "f").open("wb"), fails(errno.ENOTEMPTY):
        (folder / "d").rmdir()
    (folder / "d" / "f").unlink()
    (folder / "d").rmdir()


def test_rename_moves_and_replaces(folder):
    (folder / "tmp").write_bytes(b"new")
    (folder / "final").write_bytes(b"old")
    (folder / "tmp").rename(folder / "final")
    assert names(folder) == {"final"}
    assert (folder / "final").read_bytes() == b"new"


def test_rename_to_itself_and_of_nothing(folder):
    (folder / "one").write_bytes(b"1")
    (folder / "one").rename(folder / "one")
    assert (folder / "one").read_bytes() == b"1"
    with fails(errno.ENOENT):
        (folder / "none").rename(folder / "other")


def test_rename_of_directories(folder):
    (folder / "a" / "sub").mkdir(parents=True)
    (folder / "a" / "sub" / "f").write_bytes(b"1")
    (folder / "b").mkdir()
    (folder / "a").rename(folder / "b")
    assert (folder / "b" / "sub" / "f").read_bytes() == b"1"
    (folder / "c").mkdir()
    with fails(errno.ENOTEMPTY):
        (folder / "c").rename(folder / "b")
    (folder / "file").write_bytes(b"")
    with fails(errno.EISDIR):
        (folder / "file").rename(folder / "b")
    with fails(errno.ENOTDIR):
        (folder / "b").rename(folder / "file")
    (folder / "d").mkdir()
    with (folder / "d" / "draft").open("wb"), fails(errno.ENOTEMPTY):
        (folder / "c").rename(folder / "d")


def test_rename_flags(folder):
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")
    with fails(errno.EEXIST):
        renameat2(folder / "a", folder / "b", RENAME_NOREPLACE)
    with fails(errno.EINVAL):
        renameat2(folder / "a", folder / "b", RENAME_EXCHANGE)
    renameat2(folder / "a", folder / "c", RENAME_NOREPLACE)
    assert names(folder) == {"b", "c"}
    with (folder / "draft").open("wb") as file:
        file.write(b"d")
        with fails(errno.EEXIST):
            renameat2(folder / "draft", folder / "b", RENAME_NOREPLACE)
        renameat2(folder / "draft", folder / "e", RENAME_NOREPLACE)
    assert (folder / "e").read_bytes() == b"d"


def test_symlinks(folder):
    (folder / "target").write_bytes(b"t")
    (folder / "link").symlink_to("target")
    assert (folder / "link").read_bytes() == b"t"
    assert (folder / "link").readlink() == Path("target")
    with fails(errno.EEXIST):
        (folder / "link").symlink_to("other")
    with fails(errno.ELOOP):
        os.open(folder / "link", os.O_RDONLY | os.O_NOFOLLOW)
    (folder / "link").rename(folder / "moved")
    assert (folder / "moved").is_symlink()
    (folder / "moved").unlink()


def test_what_there_is_not(folder):
    (folder / "f").write_bytes(b"")
    with fails(errno.EPERM):
        (folder / "hard").hardlink_to(folder / "f")
    with fails(errno.EPERM):
        os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as one, fails(errno.EPERM):
        one.bind(os.path.relpath(folder / "s"))


def test_mknod_makes_a_file(folder):
    os.mknod(folder / "f", stat.S_IFREG | 0o640)
    assert (folder / "f").stat().st_mode == stat.S_IFREG | 0o640
    with (folder / "f").open("r+b") as file:
        file.write(b"12")
    assert (folder / "f").read_bytes() == b"12"


def test_names_up_to_255_bytes(folder):
    longest = "n" * 255
    (folder / longest).write_bytes(b"1")
    assert names(folder) == {longest}
    for use in (Path.exists, Path.read_bytes, Path.mkdir):
        with fails(errno.ENAMETOOLONG):
            use(folder / (longest + "n"))
    with fails(errno.ENAMETOOLONG):
        (folder / longest).rename(folder / (longest + "n"))


def test_names_are_bytes(folder):
    name = bytes(range(1, 256)).replace(b"/", b"")[:200]
    os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    assert [os.fsencode(path.name) for path in folder.iterdir()] == [name]


def test_a_large_directory_is_listed_completely(folder):
    expected = {f"{n:05}-{'x' * (n % 40)}" for n in range(3000)}
    for name in expected:
        os.mknod(folder / name, stat.S_IFREG | 0o600)
    draft = (folder / "00500-draft").open("wb")
    assert names(folder) == expected | {"00500-draft"}
    with os.scandir(folder) as entries:
        assert all(entry.is_file() and entry.stat().st_size == 0 for entry in entries)
    draft.close()
    assert len(names(folder)) == 3001


def test_a_listing_survives_removal_of_what_it_lists(folder):
    expected = {f"{n:04}" for n in range(700)}
    for name in expected:
        os.mknod(folder / name, stat.S_IFREG | 0o600)
    seen = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            seen.add(entry.name)
            Path(entry.path).unlink()
    assert seen == expected
    assert names(folder) == set()


def test_an_unlinked_file_lives_on_in_who_has_it_open(folder):
    path = folder / "f"
    path.write_bytes(b"old")
    with path.open("rb") as reader, path.open("r+b") as writer:
        path.unlink()
        assert not path.exists()
        writer.write(b"n")
        writer.flush()
        os.fsync(writer.fileno())
        assert os.pread(writer.fileno(), 9, 0) == b"nld"
        assert reader.read() == b"old"
        assert Path(f"/proc/self/fd/{reader.fileno()}").read_bytes() == b"old"
        assert Path(f"/proc/self/fd/{writer.fileno()}").read_bytes() == b"nld"
        assert os.fstat(writer.fileno()).st_nlink == 0
    assert not path.exists()
    assert names(folder) == set()


def test_a_file_unlinked_before_it_was_closed_is_never_there(folder):
    descriptor = os.open(folder / "f", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, b"x" * 5000)
    (folder / "f").unlink()
    os.fsync(descriptor)
    os.write(descriptor, b"y")
    assert os.pread(descriptor, 6000, 0) == b"x" * 5000 + b"y"
    os.close(descriptor)
    assert names(folder) == set()


def test_a_name_is_free_again_after_unlink(folder):
    path = folder / "f"
    with path.open("wb") as first:
        first.write(b"first")
        path.unlink()
        path.write_bytes(b"second")
    assert path.read_bytes() == b"second"
