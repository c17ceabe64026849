"""The data lane: threads that answer READ and WRITE straight from and into memory, and pass all else to pyfuse3.

pyfuse3 reads, copies and answers in one thread, and holds Python's lock while it does: 2-4 ms per 4 MiB. Here threads
read the requests from /dev/fuse. What pyfuse3 is to serve reaches it through a socket that it takes for its device,
and its answers come back the same way. A READ of an open version is answered with views of the frames that its open
has pinned. A WRITE lands page-aligned in spare memory, since nobody knows where it belongs before it is there, and is
copied into its draft's frame, if the draft has let us in. Both without Python's lock for all that takes time, and
without waiting. A READ or WRITE that must wait goes to the trio thread.

One thread at a time waits for a request, and it passes the request on before it waits for the next or lets another
thread wait: pyfuse3 gets them in the kernel's order, which a RELEASE and the request after it rely on.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyfuse3
import trio

from blockdev.types import PAGE
from kvfs.fuse import wire
from kvfs.fuse.connection import ENDED, Connection
from kvfs.fuse.content import DraftExtent
from kvfs.fuse.intake import Intake
from kvfs.fuse.landing import FrameSource, Spare, Spares
from kvfs.fuse.reception import LaneDesk, Reception
from kvfs.fuse.relay import Buffer, Relay
from kvfs.fuse.slow import Slow, SlowFiles
from kvfs.fuse.wire import Opcode, Request

log = logging.getLogger(__name__)

_JOIN = 10.0
"""Seconds that a thread may take to end."""
_KNOWN = frozenset({Opcode.GETATTR, Opcode.GETXATTR, Opcode.FLUSH})
"""Requests whose answer may be known without asking the trio thread."""


class LaneFiles(SlowFiles, Protocol):
    """Open files, by the number that the kernel knows; `kvfs.fuse.openfiles.OpenFiles` is it. From any thread."""

    def views(self, number: int, offset: int, length: int) -> Sequence[Buffer] | None: ...

    def backing(self, number: int) -> int: ...

    def intake(self, number: int) -> Intake | None: ...

    def is_reader(self, number: int) -> bool: ...


class LaneNames(Protocol):
    """Directories, by the number that the kernel knows; `kvfs.fuse.operations.Operations` is it."""

    def directory(self, number: int) -> pyfuse3.EntryAttributes | None: ...


@dataclass(frozen=True, slots=True)
class Served:
    """What the lane serves."""

    files: LaneFiles
    names: LaneNames
    desk: LaneDesk
    frames: FrameSource


@dataclass(frozen=True, slots=True)
class LaneSize:
    """
    :ivar threads: that answer requests
    :ivar extent_size: of the pool
    :ivar max_pages: of a READ or WRITE
    :ivar passthrough: whether the kernel may be told of copies that it reads by itself
    """

    threads: int
    extent_size: int
    max_pages: int
    passthrough: bool = False


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """Requests since the mount was made."""

    reads: int
    writes: int
    """Answered by the lane's threads."""
    slow_reads: int
    slow_writes: int
    """Answered by the trio thread."""
    known: int
    """Others that were answered by the lane's threads."""
    passed: int
    """Passed to pyfuse3."""


class _Counts:
    """Of one thread."""

    __slots__ = ("known", "passed", "reads", "slow_reads", "slow_writes", "writes")

    def __init__(self) -> None:
        self.reads = self.writes = self.slow_reads = self.slow_writes = self.known = self.passed = 0


