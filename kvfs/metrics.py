"""A mount's counters for Prometheus, over HTTP.

What a component's `statistics()` says becomes one metric a number: `pool.evicted_bytes` is `kvfs_pool_evicted_bytes`.
Names that count since the mount began are counters, the rest are gauges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import start_http_server
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kvfs.errors import ConfigError
from kvfs.report import flat

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Snapshot = Callable[[], Mapping[str, Any]]
"""A mount's statistics as nested plain values; called in the server's thread, once a scrape."""


class StatisticsCollector(Collector):
    """Turns a snapshot into metrics.

    :param labels: the same for every metric, such as the pool's name
    :param gauges: prefixes of dotted names whose numbers go up and down
    """

    def __init__(self, snapshot: Snapshot, labels: Mapping[str, str], gauges: tuple[str, ...]) -> None:
        self._snapshot = snapshot
        self._labels = dict(labels)
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for name, value in flat(self._snapshot()):
            if isinstance(value, (int, float)):
                yield self._metric(name, float(value))

    def _metric(self, name: str, value: float) -> Metric:
        kind = GaugeMetricFamily if name.startswith(self._gauges) else CounterMetricFamily
        metric = kind(metric_name(name), f"{name} of the mount's statistics", labels=tuple(self._labels))
        metric.add_metric(tuple(self._labels.values()), value)
        return metric


def metric_name(name: str) -> str:
    """`pool.evicted_bytes` → `kvfs_pool_evicted_bytes`."""
    return "kvfs_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT for IPv6. :raises ConfigError:"""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"'{text}' is not an address for metrics: write HOST:PORT, such as 127.0.0.1:9105")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextmanager
def serve_metrics(address: str, collector: StatisticsCollector) -> Iterator[int]:
    """Serve the metrics on http://ADDRESS/metrics for the length of the block; yields the port, of use for port 0.

    :raises ConfigError: not an address, or one that cannot be listened on
    """
    host, port = parse_address(address)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
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
