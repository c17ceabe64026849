from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kvfs.errors import ConfigError, UnknownPool
from kvfs.state import MountRecord, StateDirectory, check_pool_name, default_root, write_atomically


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


def test_a_mount_is_found_by_its_directory(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    folder = state.folder("hot")
    folder.create()
    assert folder.read_record() is None
    record = MountRecord(17, "/mnt/kv", 1.5)
    folder.write_record(record)
    assert folder.read_record() == record
    assert state.mounted_on("/mnt/kv") == folder
    assert state.mounted_on("/mnt") is None
    folder.forget_mount()
    folder.forget_mount()
    assert state.mounted_on("/mnt/kv") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "x", "mount_point": "/", "started": 0}'])
def test_what_is_no_record_is_ignored(tmp_path: Path, text: str) -> None:
    folder = StateDirectory(tmp_path).folder("hot")
    folder.create()
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
