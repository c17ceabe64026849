"""Chains: what is expected after two blocks, how far ahead, and what is given up where a reader leaves."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kvfs.prefetch.chains import FIRST, KNOWN, Chains, Follower

LONG = list(range(100))


def learnt(*chains: list[int]) -> Chains:
    known = Chains()
    for chain in chains:
        known.learn(chain)
    return known


def read(chains: Chains, chain: list[int]) -> list[tuple[tuple[object, ...], tuple[object, ...]]]:
    follower = Follower(chains)
    return [(step.fetch, step.cancel) for step in map(follower.reached, chain)]


def test_the_rest_of_a_known_chain_is_expected_in_order() -> None:
    assert learnt(LONG).expect(1) == LONG[2:]
    assert learnt(LONG).expect(1, 5) == LONG[2:7]


def test_nothing_is_expected_of_what_is_unknown() -> None:
    assert learnt(LONG).expect(1000) == []


def test_the_most_recent_child_is_expected() -> None:
    assert learnt([0, 1, 2, 3, 4], [0, 1, 5, 6, 7]).expect(1) == [5, 6, 7]


def test_where_the_most_recent_child_is_gone_the_frequent_one_is_expected() -> None:
    chains = learnt([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 4, 5])
    chains.forget(4)
    assert chains.expect(1) == [2, 3]
    assert 4 not in chains
    assert len(chains) == 5


def test_of_three_children_the_frequent_one_stays_known() -> None:
    chains = learnt([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 6, 7], [0, 1, 2, 3])
    assert chains.expect(1) == [2, 3]
    chains.forget(2)
    assert chains.expect(1) == [6, 7]


def test_dead_ends_that_are_always_replaced_are_not_expected() -> None:
    chains = Chains()
    for conversation in range(10):
        root = conversation * 1000
        for turn in range(2, 8):
            chains.learn([*range(root, root + turn), root + 100 + turn])
    assert chains.expect(2) == [3, 4, 5, 6]  # not 107, which the next turn replaces


def test_dead_ends_that_come_back_are_expected() -> None:
    chains = Chains()
    for _ in range(3):
        for conversation in range(10):
            chains.learn(range(conversation * 1000, conversation * 1000 + 5))
    assert chains.expect(1001) == [1002, 1003, 1004]


def test_one_known_block_is_not_enough() -> None:
    """A system prompt that thousands of contexts begin with says nothing about the next one."""
    chains = learnt(*([0, child, child + 1, child + 2] for child in range(10, 36_000, 3)))
    steps = read(chains, [0, 100_000, 100_001])
    assert steps == [((), ())] * 3


def test_a_reader_that_leaves_the_chain_costs_what_was_ahead_of_it() -> None:
    leaves_at = 40
    steps = read(learnt(LONG), [*range(leaves_at), 1000])
    fetched = [block for fetch, _ in steps for block in fetch]
    cancelled = [block for _, cancel in steps for block in cancel]
    assert fetched == list(range(KNOWN, 2 * leaves_at))
    assert cancelled == list(range(leaves_at, 2 * leaves_at))
    assert steps[-1] == ((), tuple(cancelled))


def test_an_early_reader_has_few_blocks_ahead() -> None:
    steps = read(learnt(LONG), [0, 1, 2])
    assert [block for fetch, _ in steps for block in fetch] == list(range(2, 3 + FIRST))


def test_a_reader_that_skips_has_confirmed_what_it_skipped() -> None:
    """Looking up names, it is seen at some of them only."""
    follower = Follower(learnt(LONG))
    _, _, step = [follower.reached(block) for block in (0, 1, 5)]
    assert step.cancel == ()
    assert list(step.fetch) == list(range(2 + FIRST, 6 + FIRST))
    assert follower.seen == 6


turns = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(lambda turn: list(accumulate(map(str, turn))))
"""A block is what precedes it, as a hash of it would be: so "021" is a child of "02"."""


@given(st.lists(turns, max_size=12), st.sets(st.integers(0, 20)), st.lists(turns, max_size=4))
def test_a_follower_asks_for_what_exists_and_for_nothing_twice(
    history: list[list[str]], gone: set[int], reading: list[list[str]]
) -> None:
    chains = Chains()
    for chain in history:
        chains.learn(chain)
    blocks = sorted({block for chain in history for block in chain})
    exist = {block for number, block in enumerate(blocks) if number not in gone}
    for block in set(blocks) - exist:
        chains.forget(block)
    for chain in reading:
        follower = Follower(chains)
        ahead: set[object] = set()
        for block in chain:
            step = follower.reached(block)
            if block in ahead:
                ahead &= {*follower.ahead}
            assert ahead >= set(step.cancel)
            ahead -= set(step.cancel)
            assert not ahead & set(step.fetch)
            assert exist >= set(step.fetch)
            ahead |= set(step.fetch)
