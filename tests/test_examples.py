"""The demo's engine tells right from absent from wrong; else the demo would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.offload import Blocks, Engine

SIZE = 64 * 1024


@pytest.fixture
def blocks(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path, SIZE)


def test_stored_blocks_load_right(blocks: Blocks) -> None:
    engine = Engine(blocks, threads=2)
    stored = engine.store(range(4))
    assert (stored.done, stored.bytes, stored.errors) == ([0, 1, 2, 3], 4 * SIZE, [])
    assert engine.present(range(6)) == [0, 1, 2, 3]
    loaded = engine.load(range(6))
    assert (loaded.done, loaded.missed, loaded.corrupt) == ([0, 1, 2, 3], [4, 5], [])
    assert engine.store(range(5)).done == [4]


@pytest.mark.parametrize("at", [0, 31, 32, SIZE // 2, SIZE - 1])
def test_one_flipped_bit_is_seen(blocks: Blocks, at: int) -> None:
    engine = Engine(blocks, threads=1)
    engine.store(range(2))
    content = bytearray(blocks.path(1).read_bytes())
    content[at] ^= 1
    blocks.path(1).write_bytes(content)
    loaded = engine.load(range(2))
    assert (loaded.done, loaded.corrupt) == ([0], [1])


def test_another_blocks_bytes_and_a_short_file_are_seen(blocks: Blocks) -> None:
    engine = Engine(blocks, threads=1)
    engine.store(range(3))
    blocks.path(1).write_bytes(blocks.path(0).read_bytes())
    blocks.path(2).write_bytes(blocks.path(2).read_bytes()[:-4096])
    assert engine.load(range(3)).corrupt == [1, 2]
