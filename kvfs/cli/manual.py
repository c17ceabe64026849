"""Man pages, one a command, from the same click objects as --help; `python -m kvfs.cli.manual FOLDER` writes them.

The pages are in man(7), which groff and mandoc both read. Text that is the same in every page (exit codes) comes from
the table that decides it.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvfs import __version__
from kvfs.cli.exit_codes import EXIT_CODES, INTERRUPTED, OK, USAGE
from kvfs.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTION = 1
_PROJECT = "kvfs"


@dataclass(frozen=True, slots=True)
class Entry:
    """A command and where it is: `path` has its words, `context` its parents'."""

    path: tuple[str, ...]
    context: click.Context

    @property
    def command(self) -> click.Command:
        return self.context.command

    @property
    def name(self) -> str:
        return "-".join(self.path)

    def below(self) -> list[Entry]:
        """What --help lists, if it is a group."""
        found = self.command.commands.items() if isinstance(self.command, click.Group) else ()
        return [
            Entry((*self.path, name), click.Context(one, info_name=name, parent=self.context))
            for name, one in found
            if not one.hidden
        ]


def pages() -> dict[str, str]:
    """File name → page, of `kvfs` and of every command below it: `kvfs-pool-create.1`."""
    return {f"{entry.name}.{SECTION}": page(entry) for entry in entries()}


def entries() -> Iterator[Entry]:
    """Every command, groups before what is in them."""
    waiting = [Entry((_PROJECT,), click.Context(cli, info_name=_PROJECT, **cli.context_settings))]
    while waiting:
        entry = waiting.pop(0)
        yield entry
        waiting += entry.below()


def page(entry: Entry) -> str:
    """One page."""
    usage = " ".join(entry.command.collect_usage_pieces(entry.context))
    lines = [
        f'.TH "{_plain(entry.name).upper()}" "{SECTION}" "" "{_PROJECT} {__version__}" "{_PROJECT}"',
        ".SH NAME",
        rf"{_plain(entry.name)} \- {_plain(_summary(entry.command))}",
        ".SH SYNOPSIS",
        rf"\fB{_plain(' '.join(entry.path))}\fR {_plain(usage)}",
        ".SH DESCRIPTION",
        *_paragraphs(inspect.cleandoc(entry.command.help or "")),
        *_options(entry),
        *_commands(entry),
        *_exit_status(entry),
        *_see_also(entry),
    ]
    return "\n".join(lines) + "\n"


def _summary(command: click.Command) -> str:
    text = command.get_short_help_str(limit=200)
    return text[:1].lower() + text[1:].removesuffix(".")


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):  # click's mark for text that keeps its lines
            yield ".nf"
            yield from (_line(line) for line in paragraph.splitlines()[1:])
            yield ".fi"
        else:
            yield _line(" ".join(paragraph.split()))


def _options(entry: Entry) -> Iterator[str]:
    yield ".SH OPTIONS"
    for parameter in entry.command.get_params(entry.context):
        record = parameter.get_help_record(entry.context) if isinstance(parameter, click.Option) else None
        if record:
            yield ".TP"
            yield rf"\fB{_plain(record[0])}\fR"
            yield _line(" ".join(record[1].split()))


def _commands(entry: Entry) -> Iterator[str]:
    below = entry.below()
    if below:
        yield ".SH COMMANDS"
    for one in below:
        yield ".TP"
        yield rf"\fB{_plain(one.name)}\fR({SECTION})"
        yield _line(one.command.get_short_help_str(limit=200))


def _exit_status(entry: Entry) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    codes = f"{OK} on success, {USAGE} for a command line that is refused, {INTERRUPTED} after an interrupt."
    if len(entry.path) > 1:
        yield rf"{codes} \fB{_PROJECT}\fR({SECTION}) lists the codes by which errors are told apart."
        return
    yield f"{codes} Others tell errors apart:"
    for error, code in sorted(EXIT_CODES.items(), key=lambda pair: pair[1]):
        yield ".TP"
        yield rf"\fB{code}\fR"
        yield _line(f"{error.__name__}: {_meaning(error)}")


def _meaning(error: type[Exception]) -> str:
    if error is OSError:
        return "The system refused something."
    first = inspect.cleandoc(error.__doc__ or "").partition("\n")[0]
    return first.partition(";")[0].rstrip(".") + "."


def _see_also(entry: Entry) -> Iterator[str]:
    related = ["-".join(entry.path[:length]) for length in range(1, len(entry.path))]
    related += [one.name for one in entry.below()]
    yield ".SH SEE ALSO"
    yield ", ".join(rf"\fB{_plain(name)}\fR({SECTION})" for name in related)


def _line(text: str) -> str:
    """A line of text that roff takes for nothing else."""
    plain = _plain(text)
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain


def _plain(text: str) -> str:
    """Text as it is: a '-' that can be searched for and copied, and no escapes."""
    return text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")


def main(folder: Path) -> None:
    """Write all pages into an existing folder."""
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
