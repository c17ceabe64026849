"""What the members of one host tell each other without waiting: a file in shared memory, a part for each seat.

A part is written by whoever holds its seat and read by the others. Parts of seats that nobody holds mean nothing: a
reader asks the locks who is there, so what a member said dies with it. A part, 128 KiB, numbers little-endian:

    0        16s  identity of the member's seat
    16       u64  regions it leases
    24       u64  bytes of payload in use in them
    32       u64  bytes of payload that its readers and writers hold
    40       u64  number of its last wish for a region; 0: none yet
    48       u64  number of the last wish that is over
    56       u64  more objects are pinned than have room: others take everything for pinned
    64       u64  objects ever written to the ring of uses
    72       u64  objects ever written to the ring of reports
    4096     16s  each pinned object; zeros: free
    69632    16s  each use of an object of another member, in a ring: its owner keeps what others use
    102400   16s  each report of damage in an object of another member, in a ring: its owner looks

Nothing here is a lock. A pin is seen in time because a slot rests between the end of its use and its next one for
longer than it takes to follow another member: who pins looks afterwards whether the object is still there.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from blockdev.lease import SEATS
from blockdev.types import KIB, NO_ID, ObjectId

PINS_MAX: Final = 4096
"""Objects of others that a member can pin at once; with more, every object counts as pinned."""
USES_MAX: Final = 2048
REPORTS_MAX: Final = 256

_PART: Final = 128 * KIB
_PINS: Final = 4 * KIB
_USES: Final = 68 * KIB
_REPORTS: Final = 100 * KIB
_ID: Final = len(NO_ID)
_HEADER: Final = struct.Struct("<16s8Q")
_REGIONS, _USED, _HELD, _WISH, _GRANTED, _OVERFLOW, _USES_SEEN, _REPORTS_SEEN = (16 + 8 * n for n in range(8))


@dataclass(frozen=True, slots=True)
class Figures:
    """What a member has. `used` and `held` are bytes of payload; `wish` is a wish that is not granted yet, or 0."""

    regions: int
    used: int
    held: int
    wish: int


class Board:
    """One member's view of the file; made by `open`, closed by `close`.

    :param others: the seats that other members hold now
    """

    def __init__(self, view: mmap.mmap, seat: int | None, others: Callable[[], Iterable[int]]) -> None:
        self._map = view
        self._base = _PART * seat if seat is not None else None
        self._others = others
        self._pinned: Counter[ObjectId] = Counter()
        self._places: dict[ObjectId, int] = {}
        self._vacant = list(range(PINS_MAX - 1, -1, -1))
        self._crowded: set[ObjectId] = set()
        self._uses_read: dict[int, int] = {}
        self._reports_read: dict[int, int] = {}

    @classmethod
    def open(cls, path: Path, seat: int | None, identity: UUID, others: Callable[[], Iterable[int]]) -> Board:
        """
        :param seat: ours, whose part is emptied; None for who only looks
        :raises OSError:
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(fd).st_size < SEATS * _PART:
                os.ftruncate(fd, SEATS * _PART)
            view = mmap.mmap(fd, SEATS * _PART)
        finally:
            os.close(fd)
        board = cls(view, seat, others)
        if seat is not None:
            view[_PART * seat : _PART * (seat + 1)] = identity.bytes + bytes(_PART - 16)
        return board

    def close(self) -> None:
        """Take back all that was said."""
        if self._base is not None and not self._map.closed:
            self._map[self._base : self._base + _PART] = bytes(_PART)
        self._map.close()

    # ── pins ─────────────────────────────────────────────────────────────────────────────────────────────

    def pin(self, object_id: ObjectId) -> None:
        """Say that an object of another member is read; look afterwards whether it is still there."""
        self._pinned[object_id] += 1
        if self._pinned[object_id] > 1:
            return
        if self._vacant:
            place = self._places[object_id] = self._vacant.pop()
            self._put_id(_PINS + place * _ID, object_id)
        else:
            self._crowded.add(object_id)
            self._put(_OVERFLOW, len(self._crowded))

    def unpin(self, object_id: ObjectId) -> None:
        """Undo one `pin`. :raises KeyError: there was none"""
        if not self._pinned[object_id]:
            del self._pinned[object_id]
            raise KeyError(object_id)
        self._pinned[object_id] -= 1
        if self._pinned[object_id]:
            return
        del self._pinned[object_id]
        place = self._places.pop(object_id, None)
        if place is None:
            self._crowded.discard(object_id)
            self._put(_OVERFLOW, len(self._crowded))
        else:
            self._put_id(_PINS + place * _ID, NO_ID)
            self._vacant.append(place)

    def is_pinned(self, object_id: ObjectId) -> bool:
        """Whether another member reads an object."""
        return any(self._holds(seat, object_id) for seat in self._others())

    def _holds(self, seat: int, object_id: ObjectId) -> bool:
        base = _PART * seat
        if self._get(seat, _OVERFLOW):
            return True
        first, end = base + _PINS, base + _PINS + PINS_MAX * _ID
        found = self._map.find(object_id, first, end)
        while found >= 0 and (found - first) % _ID:
            found = self._map.find(object_id, found + 1, end)
        return found >= 0

    # ── uses and reports ─────────────────────────────────────────────────────────────────────────────────

    def used(self, object_id: ObjectId) -> None:
        """Say that an object of another member was used. Of many, the last are known."""
        self._push(_USES_SEEN, _USES, USES_MAX, object_id)

    def report(self, object_id: ObjectId) -> None:
        """Say that an object of another member has wrong bytes."""
        self._push(_REPORTS_SEEN, _REPORTS, REPORTS_MAX, object_id)

    def take_uses(self) -> list[ObjectId]:
        """What others have used since the last call."""
        return self._take_all(self._uses_read, _USES_SEEN, _USES, USES_MAX)

    def take_reports(self) -> list[ObjectId]:
        """What others have reported since the last call."""
        return self._take_all(self._reports_read, _REPORTS_SEEN, _REPORTS, REPORTS_MAX)

    def _push(self, counter: int, ring: int, size: int, object_id: ObjectId) -> None:
        count = self._own(counter)
        self._put_id(ring + count % size * _ID, object_id)
        self._put(counter, count + 1)

    def _take_all(self, read: dict[int, int], counter: int, ring: int, size: int) -> list[ObjectId]:
        ids: list[ObjectId] = []
        for seat in self._others():
            count, before = self._get(seat, counter), read.get(seat, 0)
            read[seat] = count
            if count < before:  # another member has the seat now
                before = 0
            for number in range(max(before, count - size), count):
                at = _PART * seat + ring + number % size * _ID
                ids.append(ObjectId(bytes(self._map[at : at + _ID])))
        return ids

    # ── figures and wishes ───────────────────────────────────────────────────────────────────────────────

    def say(self, *, regions: int, used: int, held: int) -> None:
        """What we have; bytes of payload."""
        for offset, value in ((_REGIONS, regions), (_USED, used), (_HELD, held)):
            self._put(offset, value)

    def wish(self) -> None:
        """Ask for a region; nothing if that was asked already."""
        if not self.is_wishing:
            self._put(_WISH, self._own(_WISH) + 1)

    def wish_no_more(self) -> None:
        """A region came, or none is needed."""
        if self.is_wishing:
            self._put(_GRANTED, self._own(_WISH))

    @property
    def is_wishing(self) -> bool:
        """Whether we asked for a region and none came yet."""
        return self._own(_WISH) != self._own(_GRANTED)

    def figures(self) -> dict[int, Figures]:
        """What the other members have, by seat."""
        found: dict[int, Figures] = {}
        for seat in self._others():
            _, regions, used, held, wish, granted, *_ = _HEADER.unpack_from(self._map, _PART * seat)
            found[seat] = Figures(regions, used, held, wish if wish != granted else 0)
        return found

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────

    def _get(self, seat: int, offset: int) -> int:
        value: int = struct.unpack_from("<Q", self._map, _PART * seat + offset)[0]
        return value

    def _own(self, offset: int) -> int:
        assert self._base is not None
        return self._get(self._base // _PART, offset)

    def _put(self, offset: int, value: int) -> None:
        assert self._base is not None
        struct.pack_into("<Q", self._map, self._base + offset, value)

    def _put_id(self, offset: int, object_id: ObjectId) -> None:
        assert self._base is not None
        self._map[self._base + offset : self._base + offset + _ID] = object_id
