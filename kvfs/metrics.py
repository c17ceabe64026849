"""A mount's counters for Prometheus, over HTTP.

What the components' `statistics()` say becomes one metric a number: `pool.evicted_bytes` is
`kvfs_pool_evicted_bytes_total`. Three kinds of values are more than a number:

    misses_by_cause: {absent: 3, …}     one metric `kvfs_misses_total` with the label `cause`
    a `latency.Histogram`, `read`       a histogram `kvfs_read_seconds`
    texts, lists, None                  no metric
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

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
"""A mount's statistics as nested plain values (`report.plain`); called in the server's threads, once a scrape."""

_HISTOGRAM = {"bounds", "counts", "sum"}


def from_trio(snapshot: Snapshot) -> Snapshot:
    """A snapshot taken in the trio thread that calls this, for use in others: there nothing changes meanwhile."""
    token = trio.lowlevel.current_trio_token()
    return lambda: trio.from_thread.run_sync(snapshot, trio_token=token)


class StatisticsCollector(Collector):
    """Turns a snapshot into metrics.

    :param labels: the same for every metric, such as the pool's name
    :param gauges: prefixes of dotted names whose numbers go up and down; the others count since the mount began
    """

    def __init__(self, snapshot: Snapshot, labels: Mapping[str, str], gauges: tuple[str, ...]) -> None:
        self._snapshot = snapshot
        self._labels = dict(labels)
        self._gauges = gauges

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
        metric = kind(metric_name(name), f"{name} of the mount's statistics", labels=labels)
        for case, value in values.items():
            metric.add_metric([*self._labels.values(), case][: len(labels)], float(value))
        return metric

    def _histogram(self, name: str, value: Mapping[str, Any]) -> Metric:
        metric = HistogramMetricFamily(
            f"{metric_name(name)}_seconds", f"{name} of the mount's statistics", labels=list(self._labels)
        )
        bounds = [*(f"{bound:g}" for bound in value["bounds"]), "+Inf"]
        buckets = list(zip(bounds, accumulate(value["counts"]), strict=True))
        metric.add_metric(list(self._labels.values()), buckets, value["sum"])
        return metric


def metric_name(name: str) -> str:
    """`pool.evicted_bytes` → `kvfs_pool_evicted_bytes`."""
    return "kvfs_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


@contextmanager
def serve_metrics(address: Address, collector: StatisticsCollector) -> Iterator[int]:
    """Serve the metrics on http://ADDRESS/metrics for the length of the block; yields the port, of use for port 0.

    Leaving the block takes up to half a second.

    :raises ConfigError: the address cannot be listened on
    """
    registry = CollectorRegistry(auto_describe=False)
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
