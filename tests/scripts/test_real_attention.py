"""Sketches on what a real model attends to: better than bounds and than counts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.capabilities import SMOLLM2

ROOT = Path(__file__).parents[2]
SECONDS = 600  # 20 where nothing else runs


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_quick_benchmark_meets_its_bars(tmp_path: Path) -> None:
    run = subprocess.run(
        [SMOLLM2 / "bin/python", ROOT / "scripts/lib/bench.py", "attention", "--quick"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert run.returncode in (0, 1), run.stderr
    rows = json.loads(run.stdout)["rows"]
    assert len([row for row in rows if "floor" in row]) >= 6
    assert [row["name"] for row in rows if not row["ok"] and row["unit"] != "ms"] == []
