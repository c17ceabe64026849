from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvfs import mountpoint, sync
from kvfs.cli import background
from kvfs.cli.exit_codes import USAGE
from kvfs.cli.mount import embedded_name
from kvfs.state import MountFolder, MountRecord
from tests.conftest import ExpectLog
from tests.kvfs.conftest import Kvfs, Result
from tests.kvfs.contents import MIB, fill

MEMORY = ("--memory", "64MiB")
MakeDirectory = Callable[..., Path]


@pytest.fixture
def directory(kvfs: Kvfs) -> Iterator[MakeDirectory]:
    """Makes directories to mount on; what is still mounted there in the end is taken away."""
    made: list[Path] = []

    def make(name: str = "mnt") -> Path:
        path = kvfs.folder / name
        path.mkdir()
        made.append(path)
        return path

    yield make
    for path in made:
        for folder in kvfs.state.mounted_on(str(path)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(recorded(folder).pid, signal.SIGKILL)
        if mountpoint.mounted_at(str(path)):
            subprocess.run(mountpoint.unmount_command(str(path), lazy=True), check=False)


def mount(kvfs: Kvfs, path: Path, pool: str = "hot") -> None:
    kvfs.ok("mount", pool, path, *MEMORY)


def recorded(folder: MountFolder) -> MountRecord:
    record = folder.read_record()
    assert record is not None
    return record


def kill(kvfs: Kvfs, path: Path, pool: str = "hot") -> int:
    """kill -9 the mount of a pool, and see it dead."""
    record = recorded(kvfs.state.folder(pool).mount(str(path)))
    process = os.pidfd_open(record.pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        wait_gone(process)
    finally:
        os.close(process)
    return record.pid


def wait_gone(process: int) -> None:
    assert select.select([process], [], [], 60)[0], "still there"


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fuse
def test_a_pool_is_mounted_used_and_unmounted(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    (path / "block.bin").write_bytes(b"kv" * MIB)
    folder = kvfs.state.folder("hot").mount(str(path))
    record = recorded(folder)
    assert record.mount_point == str(path)
    assert kvfs.ok("pool", "list", "-H", "-o", "name,state,mount_point,pid").rows == [
        ["hot", "mounted", str(path), str(record.pid)]
    ]
    shown = kvfs.ok("pool", "status", "hot", "--json").json["pool"]
    assert (shown["state"], shown["mount_point"], shown["pid"]) == ("mounted", str(path), record.pid)
    assert kvfs.ok("ls", "hot", "-H", "-p", "-o", "name,size").rows == [["block.bin", str(2 * MIB)]]
    assert kvfs.ok("stat", "hot:block.bin", "-H", "-o", "state").rows == [["ok"]]
    kvfs.ok("umount", path)
    assert not folder.socket.exists()
    assert not folder.record.exists()
    assert f"pool hot is mounted on {path}" in folder.log.read_text()
    assert list(path.iterdir()) == []
    assert kvfs.ok("ls", "hot", "-H", "-o", "name").rows == [["block.bin"]]


@pytest.mark.fuse
def test_an_embedded_pool_is_made_once_and_found_again(kvfs: Kvfs, directory: MakeDirectory) -> None:
    path = directory()
    kvfs.ok("mount", "--size", "128MiB", path, *MEMORY)
    (path / "a").write_text("kept")
    name = embedded_name(str(path))
    assert kvfs.ok("pool", "list", "-H", "-o", "name,size,mount_point").rows == [[name, "128MiB", str(path)]]
    kvfs.ok("umount", path)
    kvfs.ok("mount", "--size", "128MiB", path, *MEMORY)
    assert (path / "a").read_text() == "kept"
    kvfs.ok("umount", path)
    again = kvfs("mount", "--size", "256MiB", path, *MEMORY)
    assert again.code == 0
    assert (
        f"has 128MiB already, and keeps that size: unmount it and add room with 'kvfs pool add {name} DEVICE'"
        in again.err
    )
    kvfs.ok("umount", path)
    kvfs.ok("pool", "destroy", name, "--yes")
    assert not kvfs.state.folder(name).path.exists()


def test_embedded_pools_have_names_of_their_own() -> None:
    names = {
        embedded_name(path)
        for path in ("/", "/mnt/a b", "/mnt/a-b", "/srv/a-b", "/mnt/.x", "/mnt/" + "ü" * 80)
    }
    assert len(names) == 6
    for name in names:
        assert len(name) <= 64


@pytest.mark.fuse
def test_the_mount_tells_what_it_does_without(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()[1].unlink()
    result = kvfs("mount", "hot", directory(), *MEMORY)
    assert result.code == 0
    assert "hot-1: No such file or directory; the pool goes on without it\n" in result.err
    assert "kvfs: device 1 of pool 'hot' is missing: its objects are misses\n" in result.err
    assert kvfs.ok("pool", "status", "hot", "-H", "-o", "state").rows == [["live"], ["missing"]]


@pytest.mark.fuse
@pytest.mark.parametrize(
    "memory, code, says",
    [
        ("1MiB", 10, "memory 1MiB is too little for pool 'hot', .*at least 4MiB"),
        ("4PiB", 36, "the system does not give 4PiB of memory .*: lower 'memory'"),
    ],
)
def test_memory_that_cannot_be_had_is_refused(
    kvfs: Kvfs, directory: MakeDirectory, memory: str, code: int, says: str
) -> None:
    kvfs.make_pool()
    kvfs.fails(code, says, "mount", "hot", directory(), "--memory", memory)


@pytest.mark.fuse
def test_options_of_the_command_line_win_over_the_configuration(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = kvfs.folder / "my.yaml"
    config.write_text(kvfs.state.folder("hot").config.read_text() + "memory: 999GiB\n")
    path = directory()
    kvfs.ok(
        "mount",
        "--config",
        config,
        "--metrics",
        f"127.0.0.1:{port}",
        *MEMORY,
        "--durability",
        "flush",
        "hot",
        path,
    )
    with sync.open_cache("hot", state=kvfs.state.root, memory=16 << 20) as cache:
        cache.put("/block", b"stored by an engine")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    assert 'kvfs_frames_frames{pool="hot"} 32.0\n' in text
    assert "# TYPE kvfs_pool_published_total counter\n" in text
    assert "# TYPE kvfs_room_used gauge\n" in text
    assert re.search(
        rf'^kvfs_cache_puts_total\{{pool="hot",process="{os.getpid()}-\d+"\}} 1\.0$', text, re.MULTILINE
    )


@pytest.mark.fuse
def test_the_root_has_the_permissions_that_the_configuration_says(
    kvfs: Kvfs, directory: MakeDirectory
) -> None:
    kvfs.make_pool()
    config = kvfs.state.folder("hot").config
    plain = config.read_text()
    path = directory()
    for text, mode in (
        ("", 0o700),
        ("root_mode: 0o750\n", 0o750),
        ("root_mode: 0o711\n", 0o711),
        ("", 0o711),
    ):
        config.write_text(plain + text)
        mount(kvfs, path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        kvfs.ok("umount", path)


def test_the_command_line_is_checked(kvfs: Kvfs, directory: MakeDirectory) -> None:
    path = directory()
    kvfs.fails(USAGE, "kvfs mount POOL DIR, or kvfs mount --size 4GiB DIR", "mount", path)
    kvfs.fails(
        USAGE, "--size mounts a pool of its own and takes DIR only", "mount", "--size", "1GiB", "hot", path
    )
    kvfs.fails(USAGE, "'1gb' is ambiguous", "mount", "--size", "1gb", path)
    kvfs.fails(USAGE, "'x' is not host:port", "mount", "--metrics", "x", "hot", path)
    kvfs.fails(12, "no pool 'hot'", "mount", "hot", path)


def test_a_configuration_of_another_pool_is_refused(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    config = kvfs.folder / "my.yaml"
    config.write_text("name: cold\ndevices: [/dev/null]\n")
    kvfs.fails(
        10, "my.yaml: is of pool 'cold', not of 'hot'", "mount", "--config", config, "hot", directory()
    )


# ── mount points and FUSE ────────────────────────────────────────────────────────────────────────────────────


def test_a_bad_mount_point_is_named(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    (path / "file").touch()
    kvfs.fails(21, "no such directory; make it with 'mkdir -p", "mount", "hot", path / "no")
    kvfs.fails(22, "file: not a directory", "mount", "hot", path / "file")
    kvfs.fails(22, "not empty", "mount", "hot", path)
    kvfs.fails(21, "no such directory", "mount", "--size", "64MiB", path / "no")
    assert kvfs.ok("pool", "list", "-H", "-o", "name").rows == [["hot"]], (
        "an embedded pool was made for nothing"
    )


@pytest.mark.fuse
def test_a_mount_point_in_use_is_named(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool("hot")
    kvfs.make_pool("cold")
    path = directory()
    mount(kvfs, path)
    kvfs.fails(23, f"{path}: already a mount of hot; unmount it with 'kvfs umount", "mount", "cold", path)


def test_a_machine_without_fuse_is_told(
    kvfs: Kvfs, directory: MakeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kvfs.make_pool()
    monkeypatch.setattr(mountpoint, "DEV_FUSE", kvfs.folder / "fuse")
    kvfs.fails(24, "is missing: load the module with 'modprobe fuse'", "mount", "hot", directory())
    kvfs.fails(24, "is missing", "mount", "--size", "128MiB", directory("other"))
    assert kvfs.ok("pool", "list", "-H", "-o", "name").out == "hot\n"


def test_allow_other_needs_permission(
    kvfs: Kvfs, directory: MakeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kvfs.make_pool()
    (kvfs.folder / "fuse").touch()
    monkeypatch.setattr(mountpoint, "DEV_FUSE", kvfs.folder / "fuse")
    monkeypatch.setattr(mountpoint, "FUSE_CONF", kvfs.folder / "fuse.conf")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda _program: "/usr/bin/fusermount3")
    kvfs.fails(25, "add the line 'user_allow_other' to", "mount", "--allow-other", "hot", directory())


# ── who has it ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fuse
def test_a_mounted_pool_is_busy_for_everyone_else(kvfs: Kvfs, directory: MakeDirectory) -> None:
    paths = kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    record = recorded(kvfs.state.folder("hot").mount(str(path)))
    by = f"in use by process {record.pid}, mounted on {path}"
    kvfs.fails(60, by, "pool", "add", "hot", kvfs.device("more"), "--size", "64MiB")
    kvfs.fails(60, by, "pool", "take", "hot")
    kvfs.fails(60, f"is mounted on {path}; unmount it first", "pool", "destroy", "hot", "--yes")
    kvfs.fails(60, "hot-0 is in use by pool 'hot'", "pool", "create", "cold", paths[0], "--force")
    assert kvfs("pool", "scrub", "hot").code == 0, "the mount scrubs itself"


@pytest.mark.fuse
def test_counters_of_the_only_or_of_a_named_mount(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool("hot")
    kvfs.make_pool("cold", devices=1)
    path, second = directory(), directory("second")
    kvfs.fails(31, "nothing is mounted", "stats")
    kvfs.fails(31, "pool 'hot' is not mounted here; mount it with", "stats", "hot")
    kvfs.fails(26, "not a kvfs mount of this host", "stats", path)
    mount(kvfs, path)
    (path / "x").write_bytes(b"x" * MIB)

    def published(result: Result) -> str:
        return dict(result.rows)["pool.published_bytes"]

    assert published(kvfs.ok("stats", "-H")) == str(MIB)
    assert published(kvfs.ok("stats", "hot", "-H")) == str(MIB)
    assert published(kvfs.ok("stats", path, "-H")) == str(MIB)
    shown = kvfs.ok("stats", "--json").json
    assert shown["stats"]["pool"]["published_bytes"] == MIB
    assert shown["output_version"]["command"] == "stats"
    mount(kvfs, second, "cold")
    kvfs.fails(31, r"more than one pool is mounted \(cold, hot\): name one", "stats")


# ── unmounting ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fuse
def test_a_busy_mount_stays_and_names_who_uses_it(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    (path / "x").write_text("x")
    with (path / "x").open() as file, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as cat:
        kvfs.fails(27, rf"in use by .*cat \(process {cat.pid}\).*; close what is open", "umount", path)
        assert (path / "x").read_text() == "x"
        cat.communicate()
    kvfs.ok("umount", path)


@pytest.mark.fuse
def test_what_is_not_ours_is_not_unmounted(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.fails(26, "nothing is mounted there", "umount", directory())
    kvfs.fails(26, "a mount of proc, not of kvfs; take it away with 'umount /proc'", "umount", "/proc")
    kvfs.fails(26, "nothing is mounted there", "umount", kvfs.folder / "no")


@pytest.mark.fuse
def test_an_unmount_from_outside_ends_the_mount(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    record = recorded(kvfs.state.folder("hot").mount(str(path)))
    process = os.pidfd_open(record.pid)
    subprocess.run(mountpoint.unmount_command(str(path), lazy=False), check=True)
    wait_gone(process)
    os.close(process)
    assert kvfs.ok("pool", "list", "-H", "-o", "state").rows == [["idle"]]
    kvfs.ok("pool", "status", "hot")


@pytest.mark.fuse
def test_a_mount_of_another_state_directory_is_unmounted_unless_busy(
    kvfs: Kvfs, directory: MakeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    (path / "x").write_text("x")
    (kvfs.folder / "other").mkdir()
    other = Kvfs(kvfs.folder / "other", capsys)
    with (path / "x").open() as file, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as cat:
        other.fails(27, "in use by cat", "umount", path)
        cat.communicate()
    record = recorded(kvfs.state.folder("hot").mount(str(path)))
    process = os.pidfd_open(record.pid)
    other.ok("umount", path)
    wait_gone(process)
    os.close(process)


# ── killed mounts ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fuse
def test_a_dead_mount_is_named_and_taken_away(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    (path / "kept").write_text("kept")
    pid = kill(kvfs, path)
    assert kvfs.ok("pool", "list", "-H", "-o", "state,mount_point").rows == [["dead", str(path)]]
    gone = f"was mounted on {path} by process {pid}, which is gone; 'kvfs umount {path}' removes what is left"
    kvfs.fails(32, gone, "stats", path)
    kvfs.fails(32, gone, "stats", "hot")
    status = kvfs("pool", "status", "hot", "-H", "-o", "state")
    assert (status.code, status.rows) == (0, [["live"], ["live"]])
    assert gone in status.err
    removed = kvfs("umount", path)
    assert (removed.code, removed.err) == (
        0,
        f"kvfs: {path}: its process was gone; what it left is removed\n",
    )
    assert kvfs.ok("pool", "list", "-H", "-o", "state,mount_point").rows == [["idle", "-"]]
    mount(kvfs, path)
    assert (path / "kept").read_text() == "kept"


@pytest.mark.fuse
def test_a_dead_mount_is_mounted_over(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    kill(kvfs, path)
    mount(kvfs, path)
    assert list(path.iterdir()) == []


@pytest.mark.fuse
def test_what_a_reboot_left_is_forgotten(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    mount(kvfs, path)
    kill(kvfs, path)
    subprocess.run(mountpoint.unmount_command(str(path), lazy=True), check=True)
    folder = kvfs.state.folder("hot").mount(str(path))
    assert folder.socket.exists()
    kvfs.fails(26, "nothing is mounted there", "umount", path)
    assert not folder.socket.exists()
    assert kvfs.ok("pool", "list", "-H", "-o", "state").rows == [["idle"]]


# ── in the background, and not ───────────────────────────────────────────────────────────────────────────────


def test_the_daemons_error_is_the_commands(kvfs: Kvfs, directory: MakeDirectory) -> None:
    paths = kvfs.make_pool()
    with paths[0].open("r+b") as file:
        file.write(bytes(MIB))
    kvfs.fails(51, "hot-0: .*take it out of 'devices'", "mount", "hot", directory(), *MEMORY)


def test_a_daemon_that_dies_is_reported_with_its_last_words(
    kvfs: Kvfs, directory: MakeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kvfs.make_pool()
    program = kvfs.folder / "python"
    program.write_text("#!/bin/sh\necho 'last words' >&2\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    path = directory()
    folder = kvfs.state.folder("hot").mount(str(path))
    folder.create()
    log = folder.log
    log.write_text("x" * (background.LOG_MAX + 1))
    kvfs.fails(
        28, "was killed by SIGKILL before it was ready: last words; see .*mount.log", "mount", "hot", path
    )
    assert log.read_text() == "last words\n", "a large log of earlier mounts is put aside"
    program.write_text("#!/bin/sh\nexit 3\n")
    log.unlink()
    kvfs.fails(28, "ended with exit code 3 before it was ready; see", "mount", "hot", path)


@pytest.mark.fuse
def test_in_the_foreground_systemd_is_told(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    path = directory()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(kvfs.folder / "notify"))
        manager.settimeout(60)
        command = ["--state-dir", str(kvfs.state.root), "mount", "--foreground", *MEMORY, "hot", str(path)]
        with subprocess.Popen(
            [sys.executable, "-m", "kvfs", *command],
            env=os.environ | {"NOTIFY_SOCKET": str(kvfs.folder / "notify")},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert manager.recv(100) == b"READY=1"
            (path / "x").write_text("x")
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert kvfs.ok("ls", "hot", "-H", "-o", "name").rows == [["x"]]


@pytest.mark.fuse
def test_a_mount_scrubs_itself_and_shows_progress(kvfs: Kvfs, directory: MakeDirectory) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    mount(kvfs, directory())
    assert kvfs("pool", "scrub", "hot", "--json").json["scrub"]["objects"] == 4


def test_whoever_started_a_mount_need_not_wait(expect_log: ExpectLog) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    expect_log("whoever started this mount did not wait for it")
    ready = background.Ready(writer)
    ready.ready()
    ready.ready()
