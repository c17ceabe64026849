"""Requests of a trace, as a pool's eviction policy sees them: chains are read from their root, and what is missing is written."""

from __future__ import annotations

from collections.abc import Sequence

from blockdev.eviction import Policy
from kvfs.own_caches import PoolCache
from kvfs.request_traces import Asked
from kvfs.traces import Requests
from kvfs.uses import uses_of


def replay(asked: Sequence[Asked], policy: Policy, capacity: int) -> list[int]:
    """For each request, how many blocks at its beginning are in a pool of `capacity` slots that stores whatever it misses."""
    cache = PoolCache(capacity, policy)
    return [cache.use(use) for use in uses_of(Requests([*asked])).each]
