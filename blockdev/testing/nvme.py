"""Targets, a network and nvme-cli in memory: what `CommandRunner` and sysfs show of them is in a folder.

A FakeFabric is a `CommandRunner`. What is connected through it appears as a sysfs tree and as block devices, which are
links to files, so that everything above runs unchanged. Failures print what the program prints.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import trio

from blockdev.errors import TargetUnreachable
from blockdev.nvme import Completed, HostIdentity, NvmeCli, Portal, Sysfs, Transport

HOST = HostIdentity("nqn.2014-08.org.nvmexpress:uuid:fake-host", "00000000-0000-4000-8000-00000000cafe")
_DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
_REFUSED = "Failed to write to /dev/nvme-fabrics: Input/output error\ncould not add new controller: failed to write to nvme-fabrics device\n"
_UNREACHABLE = "Failed to write to /dev/nvme-fabrics: Connection timed out\ncould not add new controller: failed to write to nvme-fabrics device\n"
_NO_KEY = "Failed to write to /dev/nvme-fabrics: Required key not available\ncould not add new controller: pre-shared TLS key is missing\n"


class _FolderAsSysfs(Sysfs):
    @staticmethod
    def write(path: Path, text: str) -> None:
        _put(path, text)


def _put(path: Path, text: str) -> None:
    """The kernel's files are never seen half written, and others read meanwhile."""
    spare = path.with_name(f".{path.name}")
    spare.write_text(f"{text}\n")
    spare.replace(path)


@dataclass(slots=True)
class FakeSubsystem:
    """A subsystem that a target offers.

    :ivar namespaces: by number: UUID, and the file that holds it
    :ivar hosts: who may use it; None is everybody
    :ivar key: the DH-HMAC-CHAP secret that a host must have
    :ivar unseen: the namespaces that the host's kernel has not found yet
    """

    nqn: str
    portals: list[Portal]
    namespaces: dict[int, tuple[UUID, Path]]
    hosts: set[str] | None = None
    key: str | None = None
    unseen: set[int] = field(default_factory=set)

    @property
    def seen(self) -> dict[int, tuple[UUID, Path]]:
        """The namespaces that there are block devices of."""
        return {number: one for number, one in self.namespaces.items() if number not in self.unseen}


@dataclass(slots=True)
class _Connection:
    name: str
    subsystem: FakeSubsystem
    portal: Portal
    state: str = "live"
    kato: str = "5"


