"""What the kernel was told of a name it does not ask again, and what changes is seen at once all the same."""

from __future__ import annotations

import math
import os
import time

import pytest

from kvfs.fuse.attributes import NEGATIVE_TIMEOUT
from tests.e2e.helpers import LANE
from tests.e2e.mounts import Mount

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.skipif(not LANE, reason="only the data lane counts requests"),
]
COUNT = 50
OTHERS = 10
"""Requests that are of other things: for the directory itself, or that the kernel forgets something."""


def passed(mount: Mount) -> int:
    """Requests that pyfuse3 was to answer."""
    return int(mount.statistics()["mount.lane.passed"])


def test_names_are_asked_for_once(mount: Mount) -> None:
    there = [mount.path / f"there-{number}" for number in range(COUNT)]
    missing = [mount.path / f"missing-{number}" for number in range(COUNT)]
    for path in there:
        path.write_bytes(b"1")
    for path in there + missing:
        os.access(path, os.F_OK)
    before, begun = passed(mount), time.monotonic()
    for _ in range(10):
        assert all(os.access(path, os.F_OK) for path in there)
        assert not any(os.access(path, os.F_OK) for path in missing)
    took = time.monotonic() - begun
    seconds = math.ceil((took + NEGATIVE_TIMEOUT) / NEGATIVE_TIMEOUT)
    assert passed(mount) - before <= COUNT * seconds + OTHERS

    before = passed(mount)
    for _ in range(10):
        assert all(os.access(path, os.F_OK) for path in there)
    assert passed(mount) - before <= OTHERS


def test_what_changes_is_seen_at_once(mount: Mount) -> None:
    one, other = mount.path / "one", mount.path / "other"
    for _ in range(5):
        assert not one.exists()
        one.write_bytes(b"1")
        assert one.exists()
        assert not other.exists()
        one.rename(other)
        assert (one.exists(), other.exists()) == (False, True)
        other.unlink()
        assert (one.exists(), other.exists()) == (False, False)
