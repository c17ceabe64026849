"""What stands in for hardware in tests; shipped: whoever uses these seams needs it."""

from __future__ import annotations

import os

from rdma.errors import CudaError
from rdma.host_memory import PAGE, address_of

OUT_OF_MEMORY = 2
INVALID_VALUE = 1


class FakeCuda:
    """A CUDA driver whose GPU is a dictionary; as strict as the real one about what was allocated and pinned.

    :param size: bytes of the GPU's memory
    :ivar pinned: host memory by its address: bytes
    :ivar memory: the GPU's by its address
    """

    FIRST = 0x7F00_0000_0000

    def __init__(self, size: int = 1 << 30) -> None:
        self._size = size
        self._next = self.FIRST
        self.pinned: dict[int, int] = {}
        self.memory: dict[int, bytearray] = {}

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
        self._at(address, source.nbytes)[:] = source

    def copy_out(self, into: memoryview, address: int) -> None:
        into[:] = self._at(address, into.nbytes)

    def export(self, address: int, size: int) -> int:
        """A descriptor of a file that has the bytes: closed like a dma-buf's."""
        descriptor = os.memfd_create("dma-buf")
        os.write(descriptor, self._at(address, size))
        return descriptor

    def _at(self, address: int, size: int) -> memoryview:
        for start, content in self.memory.items():
            if start <= address and address + size <= start + len(content):
                return memoryview(content)[address - start : address - start + size]
        raise CudaError(f"no {size} bytes are allocated at {address:#x}", INVALID_VALUE)
