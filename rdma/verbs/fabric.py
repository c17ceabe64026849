"""The way to one target through the RDMA device that leads there: queues are connected and memory is registered by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rdma.cuda import GpuSpan
from rdma.errors import TransportBroken
from rdma.nvme_wire import CmRequest
from rdma.verbs.connection import Device, VerbsConnection, connect
from rdma.verbs.library import Library, load
from rdma.verbs.memory import Memory, Registered
from rdma.verbs.way import Portal, Way

_MOST_READS = 255
"""As many as a request for a connection can say."""


class VerbsFabric:
    """A `rdma.transport.Fabric`; made by `open_verbs`.

    :ivar device: the name of the RDMA device, such as mlx5_0
    """

    def __init__(self, library: Library, anchor: Way) -> None:
        self.device = anchor.id.dev_name
        self._library = library
        self._portal = anchor.portal
        context, domain = anchor.id.context, anchor.id.pd
        self._shared = Device(context, domain, min(context.query_device().max_qp_rd_atom, _MOST_READS))
        self._memory = Memory(library, domain)

    @property
    def regions(self) -> int:
        """Pieces of memory that are registered now."""
        return self._memory.regions

    async def connect(self, request: CmRequest) -> VerbsConnection:
        """Connect a queue. :raises TransportRefused, TransportBroken:"""
        way = Way(self._library, self._portal)
        try:
            await way.resolve()
            if way.id.dev_name != self.device:
                raise TransportBroken(
                    f"{self._portal} is reached through {way.id.dev_name} now, not through {self.device}, which the "
                    "memory is registered with"
                )
        except BaseException:
            way.close()
            raise
        return await connect(self._library, self._shared, way, request)

    def register(self, memory: memoryview | GpuSpan) -> Registered:
        """Let the target read this memory, and write it unless it is read-only. What lies in memory that is registered
        already shares its registration: the right ends with the last one of those that share it.

        :raises LockRefused, MemoryRefused:
        """
        return self._memory.register(memory)

    def close(self) -> None:
        self._memory.close()


@asynccontextmanager
async def open_verbs(portal: Portal) -> AsyncIterator[VerbsFabric]:
    """The way to a target, for the length of the block.

    It has a connection identifier that is never connected: the device, and what belongs to it, are there while it is.

    :raises NoVerbs: this host cannot do RDMA
    :raises TransportBroken: no device of it leads there
    """
    library = load()
    anchor = Way(library, portal)
    try:
        await anchor.resolve()
        fabric = VerbsFabric(library, anchor)
        try:
            yield fabric
        finally:
            fabric.close()
    finally:
        anchor.close()
