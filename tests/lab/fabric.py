"""NVMe over fabrics between guests by the kernel's own means, for tests that need a target or a connection."""

from __future__ import annotations

import json

from scripts.lib.lab.guest import Guest

PORTS = {"tcp": 4420, "rdma": 4421}
"""Transport → the port on which `export` offers it."""
PATIENT = "--keep-alive-tmo=60"
"""A busy machine does not keep the 5 s that are usual; a test that wants a death noticed says otherwise after it."""
_NAMESPACE = """
for attempt in $(seq 100); do
    for subsystem in /sys/class/nvme-subsystem/*; do
        [ "$(cat $subsystem/subsysnqn)" = "$NQN" ] || continue
        for namespace in $subsystem/nvme*n1; do
            [ -b /dev/${namespace##*/} ] && echo /dev/${namespace##*/} && exit
        done
    done
    sleep 0.1
done
echo "no namespace of $NQN appears" >&2
exit 1
"""


def export(guest: Guest, nqn: str, device: str, *transports: str, key: str = "", host: str = "") -> None:
    """Offer a block device under `nqn` over these transports; with a key, only to that host and by DH-HMAC-CHAP."""
    description = {
        "nqn": nqn,
        "device": device,
        "address": guest.address,
        "ports": {transport: PORTS[transport] for transport in transports},
        "hosts": {host: key} if key else {},
    }
    guest.run("python3", "-m", "tests.lab.inside.nvmet", stdin=json.dumps(description).encode())


def connect(guest: Guest, target: Guest, nqn: str, transport: str, *options: str) -> str:
    """Connect to what `target` exports, and return the block device that appears."""
    guest.run("modprobe", f"nvme-{transport}")
    address = ("-a", target.address, "-s", str(PORTS[transport]))
    guest.run("nvme", "connect", "-t", transport, *address, "-n", nqn, PATIENT, *options)
    return guest.run("bash", "-c", _NAMESPACE, env={"NQN": nqn}).stdout.strip()


def disconnect(guest: Guest, nqn: str) -> None:
    """Leave every controller of that subsystem."""
    guest.run("nvme", "disconnect", "-n", nqn)
