"""Bytes that change on the device below a cold mount are never served: the file is a miss, every other file is whole,
and the engine can store it again."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.mounts import MakeMount, Mount
from tests.e2e.patterns.toolkit import attempt, content, read_direct, read_once
from tests.e2e.patterns.vllm import block_path, load, store

pytestmark = pytest.mark.fuse

BLOCKS = 5
SIZES = {"small": 30_000, "one extent": 1 << 20, "many extents": 9 << 20}


@pytest.fixture
def mount(make_mount: MakeMount) -> Mount:
    """Of a pool so small that its devices are searched quickly."""
    return make_mount(device_size="96MiB")


def _mapped(path: Path, size: int) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        return mapped[:size]


READS: dict[str, Callable[[Path, int], bytes]] = {
    "buffered": read_once,
    "direct": read_direct,
    "mapped": _mapped,
}


def _store_all(root: Path, size: int) -> dict[Path, bytes]:
    """Blocks as an engine stores them."""
    files = {block_path(root, number): content(f"damage {number}", size) for number in range(BLOCKS)}
    for path, data in files.items():
        assert store(path, data, direct=True) == "stored"
    return files


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_damaged_content_is_a_miss_and_can_be_stored_again(mount: Mount, size: int) -> None:
    """One victim for each way to read."""
    files = _store_all(mount.path, size)
    victims = dict(zip(READS, files, strict=False))
    mount.stop()
    for victim in victims.values():
        assert mount.overwrite(files[victim][-4000:]) == 1
    mount.start()
    for kind, victim in victims.items():
        with pytest.raises(FileNotFoundError):
            READS[kind](victim, size)
        assert not os.access(victim, os.F_OK)
        assert victim not in victim.parent.iterdir()
    for path in files.keys() - victims.values():
        assert all(read(path, size) == files[path] for read in READS.values())
    for victim in victims.values():
        assert store(victim, files[victim], direct=True) == "stored"
    mount.remount()
    assert all(read(path, size) == files[path] for path in files for read in READS.values())


def test_one_flipped_bit_is_enough(mount: Mount) -> None:
    size = 3 << 20
    files = _store_all(mount.path, size)
    victims = dict(zip((0, size // 2, size - 1), files, strict=False))
    mount.stop()
    for at, victim in victims.items():
        around = max(at - 32, 0)
        assert mount.flip(files[victim][around : at + 32], at - around) == 1
    mount.start()
    for path, data in files.items():
        if path in victims.values():
            assert attempt(lambda path=path: os.open(path, os.O_RDONLY)) == "ENOENT"  # type: ignore[misc]
        else:
            assert read_once(path, size) == data


def test_damage_below_a_running_mount(mount: Mount) -> None:
    """Media that rot while the mount runs and has nothing of the file in memory."""
    files = _store_all(mount.path, 1 << 20)
    mount.remount()
    victim, data = next(iter(files.items()))
    assert os.access(victim, os.F_OK)  # looked up: its name is cached by the kernel now
    assert mount.overwrite(data[:8192]) == 1
    assert load(victim, len(data), direct=True) is None
    assert store(victim, data, direct=True) == "stored"
    assert load(victim, len(data), direct=True) == data


def test_damage_is_not_served_to_who_opened_for_writing(mount: Mount) -> None:
    """A change in place begins with the bytes that were there: damaged ones are no base for it."""
    path, data = mount.path / "slab", content("slab", 5 << 20)
    path.write_bytes(data)
    mount.stop()
    assert mount.overwrite(data[-8192:]) == 1
    mount.start()
    assert attempt(lambda: _change_and_read(path)) in ("ENOENT", "EIO")
    path.write_bytes(data)
    assert path.read_bytes() == data


def _change_and_read(path: Path) -> bytes:
    with path.open("r+b") as file:
        file.write(b"new head")
        file.seek(-4096, os.SEEK_END)
        return file.read()


def test_damage_of_what_describes_a_file(mount: Mount) -> None:
    """The record of a file whose payload sits in it: found by a scan of the media it is a miss, out of the catalogue
    it may still be had, and is whole then."""
    files = {mount.path / f"{number}.json": random.Random(number).randbytes(1000) for number in range(6)}
    for path, data in files.items():
        path.write_bytes(data)
    victim, data = next(iter(files.items()))
    mount.stop()
    assert mount.overwrite(data) >= 1
    mount.start()
    try:
        assert victim.read_bytes() == data
    except FileNotFoundError:
        victim.write_bytes(data)
    assert all(path.read_bytes() == files[path] for path in files)


def test_random_damage_never_shows(mount: Mount) -> None:
    """Pages overwritten anywhere on the devices: every file is whole or a miss, before and after a rescan."""
    files = {
        mount.path / f"{number:02}": content(f"random {number}", random.Random(number).randrange(1, 1 << 20))
        for number in range(60)
    }
    for path, data in files.items():
        path.write_bytes(data)
    mount.stop()
    mount.scribble(random.Random(7), pages=400)
    for _ in range(2):
        mount.start()
        found = {path: attempt(path.read_bytes) for path in files}
        assert set(found.values()) <= {"OK", "ENOENT"}
        assert all(path.read_bytes() == files[path] for path, result in found.items() if result == "OK")
        mount.stop()
        mount.forget()
    mount.start()
