"""Files of recorded traces: JSON lines, in separate xz streams where the name says so.

Each write ends with a whole line and, compressed, a whole stream: whoever is killed leaves what can be read up to there.
"""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
