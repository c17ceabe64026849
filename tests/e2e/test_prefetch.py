"""Prefetch through the kernel: files are in memory before they are opened, and what is known survives the mount."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.mounts import MakeMount, Mount

pytestmark = pytest.mark.fuse
COUNT = 48
SIZE = 1 << 20


def store(path: Path, content: bytes) -> None:
    """As an engine does."""
    draft = path.with_name(path.name + ".17.tmp")
    handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(handle, content)
    finally:
        os.close(handle)
    draft.rename(path)


def contents(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


def chain(mount: Mount) -> list[Path]:
    """Files written one after the other."""
    paths = [mount.path / f"{number + 0xABCDEF:064x}.bin" for number in range(COUNT)]
    for number, path in enumerate(paths):
        store(path, contents(number))
    return paths


def prefetched(mount: Mount, what: str) -> int:
    """Bytes, of all sources."""
    figures = mount.statistics().items()
    return sum(int(value) for name, value in figures if name.startswith(f"prefetch.{what}_by_source."))


def read(paths: list[Path]) -> None:
    for number, path in enumerate(paths):
        assert path.read_bytes() == contents(number)


def test_a_reader_finds_what_it_reads_next_in_memory(mount: Mount) -> None:
    paths = chain(mount)
    mount.remount()
    read(paths)
    figures = mount.statistics()
    assert int(figures["prefetch.missed"]) <= 3 * SIZE
    assert prefetched(mount, "used") >= (COUNT - 3) * SIZE
    assert prefetched(mount, "wasted") == 0
    assert int(figures["frames.bytes_loaded"]) == COUNT * SIZE  # nothing twice


def test_looking_names_up_loads_the_files(mount: Mount) -> None:
    """The second time, too, when the kernel has most of the names."""
    paths = chain(mount)
    for _ in range(2):
        mount.remount()
        for _ in range(2):
            assert all(os.access(path, os.F_OK) for path in paths)
        read(paths)
        assert int(mount.statistics()["prefetch.missed"]) == 0


def test_another_member_knows_what_follows(mount: Mount) -> None:
    paths = chain(mount)
    other = mount.beside("other")
    other.start()
    try:
        read([other.path / path.name for path in paths])
        assert int(other.statistics()["prefetch.missed"]) <= 3 * SIZE
    finally:
        other.stop()


def test_it_may_be_switched_off_or_only_counted(make_mount: MakeMount) -> None:
    mount = make_mount()
    paths = chain(mount)
    config = mount.folder / "pool.yaml"
    text = config.read_text()
    for mode, used in (("off", 0), ("observe", COUNT - 3)):
        mount.stop()
        config.write_text(f"{text}prefetch: {mode}\n")
        mount.start()
        read(paths)
        assert prefetched(mount, "used") >= used * SIZE
        assert int(mount.statistics()["frames.read_ahead"]) == 0
        assert mount.statistics()["prefetch.mode"] == mode
