"""`kvfs target …`: find, connect, disconnect and watch what holds namespaces over fabrics."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypedDict, Unpack
from uuid import UUID

import click
import trio

from blockdev.errors import FabricsError, PoolBusy
from blockdev.lease import Leases
from blockdev.nvme import LIVE, Credentials, NamespaceName, Portal, Transport
from blockdev.nvme.names import make_target, parse_portals, parse_target, read_key_path
from kvfs import targets
from kvfs.cli.options import Group, Parsed, styled
from kvfs.cli.render import Column, Row, Style, Unit, as_json, message, table, write
from kvfs.cli.running import ask, live_mounts, unmount_first
from kvfs.config import load_config
from kvfs.devices import known_path
from kvfs.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockdev.nvme import Controller, Namespace, Subsystem, Target
    from kvfs.state import PoolFolder, StateDirectory

DISCOVER_COLUMNS = (
    Column("nqn"),
    Column("transport"),
    Column("address"),
    Column("service"),
    Column("connected"),
    Column("secure", shown=False),
    Column("uri", shown=False),
)
LIST_COLUMNS = (
    Column("device"),
    Column("namespace", Unit.COUNT),
    Column("size", Unit.BYTES),
    Column("state"),
    Column("ways", Unit.COUNT),
    Column("nqn"),
    Column("uuid", shown=False),
    Column("uri", shown=False),
)
STATUS_COLUMNS = (
    Column("controller"),
    Column("state"),
    Column("transport"),
    Column("address"),
    Column("service"),
    Column("ana"),
    Column("nqn"),
    Column("keep_alive", Unit.COUNT, shown=False),
    Column("fast_io_fail", Unit.COUNT, shown=False),
    Column("reconnect_delay", Unit.COUNT, shown=False),
    Column("ctrl_loss", Unit.COUNT, shown=False),
    Column("io_timeout", Unit.COUNT, shown=False),
    Column("model", shown=False),
    Column("firmware", shown=False),
    Column("life_used", Unit.COUNT, shown=False),
    Column("media_errors", Unit.COUNT, shown=False),
)
COMMAND_COLUMNS = (Column("command"),)


class ConnectOptions(TypedDict):
    """Options of `target connect`."""

    host_key: PurePath | None
    controller_key: PurePath | None
    tls: bool
    dry_run: bool


dry_run_option = click.option(
    "--dry-run",
    is_flag=True,
    help="Show the nvme commands that would be run, and run none that changes anything.",
)


@click.group(cls=Group, short_help="Find, connect and watch targets over fabrics.")
def target() -> None:
    """Find, connect, disconnect and watch the targets that hold namespaces over NVMe over fabrics.

    A target is written nvme+tcp://ADDRESS[:PORT]/NQN, with rdma or loop in place of tcp; several addresses, separated by
    commas, are several ways to the same target. A namespace of it has its number or UUID added, as in
    nvme+tcp://192.0.2.1/nqn.2014-08.org.example:kv/1, and stands for a device in `kvfs pool create`, `kvfs pool add` and
    pool.yaml: a pool connects to what it needs by itself, when it is mounted.
    """


@target.command("discover", short_help="Ask what there is at an address.")
@click.argument(
    "addresses", metavar="ADDRESS...", nargs=-1, required=True, type=Parsed("address", parse_portals)
)
@styled(DISCOVER_COLUMNS)
def discover(addresses: tuple[tuple[Portal, ...], ...], style: Style) -> None:
    """Ask each ADDRESS, such as nvme+tcp://192.0.2.1, which subsystems it offers to this host."""
    portals = [portal for group in addresses for portal in group]
    rows = trio.run(_discover, targets.fabric(), portals)
    write(
        as_json("target discover", {"targets": rows}) if style.json else table(DISCOVER_COLUMNS, rows, style)
    )


async def _discover(fabric: targets.Fabric, portals: Sequence[Portal]) -> list[Row]:
    rows: list[Row] = []
    there = {(subsystem.nqn, one) for subsystem in fabric.sysfs.subsystems() for one in subsystem.controllers}
    for portal in portals:
        for entry in await fabric.discover(portal):
            if entry.discovery:
                continue
            row: Row = {"nqn": entry.nqn, "transport": entry.transport, "address": entry.address or None}
            row |= {"service": entry.service or None, "secure": entry.secure, "uri": None, "connected": False}
            with suppress(ValueError):  # other transports, and what a target says that is no name or address
                way = Portal(Transport(entry.transport), entry.address, entry.service)
                address = [way.authority] if entry.address else []
                row["uri"] = str(make_target(way.transport, address, entry.nqn))
                row["connected"] = any(nqn == entry.nqn and one.is_at(way) for nqn, one in there)
            rows.append(row)
    return rows


