"""Files and kernel block devices as Devices: O_DIRECT, in threads, every operation with a deadline.

An operation goes through three hands. The caller's task waits for a place in the device's queue (cancellable: nothing
has begun), then for the thread (not cancellable, only the deadline gives up, or `give_up`). The thread does the system
call. When the caller has given up, what it started is a *zombie*: it keeps its place in the queue, its buffer and the
file descriptor until the kernel returns. Too many zombies and the device is lost: waiting longer for
each further operation would only stall the callers, and a miss is better than a stall.

A transfer that the kernel can begin without waiting takes no thread, see `begun`: two hand-overs less.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from outcome import Error

from blockdev.begun import BegunTransfers, Unfinished
from blockdev.device import Begun, check_span, check_transfer
from blockdev.errors import DeviceClosed, DeviceError, DeviceGivenUp, DeviceLost, DeviceTimeout
from blockdev.kernel_aio import Operation
from blockdev.raw_file import RawFile, create_allocated, open_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from outcome import Outcome

log = logging.getLogger(__name__)

IO_TIMEOUT: Final = 5.0
"""Seconds."""
QUEUE_DEPTH: Final = 32
"""Operations in the kernel at once, per device."""
_SMALL: Final = 1 << 16
"""Bytes up to which a write, or a read of a file in memory, is begun in the trio thread: larger ones keep it for longer than a
hand-over takes. Any other read takes 10 to 20 µs to begin."""


@dataclass(frozen=True, slots=True)
class FileDeviceStatistics:
    """:ivar running: operations in the kernel, zombies included
    :ivar waiting: operations that wait for a place in the queue
    :ivar zombies: operations given up that the kernel has not returned
    """

    running: int
    waiting: int
    zombies: int
    lost: bool


class _Transfer:
    """One operation, from its start until the kernel has returned; see `errors.Pending`.

    :ivar ended: set in the trio thread some time after that
    """

    def __init__(self, work: Callable[[], None], on_end: Callable[[], None]) -> None:
        self.work = work
        self._on_end = on_end
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.ended = trio.Event()
        self._outcome: Outcome[None] | None = None

    @property
    def done(self) -> bool:
        return self._outcome is not None

    def result(self) -> None:
        """Raise what the work raised."""
        if self._outcome is not None:
            self._outcome.unwrap()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def finish(self, outcome: Outcome[None]) -> None:
        """In the thread."""
        self._on_end()
        with self._lock:
            self._outcome = outcome
        for callback in self._callbacks:
            callback()


class FileDevice:
    """A file or kernel block device; made by `open_file_device`.

    :param raw: owned from now on
    :param io_timeout: seconds from the call to DeviceTimeout, waiting in the queue included
    :param queue_depth: most operations in the kernel at once; with more zombies than half of it the device is lost
    :param begun: takes what needs no thread; owned from now on
    """

    def __init__(
        self,
        name: str,
        raw: RawFile,
        *,
        writable: bool = True,
        io_timeout: float = IO_TIMEOUT,
        queue_depth: int = QUEUE_DEPTH,
        begun: BegunTransfers | None = None,
    ) -> None:
        self._name = name
        self._begun = begun
        self._raw = raw
        self._writable = writable
        self._io_timeout = io_timeout
        self._limiter = trio.CapacityLimiter(queue_depth)
        self._zombie_limit = queue_depth // 2
        self._zombies: set[_Transfer] = set()
        self._waiting: set[trio.CancelScope] = set()
        """Of everybody who waits, for the queue or the kernel."""
        self._closed = False
        self._lost = False
        self._given_up = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return self._raw.size

    @property
    def block_size(self) -> int:
        return self._raw.block_size

    @property
    def is_file(self) -> bool:
        return self._raw.is_file

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=True)
        work = partial(self._raw.read, offset, buffer)
        if buffer.nbytes <= _SMALL or not self._raw.in_memory:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._check_usable()
            begun = self._begin(Operation.READ, offset, buffer, work)
            if begun is not None:
                begun.start()
                await begun.land()
                return
        await self._operate(work)

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        if buffer.nbytes <= _SMALL:
            await trio.lowlevel.checkpoint_if_cancelled()
            begun = self.begin_write(offset, buffer)
            if begun is not None:
                begun.start()
                await begun.land()
                return
        check_transfer(self, offset, buffer, fill=False)
        self._check_writable()
        await self._operate(lambda: self._raw.write(offset, buffer))

    def begin_write(self, offset: int, buffer: memoryview) -> Begun | None:
        check_transfer(self, offset, buffer, fill=False)
        self._check_writable()
        self._check_usable()
        return self._begin(Operation.WRITE, offset, buffer, partial(self._raw.write, offset, buffer))

    def _begin(
        self, operation: Operation, offset: int, buffer: memoryview, work: Callable[[], None]
    ) -> Begun | None:
        """A transfer that takes no thread, if the kernel has that and the device has a place.

        :param work: the same, for a thread, where the kernel would have to wait
        """
        if self._begun is None or not buffer.nbytes or not self._begun.serves(operation):
            return None
        transfer = _Transfer(work, self._raw.leave)
        try:
            self._limiter.acquire_on_behalf_of_nowait(transfer)
        except trio.WouldBlock:
            return None
        self._raw.enter()
        ended = partial(self._ended, transfer)
        start = self._begun.begin(operation, self._raw.fd, offset, buffer, ended)
        return Begun(start, partial(self._land, transfer, self._begun.deadline(self._io_timeout)))

    def _ended(self, transfer: _Transfer, outcome: Outcome[None]) -> None:
        if isinstance(outcome, Error) and isinstance(outcome.error, Unfinished):
            try:
                self._check_not_given_up()
                _start(transfer, self._settle)  # at once: it may be long until somebody waits for it
            except _NoThread:
                outcome = Error(OSError(errno.EAGAIN, "the system has no thread for it"))
            except DeviceLost as error:
                outcome = Error(error)
            else:
                return
        transfer.finish(outcome)
        self._settle(transfer)
        transfer.ended.set()

    async def _land(self, transfer: _Transfer, deadline: float) -> None:
        """Wait for a transfer that was begun."""
        with self._patience(_until(deadline)):
            await transfer.ended.wait()
        self._conclude(transfer)

    async def flush(self) -> None:
        self._check_writable()
        await self._operate(self._raw.flush)

    async def discard(self, offset: int, length: int) -> None:
        check_span(self, offset, length)
        self._check_writable()
        await self._operate(lambda: self._raw.discard(offset, length))

    def give_up(self) -> None:
        self._lost = self._given_up = True
        for scope in self._waiting:
            scope.cancel()

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        self._closed = True
        if self._begun is not None:
            self._begun.close()
        # The last close of a block device may wait for it: the same deadline as for any other call.
        await _wait(_Transfer(self._raw.leave, lambda: None), _until(trio.current_time() + self._io_timeout))

    def statistics(self) -> FileDeviceStatistics:
        queue = self._limiter.statistics()
        return FileDeviceStatistics(
            queue.borrowed_tokens, queue.tasks_waiting, len(self._zombies), self._lost
        )

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceClosed(self.name, errno.EBADF, "the device is closed")
        self._check_not_given_up()
        if self._lost:
            stuck = f"more than {self._zombie_limit} operations are stuck in it"
            raise DeviceLost(self.name, errno.ENODEV, stuck)

    def _check_not_given_up(self) -> None:
        if self._given_up:
            raise DeviceLost(self.name, errno.ENODEV, "it was given up")

    def _check_writable(self) -> None:
        if not self._writable:
            raise DeviceError(self.name, errno.EROFS, "opened for reading only")

    async def _operate(self, work: Callable[[], None]) -> None:
        self._check_usable()
        deadline = trio.current_time() + self._io_timeout
        transfer = _Transfer(work, self._raw.leave)
        await self._enter(transfer, deadline)
        self._raw.enter()
        await self._finish(transfer, deadline)

    async def _enter(self, transfer: _Transfer, deadline: float) -> None:
        """Wait for a place in the queue; no checkpoint if there is one, for that lets others run first."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._limiter.acquire_on_behalf_of_nowait(transfer)
        except trio.WouldBlock:
            pass
        else:
            return
        with self._patience(trio.CancelScope(deadline=deadline)) as queued:
            await self._limiter.acquire_on_behalf_of(transfer)
        if queued.cancelled_caught:
            self._check_not_given_up()
            raise self._timeout(None)
        try:
            self._check_usable()
        except DeviceError:
            self._limiter.release_on_behalf_of(transfer)
            raise

    @contextmanager
    def _patience(self, scope: trio.CancelScope) -> Iterator[trio.CancelScope]:
        """Enter a scope that ends when the device is given up, at once if it was."""
        if self._given_up:
            scope.cancel()
        self._waiting.add(scope)
        try:
            with scope:
                yield scope
        finally:
            self._waiting.discard(scope)

    async def _finish(self, transfer: _Transfer, deadline: float) -> None:
        try:
            await _wait(transfer, self._patience(_until(deadline)), self._settle)
        except _NoThread as error:
            self._raw.leave()
            self._settle(transfer)
            raise DeviceError(self.name, errno.EAGAIN, "the system has no thread for it") from error
        except KeyboardInterrupt:  # passes every shield
            self._give_up(transfer)
            raise
        self._conclude(transfer)

    def _conclude(self, transfer: _Transfer) -> None:
        """What became of a transfer whose time is over."""
        if not transfer.done:
            self._give_up(transfer)
            raise self._timeout(transfer)
        try:
            transfer.result()
        except OSError as error:
            raise _translated(self.name, error) from error

    def _give_up(self, transfer: _Transfer) -> None:
        self._zombies.add(transfer)
        self._lost = self._lost or len(self._zombies) > self._zombie_limit

    def _settle(self, transfer: _Transfer) -> None:
        """In the trio thread, when the kernel has returned."""
        self._zombies.discard(transfer)
        self._limiter.release_on_behalf_of(transfer)

    def _timeout(self, pending: _Transfer | None) -> DeviceTimeout:
        if self._given_up:
            return DeviceGivenUp(
                self.name, errno.ETIMEDOUT, "it was given up with an operation in it", pending
            )
        where = "in the kernel" if pending else "in the queue"
        return DeviceTimeout(
            self.name, errno.ETIMEDOUT, f"no answer in {self._io_timeout} s ({where})", pending
        )


