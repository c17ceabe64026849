"""What stays in memory: leaves go first, what is of no use goes early, and a wrong prediction costs little."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.prefetch import keeping
from kvfs.prefetch.keeping import Guard, Keeper, LeafLru, leading
from kvfs.prefetch.returns import Returns

Chain = list[int]


def chain(conversation: int, length: int) -> Chain:
    return [conversation * 10_000 + block for block in range(length)]


def serve(capacity: int, requests: list[tuple[float, Chain]]) -> tuple[int, int]:
    """Leading blocks that were held by a keeper, and by who lets go the least recently used."""
    keeper, lru = Keeper(capacity, Returns()), LeafLru(capacity)
    ours = theirs = 0
    for now, blocks in requests:
        ours += keeper.begin(blocks, now).hits
        theirs += lru.request(blocks)
    return ours, theirs


requests = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 9), st.floats(0, 100), st.booleans()), max_size=40
)


@pytest.mark.parametrize("trusted", [True, False])
@given(requests=requests, capacity=st.integers(1, 20))
def test_a_block_is_held_only_with_all_before_it(
    *, trusted: bool, requests: list[tuple[int, int, float, bool]], capacity: int
) -> None:
    keeper = Keeper(capacity, Returns())
    if not trusted:
        keeper._guard.resting = 10**6
    now, seen = 0.0, {0: 0, 1: 0, 2: 0, 3: 0, 4: 0}
    for conversation, length, pause, ends in requests:
        now += pause
        blocks = chain(conversation, length)
        expected = leading(blocks, keeper)
        seen[conversation] = max(seen[conversation], length)
        request = keeper.begin(blocks, now)
        assert request.hits == expected
        if ends:
            keeper.end(request, now + 1.0, "tool_use")
        held = 0
        for other, known in seen.items():
            whole = chain(other, known)
            held += leading(whole, keeper)
            assert leading(whole, keeper) == sum(block in keeper for block in whole)
        assert held == keeper.statistics().held <= capacity


def test_a_chain_longer_than_memory_keeps_its_beginning() -> None:
    keeper = Keeper(10, Returns())
    keeper.begin(chain(0, 50), 0.0)
    assert leading(chain(0, 50), keeper) == 10


def test_all_is_held_while_there_is_room() -> None:
    keeper = Keeper(100, Returns())
    for conversation in range(5):
        keeper.begin(chain(conversation, 20), float(conversation))
    assert keeper.statistics().held == 100
    assert keeper.begin(chain(0, 20), 5.0).hits == 20


def test_kinds_that_do_not_come_back_make_room_for_those_that_do() -> None:
    """Every second conversation stops for a tool and is back in ten seconds; the others are over."""
    keeper = Keeper(200, Returns())
    rng = Random(1)
    hits = asked = 0
    pending: list[tuple[float, Chain]] = []
    for number in range(2000):
        now = number * 1.0
        while pending and pending[0][0] <= now:
            at, blocks = pending.pop(0)
            hits += keeper.begin(blocks, at).hits
            asked += len(blocks)
        comes_back = rng.random() < 0.5
        request = keeper.begin(chain(number, 20), now)
        keeper.end(request, now, "tool_use" if comes_back else "end_turn")
        if comes_back:
            pending.append((now + 12.0, chain(number, 20)))
    assert hits > 0.9 * asked  # the least recently used last for ten seconds, so has next to nothing


def test_a_scan_of_ten_times_the_memory_takes_little_from_others() -> None:
    """Twenty conversations come back every minute, for hours; once, a thousand that never do pass by."""
    steady = [(minute * 60.0 + c, chain(c, 10)) for minute in range(120) for c in range(20)]
    scan = [(3600.0 + number * 0.05, chain(1000 + number, 2)) for number in range(1000)]
    alone, _ = serve(200, steady)
    keeper = Keeper(200, Returns())
    among = sum(keeper.begin(blocks, now).hits for now, blocks in sorted(steady + scan))
    asked = sum(len(blocks) for _, blocks in steady)
    assert alone - among < 0.02 * asked


def test_a_prediction_that_turns_wrong_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that took ten seconds take ten minutes from one moment on."""
    monkeypatch.setattr(keeping, "WINDOW", 64)
    rng = Random(2)
    served: list[tuple[float, Chain]] = []
    for number in range(4000):
        gap = 10.0 if number < 2000 else 600.0
        served += [(number * 1.0, chain(number, 5)), (number + gap * rng.uniform(0.8, 1.2), chain(number, 5))]
    served.sort()
    ours, theirs = serve(2000, served)
    assert ours >= theirs - 0.01 * sum(len(blocks) for _, blocks in served)


