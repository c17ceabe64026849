"""What a mount is asked for, for traces: without contents, and without names that could be guessed back.

Names leave the mount only as hashes with a key that is made for each recording and kept nowhere. Whoever records may be
slow: what does not fit meanwhile is counted and left out, and nobody waits. Pure.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from kvfs.names import kind_of
from kvfs.predecessors import NONE, block_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockdev.types import Descriptor

log = logging.getLogger(__name__)

Json = dict[str, Any]

EVENTS = 1 << 15
"""That wait to be taken, at most, each of about half a KiB of memory."""
_KEY_SIZE = 32
_NAME, _BLOCK, _READER = b"name", b"block", b"reader"
"""What a hash is of, so that those of different things cannot be compared."""


class Recording:
    """Of one mount, for one who takes it. Everything here needs custody of the mount's state.

    :param clock: seconds, from any thread
    :param limit: events that may wait
    :ivar recorded: events so far
    :ivar lost: events left out so far
    """

    def __init__(self, clock: Callable[[], float], limit: int = EVENTS) -> None:
        self._clock = clock
        self._limit = limit
        self._began = clock()
        self._key = os.urandom(_KEY_SIZE)
        self._waiting: deque[Json] = deque()
        self._missing = 0
        self.recorded = 0
        self.lost = 0

    def note(self, event: str, directory: bytes, name: bytes, thread: int | None, what: Json) -> None:
        """Something happened to a name. :param what: is added to the event as it is"""
        if len(self._waiting) >= self._limit:
            self._missing += 1
            self.lost += 1
            return
        self._tell_missing()
        line = {
            "t": self._now(),
            "event": event,
            "name": self._hash(_NAME, directory + name),
            "block": self._hash(_BLOCK, block_id(name)),
            "kind": kind_of(name),
        }
        if thread is not None:
            line["reader"] = self._hash(_READER, thread.to_bytes(8, "big"))
        if "before" in what:
            before = what["before"]
            what = what | {"before": None if before == NONE else self._hash(_BLOCK, before)}
        self.recorded += 1
        self._waiting.append(line | what)

    def take(self, most: int) -> list[Json]:
        """Up to so many events, the oldest first; behind those that were followed by ones left out, a gap."""
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        if not self._waiting:
            self._tell_missing()
            taken += self._waiting
            self._waiting.clear()
        return taken

    def _tell_missing(self) -> None:
        """A gap, where the events are missing."""
        if self._missing:
            self._waiting.append({"t": self._now(), "event": "gap", "lost": self._missing})
            self._missing = 0

    def _now(self) -> float:
        return round(self._clock() - self._began, 6)

    def _hash(self, kind: bytes, value: bytes) -> str:
        return blake2b(value, digest_size=8, key=self._key, person=kind).hexdigest()


class Recorder:
    """Tells all recordings of a mount what happens. Who calls looks first whether there are `recordings`."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []

    def looked_up(self, directory: bytes, name: bytes, thread: int, size: int | None) -> None:
        """:param size: bytes; None if there is no such file"""
        self._note("lookup", directory, name, thread, {"known": size is not None, "size": size})

    def opened(self, record: Descriptor, thread: int, *, hit: bool | None) -> None:
        """To be read. :param hit: all of it is in memory; None if that is not known"""
        self._note("open", record.directory, record.name, thread, {"size": record.size, "hit": hit})

    def published(self, record: Descriptor, writer: int) -> None:
        """A new version of a file is there."""
        what = {"size": record.size, "before": record.predecessor}
        self._note("publish", record.directory, record.name, writer, what)

    def removed(self, record: Descriptor) -> None:
        """Somebody here removed a file."""
        self._note("remove", record.directory, record.name, None, {"size": record.size})

    def gone(self, record: Descriptor) -> None:
        """A file left the pool without being asked to."""
        self._note("gone", record.directory, record.name, None, {"size": record.size})

    def _note(self, event: str, directory: bytes, name: bytes, thread: int | None, what: Json) -> None:
        for recording in [*self.recordings]:
            try:
                recording.note(event, directory, name, thread, what)
            except Exception:
                log.exception("a recording failed, and goes on without events; requests are served")
                self.recordings.remove(recording)
