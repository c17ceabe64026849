"""`kvfs export` and the kernel's own target, as hosts see it: plain nvme-cli on the other guest."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfs.export.testing import FakeTarget
from scripts.lib.lab.channel import Finished
from scripts.lib.lab.guest import Guest
from tests.dhchap import secret
from tests.kvfs.target_conformance import ADDRESS, answers
from tests.lab.conftest import Pair
from tests.lab.fabric import disconnect
from tests.lab.pools import kvfs
from tests.test_project import ROOT

NQN = "nqn.2026-11.org.example:export"
SERVICES = {"tcp": 4420, "rdma": 4421}
STATE = "/mnt/state"
FILE = f"{STATE}/exports.yaml"
"""On a disk that outlives a reboot, which a guest's own /etc does not."""
_DEVICE = f"""
for attempt in $(seq 300); do
    for subsystem in /sys/class/nvme-subsystem/*; do
        [ "$(cat $subsystem/subsysnqn 2>/dev/null)" = {NQN} ] || continue
        for namespace in $subsystem/nvme*n1; do
            [ -b /dev/${{namespace##*/}} ] && echo ${{namespace##*/}} && exit
        done
    done
    sleep 0.1
done
exit 1
"""
_GONE = f"""
for attempt in $(seq 600); do
    grep -qx {NQN} /sys/class/nvme-subsystem/*/subsysnqn 2>/dev/null || exit 0
    sleep 0.1
done
exit 1
"""
_LISTEN = """
import socket, time
server = socket.create_server(("", 4420))
print("listening", flush=True)
time.sleep(3600)
"""


class Node:
    """The storage guest, and what is exported there."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def export(self, verb: str, *arguments: str, check: bool = True) -> Finished:
        argv = ("export", verb, *arguments, "--file", FILE)
        (answer,) = kvfs(self.guest, " ".join(argv))
        done = Finished(argv, answer["code"], answer["out"].encode(), answer["err"].encode())
        return done.check() if check else done

    def add(self, host: str, *more: str) -> None:
        ports = (f"{transport}:{self.guest.address}:{service}" for transport, service in SERVICES.items())
        self.export(
            "add",
            NQN,
            "/dev/lab/d0",
            *(word for port in ports for word in ("--port", port)),
            "--host",
            host,
            *more,
        )

    def refused(self, code: int, says: str, *arguments: str) -> None:
        """An `add` that must fail, and leave the kernel's target as it was."""
        before = self.tree()
        result = self.export("add", *arguments, check=False)
        assert result.code == code, result
        assert re.search(says, result.stderr), result
        assert self.tree() == before

    def tree(self) -> str:
        return self.guest.sh("cd /sys/kernel/config/nvmet; find . | sort; { grep -rs . . || true; } | sort")

    def prepare(self) -> None:
        """As the services of a booting storage node do."""
        self.guest.rdma_up()
        self.guest.sh(
            "modprobe nvmet; blkid /dev/lab/state >/dev/null || mkfs.ext4 -q /dev/lab/state;"
            f"mkdir -p {STATE}; mountpoint -q {STATE} || mount /dev/lab/state {STATE}"
        )

    def clear(self) -> None:
        self.export("stop")
        self.guest.run("rm", "-f", FILE)


@pytest.fixture
def node(pair: Pair) -> Iterator[Node]:
    node = Node(pair.storage)
    node.prepare()
    pair.gpu.rdma_up()
    pair.gpu.run("modprobe", "-a", "nvme-tcp", "nvme-rdma")
    yield node
    disconnect(pair.gpu, NQN)
    node.clear()


@pytest.fixture
def host(pair: Pair) -> str:
    return pair.gpu.read("/etc/nvme/hostnqn").decode().strip()


def connect(pair: Pair, transport: str, *options: str) -> Finished:
    return pair.gpu.run(
        *("nvme", "connect", "-t", transport, "-a", pair.storage.address, "-s", str(SERVICES[transport])),
        *("-n", NQN, "--reconnect-delay=1", *options),
        check=False,
    )


def device(gpu: Guest) -> str:
    """The name of the block device of the export, once it is there."""
    return gpu.sh(_DEVICE).strip()


def direct_io(guest: Guest, verb: str, path: str, seed: str) -> None:
    guest.run("python3", "-m", "tests.lab.inside.direct_io", verb, path, seed, "4")


def test_a_drive_is_offered_over_both_transports(pair: Pair, node: Node, host: str) -> None:
    node.add(host)
    tree = node.tree()
    node.add(host)
    assert node.tree() == tree, "the same again changes nothing"
    shown = json.loads(node.export("show", NQN, "--json").stdout)["export"]
    assert shown["state"] == "live"
    for transport in SERVICES:
        assert connect(pair, transport).code == 0
        name = device(pair.gpu)
        assert pair.gpu.read(f"/sys/block/{name}/uuid").decode().strip() == shown["namespaces"][0]["uuid"]
        direct_io(pair.gpu, "write", f"/dev/{name}", transport)
        direct_io(pair.gpu, "read", f"/dev/{name}", transport)
        disconnect(pair.gpu, NQN)
        direct_io(pair.storage, "read", "/dev/lab/d0", transport)


