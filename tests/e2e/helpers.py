"""What the tests of the mount share."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from pathlib import Path

import pytest


def names(folder: Path) -> set[str]:
    """What is in a directory."""
    return {path.name for path in folder.iterdir()}


def some_bytes(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


def fails(number: int) -> AbstractContextManager[object]:
    """The block must raise an OSError with that number."""
    return pytest.raises(OSError, match=rf"^\[Errno {number}\]")
