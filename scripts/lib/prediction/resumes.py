"""Sessions that come back, and a tier that has room for some of them: whose context is still there?

A session's context is held as a whole. While a request runs, its session's is with the engine and takes no room; when it
is over, the context is put into the tier, and others leave until all fits. The next request is served if it finds its
session there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvfs.prefetch.idle import Entry, Idle
from kvfs.prefetch.returns import Returns
from kvfs.request_traces import Asked

PERSON = "end_turn"
"""Why an engine stops when it is a person's turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a session.

    :ivar size: blocks of its context
    :ivar follows: whether it had one before
    """

    time: float
    ended: float
    session: int
    size: int
    reason: str
    follows: bool


def turns(asked: Sequence[Asked]) -> list[Turn]:
    """The turns of sessions; a request that came before its session's last one was over joins that one."""
    found: list[Turn] = []
    over: dict[int, float] = {}
    for request in asked:
        if request.session is None or request.ended is None:
            continue
        before = over.get(request.session)
        if before is not None and request.time < before:
            continue
        over[request.session] = request.ended
        size = len(request.chain)
        found.append(
            Turn(request.time, request.ended, request.session, size, request.reason, before is not None)
        )
    return found


def live_set(found: Sequence[Turn]) -> float:
    """Blocks of all sessions at work, on average: while a request or a tool runs, not while a person reads and types."""
    last: dict[int, Turn] = {}
    area = 0.0
    for turn in found:
        before = last.get(turn.session)
        if before is not None and before.reason != PERSON:
            area += before.size * (turn.time - before.ended)
        area += turn.size * (turn.ended - turn.time)
        last[turn.session] = turn
    return area / (max(turn.ended for turn in found) - found[0].time)


class Order(Protocol):
    """Which sessions leave first."""

    def ended(self, turn: Turn) -> None: ...

    def came_back(self, turn: Turn) -> None: ...

    def first(self) -> Iterator[int]:
        """Sessions whose context may leave, first to last; the caller stops when enough have."""

    def left(self, session: int) -> None: ...


def served(found: Sequence[Turn], order: Order, capacity: float) -> int:
    """How many turns that followed another found their session in a tier of so many blocks."""
    held: dict[int, int] = {}
    hits = used = 0
    pending: list[tuple[float, int, Turn]] = []
    for number, turn in enumerate(found):
        while pending and pending[0][0] <= turn.time:
            over = heapq.heappop(pending)[2]
            held[over.session] = over.size
            used += over.size
            order.ended(over)
            if used > capacity:
                for session in order.first():
                    used -= held.pop(session)
                    order.left(session)
                    if used <= capacity:
                        break
        if turn.follows:
            order.came_back(turn)
            size = held.pop(turn.session, None)
            if size is not None:
                hits += 1
                used -= size
        heapq.heappush(pending, (turn.ended, number, turn))
    return hits


class LeastRecent:
    """Who ended first leaves first."""

    def __init__(self) -> None:
        self._held: dict[int, None] = {}

    def ended(self, turn: Turn) -> None:
        self._held[turn.session] = None

    def came_back(self, turn: Turn) -> None:
        self._held.pop(turn.session, None)

    def first(self) -> Iterator[int]:
        return iter(list(self._held))

    def left(self, session: int) -> None:
        del self._held[session]


class Clairvoyant(LeastRecent):
    """Who comes back last leaves first; whoever never does, before that.

    :param next_turn: when a session comes back after a turn of it, or infinity
    """

    def __init__(self, next_turn: Callable[[Turn], float]) -> None:
        super().__init__()
        self._next_turn = next_turn
        self._nexts: dict[int, float] = {}

    def ended(self, turn: Turn) -> None:
        super().ended(turn)
        self._nexts[turn.session] = self._next_turn(turn)

    def first(self) -> Iterator[int]:
        return iter(sorted(self._held, key=self._nexts.__getitem__, reverse=True))


def next_turns(found: Sequence[Turn]) -> Callable[[Turn], float]:
    """What a `Clairvoyant` must know."""
    following: dict[int, float] = {}
    nexts: dict[Turn, float] = {}
    for turn in reversed(found):
        nexts[turn] = following.get(turn.session, float("inf"))
        following[turn.session] = turn.time
    return nexts.__getitem__


class Learnt:
    """Who is worth least to hold leaves first, by what `kvfs.prefetch.returns` has learnt so far."""

    def __init__(self) -> None:
        self._idle: Idle[int] = Idle(Returns())
        self._entries: dict[int, Entry[int]] = {}

    def ended(self, turn: Turn) -> None:
        self._idle.age(turn.ended)
        kind = (turn.reason, turn.follows)
        self._entries[turn.session] = self._idle.add(turn.session, kind, turn.ended, turn.size)

    def came_back(self, turn: Turn) -> None:
        self._idle.age(turn.time)
        entry = self._entries.pop(turn.session)
        self._idle.let_go(entry)
        self._idle.returned(entry, turn.time)

    def first(self) -> Iterator[int]:
        return (entry.what for entry in self._idle.cheapest())

    def left(self, session: int) -> None:
        self._idle.let_go(self._entries[session])
