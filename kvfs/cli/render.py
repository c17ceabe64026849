"""The only formatter: turns what a command collected into a table, JSON, lines of fields, or a progress bar.

Tables are for people (aligned, sizes rounded) and, with -H and -p, for scripts (tabs, exact numbers, no header). JSON is
one object with `output_version`; its numbers are exact and its keys are API.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from kvfs.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Cell = str | int | float | bool | None
Row = dict[str, Cell]

ABSENT = "-"


class Unit(Enum):
    """What a number means, which decides how people see it."""

    TEXT = "text"
    BYTES = "bytes"
    COUNT = "count"
    TIME = "time"
    """Seconds since 1970."""
    OCTAL = "octal"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: `key` is its name for -o and in JSON."""

    key: str
    unit: Unit = Unit.TEXT
    shown: bool = True
    """Without -o."""


@dataclass(frozen=True, slots=True)
class Style:
    """What the user asked for: --json, -H, -p, -o."""

    json: bool = False
    bare: bool = False
    exact: bool = False
    columns: tuple[str, ...] | None = None


def cell(value: Cell, unit: Unit, *, exact: bool) -> str:
    """One value as text; `exact` for scripts."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit is Unit.OCTAL:
        return f"{int(value):04o}"
    if exact or isinstance(value, str):
        return str(value)
    if unit is Unit.BYTES:
        return format_size(int(value))
    if unit is Unit.TIME:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return str(value)


def table(columns: Sequence[Column], rows: Sequence[Row], style: Style) -> str:
    """The rows as text, a line each; with a header unless `style.bare`. Empty text for no rows without a header."""
    chosen = _chosen(columns, style)
    lines = [
        [_printable(cell(row.get(column.key), column.unit, exact=style.exact)) for column in chosen]
        for row in rows
    ]
    if style.bare:
        return "".join("\t".join(line) + "\n" for line in lines)
    lines.insert(0, [column.key.upper() for column in chosen])
    widths = [max(len(line[at]) for line in lines) for at in range(len(chosen))]
    return "".join(_aligned(line, chosen, widths) + "\n" for line in lines)


def _chosen(columns: Sequence[Column], style: Style) -> list[Column]:
    if style.columns is None:
        return [column for column in columns if column.shown]
    by_key = {column.key: column for column in columns}
    return [by_key[key] for key in style.columns]


def _aligned(line: list[str], columns: list[Column], widths: list[int]) -> str:
    numeric = (Unit.BYTES, Unit.COUNT, Unit.OCTAL)
    return "  ".join(
        text.rjust(width) if column.unit in numeric else text.ljust(width)
        for text, column, width in zip(line, columns, widths, strict=True)
    ).rstrip()


def _printable(text: str) -> str:
    """File names may hold anything: nothing may break a line or speak to the terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def fields(columns: Sequence[Column], row: Row, style: Style) -> str:
    """One record as `name: value` lines, or as one line of tabs with `style.bare`."""
    chosen = _chosen(columns, style)
    if style.bare:
        return table(columns, [row], style)
    width = max(len(column.key) for column in chosen)
    return "".join(
        f"{column.key.rjust(width)}: {_printable(cell(row.get(column.key), column.unit, exact=style.exact))}\n"
        for column in chosen
    )


def as_json(command: str, body: Mapping[str, object], *, major: int = 1, minor: int = 0) -> str:
    """One object on one line; `body` holds only what JSON has."""
    version = {"command": command, "major": major, "minor": minor}
    return json.dumps({"output_version": version, **body}, ensure_ascii=True) + "\n"


def write(text: str) -> None:
    """Data, to stdout. Whoever reads there may have had enough, as `head` has: then the command ends, content."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for the interpreter's own flush at exit
        raise click.exceptions.Exit(0) from None


def message(text: str) -> None:
    """A message for people, to stderr: one line, however many the text has, and nothing that speaks to the terminal."""
    sys.stderr.write("kvfs: " + _printable(" ".join(text.split())) + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def progress(title: str, amount: Callable[[int], str] = format_size) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr when that is a terminal; yields a function to call with (done, total).

    :param amount: how to show these; as bytes by default
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=None, amount="")

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, amount=f"{amount(done)} of {amount(total)}")

        yield advance
