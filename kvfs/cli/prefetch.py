"""`kvfs prefetch`: files into the memory of a mount."""

from __future__ import annotations

import os
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvfs.cli.render import message, progress
from kvfs.cli.running import ask, dead, mount_at
from kvfs.errors import NotMounted
from kvfs.mountpoint import resolve
from kvfs.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvfs.cli.running import Found
    from kvfs.control import Json
    from kvfs.state import StateDirectory


@click.command(short_help="Bring files into the memory of their mount.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.pass_obj
def prefetch(state: StateDirectory, paths: tuple[str, ...]) -> None:
    """Bring the files PATH..., and all files below directories, into the memory of the mount that they are in.

    They are verified on the way, and stay until others need the memory. What is more than three quarters of that is
    refused. Shows a progress bar when stderr is a terminal.
    """
    named: defaultdict[str, list[str]] = defaultdict(list)
    mounts: dict[str, Found] = {}
    for path in paths:
        mount, inside = _mount_of(state, path)
        mounts[mount.record.mount_point] = mount
        named[mount.record.mount_point].append(inside)
    for place, inside_paths in named.items():
        with progress(f"prefetch {place}") as advance:
            told = partial(_advance, advance)
            result = ask(mounts[place].folder, "prefetch", {"paths": inside_paths}, told)
        what = "file is" if result["files"] == 1 else "files are"
        message(f"{result['files']} {what} in the memory of {place}: {format_size(result['bytes'])}")


def _advance(advance: Callable[[int, int], None], update: Json) -> None:
    advance(update["done"], update["total"])


def _mount_of(state: StateDirectory, path: str) -> tuple[Found, str]:
    """The mount that a path is in, and the path from its root on.

    :raises NotMounted: it is in none of ours
    :raises DeadMount: its process is gone
    """
    whole = resolve(Path(path))
    for place in (Path(whole), *Path(whole).parents):
        found = mount_at(state, str(place))
        if found is not None:
            if not found.alive:
                raise dead(found.folder)
            return found, os.path.relpath(whole, place) if str(place) != whole else ""
    raise NotMounted(
        f"{path}: is in no kvfs mount of this host; 'kvfs pool list' shows what is mounted where"
    )
