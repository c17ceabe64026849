"""One queue: a reliable connection whose sends carry commands and whose receives take in answers.

Two things can happen to it: work that ends, and events of the connection manager. Each has a descriptor of its own; both
are in one epoll set, so that whoever waits for an answer learns of either, and the loop is never blocked.

The order of closing is ours, not the garbage collector's: the peer is told, then the queue pair goes, which is what fences
memory, and behind it what it was made of.
"""

from __future__ import annotations

import logging
import select
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from rdma.errors import TransportBroken, TransportClosed, TransportError
from rdma.host_memory import address_of, host_memory
from rdma.nvme_wire import COMMAND_SIZE, COMPLETION_SIZE, CmAccept, CmRequest
from rdma.verbs.library import COMPLETIONS, Library, broken, translated, with_descriptor
from rdma.verbs.numbers import (
    RELIABLE_CONNECTION,
    SEND,
    SIGNALED,
    Access,
    CmEvent,
    PairState,
    WorkStatus,
    in_words,
)
from rdma.verbs.way import Way

if TYPE_CHECKING:
    from pyverbs.cq import WC
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.wr import RecvWR, SendWR

log = logging.getLogger(__name__)

_RETRIES: Final = 7
"""The most that a queue pair can do, and what the kernel's initiator asks for."""
_RECEIVE: Final = 1 << 32
"""Marks the ids of receives."""
_BATCH: Final = 32


class Device(NamedTuple):
    """What queues of one device share.

    :ivar reads: of the peer from our memory that may be under way on one queue
    """

    context: Context
    domain: PD
    reads: int


