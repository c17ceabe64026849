"""`kvfs target` with the kernel's own target and initiator: connecting, and every way of being refused."""

from __future__ import annotations

import json

from scripts.lib.lab.guest import Guest
from tests.dhchap import secret
from tests.lab.pools import DRIVE, FIRST, SECOND, Nodes, export, host_nqn, kvfs, ok, uri

CLOSED = "nqn.2026-11.org.example:closed"
KEYED = "nqn.2026-11.org.example:keyed"
IO_TIMEOUT = 5
CONNECTED = "cat /sys/class/nvme-subsystem/*/subsysnqn | grep example || true"


def put_key(guest: Guest, path: str, key: str) -> None:
    guest.write(path, f"{key}\n".encode())
    guest.run("chmod", "600", path)


def test_connecting(nodes: Nodes) -> None:
    export(nodes, "tcp", "rdma")
    for transport in ("tcp", "rdma"):
        target = uri(nodes.storage, FIRST, transport)
        discover = f"target discover {target.removesuffix('/' + FIRST)} --json"
        offered = json.loads(ok(nodes.gpu, discover, *[f"target connect {target}"] * 2)[0])
        answers = ok(
            nodes.gpu,
            "target list --json",
            "target status --json",
            f"target disconnect {FIRST}",
            "target list --json",
        )
        listed, status, _, gone = (json.loads(out or "{}") for out in answers)
        assert {one["nqn"] for one in offered["targets"]} == {FIRST, SECOND}
        namespaces = [(one["namespace"], one["size"], one["state"]) for one in listed["namespaces"]]
        assert namespaces == [(1, DRIVE, "live"), (2, DRIVE, "live")]
        (way,) = status["ways"]
        timers = {name: way[name] for name in ("keep_alive", "fast_io_fail", "reconnect_delay", "ctrl_loss")}
        assert timers == {"keep_alive": 5, "fast_io_fail": 5, "reconnect_delay": 1, "ctrl_loss": None}
        assert (way["transport"], way["io_timeout"]) == (transport, IO_TIMEOUT)
        assert (way["ana"], way["state"]) == ("optimized", "live")
        assert gone["namespaces"] == []


def test_refusals(nodes: Nodes) -> None:
    """One message each that says what to do, an exit code of its kind, and nothing half-connected."""
    export(nodes, "tcp", "rdma")
    storage, gpu = nodes
    ports = f"--port tcp:{storage.address}:4420 --port rdma:{storage.address}:4421"
    put_key(storage, "/run/key", secret(1))
    put_key(gpu, "/run/wrong", secret(2))
    put_key(gpu, "/run/right", secret(1))
    gpu.write("/run/open", secret(1).encode())
    ok(
        storage,
        f"export add {CLOSED} /dev/lab/d3 {ports} --host nqn.2026-11.org.example:another",
        f"export add {KEYED} /dev/lab/d4 {ports} --host {host_nqn(gpu)} --key-file /run/key",
    )
    keyed = uri(storage, KEYED)
    refused = {
        f"target connect nvme+tcp://192.0.2.77/{FIRST}": (103, "no answer within 3 s"),
        f"target connect nvme+tcp://{storage.address}:9/{FIRST}": (103, "Connection refused"),
        f"target connect nvme+rdma://192.0.2.77/{FIRST}": (103, "no target answers"),
        f"target connect nvme+tcp://nowhere.example/{FIRST}": (103, "no such host"),
        f"target connect nvme+tcp://{storage.address}:4421/{FIRST}": (104, "write nvme+rdma://"),
        f"target connect nvme+rdma://{storage.address}:4420/{FIRST}": (104, "does not speak RDMA"),
        f"target connect {uri(storage, CLOSED)}": (105, f"to this host, {host_nqn(gpu)}: allow"),
        f"target connect {uri(storage, CLOSED, 'rdma')}": (105, "allow this host at the target"),
        f"target connect {keyed}": (106, "give the file"),
        f"target connect {keyed} --host-key /run/wrong": (106, "refuses the key of this host"),
        f"target connect {keyed} --host-key /run/missing": (106, "No such file"),
        f"target connect {keyed} --host-key /run/open": (106, "chmod 600"),
    }
    answers = kvfs(gpu, *refused)
    found = {" ".join(one["arguments"]): (one["code"], one["err"]) for one in answers}
    wrong = {
        command: found[command]
        for command, (code, says) in refused.items()
        if found[command][0] != code or says not in found[command][1] or found[command][1].count("\n") != 1
    }
    assert wrong == {}
    assert gpu.sh(CONNECTED) == ""
    for transport in ("tcp", "rdma"):
        ok(gpu, f"target connect {uri(storage, KEYED, transport)} --host-key /run/right")
        assert gpu.sh(CONNECTED) == f"{KEYED}\n"
        ok(gpu, f"target disconnect {KEYED}")
