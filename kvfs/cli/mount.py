"""`kvfs mount` and `kvfs umount`."""

from __future__ import annotations

import logging
import os
import select
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
import trio

from blockdev.types import MIB
from kvfs import provision
from kvfs.cli import background
from kvfs.cli.failures import describe, expected
from kvfs.cli.options import AddressType, Size
from kvfs.cli.render import message
from kvfs.cli.running import ask, mount_at, only_mount
from kvfs.config import load_config
from kvfs.daemon import Plan, run
from kvfs.errors import ConfigError, MountFailed, NotMounted
from kvfs.mountpoint import (
    FSTYPE,
    check_fuse,
    check_mount_point,
    is_dead,
    mounted_at,
    resolve,
    unmount_command,
    unmount_refused,
)
from kvfs.sizes import format_size
from kvfs.state import named_after

if TYPE_CHECKING:
    from kvfs.config import Address, Config, Durability
    from kvfs.state import MountFolder, PoolFolder, StateDirectory

END_TIMEOUT = 60.0
"""Seconds that a mount may take to close its pool after it was unmounted."""


class MountOptions(TypedDict):
    """What the command line says over the configuration; None is silence."""

    size: int | None
    config: Path | None
    memory: int | None
    durability: Durability | None
    allow_other: bool
    no_lane: bool
    metrics: Address | None
    foreground: bool
    ready_fd: int | None


@click.command(short_help="Mount a pool, or a new one in files.")
@click.argument("arguments", metavar="[POOL] DIR", nargs=-1)
@click.option(
    "--size",
    type=Size(),
    help="Mount an embedded pool: files in the state directory, made when they are not there, and found again the "
    "next time for the same DIR.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file to use instead of the pool's own.",
)
@click.option("--memory", type=Size(), help="Memory for the DRAM tier. [default: from the configuration]")
@click.option(
    "--durability",
    type=click.Choice(["close", "flush"]),
    help="What a closed file survives: a killed process, or a power loss too. [default: from the configuration]",
)
@click.option("--allow-other", is_flag=True, help="Let other users use the mount.")
@click.option("--no-lane", is_flag=True, help="Let pyfuse3 answer reads and writes too: slower, and simpler.")
@click.option("--metrics", type=AddressType(), help="Serve Prometheus metrics there.")
@click.option("--foreground", "-f", is_flag=True, help="Stay in the foreground, for service managers.")
@click.option("--ready-fd", type=int, hidden=True, help="Where to say that the mount answers.")
@click.pass_obj
def mount(state: StateDirectory, arguments: tuple[str, ...], **options: Unpack[MountOptions]) -> None:
    """Mount POOL on DIR, an empty directory; with --size, a pool of its own in files.

    Returns when the mount answers, and goes on in the background; what it has to say later is in mount.log in the
    pool's folder of the state directory. With --foreground it stays, ends with SIGINT or SIGTERM, and tells systemd
    that it is ready where $NOTIFY_SOCKET is set.
    """
    ready = background.Ready(options["ready_fd"])
    try:
        _mount(state, arguments, options, ready)
    except Exception as error:
        cause = expected(error)
        if cause is not None:
            ready.failed(cause, describe(cause))
        raise


def _mount(
    state: StateDirectory, arguments: tuple[str, ...], options: MountOptions, ready: background.Ready
) -> None:
    pool, mount_point = _named(arguments, options)
    if not _may_be_dead(state, mount_point):
        check_mount_point(mount_point)
    folder = _folder(state, pool, mount_point, options)
    config = _configured(folder, options)
    check_fuse(allow_other=config.allow_other)
    if options["foreground"]:
        if options["ready_fd"] is not None:
            os.chdir("/")  # keep no other file system busy
            logging.getLogger().addHandler(ready)
        _log_with_time()
        trio.run(run, Plan(folder, config, mount_point), ready.ready)
    else:
        its = folder.mount(mount_point)
        its.create()
        for warning in background.start(_again(state, folder.name, mount_point, options), its.log):
            message(warning)


def _may_be_dead(state: StateDirectory, mount_point: str) -> bool:
    """Whether a mount of ours is there that does not answer as one: mounting takes it away if it is dead."""
    there = mounted_at(mount_point)
    if there is None or there.fstype != FSTYPE:
        return False
    found = mount_at(state, mount_point)
    return found is None or not found.alive


def _named(arguments: tuple[str, ...], options: MountOptions) -> tuple[str, str]:
    """The pool's name (empty for an embedded one) and the resolved directory."""
    if options["size"] is None and len(arguments) == 2:
        return arguments[0], resolve(Path(arguments[1]))
    if options["size"] is not None and len(arguments) == 1:
        return "", resolve(Path(arguments[0]))
    if options["size"] is not None:
        raise click.UsageError("--size mounts a pool of its own and takes DIR only")
    raise click.UsageError("needs a pool and a directory: kvfs mount POOL DIR, or kvfs mount --size 4GiB DIR")