class Slots:
    """Memory for capsules and for answers, and the work requests that name it.

    Sends end in their order, so only some of them say when they do, for all before them too: to be woken up for each would
    take longer than what it tells. At most `send` commands are under way, and so many more sends, that there is always room.
    """

    def __init__(self, library: Library, domain: PD, request: CmRequest) -> None:
        self._every = max(1, request.send // 2)
        """Which of the sends say that they have ended."""
        self._library = library
        sends, receives = 4 * self._every, request.receive
        size = sends * COMMAND_SIZE + receives * COMPLETION_SIZE
        self._view = host_memory(size, huge_pages=False)
        self._address, self._answers = address_of(self._view), sends * COMMAND_SIZE
        self.mr: MR = library.MR(domain, size, Access.LOCAL_WRITE, self._address)
        self.sends = [self._send(number) for number in range(sends)]
        self.receives = [self._receive(number) for number in range(receives)]
        self._posted = self._ended = 0

    def take(self, capsule: bytes) -> SendWR | None:
        """What sends this capsule; None if there is no room."""
        if self._posted - self._ended == len(self.sends):
            return None
        number = self._posted % len(self.sends)
        self._view[number * COMMAND_SIZE : (number + 1) * COMMAND_SIZE] = capsule
        self._posted += 1
        return self.sends[number]

    def sent(self, number: int) -> None:
        """A send has said that it has ended."""
        self._ended += (number - self._ended) % len(self.sends) + 1

    def answer(self, number: int) -> bytes:
        start = self._answers + number * COMPLETION_SIZE
        return bytes(self._view[start : start + COMPLETION_SIZE])

    def _send(self, number: int) -> SendWR:
        where = self._library.SGE(self._address + number * COMMAND_SIZE, COMMAND_SIZE, self.mr.lkey)
        flags = SIGNALED if (number + 1) % self._every == 0 else 0
        return self._library.SendWR(wr_id=number, opcode=SEND, num_sge=1, sg=[where], send_flags=flags)

    def _receive(self, number: int) -> RecvWR:
        address = self._address + self._answers + number * COMPLETION_SIZE
        where = self._library.SGE(address, COMPLETION_SIZE, self.mr.lkey)
        return self._library.RecvWR(wr_id=_RECEIVE | number, num_sge=1, sg=[where])


class VerbsConnection:
    """See the module. Made by `connect`; owns the way to the target."""

    def __init__(self, library: Library, device: Device, way: Way, request: CmRequest) -> None:
        self._library = library
        self._way = way
        self._queue = request.queue
        self._answers: deque[bytes] = deque()
        self._is_drained = False
        """Everything was polled since we last asked to be told of more: there is nothing until we are."""
        self._error: TransportError | None = None
        self._closers: list[Callable[[], None]] = [way.close]
        self._news = select.epoll()
        self._closers.append(self._news.close)
        try:
            with translated(library, f"{way.portal}: making queue {request.queue}"):
                self._make(device, request)
        except BaseException:
            self._close_all()
            raise

    def _make(self, device: Device, request: CmRequest) -> None:
        library = self._library
        channel, descriptor = with_descriptor(
            library, lambda: library.CompChannel(device.context), COMPLETIONS
        )
        self._closers.append(channel.close)
        self._channel, self._channel_descriptor = channel, descriptor
        self._slots = Slots(library, device.domain, request)
        self._closers.append(self._slots.mr.close)
        sends, receives = len(self._slots.sends), len(self._slots.receives)
        self._cq = library.CQ(device.context, sends + receives, None, channel, 0)
        self._closers.append(self._cq.close)
        room = library.QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        how = library.QPInitAttr(qp_type=RELIABLE_CONNECTION, scq=self._cq, rcq=self._cq, cap=room)
        self._pair = library.QP(device.domain, how)
        self._closers.append(self._pair.close)
        self._to(PairState.INIT)
        for receive in self._slots.receives:
            self._pair.post_recv(receive)
        self._cq.req_notify()
        for one in (descriptor, self._way.descriptor):
            self._news.register(one, select.EPOLLIN)

    async def establish(self, device: Device, request: CmRequest) -> None:
        """Have the target accept it. :raises TransportRefused, TransportBroken:"""
        data = request.pack()
        parameters = self._library.ConnParam(
            resources=device.reads,
            depth=0,
            flow_control=1,
            retry=_RETRIES,
            rnr_retry=_RETRIES,
            qp_num=self._pair.qp_num,
            data_len=len(data),
        )
        parameters.set_private_data(data)
        CmAccept.unpack(await self._way.connect(parameters))
        with translated(self._library, f"{self._way.portal}: establishing queue {request.queue}"):
            # INIT once more: by now it is known what the peer may do.
            for state in PairState:
                self._to(state)
            self._way.id.establish()

    def _to(self, state: PairState) -> None:
        attributes, mask = self._way.id.init_qp_attr(state)
        self._pair.modify(attributes, mask)

    # ── a connection ─────────────────────────────────────────────────────────────────────────────────────

    def post(self, capsule: bytes) -> None:
        self._check()
        send = self._slots.take(capsule)
        if send is None:
            self._poll()
            send = self._slots.take(capsule)
        if send is None:
            raise self._break(TransportBroken(f"{self._name}: nothing that was sent is acknowledged"))
        try:
            self._pair.post_send(send)
        except self._library.Error as error:
            raise self._break(broken(self._library, f"{self._name}: sending", error)) from None

    async def completion(self) -> bytes:
        while not self._answers:
            if self._closers and not self._is_drained:
                self._poll()  # first of all: what came before the end still counts
            if not self._answers:
                self._check()
                with suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(self._news)
                self._take_news()
        return self._answers.popleft()

    def close(self) -> None:
        if self._closers:
            self._error = self._error or TransportClosed(f"{self._name} was closed")
            trio.lowlevel.notify_closing(self._news)
            try:
                self._way.id.disconnect()
            except self._library.Error as error:  # it is not connected any more
                log.debug("%s: %s", self._name, error)
            self._close_all()

    def _close_all(self) -> None:
        closers, self._closers = self._closers, []
        for close in reversed(closers):
            try:
                close()
            except (TransportError, self._library.Error):
                log.exception("part of a connection to %s cannot be closed", self._way.portal)

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────

    @property
    def _name(self) -> str:
        return f"{self._way.portal}, queue {self._queue}"

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _break(self, error: TransportBroken) -> TransportError:
        self._error = self._error or error
        return self._error

    def _take_news(self) -> None:
        if self._error is not None:
            return
        self._is_drained = False
        try:
            for descriptor, _ in self._news.poll(0):
                if descriptor == self._channel_descriptor:
                    self._rearm()
                else:
                    self._take_event()
        except TransportBroken as error:
            self._break(error)
        except self._library.Error as error:
            self._break(broken(self._library, f"{self._name}: completions", error))

    def _rearm(self) -> None:
        """Be told again; what ended before is polled after this."""
        self._channel.get_cq_event(self._cq)
        self._cq.ack_events(1)
        self._cq.req_notify()

    def _take_event(self) -> None:
        happened = self._way.next()
        if happened is not None and happened.event not in (CmEvent.ESTABLISHED, CmEvent.ADDR_CHANGE):
            self._break(TransportBroken(self._way.describe(happened.event), happened.event))

    def _poll(self) -> None:
        """Take in all that has ended."""
        try:
            count = _BATCH
            while count == _BATCH:
                count, ended = self._cq.poll(_BATCH)
                self._take(ended)
            self._is_drained = True
        except TransportBroken as error:
            self._break(error)
        except self._library.Error as error:
            self._break(broken(self._library, f"{self._name}: completions", error))

    def _take(self, ended: Iterable[WC]) -> None:
        """:raises TransportBroken: says what went wrong first: behind that, all the rest is flushed"""
        bad: list[WorkStatus] = []
        received: list[int] = []
        for one in ended:
            if one.status != WorkStatus.SUCCESS:
                bad.append(WorkStatus(one.status))
            elif one.wr_id & _RECEIVE:
                received.append(one.wr_id & ~_RECEIVE)
            else:
                self._slots.sent(one.wr_id)
        self._answers.extend(self._slots.answer(number) for number in received)
        if bad:
            status = next((one for one in bad if one is not WorkStatus.FLUSHED), WorkStatus.FLUSHED)
            raise TransportBroken(f"{self._name}: {in_words(status)}", status)
        for number in received:
            self._pair.post_recv(self._slots.receives[number])


async def connect(library: Library, device: Device, way: Way, request: CmRequest) -> VerbsConnection:
    """Connect a queue over a way that is resolved, which is owned from here on.

    :raises TransportRefused, TransportBroken:
    """
    connection = VerbsConnection(library, device, way, request)
    try:
        await connection.establish(device, request)
    except BaseException:
        connection.close()
        raise
    return connection
