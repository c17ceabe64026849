"""Calls into a mount, timed: how many of each kind, and the slowest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from scripts.lib.soak.ledger import NANO, Ledger, now

STALL_SECONDS = 5.0
"""A call that takes longer has stalled, while all members are well."""
DISTURBED_SECONDS = 20.0
"""The same while another member is stopped, killed or being mounted again."""


class Call(IntEnum):
    """Kinds of calls, named after the system calls."""

    ACCESS = 0
    MKDIR = 1
    OPEN = 2
    WRITE = 3
    FSYNC = 4
    CLOSE = 5
    RENAME = 6
    READ = 7
    UTIME = 8
    UNLINK = 9
    LIST = 10
    STATVFS = 11
    STAT = 12


class When(IntEnum):
    """What was the matter while a call was under way."""

    CALM = 0
    OTHERS = 1
    """Another member was disturbed."""
    OWN = 2
    """The mount itself was."""


class Calls:
    """Those of one thread.

    :param on_stall: told of a call that took too long: its kind, seconds, and when
    """

    def __init__(
        self, ledger: Ledger, member: int, thread: int, on_stall: Callable[[Call, float, When], None]
    ) -> None:
        self._ledger = ledger
        self._member = member
        self._thread = thread
        self._on_stall = on_stall
        self.counts: Counter[str] = Counter()
        self.slowest: dict[When, dict[str, float]] = {when: {} for when in When}

    @contextmanager
    def timed(self, kind: Call) -> Iterator[None]:
        """The block is one call."""
        begun = self._ledger.calling(self._member, self._thread, kind)
        try:
            yield
        finally:
            self._ledger.called(self._member, self._thread)
            self._note(kind, begun, now())

    def _note(self, kind: Call, begun: int, ended: int) -> None:
        seconds = (ended - begun) / NANO
        when = when_of(self._ledger.disturbances(begun, ended), self._member)
        name = kind.name.lower()
        self.counts[name] += 1
        slowest = self.slowest[when]
        slowest[name] = max(slowest.get(name, 0.0), seconds)
        if too_long(seconds, when):
            self._on_stall(kind, seconds, when)

    @contextmanager
    def opened(self, path: str, flags: int) -> Iterator[int]:
        """A descriptor, closed at the end."""
        with self.timed(Call.OPEN):
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            yield descriptor
        finally:
            with self.timed(Call.CLOSE):
                os.close(descriptor)

    def exists(self, path: str) -> bool:
        """access(2), and stat(2) to tell what is absent from what is broken, which Python's access does not.

        :raises OSError: neither there nor absent
        """
        with self.timed(Call.ACCESS):
            if os.access(path, os.F_OK):
                return True
        try:
            with self.timed(Call.STAT):
                os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            return False
        return True


def when_of(disturbed: list[int], member: int) -> When:
    """What was the matter for a call on this member's mount."""
    if member in disturbed:
        return When.OWN
    return When.OTHERS if disturbed else When.CALM


def too_long(seconds: float, when: When) -> bool:
    """Whether a call has stalled. While its own mount is stopped, nothing can be said."""
    bounds = {When.CALM: STALL_SECONDS, When.OTHERS: DISTURBED_SECONDS}
    return when in bounds and seconds > bounds[when]
