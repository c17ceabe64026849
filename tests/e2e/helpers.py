"""What the tests of the mount share."""

from __future__ import annotations

import os
import random
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

LANE = os.environ.get("KVFS_TEST_LANE", "on") != "off"
"""Whether mounts have the data lane: the tests are to be run both ways."""


def names(folder: Path) -> set[str]:
    """What is in a directory."""
    return {path.name for path in folder.iterdir()}


def some_bytes(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


def fails(number: int) -> AbstractContextManager[object]:
    """The block must raise an OSError with that number."""
    return pytest.raises(OSError, match=rf"^\[Errno {number}\]")
