"""One life of the connection to a controller: an admin queue, I/O queues, and a keep-alive. When one breaks, all end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeVar
from uuid import UUID

import trio

from rdma.bring_up import Found, Identity, find_namespace, start_controller, start_queue
from rdma.errors import (
    CommandFailed,
    TransportBroken,
    TransportClosed,
    TransportError,
    TransportTimeout,
)
from rdma.host_memory import PAGE, host_memory
from rdma.nvme_identify import Namespace
from rdma.nvme_queue import Queue
from rdma.nvme_wire import ADMIN_QUEUE, NO_DATA, CmRequest, Keyed, keep_alive
from rdma.steps import Answer, Ask, Steps
from rdma.transport import Fabric

T = TypeVar("T")

_ADMIN_ENTRIES = 32


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """:ivar queues: I/O queues to ask for
    :ivar entries: of each, at most
    :ivar connect_timeout: seconds that all of it may take
    """

    queues: int = 4
    entries: int = 64
    connect_timeout: float = 5.0


class Session:
    """Made by `start_session`.

    :ivar fabric: over which it is
    :ivar nsid: the namespace's number
    :ivar found: what the controller said of itself
    :ivar queues: the I/O queues
    :ivar broken: set when it has ended
    :ivar why: it has ended
    """

    found: Found
    nsid: int
    namespace: Namespace

    def __init__(self, fabric: Fabric, who: Identity, nursery: trio.Nursery) -> None:
        self.admin: Queue
        self.queues: list[Queue] = []
        self.broken = trio.Event()
        self.fabric = fabric
        self._who = who
        self._nursery = nursery
        self._turn = count()
        self.why: TransportError | None = None

    @property
    def size(self) -> int:
        """Bytes of the namespace."""
        return self.namespace.size * self.namespace.block_size

    def queue(self) -> Queue:
        """The I/O queue whose turn it is."""
        return self.queues[next(self._turn) % len(self.queues)]

    def tear_down(self, why: TransportError) -> None:
        """End all of it. Behind this, nothing that its commands named is read or written any more."""
        if self.why is None:
            self.why = why
            for queue in [*self.queues, *([self.admin] if hasattr(self, "admin") else [])]:
                queue.tear_down(why)
            self.broken.set()

    async def bring_up(self, wanted: int | UUID, options: SessionOptions) -> None:
        """:raises NvmeError, TransportError:"""
        self.admin = await self._open(ADMIN_QUEUE, _ADMIN_ENTRIES, 0)
        self.found = await self._drive(
            self.admin, start_controller(self._who, _ADMIN_ENTRIES, options.queues)
        )
        entries = min(options.entries, self.found.depth)
        for number in range(1, self.found.queues + 1):
            queue = await self._open(number, entries, self.found.number)
            self.queues.append(queue)
            await self._drive(queue, start_queue(self._who, number, entries, self.found.number))
        self.nsid, self.namespace = await self._drive(self.admin, find_namespace(wanted))
        self._nursery.start_soon(self._keep_alive)

    async def _open(self, number: int, entries: int, controller: int) -> Queue:
        connection = await self.fabric.connect(CmRequest(number, entries, entries, controller))
        queue = Queue(connection, number, entries)
        self._nursery.start_soon(self._run, queue)
        return queue

    async def _run(self, queue: Queue) -> None:
        self.tear_down(await queue.run())

    async def _drive(self, queue: Queue, steps: Steps[T]) -> T:
        """Do what the steps ask, until they are done."""
        answer: Answer | CommandFailed | TransportBroken | None = None
        while True:
            try:
                if answer is None:
                    asked = next(steps)
                elif isinstance(answer, CommandFailed | TransportBroken):
                    asked = steps.throw(answer)
                else:
                    asked = steps.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(asked, Ask):
                answer = await self._ask(queue, asked)
            else:
                await trio.sleep(asked)
                answer = Answer(0, b"")

    async def _ask(self, queue: Queue, asked: Ask) -> Answer | CommandFailed | TransportBroken:
        size = asked.answer or len(asked.data)
        try:
            if not size:
                completion = await queue.command(asked.what, asked.command(NO_DATA))
                return Answer(completion.result, b"")
            with lent(self.fabric, asked.data, size) as (sgl, view):
                completion = await queue.command(asked.what, asked.command(sgl))
                return Answer(completion.result, bytes(view))
        except (CommandFailed, TransportBroken) as error:
            return error  # who asked may know what it means

    async def _keep_alive(self) -> None:
        """Tell the controller that we live, and see that it does."""
        while not self.broken.is_set():
            with trio.move_on_after(self._who.keep_alive / 2):
                await self.broken.wait()
                return
            with trio.move_on_after(self._who.keep_alive) as patience:
                try:
                    await self.admin.command("saying that we live", keep_alive())
                except (TransportError, CommandFailed) as error:
                    self.tear_down(TransportBroken(str(error)))
            if patience.cancelled_caught:
                silent = f"{self._who.subsystem} gave no sign of life for {self._who.keep_alive} s"
                self.tear_down(TransportBroken(silent))


@contextmanager
def lent(fabric: Fabric, data: bytes, size: int) -> Iterator[tuple[Keyed, memoryview]]:
    """A page of memory with `data` in it, of which the controller may read and write `size` bytes meanwhile."""
    view = host_memory(PAGE, huge_pages=False)
    view[: len(data)] = data
    registration = fabric.register(view)
    try:
        yield Keyed(registration.address, size, registration.key), view[:size]
    finally:
        registration.close()


async def start_session(
    fabric: Fabric, who: Identity, wanted: int | UUID, options: SessionOptions, nursery: trio.Nursery
) -> Session:
    """A session whose tasks run in `nursery` until it ends.

    :param wanted: the namespace
    :raises TransportTimeout: it could not be had in time
    :raises NvmeError, TransportError:
    """
    session = Session(fabric, who, nursery)
    try:
        with trio.fail_after(options.connect_timeout):
            await session.bring_up(wanted, options)
    except trio.TooSlowError:
        late = TransportTimeout(f"{who.subsystem} could not be connected in {options.connect_timeout} s")
        session.tear_down(late)
        raise late from None
    except BaseException:
        session.tear_down(TransportClosed("it could not be connected"))
        raise
    return session
