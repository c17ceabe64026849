"""The shared set-up does what it promises: noise fails, and what is missing is said or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NOISE = """
import logging
import pytest

log = logging.getLogger("engine")

def test_quiet():
    log.info("nothing to see")

def test_noisy():
    log.warning("slot %d is bad", 7)

def test_declared(expect_log):
    expect_log(r"slot \\d+ is bad", count=2)
    log.warning("slot %d is bad", 7)
    log.error("slot %d is bad", 8)

def test_declared_but_silent(expect_log):
    expect_log("never said")

def test_another_than_declared(expect_log):
    expect_log("slot 7")
    log.warning("slot 7")
    log.warning("slot 8")
"""

MARKED = """
import pytest

@pytest.mark.lab
def test_lab():
    pass

@pytest.mark.slow
def test_slow():
    pass
"""


def run_tests(
    folder: Path, source: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `source` as a test file under the project's own conftest and settings."""
    (folder / "test_inner.py").write_text(source)
    (folder / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests.conftest import _expected_logs, _quiet_log\n"
    )
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("KVFS_", "PYTEST_"))
    }
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(folder),
            "-c",
            str(ROOT / "pyproject.toml"),
            *options,
            str(folder),
        ],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_undeclared_warnings_fail_a_test(tmp_path: Path) -> None:
    output = run_tests(tmp_path, NOISE).stdout
    assert "5 passed, 3 errors" in output
    assert "WARNING engine: slot 7 is bad" in output
    assert "expected at least once, logged 0 times: never said" in output
    assert "WARNING engine: slot 8" in output


def test_missing_capabilities_skip_with_the_reason(tmp_path: Path) -> None:
    output = run_tests(tmp_path, MARKED, KVFS_LAB_CACHE=str(tmp_path)).stdout
    assert "2 skipped" in output
    assert "the lab has no image" in output
    assert "run with --long" in output
    assert "1 passed, 1 skipped" in run_tests(tmp_path, MARKED, "--long", KVFS_LAB_CACHE=str(tmp_path)).stdout


def test_the_lab_can_be_left_out(tmp_path: Path) -> None:
    output = run_tests(tmp_path, MARKED, "--no-lab").stdout
    assert "2 skipped" in output
    assert "left out by --no-lab" in output


@pytest.mark.parametrize(
    "required, says", [("lab", "KVFS_REQUIRE=lab, but the lab has no image"), ("warp", "unknown")]
)
def test_required_capabilities_fail_instead(tmp_path: Path, required: str, says: str) -> None:
    outcome = run_tests(tmp_path, MARKED, KVFS_REQUIRE=required, KVFS_LAB_CACHE=str(tmp_path))
    assert outcome.returncode != 0
    assert says in outcome.stdout + outcome.stderr
