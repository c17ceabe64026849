"""Who we are to targets, and what lets us in: names and keys from files, and the private configuration that carries keys.

nvme-cli takes a key as an argument, where every user of the host can read it, or from a configuration file. So a
connection with keys gets a file of its own: JSON for 2.x, INI for 3.x.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blockdev.errors import FabricsError
from blockdev.nvme.names import Portal, Target
from blockdev.nvme.records import Timers


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """By what targets know this host: both are given with every connection, since some tell hosts by either."""

    nqn: str
    id: str


def read_host_identity(folder: Path = Path("/etc/nvme")) -> HostIdentity:
    """This host's name and id, from nvme-cli's files.

    :raises FabricsError: they are missing; nvme-cli would make up others at each call, which no target could know
    """
    found = []
    for name in ("hostnqn", "hostid"):
        try:
            found.append((folder / name).read_text().strip())
        except OSError as error:
            raise FabricsError(f"{folder / name}: {error.strerror}; {_MAKE.format(folder=folder)}") from None
    if not all(found):
        raise FabricsError(f"{folder}/hostnqn or {folder}/hostid is empty; {_MAKE.format(folder=folder)}")
    return HostIdentity(*found)


_MAKE: Final = (
    "install nvme-cli, whose package makes both, or make them once with "
    "'mkdir -p {folder}; nvme gen-hostnqn > {folder}/hostnqn' and "
    "'sed s/.*uuid:// {folder}/hostnqn > {folder}/hostid'"
)


# ── private configurations ───────────────────────────────────────────────────────────────────────────────────


def loss_argument(timers: Timers) -> str:
    """`ctrl_loss` as nvme-cli and the kernel write it."""
    return "-1" if timers.ctrl_loss is None else str(timers.ctrl_loss)


def json_config(target: Target, portal: Portal, host: HostIdentity, keys: list[str | None]) -> str:
    """The configuration file of 2.x that holds just this connection."""
    host_key, controller_key = keys
    port = {
        "transport": portal.transport.value,
        "traddr": portal.address,
        "trsvcid": portal.service,
        "dhchap_key": host_key,
        "dhchap_ctrl_key": controller_key,
    }
    subsystem = {"nqn": target.nqn, "ports": [_present(port)]}
    whole = {"hostnqn": host.nqn, "hostid": host.id, "dhchap_key": host_key, "subsystems": [subsystem]}
    return json.dumps([_present(whole)])


def _present(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value}


def ini_config(
    target: Target, portal: Portal, host: HostIdentity, timers: Timers, keys: list[str | None]
) -> str:
    """The configuration file of 3.x that holds just this connection."""
    controller = f"transport={portal.transport.value};traddr={portal.address};trsvcid={portal.service}"
    pairs = {
        "nqn": target.nqn,
        "controller": controller if portal.address else f"transport={portal.transport.value};traddr=",
        "keep-alive-tmo": str(timers.keep_alive),
        "reconnect-delay": str(timers.reconnect_delay),
        "ctrl-loss-tmo": loss_argument(timers),
        "kxchap-secret": keys[0],
        "kxchap-ctrl-secret": keys[1],
        "tls": "yes" if target.credentials.tls else None,
    }
    lines = [f"{key} = {value}" for key, value in pairs.items() if value]
    return "\n".join(["[Host]", f"hostnqn = {host.nqn}", f"hostid = {host.id}", "[Subsystem]", *lines, ""])
