"""What nvme-cli is told and tells, as records: the same for every version. Sizes are bytes, times seconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiscoveryEntry:
    """A subsystem that a discovery service offers to us, by one way.

    :ivar transport: in nvme-cli's words, also of kinds that kvfs does not use
    :ivar discovery: it is a discovery service (itself, or another one to ask)
    :ivar secure: the channel must be encrypted
    """

    transport: str
    address: str
    service: str
    nqn: str
    port: int
    discovery: bool
    secure: bool


@dataclass(frozen=True, slots=True)
class PathEntry:
    """A controller: one connection to a subsystem.

    :ivar name: such as `nvme1`
    :ivar state: in the kernel's words, such as `live` or `connecting`
    """

    name: str
    transport: str
    address: str
    service: str
    state: str


@dataclass(frozen=True, slots=True)
class SubsystemEntry:
    """A subsystem that this host is connected to.

    :ivar name: such as `nvme-subsys1`
    """

    name: str
    nqn: str
    paths: tuple[PathEntry, ...]


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    """A block device that is a namespace.

    :ivar name: of the block device, such as `nvme1n1`
    """

    name: str
    namespace: int
    size: int
    block_size: int
    model: str
    serial: str
    firmware: str


@dataclass(frozen=True, slots=True)
class ControllerIdentity:
    """`id-ctrl`, as far as it is of use.

    :ivar transfer_limit: most bytes a command, with pages of 4 KiB; None without a limit
    :ivar volatile_cache: what was written may be lost in a power loss until it is flushed
    :ivar ana: the target tells which of several ways is best
    """

    nqn: str
    model: str
    serial: str
    firmware: str
    transfer_limit: int | None
    volatile_cache: bool
    ana: bool


@dataclass(frozen=True, slots=True)
class NamespaceIdentity:
    """`id-ns`, as far as it is of use.

    :ivar shared: several controllers, and so several hosts, may use it at once
    :ivar nguid: 32 hexadecimal digits; None if the target gives none
    """

    size: int
    block_size: int
    shared: bool
    nguid: str | None


@dataclass(frozen=True, slots=True)
class SmartLog:
    """The health of a drive.

    :ivar critical_warning: bits; 0 is well
    :ivar temperature: kelvin; None where the target does not say
    :ivar spare: percent of the spare blocks left
    :ivar used: percent of its life; may exceed 100
    :ivar read, written: bytes since it was made
    """

    critical_warning: int
    temperature: int | None
    spare: int
    used: int
    read: int
    written: int
    media_errors: int


@dataclass(frozen=True, slots=True)
class Timers:
    """How a connection treats a target that does not answer. Seconds.

    :ivar keep_alive: between two signs of life that we ask for; without one the connection counts as lost
    :ivar reconnect_delay: between two attempts to connect again
    :ivar fast_io_fail: how long an I/O waits for the connection to come back, before it fails
    :ivar ctrl_loss: after which the kernel gives up, and removes the block devices; None never
    """

    keep_alive: int = 5
    reconnect_delay: int = 1
    fast_io_fail: int = 5
    ctrl_loss: int | None = None
