from __future__ import annotations

import urllib.request

import pytest

from kvfs.errors import ConfigError
from kvfs.metrics import StatisticsCollector, parse_address, serve_metrics

COLLECTOR = StatisticsCollector(
    lambda: {"pool": {"evicted_bytes": 7, "name": "hot"}, "frames": {"idle": 2}, "none": None},
    {"pool": "hot"},
    ("frames.idle",),
)


def test_numbers_are_served_as_counters_and_gauges() -> None:
    with (
        serve_metrics("127.0.0.1:0", COLLECTOR) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        text = answer.read().decode()
    assert 'kvfs_pool_evicted_bytes_total{pool="hot"} 7.0\n' in text
    assert "# TYPE kvfs_pool_evicted_bytes_total counter" in text
    assert 'kvfs_frames_idle{pool="hot"} 2.0\n' in text
    assert "# TYPE kvfs_frames_idle gauge" in text
    assert "name" not in text.replace("evicted", "")


@pytest.mark.parametrize("text", ["9105", ":9105", "host:", "host:x", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        parse_address(text)


def test_addresses_of_both_families_are_read() -> None:
    assert parse_address("127.0.0.1:9105") == ("127.0.0.1", 9105)
    assert parse_address("[::1]:0") == ("::1", 0)


def test_an_address_in_use_is_named() -> None:
    with (
        serve_metrics("127.0.0.1:0", COLLECTOR) as port,
        pytest.raises(ConfigError, match=rf"cannot be served on 127\.0\.0\.1:{port}: Address already in use"),
        serve_metrics(f"127.0.0.1:{port}", COLLECTOR),
    ):
        pass
