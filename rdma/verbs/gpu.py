"""Memory of a GPU that a network card may reach: by a dma-buf, or where that cannot be, by nvidia-peermem.

A dma-buf is a descriptor of memory that one driver has and another one uses. The kernel keeps what it stands for as long as it is
registered, so that the descriptor is closed at once. nvidia-peermem is a module that lets the verbs take addresses of a GPU for
addresses of the process; it is older, and needed where a driver or a network card does not have dma-bufs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from rdma.errors import CudaError, MemoryRefused
from rdma.host_memory import PAGE
from rdma.verbs.numbers import Access

if TYPE_CHECKING:
    from pyverbs.mr import MR
    from pyverbs.pd import PD

    from rdma.cuda import GpuSpan
    from rdma.verbs.library import Library

_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


class GpuRegion(NamedTuple):
    """:ivar address: by which a peer names its first byte"""

    mr: MR
    address: int


def register_gpu(library: Library, domain: PD, span: GpuSpan) -> GpuRegion:
    """Let peers read and write memory of a GPU.

    :raises MemoryRefused: it cannot be reached, by either way; says why not
    """
    if span.address % PAGE or span.nbytes % PAGE or not span.nbytes:
        raise MemoryRefused(
            f"{span.nbytes} bytes of the GPU at {span.address:#x} are not whole pages of {PAGE} bytes, as a network card needs "
            "them: begin at such an address, as an allocation of its own does"
        )
    try:
        span.driver.share(span.address)
    except CudaError as error:
        raise MemoryRefused(f"memory of the GPU cannot be shared with a network card: {error}") from None
    try:
        return GpuRegion(_by_dma_buf(library, domain, span), 0)
    except (CudaError, library.SystemError) as error:
        by_dma_buf = error
    try:
        return GpuRegion(library.MR(domain, span.nbytes, _ACCESS, span.address), span.address)
    except library.SystemError as error:
        raise MemoryRefused(
            f"the RDMA device does not reach {span.nbytes} bytes of the GPU, neither by a dma-buf ({by_dma_buf}) nor as they are "
            f"({error}): 'modprobe nvidia-peermem', or use memory of the host"
        ) from None


def _by_dma_buf(library: Library, domain: PD, span: GpuSpan) -> MR:
    """Its first byte is 0 for peers. :raises CudaError, PyverbsRDMAError:"""
    descriptor = span.driver.export(span.address, span.nbytes)
    try:
        return library.DmaBufMR(domain, span.nbytes, _ACCESS, descriptor)
    finally:
        os.close(descriptor)
