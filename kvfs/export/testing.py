"""A target of files and folders that behaves like the kernel's, for tests of whoever changes one.

Making a folder makes its attributes, and a write is refused with the error that nvmet has for it (drivers/nvme/target/
configfs.c of Linux 6.12). Enabling a namespace opens its device, as nvmet does. A port listens only in its imagination.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from kvfs.export.configfs import Target

_DISCOVERY: Final = "nqn.2014-08.org.nvmexpress.discovery"
_SUBSYSTEM: Final = {"attr_allow_any_host": "0", "attr_serial": "0" * 16, "attr_model": "Linux"}
_NAMESPACE: Final = {
    "device_path": "(null)",
    "device_uuid": "",
    "device_nguid": str(uuid.UUID(int=0)),
    "buffered_io": "0",
    "enable": "0",
}
_PORT: Final = {
    "addr_trtype": "",
    "addr_adrfam": "pcie",
    "addr_traddr": "",
    "addr_trsvcid": "",
    "param_inline_data_size": "-1",
}
_AUTHENTICATION: Final = {
    "dhchap_key": "",
    "dhchap_ctrl_key": "",
    "dhchap_hash": "hmac(sha256)",
    "dhchap_dhgroup": "null",
}
_IDENTITY: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST: Final = {"attr_serial": 20, "attr_model": 40}
"""Characters of attributes."""


class Connection(NamedTuple):
    """A host that has connected to a subsystem."""

    port: str
    nqn: str
    host: str


class FakeTarget(Target):
    """The same as `Target`, in an ordinary folder.

    :param root: an empty folder, or one that a FakeTarget made
    :param addresses: of this node; others are refused
    :param authentication: whether this kernel can check keys
    """

    def __init__(
        self, root: Path, addresses: tuple[str, ...] = ("127.0.0.1",), *, authentication: bool = True
    ) -> None:
        super().__init__(root)
        self.taken: set[tuple[str, str]] = set()
        """Addresses and services at which somebody else listens."""
        self.connections: list[Connection] = []
        self._addresses = addresses
        self._authentication = authentication
        for folder in ("hosts", "subsystems", "ports"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def connect(self, nqn: str, host: str, key: str | None = None) -> None:
        """What a host does.

        :raises ConnectionError: no port offers the subsystem
        :raises PermissionError: the host is not allowed, or its key is not the right one
        """
        ports = [link.parent.parent.name for link in self._links() if link.match(f"ports/*/subsystems/{nqn}")]
        if not ports:
            raise ConnectionError(errno.ECONNREFUSED, "no port offers it", nqn)
        subsystem = self.root / "subsystems" / nqn
        if _value(subsystem / "attr_allow_any_host") != "1":
            allowed = subsystem / "allowed_hosts" / host
            if not allowed.is_symlink() or (_value(allowed / "dhchap_key") or key) != key:
                raise PermissionError(errno.EACCES, "not allowed", host)
        self.connections.append(Connection(ports[0], nqn, host))

    # ── what the kernel does ────────────────────────────────────────────────────────────────────────────

    def _make(self, path: Path) -> None:
        attributes, folders = self._kind(path)
        super()._make(path)
        for name, value in attributes.items():
            (path / name).write_text(value + "\n")
        for folder in folders:
            (path / folder).mkdir(parents=True)

    def _kind(self, path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
        match path.relative_to(self.root).parts:
            case ("hosts", _):
                return (_AUTHENTICATION if self._authentication else {}), ()
            case ("subsystems", nqn):
                _require(nqn != _DISCOVERY, errno.EINVAL)
                return _SUBSYSTEM, ("namespaces", "allowed_hosts")
            case ("subsystems", _, "namespaces", number):
                _require(number.isdecimal() and 0 < int(number) < 0xFFFFFFFF, errno.EINVAL)
                return _NAMESPACE | {"device_uuid": str(uuid.uuid4())}, ()
            case ("ports", number):
                _require(number.isdecimal() and int(number) < 1 << 16, errno.EINVAL)
                return _PORT, ("subsystems", "referrals", "ana_groups/1")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    def _remove(self, path: Path) -> None:
        _require(path.is_dir(), errno.ENOENT)
        _require(all(link.resolve() != path.resolve() for link in self._links()), errno.EBUSY)
        for folder in ("namespaces", "allowed_hosts", "subsystems", "referrals"):
            _require(not self.names(str(path / folder)), errno.ENOTEMPTY)
        for folder, _, files in os.walk(path, topdown=False):
            for name in files:
                (Path(folder) / name).unlink()
            Path(folder).rmdir()

    def _write(self, path: Path, value: str) -> None:
        _require(path.is_file(), errno.ENOENT)
        match path.relative_to(self.root).parts:
            case ("hosts", _, "dhchap_key" | "dhchap_ctrl_key"):
                _require(re.match(r"DHHC-1:0[0-3]:", value) is not None, errno.EINVAL)
            case ("subsystems", _, name):
                self._check_subsystem(path, name, value)
            case ("subsystems", _, "namespaces", _, name):
                self._check_namespace(path.parent, name, value)
            case ("ports", _, name):
                _require(not self.names(str(path.parent / "subsystems")), errno.EACCES)
                _require(name != "addr_trtype" or value in ("tcp", "rdma", "fc", "loop"), errno.EINVAL)
        padding = _MOST["attr_serial"] if path.name == "attr_serial" else 0
        path.write_text(value.ljust(padding) + "\n")

    def _check_subsystem(self, path: Path, name: str, value: str) -> None:
        if name == "attr_allow_any_host":
            linked = self.names(str(path.parent / "allowed_hosts"))
            _require(value == "0" or not linked, errno.EINVAL)
            return
        _require(0 < len(value) <= _MOST[name], errno.EINVAL)
        discovered = any(one.nqn == path.parent.name for one in self.connections)
        _require(name != "attr_serial" or not discovered, errno.EINVAL)

    def _check_namespace(self, folder: Path, name: str, value: str) -> None:
        enabled = _value(folder / "enable") == "1"
        match name:
            case "enable":
                _require(value in ("0", "1"), errno.EINVAL)
                if value == "1" and not enabled:
                    self._open(folder)
            case "buffered_io":
                _require(not enabled, errno.EINVAL)
            case "device_uuid" | "device_nguid":
                _require(not enabled, errno.EBUSY)
                _require(_IDENTITY.fullmatch(value) is not None, errno.EINVAL)
            case _:
                _require(not enabled, errno.EBUSY)
                _require(bool(value), errno.EINVAL)

    @staticmethod
    def _open(folder: Path) -> None:
        path = _value(folder / "device_path")
        _require(path != "(null)", errno.EINVAL)
        direct = 0 if _value(folder / "buffered_io") == "1" or Path(path).is_block_device() else os.O_DIRECT
        os.close(os.open(path, os.O_RDWR | direct))

    def _link(self, path: Path, to: Path) -> None:
        _require(to.is_dir(), errno.ENOENT)
        match path.relative_to(self.root).parts:
            case ("subsystems", nqn, "allowed_hosts", _):
                _require(to.parent == self.root / "hosts", errno.EINVAL)
                _require(_value(self.root / "subsystems" / nqn / "attr_allow_any_host") == "0", errno.EINVAL)
            case ("ports", _, "subsystems", _):
                _require(to.parent == self.root / "subsystems", errno.EINVAL)
                if not self.names(str(path.parent)):
                    self._listen(path.parent.parent)
            case _:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        super()._link(path, to)

    def _listen(self, port: Path) -> None:
        address, service = _value(port / "addr_traddr"), _value(port / "addr_trsvcid")
        _require(_value(port / "addr_trtype") in ("tcp", "rdma"), errno.EINVAL)
        _require(_value(port / "addr_adrfam") == ("ipv6" if ":" in address else "ipv4"), errno.EINVAL)
        _require(address in self._addresses, errno.EADDRNOTAVAIL)
        _require((address, service) not in self.taken, errno.EADDRINUSE)
        for other in (self.root / "ports").iterdir():
            if self.names(str(other / "subsystems")):
                there = [_value(other / name) for name in ("addr_trtype", "addr_traddr", "addr_trsvcid")]
                _require(there != [_value(port / "addr_trtype"), address, service], errno.EADDRINUSE)

    def _unlink(self, path: Path) -> None:
        _require(path.is_symlink(), errno.EPERM)
        super()._unlink(path)
        match path.relative_to(self.root).parts:
            case ("ports", number, "subsystems", nqn):
                self.connections = [one for one in self.connections if (one.port, one.nqn) != (number, nqn)]

    def _links(self) -> list[Path]:
        return [*self.root.glob("ports/*/subsystems/*"), *self.root.glob("subsystems/*/allowed_hosts/*")]


def _value(path: Path) -> str:
    return path.read_text().strip()


def _require(truth: bool, number: int) -> None:  # noqa: FBT001 (reads as a sentence)
    if not truth:
        raise OSError(number, os.strerror(number))
