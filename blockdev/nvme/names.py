"""Names of what is reached over fabrics: a target, the ways to it, a namespace in it. Pure.

    nvme+tcp://192.0.2.1:4420/nqn.2014-08.org.example:kv/1
    nvme+rdma://192.0.2.1,198.51.100.1/nqn.2014-08.org.example:kv/6f4e0c1a-…?host-key=/etc/kvfs/host.key
    nvme+loop:///nqn.2014-08.org.example:kv/1

The form is the one of the NVMe Boot Specification, with two additions: several addresses, separated by commas, are
several ways to one subsystem (native multipath); and after '?' stands what it takes to be let in, as files, never as
secrets, and of a namespace who moves its bytes. The last part of the path is a namespace's number in its subsystem, or its
UUID, which stays when numbers move.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode
from uuid import UUID

SCHEME = "nvme+"
DEFAULT_SERVICE = "4420"
"""The port that NVMe over TCP and RDMA have at IANA."""

_PORTAL = re.compile(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\s:\[\]/?,]+))(?::([0-9]{1,5}))?", re.ASCII)
_NQN = re.compile(r"nqn\.[\x21-\x7e]{1,219}")


_Kind = TypeVar("_Kind", bound=Enum)


class Transport(Enum):
    """How commands travel, in nvme-cli's words."""

    TCP = "tcp"
    RDMA = "rdma"
    LOOP = "loop"
    """To a target in the same kernel."""


class DataPath(Enum):
    """Who moves a namespace's bytes between target and memory."""

    AUTO = "auto"
    """This process where it can, else the kernel."""
    RDMA = "rdma"
    """This process, without the kernel."""
    KERNEL = "kernel"
    """The kernel, whose block device is read and written."""


@dataclass(frozen=True, slots=True)
class Portal:
    """One way to a target.

    :ivar address: an IP address or host name; empty for `loop`
    :ivar service: the port, as text; empty for `loop`
    """

    transport: Transport
    address: str
    service: str

    def __str__(self) -> str:
        if self.transport is Transport.LOOP:
            return "loop"
        return f"{self.transport.value}://{self.authority}"

    @property
    def authority(self) -> str:
        """`ADDRESS[:PORT]`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return host if self.service == DEFAULT_SERVICE else f"{host}:{self.service}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What it takes to be let in.

    :ivar host_key: file with our DH-HMAC-CHAP secret, `DHHC-1:…`
    :ivar controller_key: file with the secret by which the target proves itself to us
    :ivar tls: encrypt, with the key that the administrator has put into the kernel's `.nvme` keyring
    """

    host_key: PurePath | None = None
    controller_key: PurePath | None = None
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A subsystem and how it is reached.

    :ivar portals: at least one, all of one transport
    """

    nqn: str
    portals: tuple[Portal, ...]
    credentials: Credentials = Credentials()

    @property
    def transport(self) -> Transport:
        return self.portals[0].transport

    def __str__(self) -> str:
        return self._uri("", DataPath.AUTO)

    def _uri(self, namespace: str, data_path: DataPath) -> str:
        where = (
            "" if self.transport is Transport.LOOP else ",".join(portal.authority for portal in self.portals)
        )
        query = _query(self.credentials, data_path)
        path = "/".join(quote(part, safe=":.-_~") for part in (self.nqn, namespace) if part)
        return f"{SCHEME}{self.transport.value}://{where}/{path}{'?' if query else ''}{query}"


@dataclass(frozen=True, slots=True)
class NamespaceName:
    """A namespace of a target.

    :ivar namespace: its number there, or its UUID (what the target calls UUID, or NGUID)
    :ivar data_path: is not part of what it is called
    """

    target: Target
    namespace: int | UUID
    data_path: DataPath = field(default=DataPath.AUTO, compare=False)

    def __str__(self) -> str:
        return self.target._uri(str(self.namespace), self.data_path)


def _query(credentials: Credentials, data_path: DataPath) -> str:
    pairs = [
        (name, str(path))
        for name, path in (
            ("host-key", credentials.host_key),
            ("controller-key", credentials.controller_key),
        )
        if path is not None
    ]
    if credentials.tls:
        pairs.append(("tls", "yes"))
    if data_path is not DataPath.AUTO:
        pairs.append(("path", data_path.value))
    return urlencode(pairs, safe="/", quote_via=quote)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────


def is_uri(text: str) -> bool:
    """Whether this is meant as one of ours, rather than as a path."""
    return text.lower().startswith(SCHEME)


def parse_target(text: str) -> Target:
    """`nvme+tcp://ADDRESS[:PORT][,…]/NQN[?…]`. :raises ValueError: with a reason for people"""
    target, namespace, data_path = _parse(text)
    if namespace:
        raise ValueError(f"'{text}' names a namespace, and a target is wanted: leave out '/{namespace}'")
    if data_path is not DataPath.AUTO:
        raise ValueError(f"'{text}' is a target, and 'path' says how a namespace is used: leave it out")
    return target


def parse_namespace(text: str) -> NamespaceName:
    """`nvme+tcp://ADDRESS[:PORT][,…]/NQN/NAMESPACE[?…]`. :raises ValueError: with a reason for people"""
    target, namespace, data_path = _parse(text)
    if not namespace:
        raise ValueError(f"'{text}' lacks the namespace: its number or UUID comes last, as in {target}/1")
    return make_namespace(target, namespace, data_path)


def make_namespace(target: Target, namespace: str, data_path: DataPath) -> NamespaceName:
    """A namespace from its parts. :raises ValueError: with a reason for people"""
    if data_path is DataPath.RDMA and target.transport is not Transport.RDMA:
        raise ValueError(f"'path' can only be rdma where the transport is, not over {target.transport.value}")
    return NamespaceName(target, read_namespace(namespace), data_path)


def read_data_path(text: str) -> DataPath:
    """:raises ValueError: with a reason for people"""
    return _one_of(DataPath, text, "path for data")


def parse_portals(text: str) -> tuple[Portal, ...]:
    """`nvme+tcp://ADDRESS[:PORT][,…]`: where to ask what there is. :raises ValueError: with a reason for people"""
    match = re.fullmatch(r"nvme\+(\w+)://([^/?#]*)/?", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(
            f"'{text}' is not where a target may be, such as nvme+tcp://192.0.2.1 or nvme+loop://"
        )
    transport = read_transport(match[1])
    return _portals(transport, match[2].split(",") if match[2] else [])


def read_namespace(text: str) -> int | UUID:
    """A namespace's number or UUID. :raises ValueError: with a reason for people"""
    if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) and 1 <= int(text) < 0xFFFFFFFF:
        return int(text)
    try:
        return UUID(text.removeprefix("uuid.").removeprefix("urn:uuid:"))
    except ValueError:
        raise ValueError(
            f"'{text}' is not a namespace: give its number from 1 on, or its UUID ('kvfs target list' shows both)"
        ) from None


