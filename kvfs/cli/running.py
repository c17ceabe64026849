"""Finding and asking running mounts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvfs import control
from kvfs.errors import ControlTimeout, DeadMount, NotMounted, NotRunning
from kvfs.mountpoint import FSTYPE, mounted_at, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvfs.control import Json
    from kvfs.state import CacheSocket, MountFolder, MountRecord, PoolFolder, StateDirectory

MOUNTED = "mounted"
DEAD = "dead"
IDLE = "idle"

_PATIENCE = 2.0
"""Seconds that a mount may take to answer when there is another one to ask."""


class Found(NamedTuple):
    """A mount that is recorded."""

    folder: MountFolder
    record: MountRecord
    alive: bool
    """Whether its process is there; it may still be stopped, or stuck."""


def mounts_of(pool: PoolFolder) -> list[Found]:
    """The mounts of a pool, live and dead. What is left of others, of before a reboot for instance, is removed."""
    found = []
    for folder in pool.mounts():
        record = folder.read_record()
        if record is None:
            continue
        alive = is_alive(folder)
        if alive or _is_there(pool, record):
            found.append(Found(folder, record, alive))
        else:
            folder.discard()
    return found


def live_mounts(pool: PoolFolder) -> list[Found]:
    """Those whose process is there."""
    return [found for found in mounts_of(pool) if found.alive]


def caches_of(pool: PoolFolder) -> list[CacheSocket]:
    """The processes that use a pool by the Cache API. What killed ones left is removed."""
    alive = []
    for cache in pool.caches():
        if control.is_alive(cache.path):
            alive.append(cache)
        else:
            cache.path.unlink(missing_ok=True)
    return alive


def is_alive(folder: MountFolder) -> bool:
    """Whether there is a process that serves a mount."""
    try:
        return control.is_alive(folder.socket)
    except ControlTimeout:  # stopped, and asked often
        return True


def _is_there(pool: PoolFolder, record: MountRecord) -> bool:
    there = mounted_at(record.mount_point)
    return there is not None and (there.fstype, there.source) == (FSTYPE, pool.name)


def state_of(mounts: Sequence[Found]) -> str:
    """`mounted`, `dead` or `idle`."""
    if not mounts:
        return IDLE
    return MOUNTED if any(found.alive for found in mounts) else DEAD


def ask(
    folder: MountFolder,
    request: str,
    arguments: Json | None = None,
    on_progress: Callable[[Json], None] | None = None,
) -> Json:
    """Ask one mount, in words that name its pool.

    :raises NotRunning, DeadMount, ControlError:
    """
    try:
        return control.ask(folder.socket, request, arguments, on_progress=on_progress)
    except NotRunning:
        raise _not_mounted(folder.pool) from None
    except DeadMount:
        raise dead(folder) from None


def _not_mounted(pool: PoolFolder) -> NotRunning:
    return NotRunning(f"pool '{pool.name}' is not mounted here; mount it with 'kvfs mount {pool.name} DIR'")


def dead(folder: MountFolder) -> DeadMount:
    """What to say of a mount whose process is gone."""
    pool, record = folder.pool, folder.read_record()
    if record is None:
        return DeadMount(f"the mount of pool '{pool.name}' died; mount it again to go on")
    return DeadMount(
        f"pool '{pool.name}' was mounted on {record.mount_point} by process {record.pid}, which is gone; "
        f"'kvfs umount {record.mount_point}' removes what is left, {folder.log} may tell why"
    )


def answering(mounts: Sequence[Found]) -> MountFolder:
    """One of several live mounts of a pool, which can all answer for it: the first that is not stopped or stuck."""
    *others, last = [found.folder for found in mounts]
    for folder in others:
        try:
            control.ask(folder.socket, "status", timeout=_PATIENCE)
        except (ControlTimeout, NotRunning, DeadMount):
            continue
        return folder
    return last


def ask_each(pool: PoolFolder, request: str) -> None:
    """Ask all mounts of a pool, as far as they answer soon."""
    for found in live_mounts(pool):
        try:
            control.ask(found.folder.socket, request, timeout=_PATIENCE)
        except (ControlTimeout, NotRunning, DeadMount):
            continue


def named_mounts(state: StateDirectory, where: str | None) -> list[MountFolder]:
    """The live mounts that a directory (one) or a pool's name (at least one) stands for; without either, those of the
    only pool that is mounted.

    :raises NotMounted: no mount of ours on the directory
    :raises NotRunning: nothing, or more than one pool, is mounted and nothing was named; or the named pool is not
    :raises DeadMount: the process is gone
    :raises UnknownPool: no pool of that name
    """
    if where is None:
        return _of_only_pool(state)
    path = resolve(Path(where))
    at = mount_at(state, path)
    if at is not None:
        return _live([at])
    if "/" in where or os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a dead mount)
        raise NotMounted(
            f"{path}: not a kvfs mount of this host; 'kvfs pool list' shows what is mounted where"
        )
    pool = state.known(where)
    mounts = mounts_of(pool)
    if not mounts:
        raise _not_mounted(pool)
    return _live(mounts)


def mount_at(state: StateDirectory, path: str) -> Found | None:
    """The mount that is recorded for a (resolved) directory: the live one, if any is."""
    last = None
    for folder in state.mounted_on(path):
        record = folder.read_record()
        if record is not None:
            last = Found(folder, record, is_alive(folder))
            if last.alive:
                break
    return last


def only_mount(pool: PoolFolder) -> Found:
    """The mount of a pool that has one, dead or alive.

    :raises NotMounted: it has none, or several
    """
    mounts = mounts_of(pool)
    if not mounts:
        raise NotMounted(f"pool '{pool.name}' is not mounted; 'kvfs pool list' shows what is mounted where")
    if len(mounts) > 1:
        raise NotMounted(f"pool '{pool.name}' is mounted on {places(mounts)}: name one of these directories")
    return mounts[0]


def places(mounts: Sequence[Found]) -> str:
    """Where they are, in words."""
    return " and ".join(found.record.mount_point for found in mounts)


def unmount_first(pool: PoolFolder, mounts: Sequence[Found]) -> str:
    """Why something cannot be done to a pool that is mounted, and what to do about it."""
    commands = " and ".join(f"'kvfs umount {found.record.mount_point}'" for found in mounts)
    return f"pool '{pool.name}' is mounted on {places(mounts)}; unmount it first with {commands}"


def _live(mounts: Sequence[Found]) -> list[MountFolder]:
    """:raises DeadMount: there are only dead ones"""
    alive = [found.folder for found in mounts if found.alive]
    if not alive:
        raise dead(mounts[0].folder)
    return alive


def _of_only_pool(state: StateDirectory) -> list[MountFolder]:
    mounted = {pool.name: live_mounts(pool) for pool in state}
    mounted = {name: mounts for name, mounts in mounted.items() if mounts}
    if not mounted:
        raise NotRunning("nothing is mounted; 'kvfs pool list' shows the pools")
    if len(mounted) > 1:
        raise NotRunning(f"more than one pool is mounted ({', '.join(mounted)}): name one of them")
    return [found.folder for mounts in mounted.values() for found in mounts]
