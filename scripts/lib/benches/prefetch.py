"""Prediction on traces of requests: caches against each other, chains, sessions that come back.

Requests are shown to a predictor one by one, so it can read no more than the past; a baseline that reads the future says
so. Traces are named by --trace, or are those in the folder KVFS_TRACES.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from blockdev.eviction import Lru as LruPolicy
from kvfs import hindsight
from kvfs.errors import BadTrace
from kvfs.own_caches import ToldCache
from kvfs.prefetch.baselines import Arc, Lru, S3Fifo
from kvfs.prefetch.chains import KNOWN, Chains, Follower
from kvfs.prefetch.idle import Idle
from kvfs.prefetch.keeping import LeafLru
from kvfs.prefetch.returns import Returns, bucket
from kvfs.prefetch.value import ByValue
from kvfs.request_traces import Asked, unique_blocks
from kvfs.request_traces import read_requests as read
from kvfs.traces import Requests
from kvfs.uses import uses_of
from scripts.lib.prediction import look_ups
from scripts.lib.prediction.caches import Access, prefix_hits
from scripts.lib.prediction.pools import replay
from scripts.lib.prediction.resumes import (
    Clairvoyant,
    Learnt,
    LeastRecent,
    live_set,
    next_turns,
    served,
    turns,
)
from scripts.lib.prediction.traces import named

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

PERCENT = (1, 5, 10, 20, 50)
"""Room for so many of the unique blocks."""
QUICK_PERCENT = (1, 5)
QUICK_REQUESTS = 4000
POOL_REQUESTS, QUICK_POOL_REQUESTS = 1000, 200
"""The first ones, by which the eviction of pools is judged: it is made to evict seldom, and takes long."""
POOL_PERCENT = (5, 10, 20)
TIERS = {20: 0.65, 40: 0.70, 80: 0.60}
"""Percent of the live set → how far from the least recently used to the clairvoyant, at least."""
POINT = 0.01
IDLE_SESSIONS = 10_000
LOOK_UPS_ROUNDS = 8


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    for path in _traces(options.trace):
        try:
            asked = read(path)
        except (OSError, BadTrace) as error:
            sys.exit(f"scripts/bench: {error}")
        name = path.name.split(".")[0]
        if options.quick:
            measure(rows, name, asked[:QUICK_REQUESTS], QUICK_PERCENT)
            _pools(rows, name, asked[:QUICK_POOL_REQUESTS])
        else:
            measure(rows, name, asked, PERCENT)
            _pools(rows, name, asked[:POOL_REQUESTS])
    _ranking(rows)
    _look_ups(rows)


def measure(rows: Rows, name: str, asked: Sequence[Asked], sizes: Sequence[int]) -> None:
    """All that a trace can tell.

    :param sizes: of caches, percent of the unique blocks
    """
    _chains(rows, name, asked)
    for percent in sizes:
        _caches(rows, f"{name}, room for {percent} %", asked, percent)
    resumes(rows, name, asked)


def _pools(rows: Rows, name: str, asked: Sequence[Asked]) -> None:
    """What pools keep by either policy."""
    blocks = sum(len(request.chain) for request in asked)
    for percent in POOL_PERCENT:
        capacity = max(unique_blocks(asked) * percent // 100, 1)
        for policy in (ByValue(), LruPolicy()):
            ratio = sum(replay(asked, policy, capacity)) / blocks
            label = f"{name}, first {len(asked)} requests, room for {percent} %: a pool's eviction, "
            rows.add(f"{label}{policy.figures()['policy']}", "part", ratio)


def _traces(trace: Path | None) -> list[Path]:
    found = named(trace)
    if not found:
        print(
            "scripts/bench prefetch: name a trace with --trace, or a folder with KVFS_TRACES", file=sys.stderr
        )
        sys.exit(2)
    return found


def _chains(rows: Rows, name: str, asked: Sequence[Asked]) -> None:
    """Two ways to use chains: everything at once after two blocks, and ahead of a reader who confirms each block."""
    chains = Chains()
    needed = at_once = at_once_used = ahead = ahead_used = extents = 0
    seconds = 0.0
    for request in asked:
        chain = request.chain
        known = chains.known(chain)
        needed += max(known - KNOWN, 0)
        if known >= KNOWN:
            began = time.perf_counter()
            expected = chains.expect(chain[KNOWN - 1])
            seconds += time.perf_counter() - began
            extents += len(expected)
            at_once += len(expected)
            at_once_used += len(set(expected) & set(chain[KNOWN:]))
        fetched, used = follow(chains, chain)
        ahead += fetched
        ahead_used += used
        chains.learn(chain)
    if not needed:
        return
    rows.add(f"{name}, chains ahead of the reader: recall", "part", ahead_used / needed, floor=0.998)
    rows.add(f"{name}, chains ahead of the reader: precision", "part", ahead_used / ahead, floor=0.85)
    rows.add(f"{name}, chains at once: recall", "part", at_once_used / needed)
    rows.add(f"{name}, chains at once: precision", "part", at_once_used / at_once)
    rows.add("chains: an extent expected", "µs", seconds / extents * 1e6, ceiling=1.0)


def follow(chains: Chains, chain: Sequence[int]) -> tuple[int, int]:
    """Read a chain as a client does that tells nothing beforehand. Returns blocks fetched, and used of them."""
    follower = Follower(chains)
    fetched: set[object] = set()
    used = 0
    for block in chain:
        used += block in fetched
        fetched.update(follower.reached(block).fetch)
    return len(fetched), used


def _caches(rows: Rows, name: str, asked: Sequence[Asked], percent: int) -> None:
    capacity = max(unique_blocks(asked) * percent // 100, 1)
    blocks = sum(len(request.chain) for request in asked)
    leaf = LeafLru(capacity)
    leaf_ratio = sum(leaf.request(request.chain) for request in asked) / blocks
    accesses: dict[str, Access] = {
        "LRU": Lru(capacity).access,
        "ARC": Arc(capacity).access,
        "S3-FIFO": S3Fifo(capacity).access,
    }
    ratios = {
        cache: sum(prefix_hits(access, request.chain) for request in asked) / blocks
        for cache, access in accesses.items()
    }
    best = hindsight.best(uses_of(Requests([*asked])).each, capacity) / blocks
    began = time.perf_counter()
    ours = sum(keep(asked, capacity)) / blocks
    seconds = (time.perf_counter() - began) / len(asked)
    rows.add(f"{name}: by value", "part", ours, floor=leaf_ratio - POINT, ceiling=best)
    rows.add(f"{name}: LRU, leaves first", "part", leaf_ratio)
    for cache, ratio in ratios.items():
        rows.add(f"{name}: {cache}", "part", ratio)
    rows.add(f"{name}: Belady with bypass, knows the future", "part", best)
    rows.add(f"{name}: by value, a request", "µs", seconds * 1e6)


def keep(asked: Sequence[Asked], capacity: int) -> list[int]:
    """For each request, how many blocks at its beginning the memory of an engine had that tells of its requests."""
    cache = ToldCache(capacity)
    return [cache.use(use) for use in uses_of(Requests([*asked])).each]


def resumes(rows: Rows, name: str, asked: Sequence[Asked]) -> None:
    """Sessions that come back, if a trace tells of any."""
    found = turns(asked)
    if not found:
        return
    following = sum(turn.follows for turn in found)
    live = live_set(found)
    clairvoyant = next_turns(found)
    for percent, floor in TIERS.items():
        capacity = live * percent / 100
        lru, ours, best = (
            served(found, order, capacity) / following
            for order in (LeastRecent(), Learnt(), Clairvoyant(clairvoyant))
        )
        tier = f"{name}, sessions that come back, tier of {percent} % of the live set"
        rows.add(f"{tier}: served", "part", ours)
        rows.add(f"{tier}: LRU", "part", lru)
        rows.add(f"{tier}: clairvoyant", "part", best)
        if best > lru:
            rows.add(f"{tier}: from LRU to clairvoyant", "part", (ours - lru) / (best - lru), floor=floor)


def _ranking(rows: Rows) -> None:
    """Ten thousand idle sessions of four kinds, put in order by what was learnt of as many returns."""
    returns, rng = Returns(), Random(1)
    for session in range(IDLE_SESSIONS):
        age = rng.lognormvariate(3.0, 1.5)
        returns.returned((session % 4,), age)
        for at in range(bucket(age)):
            returns.passed((session % 4,), at)
    idle: Idle[int] = Idle(returns)
    for session in range(IDLE_SESSIONS):
        idle.add(session, (session % 4,), session * 0.1)
        idle.age(session * 0.1)
    for _ in range(20):
        began = time.perf_counter()
        idle.rank()
        ranked = sum(1 for _ in idle.cheapest())
        rows.add(
            "returns: 10,000 idle sessions ranked", "ms", (time.perf_counter() - began) * 1e3, ceiling=1.0
        )
        if ranked != IDLE_SESSIONS:
            raise AssertionError(f"{ranked} sessions ranked")


def _look_ups(rows: Rows) -> None:
    """Look-ups of chains that were not heard of since mounting; the mean is higher as the second one of each fetches eight."""
    for _ in range(LOOK_UPS_ROUNDS):
        spent = look_ups.seconds(1)
        rows.add("a mount: a look-up, median", "µs", statistics.median(spent) * 1e6, ceiling=50.0)
        rows.add("a mount: a look-up, mean", "µs", statistics.mean(spent) * 1e6)
