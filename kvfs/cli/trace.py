"""`kvfs trace`: what a mount is asked for, recorded, judged, done again, and shown."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kvfs.cli.options import Group, styled
from kvfs.cli.render import Column, Row, Style, Unit, as_json, message, progress, table, write
from kvfs.cli.running import ask, named_mounts
from kvfs.errors import DamageFound
from kvfs.foretelling import following
from kvfs.hindsight import NAMES, SHARES, policies_for, ratios
from kvfs.replaying import Replayed, percentile, replay
from kvfs.state import write_atomically
from kvfs.trace_page import page
from kvfs.traces import VERSION, Requests, Trace, TraceWriter, read_trace
from kvfs.uses import uses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvfs.control import Json
    from kvfs.state import StateDirectory


class _Stopped(Exception):
    """The operator has seen enough."""


@click.group(cls=Group, short_help="Record what a mount is asked for, and look into it.")
def trace() -> None:
    """Record what a running mount is asked for, without contents and names; judge it, do it again, or show it."""


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


# ── what it says ─────────────────────────────────────────────────────────────────────────────────────────

_RATIOS = (Column("share"), Column("size", Unit.COUNT), *(Column(name) for name in NAMES))
_REPLAYED = (
    *(Column(name, Unit.COUNT) for name in ("stored", "loaded", "missed", "wrong")),
    *(Column(name) for name in ("store_p50", "store_p99", "load_p50", "load_p99", "late")),
)
trace_argument = click.argument("file", metavar="TRACE", type=click.Path(dir_okay=False, path_type=Path))


def _caches(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add --policy and --share to a command, which gets them as `policies` and `shares`."""
    policy = click.option(
        "--policy",
        "policies",
        multiple=True,
        type=click.Choice(NAMES),
        help="Judge this one, and others that are named; else all that can be.",
    )
    share = click.option(
        "--share",
        "percents",
        metavar="PERCENT",
        multiple=True,
        type=click.FloatRange(0, 100, min_open=True),
        help="A cache of this part of all that is different, and others that are named; else of 1, 2, 5, 10, 20 and 50.",
    )
    return policy(share(command))


def _shares(percents: Sequence[float]) -> tuple[float, ...]:
    return tuple(percent / 100 for percent in percents) or SHARES


def _chosen(trace: Trace | Requests, policies: Sequence[str]) -> tuple[str, ...]:
    """The policies to judge. :raises click.UsageError: one cannot be judged by this trace"""
    known = policies_for(uses_of(trace))
    if other := [name for name in policies if name not in known]:
        raise click.UsageError(f"--policy {other[0]} needs requests, and a recorded trace has files")
    return tuple(name for name in known if not policies or name in policies)


def _read(file: Path) -> Trace | Requests:
    found = read_trace(file)
    if isinstance(found, Trace):
        if not found.whole:
            message(f"{file} was cut off: this is about what is whole of it")
        if found.lost:
            message(f"{found.lost} events were lost while it was recorded")
    return found


@trace.command("replay", short_help="Judge a trace, or do it again in a directory.")
@trace_argument
@click.option(
    "--on",
    "folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Store and load files of the recorded sizes there, such as in a mount, and check every byte.",
)
@click.option(
    "--fast", is_flag=True, help="With --on: one event after the other, without waiting for their times."
)
@_caches
@styled((*_RATIOS, *_REPLAYED))
def replay_(
    file: Path,
    folder: Path | None,
    fast: bool,
    policies: tuple[str, ...],
    percents: tuple[float, ...],
    style: Style,
) -> int | None:
    """Show what caches of several sizes and policies would have had of what was asked for, and how well chains foretell.

    TRACE is of 'kvfs trace record': hits are of bytes. Or it has requests, in Mooncake's or Bailian's schema or as sessions of
    agents: hits are of blocks, with all before them.

    With --on, do what was recorded in DIR instead: files have the recorded sizes, bytes of their own, and hashes as
    names, and stay there. Columns with --on are stored, loaded, missed, wrong, store_p50, store_p99, load_p50,
    load_p99 (ms) and late (s). Exit code 58 if a byte was wrong.
    """
    if fast and folder is None:
        raise click.UsageError("--fast is for --on DIR")
    if folder is not None and (policies or percents):
        raise click.UsageError("--policy and --share are for caches: leave out --on")
    there = {column.key for column in (_RATIOS if folder is None else _REPLAYED)}
    if other := [key for key in style.columns or () if key not in there]:
        raise click.UsageError(
            f"column '{other[0]}' is there only {'with' if folder is None else 'without'} --on"
        )
    trace = _read(file)
    if folder is None:
        _judge(trace, _chosen(trace, policies), _shares(percents), style)
        return None
    if not isinstance(trace, Trace):
        raise click.UsageError("--on needs files: give a trace that 'kvfs trace record' made")
    with progress("replaying") as told:
        done = replay(trace.events, folder, fast=fast, told=told)
    row = _row(done)
    write(as_json("trace replay", {"replayed": row}) if style.json else table(_REPLAYED, [row], style))
    if done.wrong:
        raise DamageFound(f"{done.wrong} of {done.loaded} loads had wrong bytes")
    return None


def _judge(trace: Trace | Requests, policies: Sequence[str], shares: Sequence[float], style: Style) -> None:
    uses = uses_of(trace)
    with progress("judging", "{:,}".format) as told:
        found, chains = ratios(uses, shares, policies, told), following(trace)
    if style.json:
        caches = [{"share": one.share, "size": one.size, "hits": one.hits} for one in found]
        write(as_json("trace replay", {"unit": uses.unit, "caches": caches, "chains": asdict(chains)}))
        return
    rows: list[Row] = []
    for one in found:
        row: Row = {"share": one.percent, "size": one.size}
        rows.append(row | {name: f"{one.hits[name]:.3f}" if name in one.hits else None for name in NAMES})
    size = Column("size", Unit.BYTES if uses.unit == "bytes" else Unit.COUNT)
    judged = NAMES if style.columns else policies
    write(table([Column("share"), size, *(Column(name) for name in judged)], rows, style))
    message(
        f"chains: {chains.foretold} of {chains.opened} blocks that were opened had been expected; {chains.expected} had been"
    )


def _row(done: Replayed) -> Row:
    def milliseconds(seconds: list[float], share: float) -> str | None:
        found = percentile(seconds, share)
        return None if found is None else f"{1000 * found:.3f}"

    return {
        "stored": done.stored,
        "loaded": done.loaded,
        "missed": done.missed,
        "wrong": done.wrong,
        "store_p50": milliseconds(done.stores, 0.5),
        "store_p99": milliseconds(done.stores, 0.99),
        "load_p50": milliseconds(done.loads, 0.5),
        "load_p99": milliseconds(done.loads, 0.99),
        "late": f"{done.late:.3f}",
    }


@trace.command(short_help="Make a page with plots of a trace.")
@trace_argument
@click.option(
    "-o",
    "output",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page, HTML; replaced if it is there.",
)
@_caches
def report(file: Path, output: Path, policies: tuple[str, ...], percents: tuple[float, ...]) -> None:
    """Write a page about a trace: requests over time, sizes, hits by size of cache and policy, reuse, chains.

    It is one file that loads nothing and runs no script.
    """
    trace = _read(file)
    chosen = _chosen(trace, policies)
    with progress("judging", "{:,}".format) as told:
        text = page(trace, f"Trace {file.name}", _shares(percents), chosen, told)
    write_atomically(output, text)
