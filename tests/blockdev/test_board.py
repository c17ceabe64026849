"""What members tell each other through shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from blockdev.board import PINS_MAX, REPORTS_MAX, USES_MAX, Board, Figures
from blockdev.types import ObjectId

Boards = list[Board]


def an_id(number: int) -> ObjectId:
    return ObjectId(number.to_bytes(16, "big"))


@pytest.fixture
def present() -> set[int]:
    return {0, 1, 2}


@pytest.fixture
def boards(tmp_path: Path, present: set[int]) -> Iterator[Boards]:
    """Of three members; who is in `present` is there."""
    made = [
        Board.open(tmp_path / "board", seat, UUID(int=seat + 1), lambda seat=seat: sorted(present - {seat}))  # type: ignore[misc]
        for seat in range(3)
    ]
    yield made
    for board in made:
        board.close()


def test_pins_are_seen_by_the_others(boards: Boards) -> None:
    one, two, three = boards
    two.pin(an_id(1))
    two.pin(an_id(1))
    assert one.is_pinned(an_id(1))
    assert three.is_pinned(an_id(1))
    assert not two.is_pinned(an_id(1))
    assert not one.is_pinned(an_id(2))
    two.unpin(an_id(1))
    assert one.is_pinned(an_id(1))
    two.unpin(an_id(1))
    assert not one.is_pinned(an_id(1))
    with pytest.raises(KeyError):
        two.unpin(an_id(1))


def test_an_id_that_lies_across_two_is_not_pinned(boards: Boards) -> None:
    one, two, _ = boards
    two.pin(ObjectId(bytes(8) + b"\x01" * 8))
    two.pin(ObjectId(b"\x02" * 8 + bytes(8)))
    assert not one.is_pinned(ObjectId(b"\x01" * 8 + b"\x02" * 8))


def test_with_too_many_pins_everything_is_pinned(boards: Boards) -> None:
    one, two, _ = boards
    for number in range(1, PINS_MAX + 1):
        two.pin(an_id(number))
    assert not one.is_pinned(an_id(PINS_MAX + 2))
    two.pin(an_id(PINS_MAX + 1))
    assert one.is_pinned(an_id(PINS_MAX + 2))
    two.unpin(an_id(PINS_MAX + 1))
    assert not one.is_pinned(an_id(PINS_MAX + 2))
    assert one.is_pinned(an_id(PINS_MAX))


def test_what_the_dead_said_is_void(boards: Boards, present: set[int]) -> None:
    one, two, _ = boards
    two.pin(an_id(1))
    two.used(an_id(2))
    present.discard(1)
    assert not one.is_pinned(an_id(1))
    assert one.take_uses() == []
    assert one.figures().keys() == {2}


def test_who_takes_a_seat_begins_anew(boards: Boards, tmp_path: Path) -> None:
    one, two, _ = boards
    two.pin(an_id(1))
    heir = Board.open(tmp_path / "board", 1, UUID(int=2), list)
    assert not one.is_pinned(an_id(1))
    heir.close()


def test_uses_are_told_once(boards: Boards) -> None:
    one, two, three = boards
    two.used(an_id(1))
    two.used(an_id(2))
    three.used(an_id(3))
    assert one.take_uses() == [an_id(1), an_id(2), an_id(3)]
    assert one.take_uses() == []
    assert two.take_uses() == [an_id(3)]
    two.used(an_id(4))
    assert one.take_uses() == [an_id(4)]


def test_of_many_uses_the_last_are_told(boards: Boards) -> None:
    one, two, _ = boards
    for number in range(USES_MAX + 5):
        two.used(an_id(number))
    assert one.take_uses() == [an_id(number) for number in range(5, USES_MAX + 5)]


def test_reports_are_told_once(boards: Boards) -> None:
    one, two, _ = boards
    for number in range(REPORTS_MAX):
        two.report(an_id(number))
    assert one.take_reports() == [an_id(number) for number in range(REPORTS_MAX)]
    assert one.take_reports() == []
    assert one.take_uses() == []


def test_figures_and_wishes(boards: Boards) -> None:
    one, two, _ = boards
    two.say(regions=3, used=10, held=4)
    assert one.figures()[1] == Figures(3, 10, 4, 0)
    two.wish()
    two.wish()
    assert one.figures()[1].wish == 1
    two.wish_no_more()
    two.wish_no_more()
    assert one.figures()[1].wish == 0
    two.wish()
    assert one.figures()[1].wish == 2
    assert two.is_wishing
