"""Numbers for keys, against a dictionary; and what is remembered of blocks that were let go."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kvfs.prefetch.numbers import Numbers
from kvfs.prefetch.seen import FIRST, Seen

KEYS = st.integers(0, 40) | st.integers(0, 2**64 - 1)


@given(steps=st.lists(st.tuples(st.booleans(), KEYS), max_size=200))
def test_a_key_has_the_number_that_it_was_given(steps: list[tuple[bool, int]]) -> None:
    numbers, model = Numbers(), dict[int, int]()
    for adds, key in steps:
        assert numbers.find(key) == model.get(key, 0)
        if adds and key not in model:
            model[key] = numbers.add(key)
        elif not adds and key in model:
            numbers.drop(model.pop(key))
        assert len(numbers) == len(model) == len({*model.values()} - {0})
    for key, number in model.items():
        assert numbers.find(key) == number
        assert numbers.keys[number] == key


def test_numbers_that_were_given_back_are_given_again() -> None:
    numbers = Numbers()
    given_first = {numbers.add(key) for key in range(1, 1000)}
    for number in given_first:
        numbers.drop(number)
    assert {numbers.add(key) for key in range(5000, 5999)} == given_first


def test_uses_are_remembered_until_another_key_takes_their_place() -> None:
    seen, rng = Seen(), Random(1)
    keys = [rng.getrandbits(64) for _ in range(FIRST // 4)]
    for key in keys:
        assert seen.uses(key) == 0
        seen.note(key, 3)
    assert sum(seen.uses(key) == 3 for key in keys) > 0.85 * len(keys)
    strangers = [rng.getrandbits(64) for _ in range(10_000)]
    assert sum(seen.uses(key) > 0 for key in strangers) < 10


def test_more_places_lose_nothing() -> None:
    seen, rng = Seen(), Random(2)
    keys = [rng.getrandbits(64) for _ in range(1000)]
    for number, key in enumerate(keys):
        seen.note(key, number % 4)
    before = [seen.uses(key) for key in keys]
    seen.room_for(10 * FIRST)
    assert [seen.uses(key) for key in keys] == before
