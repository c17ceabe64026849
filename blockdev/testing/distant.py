"""A device at the other end of a network: each operation takes a while, many are under way at once, and they share a link."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from blockdev.device import check_span, check_transfer

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from blockdev.device import Begun, Device


class DistantDevice:
    """Another device, slower.

    An operation has to wait until the bytes of all before it are through the link, and then for its own and the latency.

    :param latency: seconds
    :param rate: of the link, bytes a second
    """

    def __init__(self, device: Device, *, latency: float, rate: float) -> None:
        self._device = device
        self._latency = latency
        self._rate = rate
        self._free_at = 0.0
        self._arriving: set[trio.CancelScope] = set()

    @property
    def name(self) -> str:
        return self._device.name

    @property
    def size(self) -> int:
        return self._device.size

    @property
    def block_size(self) -> int:
        return self._device.block_size

    @property
    def is_file(self) -> bool:
        return self._device.is_file

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=True)
        await self._far_away(buffer.nbytes, self._device.read_into(offset, buffer))

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=False)
        await self._far_away(buffer.nbytes, self._device.write_from(offset, buffer))

    def begin_write(self, offset: int, buffer: memoryview) -> Begun | None:
        begun = self._device.begin_write(offset, buffer)
        return begun and begun._replace(land=partial(self._land, begun, buffer.nbytes))

    async def _land(self, begun: Begun, length: int) -> None:
        await self._far_away(length, begun.land())

    async def flush(self) -> None:
        await self._far_away(0, self._device.flush())

    async def discard(self, offset: int, length: int) -> None:
        check_span(self, offset, length)
        await self._far_away(0, self._device.discard(offset, length))

    def give_up(self) -> None:
        self._device.give_up()
        for scope in self._arriving:
            scope.cancel()

    async def aclose(self) -> None:
        await self._device.aclose()

    async def _far_away(self, length: int, operation: Awaitable[None]) -> None:
        self._free_at = max(self._free_at, trio.current_time()) + length / self._rate
        arrives = self._free_at + self._latency
        await operation
        with trio.CancelScope(shield=True) as scope:
            self._arriving.add(scope)
            await trio.sleep_until(arrives)
        self._arriving.discard(scope)
