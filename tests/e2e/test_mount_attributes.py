"""What stat, statvfs and user attributes say, and how they are changed."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.helpers import fails, some_bytes
from tests.e2e.serving import EXTENT, Setup, served
from tests.e2e.syscalls import UTIME_NOW, UTIME_OMIT, utimensat

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


def test_stat_of_a_file(folder):
    before = time.time_ns()
    path = folder / "f"
    path.write_bytes(some_bytes(EXTENT + 1))
    found = path.stat()
    assert found.st_size == EXTENT + 1
    assert found.st_blksize == EXTENT
    assert found.st_blocks == -(-(EXTENT + 1) // 512)
    assert found.st_nlink == 1
    assert before <= found.st_mtime_ns <= time.time_ns()
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
    assert stat.S_ISREG(found.st_mode)
    assert path.stat().st_mtime_ns == found.st_mtime_ns


def test_stat_of_directories(volume, folder):
    assert volume.stat().st_mode == stat.S_IFDIR | 0o700
    assert volume.stat().st_uid == os.geteuid()
    assert folder.stat().st_nlink == 2
    before = folder.stat().st_mtime_ns
    (folder / "f").write_bytes(b"")
    assert folder.stat().st_mtime_ns >= before


def test_modes_and_owners(folder):
    path = folder / "f"
    path.touch(0o600)
    path.chmod(0o640)
    os.chown(path, 1000, 1001)
    found = path.stat()
    assert (found.st_mode, found.st_uid, found.st_gid) == (stat.S_IFREG | 0o640, 1000, 1001)
    folder.chmod(0o750)
    os.chown(folder, 1000, 1001)
    found = folder.stat()
    assert (found.st_mode, found.st_uid, found.st_gid) == (stat.S_IFDIR | 0o750, 1000, 1001)


def test_the_umask_counts(folder):
    before = os.umask(0o027)
    try:
        (folder / "f").touch(0o666)
        (folder / "d").mkdir(0o777)
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "f").stat().st_mode) == 0o640
    assert stat.S_IMODE((folder / "d").stat().st_mode) == 0o750


def test_the_group_is_inherited_where_a_directory_says_so(folder):
    os.chown(folder, -1, 1234)
    folder.chmod(0o2770)
    (folder / "f").touch()
    (folder / "d").mkdir()
    assert (folder / "f").stat().st_gid == 1234
    assert (folder / "d").stat().st_gid == 1234
    assert (folder / "d").stat().st_mode & stat.S_ISGID


def test_attributes_of_what_is_being_written_are_published(folder):
    path = folder / "f"
    with path.open("wb") as file:
        file.write(b"1")
        os.fchmod(file.fileno(), 0o604)
        os.fchown(file.fileno(), 7, 8)
        os.setxattr(path, "user.crc", b"\x01\x02")
        file.flush()
        os.utime(file.fileno(), ns=(1_000_000_001, 2_000_000_002))
        assert os.fstat(file.fileno()).st_mtime_ns == 2_000_000_002
    found = path.stat()
    assert (found.st_mode, found.st_uid, found.st_gid) == (stat.S_IFREG | 0o604, 7, 8)
    assert found.st_mtime_ns == 2_000_000_002
    assert os.getxattr(path, "user.crc") == b"\x01\x02"


def test_changing_the_mode_by_name_while_somebody_writes(folder):
    path = folder / "f"
    path.write_bytes(b"old")
    with path.open("r+b", buffering=0) as file:
        file.write(b"new")
        path.chmod(0o600)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_times(folder):
    path = folder / "f"
    path.write_bytes(b"1")
    os.utime(path, ns=(5, 6_000_000_000))
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (5, 6_000_000_000)
    utimensat(path, UTIME_NOW, UTIME_OMIT)
    assert path.stat().st_mtime_ns == 6_000_000_000
    assert path.stat().st_atime_ns > 6_000_000_000
    path.touch()
    assert path.stat().st_mtime_ns > 6_000_000_000
    os.utime(folder, ns=(5, 6_000_000_000))
    assert folder.stat().st_mtime_ns == 6_000_000_000


def test_user_attributes(folder):
    path = folder / "f"
    path.write_bytes(b"1")
    for name in ("user.a", "user.b"):
        os.setxattr(path, name, name.encode() * 10)
    assert sorted(os.listxattr(path)) == ["user.a", "user.b"]
    assert os.getxattr(path, "user.a") == b"user.a" * 10
    with fails(errno.EEXIST):
        os.setxattr(path, "user.a", b"", os.XATTR_CREATE)
    with fails(errno.ENODATA):
        os.setxattr(path, "user.c", b"", os.XATTR_REPLACE)
    os.removexattr(path, "user.a")
    with fails(errno.ENODATA):
        os.removexattr(path, "user.a")
    with fails(errno.ENODATA):
        os.getxattr(path, "user.a")
    with fails(errno.EOPNOTSUPP):
        os.setxattr(path, "trusted.a", b"")
    with fails(errno.ENOSPC):
        os.setxattr(path, "user.large", bytes(5000))
    path.rename(folder / "g")
    assert os.listxattr(folder / "g") == ["user.b"]
    os.setxattr(folder, "user.d", b"1")
    assert os.getxattr(folder, "user.d") == b"1"


def test_user_attributes_of_a_temporary_file(folder):
    with (folder / "tmp").open("wb") as file:
        file.write(b"x" * 5000)
        os.setxattr(folder / "tmp", "user.vllm.kv_crc32c", b"1234")
        with fails(errno.ENOSPC):
            os.setxattr(folder / "tmp", "user.large", bytes(5000))
    (folder / "tmp").rename(folder / "f")
    assert os.getxattr(folder / "f", "user.vllm.kv_crc32c") == b"1234"


def test_statvfs(volume, folder):
    before = os.statvfs(volume)
    assert before.f_bsize == before.f_frsize == 4096
    assert before.f_namemax == 255
    assert before.f_blocks * 4096 > 64 << 20
    assert before.f_bavail == before.f_bfree
    descriptor = os.open(folder / "f", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"1")
    assert os.statvfs(volume).f_bfree == before.f_bfree - EXTENT // 4096
    os.close(descriptor)
    assert os.statvfs(volume).f_bfree == before.f_bfree  # what can be evicted is free
    assert before.f_flag & os.ST_NOSUID
    assert before.f_flag & os.ST_NODEV


def test_the_mount_is_tuned(volume):
    device = volume.stat().st_dev
    bdi = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    connection = Path(f"/sys/fs/fuse/connections/{os.minor(device)}")
    if not os.access(bdi, os.W_OK):
        pytest.skip("not root: the settings cannot be changed")
    assert int(bdi.read_text()) == 16384
    assert int((connection / "max_background").read_text()) == 128


def test_the_root_directory_can_be_changed(volume):
    volume.chmod(0o711)
    os.utime(volume, ns=(1, 2))
    assert stat.S_IMODE(volume.stat().st_mode) == 0o711
    volume.chmod(0o700)
