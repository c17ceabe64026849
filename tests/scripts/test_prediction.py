"""Traces are read as they are meant, and what is predicted from them follows from the past alone."""

from __future__ import annotations

import json
import lzma
import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvfs.errors import BadTrace
from kvfs.prefetcher import Mode
from kvfs.request_traces import Asked, unique_blocks
from kvfs.request_traces import read_requests as read
from scripts.lib.bench import Rows
from scripts.lib.benches.prefetch import keep, measure, resumes, run
from scripts.lib.prediction.replay import replay
from scripts.lib.prediction.resumes import (
    Clairvoyant,
    Learnt,
    LeastRecent,
    Turn,
    live_set,
    next_turns,
    served,
    turns,
)


def write(path: Path, *records: Any) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.xz"])
def test_mooncakes_schema(tmp_path: Path, name: str) -> None:
    trace = write(
        tmp_path / name,
        {"timestamp": 3000, "input_length": 900, "output_length": 5, "hash_ids": [0, 2]},
        {"timestamp": 1500, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]},
    )
    assert read(trace) == [Asked(1.5, None, (0, 1)), Asked(3.0, None, (0, 2))]
    assert unique_blocks(read(trace)) == 3


def test_bailians_schema_has_seconds(tmp_path: Path) -> None:
    record = {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 61.5,
        "turn": 1,
        "type": "text",
        "hash_ids": [7],
    }
    assert read(write(tmp_path / "trace.jsonl", record)) == [Asked(61.5, None, (7,))]


def test_sessions_have_ids_of_their_own(tmp_path: Path) -> None:
    turn = [5.0, "n", 1100, 10, 2.5, 0.0, 0, [[1, 8], [20, 9]], "tool_use"]
    session = {"block_size": 64, "reqs": [turn]}
    first, second = read(write(tmp_path / "trace.jsonl", session, session))
    assert first == Asked(5.0, 7.5, (8, 27), "tool_use", 0)
    assert second == Asked(65.0, 67.5, (1 << 40 | 8, 1 << 40 | 27), "tool_use", 1)


@pytest.mark.parametrize("text", ["", "{}\n", "no JSON\n", "[]\n", '{"timestamp": 1}\n'])
def test_anything_else_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(BadTrace, match=r"trace\.jsonl: "):
        read(path)


def test_a_truncated_file_is_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl.xz", *({"timestamp": n, "hash_ids": [n]} for n in range(5000)))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadTrace):
        read(path)


def conversations() -> list[Asked]:
    """Twenty conversations that grow, each at its own pace."""
    requests = [
        Asked(
            pace * turn + c,
            pace * turn + c + 0.5,
            tuple(c * 1000 + i for i in range(4 + turn)),
            "tool_use",
            c,
        )
        for c in range(20)
        for pace in (10.0 + 7 * c,)
        for turn in range(12)
    ]
    return sorted(requests, key=lambda request: request.time)


@pytest.mark.parametrize("capacity", [10, 60, 150])
def test_what_is_kept_follows_from_the_past_alone(capacity: int) -> None:
    """Another future changes nothing in what was served before it."""
    requests = conversations()
    whole = keep(requests, capacity)
    assert sum(whole) > 0
    for cut in (50, 120, 200):
        past = requests[:cut]
        late = past[-1].time
        other = [Asked(late + n, None, tuple(range(n * 1000, n * 1000 + 30))) for n in range(100)]
        assert keep(past + other, capacity)[:cut] == keep(past, capacity) == whole[:cut]


def turn(
    time: float, session: int, size: int = 10, reason: str = "tool_use", *, follows: bool = True
) -> Turn:
    return Turn(time, time + 1.0, session, size, reason, follows)


def test_the_live_set_is_of_sessions_at_work() -> None:
    found = [
        turn(0.0, 1, follows=False),
        turn(5.0, 1, reason="end_turn"),  # at work from 0 to 6
        turn(15.0, 1, size=4),  # from 15 to 16
    ]
    assert live_set(found) == pytest.approx((6 * 10 + 1 * 4) / 16)


def test_turns_of_a_session_do_not_overlap() -> None:
    requests = [Asked(t, e, (1, 2), "tool_use", 3) for t, e in ((0.0, 4.0), (2.0, 3.0), (5.0, 6.0))]
    assert [(t.time, t.follows) for t in turns(requests)] == [(0.0, False), (5.0, True)]


