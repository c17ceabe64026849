"""Make the kernel an NVMe target: a subsystem with one namespace, and ports for it. Reads what to do from stdin.

    {"nqn": …, "device": …, "address": …, "ports": {transport: port}, "hosts": {host's NQN: DH-HMAC-CHAP key}}

Without hosts, any may connect.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

NVMET = Path("/sys/kernel/config/nvmet")


def uuid_of(nqn: str) -> uuid.UUID:
    """Of the namespace of a subsystem."""
    return uuid.uuid5(uuid.NAMESPACE_URL, nqn)


def subsystem(nqn: str, device: str, hosts: dict[str, str]) -> Path:
    folder = NVMET / "subsystems" / nqn
    folder.mkdir()
    (folder / "attr_allow_any_host").write_text(str(int(not hosts)))
    for host, key in hosts.items():
        (NVMET / "hosts" / host).mkdir()
        (NVMET / "hosts" / host / "dhchap_key").write_text(key)
        (folder / "allowed_hosts" / host).symlink_to(NVMET / "hosts" / host)
    namespace = folder / "namespaces/1"
    namespace.mkdir()
    (namespace / "device_path").write_text(device)
    # The same after the target died and came back: an initiator gives up a namespace whose identity changed.
    (namespace / "device_uuid").write_text(str(uuid_of(nqn)))
    (namespace / "enable").write_text("1")
    return folder


def offer(folder: Path, transport: str, address: str, port: int) -> None:
    """On a port of this transport and number, which is made if it is not there."""
    place = NVMET / "ports" / str(port)
    if not place.is_dir():
        subprocess.run(["modprobe", f"nvmet-{transport}"], check=True)
        place.mkdir()
        for name, value in (
            ("adrfam", "ipv4"),
            ("trtype", transport),
            ("traddr", address),
            ("trsvcid", str(port)),
        ):
            (place / f"addr_{name}").write_text(value)
    (place / "subsystems" / folder.name).symlink_to(folder)


def main() -> None:
    wanted = json.load(sys.stdin)
    subprocess.run(["modprobe", "nvmet"], check=True)
    folder = subsystem(wanted["nqn"], wanted["device"], wanted["hosts"])
    for transport, port in wanted["ports"].items():
        offer(folder, transport, wanted["address"], port)


if __name__ == "__main__":
    main()
