"""Where requests go that are no READ or WRITE: to the desk, to a task of our own, or to pyfuse3.

A thread of the lane that finds the trio thread waiting answers what the desk can answer at once. While the trio thread is
at work, requests queue up for it, and it does the same when it gets to them; then those that need waiting become tasks.
What neither serves goes to pyfuse3. A RELEASE, for which nobody waits, is over before what the kernel sends after it: when
it has to queue, everything queues behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from kvfs.fuse.custody import Custody
from kvfs.fuse.relay import Answer, Relay
from kvfs.fuse.wire import Request

Soon = Callable[..., bool]
"""Has the trio thread call something, with arguments; False if it has ended. From any thread."""


class LaneDesk(Protocol):
    """Answers requests; `kvfs.fuse.desk.Desk` is it. Both kinds of answers need custody of the mount's state."""

    def serves(self, opcode: int) -> bool:
        """Whether it may have an answer to such a request at once."""

    def answer(self, request: Request, message: bytes) -> bytes | None:
        """The answer; None if that takes waiting, and then nothing was done."""

    def attends(self, opcode: int) -> bool:
        """Whether it has an answer that takes a task."""

    async def attend(self, request: Request, message: bytes) -> bytes:
        """The answer, in a task."""


class Reception:
    """Takes requests in the kernel's order.

    :param answer: gives the kernel an answer; from any thread
    :ivar custody: of the mount's state, to be kept by the trio thread from before `begin` until all tasks have ended
    """

    def __init__(self, desk: LaneDesk, relay: Relay, answer: Answer, soon: Soon) -> None:
        self._desk = desk
        self._relay = relay
        self._answer = answer
        self._soon = soon
        self.custody = Custody()
        self._queue: deque[tuple[Request, bytes]] = deque()
        self._is_due = False
        self._nursery: trio.Nursery | None = None

    # --- in a thread of the lane, one at a time

    def take(self, request: Request, message: bytes) -> bool:
        """Have a request answered; whether it was at once.

        :raises OSError: pyfuse3 does not serve any more
        """
        opcode = request.opcode
        if self._queue or self._desk.attends(opcode):
            self._queue_up(request, message)
            return False
        if not self._desk.serves(opcode) or self._relay.has_releases:
            self._relay.pass_on(request, message)
            return False
        with self.custody.taken() as mine:
            if mine and self._nursery is not None and self._answered(request, message):
                return True
        if mine:
            self._relay.pass_on(request, message)
        else:
            self._queue_up(request, message)
        return False

    def _queue_up(self, request: Request, message: bytes) -> None:
        self._queue.append((request, message))
        if not self._is_due:
            self._is_due = True
            self._soon(self._work_off)

    # --- with custody

    def _answered(self, request: Request, message: bytes) -> bool:
        answer = self._desk.answer(request, message)
        if answer is not None:
            self._answer([answer])
        return answer is not None

    # --- in the trio thread

    def begin(self, nursery: trio.Nursery) -> None:
        """Answer requests, until `retire`. :param nursery: for those that take tasks"""
        self._nursery = nursery

    def retire(self) -> None:
        """Begin with nothing more; what has begun is answered."""
        self._nursery = None

    def _work_off(self) -> None:
        self._is_due = False
        while self._queue:
            request, message = self._queue.popleft()
            if self._nursery is None:
                continue
            if self._desk.attends(request.opcode):
                self._nursery.start_soon(self._attend, request, message)
            elif (
                not self._desk.serves(request.opcode)
                or self._relay.has_releases
                or not self._answered(request, message)
            ):
                with suppress(OSError):  # pyfuse3 does not serve any more
                    self._relay.pass_on(request, message)

    async def _attend(self, request: Request, message: bytes) -> None:
        self._answer([await self._desk.attend(request, message)])
