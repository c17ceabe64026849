"""What engines asked for, as requests to a policy: which blocks, in which order.

A folder with traces is named by KVFS_TRACES. Two schemas are read, JSON lines compressed with xz: Mooncake's
(`hash_ids`, equal ids for equal blocks) and agents' sessions (`reqs`, runs of block ids that are local to a session).
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from blockdev.eviction import Policy
from blockdev.types import ObjectId, SlotClass

CLASS = SlotClass.MIB4
BLOCKS_PER_EXTENT = 8
"""Of a session's 64-token blocks: 512 tokens, as in the other traces."""
SESSION_EVERY = 60.0
"""Seconds between the beginnings of sessions, whose own times start at zero."""


def trace_files() -> list[Path]:
    """The traces there are, by name."""
    folder = os.environ.get("KVFS_TRACES")
    return sorted(Path(folder).glob("*.jsonl.xz")) if folder else []


def requests(trace: Path, limit: int) -> list[ObjectId]:
    """The first blocks that a trace asks for, at most `limit`."""
    with lzma.open(trace, "rt") as lines:
        records = map(json.loads, lines)
        first: dict[str, Any] = next(records, {})
        every = [first, *records]
    blocks = _sessions(every) if "reqs" in first else (block for r in every for block in r["hash_ids"])
    return [ObjectId(block.to_bytes(16, "big")) for block in islice(blocks, limit)]


def _sessions(sessions: list[dict[str, Any]]) -> Iterator[int]:
    turns = [
        (number * SESSION_EVERY + time, number, runs)
        for number, session in enumerate(sessions)
        for time, _, _, _, _, _, _, runs, *_ in session["reqs"]
    ]
    for _, number, runs in sorted(turns, key=lambda turn: turn[:2]):
        ids = [first + i for first, length in runs for i in range(length)]
        yield from (number << 64 | block for block in ids[::BLOCKS_PER_EXTENT])


def hit_ratio(policy: Policy, asked: Iterable[ObjectId], capacity: int) -> float:
    """The part of the blocks that are there when asked for, in a pool of `capacity` slots that stores every miss.

    Any policy can be compared by this with any other.
    """
    hits = total = 0
    for total, block in enumerate(asked, 1):
        if block in policy:
            policy.touch(block, float(total))
            hits += 1
            continue
        if len(policy) >= capacity:
            policy.remove(next(policy.victims(CLASS)))
        policy.add(block, (CLASS,), float(total))
    return hits / total
