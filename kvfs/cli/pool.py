"""`kvfs pool …`: make, list, look at, grow, check and remove pools."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
import trio

from blockdev.errors import PoolBusy
from kvfs import provision
from kvfs.assemble import reading, writing
from kvfs.cli.exit_codes import exit_code
from kvfs.cli.options import (
    ExtentSize,
    Group,
    Parsed,
    PoolName,
    Size,
    complete_pool,
    named_device,
    styled,
)
from kvfs.cli.render import Column, Row, Style, Unit, as_json, fields, message, progress, table, write
from kvfs.cli.running import (
    IDLE,
    Found,
    answering,
    ask,
    dead,
    live_mounts,
    mounts_of,
    state_of,
    unmount_first,
)
from kvfs.config import load_config
from kvfs.errors import ConfigError, DamageFound, PoolExists
from kvfs.report import describe_pool, scrub_report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvfs.config import DeviceName, Durability
    from kvfs.control import Json
    from kvfs.state import PoolFolder, StateDirectory

LIST_COLUMNS = (
    Column("name"),
    Column("state"),
    Column("devices", Unit.COUNT),
    Column("size", Unit.BYTES),
    Column("mount_point"),
    Column("pid", Unit.COUNT, shown=False),
    Column("config", shown=False),
)
STATUS_FIELDS = (
    Column("name"),
    Column("state"),
    Column("mount_point"),
    Column("pid", Unit.COUNT),
    Column("uuid"),
    Column("domain"),
    Column("extent_size", Unit.BYTES),
    Column("region_size", Unit.BYTES),
    Column("objects", Unit.COUNT),
    Column("total", Unit.BYTES),
    Column("used", Unit.BYTES),
)
DEVICE_COLUMNS = (
    Column("number", Unit.COUNT),
    Column("state"),
    Column("size", Unit.BYTES),
    Column("ways"),
    Column("via"),
    Column("path"),
    Column("uuid", shown=False),
    Column("ana", shown=False),
    Column("nqn", shown=False),
)
PLAN_COLUMNS = (
    Column("action"),
    Column("size", Unit.BYTES),
    Column("path"),
    Column("holds"),
    Column("name", shown=False),
)
DAMAGE_COLUMNS = (Column("path"), Column("size", Unit.BYTES), Column("dropped"), Column("reason"))

name_argument = click.argument("name", shell_complete=complete_pool)
device_arguments = click.argument(
    "devices", metavar="DEVICE...", nargs=-1, required=True, type=Parsed("device", named_device)
)
size_option = click.option("--size", type=Size(), help="Size of each DEVICE that is made as a file.")
force_option = click.option("--force", is_flag=True, help="Overwrite what a device holds.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")


class AddOptions(TypedDict):
    """Options of a command that takes devices."""

    size: int | None
    force: bool
    dry_run: bool


class CreateOptions(AddOptions):
    """Options of `pool create`."""

    extent_size: int
    durability: Durability


@click.group(cls=Group, short_help="Make, list, grow, check and remove pools.")
def pool() -> None:
    """Make, list, grow, check and remove pools.

    A pool is one or more devices, whole drives or files, that hold objects together. It is a cache: there is one copy
    of everything, and what is not used goes when room is needed.
    """


@pool.command("create", short_help="Make a pool of devices.")
@click.argument("name", type=PoolName())
@device_arguments
@size_option
@click.option(
    "--extent-size", type=ExtentSize(), default="4MiB", show_default=True, help="2, 4, 8 or 16 MiB."
)
@click.option(
    "--durability",
    type=click.Choice(["close", "flush"]),
    default="close",
    show_default=True,
    help="What a closed file survives: a killed process, or a power loss too.",
)
@force_option
@dry_run_option
@styled(PLAN_COLUMNS)
@click.pass_obj
def create_(
    state: StateDirectory,
    name: str,
    devices: tuple[DeviceName, ...],
    style: Style,
    **options: Unpack[CreateOptions],
) -> None:
    """Make the pool NAME of one or more DEVICEs: block devices, or files.

    A DEVICE may also be a namespace of a target over fabrics, such as nvme+tcp://192.0.2.1/NQN/1 (see `kvfs target`): it
    is connected, now and whenever the pool is mounted. A path that is not there is made as a file of --size, all of it allocated. A device that holds something, such as
    a file system or another pool, is refused unless --force is given. The pool's configuration is written to pool.yaml
    in its folder of the state directory; -H, -p, -o and --json are for --dry-run.
    """
    folder = state.folder(name)
    if folder.config.exists():
        raise PoolExists(
            f"pool '{name}' exists in {state.root}; choose another name or remove it with 'kvfs pool destroy {name}'"
        )
    planned = _plan(state, devices, options)
    if options["dry_run"]:
        _show_plan("pool create", planned, style)
        return
    new = provision.NewPool(name, planned, options["extent_size"], options["durability"])
    trio.run(provision.create, folder, new)


def _plan(
    state: StateDirectory, devices: Sequence[DeviceName], options: AddOptions
) -> list[provision.PlannedDevice]:
    how = provision.PlanOptions(options["size"], options["force"], connect=not options["dry_run"])
    return trio.run(provision.plan, state, devices, how)


def _show_plan(command: str, planned: Sequence[provision.PlannedDevice], style: Style) -> None:
    rows: list[Row] = [
        {
            "name": str(device.name),
            "path": str(device.place),
            "action": device.action,
            "size": device.size,
            "holds": device.holds,
        }
        for device in planned
    ]
    write(
        as_json(command, {"dry_run": True, "devices": rows})
        if style.json
        else table(PLAN_COLUMNS, rows, style)
    )


@pool.command("list", short_help="List the pools of this host.")
@styled(LIST_COLUMNS)
@click.pass_obj
def list_(state: StateDirectory, style: Style) -> int | None:
    """List the pools of this host, and where they are mounted.

    The state is `mounted`, `idle`, `dead` where the only mount was killed and not yet removed with `kvfs umount`, or
    `unreadable` where pool.yaml cannot be used. Several mounts of a pool have commas between them.
    """
    rows, failure = [], None
    for folder in state:
        try:
            rows.append(_listed(folder, load_config(folder.config).devices))
        except ConfigError as error:  # of one pool, which must not hide the others
            rows.append(_listed(folder, None))
            message(str(error))
            failure = exit_code(error)
    if style.json:
        write(as_json("pool list", {"pools": [_with_mount(row) for row in rows]}, minor=1))
    else:
        write(table(LIST_COLUMNS, [_with_mounts(row) for row in rows], style))
    return failure


def _listed(folder: PoolFolder, names: Sequence[DeviceName] | None) -> Json:
    mounts = mounts_of(folder)
    how = state_of(mounts)
    sizes = [provision.size_of(name) for name in names or ()]
    return {
        "name": folder.name,
        "state": "unreadable" if names is None and how == IDLE else how,
        "devices": None if names is None else len(names),
        "size": None if names is None or None in sizes else sum(size or 0 for size in sizes),
        "config": str(folder.config),
        "mounts": _mounts(mounts),
    }


def _mounts(mounts: Sequence[Found]) -> list[Json]:
    return [
        {"mount_point": found.record.mount_point, "pid": found.record.pid, "state": state_of([found])}
        for found in mounts
    ]


def _with_mount(row: Json) -> Json:
    """For JSON: where there is one mount, it is also the pool's."""
    only: Json = row["mounts"][0] if len(row["mounts"]) == 1 else {}
    return row | {"mount_point": only.get("mount_point"), "pid": only.get("pid")}