@dataclass(slots=True)
class FakeFabric:
    """Everything that there is, and the program to reach it.

    :ivar folder: holds `sys` and `dev`
    :ivar version: of the program that is played
    :ivar commands: the arguments that it was run with
    :ivar configs: the private configurations that it was given
    :ivar down: ways on which nothing answers
    """

    folder: Path
    version: str = "2.13"
    subsystems: list[FakeSubsystem] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)
    down: set[Portal] = field(default_factory=set)
    ana: dict[Portal, str] = field(default_factory=dict)
    _connections: list[_Connection] = field(default_factory=list)
    _next: int = 1

    @property
    def cli(self) -> NvmeCli:
        return NvmeCli(self)

    @property
    def sysfs(self) -> Sysfs:
        return _FolderAsSysfs(self.folder / "sys", self.folder / "dev")

    def serve(self, nqn: str, *portals: Portal, namespaces: Sequence[Path] = ()) -> FakeSubsystem:
        """Offer a subsystem; the files become its namespaces 1, 2, …"""
        numbered = {n: (UUID(int=hash(nqn) % 2**64 << 8 | n), path) for n, path in enumerate(namespaces, 1)}
        subsystem = FakeSubsystem(nqn, list(portals), numbered)
        self.subsystems.append(subsystem)
        return subsystem

    async def reach(self, portal: Portal) -> None:
        """Whether a TCP connection to this place can be made. :raises TargetUnreachable:"""
        await trio.lowlevel.checkpoint()
        listening = [p for s in self.subsystems for p in s.portals if p.transport is Transport.TCP]
        if portal in self.down or (portal.address, portal.service) not in {
            (p.address, p.service) for p in listening
        }:
            raise TargetUnreachable(f"{portal}: nothing answers: Connection refused")

    def set_state(self, portal: Portal, state: str) -> None:
        """What the kernel makes of the connections that go this way."""
        for connection in self._connections:
            if connection.portal == portal:
                connection.state = state
        self._render()

    def refresh(self) -> None:
        """Show what was changed in `subsystems` or `ana`."""
        self._render()

    # ── the program ──────────────────────────────────────────────────────────────────────────────────────

    async def __call__(self, arguments: Sequence[str], *, timeout: float, config: str = "") -> Completed:
        await trio.lowlevel.checkpoint()
        self.commands.append(list(arguments))
        self.configs.append(config)
        command, *rest = arguments
        options = dict(zip(rest[::2], rest[1::2], strict=False))
        match command:
            case "version":
                return Completed(0, f"nvme version {self.version} (git {self.version})\n", "")
            case "discover":
                return self._discover(options)
            case "connect":
                return self._connect(options, config)
            case "connect-all":
                return self._connect(_from_ini(config), config)
            case "disconnect":
                return self._disconnect(options)
            case "list" | "list-subsys":
                return Completed(0, "{}" if command == "list" else "[]", "")
            case "list-ns":
                return self._list(rest[0])
        return Completed(1, "", f"ERROR: Invalid sub-command '{command}'\n")

    def _discover(self, options: dict[str, str]) -> Completed:
        portal = _portal(options)
        offered = [s for s in self.subsystems if portal in s.portals]
        if portal in self.down or not offered:
            return Completed(1, "", "failed to add controller, error Connection refused\n")
        nqns = [_DISCOVERY, *(s.nqn for s in offered if s.hosts is None or options["-q"] in s.hosts)]
        records = [
            {
                "trtype": portal.transport.value,
                "adrfam": "ipv4",
                "subtype": "current discovery subsystem" if nqn == _DISCOVERY else "nvme subsystem",
                "treq": "not specified",
                "portid": 1,
                "trsvcid": portal.service,
                "subnqn": nqn,
                "traddr": portal.address,
            }
            for nqn in nqns
        ]
        return Completed(0, json.dumps({"genctr": 1, "records": records}), "")

    def _connect(self, options: dict[str, str], config: str) -> Completed:
        portal, nqn = _portal(options), options["-n"]
        found = [s for s in self.subsystems if s.nqn == nqn and portal in s.portals]
        if portal in self.down or not any(portal in s.portals for s in self.subsystems):
            return Completed(1, "", _UNREACHABLE)
        if not found or (found[0].hosts is not None and options["-q"] not in found[0].hosts):
            return Completed(1, "", _REFUSED)
        if any(c.portal == portal and c.subsystem.nqn == nqn for c in self._connections):
            return Completed(1, "", "already connected\n")
        if found[0].key is not None and "DHHC-1" not in config:
            return Completed(1, "", _NO_KEY)
        if found[0].key is not None and found[0].key not in config:
            return Completed(1, "", _REFUSED)
        connection = _Connection(f"nvme{self._next}", found[0], portal, kato=options.get("-k", "5"))
        self._next += 1
        self._connections.append(connection)
        self._render()
        return Completed(0, json.dumps({"device": connection.name}), "")

    def _disconnect(self, options: dict[str, str]) -> Completed:
        gone = [
            c
            for c in self._connections
            if options.get("-n") == c.subsystem.nqn or options.get("-d") == c.name
        ]
        self._connections = [c for c in self._connections if c not in gone]
        self._render()
        return Completed(0, f"disconnected {len(gone)} controller(s)\n", "")

    def _list(self, device: str) -> Completed:
        for connection in self._connections:
            if device == f"/dev/{connection.name}":
                numbers = [{"nsid": number} for number in connection.subsystem.namespaces]
                return Completed(0, json.dumps({"nsid_list": numbers}), "")
        return Completed(1, "", f"{device}: No such file or directory\n")

    # ── what the kernel would show ───────────────────────────────────────────────────────────────────────

    def _render(self) -> None:
        """Write the tree. What is set in it, such as a time-out, stays as long as its connection."""
        root = self.folder / "sys/class"
        for folder in (root / "nvme", root / "nvme-subsystem", self.folder / "dev"):
            folder.mkdir(parents=True, exist_ok=True)
        wanted: dict[Path, str] = {}
        links: dict[Path, Path] = {}
        for number, subsystem in enumerate(self.subsystems):
            ours = [c for c in self._connections if c.subsystem is subsystem]
            if ours:
                self._show(root, number, subsystem, ours, wanted, links)
        kept = {path for name in ("*_tmo", "*_delay", "io_timeout") for path in root.rglob(name)}
        for path in sorted(root.rglob("*")) + sorted((self.folder / "dev").iterdir()):
            if not path.is_dir() and path not in wanted and path not in links:
                path.unlink()
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path not in kept and not (path.exists() and path.read_text() == f"{text}\n"):
                _put(path, text)
        for path, goal in links.items():
            path.unlink(missing_ok=True)
            path.symlink_to(goal)

    def _show(
        self,
        root: Path,
        number: int,
        subsystem: FakeSubsystem,
        connections: list[_Connection],
        wanted: dict[Path, str],
        links: dict[Path, Path],
    ) -> None:
        folder = root / f"nvme-subsystem/nvme-subsys{number}"
        wanted[folder / "subsysnqn"] = subsystem.nqn
        for connection in connections:
            portal, name = connection.portal, connection.name
            wanted[folder / name] = ""
            told = {
                "state": connection.state,
                "transport": portal.transport.value,
                "address": f"traddr={portal.address},trsvcid={portal.service}" if portal.address else "",
                "hostnqn": HOST.nqn,
                "kato": connection.kato,
                "reconnect_delay": "10",
                "ctrl_loss_tmo": "600",
                "fast_io_fail_tmo": "off",
            }
            wanted |= {root / "nvme" / name / key: value for key, value in told.items()}
            for nsid in subsystem.seen:
                way = root / f"nvme/{name}/nvme{number}c{name[4:]}n{nsid}"
                wanted[way / "ana_state"] = self.ana.get(portal, "optimized")
                wanted[way / "queue/io_timeout"] = "30000"
        for nsid, (uuid, path) in subsystem.seen.items():
            head = folder / f"nvme{number}n{nsid}"
            told = {"nsid": str(nsid), "uuid": str(uuid), "size": str(path.stat().st_size // 512)}
            wanted |= {head / key: value for key, value in told.items()}
            links[self.folder / "dev" / head.name] = path


def _portal(options: dict[str, str]) -> Portal:
    return Portal(Transport(options["-t"]), options.get("-a", ""), options.get("-s", ""))


def _from_ini(config: str) -> dict[str, str]:
    values = dict(line.split(" = ", 1) for line in config.splitlines() if " = " in line)
    way = dict(part.split("=", 1) for part in values["controller"].split(";"))
    return {
        "-t": way["transport"],
        "-a": way["traddr"],
        "-s": way.get("trsvcid", ""),
        "-q": values["hostnqn"],
        "-n": values["nqn"],
        "-k": values["keep-alive-tmo"],
    }
