"""What to fetch next, of all that is expected: the most seconds saved for a byte, within what links may carry. Pure.

Demand is not planned here: it goes first, at once. What it takes is told to the budget, so that predictions wait. While there
is none, nobody else has a use for the link, and a source may have more than its share.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

LOOK_BACK = 1000
"""Blocks after which a source's older successes count for half."""
FADE = 60.0
"""Seconds after which they do, too: a source that may do nothing shows nothing, and things change."""
BURST = 0.1
"""Seconds of a link's rate that may be used at once after a pause."""


class Source(Enum):
    """Who predicted it.

    :ivar label: for people, and to tell sources with the same limits apart
    :ivar share: of a link's rate, at most
    :ivar bar: the part of what was fetched that must have been used, for the source to be allowed more
    """

    ARRIVED = ("arrived", 1.0, 0.0)
    CHAIN = ("chain", 0.5, 0.3)
    RETURN = ("return", 0.2, 0.3)
    ATTENTION = ("attention", 0.2, 0.3)

    def __init__(self, label: str, share: float, bar: float) -> None:
        self.label = label
        self.share = share
        self.bar = bar


@dataclass(frozen=True, slots=True)
class Want:
    """A block that may be wanted.

    :ivar size: bytes
    :ivar chance: that it is used by the deadline, 0 to 1
    :ivar deadline: seconds on the caller's clock
    :ivar saves: seconds that its reader would else wait
    """

    block: Hashable
    source: Source
    size: int
    chance: float
    deadline: float
    saves: float

    @property
    def value(self) -> float:
        """Seconds saved for a byte, as far as one may expect."""
        return self.chance * self.saves / self.size


@dataclass(slots=True)
class Tokens:
    """A bucket of bytes that fills at a rate.

    :ivar rate: bytes a second
    """

    rate: float
    level: float = 0.0
    filled: float = -math.inf

    def fill(self, now: float) -> None:
        """Time has passed; a clock that goes back adds nothing."""
        if now > self.filled:
            self.level = min(self.level + (now - self.filled) * self.rate, self.rate * BURST)
        self.filled = now

    def take(self, size: int) -> None:
        """Bytes were sent. What is more than there was must be waited for."""
        self.level -= size


class Planner:
    """Chooses for one link.

    Deadlines decide among what is certain to the same degree: of two blocks with equal value the earlier is fetched. A block
    that cannot arrive in time is not fetched. A block is fetched once, however many expect it.

    :param rate: what the link carries, bytes a second
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._link = Tokens(rate)
        self._shares = {source: Tokens(rate * source.share) for source in Source}
        self._faded: float | None = None
        self._used = {source: [0.0, 0.0] for source in Source}
        self._wants: dict[Hashable, Want] = {}
        self._flying: dict[Hashable, Want] = {}

    def __len__(self) -> int:
        """How many blocks are expected and not under way."""
        return len(self._wants)

    @property
    def rate(self) -> float:
        """What the link carries, bytes a second; may be set when more is known of it."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._rate = self._link.rate = rate
        for source, tokens in self._shares.items():
            tokens.rate = rate * source.share

    def offer(self, wants: Iterable[Want]) -> None:
        """More is expected. What is under way already is not fetched again; of two guesses the more valuable counts."""
        for want in wants:
            known = self._wants.get(want.block)
            if want.block not in self._flying and (known is None or known.value < want.value):
                self._wants[want.block] = want

    def cancel(self, blocks: Iterable[Hashable]) -> list[Hashable]:
        """They will not be wanted. Returns those that are under way: stop them if that is still worth it."""
        flying = []
        for block in blocks:
            self._wants.pop(block, None)
            if block in self._flying:
                flying.append(block)
        return flying

    def demand(self, block: Hashable, size: int, now: float) -> bool:
        """A reader waits for a block. Returns whether it is under way already: join it instead of reading it again."""
        self._wants.pop(block, None)
        if block in self._flying:
            return True
        self._link.fill(now)
        self._link.take(size)
        return False

    def expired(self, now: float) -> list[Want]:
        """Take out what would come too late."""
        late = [want for want in self._wants.values() if want.deadline < now + want.size / self._rate]
        for want in late:
            del self._wants[want.block]
        return late

    def start(self, now: float, most: int | None = None, *, contended: bool = True) -> list[Want]:
        """What to fetch now, the most valuable first. What would come too late is forgotten.

        :param most: blocks, at most
        :param contended: others want to use the link: sources keep to their shares
        """
        for tokens in (self._link, *self._shares.values()):
            tokens.fill(now)
        self.expired(now)
        started: list[Want] = []
        for want in sorted(self._wants.values(), key=lambda want: (-want.value, want.deadline)):
            if len(started) == most:
                break
            if self._may(want, now, contended=contended):
                del self._wants[want.block]
                self._flying[want.block] = want
                self._link.take(want.size)
                self._shares[want.source].take(want.size)
                started.append(want)
        return started

    def arrived(self, block: Hashable) -> None:
        """It is there, or has failed: it may be fetched again. Nothing if it was not under way."""
        self._flying.pop(block, None)

    def judged(self, source: Source, *, used: bool) -> None:
        """What a source had fetched was used, or left memory without that."""
        counts = self._used[source]
        counts[used] += 1
        if sum(counts) > LOOK_BACK:
            self._used[source] = [count / 2 for count in counts]

    def accuracy(self, source: Source) -> float:
        """The part of what a source had fetched that was used, lately; 1 before anything is known."""
        wasted, used = self._used[source]
        return (used + 1) / (wasted + used + 1)

    def allows(self, source: Source, now: float) -> bool:
        """Whether a source is right often enough to be offered anything."""
        self._fade(now)
        return self.accuracy(source) >= source.bar

    def _fade(self, now: float) -> None:
        if self._faded is None or now < self._faded:
            self._faded = now
        if now - self._faded >= FADE:
            self._faded = now
            self._used = {source: [count / 2 for count in counts] for source, counts in self._used.items()}

    def _may(self, want: Want, now: float, *, contended: bool) -> bool:
        """Whether the link, its source's share of it, and the source's record allow it."""
        enough = self._link.level > 0 and (not contended or self._shares[want.source].level > 0)
        return enough and self.allows(want.source, now)
