"""What may be under way between the data lane and pyfuse3."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvfs.fuse.window import Window

OVERHEAD = 2048


def test_requests_wait_until_their_answers_fit():
    sent: list[bytes] = []
    window = Window(2 * OVERHEAD + 10, sent.append)
    window.send(1, b"a", 5)
    window.send(2, b"b", 5)
    window.send(3, b"c", 5)
    assert sent == [b"a", b"b"]
    window.answered(1)
    assert sent == [b"a", b"b", b"c"]


def test_one_always_fits():
    sent: list[bytes] = []
    window = Window(0, sent.append)
    window.send(1, b"a", 1 << 20)
    window.send(2, b"b", 1)
    assert sent == [b"a"]
    window.answered(1)
    assert sent == [b"a", b"b"]


def test_what_has_no_answer_waits_only_for_its_turn():
    sent: list[bytes] = []
    window = Window(OVERHEAD, sent.append)
    window.send(None, b"forget", 100)
    window.send(1, b"a", 0)
    window.send(None, b"forget", 100)
    window.send(2, b"b", 0)
    window.send(None, b"last", 100)
    assert sent == [b"forget", b"a", b"forget"]
    window.answered(1)
    assert sent[3:] == [b"b", b"last"]


def test_answers_to_nothing_are_ignored():
    window = Window(10, lambda _: None)
    window.answered(0)


@given(st.lists(st.integers(0, 5 * OVERHEAD), min_size=1), st.randoms(use_true_random=False))
def test_all_are_sent_in_order_and_never_too_many(costs, rng):
    limit = 4 * OVERHEAD
    sent: list[int] = []
    under_way: set[int] = set()

    def send(message: bytes) -> None:
        sent.append(int(message))
        under_way.add(int(message))
        assert len(under_way) == 1 or sum(costs[n] + OVERHEAD for n in under_way) <= limit

    window = Window(limit, send)

    def answer() -> None:
        number = rng.choice(sorted(under_way))
        under_way.remove(number)
        window.answered(number)

    for number, cost in enumerate(costs):
        window.send(number, str(number).encode(), cost)
        if under_way and rng.random() < 0.5:
            answer()
    while under_way:
        answer()
    assert sent == list(range(len(costs)))
