"""A context comes back through a mount and through the Cache API, in every way with the same first token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.lib.bench import Rows
from scripts.lib.decoder.blocks import TOKENS
from scripts.lib.decoder.first_token import POOL, Request, Trial
from scripts.lib.mounts import Kvfs
from tests.scripts.test_decoder import decoder, tokens

pytestmark = [pytest.mark.numpy, pytest.mark.fuse]

WAYS = (
    "computed again",
    "in the engine's memory",
    "mount, on demand",
    "mount, fetched before",
    "Cache API, on demand",
    "Cache API, on demand in the order of layers",
    "Cache API, fetched before",
)


def request() -> Request:
    numbers = tokens(2 * TOKENS + 9)
    return Request(decoder(), numbers[: 2 * TOKENS], numbers[2 * TOKENS :])


def test_every_way_ends_with_the_same_token_and_says_what_it_took(tmp_path: Path) -> None:
    kvfs, rows = Kvfs(tmp_path), Rows()
    kvfs.create(POOL, tmp_path / "device", 256 << 20)
    Trial(rows, kvfs, tmp_path, request()).run(1)
    times = {row.name: row.values for row in rows if row.name.endswith(": time to the first token")}
    assert list(times) == [f"{2 * TOKENS:,} tokens, {way}: time to the first token" for way in WAYS]
    assert all(value > 0 for [value] in times.values())


def test_another_token_is_noticed(tmp_path: Path) -> None:
    """What is read back for a context is not what was stored."""
    kvfs, rows = Kvfs(tmp_path), Rows()
    kvfs.create(POOL, tmp_path / "device", 256 << 20)
    asked = request()
    first_token, changed = asked.first_token, list[object]()

    def spoilt(context, ready=None):
        if ready is None and changed:
            context.kv[0, 0, 0, 7] += np.float16(1)
        changed.append(context)
        return first_token(context, ready)

    asked.first_token = spoilt  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="in the engine's memory: the first token's scores differ"):
        Trial(rows, kvfs, tmp_path, asked).run(1)
