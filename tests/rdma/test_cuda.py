"""What is asked of the CUDA driver, and what becomes of its refusals."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import pytest

from rdma.cuda import SystemCuda, open_driver
from rdma.errors import CudaError
from rdma.host_memory import address_of, host_memory
from rdma.testing import FakeCuda

INVALID_CONTEXT = 201


class Library:
    """A libcuda that notes what it is asked, and refuses one function."""

    def __init__(self, refuses: str = "", lacks: str = "", out: int = 0x7F00) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._refuses = refuses
        self._lacks = lacks
        self._out = out

    def __getattr__(self, name: str) -> Any:
        if name == self._lacks:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            values = tuple(getattr(getattr(one, "_obj", one), "value", one) for one in arguments)
            self.calls.append((name, values))
            out: Any = getattr(arguments[-1] if name == "cuGetErrorName" else arguments[0], "_obj", None)
            if name == "cuGetErrorName":
                out.value = b"CUDA_ERROR_INVALID_CONTEXT"
            elif out is not None:
                out.value = self._out
            return INVALID_CONTEXT if name == self._refuses else 0

        return function


def test_every_call_is_made_in_the_context_that_torch_uses() -> None:
    library = Library()
    driver = SystemCuda(library, device=3)
    assert [name for name, _ in library.calls] == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    library.calls.clear()
    view = host_memory(4096)
    host = address_of(view)
    assert driver.allocate(64) == 0x7F00
    driver.pin(view)
    driver.copy_in(0x7F00, view)
    driver.copy_out(view, 0x7F00)
    driver.unpin(view)
    driver.free(0x7F00)
    assert driver.export(0x7F00, 64) == 0x7F00
    driver.share(0x7F00)
    entered, made = library.calls[::2], library.calls[1::2]
    assert {name for name, _ in entered} == {"cuCtxSetCurrent"}
    assert made[1:6] == [
        ("cuMemHostRegister_v2", (host, 4096, 1)),
        ("cuMemcpyHtoD_v2", (0x7F00, host, 4096)),
        ("cuMemcpyDtoH_v2", (host, 0x7F00, 4096)),
        ("cuMemHostUnregister", (host,)),
        ("cuMemFree_v2", (0x7F00,)),
    ]
    assert made[6][0] == "cuMemGetHandleForAddressRange"
    assert made[6][1][1:] == (0x7F00, 64, 1, 0)
    assert made[7] == ("cuPointerSetAttribute", (1, 6, 0x7F00))


@pytest.mark.parametrize("ordering, flushes", [(0, 2), (99, 2), (100, 0), (200, 0)])
def test_writes_of_network_cards_are_flushed_where_the_gpu_does_not_see_to_it(
    ordering: int, flushes: int
) -> None:
    library = Library(out=ordering)
    driver = SystemCuda(library)
    driver.settle()
    driver.settle()
    asked = [name for name, _ in library.calls]
    assert asked.count("cuDeviceGetAttribute") == 1
    assert ("cuDeviceGetAttribute", (0, 118, ordering)) in library.calls
    assert [call for call in library.calls if call[0] == "cuFlushGPUDirectRDMAWrites"] == [
        ("cuFlushGPUDirectRDMAWrites", (0, 100))
    ] * flushes


def test_a_refusal_has_the_drivers_word_and_number() -> None:
    driver = SystemCuda(Library(refuses="cuMemAlloc_v2"))
    with pytest.raises(CudaError, match=r"cuMemAlloc_v2 failed: CUDA_ERROR_INVALID_CONTEXT \(201\)") as info:
        driver.allocate(64)
    assert info.value.code == INVALID_CONTEXT


def test_a_driver_that_lacks_a_call_is_too_old() -> None:
    driver = SystemCuda(Library(lacks="cuMemGetHandleForAddressRange"))
    with pytest.raises(CudaError, match="too old"):
        driver.export(0x7F00, 64)


def test_no_driver() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(CudaError, match="no CUDA driver"):
            open_driver()
    else:
        pytest.skip("this machine has a CUDA driver")


def test_the_stand_in_is_as_strict_as_a_driver() -> None:
    fake = FakeCuda(size=1 << 20)
    view = host_memory(4096)
    address = fake.allocate(4096)
    fake.pin(view)
    for misuse in (
        lambda: fake.pin(view),
        lambda: fake.copy_in(address + 1, view),
        lambda: fake.free(address + 1),
        lambda: fake.unpin(host_memory(4096)),
    ):
        with pytest.raises(CudaError):
            misuse()
    fake.copy_in(address, view)
    descriptor = fake.export(address, 4096)
    os.close(descriptor)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.close(descriptor)