def embedded_name(mount_point: str) -> str:
    """The name of the embedded pool of a directory: always the same, and another one for every other directory."""
    return f"embedded-{named_after(mount_point, 40)}"


def _again(state: StateDirectory, pool: str, mount_point: str, options: MountOptions) -> list[str]:
    """The command line of the daemon: everything resolved, so that `ps` shows what is mounted where."""
    line = ["--state-dir", str(state.root), "mount", "--foreground"]
    if options["config"] is not None:
        line += ["--config", str(options["config"].absolute())]
    if options["memory"] is not None:
        line += ["--memory", str(options["memory"])]
    if options["durability"] is not None:
        line += ["--durability", options["durability"]]
    if options["allow_other"]:
        line += ["--allow-other"]
    if options["no_lane"]:
        line += ["--no-lane"]
    if options["metrics"] is not None:
        line += ["--metrics", str(options["metrics"])]
    return [*line, pool, mount_point]


def _folder(state: StateDirectory, pool: str, mount_point: str, options: MountOptions) -> PoolFolder:
    if options["size"] is not None:
        check_fuse(allow_other=options["allow_other"])  # make no pool that cannot be mounted
        return trio.run(_embedded, state, mount_point, options["size"])
    return state.folder(pool) if options["config"] is not None else state.known(pool)


async def _embedded(state: StateDirectory, mount_point: str, size: int) -> PoolFolder:
    """The embedded pool of a directory, made if need be."""
    folder = state.folder(embedded_name(mount_point))
    if folder.config.exists():
        there = sum(provision.size_of(path) or 0 for path in load_config(folder.config).devices)
        if there != size:
            message(
                f"the pool of {mount_point} has {format_size(there)} already, and keeps that size: unmount it and "
                f"add room with 'kvfs pool add {folder.name} DEVICE', or begin anew after 'kvfs pool destroy "
                f"{folder.name}'"
            )
        return folder
    with provision.made(folder):
        folder.devices.mkdir(exist_ok=True)
        planned = await provision.plan(state, [folder.devices / "0"], provision.PlanOptions(size, force=True))
        await provision.create(folder, provision.NewPool(folder.name, planned, 4 * MIB, "close"))
    return folder


def _configured(folder: PoolFolder, options: MountOptions) -> Config:
    """The configuration, with what the command line says over it.

    :raises ConfigError:
    """
    path = options["config"] or folder.config
    config = load_config(path)
    if config.name != folder.name:
        raise ConfigError(f"{path}: is of pool '{config.name}', not of '{folder.name}'")
    chosen = {
        "memory": options["memory"],
        "durability": options["durability"],
        "allow_other": options["allow_other"] or None,
        "lane": False if options["no_lane"] else None,
        "metrics": options["metrics"],
    }
    return replace(config, **{key: value for key, value in chosen.items() if value is not None})  # type: ignore[arg-type]


def _log_with_time() -> None:
    logging.getLogger().setLevel(logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))


@click.command(short_help="Unmount.")
@click.argument("where", metavar="DIR|POOL")
@click.pass_obj
def umount(state: StateDirectory, where: str) -> None:
    """Unmount DIR, or the only mount of POOL, and wait until its process has closed the pool.

    What a killed mount left behind is removed too.
    """
    path = _where_mounted(state, where)
    there, found = mounted_at(path), mount_at(state, path)
    if there is None:
        if found is not None and not found.alive:
            found.folder.discard()  # of before a reboot
        raise NotMounted(f"{path}: nothing is mounted there; 'kvfs pool list' shows what is mounted where")
    if there.fstype != FSTYPE:
        raise NotMounted(f"{path}: a mount of {there.fstype}, not of kvfs; take it away with 'umount {path}'")
    if found is not None and found.alive:
        _unmount(found.folder)
        return
    gone = is_dead(path)
    detach(path, lazy=gone)
    if found is not None:
        found.folder.discard()
    if gone:
        message(f"{path}: its process was gone; what it left is removed")


def _where_mounted(state: StateDirectory, where: str) -> str:
    """The directory that is meant: a pool's name stands for it where nothing of that name is mounted."""
    path = resolve(Path(where))
    is_place = "/" in where or mounted_at(path) is not None or mount_at(state, path) is not None
    if is_place or where not in {pool.name for pool in state}:
        return path
    return only_mount(state.known(where)).record.mount_point


def _unmount(folder: MountFolder) -> None:
    """Ask the mount to end, and see it gone: then the pool is closed and may be opened again."""
    pid = int(ask(folder, "status")["pid"])
    with ExitStack() as stack:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        stack.callback(os.close, process)
        ask(folder, "unmount")
        ended, _, _ = select.select([process], [], [], END_TIMEOUT)
    if not ended:
        raise MountFailed(f"unmounted, but process {pid} is still closing the pool; see {folder.log}")


def detach(path: str, *, lazy: bool) -> None:
    """Take a mount that has no control socket out of the tree.

    :raises MountError: the system refuses
    """
    command = unmount_command(path, lazy=lazy)
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"}
    )
    if result.returncode:
        raise unmount_refused(path, result.stderr)
