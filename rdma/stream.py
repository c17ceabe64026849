"""Many extents into many buffers: the most urgent first, bounded for each device, each request with its own outcome.

    async with open_stream(source) as stream:
        async with stream.batch(wants) as batch:
            async for outcome in batch:         # in the order in which they arrive
                ...

What must always hold:

- Behind a batch's block its buffers are the caller's again: what had not begun never will, what had begun has ended.
  The exception is said in the outcome: a read that its device has given up may still land, until `outcome.pending` is
  done. A lease given with the want is kept from others as long.
- One extent is read once, however many ask for it at the same time: the others get a copy.
- A request that waits costs nothing and is gone at once when it is cancelled or its deadline passes. A read that has
  begun is finished, for its device says when its memory is free again, and nobody else can.

Deadlines are moments of trio's clock. A deadline says when a request is no longer worth beginning; how long a read may
take once it has begun is its device's affair.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import trio

from rdma.buffers import Pending
from rdma.errors import StreamClosed, TransferCancelled, TransferExpired
from rdma.lanes import Lane, Priority

__all__ = [
    "BYTES_UNDER_WAY", "Batch", "DeviceSource", "Outcome", "Priority", "Source", "Span", "Stream", "StreamStatistics",
    "Want", "open_stream",
]  # fmt: skip

BYTES_UNDER_WAY: Final = 32 << 20
"""Most bytes under way from one device for who takes outcomes as they arrive: enough to keep a fast drive busy, few enough that
what is most urgent does not share it with much else. 64 MiB hid less of the loading behind computing, but loaded faster
(docs/performance.md), so that is what there is for what is wanted together."""

_TIDY: Final = 256
"""Deadlines of ended requests that are kept before they are looked through."""

E = TypeVar("E", bound=Hashable)
E_contra = TypeVar("E_contra", bound=Hashable, contravariant=True)


class Source(Protocol[E_contra]):
    """Where extents come from. Extents are equal if their bytes are."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What `read` raises when it fails; anything else is a mistake in the program. A failure that leaves the
        transfer running has it as its attribute `pending`."""

    def device_of(self, extent: E_contra, /) -> Hashable:
        """What bounds the bytes under way."""

    async def read(
        self,
        extent: E_contra,
        into: Any,  # noqa: ANN401 - what is in `Want.into`
        landed: Callable[[], None],
        /,
    ) -> int:
        """Fill `into`; return how many of its bytes are the extent's. Not cut short by cancellation: if it raises
        Cancelled, it has not begun.

        :param landed: may be called when the device has nothing more to do with it, though it is not done yet: the next
            read is then begun
        """


class Into(Protocol):
    """Memory to be filled: a memoryview, or what can be cut and filled like one."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...  # noqa: ANN401 - what `__setitem__` takes

    def __setitem__(self, part: slice, content: Any, /) -> None: ...  # noqa: ANN401


class Holder(Protocol):
    """Who keeps memory from others; `rdma.buffers.Lease` is one."""

    def hold_until(self, pending: Pending) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Want(Generic[E]):
    """One request.

    :ivar into: where to; as the source demands it
    :ivar deadline: when it is no longer worth beginning
    :ivar lease: of which `into` is a part
    """

    extent: E
    into: Into
    priority: Priority = Priority.DEMAND
    deadline: float = math.inf
    lease: Holder | None = None


@dataclass(frozen=True, slots=True)
class Outcome(Generic[E]):
    """What became of a request.

    :ivar length: bytes of `want.into` that are the extent's
    :ivar error: why there are none: a failure of the source, TransferCancelled, TransferExpired or StreamClosed
    :ivar pending: the transfer that was given up and may still write into `want.into`
    """

    want: Want[E]
    length: int = 0
    error: Exception | None = None
    pending: Pending | None = None


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """A stream at one moment; from `reads` on, values only grow."""

    waiting: int
    running: int
    bytes_running: int
    reads: int
    bytes: int
    coalesced: int
    """Requests that joined a read which was asked for already."""
    failed: int
    cancelled: int
    expired: int


@dataclass(slots=True)
class _Counts:
    reads: int = 0
    bytes: int = 0
    coalesced: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0


class _Ticket(Generic[E]):
    """A request on its way."""

    __slots__ = ("batch", "dropped", "transfer", "want")

    def __init__(self, want: Want[E], batch: Batch[E]) -> None:
        self.want = want
        self.batch = batch
        self.transfer: _Transfer[E] | None = None
        self.dropped: Exception | None = None
        """Why nobody wants it any more, while its read is under way."""


