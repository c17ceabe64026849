"""Callers' memory as bytes: whatever has the buffer protocol (bytearray, mmap, numpy arrays), and torch's tensors.

torch is not imported: a tensor is known by what it says of itself.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any, Final, Protocol, cast

from blockdev.memory import is_page_aligned
from blockdev.types import PAGE
from kvfs.cache.gpu import DriverOf, GpuMemory
from kvfs.errors import BadBuffer
from rdma.cuda import open_driver

Buffer = Any
"""What callers give: an object with the buffer protocol, or a tensor."""

_ADVICE: Final = (
    "give contiguous memory, such as a bytearray, a numpy array or a tensor of the CPU or of a CUDA GPU"
)
_CUDA = re.compile(r"cuda(?::(\d+))?")


class _Tensor(Protocol):
    """What is used of a torch.Tensor."""

    @property
    def device(self) -> object: ...

    @property
    def nbytes(self) -> int: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


def readable(buffer: Buffer, driver_of: DriverOf = open_driver) -> memoryview:
    """Its bytes, to be read, or a copy of a GPU's; the memory lives as long as they are held.

    :raises BadBuffer: it has none, or not in one piece
    :raises CudaError: they are a GPU's, and cannot be copied
    """
    if _is_tensor(buffer):
        found = _tensor(buffer, driver_of)
        return found.fetched() if isinstance(found, GpuMemory) else found
    view = _view(buffer)
    return _cast(view) if view.readonly else _writable(view)


def writable(buffer: Buffer, driver_of: DriverOf = open_driver) -> memoryview | GpuMemory:
    """Its bytes, to be written.

    :raises BadBuffer: it has none, not in one piece, or is read-only
    :raises CudaError: they are a GPU's, and there is no driver
    """
    if _is_tensor(buffer):
        return _tensor(buffer, driver_of)
    view = _view(buffer)
    if view.readonly:
        raise BadBuffer(f"a {type(buffer).__name__} that is read-only cannot be read into: {_ADVICE}")
    return _writable(view)


def is_direct(view: memoryview | GpuMemory) -> bool:
    """Whether devices can move bytes from and to it: it is the host's, begins on a page, and has whole ones."""
    return not isinstance(view, GpuMemory) and view.nbytes % PAGE == 0 and is_page_aligned(view)


def _view(buffer: Buffer) -> memoryview:
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError):
        raise BadBuffer(f"a {type(buffer).__name__} is not memory that can be used: {_ADVICE}") from None
    if not view.c_contiguous:
        raise BadBuffer(f"the {type(buffer).__name__} is not in one piece in memory: {_ADVICE}")
    return view


def _cast(view: memoryview) -> memoryview:
    try:
        return view.cast("B")
    except TypeError:  # an element type that memoryview does not know
        return memoryview(view.tobytes())


def _writable(view: memoryview) -> memoryview:
    """As bytes, whatever its elements are; `memoryview.cast` knows only some, and not empty ones of several dimensions."""
    if not view.nbytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * view.nbytes).from_buffer(view)).cast("B")


def _is_tensor(buffer: Buffer) -> bool:
    return hasattr(buffer, "data_ptr") and hasattr(buffer, "is_contiguous")


def _tensor(buffer: Buffer, driver_of: DriverOf) -> memoryview | GpuMemory:
    tensor = cast("_Tensor", buffer)
    kind = str(tensor.device)
    gpu = _CUDA.fullmatch(kind)
    if kind != "cpu" and gpu is None:
        raise BadBuffer(f"a tensor on {kind} has no memory that can be used: {_ADVICE}")
    if not tensor.is_contiguous():
        raise BadBuffer(f"the tensor is not in one piece in memory: {_ADVICE}")
    if gpu is not None:
        return GpuMemory(driver_of(int(gpu[1] or 0)), tensor.data_ptr(), tensor.nbytes, tensor)
    if not tensor.nbytes:
        return memoryview(bytearray())
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    memory._tensor = tensor  # type: ignore[attr-defined]  # whoever holds the bytes holds the tensor
    return memoryview(memory).cast("B")
