"""kill -9 of a mount under load. What was closed, or renamed, before is there on the next mount and whole; what was
not is there whole or not at all. Whoever was using the mount gets an error, and nobody is stuck."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.load import Version, expected, read_if_there, said
from tests.e2e.mounts import MakeMount, Mount
from tests.e2e.patterns.toolkit import content

pytestmark = pytest.mark.fuse

ROUNDS = 20
RESTART_SECONDS = 2.0
END_SECONDS = 20.0
"""In which who worked on the mount has noticed that it is gone."""


@dataclass
class Ledger:
    """What is known of the files, from what `tests.e2e.load` says."""

    acknowledged: dict[str, Version] = field(default_factory=dict)
    attempted: dict[str, Version] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    done: int = 0

    def note(self, line: str) -> None:
        what, name, *version = json.loads(line)
        if what == "begin":
            seed, size = version
            self.attempted[name] = None if seed is None else (seed, size)
        elif what == "done":
            self.acknowledged[name] = self.attempted.pop(name)
            self.done += 1
        else:
            self.wrong.append(name)


@contextmanager
def load(mount: Mount, folder: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    """The program, which is gone at the end of the block. If it fails so is the mount: the program may be stuck in it."""
    command = [sys.executable, "-m", "tests.e2e.load", str(folder), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        yield process
    except BaseException:
        mount.abort()
        raise
    finally:
        process.kill()
        process.communicate()


def _run_until_killed(mount: Mount, folder: Path, number: int) -> Ledger:
    """Let the program work, kill the mount under it, and hear what it had done by then."""
    ledger = Ledger()
    target = random.Random(number).randrange(20, 120)
    with load(mount, folder, number) as process:
        assert process.stdout is not None
        for line in process.stdout:
            ledger.note(line)
            if ledger.done >= target or ledger.wrong:
                break
        assert not ledger.wrong, ledger.wrong
        assert ledger.done >= target, "it ended too early"
        mount.kill()
        reaper = threading.Timer(END_SECONDS, mount.abort)
        reaper.start()
        for line in process.stdout:
            ledger.note(line)
        assert reaper.is_alive(), "who worked on the mount was stuck when it was killed"
        reaper.cancel()
    return ledger


def _verify(ledger: Ledger, folder: Path) -> None:
    """Against what is known, name by name; then no name that is not known, but whole temp files."""
    for name in ledger.acknowledged.keys() | ledger.attempted.keys():
        allowed = [expected(ledger.acknowledged.get(name))]
        if name in ledger.attempted:
            allowed.append(expected(ledger.attempted[name]))
        data = read_if_there(folder / name)
        assert data in allowed, f"{name}: {said(data)}, expected {[said(each) for each in allowed]}"
    whole = {expected(version) for version in ledger.attempted.values()}
    for path in folder.iterdir():
        if path.suffix == ".tmp":
            assert path.read_bytes() in whole, f"a torn temp file: {path.name}"
        else:
            assert path.name in ledger.acknowledged.keys() | ledger.attempted.keys(), path.name


@pytest.mark.timeout(400)
def test_kill_under_load(mount: Mount) -> None:
    took = []
    for number in range(ROUNDS):
        folder = mount.path / f"round {number}"
        folder.mkdir()
        ledger = _run_until_killed(mount, folder, number)
        took.append(mount.start())
        _verify(ledger, folder)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    # The fastest: the others tell what else the machine had to do.
    assert min(took) < RESTART_SECONDS, f"mounting again took {took} seconds"


def test_a_pool_that_is_killed_while_it_evicts(make_mount: MakeMount) -> None:
    """More than fits: what is left after the kill is whole, and the newest is among it."""
    mount = make_mount(device_size="64MiB")
    files = {mount.path / f"{number:03}": content(f"evict {number}", 3 << 20) for number in range(80)}
    for path, data in files.items():
        path.write_bytes(data)
    mount.kill()
    mount.start()
    left = [path for path in files if path.exists()]
    assert list(files)[-1] in left
    assert len(left) < len(files)
    assert all(path.read_bytes() == files[path] for path in left)


def test_a_file_open_for_writing_is_not_there_after_a_kill(mount: Mount) -> None:
    path = mount.path / "never closed"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, content("never", 3 << 20))
    mount.kill()
    with suppress(OSError):  # close tells that the mount is gone
        os.close(fd)
    mount.start()
    assert not path.exists()
    assert list(mount.path.iterdir()) == []


def test_a_kill_between_the_parts_of_an_extent_and_their_record(make_mount: MakeMount) -> None:
    """Parts of files that are being written are on media before the files are closed: nobody sees them."""
    mount = make_mount(device_size="64MiB")
    old, fresh = mount.path / "old", mount.path / "fresh"
    before = content("before", 3 << 20)
    old.write_bytes(before)
    opened = []
    for path in (old, fresh):
        data = content(f"part of {path.name}", 2 << 20)
        opened.append(os.open(path, os.O_WRONLY | os.O_CREAT))
        os.write(opened[-1], data)
        mount.wait_for(data[-4096:])
    mount.kill()
    for fd in opened:
        with suppress(OSError):
            os.close(fd)
    mount.start()
    assert [path.name for path in mount.path.iterdir()] == ["old"]
    assert old.read_bytes() == before
    fresh.write_bytes(before)
    assert fresh.read_bytes() == before


def test_fsync_counts_as_close(mount: Mount) -> None:
    path, data = mount.path / "slab", content("slab", 3 << 20)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, data)
    os.fsync(fd)
    os.pwrite(fd, b"after the fsync", 0)
    mount.kill()
    with suppress(OSError):
        os.close(fd)
    mount.start()
    assert path.read_bytes() == data
