"""The top of the command tree, and the one place that turns errors into a line on stderr and an exit code."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvfs import __version__
from kvfs.cli import export, mount, objects, pool, prefetch, stats, target, trace
from kvfs.cli.exit_codes import INTERRUPTED, OK, exit_code
from kvfs.cli.failures import EXPECTED, describe, expected
from kvfs.cli.options import Group
from kvfs.cli.render import message
from kvfs.state import StateDirectory, default_root

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "--version", prog_name="kvfs", message="%(prog)s %(version)s")
@click.option(
    "--state-dir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where this host keeps what it knows of its pools. "
    "[default: $KVFS_STATE_DIR, else /var/lib/kvfs for root, else $XDG_STATE_HOME/kvfs]",
)
@click.pass_context
def cli(context: click.Context, state_dir: Path | None) -> None:
    """Context memory for LLM serving: drives, pooled and mounted as one volume for KV caches.

    \b
    To begin, without any configuration:
      kvfs mount --size 4GiB /mnt/kv
    With drives of your own:
      kvfs pool create hot /dev/nvme1n1 /dev/nvme2n1
      kvfs mount hot /mnt/kv

    Data goes to stdout and messages to stderr. Tables take -H, -p and -o for scripts, and --json gives one versioned
    object with exact numbers. The exit code tells errors apart; docs/administration.md lists them.
    """
    context.obj = StateDirectory(
        state_dir.absolute() if state_dir else default_root(os.environ, os.geteuid())
    )


for noun in (
    mount.mount,
    mount.umount,
    pool.pool,
    target.target,
    objects.ls,
    objects.stat,
    stats.stats,
    prefetch.prefetch,
    trace.trace,
    export.export,
):
    cli.add_command(noun)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    logging.basicConfig(level=logging.WARNING, format="kvfs: %(message)s")
    try:
        result = cli.main(args=arguments, prog_name="kvfs", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        message(usage(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        message("interrupted")
        return INTERRUPTED
    except BaseExceptionGroup as group:  # trio's nurseries wrap an interrupt too
        if group.subgroup(KeyboardInterrupt) is None:
            return failed(group)
        message("interrupted")
        return INTERRUPTED
    except EXPECTED as error:
        return failed(error)
    return result if isinstance(result, int) else OK


def failed(error: BaseException) -> int:
    """Say what went wrong; returns the code of its class. :raises: what is unexpected, again"""
    cause = expected(error)
    if cause is None:
        raise error
    message(describe(cause))
    return exit_code(cause)


def usage(error: click.ClickException) -> str:
    """A refused command line, on one line, with where to read more."""
    context = getattr(error, "ctx", None)
    text = error.format_message().rstrip(".")
    return f"{text}; see '{context.command_path} --help'" if context else text
