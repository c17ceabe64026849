"""Requests of a trace, as a pool's eviction policy sees them: chains are read from their root, and what is missing is written."""

from __future__ import annotations

from collections.abc import Iterable

from blockdev.eviction import Policy
from blockdev.types import NO_ID, ObjectId, SlotClass, Stamp
from kvfs.predecessors import block_id
from scripts.lib.prediction.traces import Asked

CLASS = SlotClass.MIB4


def replay(asked: Iterable[Asked], policy: Policy, capacity: int) -> list[int]:
    """For each request, how many blocks at its beginning are in a pool of `capacity` slots that stores whatever it misses."""
    return [_request(request, policy, capacity) for request in asked]


def _request(request: Asked, policy: Policy, capacity: int) -> int:
    hits, leads, before = 0, True, bytes(NO_ID)
    for block in request.chain:
        name = b"%032x" % block
        object_id = ObjectId(block.to_bytes(16, "big"))
        if object_id in policy:
            policy.touch(object_id, request.time)
            hits += leads
        else:
            leads = False
            if len(policy) >= capacity:
                policy.remove(next(policy.victims(CLASS)))
            policy.named(object_id, name, Stamp(0))
            policy.follows(object_id, before)
            policy.add(object_id, (CLASS,), request.time)
        before = block_id(name)
    return hits
