"""Traces of requests to engines, in the schemas in which they are published: JSON lines.

- Mooncake's: `timestamp` (ms), `hash_ids` of blocks, equal ids for equal prefixes.
- Bailian's: the same with `chat_id`, `parent_chat_id`, `turn`, `type`; its `timestamp` is in seconds.
- Sessions of agents: one a line, `reqs` as lists, block ids that count within the session.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvfs.errors import BadTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

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


def is_request(record: object) -> bool:
    """Whether a line is of one of these schemas, by the names of its fields."""
    return isinstance(record, dict) and ("reqs" in record or {"timestamp", "hash_ids"} <= record.keys())


def read_requests(path: Path) -> list[Asked]:
    """The requests of a file, in the order in which they came.

    :raises OSError: it cannot be read
    :raises BadTrace: it has a line of no known schema
    """
    with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as lines:
        return requests_of(path, lines)


def requests_of(path: Path, lines: Iterable[bytes]) -> list[Asked]:
    """As `read_requests`, of lines. :param path: for messages"""
    asked: list[Asked] = []
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            asked += _requests(number - 1, json.loads(line))
    except (ValueError, KeyError, TypeError, IndexError, EOFError, lzma.LZMAError) as error:
        raise BadTrace(
            f"{path}: no request of a known schema in or behind line {number} ({error!r})"
        ) from error
    if not asked:
        raise BadTrace(f"{path}: no requests")
    return sorted(asked, key=lambda request: request.time)


def unique_blocks(asked: Iterable[Asked]) -> int:
    """How many different blocks a trace asks for."""
    return len({block for request in asked for block in request.chain})


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
