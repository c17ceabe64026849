"""Exports of this node: the file that remembers them and the kernel's target, changed together or not at all.

What is added is written to the file before the kernel hears of it, and what is removed after it is gone from there. So the
file always knows what is ours, and a change that was killed half-way is completed by saying it again. What fails without
being killed is undone in both.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockdev.errors import BlockError
from blockdev.nvme.keys import read_key
from kvfs.errors import ExportedElsewhere, KvfsError, UnknownExport
from kvfs.export import devices, effect
from kvfs.export.configfs import Target, read_tree, refusal
from kvfs.export.document import load_exports, save_exports
from kvfs.export.model import Exports, Parts, new_namespace, with_parts, without, without_parts
from kvfs.export.tree import Facts, HostNode, Step, Tree, difference, target
from kvfs.state import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvfs.export.model import Export, Namespace
    from kvfs.state import StateDirectory

log = logging.getLogger(__name__)

LIVE = "live"
DOWN = "down"
PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Node:
    """Where things are.

    :ivar file: remembers the exports
    :ivar state: which pools of this node must not be exported while they are in use
    """

    file: Path
    target: Target
    state: StateDirectory


# ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────


async def add(
    node: Node, nqn: str, paths: Sequence[Path], parts: Parts, *, force: bool, dry_run: bool
) -> list[Step]:
    """Make an export, or add to it. Returns what was done, or would be: nothing if it is all there.

    :param paths: of devices; `parts` has none yet
    :param force: hosts may overwrite what the devices hold
    :raises ExportError, MissingDevice, ForeignSignature, PoolBusy, DeviceError, ConfigError, OSError:
    """
    with node.target.alone():
        before = load_exports(node.file)
        seen = read_tree(node.target)
        _refuse_foreign(nqn, before, seen)
        found = _new_ones(before.exports.get(nqn), paths)
        effect.refuse_exported(found, [*effect.offered(seen), *effect.remembered(before)])
        for one in found:
            await devices.refuse_contents(one, node.state, force=force)
        new = [new_namespace(nqn, one.path, one.wwid) for one in found]
        after = with_parts(before, nqn, replace(parts, devices=new))
        usable = _usable_of(before.exports.get(nqn), seen, paths)
        now = _with(after, effect.having(after.exports[nqn], {*usable, *new}))
        wanted = target(seen, before, now, {nqn}, _facts(now, nqn))
        if dry_run:
            return difference(seen, wanted)
        for one in found:
            await devices.allocate(one)
        with _saved(node.file, before, after):
            return _change(node.target, seen, wanted)


def remove(node: Node, nqn: str, paths: Sequence[Path], parts: Parts, *, dry_run: bool) -> list[Step]:
    """Take an export away, or parts of it. Hosts that use it lose it at once. What of it is not in effect stays so, and
    does not hinder what is to go.

    :raises ExportError, ConfigError, OSError:
    """
    with node.target.alone():
        before = load_exports(node.file)
        if paths or parts.ports or parts.hosts:
            given = [_namespace_of(before.known(nqn), path) for path in paths]
            after = without_parts(before, nqn, replace(parts, devices=given))
        else:
            after = without(before, nqn)
        seen = read_tree(node.target)
        stays_down = nqn in after.exports and nqn not in seen.subsystems
        nqns = set() if stays_down else {nqn}
        now = _with(after, effect.in_effect(after.exports[nqn], seen)) if nqn in after.exports else after
        wanted = target(seen, before, now, nqns, _facts_of(seen, now, *nqns))
        if dry_run:
            return difference(seen, wanted)
        with _undone(node.target, seen):
            steps = _change(node.target, seen, wanted)
            save_exports(node.file, after)
            return steps


def _refuse_foreign(nqn: str, ours: Exports, seen: Tree) -> None:
    if nqn in seen.subsystems and nqn not in ours.exports:
        raise ExportedElsewhere(
            f"{nqn} is exported already, but not by kvfs: choose another name, or remove it with what made it"
        )


def _usable_of(export: Export | None, seen: Tree, paths: Sequence[Path]) -> set[Namespace]:
    """The namespaces of an export that are in effect, or may be put into effect.

    :raises MissingDevice, ExportError, DeviceError: one of `paths` may not
    """
    if export is None:
        return set()
    usable, failures = effect.usable(export, seen)
    for failure in failures:
        if failure.path in paths:
            raise failure.reason
        log.warning("%s: %s", export.nqn, failure.reason)
    return set(usable.values())


def _with(exports: Exports, export: Export) -> Exports:
    return replace(exports, exports={**exports.exports, export.nqn: export})


def _new_ones(export: Export | None, paths: Sequence[Path]) -> list[devices.Found]:
    """Those that the export does not have yet, by whatever name, each once.

    :raises MissingDevice, DeviceHeld, DeviceError:
    """
    there = {devices.identity_of(one.path) for one in export.namespaces.values()} if export else set()
    named = {one.path for one in export.namespaces.values()} if export else set()
    new: dict[object, devices.Found] = {}
    for path in paths:
        if path in named:
            continue
        found = devices.find(path)
        if found.identity not in there:
            new.setdefault(found.identity, found)
    return list(new.values())


def _namespace_of(export: Export, path: Path) -> Namespace:
    """:raises UnknownExport:"""
    identity = devices.identity_of(path)
    for one in export.namespaces.values():
        if one.path == path or (identity is not None and devices.identity_of(one.path) == identity):
            return one
    has = ", ".join(str(one.path) for one in export.namespaces.values())
    raise UnknownExport(f"{export.nqn} does not have {path}; it has {has}")


def _facts(exports: Exports, *nqns: str) -> Facts:
    """:raises ConfigError, DeviceError: a key, or a device's file, cannot be used"""
    chosen = [exports.exports[nqn] for nqn in nqns if nqn in exports.exports]
    hosts = {host for export in chosen for host in export.hosts if host in exports.keys}
    paths = [one.path for export in chosen for one in export.namespaces.values()]
    return Facts({path for path in paths if devices.is_buffered(path)}, {h: _keys(exports, h) for h in hosts})


