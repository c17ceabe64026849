"""`kvfs export …`: offer block devices and files of a storage node to hosts, over NVMe/TCP and NVMe/RDMA."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click
import trio

from kvfs.cli.failures import describe
from kvfs.cli.options import Group, ParameterType, styled
from kvfs.cli.render import Column, Row, Style, Unit, as_json, fields, message, table, write
from kvfs.errors import ConfigError, NoConfigfs, NoTarget, RestoreIncomplete
from kvfs.export import node as exporting
from kvfs.export.configfs import find_target, read_tree
from kvfs.export.document import load_exports
from kvfs.export.model import HostKeys, Parts, Port, check_nqn, parse_port
from kvfs.export.tree import Tree
from kvfs.provision import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvfs.export.model import Export, Exports
    from kvfs.export.tree import Step
    from kvfs.state import StateDirectory

DEFAULT_FILE = Path("/etc/kvfs/exports.yaml")

LIST_COLUMNS = (
    Column("nqn"),
    Column("state"),
    Column("devices", Unit.COUNT),
    Column("size", Unit.BYTES),
    Column("hosts", Unit.COUNT),
    Column("ports"),
    Column("serial", shown=False),
)
SHOW_FIELDS = (Column("nqn"), Column("state"), Column("serial"), Column("hosts"), Column("ports"))
DEVICE_COLUMNS = (
    Column("number", Unit.COUNT),
    Column("size", Unit.BYTES),
    Column("path"),
    Column("uuid"),
    Column("nguid", shown=False),
    Column("wwid", shown=False),
)
STEP_COLUMNS = (Column("action"), Column("path"), Column("value"))


class Nqn(ParameterType):
    """The name of an export or of a host."""

    name = "nqn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401 (click's)
        try:
            return check_nqn(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class PortType(ParameterType):
    """Where an export is reached."""

    name = "transport:address[:service]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Port:  # noqa: ANN401 (click's)
        if isinstance(value, Port):
            return value
        try:
            return parse_port(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class PartOptions(TypedDict):
    """Parts of an export that `add` and `remove` name."""

    ports: tuple[Port, ...]
    hosts: tuple[str, ...]


class AddOptions(PartOptions):
    """Options of `export add`."""

    allow_any_host: bool
    key_file: Path | None
    controller_key_file: Path | None
    force: bool


file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_FILE,
    show_default=True,
    help="Where the exports are remembered.",
)


def _complete_nqn(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    try:
        known = load_exports(context.params.get("file") or DEFAULT_FILE).exports
    except ConfigError:
        return []
    return [nqn for nqn in known if nqn.startswith(incomplete)]


nqn_argument = click.argument("nqn", metavar="NQN", type=Nqn(), shell_complete=_complete_nqn)
device_arguments = click.argument(
    "devices", metavar="[DEVICE...]", nargs=-1, type=click.Path(path_type=Path, readable=False)
)
port_option = click.option(
    "--port",
    "ports",
    type=PortType(),
    multiple=True,
    help="Where hosts reach it: tcp or rdma, an address of this node, and a service other than 4420. Repeatable.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be written, and do nothing.")
key_path = click.Path(path_type=Path, readable=False)


@click.group(cls=Group, short_help="Offer drives of this node to hosts, over NVMe/TCP and NVMe/RDMA.")
def export() -> None:
    """Offer block devices and files of this storage node to hosts, over NVMe/TCP and NVMe/RDMA.

    The kernel's own target, nvmet, serves them; kvfs only configures it, and remembers how, so that 'kvfs export
    restore' can do so again after a reboot. An export is one NVMe subsystem, known by its NQN.
    """


@export.command("add", short_help="Make an export, or add to it.")
@nqn_argument
@device_arguments
@port_option
@click.option(
    "--host", "hosts", type=Nqn(), multiple=True, help="NQN of a host that may connect. Repeatable."
)
@click.option("--allow-any-host", is_flag=True, help="Let every host connect, in the place of those named.")
@click.option("--key-file", type=key_path, help="File with the secret by which each --host proves itself.")
@click.option("--controller-key-file", type=key_path, help="File with the secret by which this node does.")
@click.option("--force", is_flag=True, help="Let hosts overwrite what a device holds.")
@file_option
@dry_run_option
@styled(STEP_COLUMNS)
@click.pass_obj
def add(
    state: StateDirectory,
    nqn: str,
    devices: tuple[Path, ...],
    file: Path,
    dry_run: bool,
    style: Style,
    **options: Unpack[AddOptions],
) -> None:
    """Make the export NQN of one or more DEVICEs: block devices, or files. If it is there, add to it what it lacks.

    No host may connect unless it is named with --host, or --allow-any-host is given. A device that this node uses itself
    is refused; one that holds something, such as a file system, unless --force is given. Secrets are files as 'nvme
    gen-dhchap-key' writes them, which must stay where they are; a host's secret counts in all exports. -H, -p, -o
    and --json are for --dry-run.
    """
    parts = Parts((), options["ports"], options["hosts"], options["allow_any_host"], _keys(options))
    steps = trio.run(
        partial(
            exporting.add,
            _node(state, file),
            nqn,
            [_absolute(path) for path in devices],
            parts,
            force=options["force"],
            dry_run=dry_run,
        )
    )
    if dry_run:
        _show_steps("export add", steps, style)
        return
    made = load_exports(file).exports[nqn]
    if not made.hosts and not made.allow_any_host:
        message(f"no host may connect to {nqn} yet: name those that may with --host")


def _keys(options: AddOptions) -> HostKeys | None:
    """:raises click.UsageError: options that do not go together"""
    key, controller = options["key_file"], options["controller_key_file"]
    if any(str(path).startswith("DHHC-") for path in (key, controller)):
        raise click.UsageError(
            "a secret may not stand here, where others can read it: give the file that it is in"
        )
    if options["allow_any_host"] and options["hosts"]:
        raise click.UsageError("--allow-any-host and --host exclude each other")
    if key is None:
        if controller is not None:
            raise click.UsageError("--controller-key-file needs --key-file")
        return None
    if not options["hosts"]:
        raise click.UsageError("--key-file needs the --host whose secret it is")
    return HostKeys(_absolute(key), None if controller is None else _absolute(controller))


@export.command("remove", short_help="Remove an export, or parts of it.")
@nqn_argument
@device_arguments
@port_option
@click.option("--host", "hosts", type=Nqn(), multiple=True, help="NQN of a host that may no longer connect.")
@file_option
@dry_run_option
@styled(STEP_COLUMNS)
@click.pass_obj
def remove(
    state: StateDirectory,
    nqn: str,
    devices: tuple[Path, ...],
    file: Path,
    dry_run: bool,
    style: Style,
    **options: Unpack[PartOptions],
) -> None:
    """Remove the export NQN; or from it the DEVICEs, --ports and --hosts that are named.

    Hosts that are connected lose at once what is removed. When a --host is, the others are cut off too, for the moment that
    it takes them to connect again. What the devices hold stays. -H, -p, -o and --json are for --dry-run.
    """
    steps = exporting.remove(
        _node(state, file),
        nqn,
        [_absolute(path) for path in devices],
        Parts((), options["ports"], options["hosts"]),
        dry_run=dry_run,
    )
    if dry_run:
        _show_steps("export remove", steps, style)


@export.command("list", short_help="List the exports of this node.")
@file_option
@styled(LIST_COLUMNS)
def list_(file: Path, style: Style) -> None:
    """List the exports of this node.

    The state is `live`, `down` where the kernel does not have it, or `partial` where it has it in part, or otherwise.
    """
    exports = load_exports(file)
    states = exporting.states(exports, _seen())
    if style.json:
        found = [_as_json(one, exports, states[one.nqn]) for one in exports.exports.values()]
        write(as_json("export list", {"exports": found}))
        return
    rows: list[Row] = [
        {
            "nqn": one.nqn,
            "state": states[one.nqn],
            "devices": len(one.namespaces),
            "size": sum(size_of(namespace.path) or 0 for namespace in one.namespaces.values()),
            "hosts": "any" if one.allow_any_host else len(one.hosts),
            "ports": ",".join(map(str, one.ports)),
            "serial": one.serial,
        }
        for one in exports.exports.values()
    ]
    write(table(LIST_COLUMNS, rows, style))


@export.command("show", short_help="Show an export and its devices.")
@nqn_argument
@file_option
@styled(DEVICE_COLUMNS)
def show(nqn: str, file: Path, style: Style) -> None:
    """Show the export NQN and its devices. -H, -p and -o apply to the devices."""
    exports = load_exports(file)
    one = exports.known(nqn)
    found = _as_json(one, exports, exporting.states(exports, _seen())[nqn])
    if style.json:
        write(as_json("export show", {"export": found}))
        return
    if not style.bare:
        hosts = "any" if one.allow_any_host else ", ".join(_with_key(host, exports) for host in one.hosts)
        row: Row = {"nqn": nqn, "state": found["state"], "serial": one.serial, "hosts": hosts}
        write(fields(SHOW_FIELDS, row | {"ports": ", ".join(map(str, one.ports))}, Style(exact=style.exact)))
    write(table(DEVICE_COLUMNS, found["namespaces"], style))


def _with_key(host: str, exports: Exports) -> str:
    return f"{host} (with key)" if host in exports.keys else host


def _as_json(one: Export, exports: Exports, state: str) -> dict[str, Any]:
    return {
        "nqn": one.nqn,
        "state": state,
        "serial": one.serial,
        "allow_any_host": one.allow_any_host,
        "hosts": [{"nqn": host, "key": host in exports.keys} for host in one.hosts],
        "ports": [
            {"transport": port.transport, "address": port.address, "service": port.service}
            for port in one.ports
        ],
        "namespaces": [
            {
                "number": number,
                "path": str(namespace.path),
                "size": size_of(namespace.path),
                "uuid": str(namespace.uuid),
                "nguid": str(namespace.nguid),
                "wwid": namespace.wwid,
            }
            for number, namespace in one.namespaces.items()
        ],
    }


@export.command("restore", short_help="Put all exports into effect, as after a reboot.")
@file_option
@click.pass_obj
def restore(state: StateDirectory, file: Path) -> None:
    """Put all exports into effect that are remembered, as far as they can be.

    What is in effect is left alone, so this may be said at any time. A drive or an address that is missing is named, and takes
    nothing else with it. The service kvfs-export runs this at boot.
    """
    failures = exporting.restore(_node(state, file))
    for failure in failures:
        message(f"{failure.nqn}: {describe(failure.reason)}")
    if failures:
        affected = len({failure.nqn for failure in failures})
        raise RestoreIncomplete(
            f"{affected} of {len(load_exports(file).exports)} exports are not, or not wholly, in effect; "
            "correct it and say 'kvfs export restore' again"
        )


@export.command("stop", short_help="Take all exports out of effect; they are remembered.")
@file_option
@click.pass_obj
def stop(state: StateDirectory, file: Path) -> None:
    """Take all exports out of effect. Hosts lose them at once. They are remembered, and 'kvfs export restore' puts them
    into effect again.
    """
    exporting.stop(_node(state, file))


def _node(state: StateDirectory, file: Path) -> exporting.Node:
    return exporting.Node(file.resolve(), find_target(), state)  # a link stays one


def _seen() -> Tree:
    """What the kernel has: nothing where it has no target."""
    try:
        return read_tree(find_target(to_change=False))
    except (NoTarget, NoConfigfs):
        return Tree()


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 (Path.resolve would follow by-id links, which are meant)


def _show_steps(command: str, steps: Sequence[Step], style: Style) -> None:
    rows: list[Row] = [
        {"action": step.action.value, "path": step.path, "value": step.shown} for step in steps
    ]
    write(
        as_json(command, {"dry_run": True, "steps": rows}) if style.json else table(STEP_COLUMNS, rows, style)
    )
