"""The kernel's NVMe target as a folder: finding it, reading the tree, and doing steps. `testing.FakeTarget` is its fake."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvfs.errors import (
    AddressInUse,
    AddressUnusable,
    ExportError,
    ExportFailed,
    MissingDevice,
    NoAuthentication,
    NoConfigfs,
    NoTarget,
    NotRoot,
)
from kvfs.export.tree import Action, HostNode, NamespaceNode, PortNode, Step, SubsystemNode, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGFS: Final = Path("/sys/kernel/config")
_UNSET: Final = frozenset({"", "(null)"})
_SECRETS: Final = ("dhchap_key", "dhchap_ctrl_key")
_HIDDEN: Final = "(hidden)"
"""For a secret that whoever asks may not read."""


class Target:
    """An nvmet folder in configfs. Paths are relative to it.

    :raises OSError: by each method, as the kernel says it
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, folder: str) -> list[str]:
        """What is in a folder, in no order; nothing if it is not there."""
        try:
            return os.listdir(self.root / folder)  # noqa: PTH208 (names are wanted)
        except FileNotFoundError:
            return []

    def read(self, path: str) -> str:
        """An attribute's value; empty if the kernel does not have it."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return ""

    def do(self, step: Step) -> None:
        """One step."""
        path = self.root / step.path
        match step.action:
            case Action.MAKE:
                self._make(path)
            case Action.REMOVE:
                self._remove(path)
            case Action.WRITE:
                if path.name in _SECRETS:
                    path.chmod(0o600)  # every user of the node may read what the kernel makes
                self._write(path, step.value)
            case Action.LINK:
                self._link(path, self.root / step.value)
            case Action.UNLINK:
                self._unlink(path)

    # What the fake overrides, to do beside it what the kernel does.

    def _make(self, path: Path) -> None:
        path.mkdir()

    def _remove(self, path: Path) -> None:
        path.rmdir()

    def _write(self, path: Path, value: str) -> None:
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, value.encode())  # at once: the kernel takes each write for a value
        finally:
            os.close(fd)

    def _link(self, path: Path, to: Path) -> None:
        path.symlink_to(to)

    def _unlink(self, path: Path) -> None:
        path.unlink()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes the tree through here meanwhile."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def find_target(configfs: Path = CONFIGFS, *, to_change: bool = True) -> Target:
    """The kernel's target.

    :param to_change: not only to look at it
    :raises NotRoot, NoTarget, NoConfigfs:
    """
    if to_change and os.geteuid() != 0:
        raise NotRoot("only root may change what is exported: use sudo, or become root")
    root = configfs / "nvmet"
    if root.is_dir():
        return Target(root)
    if not os.path.ismount(configfs):
        raise NoConfigfs(
            f"configfs is not mounted on {configfs}: 'modprobe configfs' and 'mount -t configfs none {configfs}'"
        )
    raise NoTarget(
        "the kernel's NVMe target is not loaded: 'modprobe -a nvmet nvmet-tcp' (and nvmet-rdma for RDMA); if there is "
        "no such module, this kernel was built without it"
    )


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────


def read_tree(target: Target) -> Tree:
    """All that is in it.

    :raises OSError:
    """
    return Tree(
        {host: _host(target, f"hosts/{host}") for host in target.names("hosts")},
        {nqn: _subsystem(target, f"subsystems/{nqn}") for nqn in target.names("subsystems")},
        {int(number): _port(target, f"ports/{number}") for number in target.names("ports")},
    )


def _host(target: Target, folder: str) -> HostNode:
    return HostNode(_secret(target, f"{folder}/dhchap_key"), _secret(target, f"{folder}/dhchap_ctrl_key"))


def _secret(target: Target, path: str) -> str | None:
    try:
        value = target.read(path)
    except PermissionError:
        return _HIDDEN
    return None if value in _UNSET else value


def _subsystem(target: Target, folder: str) -> SubsystemNode:
    namespaces = {
        int(number): _namespace(target, f"{folder}/namespaces/{number}")
        for number in target.names(f"{folder}/namespaces")
    }
    return SubsystemNode(
        target.read(f"{folder}/attr_serial"),
        target.read(f"{folder}/attr_model"),
        target.read(f"{folder}/attr_allow_any_host") == "1",
        namespaces,
        frozenset(target.names(f"{folder}/allowed_hosts")),
    )


def _namespace(target: Target, folder: str) -> NamespaceNode:
    return NamespaceNode(
        target.read(f"{folder}/device_path"),
        target.read(f"{folder}/device_uuid"),
        target.read(f"{folder}/device_nguid"),
        target.read(f"{folder}/buffered_io") == "1",
        target.read(f"{folder}/enable") == "1",
    )


def _port(target: Target, folder: str) -> PortNode:
    return PortNode(
        target.read(f"{folder}/addr_trtype"),
        target.read(f"{folder}/addr_adrfam"),
        target.read(f"{folder}/addr_traddr"),
        target.read(f"{folder}/addr_trsvcid"),
        frozenset(target.names(f"{folder}/subsystems")),
    )


# ── what the kernel refuses ──────────────────────────────────────────────────────────────────────────────────


def refusal(target: Target, step: Step, error: OSError) -> ExportError | MissingDevice:
    """What it means that the kernel refused a step."""
    if step.action is Action.LINK and step.path.startswith("ports/"):
        return _no_port(target, step, error)
    parts = step.path.split("/")
    if parts[-1] in _SECRETS:
        return _no_key(target, step, error)
    if parts[-1] == "enable":
        path = target.read(f"{'/'.join(parts[:-1])}/device_path")
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            return MissingDevice(f"{path} is not there: see that the drive is connected")
        return ExportFailed(f"{path} cannot be exported: {error.strerror}; the kernel's log may say more")
    return ExportFailed(
        f"the kernel refused '{step.action.value} {step.path}': {error.strerror}; its log may say more"
    )


def _no_port(target: Target, step: Step, error: OSError) -> ExportError:
    folder = "/".join(step.path.split("/")[:2])
    node = _port(target, folder)
    where = f"{node.transport} {node.address} {node.service}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{where}: something else listens there ('ss -ltnp' shows what); choose another address or service"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressUnusable(f"{where}: not an address of this node; 'ip address' shows those that are")
    if error.errno == errno.EINVAL:
        return AddressUnusable(
            f"{where}: the kernel cannot serve it; see that nvmet-{node.transport} is there: "
            f"'modprobe nvmet-{node.transport}'"
        )
    if error.errno == errno.ENODEV and node.transport == "rdma":
        return AddressUnusable(f"{where}: no RDMA device has this address; 'rdma link' shows those there are")
    return AddressUnusable(f"{where}: {error.strerror}; the kernel's log may say more")


def _no_key(target: Target, step: Step, error: OSError) -> ExportError:
    if not (target.root / step.path).exists():
        return NoAuthentication(
            "this kernel's NVMe target cannot authenticate hosts (it lacks CONFIG_NVME_TARGET_AUTH, which came with "
            "Linux 6.0): use another kernel, or no key"
        )
    return ExportFailed(
        f"the kernel refused the key of host {step.path.split('/')[1]}: {error.strerror}; its hash may be missing there"
    )
