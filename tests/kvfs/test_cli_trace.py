"""`kvfs trace replay` and `report` of files; with mounts: tests/e2e/test_trace.py."""

from __future__ import annotations

import json
import lzma
import os
from itertools import islice
from pathlib import Path

import pytest

from kvfs.cli.exit_codes import EXIT_CODES
from kvfs.errors import BadTrace
from kvfs.hindsight import FOR_REQUESTS, NAMES
from tests.kvfs.conftest import Kvfs

CHAINS = [[n % 3 * 100 + i for i in range(4 + n // 3)] for n in range(30)]


def requests(folder: Path, name: str = "asked.jsonl") -> Path:
    path = folder / name
    lines = [json.dumps({"timestamp": 1000 * n, "hash_ids": chain}) + "\n" for n, chain in enumerate(CHAINS)]
    data = "".join(lines).encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


def recorded(folder: Path) -> Path:
    path = folder / "recorded.jsonl"
    events = [
        {"t": n, "event": "open", "name": f"{n % 4:x}", "block": f"{n % 4:x}", "kind": "other", "size": 1000}
        for n in range(12)
    ]
    lines = [{"kvfs_trace": 1}, *events, {"event": "end", "lost": 0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", ["asked.jsonl", "asked.jsonl.xz"])
def test_requests_are_judged_by_blocks(kvfs: Kvfs, tmp_path: Path, name: str) -> None:
    shown = kvfs.ok("trace", "replay", requests(tmp_path, name), "--json").json
    assert shown["output_version"]["command"] == "trace replay"
    assert shown["unit"] == "blocks"
    assert [one["share"] for one in shown["caches"]] == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    assert all(list(one["hits"]) == [*NAMES] for one in shown["caches"])
    assert shown["caches"][-1]["hits"]["belady"] > 0.5
    assert shown["chains"]["opened"] == sum(map(len, CHAINS[:-3]))


def test_files_are_judged_by_bytes(kvfs: Kvfs, tmp_path: Path) -> None:
    shown = kvfs.ok("trace", "replay", recorded(tmp_path), "--share", "100", "--json").json
    assert shown["unit"] == "bytes"
    (one,) = shown["caches"]
    assert one["size"] == 4000
    assert set(one["hits"]) == set(NAMES) - {FOR_REQUESTS}
    assert one["hits"]["lru"] == pytest.approx(8 / 12)


def test_one_may_choose(kvfs: Kvfs, tmp_path: Path) -> None:
    chosen = ("--policy", "belady", "--policy", "ours", "--share", "0.5", "--share", "25")
    shown = kvfs("trace", "replay", requests(tmp_path), *chosen)
    assert shown.err.startswith("kvfs: chains: ")
    rows = shown.out.splitlines()
    assert rows[0].split() == ["SHARE", "SIZE", "OURS", "BELADY"]
    assert [line.split()[0] for line in rows[1:]] == ["0.5%", "25%"]
    absent = kvfs("trace", "replay", recorded(tmp_path), "-H", "-o", FOR_REQUESTS).out.split()
    assert set(absent) == {"-"}


def test_a_page_of_requests(kvfs: Kvfs, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    kvfs.ok("trace", "report", requests(tmp_path), "-o", page, "--share", "10")
    assert page.read_text().count("<svg") == 4


def test_what_cannot_be_is_refused(kvfs: Kvfs, tmp_path: Path) -> None:
    neither = tmp_path / "neither.jsonl"
    neither.write_text('{"hello": 1}\n')
    said = kvfs.fails(EXIT_CODES[BadTrace], "requests in Mooncake's", "trace", "replay", neither)
    assert said.err.count("\n") == 1
    kvfs.fails(2, "needs requests", "trace", "replay", recorded(tmp_path), "--policy", FOR_REQUESTS)
    kvfs.fails(2, "--on needs files", "trace", "replay", requests(tmp_path), "--on", tmp_path)
    kvfs.fails(2, "are for caches", "trace", "replay", recorded(tmp_path), "--on", tmp_path, "--share", "1")
    kvfs.fails(2, "--share", "trace", "replay", recorded(tmp_path), "--share", "0")


@pytest.mark.traces
def test_traces_of_others_are_judged(kvfs: Kvfs, tmp_path: Path) -> None:
    """Their first lines."""
    for path in sorted(Path(os.environ["KVFS_TRACES"]).glob("*.jsonl.xz")):
        with lzma.open(path) as file:
            beginning = b"".join(islice(file, 30))
        (tmp_path / "beginning.jsonl.xz").write_bytes(lzma.compress(beginning))
        chosen = ("--policy", "lru", "--policy", "belady", "--share", "50")
        shown = kvfs("trace", "replay", tmp_path / "beginning.jsonl.xz", *chosen, "--json").json
        (one,) = shown["caches"]
        assert 0 < one["hits"]["lru"] <= one["hits"]["belady"] < 1