class _NoThread(Exception):
    """The work has not begun."""


def _until(deadline: float) -> trio.CancelScope:
    """A scope that nothing ends before the deadline but who cancels the scope itself."""
    return trio.CancelScope(deadline=deadline, shield=True)


async def _wait(
    transfer: _Transfer,
    patience: AbstractContextManager[object],
    settle: Callable[[_Transfer], None] | None = None,
) -> None:
    """Run a transfer in a thread and wait for it while there is patience.

    :param patience: a scope as `_until` makes it, which ends the wait
    :param settle: called in the trio thread when it has ended, however late
    :raises _NoThread:
    """
    _start(transfer, settle)
    with patience:
        await transfer.ended.wait()


def _start(transfer: _Transfer, settle: Callable[[_Transfer], None] | None) -> None:
    """Run a transfer in a thread.

    :param settle: called in the trio thread when it has ended, however late
    :raises _NoThread:
    """
    token = trio.lowlevel.current_trio_token()

    def arrive() -> None:
        if settle is not None:
            settle(transfer)
        transfer.ended.set()

    def deliver(outcome: Outcome[None]) -> None:
        transfer.finish(outcome)
        try:
            token.run_sync_soon(arrive)
        except trio.RunFinishedError:
            return  # a zombie that outlived the program's event loop: nobody counts any more

    try:
        trio.lowlevel.start_thread_soon(transfer.work, deliver)
    except RuntimeError as error:
        raise _NoThread from error


