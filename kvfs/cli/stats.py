"""`kvfs stats`: the counters of running mounts, and of engines that have the pool open by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from kvfs import control
from kvfs.cli.options import styled
from kvfs.cli.render import Column, Row, Style, as_json, table, write
from kvfs.cli.running import ask, caches_of, live_mounts, mount_at, named_mounts
from kvfs.errors import DeadMount, NotRunning
from kvfs.mountpoint import resolve
from kvfs.report import flat

if TYPE_CHECKING:
    from kvfs.control import Json
    from kvfs.state import CacheSocket, MountFolder, PoolFolder, StateDirectory

MOUNT_POINT: Final = "mount_point"
COLUMNS = (Column(MOUNT_POINT, shown=False), Column("name"), Column("value"))
COLUMNS_OF_SEVERAL = (Column(MOUNT_POINT), *COLUMNS[1:])


class _Users(NamedTuple):
    """Who is asked."""

    pool: PoolFolder
    mounts: list[MountFolder]
    caches: list[CacheSocket]


@click.command(short_help="Show the counters of running mounts.")
@click.argument("where", metavar="[DIR|POOL]", required=False)
@click.option(
    "--prefetch", is_flag=True, help="Only what was fetched before it was asked for, and what came of it."
)
@styled(COLUMNS)
@click.pass_obj
def stats(state: StateDirectory, where: str | None, style: Style, *, prefetch: bool) -> None:
    """Show the counters of a running mount, named by its directory, or of all mounts of a pool, and of all processes that
    use it by the Cache API.

    Without an argument, of the only pool that is in use. Counters start at zero with the mount; names that end in
    `bytes` are bytes. Where there is more than one of them, a column MOUNT_POINT tells them apart, which has the number of
    the process where there is no mount.
    """
    users = _named(state, where)
    mounts = [_of_mount(folder) for folder in users.mounts]
    caches = [answer for cache in users.caches if (answer := _of_cache(cache)) is not None]
    if prefetch:
        for answer in (*mounts, *caches):
            answer["stats"] = {"prefetch": answer["stats"]["prefetch"]}
    if style.json:
        body: Json = {"pool": users.pool.name, "mounts": mounts, "caches": caches}
        if len(mounts) == 1:
            body |= mounts[0]
        write(as_json("stats", body, minor=2))
        return
    rows: list[Row] = [
        {MOUNT_POINT: user, "name": name, "value": value}
        for user, answer in (
            *((one[MOUNT_POINT], one) for one in mounts),
            *((f"process {one['pid']}", one) for one in caches),
        )
        for name, value in flat(answer["stats"])
    ]
    write(table(COLUMNS if len(mounts) + len(caches) == 1 else COLUMNS_OF_SEVERAL, rows, style))


def _named(state: StateDirectory, where: str | None) -> _Users:
    """:raises NotMounted, NotRunning, DeadMount, UnknownPool: as `named_mounts`, where nobody else uses the pool either"""
    try:
        mounts = named_mounts(state, where)
    except NotRunning:
        if where is None and any(live_mounts(pool) for pool in state):
            raise  # there are several
        users = _only_caches(state, where)
        if len(users) > 1:
            names = ", ".join(one.pool.name for one in users)
            raise NotRunning(f"more than one pool is in use ({names}): name one of them") from None
        if not users:
            raise
        return users[0]
    pool = mounts[0].pool
    one = where is not None and mount_at(state, resolve(Path(where))) is not None
    return _Users(pool, mounts, [] if one else caches_of(pool))


def _only_caches(state: StateDirectory, where: str | None) -> list[_Users]:
    """Who uses pools without a mount: the named one, or any."""
    pools = [state.known(where)] if where is not None else [*state]
    return [_Users(pool, [], caches) for pool in pools if (caches := caches_of(pool))]


def _of_mount(folder: MountFolder) -> Json:
    answer = ask(folder, "stats")
    record = folder.read_record()
    return {MOUNT_POINT: record.mount_point if record else None, "stats": answer}


def _of_cache(cache: CacheSocket) -> Json | None:
    """None if it has just ended."""
    try:
        return {"pid": cache.pid, "stats": control.ask(cache.path, "stats")}
    except (NotRunning, DeadMount):
        return None
