"""The seam to the CUDA driver: the few calls that memory for transfers needs.

`open_driver` loads the system's libcuda. `rdma.testing.FakeCuda` is the driver for machines and tests without a GPU.
Nothing here needs torch, nor a CUDA toolkit.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple, Protocol

from rdma.errors import CudaError
from rdma.host_memory import address_of


class CudaDriver(Protocol):
    """What is needed of a driver. Every call may raise CudaError.

    Addresses are those of the unified address space: a device address means the same in every call.
    """

    def pin(self, view: memoryview) -> None:
        """Let the GPU reach host memory directly; it must stay pinned until `unpin`."""

    def unpin(self, view: memoryview) -> None: ...

    def allocate(self, size: int) -> int:
        """`size` bytes of the GPU's memory; returns their address."""

    def free(self, address: int) -> None: ...

    def copy_in(self, address: int, source: memoryview) -> None:
        """From host to GPU; returns when it is done."""

    def copy_out(self, into: memoryview, address: int) -> None:
        """From GPU to host; returns when it is done."""

    def export(self, address: int, size: int) -> int:
        """A dma-buf of GPU memory, by which a network card reaches it; the caller closes the descriptor. Both are whole pages."""

    def share(self, address: int) -> None:
        """Have copies from and to this allocation done when their calls return, all of them: for what others write to, too."""

    def settle(self) -> None:
        """Have what network cards have written to the GPU's memory seen by whatever runs there from now on; some GPUs see to it
        by themselves."""


class GpuSpan(NamedTuple):
    """Bytes of a GPU, for a network card to read and write.

    :ivar address: of the first one
    """

    driver: CudaDriver
    address: int
    nbytes: int


_SUCCESS: Final = 0
_DMA_BUF_FD: Final = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_SYNC_MEMOPS: Final = 6  # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
_WRITES_ORDERING: Final = 118  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
_CURRENT_CONTEXT: Final = 0  # CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
_TO_OWNER: Final = 100  # CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
_PORTABLE: Final = (
    1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context, whichever is current in a thread
)


class SystemCuda:
    """The system's driver, for one GPU, in its primary context: the one that torch uses.

    :param library: libcuda, loaded
    :param device: the GPU's number
    :raises CudaError:
    """

    def __init__(self, library: Any, device: int = 0) -> None:  # noqa: ANN401 - ctypes resolves names as they are used
        self._cuda = library
        self._call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(device))
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self._sees_writes: bool | None = None

    def pin(self, view: memoryview) -> None:
        self._enter()
        self._call(
            "cuMemHostRegister_v2", _host(view), ctypes.c_size_t(view.nbytes), ctypes.c_uint(_PORTABLE)
        )

    def unpin(self, view: memoryview) -> None:
        self._enter()
        self._call("cuMemHostUnregister", _host(view))

    def allocate(self, size: int) -> int:
        self._enter()
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._enter()
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def copy_in(self, address: int, source: memoryview) -> None:
        self._enter()
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), _host(source), ctypes.c_size_t(source.nbytes))

    def copy_out(self, into: memoryview, address: int) -> None:
        self._enter()
        self._call("cuMemcpyDtoH_v2", _host(into), ctypes.c_uint64(address), ctypes.c_size_t(into.nbytes))

    def export(self, address: int, size: int) -> int:
        self._enter()
        descriptor = ctypes.c_int()
        self._call(
            "cuMemGetHandleForAddressRange",
            ctypes.byref(descriptor),
            ctypes.c_uint64(address),
            ctypes.c_size_t(size),
            ctypes.c_int(_DMA_BUF_FD),
            ctypes.c_ulonglong(0),
        )
        return descriptor.value

    def share(self, address: int) -> None:
        self._enter()
        yes = ctypes.c_uint(1)
        self._call(
            "cuPointerSetAttribute", ctypes.byref(yes), ctypes.c_int(_SYNC_MEMOPS), ctypes.c_uint64(address)
        )

    def settle(self) -> None:
        if self._sees_writes is None:
            ordering = ctypes.c_int()
            self._call(
                "cuDeviceGetAttribute", ctypes.byref(ordering), ctypes.c_int(_WRITES_ORDERING), self._device
            )
            self._sees_writes = ordering.value >= _TO_OWNER
        if not self._sees_writes:
            self._enter()
            self._call("cuFlushGPUDirectRDMAWrites", ctypes.c_int(_CURRENT_CONTEXT), ctypes.c_int(_TO_OWNER))

    def _enter(self) -> None:
        """The current context is a thread's own, and callers are in many threads."""
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._cuda, name)
        except AttributeError:
            raise CudaError(f"this CUDA driver has no {name}: it is too old; install a newer one") from None
        code = function(*arguments)
        if code != _SUCCESS:
            raise CudaError(f"{name} failed: {self._words(code)}", code)

    def _words(self, code: int) -> str:
        name = ctypes.c_char_p()
        self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        return f"{name.value.decode()} ({code})" if name.value else f"error {code}"


def _host(view: memoryview) -> ctypes.c_void_p:
    return ctypes.c_void_p(address_of(view))


def open_driver(device: int = 0) -> CudaDriver:
    """The system's driver.

    :raises CudaError: there is none, or no such GPU
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise CudaError("this machine has no CUDA driver (libcuda.so.1): use host buffers") from None
    return SystemCuda(library, device)
