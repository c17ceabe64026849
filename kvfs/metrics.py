"""Counters for Prometheus, over HTTP: a mount's, and those of processes that use its pool by the Cache API.

What the components' `statistics()` say becomes one metric a number: `pool.evicted_bytes` is
`kvfs_pool_evicted_bytes_total`. Three kinds of values are more than a number:

    misses_by_cause: {absent: 3, …}     one metric `kvfs_misses_total` with the label `cause`
    a `latency.Histogram`, `read`       a histogram `kvfs_read_seconds`
    texts, lists, None                  no metric

What a process of the Cache API says of its cache is named alike, `cache.hits` is `kvfs_cache_hits_total`; what it says of the parts
that mounts have, too, is set apart from theirs: its `frames.hits` is `kvfs_cache_frames_hits_total`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import trio
from prometheus_client import start_http_server
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from kvfs.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from kvfs.config import Address

Snapshot = Callable[[], Mapping[str, Any]]
"""Statistics as nested plain values (`report.plain`); called in the server's threads, once a scrape."""
Snapshots = Callable[[], Mapping[str, Mapping[str, Any]]]
"""The same of several processes, by what tells them apart."""

_HISTOGRAM = {"bounds", "counts", "sum"}


def from_trio(snapshot: Snapshot) -> Snapshot:
    """A snapshot taken in the trio thread that calls this, for use in others: there nothing changes meanwhile."""
    token = trio.lowlevel.current_trio_token()
    return lambda: trio.from_thread.run_sync(snapshot, trio_token=token)


class StatisticsCollector(Collector):
    """Turns a snapshot into metrics.

    :param labels: the same for every metric, such as the pool's name
    :param gauges: prefixes of dotted names whose numbers go up and down; the others count since the mount began
    :param whose: statistics they are: a mount's, or a cache's
    """

    def __init__(
        self,
        snapshot: Snapshot,
        labels: Mapping[str, str],
        gauges: tuple[str, ...],
        whose: Literal["mount", "cache"] = "mount",
    ) -> None:
        self._snapshot = snapshot
        self._labels = dict(labels)
        self._gauges = gauges
        self._whose = whose

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        return self._metrics("", self._snapshot())

    def _metrics(self, prefix: str, snapshot: Mapping[str, Any]) -> Iterator[Metric]:
        for key, value in snapshot.items():
            name = f"{prefix}{key}"
            parts = re.fullmatch(r"(.+)_by_([a-z]+)", name)
            if isinstance(value, (int, float)):
                yield self._numbers(name, "", {"": value})
            elif not isinstance(value, Mapping):
                continue
            elif value.keys() == _HISTOGRAM:
                yield self._histogram(name, value)
            elif parts is not None:
                yield self._numbers(parts[1], parts[2], value)
            else:
                yield from self._metrics(f"{name}.", value)

    def _numbers(self, name: str, label: str, values: Mapping[str, float]) -> Metric:
        """One sample for each value, told apart by `label` if there is one."""
        kind = GaugeMetricFamily if name.startswith(self._gauges) else CounterMetricFamily
        labels = [*self._labels, label] if label else list(self._labels)
        metric = kind(self._metric_name(name), self._help(name), labels=labels)
        for case, value in values.items():
            metric.add_metric([*self._labels.values(), case][: len(labels)], float(value))
        return metric

    def _histogram(self, name: str, value: Mapping[str, Any]) -> Metric:
        metric = HistogramMetricFamily(
            f"{self._metric_name(name)}_seconds", self._help(name), labels=list(self._labels)
        )
        bounds = [*(f"{bound:g}" for bound in value["bounds"]), "+Inf"]
        buckets = list(zip(bounds, accumulate(value["counts"]), strict=True))
        metric.add_metric(list(self._labels.values()), buckets, value["sum"])
        return metric

    def _metric_name(self, name: str) -> str:
        """`pool.evicted_bytes` → `kvfs_pool_evicted_bytes`, or of a cache `kvfs_cache_pool_evicted_bytes`."""
        prefix = "cache_" if self._whose == "cache" and not name.startswith("cache.") else ""
        return f"kvfs_{prefix}" + re.sub(r"[^a-zA-Z0-9_]", "_", name)

    def _help(self, name: str) -> str:
        return f"{name} of the {self._whose}'s statistics, as 'kvfs stats' shows them"


class CachesCollector(Collector):
    """Turns snapshots of processes that use the Cache API into metrics, each with the label `process`.

    :param labels: the same for every metric
    """

    def __init__(self, snapshots: Snapshots, labels: Mapping[str, str], gauges: tuple[str, ...]) -> None:
        self._snapshots = snapshots
        self._labels = dict(labels)
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """One scrape: each metric once, with the samples of all processes."""
        metrics: dict[str, Metric] = {}
        for process, snapshot in self._snapshots().items():
            labels = {**self._labels, "process": process}
            for metric in StatisticsCollector(
                partial(dict, snapshot), labels, self._gauges, "cache"
            ).collect():
                known = metrics.setdefault(metric.name, metric)
                if known is not metric:
                    known.samples += metric.samples
        return iter(metrics.values())


@contextmanager
def serve_metrics(address: Address, *collectors: Collector) -> Iterator[int]:
    """Serve the metrics on http://ADDRESS/metrics for the length of the block; yields the port, of use for port 0.

    Leaving the block takes up to half a second.

    :raises ConfigError: the address cannot be listened on
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except OSError as error:
        raise ConfigError(
            f"metrics cannot be served on {address}: {error.strerror}; choose another address"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
