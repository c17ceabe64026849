"""How a mount begins and ends, and what is there when it begins again."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
import trio

from kvfs.errors import MountPointBusy, MountPointMissing, MountPointUnusable
from kvfs.fuse.mount import MountOptions, serve
from tests.e2e.helpers import fails, names, some_bytes
from tests.e2e.serving import EXTENT, served

pytestmark = pytest.mark.fuse


def test_what_was_stored_is_there_again(tmp_path):
    data = some_bytes(EXTENT + 99)
    with served(tmp_path) as mount:
        (mount.path / "a" / "b").mkdir(parents=True)
        (mount.path / "a" / "b" / "f").write_bytes(data)
        os.setxattr(mount.path / "a" / "b" / "f", "user.x", b"1")
        (mount.path / "link").symlink_to("a/b/f")
        (mount.path / "a").rename(mount.path / "c")
        mount.path.chmod(0o750)
    with served(tmp_path) as mount:
        assert (mount.path / "c" / "b" / "f").read_bytes() == data
        assert os.getxattr(mount.path / "c" / "b" / "f", "user.x") == b"1"
        assert (mount.path / "link").is_symlink()
        assert names(mount.path) == {"c", "link"}
        assert mount.path.stat().st_mode & 0o777 == 0o750


def test_a_stop_publishes_what_is_being_written(tmp_path):
    with served(tmp_path) as mount:
        file = (mount.path / "f").open("wb", buffering=0)
        file.write(b"as far as it went")
        mount.stop()
        with fails(errno.ENOTCONN):
            file.write(b"too late")
        with fails(errno.ENOTCONN):
            file.close()
    with served(tmp_path) as mount:
        assert (mount.path / "f").read_bytes() == b"as far as it went"


def test_after_a_kill_all_that_was_closed_is_there(tmp_path):
    with served(tmp_path) as mount:
        for number in range(20):
            (mount.path / f"{number}.tmp").write_bytes(some_bytes(100_000, number))
            (mount.path / f"{number}.tmp").rename(mount.path / f"{number}")
        unfinished = (mount.path / "unfinished").open("wb", buffering=0)
        unfinished.write(b"x" * 100_000)
        mount.kill()
        with fails(errno.ENOTCONN):
            unfinished.close()
        with fails(errno.ENOTCONN):
            names(mount.path)
    with served(tmp_path) as mount:
        assert names(mount.path) == {str(number) for number in range(20)}
        for number in range(20):
            assert (mount.path / f"{number}").read_bytes() == some_bytes(100_000, number)


def test_a_dead_mount_is_taken_away(tmp_path):
    with served(tmp_path) as mount:
        mount.kill()
        with served(tmp_path) as again:
            assert names(again.path) == set()


def test_an_unmount_from_outside_ends_it(tmp_path):
    with served(tmp_path) as mount:
        (mount.path / "f").write_bytes(b"1")
        subprocess.run(["fusermount3", "-u", mount.path], check=True)
        assert mount.process.wait(30) == 0
    assert not (tmp_path / "mnt").is_mount()


def test_an_unmount_is_refused_while_files_are_open(tmp_path):
    with served(tmp_path) as mount:
        with (mount.path / "f").open("wb"):
            assert subprocess.run(["fusermount3", "-u", "-q", mount.path], check=False).returncode != 0
        assert mount.path.is_mount()


class TestMountPoint:
    async def attempt(self, path: Path) -> None:
        await serve(None, None, path, MountOptions(), ready=lambda _: None)  # type: ignore[arg-type]

    async def test_missing(self, tmp_path):
        with pytest.raises(MountPointMissing):
            await self.attempt(tmp_path / "none")

    async def test_not_a_directory(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(MountPointUnusable):
            await self.attempt(tmp_path / "file")

    async def test_not_empty(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(MountPointUnusable):
            await self.attempt(tmp_path)

    async def test_busy(self, tmp_path):
        with served(tmp_path) as mount, pytest.raises(MountPointBusy):
            await self.attempt(mount.path)


async def test_a_cancelled_mount_is_gone(tmp_path):
    """In one process: cancellation, as an embedding program would end it."""
    from tests.e2e.serving import Setup, serve_fresh

    ready = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_fresh, tmp_path, Setup(), lambda _: ready.set())
        await ready.wait()
        path = tmp_path / "mnt"
        await trio.to_thread.run_sync((path / "f").write_bytes, b"1")
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "mnt").is_mount()
