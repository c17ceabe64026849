"""The configfs tree of nvmet: what it is, what it should be, and the steps from one to the other; pure.

    hosts/HOST/             dhchap_key, dhchap_ctrl_key (where the kernel can authenticate)
    subsystems/NQN/         attr_allow_any_host, attr_serial, attr_model
        namespaces/N/       device_path, device_uuid, device_nguid, buffered_io, enable
        allowed_hosts/HOST  → hosts/HOST
    ports/N/                addr_trtype, addr_adrfam, addr_traddr, addr_trsvcid
        subsystems/NQN      → subsystems/NQN

The kernel's rules decide the order of the steps. A port listens from its first link to its last, and its address cannot
change meanwhile. A namespace that is enabled cannot change. Hosts can be linked only while attr_allow_any_host is 0,
and that can become 1 only when none is linked. A folder goes only when nothing links to it and all that was made
in it is gone. So what is to go goes from the outside in, and what is to come comes from the inside out: a subsystem is
whole, and knows who may connect, before the first port offers it.

A host that is taken from the list keeps the connections that it has: the kernel asks only when one is made. Dropping
the link of a port ends the connections of the subsystem there, so where hosts lose their permission the links
are dropped and made again; the other hosts connect again by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from kvfs.export.model import Port

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from kvfs.export.model import Export, Exports

MODEL: Final = "kvfs"
"""The model that hosts see; their /dev/disk/by-id has it in its names."""


@dataclass(frozen=True, slots=True)
class HostNode:
    """A host; None for a secret that it does not have."""

    key: str | None = field(default=None, repr=False)
    controller_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class NamespaceNode:
    """The values as the kernel shows them."""

    device_path: str
    device_uuid: str
    device_nguid: str
    buffered_io: bool
    enabled: bool


@dataclass(frozen=True, slots=True)
class SubsystemNode:
    """What a host sees as one NVMe subsystem."""

    serial: str
    model: str
    allow_any_host: bool
    namespaces: Mapping[int, NamespaceNode]
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class PortNode:
    """A port with any transport, ours or not, and the subsystems that it offers."""

    transport: str
    family: str
    address: str
    service: str
    links: frozenset[str]

    @property
    def half_made(self) -> bool:
        """Whether it lacks a part of its address. A loop port has none."""
        return self.transport != "loop" and not (self.transport and self.address and self.service)

    def is_at(self, port: Port) -> bool:
        return (self.transport, self.address, self.service) == (
            port.transport,
            port.address,
            str(port.service),
        )


@dataclass(frozen=True, slots=True)
class Tree:
    """All of it."""

    hosts: Mapping[str, HostNode] = field(default_factory=dict)
    subsystems: Mapping[str, SubsystemNode] = field(default_factory=dict)
    ports: Mapping[int, PortNode] = field(default_factory=dict)


# ── what it should be ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Facts:
    """What the exports themselves do not say.

    :ivar buffered: files whose file system cannot do O_DIRECT
    :ivar keys: secrets, by the host's NQN
    """

    buffered: Collection[Path] = ()
    keys: Mapping[str, HostNode] = field(default_factory=dict)


def target(seen: Tree, before: Exports, after: Exports, nqns: Collection[str], facts: Facts) -> Tree:
    """The tree with the exports `nqns` as they are in `after`; absent there means gone. What others made stays.

    :param before: the exports until now: a port or a host that only they used goes with them
    """
    subsystems = {nqn: node for nqn, node in seen.subsystems.items() if nqn not in nqns}
    wanted = [after.exports[nqn] for nqn in nqns if nqn in after.exports]
    subsystems |= {export.nqn: _subsystem(export, facts) for export in wanted}
    return Tree(_hosts(seen, before, subsystems, nqns, facts), subsystems, _ports(seen, before, wanted, nqns))


def _subsystem(export: Export, facts: Facts) -> SubsystemNode:
    namespaces = {
        number: NamespaceNode(
            str(one.path), str(one.uuid), str(one.nguid), buffered_io=one.path in facts.buffered, enabled=True
        )
        for number, one in export.namespaces.items()
    }
    return SubsystemNode(export.serial, MODEL, export.allow_any_host, namespaces, frozenset(export.hosts))


def _hosts(
    seen: Tree,
    before: Exports,
    subsystems: Mapping[str, SubsystemNode],
    nqns: Collection[str],
    facts: Facts,
) -> dict[str, HostNode]:
    named = {host for node in subsystems.values() for host in node.hosts}
    were_ours = {host for nqn in nqns if nqn in before.exports for host in before.exports[nqn].hosts}
    ours = {host for nqn in nqns if nqn in subsystems for host in subsystems[nqn].hosts}
    hosts = {host: node for host, node in seen.hosts.items() if host in named or host not in were_ours}
    for host in ours:
        if host in facts.keys:
            hosts[host] = facts.keys[host]
        elif not _used_by_others(seen, host, nqns):  # whose keys are not ours to take away
            hosts[host] = HostNode()
    return hosts


def _used_by_others(seen: Tree, host: str, nqns: Collection[str]) -> bool:
    return any(host in node.hosts for nqn, node in seen.subsystems.items() if nqn not in nqns)


def _ports(seen: Tree, before: Exports, wanted: list[Export], nqns: Collection[str]) -> dict[int, PortNode]:
    ours = [port for nqn in nqns if nqn in before.exports for port in before.exports[nqn].ports]
    ports = {}
    for number, node in seen.ports.items():
        links = node.links - set(nqns)
        # One that only we used goes, and what a change that was killed has left of one.
        was_ours = bool(node.links) or node.half_made or any(map(node.is_at, ours))
        if links or not was_ours:
            ports[number] = replace(node, links=links)
    for export in wanted:
        for port in export.ports:
            number, node = _port_at(ports, seen, port)
            ports[number] = replace(node, links=node.links | {export.nqn})
    return ports


def _port_at(ports: Mapping[int, PortNode], seen: Tree, port: Port) -> tuple[int, PortNode]:
    for number, node in (*ports.items(), *seen.ports.items()):
        if node.is_at(port):
            return number, node if number in ports else replace(node, links=frozenset())
    number = 1
    while number in ports or number in seen.ports:
        number += 1
    return number, PortNode(port.transport, port.family, port.address, str(port.service), frozenset())


# ── the way there ────────────────────────────────────────────────────────────────────────────────────────────


class Action(Enum):
    """What can be done in configfs."""

    MAKE = "mkdir"
    REMOVE = "rmdir"
    WRITE = "write"
    LINK = "link"
    UNLINK = "unlink"


@dataclass(frozen=True, slots=True)
class Step:
    """One system call.

    :ivar path: below the tree's root
    :ivar value: of WRITE, and of LINK what it leads to
    """

    action: Action
    path: str
    value: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """The value, but never a secret."""
        return "(secret)" if self.path.startswith("hosts/") and self.value else self.value


def difference(seen: Tree, wanted: Tree, *, cut_connections: bool = True) -> list[Step]:
    """The steps from one tree to the other, in an order that the kernel accepts; none if they are the same.

    :param cut_connections: of hosts that lose their permission
    """
    stale = _must_be_made_again(seen, wanted)
    cut = {nqn for nqn in seen.subsystems if cut_connections and _loses_hosts(nqn, seen, wanted)}
    return [
        *_links_off(seen, wanted, cut),
        *_subsystems_off(seen, wanted, stale),
        *_hosts_off(seen, wanted, stale),
        *_hosts_on(seen, wanted, stale),
        *_subsystems_on(seen, wanted, stale),
        *_links_on(seen, wanted, cut),
    ]


def _must_be_made_again(seen: Tree, wanted: Tree) -> set[str]:
    """Hosts that are to lose a secret, which no write takes away in every kernel."""
    return {
        host
        for host, node in wanted.hosts.items()
        if (old := seen.hosts.get(host))
        and (
            (old.key is not None and node.key is None)
            or (old.controller_key is not None and node.controller_key is None)
        )
    }


def _loses_hosts(nqn: str, seen: Tree, wanted: Tree) -> bool:
    new = wanted.subsystems.get(nqn)
    if new is None or new.allow_any_host:
        return False
    old = seen.subsystems[nqn]
    return old.allow_any_host or not old.hosts <= new.hosts


def _links_off(seen: Tree, wanted: Tree, cut: set[str]) -> Iterator[Step]:
    for number, node in sorted(seen.ports.items()):
        new = wanted.ports.get(number)
        for nqn in sorted(node.links):
            if new is None or nqn not in new.links or nqn in cut:
                yield Step(Action.UNLINK, f"ports/{number}/subsystems/{nqn}")
        if new is None:
            yield Step(Action.REMOVE, f"ports/{number}")


def _links_on(seen: Tree, wanted: Tree, cut: set[str]) -> Iterator[Step]:
    for number, node in sorted(wanted.ports.items()):
        old = seen.ports.get(number)
        folder = f"ports/{number}"
        if old is None:
            yield Step(Action.MAKE, folder)
            values = {
                "addr_trtype": node.transport,
                "addr_adrfam": node.family,
                "addr_traddr": node.address,
                "addr_trsvcid": node.service,
            }
            yield from (
                Step(Action.WRITE, f"{folder}/{name}", value) for name, value in values.items() if value
            )
        for nqn in sorted(node.links):
            if old is None or nqn not in old.links or nqn in cut:
                yield Step(Action.LINK, f"{folder}/subsystems/{nqn}", f"subsystems/{nqn}")


def _subsystems_off(seen: Tree, wanted: Tree, stale: set[str]) -> Iterator[Step]:
    for nqn, node in sorted(seen.subsystems.items()):
        new = wanted.subsystems.get(nqn)
        folder = f"subsystems/{nqn}"
        for host in sorted(node.hosts):
            if new is None or host not in new.hosts or host in stale:
                yield Step(Action.UNLINK, f"{folder}/allowed_hosts/{host}")
        for number, namespace in sorted(node.namespaces.items()):
            if new is None or number not in new.namespaces:
                yield from _namespace_off(f"{folder}/namespaces/{number}", namespace)
        if new is None:
            yield Step(Action.REMOVE, folder)


def _namespace_off(folder: str, node: NamespaceNode) -> Iterator[Step]:
    if node.enabled:
        yield Step(Action.WRITE, f"{folder}/enable", "0")
    yield Step(Action.REMOVE, folder)


def _subsystems_on(seen: Tree, wanted: Tree, stale: set[str]) -> Iterator[Step]:
    for nqn, node in sorted(wanted.subsystems.items()):
        old = seen.subsystems.get(nqn)
        folder = f"subsystems/{nqn}"
        if old is None:
            yield Step(Action.MAKE, folder)
        yield from _attributes(folder, old, node)
        for number, namespace in sorted(node.namespaces.items()):
            there = old.namespaces.get(number) if old else None
            yield from _namespace_on(f"{folder}/namespaces/{number}", there, namespace)
        for host in sorted(node.hosts):
            if old is None or host not in old.hosts or host in stale:
                yield Step(Action.LINK, f"{folder}/allowed_hosts/{host}", f"hosts/{host}")


def _attributes(folder: str, old: SubsystemNode | None, new: SubsystemNode) -> Iterator[Step]:
    if old is None or old.serial != new.serial:
        yield Step(Action.WRITE, f"{folder}/attr_serial", new.serial)
    if old is None or old.model != new.model:
        yield Step(Action.WRITE, f"{folder}/attr_model", new.model)
    if new.allow_any_host != (old is not None and old.allow_any_host):  # 0 where it was just made
        yield Step(Action.WRITE, f"{folder}/attr_allow_any_host", _bit(new.allow_any_host))


def _namespace_on(folder: str, old: NamespaceNode | None, new: NamespaceNode) -> Iterator[Step]:
    if old == new:
        return
    if old is None:
        yield Step(Action.MAKE, folder)
    elif old.enabled:
        yield Step(Action.WRITE, f"{folder}/enable", "0")
    for name in ("device_path", "device_uuid", "device_nguid"):
        if old is None or getattr(old, name) != getattr(new, name):
            yield Step(Action.WRITE, f"{folder}/{name}", getattr(new, name))
    if new.buffered_io != (old is not None and old.buffered_io):
        yield Step(Action.WRITE, f"{folder}/buffered_io", _bit(new.buffered_io))
    if new.enabled:
        yield Step(Action.WRITE, f"{folder}/enable", "1")


def _hosts_off(seen: Tree, wanted: Tree, stale: set[str]) -> Iterator[Step]:
    for host in sorted(seen.hosts):
        if host not in wanted.hosts or host in stale:
            yield Step(Action.REMOVE, f"hosts/{host}")


def _hosts_on(seen: Tree, wanted: Tree, stale: set[str]) -> Iterator[Step]:
    for host, node in sorted(wanted.hosts.items()):
        old = None if host in stale else seen.hosts.get(host)
        if old is None:
            yield Step(Action.MAKE, f"hosts/{host}")
            old = HostNode()
        if node.key is not None and node.key != old.key:
            yield Step(Action.WRITE, f"hosts/{host}/dhchap_key", node.key)
        if node.controller_key is not None and node.controller_key != old.controller_key:
            yield Step(Action.WRITE, f"hosts/{host}/dhchap_ctrl_key", node.controller_key)


def _bit(truth: bool) -> str:  # noqa: FBT001 (the value itself)
    return "1" if truth else "0"
