"""Between the kernel and pyfuse3: requests that the lane does not answer, and pyfuse3's answers.

pyfuse3 takes one end of a socket for its device. Its answers are passed back by the trio thread.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from blockdev.types import MIB, PAGE
from kvfs.fuse import wire
from kvfs.fuse.window import Window
from kvfs.fuse.wire import Handshake, Opcode, Request

MAX_BACKGROUND = 128
"""Requests in flight that nobody waits for."""
_SOCKET_BYTES = 8 * MIB
_SO_SNDBUFFORCE = 32

Buffer = memoryview | bytes
Answer = Callable[[Sequence[Buffer]], None]
"""Gives the kernel an answer; from any thread."""


class _BeforeWaiting(trio.abc.Instrument):
    """Calls a function whenever the trio thread is about to wait: what pyfuse3 has just answered need not first make
    it wake up again, which takes longer than looking.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def before_io_wait(self, timeout: float) -> None:
        if timeout:  # else it only looks what else has come, and finds our socket by itself
            self._function()


class Relay:
    """Passes on and back.

    :param max_pages: of a READ or WRITE
    :param backing_of: what the kernel may read by itself for an open file; see `wire.with_backing`. None: nothing, ever
    :ivar device: what pyfuse3 is to take for /dev/fuse
    """

    def __init__(self, answer: Answer, max_pages: int, backing_of: Callable[[int], int] | None) -> None:
        self._answer = answer
        self._max_pages = max_pages
        self._backing_of = backing_of
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        room = min(_enlarge(self._ours), _enlarge(theirs))
        self._window = Window(room // 2, self._ours.send)
        self.device = f"/dev/fd/{theirs.detach()}"
        self._handshake: Handshake | None = None
        self._answers = bytearray(max_pages * PAGE + PAGE)
        self._passing = trio.CancelScope()
        self._releases: set[int] = set()
        self._opens: set[int] = set()

    @property
    def has_releases(self) -> bool:
        """Whether pyfuse3 has not yet closed a file of which the kernel believes that it is closed: what comes after
        that must not overtake it. From any thread.
        """
        return bool(self._releases)

    def pass_on(self, request: Request, message: bytes) -> None:
        """Have pyfuse3 answer a request, now or when its turn has come. From any thread.

        :raises OSError: it was shut
        """
        if request.opcode == Opcode.INTERRUPT:
            return  # no request of ours can be cut short, nor one of pyfuse3's
        if request.opcode == Opcode.INIT:
            self._handshake = Handshake.of(message)
            message = self._handshake.narrowed()
        if request.opcode == Opcode.RELEASE:
            self._releases.add(request.unique)
        if self._backing_of is not None and request.opcode in (Opcode.OPEN, Opcode.CREATE):
            self._opens.add(request.unique)
        cost = len(message)
        if request.opcode in (Opcode.READDIR, Opcode.READDIRPLUS):
            message = wire.limited_listing(message)
            cost = wire.DIRECTORY_BYTES
        self._window.send(request.unique if wire.is_answered(request.opcode) else None, message, cost)

    async def pass_answers(self) -> None:
        """Pass pyfuse3's answers back to the kernel, until `retire`."""
        early = _BeforeWaiting(self._pass_back_early)
        trio.lowlevel.add_instrument(early)
        try:
            with self._passing:
                while True:
                    await trio.lowlevel.wait_readable(self._ours)
                    self._pass_back()
        finally:
            with suppress(KeyError):  # trio drops one that failed, and says so
                trio.lowlevel.remove_instrument(early)

    def _pass_back_early(self) -> None:
        if not self._window.is_empty:
            self._pass_back()

    def _pass_back(self) -> None:
        while True:
            try:
                size = self._ours.recv_into(self._answers, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not size:
                return
            answer: Buffer = memoryview(self._answers)[:size]
            unique = wire.unique_of(answer)
            self._releases.discard(unique)
            if unique in self._opens and self._backing_of is not None:
                self._opens.discard(unique)
                answer = wire.with_backing(answer, self._backing_of)
            if self._handshake is not None and unique == self._handshake.unique:
                answer = self._handshake.widened(
                    answer, max_pages=self._max_pages, page=PAGE, max_background=MAX_BACKGROUND,
                    passthrough=self._backing_of is not None,
                )  # fmt: skip
            self._answer([answer])
            with suppress(OSError):  # the socket was closed
                self._window.answered(unique)

    def retire(self) -> None:
        """Pass back what there is, and no more."""
        self._passing.cancel()
        self._pass_back()

    def shut(self) -> None:
        """Pass nothing on any more."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back. No thread may be in `pass_on`."""
        self._ours.close()


def _enlarge(end: socket.socket) -> int:
    """Give a socket as large a buffer as we may; its bytes."""
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):  # the first only as root
        try:
            end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
            break
        except PermissionError:
            continue
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
