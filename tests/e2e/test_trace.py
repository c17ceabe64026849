"""`kvfs trace record` of a real mount: what was done is in the file, whoever is killed meanwhile."""

from __future__ import annotations

import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvfs.cli.exit_codes import EXIT_CODES
from kvfs.errors import BadTrace, DeadMount
from tests.e2e.mounts import Mount

pytestmark = pytest.mark.fuse
SIZE = 1 << 20
SECRET = b"what nobody may see"


def start(mount: Mount, file: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kvfs", "--state-dir", str(mount.state), "trace", "record", *options]
    recorder = subprocess.Popen(
        [*command, "-o", str(file), str(mount.path)], stderr=subprocess.PIPE, text=True
    )
    (mount.path / "first").write_bytes(b"1")
    wait_until_recorded(mount, file)
    return recorder


def wait_until_recorded(mount: Mount, file: Path) -> None:
    """Until something that is done now is in the file."""
    deadline = time.monotonic() + 30
    before = len(read(file)) if file.exists() else 1
    while not file.exists() or len(read(file)) <= max(before, 1):
        assert time.monotonic() < deadline
        (mount.path / "missing").exists()
        os.sched_yield()
        time.sleep(0.05)


def read(file: Path) -> list[Any]:
    data = file.read_bytes()
    text = lzma.decompress(data) if data and file.suffix == ".xz" else data
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def work(mount: Mount) -> None:
    for number in range(4):
        (mount.path / f"secret-{number}").write_bytes(SECRET + bytes(SIZE))
    for number in range(4):
        assert (mount.path / f"secret-{number}").read_bytes().startswith(SECRET)
    (mount.path / "secret-0").unlink()


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.xz"])
def test_what_was_done_is_recorded_until_an_interrupt(mount: Mount, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"trace.{ending}"
    with start(mount, file) as recorder:
        before = Counter(event.get("event") for event in read(file))
        work(mount)
        wait_until_recorded(mount, file)
        recorder.send_signal(signal.SIGINT)
        _, said = recorder.communicate(timeout=30)
    assert recorder.returncode == 0
    assert said.endswith(" events recorded, 0 lost\n")
    lines = read(file)
    assert lines[0] == {"kvfs_trace": 1}
    assert lines[-1] == {"event": "end", "lost": 0}
    seen = Counter(event.get("event") for event in lines) - before
    assert (seen["publish"], seen["open"], seen["remove"]) == (4, 4, 1)
    published = [event for event in lines if event.get("size") == len(SECRET) + SIZE]
    chain = [event for event in published if event["event"] == "publish"]
    assert [event["before"] for event in chain[1:]] == [event["block"] for event in chain[:-1]]
    assert {event["name"] for event in published} == {event["name"] for event in chain}
    text = json.dumps(lines).encode()
    assert not [word for word in (b"secret", SECRET, b"first", b"missing") if word in text]


def test_it_ends_after_the_time_named(mount: Mount, tmp_path: Path) -> None:
    mount.command("trace", "record", "--for", "0.1", "-o", str(tmp_path / "trace"), str(mount.path))
    assert read(tmp_path / "trace")[-1]["event"] == "end"


def test_a_file_that_is_there_is_not_written_over(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("mine")
    with pytest.raises(subprocess.CalledProcessError) as info:
        mount.command("trace", "record", "-o", str(tmp_path / "trace"), str(mount.path))
    assert info.value.returncode == EXIT_CODES[OSError]
    assert (tmp_path / "trace").read_text() == "mine"


def test_a_recorder_that_is_killed_leaves_whole_lines_and_a_mount_that_works(
    mount: Mount, tmp_path: Path
) -> None:
    with start(mount, tmp_path / "trace") as recorder:
        recorder.kill()
    assert read(tmp_path / "trace")
    work(mount)
    mount.command("trace", "record", "--for", "0.1", "-o", str(tmp_path / "again"), str(mount.path))


def test_a_mount_that_is_killed_leaves_whole_lines(mount: Mount, tmp_path: Path) -> None:
    with start(mount, tmp_path / "trace") as recorder:
        mount.kill()
        recorder.communicate(timeout=60)
    assert recorder.returncode == EXIT_CODES[DeadMount]
    assert len(read(tmp_path / "trace")) > 1


def kvfs(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvfs", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_a_recorded_trace_is_judged_done_again_and_shown(mount: Mount, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    with start(mount, file) as recorder:
        work(mount)
        wait_until_recorded(mount, file)
        recorder.send_signal(signal.SIGINT)
        recorder.communicate(timeout=30)
    judged = json.loads(kvfs("trace", "replay", file, "--json").stdout)
    assert judged["chains"]["opened"] >= 4
    assert judged["unit"] == "bytes"
    assert all(
        one["hits"]["belady"] >= max(one["hits"][name] for name in ("lru", "ours"))
        for one in judged["caches"]
    )
    folder = mount.path / "again"
    folder.mkdir()
    done = kvfs("trace", "replay", file, "--on", folder, "--fast", "-H", "-o", "stored,loaded,missed,wrong")
    stored, loaded, missed, wrong = map(int, done.stdout.split())
    assert (missed, wrong) == (0, 0)
    assert stored >= 4
    assert loaded >= 4
    assert sorted({path.stat().st_size for path in folder.iterdir()})[-1] == len(SECRET) + SIZE
    shown = kvfs("trace", "report", file, "-o", tmp_path / "page.html")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")
    assert (tmp_path / "page.html").read_text().count("<svg") == 4
    assert kvfs("trace", "report", mount.path / "again", "-o", tmp_path / "x").returncode
    refused = kvfs("trace", "replay", tmp_path / "page.html")
    assert (refused.returncode, refused.stderr.count("\n")) == (EXIT_CODES[BadTrace], 1)