def test_only_a_host_that_is_named_connects(pair: Pair, node: Node, host: str) -> None:
    node.add("nqn.2026-11.org.example:another")
    assert connect(pair, "tcp").code
    assert connect(pair, "rdma").code
    node.add(host)
    assert connect(pair, "tcp").code == 0
    device(pair.gpu)


def test_a_host_connects_with_the_right_key_only(pair: Pair, node: Node, host: str) -> None:
    key, other = pair.gpu.run("nvme", "gen-dhchap-key").stdout.strip(), secret(9)
    pair.storage.write("/run/key", f"{key}\n".encode())
    pair.storage.run("chmod", "600", "/run/key")
    node.add(host, "--key-file", "/run/key")
    for transport in SERVICES:
        assert connect(pair, transport).code, "without a key"
        if transport == "tcp":  # over RDMA, this kernel's initiator may hang for good after a wrong key
            assert connect(pair, transport, "--dhchap-secret", other).code, "with another key"
        assert connect(pair, transport, "--dhchap-secret", key).code == 0
        device(pair.gpu)
        disconnect(pair.gpu, NQN)


def test_a_host_that_is_connected_loses_what_is_removed(pair: Pair, node: Node, host: str) -> None:
    node.add(host, "--host", "nqn.2026-11.org.example:another")
    assert connect(pair, "tcp").code == 0
    device(pair.gpu)
    node.export("remove", NQN, "--host", host)
    pair.gpu.sh(_GONE)
    assert connect(pair, "tcp").code, "nor does it come back"
    node.add(host)
    assert connect(pair, "rdma").code == 0
    device(pair.gpu)
    node.export("remove", NQN)
    names = pair.storage.sh("cd /sys/kernel/config/nvmet; ls hosts subsystems ports").split()
    assert names == ["hosts:", "ports:", "subsystems:"]


def test_a_host_finds_its_drive_again_after_a_reboot_of_the_node(pair: Pair, node: Node, host: str) -> None:
    node.add(host)
    before = node.tree()
    assert connect(pair, "tcp", "--keep-alive-tmo=3").code == 0
    name = device(pair.gpu)
    direct_io(pair.gpu, "write", f"/dev/{name}", "reboot")
    pair.storage.reboot()
    node.prepare()
    assert node.export("list", "-H", "-o", "state").stdout == "down\n"
    node.export("restore")
    assert node.tree() == before
    direct_io(pair.gpu, "read", f"/dev/{name}", "reboot")  # waits until the kernel has connected again
    node.export("restore")
    assert node.tree() == before


def test_what_cannot_be_exported_is_refused_and_undone(pair: Pair, node: Node, host: str) -> None:
    address = pair.storage.address
    add = (NQN, "/dev/lab/d0", "--host", host, "--port")
    node.refused(86, "not an address of this node", *add, "tcp:192.0.2.77")
    listening = pair.storage.popen("python3", "-c", _LISTEN)
    listening.wait_for("listening")
    node.refused(85, "something else listens there", *add, f"tcp:{address}")
    listening.signal(signal.SIGKILL)
    listening.wait()
    node.refused(88, f"mounted on {STATE}", NQN, "/dev/lab/state", "--host", host, "--port", f"tcp:{address}")
    node.add(host)
    node.refused(87, f"namespace 1 of {NQN}", f"{NQN}-2", "/dev/lab/d0", "--port", f"tcp:{address}")


def test_the_fake_target_answers_as_the_kernel_does(pair: Pair, node: Node, tmp_path: Path) -> None:
    pair.storage.sh(f"fallocate -l 4M {STATE}/device")
    printed = pair.storage.run("python3", "-m", "tests.kvfs.target_conformance", f"{STATE}/device").stdout
    fake = FakeTarget(tmp_path / "nvmet", (ADDRESS,))
    (tmp_path / "device").write_bytes(bytes(4096))
    ours = [line.replace(str(tmp_path), STATE) for line in answers(fake, tmp_path / "device")]
    differ = [both for both in zip(ours, json.loads(printed), strict=True) if both[0] != both[1]]
    assert not differ, differ


def blocks() -> list[str]:
    """The shell of the section for storage nodes, but for what takes systemd, which guests do not have."""
    section = (ROOT / "docs/administration.md").read_text().split("\n## Storage nodes\n")[1].split("\n## ")[0]
    found = re.findall(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return [block for block in found if not block.startswith("systemctl")]


def test_the_examples_of_the_documents_work(pair: Pair, node: Node) -> None:
    pair.storage.sh("mkdir -p /dev/disk/by-id; ln -sf /dev/lab/d1 /dev/disk/by-id/nvme-drive1")
    said = [pair.storage.sh(f"exec 2>&1\n{block}") for block in blocks()]
    assert any(re.search(r"^nqn\S+:hot +live +1 ", text, re.MULTILINE) for text in said), said
    assert any("(with key)" in text or "rdma:192.0.2.1:4420" in text for text in said), said
    assert pair.storage.sh("ls /sys/kernel/config/nvmet/subsystems") == "", "the last of them removes it"
