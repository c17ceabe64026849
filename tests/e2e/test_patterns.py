"""Every engine's file calls see the same on a mount as on a plain directory, and what they left is still there
after a kill -9 and a new mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.patterns import PATTERNS, Pattern, Sizes

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
