"""From drives on a storage node to a mount on a GPU node that keeps what engines left there; and a host too many."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from scripts.lib.lab.guest import Guest
from tests.lab.pools import (
    DRIVE,
    FIRST,
    MOUNT,
    SECOND,
    SECONDS,
    STATE_DIRECTORY,
    Nodes,
    export,
    host_nqn,
    kvfs,
    ok,
    prepare_gpu,
    uri,
)
from tests.test_project import ROOT

PLAIN = "/var/tmp/plain"
DOCUMENT = ROOT / "docs/administration.md"


def contents(guest: Guest) -> dict[str, list[object]]:
    """Every file in the mount: its size and digest."""
    done = guest.run("python3", "-m", "tests.lab.inside.contents", MOUNT, seconds=SECONDS)
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


def test_from_nothing_to_a_mount_that_outlives_a_reboot(nodes: Nodes) -> None:
    """Three namespaces of two targets, one over TCP and one over RDMA, and all that engines do to files."""
    storage, gpu = nodes
    export(nodes, "tcp", "rdma")
    first, second = uri(storage, FIRST), uri(storage, SECOND, "rdma")
    offered, *_ = ok(
        gpu,
        f"target discover nvme+tcp://{storage.address} -H -o nqn",
        f"target connect {first}",
        f"target connect {second}",
        f"pool create hot {first}/1 {first}/2 {second}/1 --extent-size 2MiB",
        f"mount hot {MOUNT} --memory 256MiB",
    )
    assert set(offered.split()) == {FIRST, SECOND}
    suite = ("python3", "-m", "tests.e2e.patterns", PLAIN, MOUNT)
    said = gpu.run(*suite, seconds=SECONDS, check=False)
    assert said.code == 0, f"{said.stdout}{said.stderr}"
    before = contents(gpu)
    assert len(before) >= 100
    ok(gpu, f"umount {MOUNT}")
    gpu.reboot()
    prepare_gpu(gpu)
    gpu.rdma_up()
    ok(gpu, f"mount hot {MOUNT} --memory 256MiB")
    assert contents(gpu) == before
    ok(gpu, f"umount {MOUNT}", "pool destroy hot --yes")


@pytest.fixture
def second(nodes: Nodes) -> Iterator[Guest]:
    """The storage node as another host that may use the first target: with a state directory of its own."""
    export(nodes, "tcp")
    storage = nodes.storage
    storage.sh("modprobe -a nvme-tcp fuse; mkdir -p /mnt/other")
    ok(
        storage,
        f"export add {FIRST} --host {host_nqn(storage)}",
        f"target connect {uri(storage, FIRST)}",
    )
    yield storage
    ok(storage, f"target disconnect {FIRST}")


def test_a_second_host_is_refused_and_sees_what_is_on_the_media(nodes: Nodes, second: Guest) -> None:
    gpu, device = nodes.gpu, f"{uri(nodes.storage, FIRST)}/1"
    look = f"pool create mine {device} --dry-run -H -o holds"
    assert ok(second, look) == ["-\n"]
    # What is in this host's page cache now, and stays as long as somebody has the device open, is of before the pool.
    path = json.loads(ok(second, "target list --json")[0])["namespaces"][0]["device"]
    holder = second.popen("bash", "-c", f"exec 3< {path}; head -c 4M <&3 | sha256sum; sleep 1000")
    holder.wait_for("-")
    ok(gpu, f"pool create hot {device}", f"mount hot {MOUNT} --memory 64MiB")
    gpu.sh(f"head -c 3000000 /dev/urandom > {MOUNT}/block; sha256sum {MOUNT}/block > /tmp/sum")
    second.write(f"{STATE_DIRECTORY}/hot/pool.yaml", gpu.read(f"{STATE_DIRECTORY}/hot/pool.yaml"))
    answers = kvfs(
        second,
        look,
        f"pool create mine {device}",
        "mount hot /mnt/other --memory 64MiB",
        "pool status hot -o number",
        f"pool take hot {device}",
    )
    assert [answer["code"] for answer in answers] == [53, 53, 61, 61, 61], answers
    assert all("pool 'hot'" in answer["err"] for answer in answers[1:]), answers
    assert "--force" in answers[-1]["err"]
    assert second.run("mountpoint", "-q", "/mnt/other", check=False).code
    assert gpu.sh("sha256sum -c /tmp/sum").strip().endswith(": OK")
    ok(gpu, f"umount {MOUNT}", "pool destroy hot --yes")
    assert ok(second, look) == ["-\n"]
    holder.signal(9)
    second.run("rm", "-r", f"{STATE_DIRECTORY}/hot")


def blocks(section: str) -> list[str]:
    """The shell of a section of the administrators' document, but for what takes systemd, which guests do not have."""
    text = DOCUMENT.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for block in found if not block.startswith(("systemctl", "nvme+"))]


def test_the_examples_for_hosts_work(nodes: Nodes) -> None:
    """As written: the storage node is 192.0.2.1, and the second target is at the GPU node's own address."""
    storage, gpu = nodes
    once, *rest = blocks("Targets")
    gpu.sh(once)
    nqn = "nqn.2026-01.org.example:hot"
    for guest, name, device in ((storage, nqn, "/dev/lab/d3"), (gpu, f"{nqn}2", "/dev/lab/near")):
        guest.sh("modprobe -a nvmet nvmet-tcp")
        ok(guest, f"export add {name} {device} --port tcp:{guest.address} --host {host_nqn(gpu)}")
    said = "".join(gpu.sh(f"exec 2>&1\n{block}", seconds=SECONDS) for block in rest)
    assert re.search(rf"^/dev/nvme\S+ +{DRIVE >> 20}MiB +nvme\+tcp://192.0.2.1/{nqn}/", said, re.MULTILINE), (
        said
    )
    gpu.sh(f"echo kept > {MOUNT}/note; grep -q kept {MOUNT}/note")
    ok(
        gpu,
        f"umount {MOUNT}",
        "pool destroy hot --yes",
        f"target disconnect {nqn}",
        f"target disconnect {nqn}2",
    )
    for guest, name in ((storage, nqn), (gpu, f"{nqn}2")):
        ok(guest, f"export remove {name}")