async def open_file_device(
    path: str | os.PathLike[str],
    *,
    writable: bool = True,
    io_timeout: float = IO_TIMEOUT,
    queue_depth: int = QUEUE_DEPTH,
) -> FileDevice:
    """Open a file or kernel block device.

    A file that has holes gets its blocks now, so that no later write can fail for want of space.

    :param io_timeout: seconds
    :raises DeviceError: it cannot be opened, is neither file nor block device, empty, in use by the kernel (mounted,
        part of a volume), or cannot do O_DIRECT; ENOSPC where the holes of a file cannot be filled
    :raises DeviceTimeout: opening it took longer than `io_timeout`
    """
    where = Path(path)
    raw = await _open_in_time(where, writable=writable, io_timeout=io_timeout)
    device = FileDevice(
        str(where),
        raw,
        writable=writable,
        io_timeout=io_timeout,
        queue_depth=queue_depth,
        begun=_begun_transfers(queue_depth, in_memory=raw.in_memory),
    )
    if writable and raw.has_holes():
        try:
            await _without_deadline(str(where), raw.allocate)
        except BaseException:
            await device.aclose()
            raise
    return device


def _begun_transfers(depth: int, *, in_memory: bool) -> BegunTransfers | None:
    try:
        return BegunTransfers(depth, in_memory=in_memory)
    except OSError as error:
        log.info("reads and writes take threads: %s", error.strerror)
        return None


async def create_file(path: str | os.PathLike[str], size: int) -> None:
    """Make a file of `size` bytes, all of them allocated; nothing is left of it after a failure.

    :raises DeviceError: EEXIST, ENOSPC, and what else the file system says
    """
    where = Path(path)
    await _without_deadline(str(where), lambda: create_allocated(where, size))


async def _without_deadline(name: str, work: Callable[[], None]) -> None:
    """For allocating, which takes long where the file system must write zeros to do it."""
    try:
        await trio.to_thread.run_sync(work)
    except OSError as error:
        raise _translated(name, error) from error


async def _open_in_time(path: Path, *, writable: bool, io_timeout: float) -> RawFile:
    opened: list[RawFile] = []
    transfer = _Transfer(lambda: opened.append(open_raw(path, writable=writable)), lambda: None)
    await _wait(transfer, _until(trio.current_time() + io_timeout))
    if not transfer.done:
        transfer.add_done_callback(lambda: _leave_all(opened))
        raise DeviceTimeout(str(path), errno.ETIMEDOUT, f"could not be opened in {io_timeout} s", transfer)
    try:
        transfer.result()
    except OSError as error:
        raise _translated(str(path), error) from error
    return opened[0]


def _leave_all(files: list[RawFile]) -> None:
    for raw in files:
        raw.leave()


def _translated(name: str, error: OSError) -> DeviceError:
    return DeviceError(name, error.errno or errno.EIO, error.strerror or str(error))
