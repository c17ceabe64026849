"""`kvfs prefetch`: what is named is in memory before anybody reads it."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.e2e.mounts import Mount

pytestmark = pytest.mark.fuse
SIZE = 1 << 20


def loads(mount: Mount) -> int:
    return int(mount.statistics()["frames.misses"])


def test_files_and_directories(mount: Mount) -> None:
    folder = mount.path / "model" / "deep"
    folder.mkdir(parents=True)
    files = [folder / f"{number}" for number in range(5)] + [mount.path / "alone", mount.path / "other"]
    for number, path in enumerate(files):
        path.write_bytes(bytes([number]) * SIZE)
    mount.remount()
    mount.command("prefetch", str(mount.path / "model"), str(mount.path / "alone"))
    assert loads(mount) == 6
    for number, path in enumerate(files[:6]):
        assert path.read_bytes() == bytes([number]) * SIZE
    assert loads(mount) == 6
    mount.command("prefetch", str(mount.path))
    assert int(mount.statistics()["frames.bytes_loaded"]) == 7 * SIZE  # whoever thought of the last one first
    shown = json.loads(mount.command("stats", "--prefetch", "--json", str(mount.path)))
    assert list(shown["stats"]) == ["prefetch"]


@pytest.mark.parametrize(
    "name, code, words", [("missing", 15, "missing is not there"), ("../outside", 26, "is in no kvfs mount")]
)
def test_what_cannot_be(mount: Mount, name: str, code: int, words: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as info:
        mount.command("prefetch", str(mount.path / name))
    assert info.value.returncode == code
    assert words in info.value.__notes__[0]


def test_more_than_memory_takes_is_refused_whole(mount: Mount) -> None:
    for number in range(100):
        (mount.path / f"{number}").write_bytes(bytes(SIZE))
    mount.remount()
    with pytest.raises(subprocess.CalledProcessError) as info:
        mount.command("prefetch", str(mount.path))
    assert info.value.returncode == 36
    assert "name fewer" in info.value.__notes__[0]
    assert loads(mount) == 0
