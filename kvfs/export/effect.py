"""How much of an export the kernel has, and how much of it may be put into effect: what is missing, held, another drive
now, or offered by another namespace may not, whoever asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockdev.errors import BlockError
from kvfs.errors import DeviceHeld, ExportedElsewhere, KvfsError
from kvfs.export import devices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from kvfs.export.model import Export, Exports, Namespace, Port
    from kvfs.export.tree import SubsystemNode, Tree


@dataclass(frozen=True, slots=True)
class Failure:
    """A part of an export that is not in effect.

    :ivar path: of the device that it is about
    """

    nqn: str
    reason: Exception
    path: Path | None = None


def usable(export: Export, seen: Tree) -> tuple[dict[int, Namespace], list[Failure]]:
    """The namespaces that can be exported; those that are already are not looked at again."""
    chosen: dict[int, Namespace] = {}
    failures = []
    node = seen.subsystems.get(export.nqn)
    others = [offer for offer in offered(seen) if offer.nqn != export.nqn]
    for number, one in export.namespaces.items():
        try:
            if not _has(node, number, one):
                _check(one, [*others, *(devices.Offer(export.nqn, n, its.path) for n, its in chosen.items())])
            chosen[number] = one
        except (KvfsError, BlockError) as error:
            failures.append(Failure(export.nqn, error, one.path))
    return chosen, failures


def is_offered(seen: Tree, nqn: str, port: Port) -> bool:
    """Whether hosts reach the export there."""
    return any(node.is_at(port) and nqn in node.links for node in seen.ports.values())


def _check(namespace: Namespace, offers: Sequence[devices.Offer]) -> None:
    """:raises MissingDevice, DeviceHeld, ExportedElsewhere, DeviceError:"""
    found = devices.find(namespace.path)
    if namespace.wwid is not None and found.wwid != namespace.wwid:
        raise DeviceHeld(
            f"{namespace.path} is another drive than the one that was exported ({found.wwid or 'without identity'}, not "
            f"{namespace.wwid}); export it by a name in /dev/disk/by-id"
        )
    devices.refuse_exported(found, offers)


def having(export: Export, namespaces: Collection[Namespace]) -> Export:
    """An export with no other namespaces than these."""
    return replace(export, namespaces={n: one for n, one in export.namespaces.items() if one in namespaces})


def in_effect(export: Export, seen: Tree) -> Export:
    """As much of an export as the kernel has."""
    node = seen.subsystems.get(export.nqn)
    if node is None:
        return export
    return replace(
        having(export, {one for number, one in export.namespaces.items() if _has(node, number, one)}),
        ports=tuple(port for port in export.ports if is_offered(seen, export.nqn, port)),
        hosts=tuple(host for host in export.hosts if host in node.hosts),
    )


def _has(node: SubsystemNode | None, number: int, one: Namespace) -> bool:
    old = node.namespaces.get(number) if node is not None else None
    return old is not None and old.enabled and old.device_path == str(one.path)


def offered(seen: Tree) -> Iterator[devices.Offer]:
    """What the kernel offers, whoever made it do so."""
    for nqn, node in seen.subsystems.items():
        for number, one in node.namespaces.items():
            yield devices.Offer(nqn, number, Path(one.device_path))


def remembered(exports: Exports) -> Iterator[devices.Offer]:
    """What a restore would offer, whatever is in effect now."""
    for nqn, export in exports.exports.items():
        for number, one in export.namespaces.items():
            yield devices.Offer(nqn, number, one.path)


def refuse_exported(found: Sequence[devices.Found], offers: Sequence[devices.Offer]) -> None:
    """:raises ExportedElsewhere: also where two of these share bytes, such as a disk and its partition"""
    for number, one in enumerate(found):
        devices.refuse_exported(one, offers)
        for other in found[:number]:
            if other.identity in one.touching:
                raise ExportedElsewhere(
                    f"{one.path} and {other.path} are on the same drive: name one of them"
                )
