"""What the kernel says of NVMe: subsystems, the connections to them, their namespaces, and the time-outs of all.

    <root>/class/nvme-subsystem/nvme-subsys1/subsysnqn
                                             nvme1n1/       a namespace, with native multipath: nsid, uuid, nguid, size
           class/nvme/nvme1/                 a controller: state, transport, address, and its timers
                            nvme1c1n1/       with multipath: one way to a namespace: ana_state, queue/io_timeout
                            nvme1n1/         without: the namespace itself
           block/nvme1n1                     every namespace by its name

Reading it costs microseconds and asks no target anything, so it also works while one does not answer; but what is below
`queue` is under a lock that may be held for as long as I/O is stuck, and is only looked at where it is asked for. What
vanishes while it is read is taken as not there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from blockdev.nvme.names import NamespaceName, Portal, Target, Transport
from blockdev.nvme.records import Timers

_SECTOR: Final = 512
"""Bytes; the unit of `size` in sysfs, whatever the device's own is."""
_NAMESPACE: Final = re.compile(r"nvme\d+n\d+")
_NAMED: Final = re.compile(r"nvme(\d+)n(\d+)")
_CONTROLLER: Final = re.compile(r"nvme\d+")
_PATH: Final = re.compile(r"nvme\d+c\d+n(\d+)")
LIVE: Final = "live"
"""The state of a controller that answers."""
CLOSED: Final = frozenset({"inaccessible", "persistent-loss", "change"})
"""States (ANA) of a way that carries no I/O."""


@dataclass(frozen=True, slots=True)
class Controller:
    """One connection to a subsystem.

    :ivar state: in the kernel's words: live, resetting, connecting, deleting, dead
    :ivar timers: None where the kernel does not tell them all
    """

    name: str
    state: str
    transport: str
    address: str
    service: str
    host_nqn: str
    timers: Timers | None

    def is_at(self, portal: Portal) -> bool:
        """Whether it goes this way."""
        if self.transport != portal.transport.value:
            return False
        return portal.transport is Transport.LOOP or (self.address, self.service) == (
            portal.address,
            portal.service,
        )


