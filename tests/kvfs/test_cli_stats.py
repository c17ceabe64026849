"""`kvfs stats` of processes that use a pool by the Cache API. With mounts: tests/kvfs/test_cli_mount.py, tests/e2e."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from kvfs import Namespace, sync
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


def opened(kvfs: Kvfs, pool: str = "hot") -> AbstractContextManager[sync.BlockingCache]:
    return sync.open_cache(pool, namespace=Namespace("m"), state=kvfs.state.root, memory=MEMORY)


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


def test_two_pools_in_use_have_to_be_named(kvfs: Kvfs) -> None:
    kvfs.make_pool("hot")
    kvfs.make_pool("cold", devices=1)
    with opened(kvfs, "hot") as hot, opened(kvfs, "cold"):
        hot.put(b"block", bytes(MIB))
        kvfs.fails(31, "more than one pool is in use", "stats")
        assert dict(kvfs.ok("stats", "cold", "-H").rows)["cache.puts"] == "0"
