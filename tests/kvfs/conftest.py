"""Fixtures of the command's tests."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvfs.cli import main
from kvfs.state import StateDirectory

SIZE = 64 << 20
"""Bytes of a device in these tests."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """Of the output of -H."""
        return [line.split("\t") for line in self.out.splitlines()]


class Terminal(io.StringIO):
    """Text that says it is a terminal's."""

    def isatty(self) -> bool:
        return True


class Kvfs:
    """The `kvfs` command in this process, with a state directory of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.state = StateDirectory(folder / "state")
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> Result:
        self._capsys.readouterr()
        code = main(["--state-dir", str(self.state.root), *map(str, arguments)])
        return Result(code, *self._capsys.readouterr())

    def ok(self, *arguments: str | Path) -> Result:
        """Run a command that must succeed without a word on stderr."""
        result = self(*arguments)
        assert (result.code, result.err) == (0, ""), result
        return result

    def fails(self, code: int, pattern: str, *arguments: str | Path) -> Result:
        """Run a command that must fail with `code`, nothing on stdout and one line on stderr."""
        result = self(*arguments)
        assert (result.code, result.out) == (code, ""), result
        assert re.fullmatch(r"kvfs: [^\n]+\n", result.err), result
        assert re.search(pattern, result.err), result
        return result

    def device(self, name: str) -> Path:
        """Where a device of that name is, or would be."""
        return self.folder / name

    def make_pool(self, name: str = "hot", devices: int = 2) -> list[Path]:
        """Create a pool of small files."""
        paths = [self.device(f"{name}-{number}") for number in range(devices)]
        self.ok("pool", "create", name, *paths, "--size", str(SIZE), "--extent-size", "2MiB")
        return paths


@pytest.fixture
def kvfs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Kvfs:
    """The `kvfs` command, and the folder where its state and devices are."""
    return Kvfs(tmp_path, capsys)
