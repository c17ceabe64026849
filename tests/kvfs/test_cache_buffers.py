"""Callers' memory is taken as it is, or refused in one line."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref
from typing import Any

import pytest

from kvfs.cache.buffers import is_direct, readable, writable
from kvfs.errors import BadBuffer


class Tensor:
    """What is used of a torch.Tensor, over memory of its own."""

    def __init__(self, size: int = 64, *, device: str = "cpu", contiguous: bool = True) -> None:
        self.memory = ctypes.create_string_buffer(max(size, 1))
        self.nbytes = size
        self.device = device
        self._contiguous = contiguous

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)

    def is_contiguous(self) -> bool:
        return self._contiguous


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(64),
        memoryview(bytearray(64)),
        mmap.mmap(-1, 64),
        array.array("d", [0.0] * 8),
        memoryview(array.array("H", [0] * 32)),
        (ctypes.c_float * 16)(),
        memoryview(bytearray(64)).cast("B", (8, 8)),
        Tensor(64),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_memory_is_bytes_of_its_own(buffer: Any) -> None:
    view = writable(buffer)
    assert isinstance(view, memoryview)
    assert (view.nbytes, view.format, view.readonly) == (64, "B", False)
    view[:] = bytes(range(64))
    assert readable(buffer) == bytes(range(64))


def test_what_is_read_from_may_be_read_only() -> None:
    assert readable(b"kv").tobytes() == b"kv"
    assert readable(memoryview(b"kvkv").cast("H")).tobytes() == b"kvkv"


@pytest.mark.parametrize("buffer", [bytearray(), array.array("d"), Tensor(0)])
def test_no_bytes_are_bytes_too(buffer: Any) -> None:
    assert writable(buffer).nbytes == readable(buffer).nbytes == 0


@pytest.mark.parametrize(
    "buffer, message",
    [
        (b"kv", "read-only cannot be read into"),
        (memoryview(bytearray(8)).toreadonly(), "read-only"),
        (memoryview(bytearray(8))[::2], "not in one piece"),
        ("text", "a str is not memory"),
        (None, "a NoneType is not memory"),
        ([1, 2], "a list is not memory"),
        (Tensor(device="meta"), "a tensor on meta has no memory that can be used"),
        (Tensor(contiguous=False), "not in one piece"),
    ],
)
def test_what_cannot_be_read_into_is_refused(buffer: Any, message: str) -> None:
    with pytest.raises(BadBuffer, match=message):
        writable(buffer)


def test_a_tensor_lives_as_long_as_its_bytes_are_held() -> None:
    tensor = Tensor()
    watched = weakref.ref(tensor)
    view = writable(tensor)[8:]
    del tensor
    gc.collect()
    assert watched() is not None
    view[:] = bytes(56)
    del view
    gc.collect()
    assert watched() is None


def test_whole_pages_on_a_page_go_directly() -> None:
    memory = memoryview(mmap.mmap(-1, 3 * 4096))
    assert is_direct(memory)
    assert is_direct(memory[4096:])
    assert not is_direct(memory[64 : 64 + 4096])
    assert not is_direct(memory[:100])


@pytest.mark.numpy
def test_arrays_of_numpy() -> None:
    import numpy as np

    for kind in (np.uint8, np.float16, np.float32, np.complex64, np.bool_):
        made = np.zeros((4, 8), kind)
        writable(made)[:] = bytes([1] * made.nbytes)
        assert readable(made) == made.tobytes() == bytes([1] * made.nbytes)
    fixed = np.zeros(8)
    fixed.setflags(write=False)
    with pytest.raises(BadBuffer, match="a ndarray that is read-only"):
        writable(fixed)
    with pytest.raises(BadBuffer, match="not in one piece"):
        writable(np.zeros((4, 8))[:, ::2])


@pytest.mark.torch
def test_tensors_of_torch() -> None:
    import torch

    for kind in (torch.uint8, torch.bfloat16, torch.float32):
        made = torch.zeros((4, 8), dtype=kind)
        writable(made)[:] = bytes([1] * made.nbytes)
        assert bytes(made.view(torch.uint8).flatten().tolist()) == bytes([1] * made.nbytes)
    with pytest.raises(BadBuffer, match="not in one piece"):
        writable(torch.zeros((4, 8)).t())
    with pytest.raises(BadBuffer, match="a tensor on meta"):
        writable(torch.zeros(8, device="meta"))
