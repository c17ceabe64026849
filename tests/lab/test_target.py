"""Pools over fabrics, with the kernel's own target and initiator: connecting, refusals, a reboot, and what breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from scripts.lib.lab.guest import Guest
from scripts.lib.lab.lab import Lab
from tests.lab.conftest import MIB, STATE, ready

FIRST = "nqn.2026-11.org.example:first"
SECOND = "nqn.2026-11.org.example:second"
CLOSED = "nqn.2026-11.org.example:closed"
KEYED = "nqn.2026-11.org.example:keyed"
DRIVE = 192 * MIB
IO_TIMEOUT = 5
EMULATED_TIMEOUT = 15
"""Seconds: an emulated machine on a busy one may take 5 for an I/O that nothing is wrong with."""
SECONDS = 600
URI = "nvme+tcp://192.0.2.1"


class Nodes(NamedTuple):
    """A storage node with three drives, and a GPU node whose state outlives a reboot."""

    storage: Guest
    gpu: Guest


def kvfs(guest: Guest, *commands: str) -> list[dict[str, Any]]:
    """Run commands, one after the other; they are separated by blanks."""
    arguments = [command.split() for command in commands]
    done = guest.run(
        "python3", "-m", "tests.lab.inside.commands", stdin=json.dumps(arguments).encode(), seconds=SECONDS
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def ok(guest: Guest, *commands: str) -> list[str]:
    answers = kvfs(guest, *commands)
    assert [answer for answer in answers if answer["code"]] == []
    return [str(answer["out"]) for answer in answers]


@pytest.fixture(scope="module")
def _nodes(lab: Lab) -> Nodes:
    storage = lab.guest("storage", drives={f"d{number}": DRIVE for number in range(3)})
    return Nodes(storage, lab.guest("gpu", disks={"state": STATE}))


@pytest.fixture
def nodes(lab: Lab, _nodes: Nodes) -> Iterator[Nodes]:
    """Running, the drives exported as three namespaces of two targets, to this host alone."""
    booted = not _nodes.storage.running
    ready(lab, *_nodes)
    if booted:
        _nodes.gpu.sh("modprobe -a nvme-tcp fuse; mkfs.ext4 -q /dev/lab/state")
        _export(_nodes)
    mount_state(_nodes.gpu)
    yield _nodes
    _nodes.gpu.sh("umount -l /mnt/kv 2> /dev/null || true; nvme disconnect-all")


def _export(nodes: Nodes) -> None:
    nodes.storage.sh("modprobe -a nvmet nvmet-tcp nvme-fabrics")
    host = nodes.gpu.read("/etc/nvme/hostnqn").decode().strip()
    where = f"--port tcp:{nodes.storage.address} --host"
    ok(
        nodes.storage,
        f"export add {FIRST} /dev/lab/d0 /dev/lab/d1 {where} {host}",
        f"export add {SECOND} /dev/lab/d2 {where} {host}",
    )


def mount_state(guest: Guest) -> None:
    guest.sh(
        "modprobe -a nvme-tcp fuse; mkdir -p /var/lib/kvfs /mnt/kv; mountpoint -q /var/lib/kvfs || "
        "mount /dev/lab/state /var/lib/kvfs"
    )


def make_pool(guest: Guest, *devices: str) -> None:
    """Make the pool `hot` and mount it."""
    ok(guest, f"pool create hot {' '.join(devices)} --extent-size 2MiB --force")
    guest.sh(f"echo 'io_timeout: {EMULATED_TIMEOUT}s' >> /var/lib/kvfs/hot/pool.yaml")
    ok(guest, "mount hot /mnt/kv --memory 64MiB")


def test_connecting_and_being_refused(nodes: Nodes) -> None:
    target = f"{URI}/{FIRST}"
    answers = kvfs(
        nodes.gpu,
        f"target discover {URI} --json",
        f"target connect {target}",
        f"target connect {target}",
        "target list --json",
        "target status --json",
        f"target disconnect {FIRST}",
        "target list --json",
        f"target connect nvme+tcp://192.0.2.77/{FIRST}",
        f"target connect {URI}:9/{FIRST}",
        f"target connect {URI}/{CLOSED}",
        f"target connect nvme+rdma://192.0.2.1/{FIRST}",
        "target list --json",
    )
    assert [answer["code"] for answer in answers] == [0, 0, 0, 0, 0, 0, 0, 103, 103, 105, 100, 0]
    offered, _, _, listed, status, _, gone, *_, nothing = answers
    assert {one["nqn"] for one in json.loads(offered["out"])["targets"]} == {FIRST, SECOND}
    namespaces = json.loads(listed["out"])["namespaces"]
    assert [(one["namespace"], one["size"], one["state"]) for one in namespaces] == [
        (1, DRIVE, "live"),
        (2, DRIVE, "live"),
    ]
    (way,) = json.loads(status["out"])["ways"]
    timers = {name: way[name] for name in ("keep_alive", "fast_io_fail", "reconnect_delay", "ctrl_loss")}
    assert timers == {"keep_alive": 5, "fast_io_fail": 5, "reconnect_delay": 1, "ctrl_loss": None}
    assert (way["io_timeout"], way["ana"], way["state"]) == (IO_TIMEOUT, "optimized", "live")
    for answer in (gone, nothing):
        assert json.loads(answer["out"])["namespaces"] == []


def test_a_pool_over_two_targets_outlives_a_reboot(nodes: Nodes) -> None:
    make_pool(nodes.gpu, f"{URI}/{FIRST}/1", f"{URI}/{FIRST}/2", f"{URI}/{SECOND}/1")
    nodes.gpu.sh("head -c 20000000 /dev/urandom > /mnt/kv/block; sha256sum /mnt/kv/block > /var/lib/kvfs/sum")
    ok(nodes.gpu, "umount /mnt/kv")
    nodes.gpu.reboot()
    mount_state(nodes.gpu)
    ok(nodes.gpu, "mount hot /mnt/kv --memory 64MiB")
    assert nodes.gpu.sh("sha256sum -c /var/lib/kvfs/sum").strip() == "/mnt/kv/block: OK"
    ok(nodes.gpu, "umount /mnt/kv", "pool destroy hot --yes")


@pytest.mark.parametrize("what", ["cable", "port", "namespace"])
def test_what_breaks_is_a_miss_and_comes_back(nodes: Nodes, what: str) -> None:
    """The first target goes away for longer than anything waits, while threads read and write."""
    make_pool(nodes.gpu, f"{URI}/{FIRST}/1", f"{URI}/{SECOND}/1")
    load = nodes.gpu.popen("python3", "-m", "tests.lab.inside.workload", "/mnt/kv", "60")
    nodes.gpu.sh("until ls /mnt/kv | grep -q 7-1; do sleep 1; done")
    folder = f"/sys/kernel/config/nvmet/subsystems/{FIRST}/namespaces/1"
    port = "/sys/kernel/config/nvmet/ports/*/subsystems"
    breaks = {
        "cable": None,
        "port": (f"rm {port}/{FIRST}", f"cd {port}; ln -s /sys/kernel/config/nvmet/subsystems/{FIRST} ."),
        "namespace": (f"echo 0 > {folder}/enable", f"echo 1 > {folder}/enable"),
    }[what]
    if breaks is None:
        nodes.storage.unplug()
    else:
        nodes.storage.sh(breaks[0])
    nodes.gpu.sh("sleep 15")
    if breaks is None:
        nodes.storage.plug()
    else:
        nodes.storage.sh(breaks[1])
    done = json.loads(load.wait(SECONDS).check().stdout)
    assert done["wrong"] == 0
    # What was being written fails, or is a miss when it is to be renamed. Nobody who reads meets an error.
    assert done["failed"].keys() <= {"write ENOSPC", "write EIO", "write ENOENT"}
    assert done["read"] > 0
    assert done["longest"] < EMULATED_TIMEOUT + 1, done
    nodes.gpu.sh(
        "for attempt in $(seq 60); do [ $(python3 -m kvfs pool status hot -H -o state | grep -c live) = 2 ] && exit; "
        "sleep 1; done; python3 -m kvfs pool status hot; exit 1",
        seconds=SECONDS,
    )
    after = nodes.gpu.run("python3", "-m", "tests.lab.inside.workload", "/mnt/kv", "10", seconds=SECONDS)
    assert json.loads(after.stdout)["failed"] == {}
    ok(nodes.gpu, "umount /mnt/kv", "pool destroy hot --yes")
