"""Trace files: whole lines, and cut anywhere good up to there."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path

import pytest

from kvfs.errors import BadTrace
from kvfs.request_traces import Asked
from kvfs.traces import STREAM_SECONDS, VERSION, Event, Requests, Trace, TraceWriter, read_trace

LINES = [{"event": "open", "name": f"{number:016x}"} for number in range(40)]


def written(*, compress: bool, seconds: float) -> bytes:
    """A file of which each line was written by itself, so many seconds after the one before."""
    now = [0.0]
    file = io.BytesIO()
    writer = TraceWriter(file, compress=compress, clock=lambda: now[0])
    for line in LINES:
        now[0] += seconds
        writer.write([line])
    writer.flush()
    return file.getvalue()


def readable(data: bytes, *, compress: bool) -> list[object]:
    """The whole lines that can be read of a file."""
    text = b""
    while compress and data:
        stream = lzma.LZMADecompressor()
        try:
            text += stream.decompress(data)
        except lzma.LZMAError:
            break
        data = stream.unused_data
    return [json.loads(line) for line in (text if compress else data).split(b"\n")[:-1]]


@pytest.mark.parametrize("compress", [False, True])
def test_what_was_written_can_be_read(*, compress: bool) -> None:
    data = written(compress=compress, seconds=0.1)
    assert readable(data, compress=compress) == LINES
    assert not compress or lzma.decompress(data).count(b"\n") == len(LINES)


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_that_is_cut_is_good_up_to_there(*, compress: bool) -> None:
    data = written(compress=compress, seconds=STREAM_SECONDS)
    for end in range(len(data) + 1):
        read = readable(data[:end], compress=compress)
        assert read == LINES[: len(read)]
        assert len(read) >= end * len(LINES) // len(data) - 1


FIRST = {"kvfs_trace": VERSION}
OPEN = {
    "t": 0.5,
    "event": "open",
    "name": "a",
    "block": "b",
    "reader": "r",
    "size": 3,
    "hit": True,
    "new": "unknown",
}


def trace_file(folder: Path, *lines: object, name: str = "t.jsonl") -> Path:
    path = folder / name
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(lzma.compress(data) if name.endswith("xz") else data)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.xz"])
def test_reading(tmp_path: Path, name: str) -> None:
    gap, end = {"t": 1, "event": "gap", "lost": 4}, {"event": "end", "lost": 4}
    path = trace_file(tmp_path, FIRST, OPEN, gap, end, name=name)
    assert read_trace(path) == Trace([Event(0.5, "open", "a", "b", "r", 3, hit=True)], 4, whole=True)
    begun = trace_file(tmp_path, FIRST, OPEN, name=name).read_bytes()
    rest = trace_file(tmp_path, OPEN, end, name=name).read_bytes()
    path.write_bytes(begun + rest[: len(rest) // 2])
    cut = read_trace(path)
    assert isinstance(cut, Trace)
    assert not cut.whole
    assert 1 <= len(cut.events) <= 2


@pytest.mark.parametrize(
    "lines, says",
    [
        ((), "not a trace"),
        (([1],), "not a trace"),
        (({"kvfs_trace": 2},), "of version 2"),
        ((FIRST, {"event": "open", "name": "a"}), "line 2 is no event"),
        ((FIRST, 5), "line 2 is no event"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, lines: tuple[object, ...], says: str) -> None:
    with pytest.raises(BadTrace, match=says):
        read_trace(trace_file(tmp_path, *lines))


MOONCAKES = {"timestamp": 1500, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}
BAILIANS = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.5, "turn": 1, "type": "text", "hash_ids": [7]}
SESSION = {
    "block_size": 64,
    "reqs": [[5.0, "n", 1100, 10, 2.5, 0.0, 0, [[1, 8], [20, 9]], "tool_use"]],
}


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.xz"])
@pytest.mark.parametrize(
    "line, asked",
    [
        (MOONCAKES, Asked(1.5, None, (0, 1))),
        (BAILIANS, Asked(61.5, None, (7,))),
        (SESSION, Asked(5.0, 7.5, (8, 27), "tool_use", 0)),
    ],
)
def test_requests_are_read_in_each_schema(
    tmp_path: Path, line: dict[str, object], asked: Asked, ending: str
) -> None:
    path = trace_file(tmp_path, line, name=f"t.{ending}")
    assert read_trace(path) == Requests([asked])
    if ending == "jsonl":
        path.write_bytes(path.read_bytes().rstrip())  # others' files need not end with a line
        assert read_trace(path) == Requests([asked])


def test_requests_that_are_cut_or_mixed_with_anything_else_are_refused(tmp_path: Path) -> None:
    each: tuple[tuple[object, ...], ...] = ((FIRST, OPEN), ({},), (5,))
    for others in each:
        with pytest.raises(BadTrace, match="no request of a known schema in or behind line 2"):
            read_trace(trace_file(tmp_path, MOONCAKES, *others))
    path = trace_file(tmp_path, *({"timestamp": n, "hash_ids": [n]} for n in range(5000)), name="t.xz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadTrace, match="no request of a known schema"):
        read_trace(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = trace_file(tmp_path, FIRST, *[OPEN] * 50, name="t.xz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(BadTrace, match="damaged"):
        read_trace(path)
    path.write_bytes(b"plain")
    with pytest.raises(BadTrace, match="not compressed"):
        read_trace(path)


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/b", "a\0", 5, None, ["a"]])
def test_a_name_that_is_no_hash_is_refused(tmp_path: Path, name: object) -> None:
    """A replay makes files of these names."""
    with pytest.raises(BadTrace, match="line 2"):
        read_trace(trace_file(tmp_path, FIRST, OPEN | {"name": name}))
