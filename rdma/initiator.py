"""A namespace over NVMe/RDMA, without the kernel: its bytes go between the target and the caller's memory, and nowhere else.

Has what `blockdev.device.Device` asks for; its errors are those of `rdma.errors`, to be translated where the two meet.

When anything of a session breaks, all of it is torn down, and another one is made, with growing pauses, for as long as the
initiator is open; of several ways to the target, over the next one. What must always hold:

- When a call returns or raises, nothing is read from or written into its memory any more. A command that is not answered in
  time is aborted; if it is not answered then either, its session is torn down, which fences it.
- A read whose connection broke is sent again, within its deadline. A write is not: the target may still do the first one,
  after something newer; its caller decides.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from rdma import nvme_wire as wire
from rdma.errors import (
    CommandFailed,
    RdmaError,
    TransportBroken,
    TransportClosed,
    TransportError,
    TransportTimeout,
)
from rdma.host_memory import PAGE, address_of
from rdma.nvme_queue import Call
from rdma.nvme_status import INVALID_FIELD, INVALID_OPCODE
from rdma.session import Session, SessionOptions, lent, start_session

if TYPE_CHECKING:
    from uuid import UUID

    from rdma.bring_up import Identity
    from rdma.cuda import GpuSpan
    from rdma.nvme_queue import Queue
    from rdma.transport import Fabric, Registration

log = logging.getLogger(__name__)

_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before another attempt to connect; the last one repeats."""
_NOT_DONE: Final = frozenset({INVALID_OPCODE[:2], INVALID_FIELD[:2]})
"""With which a controller refuses a command that it does not have, or not so."""
_BLOCKS_MAX: Final = 1 << 16
"""Logical blocks that one command can name."""

Make = Callable[[int, int, int, wire.Sgl], wire.Command]


@dataclass(frozen=True, slots=True)
class InitiatorOptions:
    """:ivar io_timeout: seconds that an operation may take
    :ivar abort_timeout: seconds that a command may take to end after it was aborted
    """

    session: SessionOptions = field(default_factory=SessionOptions)
    io_timeout: float = 5.0
    abort_timeout: float = 0.5


@dataclass(frozen=True, slots=True)
class Piece:
    """What one command does of an operation.

    :ivar start: where in the buffer, in bytes
    """

    block: int
    count: int
    start: int


