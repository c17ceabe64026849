"""`kvfs stats`: the counters of a running mount."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kvfs.cli.options import styled
from kvfs.cli.render import Column, Row, Style, as_json, table, write
from kvfs.cli.running import ask, mounted_folder
from kvfs.report import flat

if TYPE_CHECKING:
    from kvfs.state import StateDirectory

COLUMNS = (Column("name"), Column("value"))


@click.command(short_help="Show the counters of a running mount.")
@click.argument("where", metavar="[DIR|POOL]", required=False)
@styled(COLUMNS)
@click.pass_obj
def stats(state: StateDirectory, where: str | None, style: Style) -> None:
    """Show the counters of a running mount, named by its directory or its pool.

    Without an argument, of the only mount there is. Counters start at zero with the mount; names that end in `bytes`
    are bytes.
    """
    folder = mounted_folder(state, where)
    answer = ask(folder, "stats")
    if style.json:
        write(as_json("stats", {"pool": folder.name, "stats": answer}))
        return
    rows: list[Row] = [{"name": name, "value": value} for name, value in flat(answer)]
    write(table(COLUMNS, rows, style))
