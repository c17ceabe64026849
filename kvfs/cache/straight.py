"""From devices straight into memory of a GPU, past the host's: opt-in, since nobody compares those bytes with their checksum.

What is seen instead, and for which extents that is enough, `blockdev.rechecking` says. Every other extent goes through the DRAM tier,
where it is compared; so does each one at first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockdev.rechecking import Rechecker
from blockdev.types import PAGE
from kvfs.errors import RecheckRefused
from kvfs.rdma_device import RdmaDevice
from rdma.errors import MemoryRefused

if TYPE_CHECKING:
    from blockdev.device import Device
    from blockdev.pool import Pool
    from blockdev.types import Descriptor
    from kvfs.cache.gpu import GpuMemory
    from rdma.cuda import GpuSpan

Keeping = Callable[[Sequence["GpuSpan"]], AbstractContextManager[None]]
"""Has memory registered with all devices that this process reaches by itself; `RdmaDevices.keeping`."""


@dataclass(slots=True)
class StraightCounts:
    """:ivar bytes: that went straight
    :ivar bytes_compared: that were wanted so, and were compared instead
    """

    bytes: int = 0
    bytes_compared: int = 0


class Straight:
    """Memory that extents may go straight into, and how they do."""

    def __init__(self, pool: Pool, keeping: Keeping) -> None:
        self._pool = pool
        self._keeping = keeping
        self._rechecker = Rechecker(pool.media, pool.reader, _connection_of)
        self._open: list[GpuSpan] = []
        self.counts = StraightCounts()

    @contextmanager
    def into(self, memory: GpuMemory) -> Iterator[None]:
        """Let extents go straight into this memory, for the length of the block.

        :raises RecheckRefused: no device of the pool, no network card, or the GPU cannot do that
        """
        devices = [one.device for one in self._pool.media.devices.values() if not one.lost]
        if not any(isinstance(device, RdmaDevice) for device in devices):
            raise RecheckRefused(
                f"no device of pool '{self._pool.name}' is read over RDMA by this process, so that nothing can go straight "
                "into a GPU: 'kvfs pool status' says how each is reached, docs/rdma.md what it takes"
            )
        span = memory.span
        with ExitStack() as stack:
            try:
                span.driver.settle()  # a GPU that cannot is better known now
                stack.enter_context(self._keeping([span]))
            except MemoryRefused as error:
                raise RecheckRefused(str(error)) from None
            stack.callback(self._open.remove, span)
            self._open.append(span)
            yield

    def takes(self, memory: GpuMemory) -> bool:
        """Whether an extent may go straight into this: it has whole pages of what was opened."""
        start, size = memory.span.address, memory.nbytes
        return size % PAGE == 0 and any(
            one.address <= start and start + size <= one.address + one.nbytes for one in self._open
        )

    async def read(self, record: Descriptor, index: int, into: GpuMemory) -> bool:
        """Read an extent; False: it has to be read and compared instead, whatever has reached its memory.

        :raises BlockError, CudaError:
        """
        span = into.span

        async def transfer(device: Device, offset: int) -> None:
            assert isinstance(device, RdmaDevice), "else nothing is known of its connection"
            await device.read_into(offset, span)
            span.driver.settle()

        went = await self._rechecker.read_extent(record, index, transfer)
        if went:
            self.counts.bytes += into.nbytes
        else:
            self.counts.bytes_compared += into.nbytes
        return went


def _connection_of(device: Device) -> Hashable | None:
    """The kernel connects its devices anew without saying so."""
    if isinstance(device, RdmaDevice) and device.is_connected:
        return (device, device.inner.sessions)
    return None
