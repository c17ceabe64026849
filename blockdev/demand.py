"""How many slots are wanted soon, from how many were reserved a moment ago. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from blockdev.types import SlotClass


@dataclass(slots=True)
class _Window:
    """The whole second that is under way, and the one before."""

    second: int = -2
    count: int = 0
    most: int = 0
    count_before: int = 0
    most_before: int = 0

    def roll(self, now: float) -> None:
        second = int(now)
        if second == self.second:
            return
        follows = second == self.second + 1
        self.count_before, self.most_before = (self.count, self.most) if follows else (0, 0)
        self.count = self.most = 0
        self.second = second


class Demand:
    """Reservations by slot class. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._windows = [_Window() for _ in SlotClass]

    def note(self, slot_class: SlotClass, held: int, now: float) -> None:
        """A slot is wanted.

        :param held: how many of its class are reserved or waited for with it: so many writers times their files
        """
        window = self._windows[slot_class]
        window.roll(now)
        window.count += 1
        window.most = max(window.most, held)

    def per_second(self, slot_class: SlotClass, now: float) -> int:
        """How many were wanted in this second or in the one before, whichever is more."""
        window = self._windows[slot_class]
        window.roll(now)
        return max(window.count, window.count_before)

    def at_once(self, slot_class: SlotClass, now: float) -> int:
        """The most that were held at a time in these two seconds."""
        window = self._windows[slot_class]
        window.roll(now)
        return max(window.most, window.most_before)
