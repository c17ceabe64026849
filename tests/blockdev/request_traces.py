"""What engines asked for, as requests to a policy: which blocks, in which order.

A folder with traces is named by KVFS_TRACES; scripts/lib/prediction/traces.py reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from blockdev.eviction import Policy
from blockdev.types import ObjectId, SlotClass
from kvfs.request_traces import read_requests as read

CLASS = SlotClass.MIB4


def trace_files() -> list[Path]:
    """The traces there are, by name."""
    folder = os.environ.get("KVFS_TRACES")
    return sorted(Path(folder).glob("*.jsonl.xz")) if folder else []


def requests(trace: Path, limit: int) -> list[ObjectId]:
    """The first blocks that a trace asks for, at most `limit`."""
    blocks = (block for request in read(trace) for block in request.chain)
    return [ObjectId(block.to_bytes(16, "big")) for block in islice(blocks, limit)]


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
