"""The seam to connections: what an initiator needs of verbs, and no more. `rdma.memory_target` is one in memory."""

from __future__ import annotations

from typing import Protocol

from rdma.cuda import GpuSpan
from rdma.nvme_wire import CmRequest


class Registration(Protocol):
    """Memory that a peer may read and write by RDMA, until `close`."""

    @property
    def address(self) -> int:
        """Of its first byte, as a keyed descriptor names it."""

    @property
    def key(self) -> int: ...

    def close(self) -> None:
        """Take the right back; behind this, no byte lands there any more. Harmless when repeated."""


class Connection(Protocol):
    """One connected queue. The peer has posted as many receives as was asked for when it was made."""

    def post(self, capsule: bytes) -> None:
        """Send a command; does not wait. The caller keeps to the queue's depth.

        :raises TransportClosed, TransportBroken:
        """

    async def completion(self) -> bytes:
        """The next answer, 16 bytes. One caller at a time. :raises TransportClosed, TransportBroken:"""

    def close(self) -> None:
        """Tear it down; behind this, nothing that its commands named is read or written any more."""


class Fabric(Protocol):
    """The way to one target, through one network device."""

    async def connect(self, request: CmRequest) -> Connection:
        """Connect a queue. May be cancelled.

        :raises TransportRefused, TransportBroken:
        """

    def register(self, memory: memoryview | GpuSpan) -> Registration:
        """Let the target read and write this memory. :raises MemoryRefused: the device does not take it"""
