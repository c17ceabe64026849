"""Two mounts of one pool: what one does is seen in the other soon, and one that is killed, stopped or unmounted is no
matter to the other."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.helpers import names, some_bytes
from tests.e2e.mounts import Mount

pytestmark = pytest.mark.fuse

VISIBLE_SECONDS = float(os.environ.get("KVFS_TEST_VISIBLE_SECONDS", "0.2"))
"""In which what one mount did is seen in the other. Raise it where the machine is slow or shared."""
GIVE_UP_SECONDS = 5.0
BLOCK = 3 << 20


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mount, Mount]]:
    folder = tmp_path_factory.mktemp("kvfs")
    one = Mount(folder)
    other = one.beside("mnt-2")
    try:
        one.start()
        other.start()
        yield one, other
    finally:
        other.close()
        one.close()


@pytest.fixture
def both(mounts: tuple[Mount, Mount], request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A directory for the test, as each of two mounts has it."""
    for mount in mounts:
        mount.revive()
        mount.watch()
    name = request.node.name
    (mounts[0].path / name).mkdir()
    here, there = (mount.path / name for mount in mounts)
    soon(there.is_dir)
    return here, there


def soon(condition: Callable[[], bool]) -> float:
    """Ask until it is so; the seconds until the look that saw it, which are few."""
    started = asked = time.monotonic()
    while not condition():
        assert asked - started < GIVE_UP_SECONDS, "never seen"
        time.sleep(0.002)  # between two looks, not to order anything
        asked = time.monotonic()
    seconds = asked - started
    assert seconds <= VISIBLE_SECONDS, f"seen after {seconds:.3f} s"
    return seconds


