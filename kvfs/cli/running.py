"""Finding and asking running mounts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvfs import control
from kvfs.errors import DeadMount, NotMounted, NotRunning
from kvfs.mountpoint import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvfs.control import Json
    from kvfs.state import PoolFolder, StateDirectory


def ask(
    folder: PoolFolder,
    request: str,
    arguments: Json | None = None,
    on_progress: Callable[[Json], None] | None = None,
) -> Json:
    """Ask the mount of a pool, in words that name the pool.

    :raises NotRunning, DeadMount, ControlError:
    """
    try:
        return control.ask(folder.socket, request, arguments, on_progress=on_progress)
    except NotRunning:
        raise NotRunning(
            f"pool '{folder.name}' is not mounted here; mount it with 'kvfs mount {folder.name} DIR'"
        ) from None
    except DeadMount:
        raise dead(folder) from None


def dead(folder: PoolFolder) -> DeadMount:
    """What to say of a mount whose process is gone."""
    record = folder.read_record()
    if record is None:
        return DeadMount(f"the mount of pool '{folder.name}' died; mount it again to go on")
    return DeadMount(
        f"pool '{folder.name}' was mounted on {record.mount_point} by process {record.pid}, which is gone; "
        f"'kvfs umount {record.mount_point}' removes what is left, {folder.log} may tell why"
    )


def state_of(folder: PoolFolder) -> str:
    """`mounted`, `dead` or `idle`."""
    if control.is_alive(folder.socket):
        return "mounted"
    return "dead" if folder.record.exists() else "idle"


def mounted_folder(state: StateDirectory, where: str | None) -> PoolFolder:
    """The pool that a directory or a pool's name stands for; without one, the only pool that is mounted.

    :raises NotMounted: no mount of ours on the directory
    :raises NotRunning: nothing, or more than one pool, is mounted and nothing was named
    :raises UnknownPool: no pool of that name
    """
    if where is None:
        return _only_mounted(state)
    path = resolve(Path(where))
    folder = state.mounted_on(path)
    if folder is not None:
        return folder
    if "/" in where or os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a dead mount)
        raise NotMounted(
            f"{path}: not a kvfs mount of this host; 'kvfs pool list' shows what is mounted where"
        )
    return state.known(where)


def _only_mounted(state: StateDirectory) -> PoolFolder:
    mounted = [folder for folder in state if control.is_alive(folder.socket)]
    if not mounted:
        raise NotRunning("nothing is mounted; 'kvfs pool list' shows the pools")
    if len(mounted) > 1:
        names = ", ".join(folder.name for folder in mounted)
        raise NotRunning(f"more than one pool is mounted ({names}): name one of them")
    return mounted[0]
