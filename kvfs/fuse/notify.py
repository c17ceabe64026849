"""Tells the kernel what to forget, from a thread of its own.

What it forgets is an inode's attributes: whoever names the file next makes the kernel ask, and is told that it is not
there. The name itself could be forgotten too, but for that the kernel takes the directory's lock, which a rename or
create holds while it waits for our answer. If we are killed at that moment, our thread waits in the kernel for the
client, the client for us, and /dev/fuse is not closed until our last thread is gone: both are stuck for good (seen).
Forgetting attributes takes no such lock.

Even so nothing that answers requests waits for it: it leaves a note here. The notes are bounded and each is kept once;
what does not fit is counted and dropped, which costs at most that the kernel believes in a file for a while. Data are
never wrong for it, because an open checks what it opens.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio

log = logging.getLogger(__name__)

_PAUSE = 0.01
"""Seconds between looks whether the queue has become shorter: it empties about 700 in that time."""
_JOIN = 5.0
"""Seconds that the thread may take to end; one stuck in the kernel ends with the mount."""


@dataclass(frozen=True, slots=True)
class NotifyStatistics:
    queued: int
    sent: int
    unknown: int
    """The kernel did not know the inode."""
    failed: int
    dropped: int
    """Did not fit the queue."""


class Notifier:
    """A bounded queue of inodes whose attributes the kernel is to forget, and the thread that empties it.

    :param send: tells the kernel; raises OSError
    :param limit: most inodes that wait
    """

    def __init__(self, send: Callable[[int], None], limit: int = 65536) -> None:
        self._limit = limit
        self._send = send
        self._waiting: OrderedDict[int, None] = OrderedDict()
        self._condition = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvfs-notify", daemon=True)
        self._sent = self._unknown = self._failed = self._dropped = 0

    def start(self) -> None:
        self._thread.start()

    def attributes(self, inode: int) -> None:
        """Have the kernel ask again about an inode. Never waits."""
        with self._condition:
            if self._closing or inode in self._waiting:
                return
            if len(self._waiting) >= self._limit:
                self._dropped += 1
                return
            self._waiting[inode] = None
            self._condition.notify()

    async def has_room(self) -> None:
        """Wait, at least for one checkpoint, until half of the queue is empty."""
        await trio.lowlevel.checkpoint()
        while len(self._waiting) > self._limit // 2:  # noqa: ASYNC110 - emptied by a thread that wakes nobody
            await trio.sleep(_PAUSE)

    def close(self) -> None:
        """Send nothing any more; to be called before the mount's connection goes."""
        with self._condition:
            self._closing = True
            self._waiting.clear()
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN)

    def statistics(self) -> NotifyStatistics:
        with self._condition:
            return NotifyStatistics(
                len(self._waiting), self._sent, self._unknown, self._failed, self._dropped
            )

    def _run(self) -> None:
        while (note := self._next()) is not None:
            try:
                self._send(note)
            except FileNotFoundError:
                self._unknown += 1
            except OSError as error:
                self._failed += 1
                log.debug("the kernel did not take a notification: %s", error)
            else:
                self._sent += 1

    def _next(self) -> int | None:
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._closing)
            return None if self._closing else self._waiting.popitem(last=False)[0]
