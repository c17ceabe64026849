"""What a guest has that its host has not: RDMA, an NVMe target, NVMe drives; and kvfs on them."""

from __future__ import annotations

import pytest

from scripts.lib.lab.guest import Guest
from tests.lab.fabric import connect, disconnect, export

NQN = "nqn.2026-11.org.example:one"


def test_rdma_reads_and_writes(guest: Guest) -> None:
    guest.rdma_up()
    said = guest.run("python3", "-m", "tests.lab.inside.rdma_loop", guest.address, "4").stdout
    assert said == "READ right, WRITE right\n"


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_nvme_over_fabrics(guest: Guest, transport: str) -> None:
    """What the kernel's initiator writes is on the drive behind the kernel's target."""
    guest.rdma_up()
    nqn = f"{NQN}-{transport}"
    export(guest, nqn, "/dev/lab/d0", transport)
    device = connect(guest, guest, nqn, transport)
    direct_io(guest, "write", device, transport)
    direct_io(guest, "read", device, transport)
    disconnect(guest, nqn)
    direct_io(guest, "read", "/dev/lab/d0", transport)


def direct_io(guest: Guest, verb: str, device: str, seed: str) -> None:
    guest.run("python3", "-m", "tests.lab.inside.direct_io", verb, device, seed, "4")


def test_a_mount_on_a_drive(guest: Guest) -> None:
    """Files are there after kill -9 of the mount."""
    guest.sh("kvfs pool create --force hot /dev/lab/d0; mkdir /mnt/kv")
    guest.sh("kvfs mount --memory 128MiB hot /mnt/kv")
    guest.sh(
        "head -c 9000000 /dev/urandom >/tmp/block; cp /tmp/block /mnt/kv/block; cmp /tmp/block /mnt/kv/block"
    )
    guest.run("pkill", "-KILL", "-f", "kvfs mount")  # which leaves itself out, but not a shell around it
    guest.sh("kvfs umount /mnt/kv; kvfs mount --memory 128MiB hot /mnt/kv")
    guest.sh("cmp /tmp/block /mnt/kv/block; kvfs umount /mnt/kv")
