"""`kvfs trace`: what a mount is asked for, for later."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kvfs.cli.options import Group
from kvfs.cli.render import message
from kvfs.cli.running import ask, named_mounts
from kvfs.traces import VERSION, TraceWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvfs.control import Json
    from kvfs.state import StateDirectory


class _Stopped(Exception):
    """The operator has seen enough."""


@click.group(cls=Group, short_help="Record what a mount is asked for.")
def trace() -> None:
    """Record what a running mount is asked for, without contents and names."""


@trace.command(short_help="Record what a running mount is asked for.")
@click.argument("where", metavar="DIR|POOL")
@click.option(
    "-o",
    "output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A new file; a name that ends in .xz has it compressed. [default: stdout]",
)
@click.option(
    "--for", "seconds", metavar="SECONDS", type=click.FloatRange(0, min_open=True), help="End after so long."
)
@click.pass_obj
def record(state: StateDirectory, where: str, output: Path | None, seconds: float | None) -> None:
    """Record look-ups, opens, publications and removals in a running mount until Ctrl-C, or for SECONDS.

    Names are hashed with a key that is kept nowhere. The mount waits for nobody: what cannot be written in time is
    left out, and a line says how much. docs/prefetch.md describes the format.
    """
    folders = named_mounts(state, where)
    if len(folders) > 1:
        raise click.UsageError(f"pool '{where}' has {len(folders)} mounts here: name the directory of one")
    written = lost = 0
    with ExitStack() as stack:
        file: BinaryIO = stack.enter_context(output.open("xb")) if output else sys.stdout.buffer
        compress = output is not None and output.suffix == ".xz"
        writer = TraceWriter(file, compress=compress, clock=time.monotonic)
        stack.callback(writer.flush)
        writer.write([{"kvfs_trace": VERSION}])
        stopping = stack.enter_context(_told_to_stop())

        def arrived(update: Json) -> None:
            nonlocal written, lost
            writer.write(update["events"])
            written += sum(event["event"] != "gap" for event in update["events"])
            lost += sum(event.get("lost", 0) for event in update["events"])
            if stopping:
                raise _Stopped

        with suppress(_Stopped):
            ask(folders[0], "record", {"seconds": seconds}, arrived)
        writer.write([{"event": "end", "lost": lost}])
    message(f"{written} events recorded, {lost} lost")


@contextmanager
def _told_to_stop() -> Iterator[list[int]]:
    """Ctrl-C, once, is only noted in what this yields, so that no line is cut; the second time it interrupts."""
    told: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: object) -> None:
        told.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)
