"""Every engine's file calls see the same on a mount as on a plain directory, and what they left is still there
after a kill -9 and a new mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.mounts import Mount
from tests.e2e.patterns import PATTERNS, Pattern, Sizes, tree

SIZES = {
    "odd": Sizes(block=200_000, count=6),
    "wide": Sizes(block=5 << 20, count=3),
}

patterns = pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
sizes = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())


@sizes
@patterns
def test_plain_directory(pattern: Pattern, sizes: Sizes, tmp_path: Path) -> None:
    """The reference itself: it gets back what it wrote, and says the same twice."""
    outcome = pattern.run(tmp_path / "first", sizes)
    assert outcome["intact"] is True
    assert pattern.on_kvfs.keys() <= outcome.keys()
    assert pattern.run(tmp_path / "second", sizes) == outcome


@pytest.mark.fuse
@sizes
@patterns
def test_mount(
    pattern: Pattern, sizes: Sizes, tmp_path: Path, shared_mount: Mount, request: pytest.FixtureRequest
) -> None:
    """As the reference, but for the documented exceptions."""
    expected = {**pattern.run(tmp_path / "plain", sizes), **pattern.on_kvfs}
    root = shared_mount.path / request.node.callspec.id
    assert pattern.run(root, sizes) == expected


@pytest.mark.fuse
@pytest.mark.parametrize("end", ["unmount", "kill"])
def test_what_they_left_outlives_the_mount(mount: Mount, end: str) -> None:
    """What every pattern left behind is the same on the next mount, file by file."""
    for pattern in PATTERNS:
        pattern.run(mount.path / pattern.name, SIZES["odd"])
    before = tree(mount.path)
    mount.kill() if end == "kill" else mount.stop()
    mount.start()
    assert tree(mount.path) == before
    assert mount.path.is_mount()
