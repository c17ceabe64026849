"""Pools over fabrics, for the tests that need them: two targets on the storage node, and the command on either guest."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from blockdev.file_device import IO_TIMEOUT
from scripts.lib.lab.guest import Guest
from tests.lab.sizes import MIB

FIRST = "nqn.2026-11.org.example:first"
SECOND = "nqn.2026-11.org.example:second"
DRIVE = 512 * MIB
"""Bytes. What the suite of engines' patterns leaves must fit three of them, or some of it is evicted."""
SERVICES = {"tcp": 4420, "rdma": 4421}
STATE_DIRECTORY = "/var/lib/kvfs"
MOUNT = "/mnt/kv"
SECONDS = 600
DEADLINE = IO_TIMEOUT + 1
"""Seconds that any call may take, on a machine that is never late."""


class Nodes(NamedTuple):
    """A storage node with five drives, d0 to d4, and a GPU node with one, `near`, and a state that outlives a reboot."""

    storage: Guest
    gpu: Guest


def kvfs(guest: Guest, *commands: str) -> list[dict[str, Any]]:
    """Run commands, one after the other; their words are separated by blanks. Each answer has code, out, err, seconds."""
    arguments = [command.split() for command in commands]
    done = guest.run(
        "python3", "-m", "tests.lab.inside.commands", stdin=json.dumps(arguments).encode(), seconds=SECONDS
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def ok(guest: Guest, *commands: str) -> list[str]:
    """Run commands that must succeed; what each printed."""
    answers = kvfs(guest, *commands)
    failed = [answer for answer in answers if answer["code"]]
    assert not failed, json.dumps(failed)
    return [str(answer["out"]) for answer in answers]


def until(guest: Guest, wanted: str, command: str) -> None:
    """Run a command until it prints what is wanted, for a minute at most."""
    program = ("python3", "-m", "tests.lab.inside.until", "60", wanted, *command.split())
    guest.run(*program, seconds=SECONDS)


def uri(storage: Guest, nqn: str, transport: str = "tcp") -> str:
    """How the GPU node names a target."""
    return f"nvme+{transport}://{storage.address}:{SERVICES[transport]}/{nqn}"


def host_nqn(guest: Guest) -> str:
    """By what name targets know a guest."""
    return guest.read("/etc/nvme/hostnqn").decode().strip()


def export(nodes: Nodes, *transports: str) -> None:
    """Offer d0 and d1 as one target and d2 as another, to the GPU node alone, over these transports."""
    storage = nodes.storage
    if "rdma" in transports:
        for guest in nodes:
            guest.rdma_up()
    storage.sh("modprobe -a nvmet nvmet-tcp nvme-fabrics" + (" nvmet-rdma" if "rdma" in transports else ""))
    ports = " ".join(f"--port {one}:{storage.address}:{SERVICES[one]}" for one in transports)
    where = f"{ports} --host {host_nqn(nodes.gpu)}"
    ok(
        storage,
        f"export add {FIRST} /dev/lab/d0 /dev/lab/d1 {where}",
        f"export add {SECOND} /dev/lab/d2 {where}",
    )


def prepare_gpu(guest: Guest) -> None:
    """What a GPU node has after a boot: modules, and its state directory on the disk that outlives it."""
    guest.sh(
        f"modprobe -a nvme-tcp nvme-rdma fuse; mkdir -p {STATE_DIRECTORY} {MOUNT};"
        "blkid /dev/lab/state > /dev/null || mkfs.ext4 -q /dev/lab/state;"
        f"mountpoint -q {STATE_DIRECTORY} || mount /dev/lab/state {STATE_DIRECTORY}"
    )


@contextmanager
def load(guest: Guest, seen: dict[str, Any]) -> Iterator[None]:
    """Threads write and read in the mount before and during the block; `seen` gets what they met."""
    running = guest.popen("python3", "-m", "tests.lab.inside.workload", MOUNT)
    running.wait_for("begun", SECONDS)
    guest.sh("sleep 2")
    running.signal(signal.SIGUSR1)
    yield
    running.signal(signal.SIGTERM)
    seen.update(json.loads(running.wait(SECONDS).check().stdout.splitlines()[-1]))