def pieces(offset: int, length: int, block_size: int, limit: int) -> Iterator[Piece]:
    """An operation, in pieces of at most `limit` bytes; 0: as many as a command can name."""
    most = min(limit or wire.KEYED_MAX, wire.KEYED_MAX, _BLOCKS_MAX * block_size) // block_size
    first, count = offset // block_size, length // block_size
    for at in range(0, count, most):
        yield Piece(first + at, min(most, count - at), at * block_size)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A command under way."""

    queue: Queue
    command: wire.Command
    call: Call


class Initiator:
    """See the module; made by `open_initiator`."""

    is_file = False

    def __init__(
        self, ways: Sequence[Fabric], who: Identity, wanted: int | UUID, options: InitiatorOptions
    ) -> None:
        self.name = f"{who.subsystem}/{wanted}"
        """For people."""
        self.size = 0
        self.block_size = PAGE
        self.sessions = 0
        """How many there have been."""
        self._ways = ways
        self._way = 0
        """Which of them is used, or tried next."""
        self._who = who
        self._wanted = wanted
        self._options = options
        self._session: Session | None = None
        self._refuses_discard = False
        self._changed = trio.Event()
        self._closed = False

    # ── a device ─────────────────────────────────────────────────────────────────────────────────────────

    async def read_into(self, offset: int, buffer: memoryview | GpuSpan) -> None:
        """:raises ValueError, CommandFailed, TransportError:
        :raises MemoryRefused: the network card does not reach it
        """
        self._check(offset, buffer, fill=True)
        await self._move("read", wire.read, offset, buffer)

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        """:raises ValueError, CommandFailed, TransportError:"""
        self._check(offset, buffer, fill=False)
        await self._move("write", wire.write, offset, buffer)

    async def flush(self) -> None:
        """:raises CommandFailed, TransportError:"""
        await self._operate("flush", lambda session: [wire.flush(session.nsid)])

    async def discard(self, offset: int, length: int) -> None:
        """Does nothing where the controller says that it cannot, or refused it once: to write zeros instead would cost what was
        to be saved.

        :raises ValueError, CommandFailed, TransportError:
        """
        self._check_span(offset, length)
        blocks = wire.BlockRange(offset // self.block_size, length // self.block_size)
        session = self._session
        cannot = session is not None and not session.found.controller.can_deallocate
        if not length or cannot or self._refuses_discard:
            self._check_open()
            await trio.lowlevel.checkpoint()
            return
        data = wire.pack_ranges([blocks])
        with ExitStack() as lending:

            def command(session: Session) -> list[wire.Command]:
                sgl, _ = lending.enter_context(lent(session.fabric, data, len(data)))
                return [wire.deallocate(session.nsid, 1, sgl)]

            try:
                await self._operate("discard", command)
            except CommandFailed as error:
                if error.status[:2] not in _NOT_DONE:
                    raise
                log.info("%s: what is not needed any more stays as it is: %s", self.name, error)
                self._refuses_discard = True

    @property
    def ways(self) -> int:
        """How many there are to the target."""
        return len(self._ways)

    @property
    def subsystem(self) -> str:
        """The target's qualified name."""
        return self._who.subsystem

    @property
    def is_connected(self) -> bool:
        return self._session is not None and not self._session.broken.is_set()

    def give_up(self) -> None:
        """Refuse everything from here on; what is under way ends with TransportClosed."""
        self._closed = True
        if self._session is not None:
            self._session.tear_down(TransportClosed(f"{self.name} was closed"))
        self._change(None)

    async def aclose(self) -> None:
        """As `give_up`."""
        self.give_up()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _check(self, offset: int, buffer: memoryview | GpuSpan, *, fill: bool) -> None:
        self._check_span(offset, buffer.nbytes)
        if not isinstance(buffer, memoryview):
            return
        if not buffer.c_contiguous or buffer.itemsize != 1 or buffer.ndim != 1:
            raise ValueError(f"{self.name}: the buffer is not one contiguous run of bytes")
        if fill and buffer.readonly:
            raise ValueError(f"{self.name}: the buffer to read into is read-only")
        if buffer.nbytes and address_of(buffer) % PAGE:
            raise ValueError(f"{self.name}: the buffer does not begin on a page in memory")

    def _check_span(self, offset: int, length: int) -> None:
        if offset % self.block_size or length % self.block_size:
            raise ValueError(
                f"{self.name}: {length} bytes at {offset} are not whole blocks of {self.block_size}"
            )
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError(f"{self.name}: {length} bytes at {offset} are not inside its {self.size} bytes")

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosed(f"{self.name} is closed")

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────

    async def _move(self, what: str, make: Make, offset: int, buffer: memoryview | GpuSpan) -> None:
        if not buffer.nbytes:
            self._check_open()
            await trio.lowlevel.checkpoint()
            return
        registered: list[Registration] = []

        def commands(session: Session) -> Iterator[wire.Command]:
            registration = session.fabric.register(buffer)
            registered.append(registration)
            limit = session.found.controller.transfer_limit
            for piece in pieces(offset, buffer.nbytes, self.block_size, limit):
                length = piece.count * self.block_size
                sgl = wire.Keyed(registration.address + piece.start, length, registration.key)
                yield make(session.nsid, piece.block, piece.count, sgl)

        try:
            await self._operate(what, commands)
        finally:
            for registration in registered:
                registration.close()

    async def _operate(self, what: str, commands: Callable[[Session], Iterable[wire.Command]]) -> None:
        """Do all of these, at once, over all queues; not cut short by cancellation. A read is tried again."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        deadline = trio.current_time() + self._options.io_timeout
        while True:
            session = self._session
            if session is None or session.broken.is_set():
                session = await self._ready(deadline)
            try:
                await self._send(what, session, commands(session), deadline)
            except TransportBroken:
                if what != "read":
                    raise
                self._check_open()
                # For who takes note that the session is over.
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                return

    async def _ready(self, deadline: float) -> Session:
        """The session, when there is one."""
        with trio.CancelScope(deadline=deadline, shield=True):
            while self._session is None or self._session.broken.is_set():
                self._check_open()
                await self._changed.wait()
        self._check_open()
        if self._session is None or self._session.broken.is_set():
            raise TransportTimeout(f"{self.name}: no connection in {self._options.io_timeout} s")
        return self._session

    async def _send(
        self, what: str, session: Session, commands: Iterable[wire.Command], deadline: float
    ) -> None:
        sent: list[_Sent] = []
        error: TransportError | None = None
        with trio.CancelScope(deadline=deadline, shield=True) as patience:
            try:
                for command in commands:
                    queue = session.queue()
                    sent.append(_Sent(queue, command, await queue.begin(command)))
            except TransportError as broken:
                error = broken
            for one in sent:
                if not one.call.done.is_set():
                    await one.call.done.wait()
        if patience.cancelled_caught:
            await self._give_up(session, [one for one in sent if not one.call.done.is_set()])
            raise TransportTimeout(f"{self.name}: {what} had no answer in {self._options.io_timeout} s")
        if error is not None:
            raise error
        for one in sent:
            one.call.result(what, one.command)

    async def _give_up(self, session: Session, late: Sequence[_Sent]) -> None:
        """See that these are not under way any more."""
        with trio.move_on_after(self._options.abort_timeout, shield=True):
            try:
                for one in late:
                    await session.admin.begin(wire.abort(one.queue.number, one.call.command_id))
            except TransportError:
                pass  # then it is torn down already
            for one in late:
                await one.call.done.wait()
        if any(not one.call.done.is_set() for one in late):
            session.tear_down(TransportBroken(f"{self.name} does not even answer that commands be aborted"))

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────

    async def connect(self, nursery: trio.Nursery) -> None:
        """The first session, over the first way that there is. :raises RdmaError: why there is none over the first"""
        first: TransportError | None = None
        for _ in self._ways:
            try:
                session = await self._start(nursery)
            except TransportError as error:
                first = first or error
                self._turn()
            else:
                self.size, self.block_size = session.size, session.namespace.block_size
                self._change(session)
                return
        assert first is not None, "there is a way"
        raise first

    async def keep(self, nursery: trio.Nursery) -> None:
        """Connect again whenever the connection breaks, until closed."""
        shape, failures = (self.size, self.block_size), 0
        while not self._closed:
            session = self._session
            if session is not None:
                await session.broken.wait()
                log.info("%s: %s", self.name, session.why)
                self._change(None)
                self._turn()
            await trio.sleep(_PAUSES[min(failures // len(self._ways), len(_PAUSES) - 1)])
            try:
                session = await self._start(nursery)
            except RdmaError as error:
                log.info("%s is not connected again yet: %s", self.name, error)
                failures += 1
                self._turn()
                continue
            if (session.size, session.namespace.block_size) != shape:
                session.tear_down(TransportClosed(f"{self.name} is not what it was"))
                failures += 1
                self._turn()
                continue
            failures = 0
            self._change(session)

    async def _start(self, nursery: trio.Nursery) -> Session:
        way = self._ways[self._way]
        return await start_session(way, self._who, self._wanted, self._options.session, nursery)

    def _turn(self) -> None:
        """To the next way."""
        self._way = (self._way + 1) % len(self._ways)

    def _change(self, session: Session | None) -> None:
        self.sessions += session is not None
        self._session = session
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def open_initiator(
    ways: Sequence[Fabric], who: Identity, wanted: int | UUID, options: InitiatorOptions | None = None
) -> AsyncIterator[Initiator]:
    """A namespace for the length of the block.

    :param ways: to its target: one at a time is used, and the next one when that breaks
    :param wanted: its number or its UUID
    :raises KeyWanted, NotSupported, CommandFailed, TransportError, MemoryRefused: it cannot be had
    """
    initiator = Initiator(ways, who, wanted, options or InitiatorOptions())
    refused: RdmaError | None = None
    async with trio.open_nursery() as nursery:
        try:
            await initiator.connect(nursery)
        except RdmaError as error:
            refused = error  # raised where the nursery does not put it into a group
        else:
            nursery.start_soon(initiator.keep, nursery)
            try:
                yield initiator
            finally:
                await initiator.aclose()
        nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused
