"""Memory that transfers land in: one arena, prepared once, lent in leases.

A lease is a run of whole frames, and a context manager. What must always hold: **bytes of a transfer that was given up
never land in memory that was handed on.** A device says of such a transfer when it has really ended (`Pending`); until
then the lease that it moves to or from is a *zombie*: nobody holds it any more, and nobody gets its frames. So

    free      lent next
    leased    somebody holds it
    zombie    given up by its holder, while a transfer may still touch it

Everything here may be called from any thread, since the end of a transfer is reported from the one that saw it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rdma.cuda import CudaDriver, open_driver
from rdma.errors import LeaseEnded, NoBuffers
from rdma.host_memory import PAGE, address_of, host_memory, unlock

if TYPE_CHECKING:
    from collections.abc import Callable


class Pending(Protocol):
    """A transfer that was given up and has not ended; `blockdev.errors.Pending` is one."""

    @property
    def done(self) -> bool: ...

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from any thread, when it has ended (at once if it has)."""


class Kind(StrEnum):
    """Where an arena's memory is."""

    HOST = "host"
    PINNED = "pinned"
    """Of the host, and pinned for the GPU, which copies from there at full speed."""
    DEVICE = "device"
    """Of the GPU."""


class Memory(Protocol):
    """The memory of an arena, before it is cut into frames.

    :ivar address: of its first byte, where whoever transfers finds it
    :ivar view: its bytes; None where the processor cannot reach them
    """

    @property
    def address(self) -> int: ...

    @property
    def view(self) -> memoryview | None: ...

    def close(self) -> None:
        """Give it back; nothing may be using it."""


class HostMemory:
    """Memory of the host, pinned for the GPU if `driver` is given.

    :param size: bytes
    :raises LockRefused, CudaError, OSError:
    """

    def __init__(
        self, size: int, *, huge_pages: bool = True, lock: bool = False, driver: CudaDriver | None = None
    ) -> None:
        self.view: memoryview = host_memory(size, huge_pages=huge_pages, lock=lock)
        self.address = address_of(self.view)
        self._is_locked = lock
        self._driver = driver
        if driver is not None:
            driver.pin(self.view)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.unpin(self.view)
            self._driver = None
        if self._is_locked:
            unlock(self.view)
            self._is_locked = False


class DeviceMemory:
    """Memory of the GPU. :raises CudaError:"""

    view = None

    def __init__(self, size: int, driver: CudaDriver) -> None:
        self._driver = driver
        self.address = driver.allocate(size)

    def close(self) -> None:
        if self.address:
            self._driver.free(self.address)
            self.address = 0


def allocate(
    size: int,
    kind: Kind = Kind.HOST,
    *,
    huge_pages: bool = True,
    lock: bool = False,
    driver: CudaDriver | None = None,
) -> Memory:
    """Memory of a kind.

    :param lock: of the host's kinds: keep it from being swapped out
    :param driver: of the GPU's kinds: instead of the system's
    :raises LockRefused, CudaError, OSError:
    """
    if kind is Kind.HOST:
        return HostMemory(size, huge_pages=huge_pages, lock=lock)
    driver = driver or open_driver()
    if kind is Kind.PINNED:
        return HostMemory(size, huge_pages=huge_pages, lock=lock, driver=driver)
    return DeviceMemory(size, driver)


