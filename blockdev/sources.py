"""Where times, stamps and identities come from."""

from __future__ import annotations

from collections.abc import Callable

from blockdev.stamps import next_stamp
from blockdev.types import NO_ID, Descriptor, ObjectId, Stamp


class Sources:
    """For one writing member.

    :param wall_ns: the wall clock, ns since 1970; may jump
    :param entropy: gives that many random bytes
    :param high: the largest stamp seen so far
    """

    def __init__(self, wall_ns: Callable[[], int], entropy: Callable[[int], bytes], high: Stamp) -> None:
        self.wall_ns = wall_ns
        self._entropy = entropy
        self._high = high

    def new_id(self) -> ObjectId:
        """An identity that no object had."""
        return ObjectId(self._entropy(len(NO_ID)))

    def next_stamp(self, *seen: Descriptor | None) -> Stamp:
        """A stamp later than every one so far."""
        largest = max([self._high, *(record.stamp for record in seen if record is not None)])
        self._high = next_stamp(self.wall_ns(), largest)
        return self._high