@target.command("connect", short_help="Connect to targets.")
@click.argument("uris", metavar="TARGET...", nargs=-1, required=True, type=Parsed("target", parse_target))
@click.option(
    "--host-key",
    type=Parsed("file", read_key_path),
    help="File with this host's DH-HMAC-CHAP key, readable by root alone.",
)
@click.option(
    "--controller-key",
    type=Parsed("file", read_key_path),
    help="File with the key by which the target proves itself.",
)
@click.option("--tls", is_flag=True, help="Encrypt, with the key in the kernel's keyring .nvme.")
@dry_run_option
@styled(COMMAND_COLUMNS)
def connect(uris: tuple[Target, ...], style: Style, **options: Unpack[ConnectOptions]) -> None:
    """Connect to each TARGET, such as nvme+tcp://192.0.2.1/nqn.2014-08.org.example:kv.

    What is connected already stays. Each TARGET is connected by all of its addresses, or not at all: what was made for it
    is taken away again when a part fails. -H, -p, -o and --json are for --dry-run.
    """
    fabric, settings = targets.fabric(), targets.Settings()
    wanted = [_with_keys(uri, options) for uri in uris]
    if options["dry_run"]:
        commands = [c for one in wanted for c in trio.run(fabric.commands, one, settings)]
        _show_commands("target connect", commands, style)
        return
    for one in wanted:
        trio.run(fabric.connect, one, settings)


def _with_keys(uri: Target, options: ConnectOptions) -> Target:
    said = uri.credentials
    return replace(
        uri,
        credentials=Credentials(
            options["host_key"] or said.host_key,
            options["controller_key"] or said.controller_key,
            options["tls"] or said.tls,
        ),
    )


def _show_commands(command: str, commands: Sequence[Sequence[str]], style: Style) -> None:
    rows: list[Row] = [{"command": shlex.join(["nvme", *words])} for words in commands]
    write(
        as_json(command, {"dry_run": True, "commands": rows})
        if style.json
        else table(COMMAND_COLUMNS, rows, style)
    )


@target.command("disconnect", short_help="Disconnect from targets.")
@click.argument("names", metavar="TARGET|NQN...", nargs=-1, required=True)
@dry_run_option
@styled(COMMAND_COLUMNS)
@click.pass_obj
def disconnect(state: StateDirectory, names: tuple[str, ...], dry_run: bool, style: Style) -> None:
    """End all connections to each TARGET, given as a URI or by its NQN alone; nothing where there is none.

    Refused for what a pool uses that is mounted, or open in an engine. -H, -p, -o and --json are for --dry-run.
    """
    fabric = targets.fabric()
    there = {subsystem.nqn: subsystem for subsystem in _connected(fabric)}
    nqns = [nqn for name in names if (nqn := _nqn(name)) in there]
    for nqn in nqns:
        _refuse_in_use(state, there[nqn])
    if dry_run:
        _show_commands("target disconnect", [["disconnect", "-n", nqn] for nqn in nqns], style)
        return
    for nqn in nqns:
        trio.run(fabric.cli.disconnect, nqn)


def _nqn(name: str) -> str:
    if name.startswith("nqn."):
        return name
    try:
        return parse_target(name).nqn
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _refuse_in_use(state: StateDirectory, subsystem: Subsystem) -> None:
    """:raises PoolBusy:"""
    names = {namespace.name for namespace in subsystem.namespaces}
    for folder in state:
        mounts = live_mounts(folder)
        for mount in mounts:  # each has the devices that were there when it was made
            paths = [str(device["path"]) for device in ask(mount.folder, "status")["devices"]]
            used = {
                Path(name).name for path in paths for name in (path, os.path.realpath(path))
            }  # links, too
            if used & names:
                raise PoolBusy(f"{subsystem.nqn} is in use: {unmount_first(folder, [mount])}")
        others = _members(folder) - {mount.record.pid for mount in mounts}
        if others and _configured(folder) & names:
            who = " and ".join(f"process {pid}" for pid in sorted(others))
            raise PoolBusy(
                f"{subsystem.nqn} is in use: pool '{folder.name}' is open in {who}; end that first"
            )


def _members(folder: PoolFolder) -> set[int]:
    """Processes that have a pool open: mounts, and engines by the Cache API."""
    found: set[int] = set()
    for path in folder.path.glob("*.lock"):
        with Leases.open(folder.path, UUID(path.stem)) as leases:
            found |= {holder.pid for holder in leases.holders()}
    return found


