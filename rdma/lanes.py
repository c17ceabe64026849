"""What is asked of one device next: by priority, then by deadline, within a bound of bytes under way. Pure.

One lane per device. What waits costs nothing; what is under way counts its bytes until it has ended. Prefetch gets at
most half of them, so that who asks because he needs it finds room at once. What is only of use together with others gets
twice as many: a device is faster the more it has to do, and nobody waits for the first of them.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Generic, Protocol, TypeVar


class Priority(IntEnum):
    """Why bytes are asked for; the smaller goes first."""

    DEMAND = 0
    """Somebody waits for them."""
    PREFETCH = 1
    """Somebody probably will."""


_TOGETHER: Final = 2
"""Times the bound of a lane, for what is wanted together."""


class Urgent(Protocol):
    """What a lane orders. Its urgency may change while it waits: it is then put in again.

    :ivar size: bytes
    :ivar deadline: a moment of the clock that the lane's owner reads
    :ivar is_waiting: whether it is still to be begun
    :ivar together: whether it is of no use before the last of those that it was asked for with
    """

    @property
    def size(self) -> int: ...

    @property
    def priority(self) -> Priority: ...

    @property
    def deadline(self) -> float: ...

    @property
    def is_waiting(self) -> bool: ...

    @property
    def together(self) -> bool: ...


T = TypeVar("T", bound=Urgent)


@dataclass(slots=True)
class _Running:
    bytes: int = 0
    count: int = 0


@dataclass(slots=True)
class Lane(Generic[T]):
    """:ivar limit: most bytes under way, twice as many with what is wanted together; a single one that is larger goes alone"""

    limit: int
    _queue: list[tuple[Priority, float, int, T]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _running: dict[Priority, _Running] = field(default_factory=lambda: {one: _Running() for one in Priority})

    @property
    def bytes_running(self) -> int:
        return sum(one.bytes for one in self._running.values())

    @property
    def running(self) -> int:
        return sum(one.count for one in self._running.values())

    def put(self, item: T) -> None:
        """Let it wait for its turn; once more when its urgency has changed."""
        heapq.heappush(self._queue, (item.priority, item.deadline, next(self._order), item))

    def take(self) -> tuple[T, Priority] | None:
        """What may begin now, and as what it counts until `ended`; None if that is nothing.

        The caller makes it one that does not wait any more before he asks again.
        """
        while self._queue:
            priority, deadline, _, item = self._queue[0]
            if not item.is_waiting or (priority, deadline) != (item.priority, item.deadline):
                heapq.heappop(self._queue)  # it left or has begun, or was put in again
                continue
            if not self._has_room(item.size, priority, self.limit * (_TOGETHER if item.together else 1)):
                return None  # whoever comes later is less urgent, and must not overtake
            heapq.heappop(self._queue)
            self._running[priority].bytes += item.size
            self._running[priority].count += 1
            return item, priority
        return None

    def ended(self, size: int, priority: Priority) -> None:
        """What `take` gave is not under way any more."""
        self._running[priority].bytes -= size
        self._running[priority].count -= 1

    def _has_room(self, size: int, priority: Priority, limit: int) -> bool:
        if not self.running:
            return True
        if self.bytes_running + size > limit:
            return False
        ahead = self._running[Priority.PREFETCH]
        return priority is Priority.DEMAND or not ahead.count or ahead.bytes + size <= self.limit // 2