class _Transfer(Generic[E]):
    """One read, and those who wait for it; the first one's buffer is read into."""

    __slots__ = ("deadline", "extent", "is_waiting", "priority", "size", "tickets", "together")

    def __init__(self, ticket: _Ticket[E]) -> None:
        want = ticket.want
        self.extent = want.extent
        self.size = want.into.nbytes
        self.priority = want.priority
        self.deadline = want.deadline
        self.together = ticket.batch.together
        self.tickets = [ticket]
        self.is_waiting = True

    def assess(self) -> bool:
        """Be as urgent as those who wait for it; whether that is a change."""
        before = (self.priority, self.deadline)
        self.priority = min(ticket.want.priority for ticket in self.tickets)
        self.deadline = min(ticket.want.deadline for ticket in self.tickets)
        return (self.priority, self.deadline) != before


class Batch(Generic[E]):
    """The outcomes of some requests, in order of arrival; see the module. Made by `Stream.batch`.

    :ivar together: none is of use before the last has come
    """

    def __init__(self, stream: Stream[E], wants: Sequence[Want[E]], *, together: bool) -> None:
        self.together = together
        self._stream = stream
        self._tickets = [_Ticket(want, self) for want in wants]
        self._outstanding = len(self._tickets)
        self._arrived: deque[Outcome[E]] = deque()
        self._news = trio.Event()

    def cancel(self) -> None:
        """Want nothing of it any more: what waits ends now, what has begun when it ends; each with its outcome."""
        for ticket in self._tickets:
            self._stream._drop(ticket, TransferCancelled("cancelled"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome[E]:
        while not self._arrived:
            if not self._outstanding:
                raise StopAsyncIteration
            await self._news.wait()
        return self._arrived.popleft()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        self._stream._submit(self._tickets)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        with trio.CancelScope(shield=True):  # a device's deadline bounds it
            while self._outstanding:
                await self._news.wait()

    def _deliver(self, outcome: Outcome[E]) -> None:
        self._outstanding -= 1
        self._arrived.append(outcome)
        self._news.set()
        self._news = trio.Event()


class Stream(Generic[E]):
    """See the module; made by `open_stream`."""

    def __init__(self, source: Source[E], nursery: trio.Nursery, bytes_under_way: int) -> None:
        self._source = source
        self._nursery = nursery
        self._limit = bytes_under_way
        self._lanes: dict[Hashable, Lane[_Transfer[E]]] = {}
        self._transfers: dict[tuple[E, int], _Transfer[E]] = {}
        self._deadlines: list[tuple[float, int, _Ticket[E]]] = []
        self._order = itertools.count()
        self._under_way = 0
        self._earlier = trio.Event()
        self._counts = _Counts()
        self._closed = False

    def batch(self, wants: Sequence[Want[E]], *, together: bool = False) -> Batch[E]:
        """Ask for these, once the batch is entered.

        :param together: nobody looks at the first outcome before the last has come: more may be under way at once
        :raises StreamClosed: (then)
        """
        return Batch(self, wants, together=together)

    def close(self) -> None:
        """Begin nothing any more; what waits ends with StreamClosed."""
        self._closed = True
        for transfer in [*self._transfers.values()]:
            for ticket in [*transfer.tickets]:
                self._drop(ticket, StreamClosed("the stream was closed"))

    def statistics(self) -> StreamStatistics:
        """A frozen snapshot."""
        lanes, counts = self._lanes.values(), self._counts
        running = sum(lane.running for lane in lanes)
        return StreamStatistics(
            waiting=sum(one.is_waiting for one in self._transfers.values()),
            running=running,
            bytes_running=sum(lane.bytes_running for lane in lanes),
            reads=counts.reads,
            bytes=counts.bytes,
            coalesced=counts.coalesced,
            failed=counts.failed,
            cancelled=counts.cancelled,
            expired=counts.expired,
        )

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────

    def _submit(self, tickets: Sequence[_Ticket[E]]) -> None:
        if self._closed:
            raise StreamClosed("the stream is closed")
        lanes = {}
        for ticket in tickets:
            device = self._source.device_of(ticket.want.extent)
            lane = lanes[device] = self._lanes.setdefault(device, Lane(self._limit))
            self._enter(ticket, lane)
        for lane in lanes.values():  # when all are in: the most urgent goes first
            self._pump(lane)

    def _enter(self, ticket: _Ticket[E], lane: Lane[_Transfer[E]]) -> None:
        want = ticket.want
        self._under_way += 1
        if want.deadline <= trio.current_time():
            self._settle(ticket, Outcome(want, error=TransferExpired("the deadline had passed")))
            return
        key = (want.extent, want.into.nbytes)
        transfer = self._transfers.get(key)
        if transfer is None:
            transfer = self._transfers[key] = _Transfer(ticket)
            lane.put(transfer)
        else:
            self._counts.coalesced += 1
            transfer.tickets.append(ticket)
            if transfer.is_waiting and transfer.assess():
                lane.put(transfer)
        ticket.transfer = transfer
        if want.deadline < math.inf and transfer.is_waiting:
            self._watch(ticket)

    def _watch(self, ticket: _Ticket[E]) -> None:
        if len(self._deadlines) > _TIDY + 2 * self._under_way:  # most are of requests that ended in time
            self._deadlines = [one for one in self._deadlines if one[2].transfer is not None]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (ticket.want.deadline, next(self._order), ticket))
        if self._deadlines[0][2] is ticket:
            self._earlier.set()

    def _drop(self, ticket: _Ticket[E], why: Exception) -> None:
        """End a request: now if its read has not begun, else when it ends."""
        transfer = ticket.transfer
        if transfer is None or ticket.dropped is not None:
            return
        if not transfer.is_waiting:
            ticket.dropped = why
            return
        transfer.tickets.remove(ticket)
        if not transfer.tickets:
            transfer.is_waiting = False
            self._forget(transfer)
        elif transfer.assess():
            self._lanes[self._source.device_of(transfer.extent)].put(transfer)
        self._settle(ticket, Outcome(ticket.want, error=why))

    async def expire(self) -> None:
        """End requests whose deadline has passed before they began; runs as long as the stream."""
        while True:
            self._earlier = trio.Event()
            due = self._deadlines[0][0] if self._deadlines else math.inf
            with trio.move_on_at(due):
                await self._earlier.wait()
            while self._deadlines and self._deadlines[0][0] <= trio.current_time():
                _, _, ticket = heapq.heappop(self._deadlines)
                if ticket.transfer is not None and ticket.transfer.is_waiting:
                    self._drop(ticket, TransferExpired("the deadline passed before it could begin"))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def _pump(self, lane: Lane[_Transfer[E]]) -> None:
        while not self._closed and (taken := lane.take()):
            transfer, priority = taken
            transfer.is_waiting = False
            self._nursery.start_soon(self._run, lane, transfer, priority)

    async def _run(self, lane: Lane[_Transfer[E]], transfer: _Transfer[E], priority: Priority) -> None:
        error: Exception | None = StreamClosed("the stream was closed")
        length, has_landed = 0, False

        def landed() -> None:
            nonlocal has_landed
            if not has_landed:
                has_landed = True
                lane.ended(transfer.size, priority)
                self._pump(lane)

        try:
            length = await self._source.read(transfer.extent, transfer.tickets[0].want.into, landed)
            error = None
        except self._source.failures as failure:
            error = failure
        finally:
            self._forget(transfer)
            self._finish(transfer, length, error)
            landed()

    def _finish(self, transfer: _Transfer[E], length: int, error: Exception | None) -> None:
        if error is None:
            self._counts.reads += 1
            self._counts.bytes += length
        first = transfer.tickets[0].want
        pending: Pending | None = getattr(error, "pending", None)
        if pending is not None and first.lease is not None:
            first.lease.hold_until(pending)
        for ticket in transfer.tickets:
            want = ticket.want
            if ticket.dropped is None and error is None and want is not first:
                want.into[:length] = first.into[:length]
            why = ticket.dropped or error
            late = pending if want is first else None
            self._settle(ticket, Outcome(want, 0 if why else length, why, late))

    def _settle(self, ticket: _Ticket[E], outcome: Outcome[E]) -> None:
        ticket.transfer = None
        self._under_way -= 1
        counts, error = self._counts, outcome.error
        if isinstance(error, TransferExpired):
            counts.expired += 1
        elif isinstance(error, TransferCancelled | StreamClosed):
            counts.cancelled += 1
        elif error is not None:
            counts.failed += 1
        ticket.batch._deliver(outcome)

    def _forget(self, transfer: _Transfer[E]) -> None:
        """Let nobody join it any more."""
        del self._transfers[transfer.extent, transfer.size]


@asynccontextmanager
async def open_stream(
    source: Source[E], *, bytes_under_way: int = BYTES_UNDER_WAY
) -> AsyncIterator[Stream[E]]:
    """A stream for the length of the block. Leaving it waits for reads that have begun, which their devices' deadlines bound.

    :param bytes_under_way: most bytes under way for each device
    """
    async with trio.open_nursery() as nursery:
        stream = Stream(source, nursery, bytes_under_way)
        nursery.start_soon(stream.expire)
        try:
            yield stream
        finally:
            stream.close()
            nursery.cancel_scope.cancel()


# ── devices as sources ───────────────────────────────────────────────────────────────────────────────────────


class Readable(Protocol):
    """What is needed of a device; `blockdev.device.Device` is one."""

    async def read_into(self, offset: int, buffer: memoryview) -> None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a device from `offset` on; how many, the buffer says."""

    device: Readable
    offset: int


class DeviceSource:
    """Spans of devices, as they are: what checks the bytes is somebody else's.

    :param failures: what the devices raise
    """

    def __init__(self, failures: tuple[type[Exception], ...]) -> None:
        self.failures = failures

    def device_of(self, extent: Span) -> Hashable:
        return id(extent.device)

    async def read(self, extent: Span, into: memoryview, landed: Callable[[], None]) -> int:
        await extent.device.read_into(extent.offset, into)
        return into.nbytes
