"""One target by two addresses: the kernel uses the better one, and goes on with one when the other fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from scripts.lib.lab.guest import Guest
from tests.lab.pools import DEADLINE, MOUNT, Nodes, host_nqn, load, ok, until

NQN = "nqn.2026-11.org.example:wide"
SECOND_ADDRESS = "192.0.2.101"
STATUS = "pool status wide -H -o"


class Wide(NamedTuple):
    """A pool on one namespace that is reached by two ways, mounted.

    :ivar port: the folder of the second way's port, at the target
    """

    storage: Guest
    gpu: Guest
    port: str


@pytest.fixture
def wide(nodes: Nodes) -> Iterator[Wide]:
    storage, gpu = nodes
    storage.sh(f"modprobe -a nvmet nvmet-tcp; ip address add {SECOND_ADDRESS}/24 dev eth0")
    addresses = (f"{storage.address}:4420", f"{SECOND_ADDRESS}:4420")
    ports = " ".join(f"--port tcp:{address}" for address in addresses)
    ok(storage, f"export add {NQN} /dev/lab/d3 {ports} --host {host_nqn(gpu)}")
    found = f"grep -l {SECOND_ADDRESS} /sys/kernel/config/nvmet/ports/*/addr_traddr | xargs dirname"
    device = f"nvme+tcp://{','.join(addresses)}/{NQN}/1"
    ok(gpu, f"pool create wide {device} --extent-size 2MiB --force", f"mount wide {MOUNT} --memory 64MiB")
    yield Wide(storage, gpu, storage.sh(found).strip())
    ok(gpu, f"umount {MOUNT}", "pool destroy wide --yes", f"target disconnect {NQN}")
    ok(storage, f"export remove {NQN}")
    storage.sh(f"ip address del {SECOND_ADDRESS}/24 dev eth0")


def test_nobody_notices_that_one_way_of_two_is_gone(wide: Wide) -> None:
    assert ok(wide.gpu, f"{STATUS} state,ways,ana,nqn") == [f"live\t2/2\toptimized\t{NQN}\n"]
    folder = f"/sys/kernel/config/nvmet/subsystems/{NQN}"
    seen: dict[str, Any] = {}
    with load(wide.gpu, seen):
        wide.storage.sh(f"rm {wide.port}/subsystems/{NQN}")
        until(wide.gpu, "1/2\n", f"{STATUS} ways")
        wide.gpu.sh("sleep 3")
        wide.storage.sh(f"ln -s {folder} {wide.port}/subsystems/")
        until(wide.gpu, "2/2\n", f"{STATUS} ways")
        wide.gpu.sh("sleep 2")
    assert seen["failed"] == {}, json.dumps(seen)
    assert seen["wrong"] == seen["missed"] == 0, json.dumps(seen)
    assert seen["longest"] < DEADLINE + seen["calm"] + seen["late"], json.dumps(seen)


def test_how_good_a_way_is_can_be_seen(wide: Wide) -> None:
    wide.storage.sh(f"echo non-optimized > {wide.port}/ana_groups/1/ana_state")
    until(wide.gpu, "optimized,non-optimized\n", f"{STATUS} ana")
    wide.storage.sh(f"echo inaccessible > {wide.port}/ana_groups/1/ana_state")
    until(wide.gpu, "optimized,inaccessible\n", f"{STATUS} ana")
    (status,) = ok(wide.gpu, "target list --json")
    assert [one["state"] for one in json.loads(status)["namespaces"]] == ["degraded"]
    wide.storage.sh(f"echo optimized > {wide.port}/ana_groups/1/ana_state")
    until(wide.gpu, "optimized\n", f"{STATUS} ana")