def _with_mounts(row: Json) -> Json:
    """For tables: all mounts, with commas between."""
    return row | {
        key: ",".join(str(mount[key]) for mount in row["mounts"]) or None for key in ("mount_point", "pid")
    }


@pool.command("status", short_help="Show a pool and its devices.")
@name_argument
@styled(DEVICE_COLUMNS)
@click.pass_obj
def status(state: StateDirectory, name: str, style: Style) -> None:
    """Show the pool NAME and its devices: from the running mount, or else from the media.

    A device is `live`, `slow` while something is stuck in it, `lost` when it failed or went away, `connecting` when that is
    a namespace whose target the kernel tries to reach, or `missing` since the pool was opened. WAYS are the connections to
    its target: how many work, of how many. VIA says who moves its bytes: the `kernel`, or kvfs itself over `rdma`, which uses one of
    its ways at a time. -H, -p and -o apply to the devices.
    """
    folder = state.known(name)
    mounts = mounts_of(folder)
    live = [found for found in mounts if found.alive]
    seen = ask(answering(live), "status") if live else trio.run(_read_status, folder)
    row: Json = seen | {"state": state_of(mounts), "mounts": _mounts(mounts)}
    if style.json:
        write(as_json("pool status", {"pool": _with_mount(row)}, minor=1))
        return
    devices: list[Row] = row.pop("devices")
    if not style.bare:
        write(fields(STATUS_FIELDS, _with_mounts(row), Style(exact=style.exact)))
    write(table(DEVICE_COLUMNS, devices, style))
    for found in mounts:
        if not found.alive:
            message(str(dead(found.folder)))


