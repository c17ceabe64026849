"""A device that fails as devices do: late, partly, not at all as promised, and all at once.

What it models
- A write that returned is in the volatile cache; `flush` makes it durable. The cache is bounded: its oldest writes
  become durable by themselves.
- `crash("kill")` is the end of the process: returned writes survive (still in the cache, so that a power cut may yet
  follow), those under way survive in part.
- `crash("power")` is the end of the host: of all that was not flushed any subset survives, in any order, and any
  of it may be torn at `torn` bytes.
- A write that fails leaves any part of itself. An operation beyond the deadline goes on behind its caller's back:
  a late read still fills the buffer, a late write still reaches the media.

Every choice comes from the `random.Random` it is given.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import trio

from blockdev.device import Begun, check_span, check_transfer
from blockdev.errors import DeviceClosed, DeviceError, DeviceGivenUp, DeviceLost, DeviceTimeout
from blockdev.testing.faults import Fault, LatePending, Operation, RandomFaults
from blockdev.testing.memory import SparseBytes
from blockdev.types import MIB, PAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


@dataclass(slots=True)
class _Script:
    fault: Fault
    operation: Operation | None
    skip: int
    count: int
    span: range | None

    def matches(self, operation: Operation, offset: int, length: int) -> bool:
        if self.operation not in (None, operation):
            return False
        return self.span is None or (offset < self.span.stop and offset + length > self.span.start)


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    offset: int
    data: bytes
    order: int = 0
    """Position among the writes that returned."""


class FaultyDevice:
    """A device in memory with a volatile write cache, faults and crashes.

    :param size: bytes
    :param rng: decides everything that is left to chance
    :param io_timeout: seconds until an operation is given up
    :param cache_size: most bytes of unflushed writes
    """

    def __init__(
        self,
        size: int,
        rng: Random,
        *,
        name: str = "faulty",
        block_size: int = PAGE,
        io_timeout: float = 5.0,
        cache_size: int = 64 * MIB,
    ) -> None:
        self._rng = rng
        self._name = name
        self._block_size = block_size
        self._io_timeout = io_timeout
        self._cache_size = cache_size
        self._media = SparseBytes(size)
        """What a power cut leaves for certain."""
        self._view = SparseBytes(size)
        """What a read returns: the media with all returned writes."""
        self._unflushed: deque[_Write] = deque()
        self._unflushed_bytes = 0
        self._returned = 0
        self._in_flight: dict[_Write, None] = {}
        self._scripts: list[_Script] = []
        self._stopped: tuple[type[DeviceClosed | DeviceLost], str] | None = None
        self._given_up = False
        self._waiting: set[trio.CancelScope] = set()
        """Of the callers of what is delayed."""
        self._thawed: trio.Event | None = None
        self._released = trio.Event()
        self._late = 0
        self.random_faults = RandomFaults()
        """Applied where no scripted fault is; may be replaced at any time."""
        self.on_operation: Callable[[Operation, int, int], None] | None = None
        """Called with operation, offset and length when one begins, before it has any effect; may freeze the
        device or crash it."""
        self.operations: Counter[Operation] = Counter()
        """How many began."""
        self.late_limit = 16
        """With more operations than this beyond their deadline the device is lost."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return self._view.size

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def is_file(self) -> bool:
        return False

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=True)
        await self._operate(
            Operation.READ, offset, buffer.nbytes, lambda _: self._view.read_into(offset, buffer)
        )

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=False)
        self._check_usable()
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._write(offset, buffer)

    def begin_write(self, offset: int, buffer: memoryview) -> Begun:
        check_transfer(self, offset, buffer, fill=False)
        self._check_usable()
        # Any moment until it is awaited is one at which it may reach the media.
        return Begun(lambda: None, partial(self._write, offset, buffer))

    async def _write(self, offset: int, buffer: memoryview) -> None:
        write = _Write(offset, bytes(buffer))

        def effect(fault: Fault) -> None:
            del self._in_flight[write]
            self._keep(self._torn(write, self.block_size) if fault.errno else [write])

        await self._carry_out(Operation.WRITE, offset, buffer.nbytes, effect, write)

    async def flush(self) -> None:
        promised = self._returned

        def effect(fault: Fault) -> None:
            while not fault.errno and self._unflushed and self._unflushed[0].order <= promised:
                self._settle_oldest()

        await self._operate(Operation.FLUSH, 0, 0, effect)

    async def discard(self, offset: int, length: int) -> None:
        check_span(self, offset, length)
        # What discarded bytes read as is undefined: sometimes what they were, sometimes zeros.
        zeros = self._rng.random() < 0.5

        def effect(fault: Fault) -> None:
            if zeros and not fault.errno:
                self._keep([_Write(offset, bytes(length))])

        await self._operate(Operation.DISCARD, offset, length, effect)

    def give_up(self) -> None:
        self._given_up = True
        for scope in self._waiting:
            scope.cancel()

    async def aclose(self) -> None:
        if self._stopped is None:
            self._stopped = (DeviceClosed, "the device is closed")
        await trio.lowlevel.cancel_shielded_checkpoint()

    def inject(
        self,
        fault: Fault,
        *,
        operation: Operation | None = None,
        skip: int = 0,
        count: int = 1,
        span: range | None = None,
    ) -> None:
        """Let `fault` happen to the next `count` operations that match, after `skip` of them.

        :param operation: None matches any
        :param span: bytes that the operation must touch; None matches any
        """
        self._scripts.append(_Script(fault, operation, skip, count, span))

    def release(self) -> None:
        """Let everything that is delayed end now, also what is beyond its deadline."""
        self._released.set()
        self._released = trio.Event()

    def freeze(self) -> None:
        """Stop the world: operations neither end nor time out until `thaw` or `crash`."""
        if self._thawed is None:
            self._thawed = trio.Event()

    def thaw(self) -> None:
        if self._thawed is not None:
            self._thawed.set()
            self._thawed = None

    def lose(self) -> None:
        """The device is gone: everything, also what is under way, raises DeviceLost."""
        self._stop()

    def crash(self, mode: Literal["kill", "power"] = "power", *, torn: int = 512) -> FaultyDevice:
        """The device as it is found after a crash at this instant; this one is lost.

        May be called again for another outcome of the same crash. Faults and scripts are not inherited.

        :param torn: bytes; a write that survives in part is cut at multiples of it
        """
        self._stop()
        heir = FaultyDevice(
            self.size,
            self._rng,
            name=self.name,
            block_size=self.block_size,
            io_timeout=self._io_timeout,
            cache_size=self._cache_size,
        )
        if mode == "kill":
            self._survive_kill(heir, torn)
        else:
            self._survive_power(heir, torn)
        return heir

    def reopen(self) -> FaultyDevice:
        """The same device, open again; this one is lost. What was not flushed is still in the cache."""
        return self.crash("kill", torn=self.block_size)

    def _survive_kill(self, heir: FaultyDevice, torn: int) -> None:
        heir._media, heir._view = self._media.copy(), self._view.copy()
        heir._unflushed = self._unflushed.copy()
        heir._unflushed_bytes, heir._returned = self._unflushed_bytes, self._returned
        for write in self._in_flight:
            heir._keep(self._torn(write, torn))

    def _survive_power(self, heir: FaultyDevice, torn: int) -> None:
        heir._media = self._media.copy()
        volatile = [*self._unflushed, *self._in_flight]
        self._rng.shuffle(volatile)
        for write in volatile:
            for piece in self._torn(write, torn):
                heir._media.write(piece.offset, piece.data)
        heir._view = heir._media.copy()

    def _torn(self, write: _Write, unit: int) -> list[_Write]:
        """What is left of a write: nothing, all, or some runs of units, each a third of the time."""
        fate = self._rng.randrange(3)
        units = len(write.data) // unit
        if fate == 0:
            return []
        if fate == 1 or units <= 1:
            return [write]
        cuts = sorted(self._rng.sample(range(1, units), min(units - 1, self._rng.randint(1, 4))))
        edges = [0, *cuts, units]
        first = self._rng.randrange(2)
        runs = list(pairwise(edges))[first::2]
        return [_Write(write.offset + a * unit, write.data[a * unit : b * unit]) for a, b in runs]

    def _keep(self, writes: list[_Write]) -> None:
        """Into the cache; visible to reads."""
        for write in writes:
            self._returned += 1
            self._unflushed.append(_Write(write.offset, write.data, self._returned))
            self._unflushed_bytes += len(write.data)
            self._view.write(write.offset, write.data)
        while self._unflushed_bytes > self._cache_size:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        write = self._unflushed.popleft()
        self._unflushed_bytes -= len(write.data)
        self._media.write(write.offset, write.data)

    def _stop(self) -> None:
        self._stopped = (DeviceLost, "the device is lost")
        self.thaw()

    @property
    def _is_lost(self) -> bool:
        return self._stopped is not None and self._stopped[0] is DeviceLost

    def _check_usable(self) -> None:
        self._check_not_stopped()
        if self._given_up:
            raise DeviceLost(self.name, errno.ENODEV, "it was given up")

    def _check_not_stopped(self) -> None:
        if self._stopped is not None:
            error, reason = self._stopped
            raise error(self.name, errno.EBADF if error is DeviceClosed else errno.ENODEV, reason)

    def _fate(self, operation: Operation, offset: int, length: int) -> Fault:
        for script in self._scripts:
            if not script.count or not script.matches(operation, offset, length):
                continue
            if script.skip:
                script.skip -= 1
                continue
            script.count -= 1
            return script.fault
        chance = self.random_faults
        delay = self._rng.uniform(*chance.delay) if chance.delay[1] else 0.0
        if chance.timeout_rate and self._rng.random() < chance.timeout_rate:
            delay = self._io_timeout + self._rng.uniform(0.0, chance.late)
        failed = bool(chance.error_rate) and self._rng.random() < chance.error_rate
        return Fault(errno.EIO if failed else 0, delay)

    async def _operate(
        self, operation: Operation, offset: int, length: int, effect: Callable[[Fault], None]
    ) -> None:
        self._check_usable()
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._carry_out(operation, offset, length, effect)

    async def _carry_out(
        self,
        operation: Operation,
        offset: int,
        length: int,
        effect: Callable[[Fault], None],
        write: _Write | None = None,
    ) -> None:
        """Of what has begun, also if the device was given up since."""
        self._check_not_stopped()
        self.operations[operation] += 1
        if self.on_operation is not None:
            self.on_operation(operation, offset, length)
            self._check_not_stopped()
        fault = self._fate(operation, offset, length)
        if write is not None:
            self._in_flight[write] = None
        released = self._released
        patience = trio.CancelScope(deadline=trio.current_time() + self._io_timeout)
        if self._given_up:
            patience.cancel()
        self._waiting.add(patience)
        with trio.CancelScope(shield=True):
            left = await self._pass(fault.delay, released, patience)
            await self._wait_until_thawed()
        self._waiting.discard(patience)
        self._raise_if_gone()
        if left:
            self._go_on_late(fault, effect, left, released)
        effect(fault)
        if fault.errno:
            raise DeviceError(self.name, fault.errno, os.strerror(fault.errno))

    def _raise_if_gone(self) -> None:
        """An operation that was under way when the device was closed still ends; when it was lost it does not."""
        if self._is_lost:
            self._check_not_stopped()

    async def _pass(self, delay: float, released: trio.Event, patience: trio.CancelScope) -> float:
        """Let time pass; seconds of the delay that are left when patience ends. `release` leaves none."""
        if not delay:
            await trio.lowlevel.checkpoint()
            return 0.0
        until = trio.current_time() + delay
        patience.deadline = min(patience.deadline, until)
        with patience:
            await released.wait()
            return 0.0
        return max(0.0, until - trio.current_time())

    async def _wait_until_thawed(self) -> None:
        while self._thawed is not None:
            await self._thawed.wait()

    def _go_on_late(
        self, fault: Fault, effect: Callable[[Fault], None], left: float, released: trio.Event
    ) -> None:
        """For `left` seconds more. :raises DeviceTimeout:"""
        pending = LatePending()

        async def finish() -> None:
            await self._pass(left, released, trio.CancelScope())
            await self._wait_until_thawed()
            if not self._is_lost:
                effect(fault)
            self._late -= 1
            pending.finish()

        trio.lowlevel.spawn_system_task(finish)
        self._late += 1
        if self._given_up:
            raise DeviceGivenUp(self.name, errno.ETIMEDOUT, "it was given up", pending)
        if self._late > self.late_limit:
            self._stopped = (DeviceLost, "too many operations are stuck")
        raise DeviceTimeout(self.name, errno.ETIMEDOUT, f"no answer in {self._io_timeout} s", pending)
