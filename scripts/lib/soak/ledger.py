"""What the processes of a soak tell each other, in shared memory: what was stored, who is disturbed, who is in a call.

A row of 64-bit numbers each, written by one process at a time and read by all; a number is read and written whole.
Times are nanoseconds of the system's monotonic clock, which all processes share; 0 is never.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

from scripts.lib.soak.contents import Allowed

NANO = 10**9
VISIBLE_NS = 2 * NANO
"""After which what one member stored must be seen by the others."""
RECOVERING_NS = 5 * NANO
"""For so long after it was stopped or mounted again, a member may not have caught up."""
THREADS = 4
"""That use one mount."""

_OF_RUN = 2
_OF_MEMBER = 3
_OF_THREAD = 3
_OF_FILE = 5


@dataclass(frozen=True, slots=True)
class Stored:
    """When a file was last known to be there, and who stored it.

    :ivar at: 0 if it is not known to be there
    """

    at: int
    by: int


class Ledger:
    """The table, mapped from a file.

    :raises OSError: the file cannot be mapped
    """

    def __init__(self, path: Path, members: int, files: int) -> None:
        self.members = members
        self._member_row = _OF_RUN
        self._thread_row = self._member_row + members * _OF_MEMBER
        self._file_row = self._thread_row + members * THREADS * _OF_THREAD
        size = 8 * (self._file_row + files * _OF_FILE)
        with path.open("a+b") as file:
            file.truncate(size)
            self._table = memoryview(mmap.mmap(file.fileno(), size)).cast("Q")

    # ── the run ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ending(self) -> bool:
        return bool(self._table[0])

    def end(self) -> None:
        """Have all workers end."""
        self._table[0] = 1

    def pause_all(self, *, on: bool) -> None:
        self._table[1] = on

    # ── members ─────────────────────────────────────────────────────────────────────────────────────────

    def pause(self, member: int, *, on: bool) -> None:
        """Have nobody begin to use a mount."""
        self._table[self._member(member)] = on

    def disturb(self, member: int) -> None:
        """From now on calls on its mount may take long and fail."""
        self._table[self._member(member) + 2] = 0
        self._table[self._member(member) + 1] = now()

    def calm(self, member: int) -> None:
        self._table[self._member(member) + 2] = now()

    def disturbed(self, member: int, begun: int, ended: int) -> bool:
        """Whether it was between these times, or just before."""
        row = self._member(member)
        since, until = self._table[row + 1], self._table[row + 2]
        return bool(since) and since <= ended and (not until or until + RECOVERING_NS >= begun)

    def disturbances(self, begun: int, ended: int) -> list[int]:
        return [member for member in range(self.members) if self.disturbed(member, begun, ended)]

    def _member(self, member: int) -> int:
        return self._member_row + member * _OF_MEMBER

    # ── threads ─────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, member: int, thread: int) -> bool:
        """Begin to use the mount, unless it is paused: said first and asked then, so that no pause overlooks it."""
        row = self._thread(member, thread)
        self._table[row] = 1
        if self._table[1] or self._table[self._member(member)]:
            self._table[row] = 0
            return False
        return True

    def leave(self, member: int, thread: int) -> None:
        self._table[self._thread(member, thread)] = 0

    def is_idle(self, member: int) -> bool:
        return not any(self._table[self._thread(member, thread)] for thread in range(THREADS))

    def calling(self, member: int, thread: int, kind: int) -> int:
        """A call begins; its time."""
        row = self._thread(member, thread)
        self._table[row + 2] = kind
        self._table[row + 1] = begun = now()
        return begun

    def called(self, member: int, thread: int) -> None:
        self._table[self._thread(member, thread) + 1] = 0

    def in_call(self, member: int, thread: int) -> tuple[int, int]:
        """Since when (0 if not at all), and which kind of call."""
        row = self._thread(member, thread)
        return self._table[row + 1], self._table[row + 2]

    def _thread(self, member: int, thread: int) -> int:
        return self._thread_row + (member * THREADS + thread) * _OF_THREAD

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────

    def newest(self, file: int) -> int:
        """The newest version that anybody began to write."""
        return self._table[self._file(file)]

    def begin(self, file: int, version: int) -> None:
        self._table[self._file(file)] = version

    def acknowledge(self, file: int, version: int, member: int) -> None:
        """It is stored."""
        row = self._file(file)
        self._set_floor(row, version)
        self._table[row + 4] = member
        self._table[row + 3] = now()

    def removing(self, file: int) -> None:
        """It is about to be removed."""
        self._table[self._file(file) + 3] = 0

    def removed(self, file: int) -> None:
        """No version that was ever stored may be seen again."""
        self._set_floor(self._file(file), self.newest(file) + 1)

    def stored(self, file: int) -> Stored:
        row = self._file(file)
        return Stored(self._table[row + 3], self._table[row + 4])

    def is_gone(self, file: int, stored: Stored) -> bool:
        """Note that it was there and is not any more. False if somebody else has noted that, or changed it."""
        row = self._file(file) + 3
        if not stored.at or self._table[row] != stored.at:
            return False
        self._table[row] = 0
        return True

    def allowed_from(self, file: int, member: int) -> int:
        """The least version that who asks now on this member's mount may be given; before it asks."""
        row = self._file(file)
        floor = self._table[
            row + 1
        ]  # read before its time and written after it: never taken for older than it is
        asked = now()
        known = asked - self._table[row + 2]
        if self._table[row + 4] == member or (
            known > VISIBLE_NS and not self.disturbed(member, asked, asked)
        ):
            return floor
        return 0

    def allowed(self, file: int, least: int) -> Allowed:
        """After the answer."""
        return Allowed(least, self.newest(file))

    def _set_floor(self, row: int, version: int) -> None:
        self._table[row + 2] = now()
        self._table[row + 1] = version

    def _file(self, file: int) -> int:
        return self._file_row + file * _OF_FILE


def now() -> int:
    return time.monotonic_ns()
