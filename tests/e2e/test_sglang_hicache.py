"""SGLang's own HiCacheFile class stores and loads through a mount, across remounts, kills and damage. It takes only
ENOENT for a miss: any other error ends its prefetch thread for the life of the process."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capabilities import SGLANG
from tests.e2e.mounts import Mount

CLIENT = Path(__file__).with_name("hicache_client.py")
PAGE = 1_500_000
"""Bytes; as odd as the pages of a model with an odd number of layers."""

pytestmark = [pytest.mark.fuse, pytest.mark.sglang, pytest.mark.timeout(240)]


class Client:
    """The engine's process; it outlives mounts, as an engine does."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _ask(self, **request: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or "null")

    def open(self, path: Path, **extra: object) -> None:
        assert self._ask(call="open", path=str(path), extra=extra) is True

    def set(self, keys: list[str]) -> list[bool]:
        return list(self._ask(call="set", keys=keys, size=PAGE))

    def get(self, keys: list[str]) -> list[str]:
        return list(self._ask(call="get", keys=keys, size=PAGE))

    def exists(self, keys: list[str]) -> int:
        return int(self._ask(call="exists", keys=keys))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    command = (SGLANG / "bin" / "python", CLIENT)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield Client(process)
        process.kill()


@pytest.fixture
def keys() -> list[str]:
    return [f"{random.Random(number).getrandbits(256):064x}" for number in range(12)]


def test_stores_and_loads_across_mounts(mount: Mount, client: Client, keys: list[str]) -> None:
    folder = mount.path / "hicache"
    client.open(folder)
    assert client.exists(keys) == 0
    assert client.get(keys[:1]) == ["miss"]
    assert client.set(keys) == [True] * len(keys)
    assert client.get(keys) == ["hit"] * len(keys)
    assert client.exists([*keys, "no such key"]) == len(keys)
    mount.remount()
    assert client.exists(keys) == len(keys)
    assert client.get(keys) == ["hit"] * len(keys)
    mount.kill()
    mount.start()
    client.open(folder)
    assert client.get(keys) == ["hit"] * len(keys)
    assert client.set(keys) == [True] * len(keys)
    assert sorted(path.name[:64] for path in folder.iterdir()) == sorted(keys)


def test_its_evictor_keeps_to_its_bound(mount: Mount, client: Client, keys: list[str]) -> None:
    folder = mount.path / "hicache"
    client.open(folder, max_size=PAGE * 6, eviction_ratio=1.0)
    assert client.set(keys) == [True] * len(keys)
    assert client.get(keys) == ["miss"] * 6 + ["hit"] * 6
    mount.remount()
    client.open(folder, max_size=PAGE * 6, eviction_ratio=1.0)
    assert client.set(keys[:2]) == [True, True]  # the order of age comes from the files' dates
    assert client.get(keys) == ["hit"] * 2 + ["miss"] * 6 + ["hit"] * 4


def test_damage_below_the_mount_is_a_miss(mount: Mount, client: Client, keys: list[str]) -> None:
    folder = mount.path / "hicache"
    client.open(folder)
    client.set(keys)
    (path,) = folder.glob(f"{keys[3]}*")
    content = path.read_bytes()
    mount.stop()
    mount.overwrite(content[-5000:])
    mount.start()
    assert client.get(keys) == ["hit"] * 3 + ["miss"] + ["hit"] * 8
    assert client.set([keys[3]]) == [True]
    assert client.get(keys) == ["hit"] * len(keys)