class Lease:
    """A run of frames that is its holder's until `close`, or the end of its `with` block.

    :ivar size: bytes that were asked for; the frames may have more
    :ivar address: of the first byte
    """

    def __init__(self, arena: Arena, frames: range, size: int) -> None:
        self._arena = arena
        self._frames = frames
        self.size = size
        self._closed = False
        self._pending = 0
        start = frames.start * arena.frame_size
        self.address = arena.address + start
        whole = arena.view
        self._view = None if whole is None else whole[start : start + size]

    @property
    def view(self) -> memoryview:
        """Its bytes; what is in them is left over from earlier use. They may not be used after `close`.

        :raises LeaseEnded:
        :raises TypeError: they are the GPU's
        """
        if self._closed:
            raise LeaseEnded("the lease was given up: its memory may be somebody else's by now")
        if self._view is None:
            raise TypeError("the processor cannot reach memory of the GPU: copy it")
        return self._view

    def hold_until(self, pending: Pending) -> None:
        """Keep the memory from others, beyond `close`, until a transfer that was given up has ended.

        :raises LeaseEnded: it may be somebody else's already
        """
        self._arena._hold(self)
        pending.add_done_callback(lambda: self._arena._ended(self))

    def close(self) -> None:
        """Give it up; harmless when repeated."""
        self._arena._give_up(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class ArenaStatistics:
    """An arena at one moment. `free + leased + zombies == frames`."""

    frames: int
    frame_size: int
    """Bytes."""
    free: int
    leased: int
    zombies: int
    """Given up by their holders, while a transfer may still touch them."""
    refused: int
    """Leases that were not to be had, since it was made."""


class Arena:
    """Frames of one piece of memory.

    :param memory: owned from now on
    :param size: its bytes; rounded down to whole frames
    :param frame_size: bytes; a multiple of 4 KiB
    :raises ValueError: no room for one frame, or `frame_size` is not whole pages
    """

    def __init__(self, memory: Memory, size: int, frame_size: int) -> None:
        if frame_size <= 0 or frame_size % PAGE:
            raise ValueError(f"frame size {frame_size} is not a multiple of {PAGE} bytes")
        if size < frame_size:
            raise ValueError(f"{size} bytes do not hold one frame of {frame_size} bytes")
        self.frame_size = frame_size
        self._memory = memory
        self._lock = threading.Lock()
        self._taken = [False] * (size // frame_size)
        self._leased = 0
        self._zombies = 0
        self._refused = 0
        self._closed = False

    @property
    def address(self) -> int:
        """Of the first frame."""
        return self._memory.address

    @property
    def view(self) -> memoryview | None:
        """All of it; None where the processor cannot reach it. For whoever registers it."""
        return self._memory.view

    def lease(self, size: int) -> Lease:
        """Lend `size` bytes, in one piece.

        :raises NoBuffers: there is no such piece now
        :raises ValueError: there never is
        """
        count = -(-size // self.frame_size)
        if not 0 < count <= len(self._taken):
            most = len(self._taken) * self.frame_size
            raise ValueError(f"a lease of {size} bytes is not to be had from an arena of {most}")
        with self._lock:
            start = -1 if self._closed else self._find(count)
            if start < 0:
                self._refused += 1
                free = len(self._taken) - self._leased - self._zombies
                why = "is closed" if self._closed else f"has {free * self.frame_size} bytes left, in pieces"
                raise NoBuffers(
                    f"no piece of {size} bytes: the arena {why}; give back leases, or make it larger"
                )
            frames = range(start, start + count)
            self._mark(frames, taken=True)
            self._leased += count
            return Lease(self, frames, size)

    def close(self) -> bool:
        """Lend nothing any more, and give the memory back as soon as nobody holds any of it; whether that is now."""
        with self._lock:
            self._closed = True
            return self._release()

    def statistics(self) -> ArenaStatistics:
        """A frozen snapshot."""
        with self._lock:
            frames = len(self._taken)
            free = frames - self._leased - self._zombies
            return ArenaStatistics(frames, self.frame_size, free, self._leased, self._zombies, self._refused)

    # ── for leases ───────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, lease: Lease) -> None:
        with self._lock:
            if lease._closed:
                raise LeaseEnded("the lease was given up: its memory may be somebody else's by now")
            lease._pending += 1

    def _ended(self, lease: Lease) -> None:
        with self._lock:
            lease._pending -= 1
            if lease._closed and not lease._pending:
                self._zombies -= len(lease._frames)
                self._mark(lease._frames, taken=False)
                self._release()

    def _give_up(self, lease: Lease) -> None:
        with self._lock:
            if lease._closed:
                return
            lease._closed = True
            count = len(lease._frames)
            self._leased -= count
            if lease._pending:
                self._zombies += count
            else:
                self._mark(lease._frames, taken=False)
                self._release()

    def _find(self, count: int) -> int:
        """Where the first run of free frames begins that is long enough; -1 if there is none."""
        run = 0
        for number, taken in enumerate(self._taken):
            run = 0 if taken else run + 1
            if run == count:
                return number - count + 1
        return -1

    def _mark(self, frames: range, *, taken: bool) -> None:
        self._taken[frames.start : frames.stop] = [taken] * len(frames)

    def _release(self) -> bool:
        done = self._closed and not self._leased and not self._zombies
        if done:
            self._memory.close()
        return done
