"""Page-aligned memory: what O_DIRECT and registered buffers need."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from blockdev.types import PAGE


def page_buffer(length: int) -> memoryview:
    """`length` zero bytes that begin on a page; released with the last view of them.

    Costs a system call and the page faults: for buffers that live on or are rarely needed, not one per I/O.
    """
    return memoryview(mmap.mmap(-1, max(length, 1)))[:length]


def padded(length: int) -> int:
    """`length` rounded up to whole pages."""
    return -(-length // PAGE) * PAGE


class PageBuffers:
    """Page-aligned scratch memory, kept for reuse.

    A buffer that an operation gave up on is not kept: the thread that may still write to it holds the last reference.
    """

    _KEEP = 64

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = {}

    @contextmanager
    def take(self, size: int) -> Iterator[memoryview]:
        """Lend `size` bytes, a multiple of the page; their content is undefined."""
        kept = self._free.setdefault(size, [])
        view = kept.pop() if kept else page_buffer(size)
        yield view
        if len(kept) < self._KEEP:  # not in a finally: see above
            kept.append(view)


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer (stable ABI since 3.11)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_Buffer),)
_release_buffer.restype = None
_SIMPLE: Final = 0  # PyBUF_SIMPLE: contiguous bytes, read-only allowed


def address_of(buffer: memoryview) -> int:
    """Where the bytes are in this process's address space.

    :raises BufferError: it is not contiguous
    """
    if not buffer.readonly and buffer.nbytes:
        # The common case at a third of the cost; ctypes has no such call for read-only memory.
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    info = _Buffer()
    _get_buffer(buffer, ctypes.byref(info), _SIMPLE)
    address = info.buf
    _release_buffer(ctypes.byref(info))
    return int(address or 0)


def is_page_aligned(buffer: memoryview) -> bool:
    """Whether the first byte lies on a page boundary."""
    return address_of(buffer) % PAGE == 0
