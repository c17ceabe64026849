"""Three members, their kills, stops and slow media: nothing is lost but by eviction, nothing wrong, and all agree."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.blockdev.members_model import MembersModel

pytestmark = pytest.mark.timeout(600)  # 10 s where nothing else runs
BATCH = 10
EVENTS = 12
_FOLDER = Path("/dev/shm")
"""The catalogues' session files are synced often: not on a disk, where there is memory."""


def run(seed: int, folder: Path) -> None:
    """One seed; replays with the same PYTHONHASHSEED."""
    scheduler: Any = trio._core._run
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    model = MembersModel(seed, folder)
    trio.run(model.run, EVENTS, clock=trio.testing.MockClock(autojump_threshold=0))


def run_batch(first: int) -> None:
    # Half of what happens here is logged as a warning, and means to be.
    logging.getLogger("blockdev").setLevel(logging.CRITICAL + 1)
    try:
        for seed in range(first, first + BATCH):
            where = _FOLDER if _FOLDER.is_dir() else None
            with tempfile.TemporaryDirectory(prefix="kvfs-members-", dir=where) as folder:
                run(seed, Path(folder))
    finally:
        logging.getLogger("blockdev").setLevel(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, 1000, BATCH))
def test_members(first: int) -> None:
    run_batch(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 10000, BATCH))
def test_many_members(first: int) -> None:
    run_batch(first)
