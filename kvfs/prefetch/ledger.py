"""What became of all that was fetched before anybody asked, by who had predicted it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from kvfs.prefetch.planner import Source

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class Account:
    """Of one source, in bytes, since the beginning.

    :ivar fetched: that were begun to be fetched
    :ivar used: of these, wanted later
    :ivar late: of these, wanted before they were there: the reader waited for the rest of the time
    :ivar wasted: that left memory, and nobody had wanted them
    :ivar cancelled: that were planned and not fetched, as their reader went elsewhere or they would have come too late
    :ivar failed: that could not be read
    """

    fetched: int = 0
    used: int = 0
    late: int = 0
    wasted: int = 0
    cancelled: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Item:
    source: Source
    size: int
    since: float


class Ledger(Generic[T]):
    """Knows what is under way or in memory unused.

    :ivar accounts: by source
    :ivar missed: bytes that somebody had to wait for, and nobody had predicted
    """

    def __init__(self) -> None:
        self.accounts = {source: Account() for source in Source}
        self.missed = 0
        self._open: OrderedDict[T, _Item] = OrderedDict()

    def __len__(self) -> int:
        """How many are under way, or in memory and unused."""
        return len(self._open)

    def __iter__(self) -> Iterator[T]:
        return iter(self._open)

    def __contains__(self, what: object) -> bool:
        return what in self._open

    def begun(self, what: T, source: Source, size: int, now: float) -> None:
        """It is being fetched."""
        self._open[what] = _Item(source, size, now)
        self.accounts[source].fetched += size

    def used(self, what: T, *, late: bool) -> Source | None:
        """Somebody wants it. Returns who predicted it, if anybody did."""
        item = self._open.pop(what, None)
        if item is None:
            return None
        account = self.accounts[item.source]
        account.used += item.size
        account.late += item.size * late
        return item.source

    def wasted(self, what: T) -> Source | None:
        """It is gone unused. Returns as `used`."""
        item = self._open.pop(what, None)
        if item is None:
            return None
        self.accounts[item.source].wasted += item.size
        return item.source

    def failed(self, what: T) -> None:
        """It could not be read."""
        item = self._open.pop(what, None)
        if item is not None:
            self.accounts[item.source].failed += item.size

    def oldest(self) -> tuple[T, float]:
        """Of what is under way or unused, the one that has been so longest, and since when. :raises StopIteration:"""
        what, item = next(iter(self._open.items()))
        return what, item.since

    def snapshot(self) -> dict[Source, Account]:
        """The accounts as they are now."""
        return {source: replace(account) for source, account in self.accounts.items()}

    @property
    def coverage(self) -> float | None:
        """The part of all bytes that would have had to be waited for which was predicted; None if there were none."""
        used = sum(account.used for account in self.accounts.values())
        return used / (used + self.missed) if used + self.missed else None


def accuracy(account: Account) -> float | None:
    """The part of what is decided that was used; None if nothing is."""
    decided = account.used + account.wasted
    return account.used / decided if decided else None