def test_within_three_windows_of_a_change_of_kinds_the_least_recently_used_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came back from tools in ten seconds takes ten minutes from one moment on, and what people took minutes for is back
    at once. So much had been learnt before that it outweighs all that comes."""
    monkeypatch.setattr(keeping, "WINDOW", 64)
    before, after = {"tool_use": 10.0, "end_turn": 400.0}, {"tool_use": 600.0, "end_turn": 10.0}
    returns = Returns()
    keeper, lru = Keeper(400, returns), LeafLru(400)
    asked = sorted(
        (number + gap, number, reason)
        for number in range(5000)
        for reason in ("tool_use" if number % 2 else "end_turn",)
        for gap in (0.0, (before if number < 3000 else after)[reason])
    )
    served: list[tuple[int, int]] = []
    distrusted: list[int] = []
    for now, number, reason in asked:
        if now >= 3000 and not served:
            for learnt in (returns._all, *returns._kinds.values()):
                learnt.returns = [1e4 * value for value in learnt.returns]
                learnt.waited = [1e4 * value for value in learnt.waited]
        request = keeper.begin(chain(number, 5), now)
        keeper.end(request, now, reason)
        theirs = lru.request(chain(number, 5))
        if now >= 3000:
            served.append((request.hits, theirs))
            distrusted += [len(served)] if not keeper.statistics().trusted else []
    worse = next(
        at
        for at in range(0, len(served), 64)
        if sum(o for o, _ in served[at : at + 64]) < sum(t for _, t in served[at : at + 64])
    )
    assert distrusted
    assert distrusted[0] <= worse + 3 * 64


def windows(guard: Guard, many: int, ours: int, theirs: int) -> None:
    for _ in range(many * keeping.WINDOW):
        guard.note(100, ours, theirs)


def test_a_prediction_may_lose_so_much_and_no_more() -> None:
    guard = Guard()
    windows(guard, 4, 48, 50)
    assert guard.trusted
    windows(guard, 1, 48, 50)
    assert not guard.trusted


def test_who_is_wrong_again_and_again_is_asked_less_and_less() -> None:
    guard, rests = Guard(), []
    for _ in range(6):
        windows(guard, 1, 40, 50)
        rests.append(guard.resting)
        windows(guard, guard.resting, 40, 50)
        assert guard.trusted
    assert rests == [4, 16, 64, 256, 256, 256]
    windows(guard, 1, 80, 50)
    windows(guard, 3, 40, 50)
    assert guard.resting == keeping.REST


def test_what_was_gained_may_be_lost_again_but_for_the_latest_alone() -> None:
    guard = Guard()
    windows(guard, 100, 60, 50)
    windows(guard, 2, 40, 50)
    assert guard.trusted
    windows(guard, 1, 40, 50)
    assert not guard.trusted


def test_where_nothing_is_to_be_gained_nothing_is_risked() -> None:
    guard = Guard()
    windows(guard, 1, 100, 100)
    assert not guard.trusted
    windows(guard, 1, 90, 90)
    assert guard.trusted


def test_what_is_forgotten_is_not_held() -> None:
    keeper = Keeper(10, Returns())
    keeper.begin(chain(0, 5), 0.0)
    for block in reversed(chain(0, 5)[2:]):
        keeper.forget(block)
    keeper.forget(77)
    assert leading(chain(0, 5), keeper) == 2
    assert keeper.statistics().known == 2
    assert keeper.begin(chain(0, 5), 1.0).hits == 2
    assert keeper.statistics().held == 5


def test_a_clock_that_jumps_harms_nothing() -> None:
    keeper = Keeper(20, Returns())
    for now in (0.0, 1e9, 5.0, -1e9, 6.0):
        request = keeper.begin(chain(int(now) % 7, 15), now)
        keeper.end(request, now - 3.0, "tool_use")
    assert keeper.statistics().held == 20