async def _read_status(folder: PoolFolder) -> Json:
    async with reading(folder) as opened:
        return describe_pool(opened)


@pool.command("add", short_help="Add devices to a pool.")
@name_argument
@device_arguments
@size_option
@force_option
@dry_run_option
@styled(PLAN_COLUMNS)
@click.pass_obj
def add(
    state: StateDirectory,
    name: str,
    devices: tuple[DeviceName, ...],
    style: Style,
    **options: Unpack[AddOptions],
) -> None:
    """Add one or more DEVICEs to the pool NAME, which must not be mounted.

    New objects go to all devices from then on; what is stored stays where it is. All devices of the pool must be
    there, unless --force says that one is lost for good. -H, -p, -o and --json are for --dry-run.
    """
    folder = state.known(name)
    planned = _plan(state, devices, options)
    if options["dry_run"]:
        _show_plan("pool add", planned, style)
        return
    trio.run(partial(provision.add, folder, planned, force=options["force"]))


@pool.command("scrub", short_help="Verify everything that a pool holds.")
@name_argument
@styled(DAMAGE_COLUMNS)
@click.pass_obj
def scrub(state: StateDirectory, name: str, style: Style) -> None:
    """Read everything in the pool NAME and compare it with its checksums; mounted or not.

    Objects that are damaged are dropped, so that they are misses, and listed; those on a device that fails are listed
    and stay. Shows a progress bar when stderr is a terminal.
    """
    folder = state.known(name)
    with progress(f"scrub {name}") as advance:

        def on_progress(update: Json) -> None:
            advance(update["done"], update["total"])

        if live := live_mounts(folder):
            result = ask(answering(live), "scrub", on_progress=on_progress)
        else:
            result = trio.run(_scrub, folder, on_progress)
    damaged = result["damaged"]
    if style.json:
        write(as_json("pool scrub", {"pool": name, "scrub": result}))
    elif damaged:
        write(table(DAMAGE_COLUMNS, damaged, style))
    if damaged:
        what = _count(len(damaged), "damaged object was", "damaged objects were")
        raise DamageFound(f"{what} found; look at the devices with 'kvfs pool status {name}'")
    away = f", {result['unreachable']} on missing devices could not be read" if result["unreachable"] else ""
    message(f"scrub of {name}: {_count(result['objects'], 'object is', 'objects are')} right{away}")


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


async def _scrub(folder: PoolFolder, on_progress: Callable[[Json], None]) -> Json:
    async def report(update: Json) -> None:
        on_progress(update)

    async with writing(folder, "scrubbing it") as opened:
        return await scrub_report(opened.pool, report)


@pool.command("take", short_help="Adopt a pool that is on its devices already.")
@name_argument
@click.argument("devices", metavar="[DEVICE...]", nargs=-1, type=Parsed("device", named_device))
@click.option("--force", is_flag=True, help="Take it from another host, which must not use it any more.")
@click.pass_obj
def take(state: StateDirectory, name: str, devices: tuple[DeviceName, ...], force: bool) -> None:
    """Make the pool NAME, which exists on its DEVICEs, known to this host.

    For a pool that was moved here, or whose state directory was lost. What the pool holds stays. A pool belongs to the
    state directory that it was made with: another one is refused until it is taken with --force, since two hosts that
    do not know of each other would destroy its contents. Without DEVICEs, those that pool.yaml lists.
    """
    folder = state.folder(name) if devices else state.known(name)
    trio.run(partial(provision.take, folder, devices, force=force))


@pool.command("destroy", short_help="Remove a pool and all that is in it.")
@name_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Go on where a device is missing or cannot be erased.")
@click.pass_obj
def destroy(state: StateDirectory, name: str, yes: bool, force: bool) -> None:
    """Remove the pool NAME: its devices are made unrecognisable, and its folder in the state directory is deleted.

    Files outside that folder stay, with their size. Asks first when stdin is a terminal; scripts say --yes.
    """
    folder = state.known(name)
    if live := live_mounts(folder):
        raise PoolBusy(unmount_first(folder, live))
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("this cannot be undone: say --yes")
        click.confirm(f"Remove pool '{name}' and everything in it?", abort=True, err=True)
    trio.run(partial(provision.destroy, folder, force=force))
