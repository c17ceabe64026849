"""No object is lost or changed except by eviction, no wrong byte is served, no slot leaks: whatever the crash."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.blockdev.crash_model import CrashModel

BATCH = 20


def run(seed: int, folder: Path) -> None:
    """One seed; replays with the same PYTHONHASHSEED."""
    scheduler: Any = trio._core._run
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    faults = seed % 4 == 3
    model = CrashModel(seed, flush=seed % 2 == 0, folder=folder / str(seed), faults=faults)
    trio.run(model.run, 4, 24, clock=trio.testing.MockClock(autojump_threshold=0))


def run_batch(first: int, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Half of what happens here is logged as a warning, and means to be.
    logging.getLogger("blockdev").setLevel(logging.CRITICAL + 1)
    try:
        for seed in range(first, first + BATCH):
            run(seed, folder)
    finally:
        logging.getLogger("blockdev").setLevel(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, 1000, BATCH))
def test_crashes(first: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_batch(first, tmp_path, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 10000, BATCH))
def test_many_crashes(first: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_batch(first, tmp_path, caplog)
