"""A network of targets in a folder, for tests of everything above nvme-cli."""

from __future__ import annotations

from pathlib import Path

from blockdev.nvme import Portal, Transport
from blockdev.testing.nvme import HOST, FakeFabric
from kvfs.targets import Fabric

NQN = "nqn.2014-08.org.example:kv"
FIRST, SECOND = Portal(Transport.TCP, "192.0.2.1", "4420"), Portal(Transport.TCP, "198.51.100.1", "4420")
URI = f"nvme+tcp://192.0.2.1/{NQN}"
BOTH = f"nvme+tcp://192.0.2.1,198.51.100.1/{NQN}"
SIZE = 64 << 20
"""Bytes of a namespace."""


def drives(folder: Path, count: int) -> list[Path]:
    """Files that are to be namespaces."""
    paths = [folder / f"drive{number}" for number in range(count)]
    for path in paths:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(SIZE)
    return paths


def host_of(fake: FakeFabric) -> Fabric:
    """This host, in that network."""
    return Fabric(fake.cli, fake.sysfs, fake.reach, lambda: HOST)
