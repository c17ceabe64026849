"""What breaks under a mount while threads write and read: a miss, in time, and in use again without a remount.

With the time-outs that kvfs has when nobody says otherwise. The pool lies on two targets and a drive of the GPU node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.lab.pools import (
    DEADLINE,
    FIRST,
    MOUNT,
    SECOND,
    SERVICES,
    Nodes,
    export,
    host_nqn,
    load,
    ok,
    until,
    uri,
)

LONG = 15
"""Seconds: longer than anything waits."""
SHORT = 5
THIN = "nqn.2026-11.org.example:thin"
_FOLDER = f"/sys/kernel/config/nvmet/subsystems/{FIRST}"
_PORT = "/sys/kernel/config/nvmet/ports/*/subsystems"


class Fault(NamedTuple):
    """What happens to the storage node, for how many seconds, and what is done about it."""

    breaks: Callable[[Nodes], object]
    mends: Callable[[Nodes], object]
    seconds: float = LONG


def _restart(nodes: Nodes) -> None:
    nodes.storage.start()
    export(nodes, "tcp")


FAULTS = {
    "the cable, for a moment": Fault(lambda nodes: nodes.storage.unplug(), lambda nodes: nodes.storage.plug(), SHORT),
    "the cable": Fault(lambda nodes: nodes.storage.unplug(), lambda nodes: nodes.storage.plug()),
    "the port": Fault(
        lambda nodes: nodes.storage.sh(f"rm {_PORT}/{FIRST}"),
        lambda nodes: nodes.storage.sh(f"cd {_PORT}; ln -s {_FOLDER} ."),
    ),
    "the namespace": Fault(
        lambda nodes: nodes.storage.sh(f"echo 0 > {_FOLDER}/namespaces/1/enable"),
        lambda nodes: nodes.storage.sh(f"echo 1 > {_FOLDER}/namespaces/1/enable"),
    ),
    "the node": Fault(lambda nodes: nodes.storage.kill(), _restart, 0),
}  # fmt: skip
# The last one takes as long as a boot does.


@pytest.fixture
def hot(nodes: Nodes) -> Iterator[Nodes]:
    """The pool is mounted: once for all faults, each of which must leave it as it was."""
    if not nodes.storage.sh("ls /sys/kernel/config/nvmet/subsystems 2> /dev/null || true"):
        export(nodes, "tcp")
    devices = " ".join(f"{uri(nodes.storage, nqn)}/1" for nqn in (FIRST, SECOND))
    ok(nodes.gpu, f"pool create hot {devices} /dev/lab/near --extent-size 2MiB --force")
    ok(nodes.gpu, f"mount hot {MOUNT} --memory 64MiB")
    yield nodes
    ok(nodes.gpu, f"umount {MOUNT}", "pool destroy hot --yes")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_what_breaks_is_a_miss_and_comes_back(hot: Nodes, fault: Fault) -> None:
    seen: dict[str, Any] = {}
    with load(hot.gpu, seen):
        fault.breaks(hot)
        hot.gpu.sh(f"sleep {fault.seconds}")
        fault.mends(hot)
        until(hot.gpu, "live\n" * 3, "pool status hot -H -o state")
        hot.gpu.sh("sleep 3")
    assert seen["wrong"] == 0
    assert seen["read"] > 0
    # What was on its way to the device goes elsewhere. What was there already is a miss, to who renames it as well.
    assert seen["failed"].keys() <= {"rename ENOENT"}, json.dumps(seen)
    assert seen["longest"] < DEADLINE + seen["calm"] + seen["late"], json.dumps(seen)
    after: dict[str, Any] = {}
    with load(hot.gpu, after):
        hot.gpu.sh("sleep 3")
    assert after["failed"] == {}, json.dumps(after)
    assert after["wrong"] == after["missed"] == 0, json.dumps(after)


@pytest.fixture
def thin(nodes: Nodes) -> Iterator[Nodes]:
    """A pool with a namespace that promises more than its file has blocks, and a drive of the GPU node."""
    storage = nodes.storage
    storage.sh(
        "modprobe -a nvmet nvmet-tcp; mkdir -p /mnt/thin; mkfs.ext4 -qF /dev/lab/d4; mount /dev/lab/d4 /mnt/thin;"
        "truncate -s 160M /mnt/thin/drive"
    )
    where = f"--port tcp:{storage.address}:{SERVICES['tcp']} --host {host_nqn(nodes.gpu)}"
    ok(storage, f"export add {THIN} /mnt/thin/drive {where}")
    storage.sh("fallocate --punch-hole -o 0 -l 160M /mnt/thin/drive")
    ok(nodes.gpu, f"pool create thin {uri(storage, THIN)}/1 /dev/lab/near --extent-size 2MiB --force")
    ok(nodes.gpu, f"mount thin {MOUNT} --memory 64MiB")
    yield nodes
    ok(nodes.gpu, f"umount {MOUNT}", "pool destroy thin --yes", f"target disconnect {THIN}")
    ok(storage, f"export remove {THIN}")
    storage.sh("umount /mnt/thin")


def test_a_disk_that_is_full_under_a_namespace_fails_nobody(thin: Nodes) -> None:
    seen: dict[str, Any] = {}
    with load(thin.gpu, seen):
        thin.storage.sh("dd if=/dev/zero of=/mnt/thin/fill bs=1M 2> /dev/null || true")
        thin.gpu.sh(f"sleep {LONG}")
        assert thin.gpu.sh("dmesg | grep -c 'space allocation error'").strip() != "0"
        thin.storage.sh("rm /mnt/thin/fill")
    assert ok(thin.gpu, "pool status thin -H -o state") == ["live\n" * 2]
    assert seen["failed"] == {}, json.dumps(seen)
    assert seen["wrong"] == seen["missed"] == 0, json.dumps(seen)
    assert seen["longest"] < DEADLINE + seen["calm"] + seen["late"], json.dumps(seen)