def reads(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False


def test_a_stored_file_is_seen(both: tuple[Path, Path]) -> None:
    here, there = both
    for number in range(10):
        data, name = some_bytes(BLOCK, number), f"{number}.bin"
        assert not (there / name).exists()  # the kernel may remember that for a moment
        (here / "temp").write_bytes(data)
        (here / "temp").rename(here / name)
        soon((there / name).exists)
        assert (there / name).stat().st_size == BLOCK
        assert (there / name).read_bytes() == data
        soon(lambda name=name: name in names(there))  # type: ignore[misc]
    soon(lambda: names(there) == names(here))


def test_what_is_being_written_is_not_seen_before_it_is_closed(both: tuple[Path, Path]) -> None:
    here, there = both
    with (here / "f").open("wb", buffering=0) as file:
        file.write(some_bytes(BLOCK))
        assert (here / "f").exists()
        assert not (there / "f").exists()
        assert names(there) == set()
    soon(lambda: reads(there / "f", some_bytes(BLOCK)))


@pytest.mark.parametrize("size", [10, BLOCK])
def test_a_replaced_file_is_seen(both: tuple[Path, Path], size: int) -> None:
    here, there = both
    (here / "f").write_bytes(some_bytes(size, 0))
    soon(lambda: reads(there / "f", some_bytes(size, 0)))
    for seed in range(1, 6):
        data = some_bytes(size + seed, seed)
        (here / "temp").write_bytes(data)
        (here / "temp").replace(here / "f")
        soon(lambda seed=seed: (there / "f").stat().st_size == size + seed)  # type: ignore[misc]
        assert (there / "f").read_bytes() == data
        assert names(there) == {"f"}


def test_a_file_changed_in_place_is_seen_and_readers_keep_theirs(both: tuple[Path, Path]) -> None:
    here, there = both
    old = some_bytes(2 * BLOCK)
    (here / "f").write_bytes(old)
    soon(lambda: reads(there / "f", old))
    with (there / "f").open("rb", buffering=0) as reader:
        fd = os.open(here / "f", os.O_RDWR)
        os.pwrite(fd, b"changed", 100)
        os.close(fd)
        new = old[:100] + b"changed" + old[107:]
        soon(lambda: reads(there / "f", new))
        assert os.pread(reader.fileno(), len(old), 0) == old
        assert os.fstat(reader.fileno()).st_size == len(old)


def test_a_removed_file_is_gone_and_readers_keep_it(both: tuple[Path, Path]) -> None:
    here, there = both
    for name in ("f", "open"):
        (here / name).write_bytes(some_bytes(BLOCK))
        soon(lambda name=name: reads(there / name, some_bytes(BLOCK)))  # type: ignore[misc]
    with (there / "open").open("rb", buffering=0) as reader:
        for name in ("f", "open"):
            (here / name).unlink()
        soon(lambda: not (there / "f").exists())
        soon(lambda: not reads(there / "open", some_bytes(BLOCK)))
        assert os.pread(reader.fileno(), BLOCK, 0) == some_bytes(BLOCK)
    soon(lambda: not (there / "open").exists())
    assert names(there) == set()


def test_a_renamed_file_has_its_new_name_only(both: tuple[Path, Path]) -> None:
    here, there = both
    (here / "old").write_bytes(some_bytes(BLOCK))
    soon((there / "old").exists)
    (here / "old").rename(here / "new")
    soon(lambda: reads(there / "new", some_bytes(BLOCK)))
    soon(lambda: not (there / "old").exists())
    with pytest.raises(FileNotFoundError):
        (there / "old").open("rb")
    assert names(there) == {"new"}


def test_directories_come_move_and_go(both: tuple[Path, Path]) -> None:
    here, there = both
    (here / "d").mkdir()
    soon((there / "d").is_dir)
    (there / "d" / "f").write_bytes(b"from there")
    soon(lambda: reads(here / "d" / "f", b"from there"))
    (here / "d").rename(here / "e")
    soon(lambda: reads(there / "e" / "f", b"from there"))
    soon(lambda: not (there / "d").exists())
    assert names(there) == {"e"}
    (here / "e" / "f").unlink()
    soon(lambda: names(there / "e") == set())
    (here / "e").rmdir()
    soon(lambda: not (there / "e").exists())
    assert names(there) == set()


def test_attributes_are_seen(both: tuple[Path, Path]) -> None:
    here, there = both
    for path in (here / "f", here / "d"):
        path.mkdir() if path.name == "d" else path.write_bytes(b"1")
        soon((there / path.name).exists)
        path.chmod(0o741)
        soon(lambda path=path: stat.S_IMODE((there / path.name).stat().st_mode) == 0o741)  # type: ignore[misc]
    os.setxattr(here / "f", "user.crc", b"1234")
    soon(lambda: os.listxattr(there / "f") == ["user.crc"])
    assert os.getxattr(there / "f", "user.crc") == b"1234"
    os.utime(here / "f", ns=(0, 10**18))
    soon(lambda: (there / "f").stat().st_mtime_ns == 10**18)
    (here / "link").symlink_to("f")
    soon((there / "link").is_symlink)
    assert (there / "link").read_bytes() == b"1"


def test_each_may_change_what_the_other_made(both: tuple[Path, Path]) -> None:
    here, there = both
    (here / "f").write_bytes(some_bytes(BLOCK))
    soon((there / "f").exists)
    (there / "f").chmod(0o600)
    (there / "f").rename(there / "g")
    soon((here / "g").exists)
    soon(lambda: not (here / "f").exists())
    (there / "g").unlink()
    soon(lambda: not (here / "g").exists())
    assert names(here) == names(there) == set()


def _works(folder: Path) -> None:
    data = some_bytes(BLOCK, 7)
    (folder / "t").write_bytes(data)
    (folder / "t").rename(folder / "after")
    assert (folder / "after").read_bytes() == data
    assert "after" in names(folder)
    (folder / "after").unlink()


def test_a_killed_mount_leaves_the_other_working(
    both: tuple[Path, Path], mounts: tuple[Mount, Mount]
) -> None:
    here, there = both
    (there / "kept").write_bytes(some_bytes(BLOCK))
    soon(lambda: reads(here / "kept", some_bytes(BLOCK)))
    mounts[1].kill()
    assert (here / "kept").read_bytes() == some_bytes(BLOCK)
    _works(here)
    mounts[1].start()
    assert (there / "kept").read_bytes() == some_bytes(BLOCK)


def test_a_stopped_mount_leaves_the_other_working(
    both: tuple[Path, Path], mounts: tuple[Mount, Mount]
) -> None:
    here, _ = both
    pid = mounts[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        _works(here)
        assert '"mounted"' in mounts[0].command("pool", "status", "test", "--json")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_unmounting_one_leaves_the_other(both: tuple[Path, Path], mounts: tuple[Mount, Mount]) -> None:
    here, there = both
    (there / "kept").write_bytes(some_bytes(BLOCK))
    mounts[1].stop()
    assert (here / "kept").read_bytes() == some_bytes(BLOCK)
    _works(here)
    mounts[1].start()
    assert (there / "kept").read_bytes() == some_bytes(BLOCK)
