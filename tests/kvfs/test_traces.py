"""Trace files: whole lines, and cut anywhere good up to there."""

from __future__ import annotations

import io
import json
import lzma

import pytest

from kvfs.traces import STREAM_SECONDS, TraceWriter

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
