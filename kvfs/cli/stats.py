"""`kvfs stats`: the counters of running mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kvfs.cli.options import styled
from kvfs.cli.render import Column, Row, Style, as_json, table, write
from kvfs.cli.running import ask, named_mounts
from kvfs.report import flat

if TYPE_CHECKING:
    from kvfs.control import Json
    from kvfs.state import MountFolder, StateDirectory

MOUNT_POINT = "mount_point"
COLUMNS = (Column(MOUNT_POINT, shown=False), Column("name"), Column("value"))
COLUMNS_OF_SEVERAL = (Column(MOUNT_POINT), *COLUMNS[1:])


@click.command(short_help="Show the counters of running mounts.")
@click.argument("where", metavar="[DIR|POOL]", required=False)
@click.option(
    "--prefetch", is_flag=True, help="Only what was fetched before it was asked for, and what came of it."
)
@styled(COLUMNS)
@click.pass_obj
def stats(state: StateDirectory, where: str | None, style: Style, *, prefetch: bool) -> None:
    """Show the counters of a running mount, named by its directory, or of all mounts of a pool.

    Without an argument, of the only pool that is mounted. Counters start at zero with the mount; names that end in
    `bytes` are bytes. Where there is more than one mount, a column MOUNT_POINT tells them apart.
    """
    folders = named_mounts(state, where)
    answers = [_of(folder) for folder in folders]
    if prefetch:
        answers = [answer | {"stats": {"prefetch": answer["stats"]["prefetch"]}} for answer in answers]
    if style.json:
        body: Json = {"pool": folders[0].pool.name, "mounts": answers}
        if len(answers) == 1:
            body |= answers[0]
        write(as_json("stats", body, minor=1))
        return
    rows: list[Row] = [
        {MOUNT_POINT: answer[MOUNT_POINT], "name": name, "value": value}
        for answer in answers
        for name, value in flat(answer["stats"])
    ]
    write(table(COLUMNS if len(answers) == 1 else COLUMNS_OF_SEVERAL, rows, style))


def _of(folder: MountFolder) -> Json:
    answer = ask(folder, "stats")
    record = folder.read_record()
    return {MOUNT_POINT: record.mount_point if record else None, "stats": answer}
