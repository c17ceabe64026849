"""Memory that a network device may reach, of the host or of a GPU: registered once, however many use parts of it at the same time.

Registering memory pins its pages and tells the device where they are, which takes longer than reading an extent into it.
So whoever has an arena registers it as a whole and keeps that; a transfer from or to a part of it then costs nothing.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdma.errors import MemoryRefused
from rdma.host_memory import address_of, lock_refused
from rdma.verbs.gpu import register_gpu
from rdma.verbs.library import Library
from rdma.verbs.numbers import Access

if TYPE_CHECKING:
    from pyverbs.mr import MR
    from pyverbs.pd import PD

    from rdma.cuda import GpuSpan

_LOCKING = frozenset({errno.ENOMEM, errno.EPERM, errno.EAGAIN})


@dataclass(eq=False, slots=True)
class _Region:
    """
    :ivar start: its address in this process; a GPU's are among them
    :ivar named: by which a peer names its first byte
    :ivar users: registrations that are not closed yet
    """

    start: int
    stop: int
    writable: bool
    mr: MR
    named: int
    users: int = 0


@dataclass(slots=True)
class Registered:
    """A `rdma.transport.Registration`."""

    address: int
    key: int
    _memory: Memory
    _region: _Region | None

    def close(self) -> None:
        region, self._region = self._region, None
        if region is not None:
            self._memory.leave(region)


@dataclass(slots=True)
class Memory:
    """What is registered in one protection domain."""

    library: Library
    domain: PD
    _regions: list[_Region] = field(default_factory=list)

    @property
    def regions(self) -> int:
        """How many the device knows."""
        return len(self._regions)

    def register(self, memory: memoryview | GpuSpan) -> Registered:
        """:raises LockRefused, MemoryRefused:"""
        if isinstance(memory, memoryview):
            start, writable = address_of(memory), not memory.readonly
        else:
            start, writable = memory.address, True
        region = self._covering(start, start + memory.nbytes, writable=writable)
        if region is None:
            if isinstance(memory, memoryview):
                mr, named = self._mr(memory, start), start
            else:
                mr, named = register_gpu(self.library, self.domain, memory)
            region = _Region(start, start + memory.nbytes, writable, mr, named)
            self._regions.append(region)
        region.users += 1
        return Registered(region.named + start - region.start, region.mr.rkey, self, region)

    def leave(self, region: _Region) -> None:
        """One user fewer. After `close` it does nothing."""
        region.users -= 1
        if not region.users and region in self._regions:
            self._regions.remove(region)
            region.mr.close()

    def close(self) -> None:
        """All of it."""
        regions, self._regions = self._regions, []
        for region in regions:
            region.mr.close()

    def _covering(self, start: int, stop: int, *, writable: bool) -> _Region | None:
        for one in self._regions:
            if one.start <= start and stop <= one.stop and one.writable >= writable:
                return one
        return None

    def _mr(self, view: memoryview, address: int) -> MR:
        access = Access.REMOTE_READ
        if not view.readonly:
            access |= Access.LOCAL_WRITE | Access.REMOTE_WRITE
        try:
            return self.library.MR(self.domain, view.nbytes, access, address)
        except self.library.SystemError as error:
            if error.error_code in _LOCKING:
                raise lock_refused(view.nbytes) from None
            raise MemoryRefused(
                f"the RDMA device does not take {view.nbytes} bytes of memory: {error}"
            ) from None