def _configured(folder: PoolFolder) -> set[str]:
    """What the kernel calls the devices of a pool, as far as they are there; none where its configuration is wrong."""
    try:
        paths = map(known_path, load_config(folder.config).devices)
    except ConfigError:
        return set()
    return _block_devices(str(path) for path in paths if path is not None)


def _block_devices(paths: Iterable[str]) -> set[str]:
    """Their names, and what those lead to that are links, such as in /dev/disk/by-id."""
    return {Path(name).name for path in paths for name in (path, os.path.realpath(path))}


@target.command("list", short_help="List the namespaces of connected targets.")
@styled(LIST_COLUMNS)
def list_(style: Style) -> None:
    """List the namespaces of connected targets, and the devices that they are.

    The state is `live`, `degraded` where some ways are closed, `connecting` where all are and the kernel tries again, or
    `lost`.
    """
    rows: list[Row] = []
    for subsystem in _connected(targets.fabric()):
        target = targets.target_of(subsystem)
        rows += [_listed(subsystem, target, namespace) for namespace in subsystem.namespaces]
        if not subsystem.namespaces:
            where = None if target is None else str(target)
            rows.append({"nqn": subsystem.nqn, "state": targets.health(subsystem), "uri": where})
    write(as_json("target list", {"namespaces": rows}) if style.json else table(LIST_COLUMNS, rows, style))


def _listed(subsystem: Subsystem, target: Target | None, namespace: Namespace) -> Row:
    uuid = next(iter(namespace.uuids), None)
    return {
        "device": f"/dev/{namespace.name}",
        "namespace": namespace.number,
        "size": namespace.size,
        "state": targets.health(subsystem, namespace),
        "ways": len(namespace.ways),
        "nqn": subsystem.nqn,
        "uuid": None if uuid is None else str(uuid),
        "uri": None if target is None else str(NamespaceName(target, uuid or namespace.number)),
    }


@target.command("status", short_help="Show the connections to targets.")
@click.argument("names", metavar="[TARGET|NQN...]", nargs=-1)
@styled(STATUS_COLUMNS)
def status(names: tuple[str, ...], style: Style) -> None:
    """Show each way to each connected target, or to those given: its state, how good it is (ANA), its time-outs in
    seconds, and what the drive says of its health.
    """
    fabric = targets.fabric()
    wanted = {_nqn(name) for name in names}
    subsystems = [one for one in _connected(fabric) if not wanted or one.nqn in wanted]
    for nqn in sorted(wanted - {one.nqn for one in subsystems}):
        message(f"{nqn} is not connected")
    rows = trio.run(_status, fabric, subsystems)
    write(as_json("target status", {"ways": rows}) if style.json else table(STATUS_COLUMNS, rows, style))


async def _status(fabric: targets.Fabric, subsystems: Sequence[Subsystem]) -> list[Row]:
    rows: list[Row] = []
    for subsystem in subsystems:
        for controller in subsystem.controllers:
            row = _way(subsystem, controller) | {"io_timeout": fabric.sysfs.io_timeout(controller.name)}
            if controller.state == LIVE:
                row |= await _drive(fabric, controller.name)
            rows.append(row)
    return rows


def _way(subsystem: Subsystem, controller: Controller) -> Row:
    ways = [way for one in subsystem.namespaces for way in one.ways if way.controller == controller.name]
    timers = controller.timers
    row: Row = {
        "controller": controller.name,
        "state": controller.state,
        "transport": controller.transport,
        "address": controller.address,
        "service": controller.service,
        "ana": ",".join(dict.fromkeys(way.ana for way in ways if way.ana)),
        "nqn": subsystem.nqn,
    }
    if timers is not None:
        row |= {"keep_alive": timers.keep_alive, "reconnect_delay": timers.reconnect_delay}
        row |= {"fast_io_fail": timers.fast_io_fail, "ctrl_loss": timers.ctrl_loss}
    return row


async def _drive(fabric: targets.Fabric, controller: str) -> Row:
    """What a target says of what is behind a connection; nothing where it does not say it."""
    try:
        identity = await fabric.cli.identify_controller(controller)
        row: Row = {"model": identity.model, "firmware": identity.firmware}
        smart = await fabric.cli.smart_log(controller)
    except FabricsError:
        return {}
    return row | {"life_used": smart.used, "media_errors": smart.media_errors}


def _connected(fabric: targets.Fabric) -> list[Subsystem]:
    """Those over fabrics, without this host's own drives."""
    return [
        subsystem
        for subsystem in fabric.sysfs.subsystems()
        if any(controller.transport != "pcie" for controller in subsystem.controllers)
    ]
