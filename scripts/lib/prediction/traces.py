"""Traces of requests, one reader for all schemas: JSON lines, plain or compressed with xz.

- Mooncake's: `timestamp` (ms), `hash_ids` of blocks, equal ids for equal prefixes.
- Bailian's: the same with `chat_id`, `parent_chat_id`, `turn`, `type`; its `timestamp` is in seconds.
- Sessions of agents: one a line, `reqs` as lists, block ids that count within the session.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXTENT_TOKENS = 512
"""Blocks of sessions are put together to extents of so many tokens."""
SESSION_EVERY = 60.0
"""Seconds between the beginnings of sessions, whose own times start at zero."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    :ivar time: when it came, seconds
    :ivar ended: when it was over, seconds; None where the trace does not say
    :ivar chain: its blocks, from the root on
    :ivar reason: why the engine stopped, or empty
    :ivar session: which session it is of; None where the trace does not say
    """

    time: float
    ended: float | None
    chain: tuple[int, ...]
    reason: str = ""
    session: int | None = None


class BadTrace(Exception):
    """A file that is no trace of a known schema; the message says where and why."""


def named(trace: Path | None) -> list[Path]:
    """A trace that was named, or all that are in the folder KVFS_TRACES."""
    folder = os.environ.get("KVFS_TRACES")
    return [trace] if trace else sorted(Path(folder).glob("*.jsonl*")) if folder else []


def read(path: Path) -> list[Asked]:
    """The requests of a trace, in the order in which they came.

    :raises OSError: it cannot be read
    :raises BadTrace: it has a line of no known schema
    """
    asked: list[Asked] = []
    number = -1
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as lines:
        try:
            for number, line in enumerate(lines):
                asked += _requests(number, json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, EOFError, lzma.LZMAError) as error:
            raise BadTrace(f"{path}: line {number + 1}: no request of a known schema ({error!r})") from error
    if not asked:
        raise BadTrace(f"{path}: no requests")
    return sorted(asked, key=lambda request: request.time)


def _requests(number: int, record: dict[str, Any]) -> Iterator[Asked]:
    if "reqs" in record:
        yield from _session(number, record)
        return
    second = 1.0 if "chat_id" in record else 1000.0
    yield Asked(float(record["timestamp"]) / second, None, tuple(map(int, record["hash_ids"])))


def _session(number: int, record: dict[str, Any]) -> Iterator[Asked]:
    together = max(EXTENT_TOKENS // int(record["block_size"]), 1)
    begins = number * SESSION_EVERY
    for request in record["reqs"]:
        time, runs, reason = begins + request[0], request[7], request[8] if len(request) > 8 else ""
        ids = [first + i for first, length in runs for i in range(length)]
        # An extent is known by its last block: equal ids there mean equal prefixes.
        chain = tuple(number << 40 | block for block in ids[together - 1 :: together])
        yield Asked(time, time + (request[4] or 0.0), chain, reason, number)


def unique_blocks(asked: Iterable[Asked]) -> int:
    """How many different blocks a trace asks for."""
    return len({block for request in asked for block in request.chain})
