from __future__ import annotations

import errno
import os
import subprocess
import sys

import click
import pytest

from blockdev.errors import DeviceLost, NoSpace
from kvfs import __version__
from kvfs.cli.exit_codes import EXIT_CODES, INTERRUPTED, USAGE
from kvfs.cli.failures import describe, expected
from kvfs.cli.main import cli, main
from kvfs.errors import UnknownPool
from kvfs.state import StateDirectory
from tests.kvfs.conftest import Kvfs
from tests.test_project import commands


@pytest.mark.parametrize("path, command", [("kvfs", cli), *commands(cli)], ids=str)
def test_every_help_reads_well(kvfs: Kvfs, path: str, command: click.Command) -> None:
    for option in ("--help", "-h"):
        result = kvfs(*path.split()[1:], option)
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith(f"Usage: {path} ")
        assert all(len(line) <= 100 for line in result.out.splitlines())
        summary = result.out.split("\n\n")[1].strip()
        assert summary[0].isupper()
        assert summary.rstrip(":")[-1] in ".)" or ":" in summary


def test_the_first_help_begins_with_how_to_begin(kvfs: Kvfs) -> None:
    text = kvfs("--help").out
    assert text.index("kvfs mount --size 4GiB /mnt/kv") < text.index("Commands:")
    assert [line.split()[0] for line in text.split("Commands:\n")[1].splitlines() if line.startswith("  ")][
        :3
    ] == [
        "mount",
        "umount",
        "pool",
    ]


def test_the_version_is_the_projects(kvfs: Kvfs) -> None:
    assert kvfs.ok("--version").out == f"kvfs {__version__}\n"


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["fly"], "No such command 'fly'; see 'kvfs --help'"),
        (["pool", "create"], "Missing argument 'NAME'; see 'kvfs pool create --help'"),
        (["pool", "list", "--colour"], "--colour"),
        (["umount"], "Missing argument 'DIR|POOL'"),
        (["mount", "--durability", "maybe", "a", "b"], "'maybe' is not one of 'close', 'flush'"),
        (["stat"], "Missing argument 'POOL:PATH'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exits_2(kvfs: Kvfs, arguments: list[str], says: str) -> None:
    result = kvfs(*arguments)
    assert (result.code, result.out) == (USAGE, "")
    assert says in result.err
    assert result.err.count("\n") == 1


def test_a_command_group_alone_shows_its_help(kvfs: Kvfs, capsys: pytest.CaptureFixture[str]) -> None:
    result = kvfs("pool")
    assert (result.code, result.out) == (USAGE, "")
    assert result.err == kvfs("pool", "--help").out
    assert main([]) == USAGE
    assert capsys.readouterr().err == kvfs("--help").out


def test_errors_of_the_system_name_their_file(kvfs: Kvfs) -> None:
    kvfs.device("file").touch()
    kvfs.state = StateDirectory(kvfs.device("file") / "state")
    kvfs.fails(
        3, "file/state.*: Not a directory", "pool", "create", "hot", kvfs.device("a"), "--size", "64MiB"
    )
    assert describe(FileNotFoundError(errno.ENOENT, "No such file", "/x")) == "/x: No such file"
    assert describe(OSError(errno.EIO, "Input/output error")) == "Input/output error"
    assert describe(UnknownPool()) == "UnknownPool"
    assert describe(NoSpace("a\n b")) == "a b"


def test_the_error_in_a_nest_of_groups_is_found() -> None:
    lost = DeviceLost("d", 5, "x")
    assert expected(ExceptionGroup("", [ExceptionGroup("", [lost, OSError()])])) is lost
    assert expected(lost) is lost
    assert expected(ValueError()) is None
    assert expected(ExceptionGroup("", [lost, ValueError()])) is None


def test_a_mistake_of_ours_shows_where(kvfs: Kvfs, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_folder: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvfs.cli.pool.state_of", broken)
    kvfs.make_pool()
    with pytest.raises(ZeroDivisionError):
        kvfs("pool", "status", "hot")


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt(), BaseExceptionGroup("", [KeyboardInterrupt()])], ids=repr
)
def test_an_interrupt_is_no_traceback(
    kvfs: Kvfs, monkeypatch: pytest.MonkeyPatch, interrupt: BaseException
) -> None:
    def interrupted(_folder: object) -> None:
        raise interrupt

    monkeypatch.setattr("kvfs.cli.pool.state_of", interrupted)
    kvfs.make_pool()
    result = kvfs("pool", "status", "hot")
    assert (result.code, result.out, result.err.strip()) == (INTERRUPTED, "", "kvfs: interrupted")


def test_the_program_exits_with_the_code_and_bears_a_closed_pipe(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    program = [sys.executable, "-m", "kvfs", "--state-dir", str(kvfs.state.root)]
    unknown = subprocess.run(
        [*program, "pool", "status", "cold"], capture_output=True, text=True, check=False
    )
    assert unknown.returncode == EXIT_CODES[UnknownPool]
    reader, writer = os.pipe()
    os.close(reader)
    closed = subprocess.run(
        [*program, "pool", "list"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (closed.returncode, closed.stderr) == (0, "")
