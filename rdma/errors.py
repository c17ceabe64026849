"""What can go wrong when bytes move. One tree; whoever joins it to another package translates it there, once.

RdmaError
├── MemoryRefused          memory that cannot be had, or is not fit for a transfer
│   ├── NoBuffers          all of the arena is leased, or held by transfers that were given up
│   ├── LockRefused        the system does not let us lock that much: says the limit and how to raise it
│   ├── LeaseEnded         a lease was used after it was given up
│   └── CudaError          the driver refused, or there is none; carries its number
├── TransferError          one request of a stream that ended without its bytes
│   ├── TransferCancelled  nobody wants it any more
│   └── TransferExpired    its deadline passed before it could begin
├── StreamClosed           used after its block had ended
├── NoVerbs                this host or this Python cannot do RDMA; says what is missing
├── TransportError         a connection to a target
│   ├── TransportClosed    we closed it
│   ├── TransportBroken    the peer, or the way to it, ended it
│   ├── TransportTimeout   no answer in time; nothing lands any more of what was under way
│   └── TransportRefused   the target does not want it
└── NvmeError              what a controller sent cannot be used
    ├── WireError          bytes that are no such structure
    ├── CommandFailed      it answered a command with an error; carries the status
    ├── NotSupported       a controller or namespace of a kind that is not used here
    ├── KeyWanted          it demands authentication, and there is no key
    └── KeyRefused         one of both does not believe the other
"""

from __future__ import annotations

from rdma.nvme_status import Status


class RdmaError(Exception):
    """Base of everything that rdma raises on purpose."""


class MemoryRefused(RdmaError):
    """Memory that cannot be had, or is not fit for a transfer."""


class NoBuffers(MemoryRefused):
    """All of the arena is in use."""


class LockRefused(MemoryRefused):
    """The system does not let this process lock that much memory."""


class LeaseEnded(MemoryRefused):
    """A lease was used after it was given up."""


class CudaError(MemoryRefused):
    """The CUDA driver refused.

    :ivar code: its CUresult; 0 if there is no driver to ask
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class TransferError(RdmaError):
    """A request ended without its bytes."""


class TransferCancelled(TransferError):
    """Nobody wants the bytes any more."""


class TransferExpired(TransferError):
    """The deadline passed while the request waited."""


class StreamClosed(RdmaError):
    """The stream's block has ended."""


class NoVerbs(RdmaError):
    """This host, or this Python, cannot do RDMA."""


class TransportError(RdmaError):
    """A connection to a target does not do.

    :ivar status: the number with which the system, the network device or the peer says why; None if none of them does
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TransportClosed(TransportError):
    """We closed it."""


class TransportBroken(TransportError):
    """The peer ended it, or the way to it did."""


class TransportTimeout(TransportError):
    """No answer in time. What was under way has been fenced off: nothing of it lands any more."""


class TransportRefused(TransportError):
    """The target refused the connection."""


class NvmeError(RdmaError):
    """What a controller sent cannot be used."""


class WireError(NvmeError):
    """These bytes are no such structure."""


class NotSupported(NvmeError):
    """A controller or namespace of a kind that is not used here."""


class KeyWanted(NvmeError):
    """The controller demands authentication, and there is no key."""


class KeyRefused(NvmeError):
    """The controller does not believe us, or does not prove who it is."""


class CommandFailed(NvmeError):
    """A controller answered a command with an error.

    :ivar status: as the completion has it
    """

    def __init__(self, what: str, status: Status, *, fabrics: bool = False) -> None:
        super().__init__(f"{what}: {status.describe(fabrics=fabrics)}")
        self.status = status
