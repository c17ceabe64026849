"""A device in memory, and the sparse bytes under it."""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING

import trio

from blockdev.device import Begun, check_span, check_transfer
from blockdev.errors import DeviceClosed, DeviceGivenUp, DeviceLost
from blockdev.types import KIB, PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 64 * KIB


class SparseBytes:
    """A fixed number of bytes, zero until written, kept in chunks that copies share.

    Making one and copying one cost nothing to speak of, whatever its size: a test crashes and reopens devices
    thousands of times.
    """

    __slots__ = ("_chunks", "_owned", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._chunks: dict[int, bytearray | memoryview] = {}
        self._owned: set[int] = set()
        """Chunks that no copy shares: bytearrays that may change in place."""

    def copy(self) -> SparseBytes:
        twin = SparseBytes(self.size)
        twin._chunks = self._chunks.copy()
        self._owned.clear()
        return twin

    def read_into(self, offset: int, buffer: memoryview) -> None:
        for chunk, start, at, length in _pieces(offset, buffer.nbytes):
            held = self._chunks.get(chunk)
            buffer[at : at + length] = bytes(length) if held is None else held[start : start + length]

    def read(self, offset: int, length: int) -> bytes:
        content = bytearray(length)
        self.read_into(offset, memoryview(content))
        return bytes(content)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """:param data: kept, not copied, where it fills a chunk: must not change afterwards"""
        view = memoryview(data)
        for chunk, start, at, length in _pieces(offset, view.nbytes):
            if length == CHUNK:
                self._chunks[chunk] = view[at : at + length]
                self._owned.discard(chunk)
            else:
                self._own(chunk)[start : start + length] = view[at : at + length]

    def zero(self, offset: int, length: int) -> None:
        for chunk, start, _, part in _pieces(offset, length):
            if part == CHUNK:
                self._chunks.pop(chunk, None)
                self._owned.discard(chunk)
            elif chunk in self._chunks:
                self._own(chunk)[start : start + part] = bytes(part)

    def _own(self, chunk: int) -> bytearray:
        held = self._chunks.get(chunk)
        if chunk in self._owned and isinstance(held, bytearray):
            return held
        mine = bytearray(CHUNK) if held is None else bytearray(held)
        self._chunks[chunk] = mine
        self._owned.add(chunk)
        return mine


def _pieces(offset: int, length: int) -> Iterator[tuple[int, int, int, int]]:
    """(chunk, start in the chunk, position in the span, bytes) of each chunk that a span touches."""
    done = 0
    while done < length:
        chunk, start = divmod(offset + done, CHUNK)
        part = min(CHUNK - start, length - done)
        yield chunk, start, done, part
        done += part


class MemoryDevice:
    """A device that neither fails nor keeps anything after the process.

    :param size: bytes
    """

    def __init__(self, size: int, *, name: str = "memory", block_size: int = PAGE) -> None:
        self._media = SparseBytes(size)
        self._name = name
        self._block_size = block_size
        self._closed = False
        self._lost = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return self._media.size

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def is_file(self) -> bool:
        return False

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=True)
        await self._begin()
        self._media.read_into(offset, buffer)

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        check_transfer(self, offset, buffer, fill=False)
        await self._begin()
        self._media.write(offset, bytes(buffer))

    def begin_write(self, offset: int, buffer: memoryview) -> Begun:
        check_transfer(self, offset, buffer, fill=False)
        self._check_usable()
        return Begun(lambda: None, partial(self._land, offset, buffer))

    async def _land(self, offset: int, buffer: memoryview) -> None:
        # Any moment until it is awaited is one at which it may reach the media.
        await trio.lowlevel.cancel_shielded_checkpoint()
        if self._lost:
            raise DeviceGivenUp(self.name, errno.ETIMEDOUT, "it was given up with an operation in it", None)
        self._media.write(offset, bytes(buffer))

    async def flush(self) -> None:
        await self._begin()

    async def discard(self, offset: int, length: int) -> None:
        check_span(self, offset, length)
        await self._begin()
        self._media.zero(offset, length)

    def give_up(self) -> None:
        self._lost = True

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.cancel_shielded_checkpoint()

    def reopen(self) -> MemoryDevice:
        """The same bytes as a device that is open again; this one is closed."""
        self._closed = True
        twin = MemoryDevice(self.size, name=self.name, block_size=self.block_size)
        twin._media = self._media
        return twin

    async def _begin(self) -> None:
        self._check_usable()
        await trio.lowlevel.checkpoint()

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceClosed(self.name, errno.EBADF, "the device is closed")
        if self._lost:
            raise DeviceLost(self.name, errno.ENODEV, "it was given up")
