"""Streams: who reads which chain, seen only through the blocks that are wanted."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from kvfs.prefetch.chains import FIRST, Chains
from kvfs.prefetch.streams import KNOWN_TOGETHER, READERS, Progress, Streams, is_sentinel

LENGTH = 100


def chain(name: str, length: int = LENGTH) -> list[str]:
    return [f"{name}{number}" for number in range(length)]


def known(*names: str, length: int = LENGTH) -> Chains:
    """Chains that were published."""
    chains = Chains()
    for name in names:
        blocks = chain(name, length)
        chains.note(blocks[0])
        for parent, child in pairwise(blocks):
            chains.published(parent, child)
    return chains


def fetched(progress: list[Progress]) -> list[object]:
    return [*dict.fromkeys(block for step in progress for block in step.fetch)]


def test_after_two_blocks_the_rest_is_fetched_ahead_of_the_reader() -> None:
    streams = Streams(known("a"))
    first, second, third = (streams.wanted(block, 1) for block in chain("a")[:3])
    assert (first.position, first.sure, first.fetch) == (0, False, ())
    assert (second.position, second.sure, second.fetch) == (1, True, tuple(chain("a")[2 : 2 + FIRST]))
    assert third.fetch == tuple(chain("a")[2 + FIRST : 3 + FIRST])


def test_the_same_block_again_is_no_progress() -> None:
    """A file is looked up and then read; other ranks read their own file of the block."""
    streams = Streams(known("a"))
    for block in chain("a")[:2]:
        streams.wanted(block, 1)
    assert streams.wanted("a1", 1) == streams.wanted("a1", 7) == Progress(1, sure=True, again=True)


def test_many_readers_at_a_time() -> None:
    names = [chr(ord("a") + number) for number in range(READERS // 2)]
    streams = Streams(known(*names))
    progress = [streams.wanted(f"{name}{n}", ord(name)) for n in range(LENGTH) for name in names]
    assert sorted(map(str, fetched(progress))) == sorted(b for name in names for b in chain(name)[2:])
    assert not any(step.cancel for step in progress)


def test_a_reader_that_is_many_threads_is_believed_later() -> None:
    streams = Streams(known("a"))
    progress = [streams.wanted(block, thread) for thread, block in enumerate(chain("a"))]
    assert [step.sure for step in progress[:5]] == [False] * (KNOWN_TOGETHER - 1) + [True] * 2
    assert fetched(progress) == chain("a")[KNOWN_TOGETHER:]


def test_a_reader_out_of_order_is_followed() -> None:
    streams = Streams(known("a"))
    wanted = chain("a")
    for at in range(10, LENGTH - 1, 7):
        wanted[at], wanted[at + 1] = wanted[at + 1], wanted[at]
    progress = [streams.wanted(block, 1) for block in wanted]
    assert set(fetched(progress)) >= set(chain("a")[2:])


def test_what_was_fetched_long_ago_is_looked_at_again_near_the_reader() -> None:
    streams = Streams(known("a"))
    progress = [streams.wanted(block, 1) for block in chain("a")]
    for at, step in enumerate(progress[20:-FIRST], 20):
        assert f"a{at + FIRST}" in step.fetch


def test_where_readers_part_what_was_ahead_is_cancelled() -> None:
    chains = known("a")
    chains.published("a9", "b10")
    for parent, child in pairwise(chain("b")[10:]):
        chains.published(parent, child)
    chains.read("a9", "a10")  # the most recent child
    streams = Streams(chains)
    progress = [streams.wanted(block, 1) for block in [*chain("a")[:10], *chain("b")[10:12]]]
    ahead = set(fetched(progress[:10])) - set(chain("a")[:10])
    assert ahead
    assert set(progress[10].cancel) == ahead
    assert progress[10].fetch[0] == "b11"


def test_a_reader_seen_at_sentinels_only_is_followed_all_the_way() -> None:
    streams = Streams(known("a", length=1000))
    seen = [n for n in range(1000) if is_sentinel(n)]
    progress = [streams.wanted(f"a{n}", 1) for n in seen]
    assert [step.position for step in progress] == seen
    assert set(fetched(progress)) == set(chain("a", 1000)[2:])
    assert not any(step.cancel for step in progress)
    assert len(seen) < 12


def test_who_reads_at_random_makes_nothing_be_fetched() -> None:
    blocks = chain("a", 5000)
    streams = Streams(known("a", length=5000))
    rng = Random(1)
    count = 0
    for block in (rng.choice(blocks) for _ in range(5000)):
        streams.read(block, 1)
        count += len(streams.wanted(block, 1).fetch)
    assert count < 50


def test_of_a_root_with_very_many_children_nothing_is_fetched() -> None:
    """A system prompt that twelve thousand contexts begin with, of which each goes on in another way."""
    chains = Chains()
    for number in range(12_030):
        chains.published("root", f"{number}.0")
        chains.published(f"{number}.0", f"{number}.1")
    streams = Streams(chains)
    for thread in range(300):
        assert streams.wanted("root", thread).fetch == ()
        assert streams.wanted(f"new {thread}", thread).fetch == ()
    streams.wanted("root", 1000)
    assert streams.wanted("7.0", 1000).fetch == ("7.1",), "two blocks tell which one it is"


def test_reading_the_same_way_twice_teaches_it() -> None:
    """Threads of an engine publish parts of a chain each; who reads has the order."""
    chains = Chains()
    blocks = chain("a", 10)
    for block in blocks:
        chains.note(block)
    streams = Streams(chains)
    for _ in range(2):
        for block in blocks:
            streams.read(block, 1)
    assert chains.expect("a0", 9) == blocks[1:]


def test_what_readers_were_is_forgotten_with_them() -> None:
    streams = Streams(known(*(f"{n}-" for n in range(100)), length=20))
    for n in range(100):
        for block in chain(f"{n}-", 3):
            streams.wanted(block, n)
    assert len(streams._readers) == READERS
    assert len(streams._expected) <= READERS * FIRST


@pytest.mark.parametrize(
    "position, expected", [(0, True), (1, True), (2, False), (8, True), (12, False), (64, True)]
)
def test_sentinels(position: int, expected: bool) -> None:
    assert is_sentinel(position) is expected
