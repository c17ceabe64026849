"""What a storage node exports: records, their rules, and how they change; pure.

An export is an NVMe subsystem: a name (its NQN), namespaces, the ports where it is reached, and the hosts that may
connect. A host's keys belong to the host, in whichever exports it is named.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args
from uuid import UUID, uuid5

from kvfs.errors import ConfigError, UnknownExport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
Transport = Literal["tcp", "rdma"]
DEFAULT_SERVICE: Final = 4420
_DISCOVERY: Final = "nqn.2014-08.org.nvmexpress.discovery"
_NQN: Final = re.compile(r"nqn\.[0-9]{4}-[0-9]{2}\.[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[!-.0-~]+)?", re.ASCII)
_NQN_LENGTH: Final = 223
_SPACE: Final = UUID("ad41f01d-1a5d-463f-97a4-167ab6217dd5")
"""The namespace of the names from which identities are derived. Never to be changed."""


def check_nqn(text: str) -> str:
    """The text, if it may be the name of an export or of a host.

    :raises ConfigError:
    """
    if not _NQN.fullmatch(text) or len(text) > _NQN_LENGTH:
        raise ConfigError(
            f"'{text}' is not an NQN: write nqn.YEAR-MONTH.REVERSED-DOMAIN:NAME without blanks or '/', at most "
            f"{_NQN_LENGTH} characters, such as nqn.2026-01.org.example:hot"
        )
    if text == _DISCOVERY:
        raise ConfigError(f"'{text}' is the name of every discovery service; choose another one")
    return text


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """Where an export is reached. `address` is an IP address in its shortest form."""

    transport: Transport
    address: str
    service: int = DEFAULT_SERVICE

    @property
    def family(self) -> str:
        return "ipv6" if ":" in self.address else "ipv4"

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.transport}:{address}:{self.service}"


def parse_port(text: str) -> Port:
    """`tcp:192.0.2.1`, `rdma:192.0.2.1:4421`, `tcp:[2001:db8::1]:4420`.

    :raises ConfigError:
    """
    match = re.fullmatch(r"([a-z]+):(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?", text, re.ASCII)
    if match is None:
        raise ConfigError(
            f"'{text}' is not a port: write TRANSPORT:ADDRESS[:SERVICE], such as tcp:192.0.2.1:4420"
        )
    transport, service = match[1], int(match[4] or DEFAULT_SERVICE)
    if transport not in get_args(Transport):
        raise ConfigError(
            f"'{text}': there is no transport '{transport}', only {' and '.join(get_args(Transport))}"
        )
    if not 1 <= service <= 65535:
        raise ConfigError(f"'{text}': a service is a number from 1 to 65535")
    try:
        address = str(ipaddress.ip_address(match[2] or match[3]))
    except ValueError:
        raise ConfigError(
            f"'{text}': '{match[2] or match[3]}' is not an IP address; give one of this node, not a name"
        ) from None
    return Port("tcp" if transport == "tcp" else "rdma", address, service)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A device that is exported.

    :ivar uuid, nguid: how hosts know it: derived once, and kept when the path changes
    :ivar wwid: what the drive says of itself; None for what says nothing, such as a file
    """

    path: Path
    uuid: UUID
    nguid: UUID
    wwid: str | None = None


def new_namespace(nqn: str, path: Path, wwid: str | None) -> Namespace:
    """A namespace whose identity follows from the export and the path, so that an export that was lost and is made
    again is the same one to its hosts.
    """
    return Namespace(path, uuid5(_SPACE, f"uuid {nqn} {path}"), uuid5(_SPACE, f"nguid {nqn} {path}"), wwid)


