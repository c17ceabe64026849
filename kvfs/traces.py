"""Files of recorded traces: JSON lines, in separate xz streams where the name says so.

Each write ends with a whole line and, compressed, a whole stream: whoever is killed leaves what can be read up to there.
"""

from __future__ import annotations

import json
import lzma
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple

from kvfs.errors import BadTrace
from kvfs.request_traces import is_request, requests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kvfs.request_traces import Asked

VERSION = 1
"""Of the format; other fields and events may be added without another number."""
STREAM_SIZE = 1 << 18
STREAM_SECONDS = 2.0
"""Bytes of lines, and the time, after which a compressed stream is ended."""


class TraceWriter:
    """Of one file that is open for writing.

    :param clock: seconds
    """

    def __init__(self, file: BinaryIO, *, compress: bool, clock: Callable[[], float]) -> None:
        self._file = file
        self._compress = compress
        self._clock = clock
        self._lines = bytearray()
        self._since = clock()

    def write(self, lines: Iterable[dict[str, Any]]) -> None:
        """Add lines; plain ones are in the file at once. :raises OSError:"""
        for line in lines:
            self._lines += json.dumps(line, separators=(",", ":")).encode() + b"\n"
        ripe = len(self._lines) >= STREAM_SIZE or self._clock() - self._since >= STREAM_SECONDS
        if ripe or not self._compress:
            self.flush()

    def flush(self) -> None:
        """All lines are in the file. :raises OSError:"""
        if self._lines:
            self._file.write(lzma.compress(self._lines) if self._compress else self._lines)
            self._file.flush()
        self._lines.clear()
        self._since = self._clock()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a file; see docs/prefetch.md.

    :ivar time: seconds since the recording began
    :ivar what: `lookup`, `open`, `publish`, `remove` or `gone`
    :ivar block: a hash of what engines name after one hash
    :ivar reader: a hash of the thread, or empty
    :ivar size: bytes; 0 where that is not known
    :ivar known: of a look-up: there is such a file
    :ivar hit: of an open: all of it was in memory
    :ivar before: of a publication: the block that its writer had published before, or empty
    """

    time: float
    what: str
    name: str
    block: str
    reader: str = ""
    size: int = 0
    hit: bool = False
    before: str = ""
    known: bool = False


class Trace(NamedTuple):
    """What a file holds.

    :ivar lost: events that were left out while it was recorded
    :ivar whole: it was not cut off
    """

    events: list[Event]
    lost: int
    whole: bool


class Requests(NamedTuple):
    """What a file of requests to engines holds, in the order in which they came."""

    asked: list[Asked]


def read_trace(path: Path) -> Trace | Requests:
    """Read a recorded trace, up to where it was cut off, if it was; or requests, in one of the schemas of `request_traces`.

    :raises OSError: it cannot be read
    :raises BadTrace: it is neither, or of a newer version
    """
    try:
        with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as file:
            first = _first_line(file)
            record = _parsed(first)
            if is_request(record):
                return Requests(requests_of(path, chain([first], file)))
            _check_first(path, record)
            return _recorded(path, _whole_lines(file))
    except lzma.LZMAError as error:
        raise BadTrace(f"{path}: damaged, or not compressed as its name says ({error})") from error


def _recorded(path: Path, lines: Iterator[bytes]) -> Trace:
    events: list[Event] = []
    lost, whole, number = 0, False, 1
    try:
        for number, line in enumerate(lines, start=2):  # noqa: B007 - for the message
            record = json.loads(line)
            lost += record["lost"] if record["event"] == "gap" else 0
            whole = record["event"] == "end"
            if "name" in record:
                events.append(_event(record))
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadTrace(f"{path}: line {number} is no event of a trace ({error!r})") from error
    return Trace(events, lost, whole)


def _first_line(file: IO[bytes]) -> bytes:
    with suppress(EOFError):  # whoever wrote it was killed
        return file.readline()
    return b""


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    with suppress(EOFError):  # as above
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _check_first(path: Path, record: object) -> None:
    version = record.get("kvfs_trace") if isinstance(record, dict) else None
    if version is None:
        raise BadTrace(
            f"{path}: not a trace: give one that 'kvfs trace record' made, or requests in Mooncake's or Bailian's schema "
            "(timestamp, hash_ids) or as sessions of agents (reqs)"
        )
    if version != VERSION:
        raise BadTrace(f"{path}: a trace of version {version}, and this kvfs reads version {VERSION}")


def _event(record: dict[str, Any]) -> Event:
    """:raises ValueError: no recorder has written this; names become those of files"""
    name = record["name"]
    if not isinstance(name, str) or not name or not name.isascii() or not name.isalnum():
        raise ValueError(f"no name of a recording: {name!r:.80}")
    return Event(
        float(record["t"]),
        record["event"],
        record["name"],
        record["block"],
        record.get("reader", ""),
        record.get("size") or 0,
        bool(record.get("hit")),
        record.get("before") or "",
        bool(record.get("known")),
    )