@dataclass(frozen=True, slots=True)
class Way:
    """One way to a namespace.

    :ivar ana: how good it is, in the kernel's words (optimized, non-optimized, inaccessible, persistent-loss,
        change); empty where the target does not tell
    """

    controller: str
    ana: str


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace that is a block device.

    :ivar name: such as `nvme1n1`
    :ivar uuids: what the target calls UUID and NGUID
    :ivar size: bytes
    """

    name: str
    number: int
    uuids: tuple[UUID, ...]
    size: int
    ways: tuple[Way, ...]

    def is_named(self, name: int | UUID) -> bool:
        return name in self.uuids if isinstance(name, UUID) else name == self.number


@dataclass(frozen=True, slots=True)
class Subsystem:
    """A subsystem that this host has a connection to, whatever its state."""

    name: str
    nqn: str
    controllers: tuple[Controller, ...]
    namespaces: tuple[Namespace, ...]

    def at(self, portal: Portal) -> Controller | None:
        """The connection that goes this way."""
        return next((one for one in self.controllers if one.is_at(portal)), None)

    @property
    def live(self) -> bool:
        """Whether some way is open."""
        return any(one.state == LIVE for one in self.controllers)


class Sysfs:
    """The kernel's view.

    :param root: of sysfs
    :param devices: the folder of block devices
    """

    def __init__(self, root: Path = Path("/sys"), devices: Path = Path("/dev")) -> None:
        self._root = root
        self._devices = devices

    def subsystems(self) -> list[Subsystem]:
        """All of them, local drives included; none without the module."""
        found = []
        for folder in _entries(self._root / "class/nvme-subsystem"):
            nqn = _read(folder / "subsysnqn")
            if nqn is not None:
                found.append(self._subsystem(folder, nqn))
        return found

    def of(self, target: Target) -> Subsystem | None:
        """The subsystem of this target, if there is a connection to it."""
        return next((one for one in self.subsystems() if one.nqn == target.nqn), None)

    def find(self, name: NamespaceName) -> Namespace | None:
        """The namespace of that name, whatever the kernel calls it."""
        subsystem = self.of(name.target)
        namespaces = () if subsystem is None else subsystem.namespaces
        return next((one for one in namespaces if one.is_named(name.namespace)), None)

    def holding(self, device: str) -> tuple[Subsystem, Namespace] | None:
        """The subsystem and namespace behind a block device, such as `/dev/nvme1n1`; None for other devices."""
        names = {Path(device).name, Path(os.path.realpath(device)).name}  # by-id and others are links to it
        for subsystem in self.subsystems():
            for namespace in subsystem.namespaces:
                if namespace.name in names:
                    return subsystem, namespace
        return None

    def carries(self, device: str) -> bool | None:
        """Whether I/O to a block device goes anywhere now; None if it is not there, or not NVMe.

        A few reads for each way, where `holding` takes hundreds: for who asks every moment.
        """
        match = _NAMED.fullmatch(Path(device).name) or _NAMED.fullmatch(Path(os.path.realpath(device)).name)
        if match is None:
            return None
        name, instance, number = match.group(0, 1, 2)
        subsystem = self._root / f"class/nvme-subsystem/nvme-subsys{instance}"
        owner = self._root / f"class/nvme/nvme{instance}"  # without multipath
        if _read(subsystem / name / "nsid") is not None:
            ours = [entry for entry in _entries(subsystem) if _CONTROLLER.fullmatch(entry.name)]
            ways = [(one.name, f"nvme{instance}c{one.name.removeprefix('nvme')}n{number}") for one in ours]
        elif _read(owner / name / "nsid") is not None:
            ways = [(owner.name, name)]
        else:
            return None
        return any(self._is_open(*way) for way in ways)

    def _is_open(self, controller: str, way: str) -> bool:
        folder = self._root / "class/nvme" / controller
        if _read(folder / "state") != LIVE or not (folder / way).exists():
            return False
        return _read(folder / way / "ana_state") not in CLOSED

    def has_rdma(self) -> bool:
        """Whether this host has an RDMA device."""
        return bool(_entries(self._root / "class/infiniband"))

    def device(self, namespace: Namespace) -> Path:
        """Where a namespace is opened."""
        return self._devices / namespace.name

    def rescan(self, controller: str) -> None:
        """Have the kernel look which namespaces a connection has now. :raises OSError:"""
        self.write(self._root / "class/nvme" / controller / "rescan_controller", "1")

    # ── time-outs ────────────────────────────────────────────────────────────────────────────────────────

    def set_timers(self, controller: str, timers: Timers) -> None:
        """Set what can be set while a connection lasts: all but keep-alive. :raises OSError:"""
        folder = self._root / "class/nvme" / controller
        for name, value in (
            ("reconnect_delay", timers.reconnect_delay),  # first: the kernel counts ctrl_loss_tmo in these
            ("ctrl_loss_tmo", -1 if timers.ctrl_loss is None else timers.ctrl_loss),
            ("fast_io_fail_tmo", timers.fast_io_fail),
        ):
            self.write(folder / name, str(value))

    def set_io_timeout(self, controller: str, seconds: float) -> None:
        """How long commands of a connection's namespaces may take before it is torn down. Where it is another time now,
        waits for all I/O that is under way.

        :raises OSError:
        """
        for queue in self._queues(controller):
            if _number(queue / "io_timeout") != round(seconds * 1000):
                with suppress(FileNotFoundError):  # a namespace that has vanished
                    self.write(queue / "io_timeout", str(round(seconds * 1000)))

    @staticmethod
    def write(path: Path, text: str) -> None:
        """Set an attribute. :raises OSError:"""
        path.write_text(f"{text}\n")

    def io_timeout(self, controller: str) -> float | None:
        """Seconds; None where the kernel does not tell. May wait for I/O."""
        times = [_number(queue / "io_timeout") for queue in self._queues(controller)]
        return next((time / 1000 for time in times if time is not None), None)

    def _queues(self, controller: str) -> Iterator[Path]:
        for entry in _entries(self._root / "class/nvme" / controller):
            if _PATH.fullmatch(entry.name) or _NAMESPACE.fullmatch(entry.name):
                queue = entry / "queue"
                if (queue / "io_timeout").exists():
                    yield queue

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def _subsystem(self, folder: Path, nqn: str) -> Subsystem:
        entries = _entries(folder)
        names = [entry.name for entry in entries if re.fullmatch(r"nvme\d+", entry.name)]
        controllers = [one for name in names if (one := self.controller(name)) is not None]
        ways = self._ways(one.name for one in controllers)
        heads = [entry for entry in entries if _NAMESPACE.fullmatch(entry.name)]
        for controller in controllers:  # without multipath, a namespace belongs to its controller
            inside = _entries(self._root / "class/nvme" / controller.name)
            heads += [entry for entry in inside if _NAMESPACE.fullmatch(entry.name)]
        # The kernel looks at several at once: their devices are numbered as they come.
        found = [seen for head in heads if (seen := _namespace(head, ways)) is not None]
        namespaces = tuple(sorted(found, key=lambda one: one.number))
        return Subsystem(folder.name, nqn, tuple(controllers), namespaces)

    def controller(self, name: str) -> Controller | None:
        """The connection of that name, such as `nvme1`."""
        folder = self._root / "class/nvme" / name
        state, transport = _read(folder / "state"), _read(folder / "transport")
        if state is None or transport is None:
            return None
        address = _read(folder / "address") or ""
        parts = dict(part.strip().split("=", 1) for part in address.split(",") if "=" in part)
        return Controller(
            name,
            state,
            transport,
            parts.get("traddr", address),
            parts.get("trsvcid", ""),
            _read(folder / "hostnqn") or "",
            _timers(folder),
        )

    def _ways(self, controllers: Iterator[str]) -> list[tuple[str, Way]]:
        """(number of the namespace's instance, way)."""
        found = []
        for name in controllers:
            for entry in _entries(self._root / "class/nvme" / name):
                instance = _PATH.fullmatch(entry.name) or re.fullmatch(r"nvme\d+n(\d+)", entry.name)
                if instance is not None:
                    found.append((instance[1], Way(name, _read(entry / "ana_state") or "")))
        return found


def _namespace(folder: Path, ways: list[tuple[str, Way]]) -> Namespace | None:
    number, size = _number(folder / "nsid"), _number(folder / "size")
    if number is None or size is None:
        return None
    uuids = [one for name in ("uuid", "nguid") if (one := _uuid(folder / name)) is not None]
    instance = folder.name.rpartition("n")[2]
    its_ways = tuple(way for its, way in ways if its == instance)
    return Namespace(folder.name, number, tuple(uuids), size * _SECTOR, its_ways)


def _timers(folder: Path) -> Timers | None:
    keep_alive, delay = _number(folder / "kato"), _number(folder / "reconnect_delay")
    fast = _number(folder / "fast_io_fail_tmo")
    loss = _read(folder / "ctrl_loss_tmo") or ""
    never = loss in ("off", "-1")
    if keep_alive is None or delay is None or not (never or loss.isdecimal()):
        return None
    return Timers(keep_alive, delay, -1 if fast is None else fast, None if never else int(loss))


def _uuid(path: Path) -> UUID | None:
    text = _read(path)
    with suppress(ValueError):
        found = UUID(text or "")
        return found if found.int else None
    return None


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
