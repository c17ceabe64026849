"""The seam to media: a Device reads and writes whole, aligned blocks, every operation with a deadline.

Implementations: `FileDevice` (files and kernel block devices, O_DIRECT), and in `testing` a `MemoryDevice` and a
`FaultyDevice`. `testing.check_device` is the conformance suite that each of them passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from blockdev.memory import is_page_aligned


class Begun(NamedTuple):
    """A write that has its place in the device's queue."""

    start: Callable[[], None]
    """Gives it to the device; to be called at once, by any thread."""
    land: Callable[[], Awaitable[None]]
    """Waits for it; to be awaited once, even if the device was given up or closed meanwhile. Raises what
    `Device.write_from` does."""


class Device(Protocol):
    """Random access to a fixed number of bytes.

    Offsets and lengths are multiples of `block_size` and inside the device; buffers are contiguous bytes, and page
    aligned in memory. Anything else is the caller's mistake: ValueError. Operations on one device may overlap and
    complete in any order.

    An operation either completes, or raises within the device's I/O time-out. It is not cut short by cancellation
    of the caller: when it raises Cancelled, nothing of it is running: it has not begun.
    """

    @property
    def name(self) -> str:
        """For people: a path, or the address of a namespace."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def block_size(self) -> int:
        """Bytes; a power of two, at most 4096."""

    @property
    def is_file(self) -> bool:
        """A file in a file system: first writes to a part of it are slower than later ones."""

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`.

        :raises DeviceTimeout: the deadline passed; the buffer is not the caller's until `pending.done`. Without a
            `pending` it waited in the queue and has not begun
        :raises DeviceGivenUp: the same, before the deadline
        :raises DeviceClosed, DeviceLost, DeviceError:
        """

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        """Write `buffer` at `offset`. Durable against a killed process when it returns, against a power loss
        after `flush`.

        :raises DeviceTimeout: the deadline passed; the media may still change until `pending.done`
        :raises DeviceGivenUp: the same, before the deadline
        :raises DeviceClosed, DeviceLost, DeviceError:
        """

    def begin_write(self, offset: int, buffer: memoryview) -> Begun | None:
        """As `write_from`, for who must not wait; None if it has to. Also from another thread, while the trio thread
        waits. The buffer must stay until the write has landed, or `pending.done` if it was given up.

        :raises DeviceClosed, DeviceLost, DeviceError:
        """

    async def flush(self) -> None:
        """Make every write that has returned durable against a power loss.

        :raises DeviceTimeout, DeviceClosed, DeviceLost, DeviceError:
        """

    async def discard(self, offset: int, length: int) -> None:
        """Say that these bytes are not needed any more; a hint, what they read as afterwards is undefined.
        Does nothing where the device cannot.

        :raises DeviceTimeout, DeviceClosed, DeviceLost, DeviceError:
        """

    def give_up(self) -> None:
        """Wait no longer for what is under way, writes included that were begun and are not awaited yet: it raises
        DeviceGivenUp, as it would DeviceTimeout; what comes later raises DeviceLost. For who knows from elsewhere that
        nothing will answer.
        """

    async def aclose(self) -> None:
        """Release the device; harmless when repeated. Waits for nothing that is stuck."""


def check_span(device: Device, offset: int, length: int) -> None:
    """For implementations: refuse what is misaligned or out of range.

    :raises ValueError:
    """
    block = device.block_size
    if offset % block or length % block:
        raise ValueError(
            f"{device.name}: offset {offset} or length {length} is not a multiple of {block} bytes"
        )
    if offset < 0 or length < 0 or offset + length > device.size:
        raise ValueError(f"{device.name}: {length} bytes at {offset} are not inside its {device.size} bytes")


def check_transfer(device: Device, offset: int, buffer: memoryview, *, fill: bool) -> None:
    """For implementations: refuse a span or a buffer that O_DIRECT or a registered transfer could not use.

    :param fill: the transfer writes into the buffer
    :raises ValueError:
    """
    if not buffer.c_contiguous or buffer.itemsize != 1 or buffer.ndim != 1:
        raise ValueError(f"{device.name}: the buffer is not one contiguous run of bytes")
    if fill and buffer.readonly:
        raise ValueError(f"{device.name}: the buffer to read into is read-only")
    check_span(device, offset, buffer.nbytes)
    if buffer.nbytes and not is_page_aligned(buffer):
        raise ValueError(f"{device.name}: the buffer does not begin on a page in memory")
