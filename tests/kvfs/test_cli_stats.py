"""`kvfs stats` of processes that use a pool by the Cache API. With mounts: tests/kvfs/test_cli_mount.py, tests/e2e."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from urllib.error import URLError

import pytest

from kvfs import Namespace, control, sync
from kvfs.errors import ConfigError
from tests.kvfs.conftest import Kvfs

MIB = 1 << 20
MEMORY = 16 * MIB
_ENGINE = """
import sys, time
from pathlib import Path
from kvfs import Namespace, sync

with sync.open_cache("hot", namespace=Namespace("m"), state=Path(sys.argv[1]), memory=16 << 20):
    print("open", flush=True)
    time.sleep(600)
"""


@contextmanager
def engine(kvfs: Kvfs) -> Iterator[subprocess.Popen[bytes]]:
    """Another process with a cache of the pool, killed at the end."""
    program = [sys.executable, "-c", _ENGINE, str(kvfs.state.root)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield process
        finally:
            process.kill()


def opened(
    kvfs: Kvfs, pool: str = "hot", metrics: str | None = None
) -> AbstractContextManager[sync.BlockingCache]:
    return sync.open_cache(
        pool, namespace=Namespace("m"), state=kvfs.state.root, memory=MEMORY, metrics=metrics
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_what_an_engine_stores_and_reads_is_counted(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    with opened(kvfs) as cache:
        cache.put(b"block", bytes(MIB))
        cache.get_into(b"block", bytearray(MIB))
        rows = dict(kvfs.ok("stats", "-H").rows)
        assert (rows["cache.puts"], rows["cache.hits"], rows["cache.bytes"]) == ("1", "1", str(MIB))
        assert rows["pool.published"] == "1"
        assert dict(kvfs.ok("stats", "hot", "-H").rows)["cache.puts"] == "1"
        [shown] = kvfs.ok("stats", "--json").json["caches"]
        assert (shown["pid"], shown["stats"]["cache"]["put_bytes"]) == (os.getpid(), MIB)
        assert {name.split(".")[0] for name in dict(kvfs.ok("stats", "--prefetch", "-H").rows)} == {
            "prefetch"
        }
    kvfs.fails(31, "nothing is mounted", "stats")
    assert not kvfs.state.folder("hot").caches()


def test_several_are_told_apart_and_killed_ones_forgotten(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    with opened(kvfs) as cache, engine(kvfs) as other:
        cache.put(b"block", bytes(MIB))
        rows = kvfs.ok("stats", "hot", "-H").rows
        puts = {user: value for user, name, value in rows if name == "cache.puts"}
        assert puts == {f"process {os.getpid()}": "1", f"process {other.pid}": "0"}
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert dict(kvfs.ok("stats", "hot", "-H").rows)["cache.puts"] == "1"
        assert len(kvfs.state.folder("hot").caches()) == 1


def test_an_engine_serves_its_own_metrics(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    address = f"127.0.0.1:{free_port()}"
    with opened(kvfs, metrics=address) as cache:
        cache.put(b"block", bytes(MIB))
        [its] = kvfs.state.folder("hot").caches()
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            text = answer.read().decode()
        labels = f'{{pool="hot",process="{its.label}"}}'
        assert f"kvfs_cache_puts_total{labels} 1.0\n" in text
        assert f"kvfs_cache_pool_published_total{labels} 1.0\n" in text
        with (
            pytest.raises(ConfigError, match=f"cannot be served on {address}"),
            opened(kvfs, metrics=address),
        ):
            pass
    with pytest.raises(ConfigError, match="is not host:port"), opened(kvfs, metrics="9464"):
        pass
    with pytest.raises(URLError):
        urllib.request.urlopen(f"http://{address}/metrics")


def test_only_those_that_answer_are_asked_for_metrics(kvfs: Kvfs, monkeypatch: pytest.MonkeyPatch) -> None:
    kvfs.make_pool()
    monkeypatch.setattr(control, "SCRAPE_TIMEOUT", 2.0)  # one will take that long
    folder = kvfs.state.folder("hot")
    with opened(kvfs), engine(kvfs) as killed, engine(kvfs) as stopped:
        assert len(control.statistics_of_caches(folder)) == 3
        stopped.send_signal(signal.SIGSTOP)
        killed.kill()
        killed.wait()
        [label] = control.statistics_of_caches(folder)
        assert label.startswith(f"{os.getpid()}-")


def test_two_pools_in_use_have_to_be_named(kvfs: Kvfs) -> None:
    kvfs.make_pool("hot")
    kvfs.make_pool("cold", devices=1)
    with opened(kvfs, "hot") as hot, opened(kvfs, "cold"):
        hot.put(b"block", bytes(MIB))
        kvfs.fails(31, "more than one pool is in use", "stats")
        assert dict(kvfs.ok("stats", "cold", "-H").rows)["cache.puts"] == "0"
