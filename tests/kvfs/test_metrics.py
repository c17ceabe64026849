"""Metrics as Prometheus scrapes them."""

from __future__ import annotations

import re
import urllib.request

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from kvfs.config import Address
from kvfs.errors import ConfigError
from kvfs.latency import Stopwatch
from kvfs.metrics import CachesCollector, StatisticsCollector, from_trio, serve_metrics
from kvfs.report import plain

ANYWHERE = Address("127.0.0.1", 0)


def read_watch() -> Stopwatch:
    watch = Stopwatch()
    for seconds in (0.00001, 0.0007, 0.0009, 60):
        watch.add(seconds)
    return watch


SNAPSHOT = {
    "pool": {"evicted_bytes": 7, "name": "hot", "devices": [{"number": 1}]},
    "frames": {"idle": 2},
    "mount": {"misses_by_cause": {"absent": 3, "failed": 1}, "read": plain(read_watch().statistics())},
    "none": None,
}
COLLECTOR = StatisticsCollector(lambda: SNAPSHOT, {"pool": "hot"}, ("frames.idle",))


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_numbers_are_served_as_counters_and_gauges():
    with serve_metrics(ANYWHERE, COLLECTOR) as port:
        text = scrape(port)
    assert 'kvfs_pool_evicted_bytes_total{pool="hot"} 7.0\n' in text
    assert "# TYPE kvfs_pool_evicted_bytes_total counter" in text
    assert 'kvfs_frames_idle{pool="hot"} 2.0\n' in text
    assert "# TYPE kvfs_frames_idle gauge" in text
    assert 'kvfs_mount_misses_total{cause="absent",pool="hot"} 3.0\n' in text
    assert not re.search(r"^kvfs_(none|pool_name|pool_devices)", text, re.MULTILINE)


def test_latencies_are_served_as_histograms():
    with serve_metrics(ANYWHERE, COLLECTOR) as port:
        found = samples(scrape(port))

    def bucket(bound: str) -> float:
        return found[f"kvfs_mount_read_seconds_bucket[('le', '{bound}'), ('pool', 'hot')]"]

    assert [bucket(bound) for bound in ("5e-05", "0.0005", "0.001", "5", "+Inf")] == [1, 1, 3, 3, 4]
    assert found["kvfs_mount_read_seconds_count[('pool', 'hot')]"] == 4
    assert found["kvfs_mount_read_seconds_sum[('pool', 'hot')]"] == pytest.approx(60.00161)


CACHE = {
    "cache": {"hits": 4, "stream": {"running": 2, "reads": 9}, "name": "none"},
    "frames": {"idle": 1},
    "prefetch": {"alone": plain(read_watch().statistics())},
}


def test_caches_are_told_apart_from_the_mount_and_from_each_other():
    other = {**CACHE, "cache": {"hits": 5, "stream": {"running": 0, "reads": 1}}}
    caches = CachesCollector(
        lambda: {"12-0": CACHE, "12-1": other}, {"pool": "hot"}, ("frames.idle", "cache.stream.running")
    )
    with serve_metrics(ANYWHERE, COLLECTOR, caches) as port:
        text = scrape(port)
    found = samples(text)
    of = {one: f"[('pool', 'hot'), ('process', '12-{one}')]" for one in range(2)}
    assert [found[f"kvfs_cache_hits_total{of[one]}"] for one in of] == [4, 5]
    assert [found[f"kvfs_cache_stream_running{of[one]}"] for one in of] == [2, 0]
    assert found[f"kvfs_cache_frames_idle{of[0]}"] == 1
    assert found["kvfs_frames_idle[('pool', 'hot')]"] == 2, "the mount's own"
    assert found[f"kvfs_cache_prefetch_alone_seconds_count{of[1]}"] == 4
    assert "# TYPE kvfs_cache_stream_running gauge\n" in text
    assert "# TYPE kvfs_cache_stream_reads_total counter\n" in text
    assert (
        "# HELP kvfs_cache_hits_total cache.hits of the cache's statistics, as 'kvfs stats' shows them\n"
        in text
    )
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names)), "each metric once, or Prometheus takes none"
    assert not re.search(r"^kvfs_cache_name", text, re.MULTILINE)


def test_an_address_in_use_is_named():
    with (
        serve_metrics(ANYWHERE, COLLECTOR) as port,
        pytest.raises(ConfigError, match=rf"cannot be served on 127\.0\.0\.1:{port}: Address already in use"),
        serve_metrics(Address("127.0.0.1", port), COLLECTOR),
    ):
        pass


async def test_snapshots_are_taken_in_the_trio_thread():
    def snapshot() -> dict[str, int]:
        trio.lowlevel.current_task()  # raises outside of trio
        return {"seen": 1}

    collector = StatisticsCollector(from_trio(snapshot), {}, ())
    with serve_metrics(ANYWHERE, collector) as port:
        text = await trio.to_thread.run_sync(scrape, port)
    assert "kvfs_seen_total 1.0" in text


def test_stopwatch_times_blocks_that_fail_too():
    now = iter([10.0, 10.3])
    watch = Stopwatch(lambda: next(now))
    with pytest.raises(OSError, match="late"), watch.time():
        raise OSError("late")
    histogram = watch.statistics()
    assert sum(histogram.counts) == 1
    assert histogram.counts[histogram.bounds.index(0.5)] == 1
    assert histogram.sum == pytest.approx(0.3)
