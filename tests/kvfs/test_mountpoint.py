from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kvfs import mountpoint
from kvfs.errors import (
    AllowOtherRefused,
    MountFailed,
    MountPointBusy,
    MountPointMissing,
    MountPointUnusable,
    NoFuse,
    UnmountBusy,
)

INFO = (
    b"21 1 0:20 / /proc rw,nosuid - proc proc rw\n"
    b"40 21 0:52 / /mnt/kv rw,nosuid,nodev master:3 - fuse.kvfs kvfs:hot rw,user_id=0\n"
    b"41 21 0:53 / /mnt/a\\040b\\134c\xc3\xbc rw - ext4 /dev/vda1 rw\n"
    b"42 40 0:54 / /mnt/kv rw - tmpfs none rw\n"
)


def test_mountinfo_is_read_with_its_escapes() -> None:
    entries = list(mountpoint.parse_mountinfo(INFO))
    assert entries[1] == mountpoint.MountEntry("/mnt/kv", "fuse.kvfs", "kvfs:hot", "0:52")
    assert entries[2].mount_point == "/mnt/a b\\cü"


@pytest.fixture
def info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mountinfo"
    path.write_bytes(INFO)
    monkeypatch.setattr(mountpoint, "_MOUNTINFO", path)
    return path


def test_the_topmost_mount_counts(info: Path) -> None:
    there = mountpoint.mounted_at("/mnt/kv")
    assert there is not None
    assert there.fstype == "tmpfs"
    assert mountpoint.mounted_at("/mnt") is None


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    mountpoint.check_mount_point(str(tmp_path))


def test_a_missing_directory_a_file_and_a_full_directory_will_not(tmp_path: Path) -> None:
    with pytest.raises(MountPointMissing, match="make it with 'mkdir"):
        mountpoint.check_mount_point(str(tmp_path / "no"))
    (tmp_path / "file").touch()
    with pytest.raises(MountPointUnusable, match="not a directory"):
        mountpoint.check_mount_point(str(tmp_path / "file"))
    with pytest.raises(MountPointUnusable, match="not empty"):
        mountpoint.check_mount_point(str(tmp_path))


def test_a_mount_of_ours_is_busy(tmp_path: Path, info: Path) -> None:
    info.write_bytes(b"40 21 0:52 / %b rw - fuse.kvfs kvfs:hot rw\n" % os.fsencode(tmp_path))
    with pytest.raises(MountPointBusy, match="already a mount of kvfs:hot; unmount it with 'kvfs umount"):
        mountpoint.check_mount_point(str(tmp_path))


def test_without_the_fuse_device_there_is_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoint, "DEV_FUSE", tmp_path / "fuse")
    with pytest.raises(NoFuse, match="modprobe fuse"):
        mountpoint.check_fuse(allow_other=False)
    (tmp_path / "fuse").symlink_to(tmp_path)
    with pytest.raises(NoFuse, match="cannot be opened"):
        mountpoint.check_fuse(allow_other=False)


def test_what_other_users_than_root_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fuse").touch()
    conf = tmp_path / "fuse.conf"
    monkeypatch.setattr(mountpoint, "DEV_FUSE", tmp_path / "fuse")
    monkeypatch.setattr(mountpoint, "FUSE_CONF", conf)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoFuse, match="package fuse3"):
        mountpoint.check_fuse(allow_other=False)
    (tmp_path / "fusermount3").touch(mode=0o755)
    mountpoint.check_fuse(allow_other=False)
    with pytest.raises(AllowOtherRefused, match="user_allow_other"):
        mountpoint.check_fuse(allow_other=True)
    conf.write_text("#user_allow_other\n")
    with pytest.raises(AllowOtherRefused):
        mountpoint.check_fuse(allow_other=True)
    conf.write_text("mount_max = 10\nuser_allow_other\n")
    mountpoint.check_fuse(allow_other=True)


def test_holders_are_found_by_their_files(tmp_path: Path) -> None:
    assert mountpoint.holders(str(tmp_path)) == []
    with (
        (tmp_path / "file").open("w") as file,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as cat,
    ):
        assert mountpoint.holders(str(tmp_path)) == [mountpoint.Holder(cat.pid, "cat")]
        assert mountpoint.holders(str(tmp_path / "f")) == []
        refused = mountpoint.unmount_refused(str(tmp_path), "umount: target is busy.\n")
        assert isinstance(refused, UnmountBusy)
        assert f"in use by cat (process {cat.pid}); close" in str(refused)
        cat.communicate()


def test_other_refusals_are_passed_on_in_one_line() -> None:
    refused = mountpoint.unmount_refused("/mnt/kv", "umount: /mnt/kv:\n must be superuser\n")
    assert type(refused) is MountFailed
    assert str(refused) == "/mnt/kv: cannot be unmounted: umount: /mnt/kv: must be superuser"


def test_the_right_program_unmounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert mountpoint.unmount_command("/m", lazy=False) == ["umount", "--", "/m"]
    assert mountpoint.unmount_command("/m", lazy=True) == ["umount", "-l", "--", "/m"]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert mountpoint.unmount_command("/m", lazy=False) == ["fusermount3", "-u", "--", "/m"]
    assert mountpoint.unmount_command("/m", lazy=True) == ["fusermount3", "-u", "-z", "--", "/m"]