def _facts_of(seen: Tree, exports: Exports, *nqns: str) -> Facts:
    """The same as the kernel has it, as far as it has it: what is taken away needs no files of what stays."""
    chosen = [exports.exports[nqn] for nqn in nqns if nqn in exports.exports]
    hosts = {host for export in chosen for host in export.hosts if host in exports.keys}
    there = [
        one for nqn in nqns if nqn in seen.subsystems for one in seen.subsystems[nqn].namespaces.values()
    ]
    return Facts(
        {Path(one.device_path) for one in there if one.buffered_io},
        {host: seen.hosts[host] if host in seen.hosts else _keys(exports, host) for host in hosts},
    )


def _keys(exports: Exports, host: str) -> HostNode:
    files = exports.keys[host]
    controller = None if files.controller_key_file is None else read_key(files.controller_key_file)
    return HostNode(read_key(files.key_file), controller)


@contextmanager
def _saved(file: Path, before: Exports, after: Exports) -> Iterator[None]:
    """The file says `after`; where what follows fails, what it said before, to the letter."""
    if before == after:
        yield
        return
    old = file.read_text(encoding="utf-8") if file.exists() else None
    save_exports(file, after)
    try:
        yield
    except BaseException:
        if old is None:
            file.unlink(missing_ok=True)
        else:
            write_atomically(file, old)
        raise


@contextmanager
def _undone(kernel: Target, seen: Tree) -> Iterator[None]:
    """Where what is done meanwhile fails, the tree becomes again what was seen."""
    try:
        yield
    except BaseException:
        for step in difference(read_tree(kernel), seen, cut_connections=False):
            try:
                kernel.do(step)
            except OSError as error:
                log.error("could not undo: %s %s: %s", step.action.value, step.path, error.strerror)
        raise


def _change(kernel: Target, seen: Tree, wanted: Tree) -> list[Step]:
    """Do the steps from one tree to the other, or leave it as it was seen. Returns them.

    :raises ExportError, MissingDevice: the kernel refused one
    """
    steps = difference(seen, wanted)
    with _undone(kernel, seen):
        for step in steps:
            try:
                kernel.do(step)
            except OSError as error:
                raise refusal(kernel, step, error) from error
    return steps


# ── after a reboot ───────────────────────────────────────────────────────────────────────────────────────────


def restore(node: Node) -> list[effect.Failure]:
    """Put all exports into effect, as far as they can be: a drive or an address that is missing takes nothing with it.
    Returns what could not be done.

    :raises ConfigError: the file cannot be used
    """
    with node.target.alone():
        exports = load_exports(node.file)
        return [failure for nqn in exports.exports for failure in _restored(node, exports, nqn)]


def _restored(node: Node, exports: Exports, nqn: str) -> list[effect.Failure]:
    seen = read_tree(node.target)
    usable, failures = effect.usable(exports.exports[nqn], seen)
    if not usable:
        return failures
    try:
        facts = _facts(exports, nqn)
    except (
        KvfsError,
        BlockError,
    ) as error:  # without its keys it would be open to whoever says a host's name
        return [*failures, effect.Failure(nqn, error)]
    export = exports.exports[nqn]
    there = tuple(port for port in export.ports if effect.is_offered(seen, nqn, port))
    part = replace(export, namespaces=usable, ports=there)
    if there:
        failures += _put(node, exports, part, facts)
    for port in export.ports:
        if port not in there:
            wider = replace(part, ports=(*part.ports, port))
            failed = _put(node, exports, wider, facts)
            failures += failed
            part = part if failed else wider
    return failures


def _put(node: Node, exports: Exports, export: Export, facts: Facts) -> list[effect.Failure]:
    seen = read_tree(node.target)
    try:
        _change(node.target, seen, target(seen, exports, _with(exports, export), {export.nqn}, facts))
    except (KvfsError, BlockError, OSError) as error:
        return [effect.Failure(export.nqn, error)]
    return []


def stop(node: Node) -> None:
    """Take all exports out of the kernel; the file keeps them.

    :raises ExportError, ConfigError, OSError:
    """
    with node.target.alone():
        exports = load_exports(node.file)
        seen = read_tree(node.target)
        _change(node.target, seen, target(seen, exports, Exports(), set(exports.exports), Facts()))


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────


def states(exports: Exports, seen: Tree) -> Mapping[str, str]:
    """Of each export, whether the kernel has it: `live`, `down`, or `partial`."""
    return {nqn: _state(exports, nqn, seen) for nqn in exports.exports}


def _state(exports: Exports, nqn: str, seen: Tree) -> str:
    if nqn not in seen.subsystems:
        return DOWN
    for host in exports.exports[nqn].hosts:
        if host in exports.keys and seen.hosts.get(host, HostNode()).key is None:
            return PARTIAL  # secrets are compared with nothing: to read them takes root
    buffered = {Path(one.device_path) for one in seen.subsystems[nqn].namespaces.values() if one.buffered_io}
    facts = Facts(buffered, seen.hosts)
    return PARTIAL if difference(seen, target(seen, exports, exports, {nqn}, facts)) else LIVE
