from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from kvfs.errors import ConfigError, MountPointBusy, UnknownPool
from kvfs.state import (
    MountFolder,
    MountRecord,
    PoolFolder,
    StateDirectory,
    check_pool_name,
    default_root,
    write_atomically,
)


def test_the_state_directory_is_chosen_by_environment_and_user() -> None:
    assert default_root({"KVFS_STATE_DIR": "/x"}, 0) == Path("/x")
    assert default_root({"KVFS_STATE_DIR": "x"}, 0) == Path.cwd() / "x"
    assert default_root({}, 0) == Path("/var/lib/kvfs")
    assert default_root({"XDG_STATE_HOME": "/s", "HOME": "/h"}, 1000) == Path("/s/kvfs")
    assert default_root({"HOME": "/h"}, 1000) == Path("/h/.local/state/kvfs")


@pytest.mark.parametrize("name", ["a", "0", "hot-1.x_Y", "a" * 64])
def test_pool_names_that_will_do(name: str) -> None:
    assert check_pool_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "a\n", "ü", "a" * 65, ".hidden"])
def test_pool_names_that_will_not(name: str) -> None:
    with pytest.raises(ConfigError, match="is not usable"):
        check_pool_name(name)


def test_only_folders_with_a_configuration_are_pools(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    assert list(state) == []
    for name in ("b", "a", "c"):
        state.folder(name).create()
        if name != "c":
            state.folder(name).config.touch()
    assert [folder.name for folder in state] == ["a", "b"]
    assert stat.S_IMODE(state.folder("a").path.stat().st_mode) == 0o700
    assert state.known("a").path == tmp_path / "state" / "a"
    with pytest.raises(UnknownPool, match=r"no pool 'c' in .*; known pools: a, b"):
        state.known("c")


def a_mount(root: Path, mount_point: str = "/mnt/kv", pool: str = "hot") -> MountFolder:
    folder = StateDirectory(root).folder(pool).mount(mount_point)
    folder.create()
    return folder


def test_mounts_are_found_by_their_directory(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    one, other = a_mount(tmp_path), a_mount(tmp_path, "/mnt/other")
    assert one.read_record() is None
    record = MountRecord(17, "/mnt/kv", 1.5)
    one.write_record(record)
    other.write_record(MountRecord(18, "/mnt/other", 2.5))
    assert one.read_record() == record
    assert state.mounted_on("/mnt/kv") == [one]
    assert state.mounted_on("/mnt") == []
    assert set(state.folder("hot").mounts()) == {one, other}
    assert one.pool == state.folder("hot")
    one.forget()
    one.forget()
    assert state.mounted_on("/mnt/kv") == []
    assert state.folder("hot").mounts() == [other]


def test_mount_points_have_folders_of_their_own(tmp_path: Path) -> None:
    places = ["/", "/mnt/a b", "/mnt/a-b", "/srv/a-b", "/mnt/.x", "/mnt/" + "ü" * 80, "/mnt/kv", "/kv"]
    folders = [PoolFolder(tmp_path).mount(place) for place in places]
    assert len({folder.path.name for folder in folders}) == len(places)
    for folder in folders:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{,22}", folder.path.name)
    longest = PoolFolder(Path("/var/lib/kvfs") / ("p" * 42)).mount("/" + "m" * 80)
    assert len(str(longest.socket)) <= 107


def test_one_process_mounts_on_a_directory(tmp_path: Path) -> None:
    folder = a_mount(tmp_path)
    folder.write_record(MountRecord(17, "/mnt/kv", 1.5))
    with folder.held():
        with pytest.raises(MountPointBusy, match=r"another process mounts pool 'hot' there.*mount\.log"):
            a_mount(tmp_path).held().__enter__()
        folder.discard()
        assert folder.read_record() is not None, "somebody mounts there"
        with a_mount(tmp_path, "/mnt/other").held():
            pass
    folder.discard()
    assert folder.read_record() is None
    a_mount(tmp_path, "/mnt/never").discard()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x", "mount_point": "/", "started": 0}'])
def test_what_is_no_record_is_ignored(tmp_path: Path, text: str) -> None:
    folder = a_mount(tmp_path)
    folder.record.write_text(text)
    assert folder.read_record() is None


def test_a_failed_write_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def fail(_fd: int) -> None:
        raise OSError

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):  # noqa: PT011 (any)
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_directory_has_no_pools_but_an_error(tmp_path: Path) -> None:
    assert not list(StateDirectory(tmp_path / "missing"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        list(StateDirectory(tmp_path / "file"))
