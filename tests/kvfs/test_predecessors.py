"""Predecessors: which block each writer published before."""

from __future__ import annotations

from kvfs.predecessors import NONE, Predecessors, block_id

HASHES = [b"%064x" % number for number in range(0x100, 0x103)]


def published(predecessors: Predecessors, writer: int, *names: bytes) -> list[bytes]:
    """What each is recorded with."""
    found = []
    for name in names:
        found.append(predecessors.of(writer, name))
        predecessors.note(writer, name)
    return found


def test_the_block_before() -> None:
    assert published(Predecessors(), 1, b"a", b"b", b"c") == [NONE, block_id(b"a"), block_id(b"b")]


def test_each_writer_has_its_own() -> None:
    predecessors = Predecessors()
    published(predecessors, 1, b"a")
    assert published(predecessors, 2, b"b") == [NONE]


def test_halves_of_a_block_and_temporary_names_follow_the_block_before() -> None:
    names = [h + end for h in HASHES for half in (b"_k", b"_v") for end in (half + b".17.tmp", half)]
    blocks = [block_id(h) for h in HASHES]
    assert published(Predecessors(), 1, *names) == [NONE] * 4 + [blocks[0]] * 4 + [blocks[1]] * 4


def test_few_writers_are_remembered() -> None:
    predecessors = Predecessors()
    for writer in range(5000):
        predecessors.note(writer, b"a")
    assert predecessors.of(0, b"b") == NONE
    assert predecessors.of(4999, b"b") == block_id(b"a")