def new_serial(nqn: str) -> str:
    """The serial number of a new export: 16 of the 20 characters that NVMe allows."""
    return hashlib.sha256(nqn.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class HostKeys:
    """Files with the secrets for DH-HMAC-CHAP: what the host proves itself by, and what the target does."""

    key_file: Path
    controller_key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """:ivar namespaces: by their number, from 1
    :ivar hosts: NQNs of the hosts that may connect; empty if any may
    """

    nqn: str
    serial: str
    namespaces: Mapping[int, Namespace] = field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    hosts: tuple[str, ...] = ()
    allow_any_host: bool = False


@dataclass(frozen=True, slots=True)
class Exports:
    """All exports of a node, by NQN, and the keys of the hosts that have some, by the host's NQN."""

    exports: Mapping[str, Export] = field(default_factory=dict)
    keys: Mapping[str, HostKeys] = field(default_factory=dict)

    def known(self, nqn: str) -> Export:
        """:raises UnknownExport:"""
        if nqn not in self.exports:
            names = ", ".join(self.exports) or "none"
            raise UnknownExport(f"no export '{nqn}'; known exports: {names}")
        return self.exports[nqn]


@dataclass(frozen=True, slots=True)
class Parts:
    """What is to be added to an export, or taken from it.

    :ivar devices: those that the export does not have yet, or has
    :ivar keys: for all of `hosts`
    """

    devices: Sequence[Namespace] = ()
    ports: Sequence[Port] = ()
    hosts: Sequence[str] = ()
    allow_any_host: bool = False
    keys: HostKeys | None = None


def with_parts(all_: Exports, nqn: str, parts: Parts) -> Exports:
    """The exports with more in one of them, which is made if it is not there. What is there already stays as it is.

    Hosts and `allow_any_host` exclude each other: what is added replaces the other.

    :raises ConfigError: the export would have no device, or no port
    """
    old = all_.exports.get(nqn) or Export(nqn, new_serial(nqn))
    namespaces = dict(old.namespaces)
    for device in parts.devices:
        namespaces[_free_number(namespaces)] = device
    hosts = () if parts.allow_any_host else _union(old.hosts, parts.hosts)
    new = replace(
        old,
        namespaces=namespaces,
        ports=_union(old.ports, parts.ports),
        hosts=hosts,
        allow_any_host=parts.allow_any_host or (old.allow_any_host and not parts.hosts),
    )
    if not new.namespaces:
        raise ConfigError(f"{nqn} would have no device; name at least one")
    if not new.ports:
        raise ConfigError(f"{nqn} would be reached nowhere; give --port, such as --port tcp:192.0.2.1")
    keys = dict(all_.keys)
    if parts.keys is not None:
        keys |= dict.fromkeys(parts.hosts, parts.keys)
    return _tidy({**all_.exports, nqn: new}, keys)


def without_parts(all_: Exports, nqn: str, parts: Parts) -> Exports:
    """The exports with less in one of them.

    :raises UnknownExport: there is no such export, or it has no such part
    :raises ConfigError: nothing would be left of its devices or ports
    """
    old = all_.known(nqn)
    _must_have(nqn, old.ports, parts.ports)
    _must_have(nqn, old.hosts, parts.hosts)
    gone = set(parts.devices)
    new = replace(
        old,
        namespaces={number: device for number, device in old.namespaces.items() if device not in gone},
        ports=tuple(port for port in old.ports if port not in parts.ports),
        hosts=tuple(host for host in old.hosts if host not in parts.hosts),
    )
    if not new.namespaces or not new.ports:
        what = "port" if new.namespaces else "device"
        raise ConfigError(
            f"that is the last {what} of {nqn}; to remove all of it, say 'kvfs export remove {nqn}'"
        )
    return _tidy({**all_.exports, nqn: new}, all_.keys)


def without(all_: Exports, nqn: str) -> Exports:
    """The exports but one.

    :raises UnknownExport:
    """
    all_.known(nqn)
    return _tidy({name: export for name, export in all_.exports.items() if name != nqn}, all_.keys)


def _must_have(nqn: str, there: Iterable[object], wanted: Iterable[object]) -> None:
    for one in wanted:
        if one not in there:
            has = ", ".join(map(str, there)) or "none"
            raise UnknownExport(f"{nqn} does not have {one}; it has {has}")


def _union(old: tuple[T, ...], more: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*old, *more)))


def _free_number(taken: Mapping[int, object]) -> int:
    number = 1
    while number in taken:
        number += 1
    return number


def _tidy(exports: Mapping[str, Export], keys: Mapping[str, HostKeys]) -> Exports:
    """Keys of hosts that no export names are forgotten."""
    named = {host for export in exports.values() for host in export.hosts}
    return Exports(dict(exports), {host: key for host, key in keys.items() if host in named})
