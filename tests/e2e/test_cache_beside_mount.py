"""An engine that uses the Cache API beside a mount of the same pool: each sees what the other stores."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kvfs import sync
from tests.e2e.helpers import some_bytes
from tests.e2e.mounts import POOL, Mount
from tests.e2e.test_several_mounts import VISIBLE_SECONDS, soon

pytestmark = pytest.mark.fuse

SIZE = 3 << 20


@pytest.fixture
def cache(shared_mount: Mount) -> Iterator[sync.BlockingCache]:
    with sync.open_cache(POOL, state=shared_mount.state, memory=16 << 20) as opened:
        yield opened


def test_the_mount_shows_what_was_put(shared_mount: Mount, cache: sync.BlockingCache) -> None:
    path = shared_mount.path / "put" / "a.bin"
    cache.put("/put/a.bin", some_bytes(SIZE))
    assert soon(path.exists) < VISIBLE_SECONDS
    assert path.read_bytes() == some_bytes(SIZE)
    cache.put("/put/a.bin", b"another version")
    assert soon(lambda: path.stat().st_size == 15) < VISIBLE_SECONDS
    assert path.read_bytes() == b"another version"
    cache.remove("/put/a.bin")
    assert soon(lambda: not path.exists()) < VISIBLE_SECONDS


def test_the_cache_finds_what_was_written(shared_mount: Mount, cache: sync.BlockingCache) -> None:
    folder = shared_mount.path / "written"
    folder.mkdir()
    (folder / "a.tmp").write_bytes(some_bytes(SIZE))
    (folder / "a.tmp").rename(folder / "a.bin")
    key = "/written/a.bin"
    assert soon(lambda: cache.lookup([key]) == [SIZE]) < VISIBLE_SECONDS
    into = bytearray(SIZE)
    assert cache.get_into(key, into) == SIZE
    assert into == some_bytes(SIZE)
    (folder / "a.bin").unlink()
    assert soon(lambda: cache.lookup([key]) == [None]) < VISIBLE_SECONDS


def test_a_mount_that_is_killed_is_no_matter(shared_mount: Mount, cache: sync.BlockingCache) -> None:
    (shared_mount.path / "kept.bin").write_bytes(some_bytes(SIZE))
    soon(lambda: cache.lookup(["kept.bin"]) == [SIZE])
    shared_mount.kill()
    begun = time.monotonic()
    into = bytearray(SIZE)
    assert cache.get_into("kept.bin", into) == SIZE
    cache.put("after.bin", into)
    assert time.monotonic() - begun < 5
    assert into == some_bytes(SIZE)
