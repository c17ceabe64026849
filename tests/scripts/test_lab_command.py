"""The command line of the lab, as far as it boots nothing."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lib.lab.__main__ import storage

ROOT = Path(__file__).parents[2]


def lab(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.lib.lab", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_sizes() -> None:
    assert storage("state:64M") == ("state", 64 << 20)
    assert storage("d0:2G") == ("d0", 2 << 30)
    for wrong in ("state", "state:", "state:0M", "state:64", "State:1G", "a,b:1G", f"{'x' * 21}:1G"):
        with pytest.raises(argparse.ArgumentTypeError, match="state:64M"):
            storage(wrong)


@pytest.mark.parametrize(
    "arguments",
    [(), ("run",), ("run", "--hosts", "3", "--", "true"), ("run", "--disk", "x", "--", "true"), ("fly",)],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = lab(*arguments)
    assert done.returncode == 2
    assert "usage: scripts/lab" in done.stderr


def test_help_says_what_exit_codes_mean() -> None:
    done = lab("--help")
    assert done.returncode == 0
    assert "124" in done.stdout
