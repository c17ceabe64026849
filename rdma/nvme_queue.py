"""One connected queue: commands out, answers in, in whatever order they come.

A command's id is not used again before its answer has come or the queue is torn down: an answer that comes late is
nobody else's.
"""

from __future__ import annotations

import trio

from rdma.errors import CommandFailed, TransportBroken, TransportError, WireError
from rdma.nvme_wire import Command, Completion, unpack_completion
from rdma.transport import Connection


class Call:
    """A command that was sent.

    :ivar done: set when it is answered, or never will be
    """

    __slots__ = ("answer", "command_id", "done", "error")

    def __init__(self, command_id: int) -> None:
        self.command_id = command_id
        self.done = trio.Event()
        self.answer: Completion | None = None
        self.error: TransportError | None = None

    def result(self, what: str, command: Command) -> Completion:
        """Its answer, when it is done. :raises CommandFailed, TransportError:"""
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        if not self.answer.status.ok:
            raise CommandFailed(what, self.answer.status, fabrics=command.is_fabrics)
        return self.answer


class Queue:
    """See the module. `run` must be running.

    :param connection: owned from now on
    :param entries: of the queue; one fewer commands may be under way, as the specification has it
    :ivar number: the queue's id
    """

    def __init__(self, connection: Connection, number: int, entries: int) -> None:
        self.number = number
        self._connection = connection
        self._free = list(range(entries - 2, -1, -1))
        self._places = trio.Semaphore(entries - 1)
        self._calls: dict[int, Call] = {}
        self._error: TransportError | None = None

    async def command(self, what: str, command: Command) -> Completion:
        """Send a command and wait for its answer. Who is cancelled leaves it running: the memory that it names is free when
        its registration is closed, or the queue torn down.

        :raises CommandFailed: the answer is an error
        :raises TransportError: the queue broke, or was torn down
        """
        call = await self.begin(command)
        await call.done.wait()
        return call.result(what, command)

    async def begin(self, command: Command) -> Call:
        """Send a command when there is a place. :raises TransportError:"""
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()  # which even without a wait is a turn of the scheduler
        if self._error is not None:
            self._places.release()
            raise self._error
        number = self._free.pop()
        call = self._calls[number] = Call(number)
        try:
            self._connection.post(command.pack(number))
        except TransportError as error:
            self.tear_down(error)
            raise
        return call

    async def run(self) -> TransportError:
        """Take in answers until the queue breaks or is torn down; returns why."""
        while self._error is None:
            try:
                self._take(unpack_completion(await self._connection.completion()))
            except TransportError as error:
                self.tear_down(error)
            except WireError as error:
                self.tear_down(TransportBroken(str(error)))
        return self._error

    def tear_down(self, why: TransportError) -> None:
        """End it. Behind this, nothing that its commands named is read or written any more; those that wait get `why`."""
        if self._error is not None:
            return
        self._error = why
        self._connection.close()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.error = self._error
            call.done.set()
            self._places.release()

    def _take(self, completion: Completion) -> None:
        call = self._calls.pop(completion.command_id, None)
        if call is None:
            raise WireError(f"an answer to command {completion.command_id}, which was not asked")
        self._free.append(completion.command_id)
        self._places.release()
        call.answer = completion
        call.done.set()
