"""A storage node and a GPU node: NVMe over fabrics between them, keys, and what happens when one dies."""

from __future__ import annotations

import pytest

from scripts.lib.lab.guest import Guest
from tests.lab.conftest import Pair
from tests.lab.fabric import connect, disconnect, export

NQN = "nqn.2026-11.org.example:two"


def direct_io(guest: Guest, verb: str, device: str, seed: str) -> None:
    guest.run("python3", "-m", "tests.lab.inside.direct_io", verb, device, seed, "4")


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_what_one_writes_the_other_has(pair: Pair, transport: str) -> None:
    nqn = f"{NQN}-{transport}"
    for guest in pair:
        guest.rdma_up()
    export(pair.storage, nqn, "/dev/lab/d0", transport)
    device = connect(pair.gpu, pair.storage, nqn, transport)
    direct_io(pair.gpu, "write", device, transport)
    direct_io(pair.gpu, "read", device, transport)
    disconnect(pair.gpu, nqn)
    direct_io(pair.storage, "read", "/dev/lab/d0", transport)


def test_without_the_key_nobody_connects(pair: Pair) -> None:
    """DH-HMAC-CHAP between the kernel's initiator and the kernel's target."""
    nqn = f"{NQN}-key"
    host = pair.gpu.read("/etc/nvme/hostnqn").decode().strip()
    key = pair.gpu.run("nvme", "gen-dhchap-key", "-n", host).stdout.strip()
    export(pair.storage, nqn, "/dev/lab/d1", "tcp", host=host, key=key)
    pair.gpu.run("modprobe", "nvme-tcp")
    attempt = ("nvme", "connect", "-t", "tcp", "-a", "storage", "-s", "4420", "-n", nqn)
    assert pair.gpu.run(*attempt, check=False).code
    device = connect(pair.gpu, pair.storage, nqn, "tcp", "--dhchap-secret", key)
    direct_io(pair.gpu, "write", device, "key")
    disconnect(pair.gpu, nqn)


def test_a_pulled_cable(pair: Pair) -> None:
    ping = ("ping", "-c", "1", "-W", "5", "storage")
    pair.gpu.run(*ping)
    pair.storage.unplug()
    assert pair.gpu.run(*ping, check=False).code
    assert pair.storage.run("hostname").stdout == "storage\n", "commands need no network"
    pair.storage.plug()
    pair.gpu.run(*ping)


def test_a_storage_node_that_dies_and_comes_back(pair: Pair) -> None:
    """Its export is gone with it; made again, the initiator finds it and its bytes by itself."""
    nqn = f"{NQN}-death"
    export(pair.storage, nqn, "/dev/lab/d0", "tcp")
    device = connect(pair.gpu, pair.storage, nqn, "tcp", "--keep-alive-tmo=3", "--reconnect-delay=1")
    direct_io(pair.gpu, "write", device, "death")
    pair.storage.kill()
    reading = pair.gpu.popen("python3", "-m", "tests.lab.inside.direct_io", "read", device, "death", "4")
    pair.storage.start()
    export(pair.storage, nqn, "/dev/lab/d0", "tcp")
    assert reading.wait().check()
    disconnect(pair.gpu, nqn)