class Lane:
    """Serves a connection: give pyfuse3 `device`, and run `serve` in trio beside it.

    :param ended: called once in the trio thread if the mount went away or a thread failed
    """

    def __init__(
        self,
        connection: Connection,
        served: Served,
        size: LaneSize,
        *,
        ended: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._fd = connection.fd
        self._files = served.files
        self._names = served.names
        self._extent_size = size.extent_size
        self._ended = ended
        self._token = trio.lowlevel.current_trio_token()
        self._relay = Relay(self._answer, size.max_pages, served.files.backing if size.passthrough else None)
        self._reception = Reception(served.desk, self._relay, self._answer, self._soon)
        self.device = self._relay.device
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waiting = select.poll()
        self._waiting.register(self._fd, select.POLLIN)
        self._waiting.register(self._stop, select.POLLIN)
        self._turn = threading.Lock()
        self._stopping = self._retired = self._told = False
        self._spares = Spares(served.frames, size.max_pages * PAGE, size.threads)
        self._slow = Slow(served.files, self._answer, self._spares, self._soon)
        self._counts = [_Counts() for _ in range(size.threads)]
        self._threads = [
            threading.Thread(
                target=self._guard, args=(self._serve, counts), name=f"kvfs-lane-{n}", daemon=True
            )
            for n, counts in enumerate(self._counts)
        ]

    # --- in the trio thread

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Pass pyfuse3's answers back and answer what must wait, until `retire`."""
        with self._reception.custody.kept():
            async with trio.open_nursery() as nursery:
                self._reception.begin(nursery)
                await nursery.start(self._slow.serve)
                nursery.start_soon(self._relay.pass_answers)
                for thread in self._threads:
                    thread.start()
                task_status.started()

    def retire(self) -> None:
        """Answer nothing more that has not begun: requests wait until `close` fails them."""
        self._retired = True
        self._reception.retire()
        self._relay.retire()
        self._slow.retire()

    def close(self) -> None:
        """End the threads and the mount. pyfuse3 must serve no more; it is to be closed after this."""
        self._retired = self._stopping = self._told = True
        os.eventfd_write(self._stop, 1)
        self._relay.shut()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN)
                if thread.is_alive():
                    log.warning(
                        "%s does not end; what it does in the kernel ends with the mount", thread.name
                    )
        self._connection.close()
        self._spares.close()
        self._relay.close()
        os.close(self._stop)

    def statistics(self) -> LaneStatistics:
        """A frozen snapshot."""
        return LaneStatistics(
            **{
                name: sum(getattr(counts, name) for counts in self._counts)
                for name in LaneStatistics.__dataclass_fields__
            }
        )

    # --- in a thread: requests

    def _guard(self, work: Callable[..., None], *arguments: object) -> None:
        """Never leave the mount without its threads: it ends if one does."""
        failed = True
        try:
            work(*arguments)
            failed = False
        finally:
            if failed:
                log.error("a thread of the data lane failed: the mount ends")
            self._tell_end()

    def _tell_end(self) -> None:
        if not self._told:
            self._told = True
            self._soon(self._ended_once)

    def _ended_once(self) -> None:
        if not self._retired:
            self._ended()

    def _soon(self, function: Callable[..., object], *arguments: object) -> bool:
        """Have the trio thread call it; False if it has ended."""
        try:
            self._token.run_sync_soon(function, *arguments)
        except trio.RunFinishedError:
            return False
        return True

    def _serve(self, counts: _Counts) -> None:
        spare = self._spares.take()
        while (request := self._take_turn(spare, counts)) is not None:
            if self._retired:
                continue
            if request.opcode == Opcode.READ:
                self._read(request, counts)
            else:
                spare = self._write(request, spare, counts)
            spare = self._spares.better(spare)
        self._spares.put(spare)

    def _take_turn(self, spare: Spare, counts: _Counts) -> Request | None:
        """Deal with requests until one is a READ or WRITE, which takes long enough to let another thread wait for the
        next; to wake one up for each request would cost more than most requests do. None at the end.
        """
        with self._turn:
            while size := self._receive(spare):
                request = wire.parse(spare.header)
                if request.opcode in (Opcode.READ, Opcode.WRITE):
                    return request
                if self._retired:
                    continue
                answer = self._known(request, spare) if request.opcode in _KNOWN else None
                if answer is not None:
                    self._answer([answer])
                if answer is not None or self._take(request, spare, size):
                    counts.known += 1
                else:
                    counts.passed += 1
        return None

    def _take(self, request: Request, spare: Spare, size: int) -> bool:
        more = max(0, size - wire.DATA_HEADER)
        message = b"".join((spare.header, spare.payload[:more]))[:size]
        try:
            return self._reception.take(request, message)
        except OSError:
            if not self._stopping:
                raise
            return False

    def _receive(self, spare: Spare) -> int:
        """The next request's length; 0 when there will be none."""
        while not self._stopping:
            try:
                return os.readv(self._fd, spare.vectors)
            except BlockingIOError:
                self._waiting.poll()
            except FileNotFoundError:
                continue  # who asked was interrupted while it was read
            except OSError as error:
                if error.errno in ENDED:
                    return 0
                raise
        return 0

    def _read(self, request: Request, counts: _Counts) -> None:
        parts = self._files.views(request.handle, request.offset, request.size)
        if parts is None:
            counts.slow_reads += 1
            self._slow.read(request)
            return
        counts.reads += 1
        self._answer([wire.data_answer(request.unique, sum(map(len, parts))), *parts])

    def _write(self, request: Request, spare: Spare, counts: _Counts) -> Spare:
        """Take a WRITE; returns the buffer for the next request."""
        index, start = divmod(request.offset, self._extent_size)
        intake = self._files.intake(request.handle)
        place = None
        if intake is not None and start + request.size <= self._extent_size:
            place = intake.enter(index)
        if intake is None or place is None:
            counts.slow_writes += 1
            self._slow.write(request, spare)
            return self._spares.take()
        frame = None
        if spare.frame is not None and request.size == self._extent_size:
            frame = intake.trade(place, spare.frame)
        if frame is not None:
            spare.exchange(frame)
        else:
            ctypes.memmove(place.address + start, spare.address, request.size)
        is_whole = intake.leave(place, start, start + request.size, time.time_ns())
        counts.writes += 1
        self._answer([wire.write_answer(request.unique, request.size)])
        if is_whole:
            self._send(intake, place.extent)
        return spare

    def _send(self, intake: Intake, extent: DraftExtent) -> None:
        """See that an extent is written."""
        with self._reception.custody.taken() as mine:
            flight = intake.launch(extent) if mine else None
        if not mine:
            intake.send(extent)
        elif flight is not None:
            flight.take_off()

    def _known(self, request: Request, spare: Spare) -> bytes | None:
        """An answer that needs no trio thread, if there is one."""
        if request.opcode == Opcode.FLUSH:
            return wire.error_answer(request.unique, 0) if self._files.is_reader(request.handle) else None
        if request.opcode == Opcode.GETXATTR:
            # The kernel asks for security.capability before a file's first write.
            name = wire.xattr_name(b"".join((spare.header, spare.payload[: request.length])))
            return None if name.startswith(b"user.") else wire.error_answer(request.unique, errno.ENODATA)
        # The kernel asks for a directory's attributes after everything that was made, moved or removed in it.
        attributes = self._names.directory(request.inode)
        if attributes is None:
            return None
        return wire.attributes_answer(request.unique, attributes.attr_timeout, attributes)

    # --- in any thread

    def _answer(self, parts: Sequence[Buffer]) -> None:
        try:
            os.writev(self._fd, parts)
        except FileNotFoundError:
            pass  # nobody waits for it any more
        except OSError as error:
            if error.errno not in ENDED:
                raise
