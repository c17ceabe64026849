"""Extents between the kernel's NVMe/RDMA target and registered memory, without the kernel's initiator between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from scripts.lib.lab.guest import Guest
from tests.lab.fabric import PORTS, connect, disconnect, export
from tests.lab.inside import nvmet
from tests.lab.pools import SECONDS, host_nqn, ok
from tests.lab.sizes import MIB

NQN = "nqn.2026-11.org.example:path"
EXTENTS = 32
"""MiB that are moved: two of the largest extents."""
MOUNT = "/mnt/kv"


@pytest.fixture
def target(guest: Guest) -> Guest:
    """A guest that is target and host at once."""
    guest.rdma_up()
    if guest.run("test", "-d", f"/sys/kernel/config/nvmet/subsystems/{NQN}", check=False).code:
        export(guest, NQN, "/dev/lab/d0", "rdma")
    return guest


def uri(guest: Guest, nqn: str = NQN, *, port: int = PORTS["rdma"], number: int | UUID = 1) -> str:
    return f"nvme+rdma://{guest.address}:{port}/{nqn}/{number}?path=rdma"


def extents(guest: Guest, verb: str, seed: str, queues: int) -> dict[str, Any]:
    """Move extents, compare every byte, and see that nothing is left behind."""
    program = ("python3", "-m", "tests.lab.inside.rdma_path", guest.address, str(PORTS["rdma"]), NQN)
    said = guest.run(*program, verb, seed, str(EXTENTS), str(queues), seconds=SECONDS).stdout
    found: dict[str, Any] = json.loads(said)
    assert not found["wrong"]
    assert not any(found["left"].values()), found
    return found


@pytest.mark.parametrize("queues", [1, 4])
def test_extents_are_what_the_kernels_initiator_wrote(target: Guest, queues: int) -> None:
    seed = f"written by the kernel {queues}"
    device = connect(target, target, NQN, "rdma")
    direct_io(target, "write", device, seed)
    disconnect(target, NQN)
    found = extents(target, "read", seed, queues)
    assert found["regions"] == 1, "the arena is registered once"
    assert found["held"]["qp"] == queues + 1


def test_the_kernels_initiator_reads_what_was_written(target: Guest) -> None:
    extents(target, "write", "written without the kernel", 4)
    device = connect(target, target, NQN, "rdma")
    direct_io(target, "read", device, "written without the kernel")
    disconnect(target, NQN)


def direct_io(guest: Guest, verb: str, device: str, seed: str) -> None:
    guest.run(
        "python3", "-m", "tests.lab.inside.direct_io", verb, device, seed, str(EXTENTS), seconds=SECONDS
    )


def test_it_is_a_device(target: Guest) -> None:
    """Which is named by its UUID."""
    name = uri(target, number=nvmet.uuid_of(NQN))
    target.run("python3", "-m", "tests.lab.inside.rdma_device", "conforms", name, seconds=SECONDS)


def test_what_cannot_be_had_says_why_and_leaves_nothing(target: Guest) -> None:
    for name, words in (
        (uri(target, port=4499), "no NVMe/RDMA target listens there"),
        (uri(target, f"{NQN}-other"), "connect invalid parameters"),
        (uri(target, number=7), "there is no namespace 7, or it is not active"),
        (uri(target).replace(target.address, "198.51.100.1"), "no RDMA device of this host leads there"),
    ):
        said = target.run("python3", "-m", "tests.lab.inside.rdma_device", "refused", name, seconds=SECONDS)
        assert words in said.stdout, said


@pytest.fixture(params=["null", "ffdhe2048"])
def locked(target: Guest, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a namespace behind a target that demands a key; keys are in /etc/kvfs: `key`, `its`, and `other`."""
    group, host = request.param, host_nqn(target)
    nqn = f"{NQN}-key-{group}"
    secrets = {name: target.run("nvme", "gen-dhchap-key").stdout.strip() for name in ("key", "its", "other")}
    for name, secret in secrets.items():
        target.write(f"/etc/kvfs/{name}", secret.encode())
        target.sh(f"chmod 600 /etc/kvfs/{name}")
    device = target.sh(f"truncate -s 16M /tmp/{group}; losetup -f --show /tmp/{group}").strip()
    export(target, nqn, device, "rdma", key=secrets["key"], host=host)
    target.sh(
        f"cd /sys/kernel/config/nvmet/hosts/{host}; echo -n '{secrets['its']}' > dhchap_ctrl_key;"
        f"echo -n {group} > dhchap_dhgroup"
    )
    yield uri(target, nqn)
    target.sh(
        f"cd /sys/kernel/config/nvmet; rm subsystems/{nqn}/allowed_hosts/* ports/*/subsystems/{nqn}; rmdir hosts/{host}"
    )


def test_a_target_that_demands_a_key(target: Guest, locked: str) -> None:
    """The kernel's target lets in who has its key, proves itself, and nobody else."""
    for verb, query, words in (
        ("had", "host-key=/etc/kvfs/key", ""),
        ("had", "host-key=/etc/kvfs/key&controller-key=/etc/kvfs/its", ""),
        ("refused", "host-key=/etc/kvfs/other", "not the one that the target has for it"),
        ("refused", "host-key=/etc/kvfs/key&controller-key=/etc/kvfs/other", "does not prove that it knows"),
        ("refused", "", "demands authentication: give the DH-HMAC-CHAP key"),
    ):
        program = ("python3", "-m", "tests.lab.inside.rdma_device", verb, f"{locked}&{query}")
        said = target.run(*program, seconds=SECONDS)
        assert words in said.stdout, said


@pytest.fixture
def mounted(target: Guest) -> Iterator[Guest]:
    """A pool that was made over RDMA and is mounted so."""
    target.sh(f"modprobe fuse; mkdir -p {MOUNT}")
    ok(
        target,
        f"pool create --force hot {uri(target)} --extent-size 2MiB",
        f"mount hot {MOUNT} --memory 64MiB",
    )
    yield target
    ok(target, f"umount {MOUNT}", "pool destroy hot --yes")


def test_a_pool_that_never_touches_the_kernels_initiator(mounted: Guest) -> None:
    mounted.sh(
        f"head -c {24 * MIB + 17} /dev/urandom > /tmp/block; cp /tmp/block {MOUNT}/block; cmp /tmp/block {MOUNT}/block"
    )
    assert ok(mounted, "pool status hot -H -o via,state") == ["rdma\tlive\n"]
    ok(mounted, f"umount {MOUNT}", f"mount hot {MOUNT} --memory 64MiB")
    mounted.sh(f"cmp /tmp/block {MOUNT}/block")
    statistics = json.loads(ok(mounted, "stats hot --json")[0])
    assert statistics["stats"]["devices"] == {
        "unreachable": 0,
        "rdma": 1,
        "kernel": 0,
        "rdma_connected": 1,
    }
    assert mounted.run("nvme", "list-subsys", "-o", "json").stdout.count(NQN) == 0