def read_nqn(text: str) -> str:
    """An NVMe qualified name. :raises ValueError: with a reason for people"""
    if not _NQN.fullmatch(text):
        raise ValueError(f"'{text}' is not an NQN, such as nqn.2014-08.org.example:kv")
    return text


def read_portal(transport: Transport, text: str) -> Portal:
    """`ADDRESS[:PORT]`, an IPv6 address in brackets. :raises ValueError: with a reason for people"""
    match = _PORTAL.fullmatch(text)
    if match is None or not 1 <= int(match[3] or DEFAULT_SERVICE) <= 65535:
        raise ValueError(
            f"'{text}' is not an address, such as 192.0.2.1, 192.0.2.1:4420 or [2001:db8::1]:4420"
        )
    return Portal(transport, match[1] or match[2], match[3] or DEFAULT_SERVICE)


def read_transport(text: str) -> Transport:
    """:raises ValueError: with a reason for people"""
    return _one_of(Transport, text, "transport")


def _one_of(kind: type[_Kind], text: str, what: str) -> _Kind:
    try:
        return kind(text.lower())
    except ValueError:
        known = ", ".join(str(one.value) for one in kind)
        raise ValueError(f"'{text}' is not a {what}: use one of {known}") from None


def make_target(
    transport: Transport, addresses: list[str], nqn: str, credentials: Credentials = Credentials()
) -> Target:
    """A target from its parts. :raises ValueError: with a reason for people"""
    return Target(read_nqn(nqn), _portals(transport, addresses), credentials)


def _portals(transport: Transport, addresses: list[str]) -> tuple[Portal, ...]:
    if transport is Transport.LOOP:
        if addresses:
            raise ValueError("loop has no address: the target is in this kernel")
        return (Portal(transport, "", ""),)
    portals = tuple(read_portal(transport, address) for address in addresses)
    if not portals:
        raise ValueError("an address is missing")
    for portal in portals:
        if portals.count(portal) > 1:
            raise ValueError(f"{portal} is given twice")
    return portals


def _parse(text: str) -> tuple[Target, str, DataPath]:
    match = re.fullmatch(r"nvme\+(\w+)://([^/?]*)/([^?#]+?)/?(?:\?([^#]*))?", text, re.IGNORECASE | re.ASCII)
    if match is None:
        text = text.partition("?")[0]  # what follows may be a secret, by mistake
        raise ValueError(f"'{text}' is not a target, such as nvme+tcp://192.0.2.1/nqn.2014-08.org.example:kv")
    transport = read_transport(match[1])
    nqn, _, namespace = match[3].partition("/")
    addresses = match[2].split(",") if match[2] else []
    credentials, data_path = _read_query(match[4] or "")
    return make_target(transport, addresses, unquote(nqn), credentials), unquote(namespace), data_path


def _read_query(query: str) -> tuple[Credentials, DataPath]:
    files: dict[str, PurePath] = {}
    tls = False
    data_path = DataPath.AUTO
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ("host-key", "controller-key"):
            files[name] = read_key_path(value)
        elif name == "tls" and value in ("", "yes", "true", "no", "false"):
            tls = value not in ("no", "false")
        elif name == "path":
            data_path = read_data_path(value)
        else:
            raise ValueError(
                f"'{name}' is not known, or not with that value: there are host-key=FILE, controller-key=FILE, tls=yes and "
                "path=PATH"
            )
    return Credentials(files.get("host-key"), files.get("controller-key"), tls), data_path


def read_key_path(text: str) -> PurePath:
    """The file of a secret. :raises ValueError: it is the secret itself, or not an absolute path"""
    if text.startswith(("DHHC-", "NVMeTLSkey-")):
        raise ValueError("a secret may not stand here, where others can read it: give the file that it is in")
    path = PurePath(text)
    if not path.is_absolute():
        raise ValueError(f"'{text}' is not an absolute path of a file with a key")
    return path
