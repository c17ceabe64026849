"""What stands in for hardware in tests; shipped: whoever uses these seams needs it."""

from __future__ import annotations

import os

from rdma.errors import CudaError
from rdma.host_memory import PAGE, address_of

OUT_OF_MEMORY = 2
INVALID_VALUE = 1
NOT_SUPPORTED = 801


class FakeCuda:
    """A CUDA driver whose GPU is a dictionary; as strict as the real one about what was allocated and pinned.

    :param size: bytes of the GPU's memory
    :param exports: its memory can be had as dma-bufs
    :ivar pinned: host memory by its address: bytes
    :ivar memory: the GPU's by its address
    :ivar shared: addresses of what copies wait for
    :ivar settled: how often what others have written was made to be seen
    """

    FIRST = 0x7F00_0000_0000

    def __init__(self, size: int = 1 << 30, *, exports: bool = True) -> None:
        self._size = size
        self._next = self.FIRST
        self.pinned: dict[int, int] = {}
        self.memory: dict[int, bytearray] = {}
        self.shared: set[int] = set()
        self.settled = 0
        self._exports = exports

    def pin(self, view: memoryview) -> None:
        if address_of(view) in self.pinned:
            raise CudaError("cuMemHostRegister failed: already registered", 712)
        self.pinned[address_of(view)] = view.nbytes

    def unpin(self, view: memoryview) -> None:
        if self.pinned.pop(address_of(view), None) is None:
            raise CudaError("cuMemHostUnregister failed: not registered", 713)

    def allocate(self, size: int) -> int:
        if sum(map(len, self.memory.values())) + size > self._size:
            raise CudaError("cuMemAlloc failed: out of memory", OUT_OF_MEMORY)
        address = self._next
        self._next += size + PAGE  # so that an overrun is nobody's memory
        self.memory[address] = bytearray(size)
        return address

    def free(self, address: int) -> None:
        if self.memory.pop(address, None) is None:
            raise CudaError("cuMemFree failed: not allocated", INVALID_VALUE)

    def copy_in(self, address: int, source: memoryview) -> None:
        self.reached(address, source.nbytes)[:] = source

    def copy_out(self, into: memoryview, address: int) -> None:
        into[:] = self.reached(address, into.nbytes)

    def export(self, address: int, size: int) -> int:
        """A descriptor of a file that has the bytes: closed like a dma-buf's."""
        content = self.reached(address, size)
        if address % PAGE or size % PAGE:
            raise CudaError("cuMemGetHandleForAddressRange failed: invalid value", INVALID_VALUE)
        if not self._exports:
            raise CudaError("cuMemGetHandleForAddressRange failed: not supported", NOT_SUPPORTED)
        descriptor = os.memfd_create("dma-buf")
        os.write(descriptor, content)
        return descriptor

    def share(self, address: int) -> None:
        self.reached(address, 1)
        self.shared.add(address)

    def settle(self) -> None:
        self.settled += 1

    def reached(self, address: int, size: int) -> memoryview:
        """Its bytes, as a network card reads and writes them."""
        for start, content in self.memory.items():
            if start <= address and address + size <= start + len(content):
                return memoryview(content)[address - start : address - start + size]
        raise CudaError(f"no {size} bytes are allocated at {address:#x}", INVALID_VALUE)
