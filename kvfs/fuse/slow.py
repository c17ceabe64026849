"""READs and WRITEs that must wait: what threads of the lane leave to the trio thread."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Protocol

import pyfuse3
import trio

from kvfs.fuse import wire
from kvfs.fuse.errno_map import answers
from kvfs.fuse.landing import Spare, Spares
from kvfs.fuse.relay import Answer, Buffer
from kvfs.fuse.wire import Request


class SlowFiles(Protocol):
    """Open files, by the number that the kernel knows; for the trio thread."""

    async def read(self, number: int, offset: int, length: int) -> Buffer: ...

    async def write(self, number: int, offset: int, data: memoryview) -> int: ...


class Slow:
    """Answers what must wait, while `serve` runs.

    :param soon: has the trio thread call something; False if it has ended
    """

    def __init__(self, files: SlowFiles, answer: Answer, spares: Spares, soon: Callable[..., bool]) -> None:
        self._read_file, self._write_file = answers(files.read), answers(files.write)
        self._answer = answer
        self._spares = spares
        self._soon = soon
        self._nursery: trio.Nursery | None = None

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Answer until `retire`."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._retirement = trio.Event()
            task_status.started()
            await self._retirement.wait()

    def retire(self) -> None:
        """Begin with nothing more; what has begun is answered."""
        if self._nursery is not None:
            self._nursery = None
            self._retirement.set()

    def read(self, request: Request) -> None:
        """Answer a READ. From any thread."""
        self._later(request, self._read, request)

    def write(self, request: Request, spare: Spare) -> None:
        """Answer a WRITE whose payload landed in `spare`, which is ours from here on. From any thread."""
        self._later(request, self._write, request, spare)

    def _later(self, request: Request, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if not self._soon(self._begin, function, *arguments):
            self._answer([wire.error_answer(request.unique, errno.ENOTCONN)])

    def _begin(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(function, *arguments)

    async def _read(self, request: Request) -> None:
        try:
            data = await self._read_file(request.handle, request.offset, request.size)
        except pyfuse3.FUSEError as error:
            self._answer([wire.error_answer(request.unique, error.errno)])
        else:
            self._answer([wire.data_answer(request.unique, len(data)), data])

    async def _write(self, request: Request, spare: Spare) -> None:
        try:
            size = await self._write_file(request.handle, request.offset, spare.payload[: request.size])
        except pyfuse3.FUSEError as error:
            answer = wire.error_answer(request.unique, error.errno)
        else:
            answer = wire.write_answer(request.unique, size)
        finally:
            self._spares.put(spare)
        self._answer([answer])
