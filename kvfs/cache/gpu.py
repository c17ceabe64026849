"""Callers' memory on a GPU: bytes get there and back through memory of the host, where they are verified.

The driver's copies wait for nothing that the GPU still does in streams of its own: whoever computes with a tensor that is read
into, or stored, synchronises first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockdev.memory import page_buffer
from rdma.cuda import CudaDriver, GpuSpan

DriverOf = Callable[[int], CudaDriver]
"""The driver of a GPU, by its number. :raises CudaError:"""


class GpuMemory:
    """Bytes of a GPU, which can be cut like a memoryview and filled from one.

    :param address: of the first byte
    :param owner: what must live as long
    """

    __slots__ = ("_address", "_driver", "_owner", "nbytes")

    def __init__(self, driver: CudaDriver, address: int, nbytes: int, owner: object) -> None:
        self._driver = driver
        self._address = address
        self._owner = owner
        self.nbytes = nbytes

    @property
    def span(self) -> GpuSpan:
        """For network cards."""
        return GpuSpan(self._driver, self._address, self.nbytes)

    def __getitem__(self, part: slice) -> GpuMemory:
        start, stop, _ = part.indices(self.nbytes)
        return GpuMemory(self._driver, self._address + start, max(0, stop - start), self._owner)

    def __setitem__(self, part: slice, content: Any) -> None:  # noqa: ANN401 - what has the buffer protocol, or is on a GPU
        """:raises CudaError: ValueError: another number of bytes"""
        target = self[part]
        source = content.fetched() if isinstance(content, GpuMemory) else memoryview(content)
        if source.nbytes != target.nbytes:
            raise ValueError(f"{source.nbytes} bytes do not fill {target.nbytes}")
        if source.nbytes:
            self._driver.copy_in(target._address, source)

    def fetched(self) -> memoryview:
        """A copy of the bytes, on the host, as devices take them. :raises CudaError:"""
        view = page_buffer(self.nbytes)
        if self.nbytes:
            self._driver.copy_out(view, self._address)
        return view
