"""docs/administration.md: its examples work, in order, and its tables are complete."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kvfs.cli.exit_codes import EXIT_CODES
from kvfs.cli.main import cli
from tests.test_project import ROOT, commands

DOCUMENT = ROOT / "docs/administration.md"
MARK = "--example-ends-here--"


class Example(NamedTuple):
    line: int
    command: str
    output: str


def examples() -> Iterator[Example]:
    """The commands of all console blocks, with what follows each."""
    text = DOCUMENT.read_text()
    for block in re.finditer(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        first = text.count("\n", 0, block.start(1)) + 1
        lines = block[1].splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield Example(
                first + start, lines[start][2:], "".join(f"{line}\n" for line in lines[start + 1 : end])
            )


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A folder of which nothing stays mounted, also when a test is cut off."""
    folder = tmp_path / "work"
    folder.mkdir()
    yield folder
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in [path for path in mounted if Path(path).is_relative_to(folder)]:
        subprocess.run(["umount", "--lazy", mount], check=True)


@pytest.mark.fuse
@pytest.mark.timeout(600)
def test_the_examples_do_what_they_show(tmp_path: Path, work: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kvfs").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvfs "$@"\n')
    (programs / "kvfs").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KVFS_STATE_DIR": str(tmp_path / "state"),
        "LC_ALL": "C.UTF-8",
    }
    told = list(examples())
    script = "exec 2>&1\ntrap 'kvfs umount mnt' EXIT\n" + "".join(
        f"{example.command}\necho {MARK}\n" for example in told
    )
    shell = subprocess.run(
        ["bash"], input=script, cwd=work, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    seen = shell.stdout.split(f"{MARK}\n")[:-1]
    checker = doctest.OutputChecker()
    wrong = [
        f"{DOCUMENT.name}:{example.line}: $ {example.command}\n{output}"
        for example, output in zip(told, seen, strict=True)
        if not checker.check_output(example.output, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    ]
    assert not wrong, "\n".join(wrong)


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    section = DOCUMENT.read_text().split(f"\n## {heading}\n")[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[0].splitlines()[2:]
    ]


def test_every_exit_code_is_documented_and_no_other() -> None:
    documented = {name.strip("`"): int(code) for code, name, _ in rows("Exit codes")}
    assert documented == {error.__name__: code for error, code in EXIT_CODES.items()}
    assert list(documented.values()) == sorted(documented.values())


def test_every_command_is_documented_and_no_other() -> None:
    documented = {re.sub(r" [-A-Z\[].*", "", name.strip("`")) for name, _ in rows("Commands")}
    assert documented == {path for path, _ in commands(cli)} - {
        "kvfs pool",
        "kvfs export",
        "kvfs target",
        "kvfs trace",
    }


def test_every_section_of_the_counters_is_documented() -> None:
    from kvfs.report import GAUGES

    documented = {name.strip("`") for name, _ in rows("Watching")}
    assert {gauge.split(".")[0] for gauge in GAUGES} <= documented