def test_the_clairvoyant_serves_most_and_room_for_all_serves_all() -> None:
    found = turns(conversations())
    following = sum(turn.follows for turn in found)
    clairvoyant = next_turns(found)
    for capacity in (20.0, 60.0, 120.0):
        most = served(found, Clairvoyant(clairvoyant), capacity)
        assert served(found, LeastRecent(), capacity) <= most < following
        assert served(found, Learnt(), capacity) <= following
    for order in (LeastRecent(), Learnt(), Clairvoyant(clairvoyant)):
        assert served(found, order, 1e9) == following


def bench(trace: Path | None) -> Rows:
    rows = Rows()
    run(rows, Namespace(trace=trace, quick=True))
    return rows


def test_the_bench_measures_any_trace(tmp_path: Path) -> None:
    records = [
        {"timestamp": 1000 * n, "hash_ids": [n % 7 * 100 + i for i in range(5 + n // 7)]} for n in range(70)
    ]
    shown = {row.name: row.as_json() for row in bench(write(tmp_path / "mine.jsonl", *records))}
    assert shown["mine, chains ahead of the reader: recall"]["median"] == 1
    for percent in (1, 5):
        ours = shown[f"mine, room for {percent} %: by value"]
        assert ours["ok"]
        assert ours["ceiling"] == pytest.approx(
            shown[f"mine, room for {percent} %: Belady with bypass, knows the future"]["median"], rel=1e-3
        )


def test_the_bench_needs_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("KVFS_TRACES", raising=False)
    with pytest.raises(SystemExit) as exit_:
        bench(None)
    assert exit_.value.code == 2
    assert "--trace" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="absent"):
        bench(tmp_path / "absent.jsonl")


@pytest.mark.traces
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bars_on_traces() -> None:
    """Of sessions all requests, since what is learnt of them takes hours; of the rest, the first thousands."""
    rows = Rows()
    for trace in sorted(Path(os.environ["KVFS_TRACES"]).glob("*.jsonl*")):
        asked = read(trace)
        anonymous = [replace(request, session=None) for request in asked[:10_000]]
        measure(rows, trace.name, anonymous, (5,))
        resumes(rows, trace.name, asked)
    shown = [row.as_json() for row in rows]
    assert shown
    assert [row for row in shown if not row["ok"] and row["unit"] == "part"] == []


CONVERSATIONS = [
    Asked(float(turn * 60 + who), None, tuple(range(who * 1000, who * 1000 + 10 * (turn + 1))))
    for turn in range(4)
    for who in range(20)
]
"""Twenty of them, each a turn a minute."""


def test_a_replay_waits_for_little_and_fetches_little_in_vain() -> None:
    ahead, without = (replay(CONVERSATIONS, 300, mode) for mode in (Mode.ON, Mode.OFF))
    assert ahead.loads == without.loads == 20 * (10 + 20 + 30)
    assert without.prefetch.fetched_by_source["chain"] == 0
    assert ahead.waited < 0.4 * without.waited
    wasted, fetched = (ahead.prefetch.wasted_by_source["chain"], ahead.prefetch.fetched_by_source["chain"])
    assert wasted < 0.2 * fetched


def test_a_replay_that_observes_waits_as_without() -> None:
    seen, without = (replay(CONVERSATIONS, 300, mode) for mode in (Mode.OBSERVE, Mode.OFF))
    assert seen.waited == without.waited
    assert seen.prefetch.used_by_source["chain"] > 0


@pytest.mark.traces
def test_little_is_fetched_in_vain_on_conversations() -> None:
    asked = read(Path(os.environ["KVFS_TRACES"]) / "conversation_trace.jsonl.xz")[:1500]
    ahead, without = (replay(asked, unique_blocks(asked) // 20, mode) for mode in (Mode.ON, Mode.OFF))
    wasted, fetched = (
        sum(ahead.prefetch.wasted_by_source.values()),
        sum(ahead.prefetch.fetched_by_source.values()),
    )
    assert wasted <= 0.2 * fetched
    assert ahead.waited < 0.3 * without.waited
