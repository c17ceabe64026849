"""Initiators as devices of a pool: the same calls, with the errors of blockdev."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

from blockdev.device import Begun, check_transfer
from blockdev.errors import DeviceClosed, DeviceError, DeviceGivenUp, DeviceLost, DeviceTimeout
from rdma.errors import NvmeError, TransportClosed, TransportError, TransportTimeout
from rdma.initiator import Initiator


class Translated:
    """An initiator as `blockdev.device.Device`. What it gave up is fenced off, so that nothing is pending."""

    is_file = False

    def __init__(self, inner: Initiator) -> None:
        self.inner = inner
        self.name, self.size, self.block_size = inner.name, inner.size, inner.block_size
        self._given_up = self._closed = False

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        await self._do(lambda: self.inner.read_into(offset, buffer))

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        await self._do(lambda: self.inner.write_from(offset, buffer))

    def begin_write(self, offset: int, buffer: memoryview) -> Begun | None:
        check_transfer(self, offset, buffer, fill=False)
        self._check_usable()
        return None

    async def flush(self) -> None:
        await self._do(self.inner.flush)

    async def discard(self, offset: int, length: int) -> None:
        await self._do(lambda: self.inner.discard(offset, length))

    def give_up(self) -> None:
        self._given_up = True
        self.inner.give_up()

    async def aclose(self) -> None:
        self._closed = True
        await self.inner.aclose()

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceClosed(self.name, errno.EBADF, "the device is closed")
        if self._given_up:
            raise DeviceLost(self.name, errno.ENODEV, "it was given up")

    async def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        self._check_usable()
        try:
            await work()
        except TransportClosed as error:
            if self._given_up:
                raise DeviceGivenUp(self.name, errno.ETIMEDOUT, str(error), None) from error
            raise DeviceClosed(self.name, errno.EBADF, str(error)) from error
        except TransportTimeout as error:
            raise DeviceTimeout(self.name, errno.ETIMEDOUT, str(error), None) from error
        except (TransportError, NvmeError) as error:
            raise DeviceError(self.name, errno.EIO, str(error)) from error
