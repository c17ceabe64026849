"""What can go wrong in a pool. One tree; callers translate it once, at their edge.

BlockError
├── DeviceError            an I/O failed: carries the device's name and errno
│   ├── DeviceTimeout      its deadline passed; the buffer may still be written to: `pending` tells when not
│   │   └── DeviceGivenUp  before the deadline, since the device was found to be lost
│   ├── WriteFailed        it answers, but did not take these bytes: no room behind it, or a broken block
│   ├── DeviceClosed       we closed it
│   └── DeviceLost         it failed too often and is not tried any more
├── IntegrityError         bytes are not what was recorded
│   ├── ChecksumError      the slot still claims this object, the bytes differ twice: quarantined
│   └── Raced              the slot was reused meanwhile: a plain miss
├── Unavailable            on a device that is missing or lost: a miss
├── NoSpace                cannot fit, even after evicting all that may go
├── NameConflict           the name exists, or does not, against what was asked
│   ├── Exists
│   ├── Missing
│   ├── NotEmpty
│   ├── NotDirectory
│   └── IsDirectory
├── RecordTooLarge         attributes that do not fit a descriptor
├── BadName                empty, '.', '..', over 255 bytes, or with '/' or NUL
├── FormatError            media that cannot be taken as they are
│   ├── BadSuperblock      neither page of the pair is valid
│   ├── UnknownVersion     written by a newer kvfs
│   ├── ForeignSignature   holds something else: a file system, a partition table, another pool
│   └── DeviceMismatch     of another pool, shrunk, or given twice
├── PoolBusy               another process has it open for writing
├── WrongDomain            another coordination domain owns it
├── LeaseLost              we may no longer write
├── ReadOnly               the pool was opened for reading
├── PoolClosed
└── FabricsError           a target could not be reached or asked: carries what nvme-cli said
    ├── NoNvmeCli          the program, or the kernel's module, is not there
    ├── FabricsTimeout     the program did not end in time
    ├── TargetUnreachable  nothing answers at the address
    ├── WrongTransport     something answers, but not over this transport
    ├── HostRefused        the target does not offer the subsystem to this host
    └── KeyRefused         a key is wrong or missing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Pending(Protocol):
    """An I/O that was given up but has not returned from the kernel: its buffer is not ours yet."""

    @property
    def done(self) -> bool: ...

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from any thread, when the buffer is ours again (at once if it is)."""


class BlockError(Exception):
    """Base of everything that blockdev raises on purpose."""


class DeviceError(BlockError):
    """An I/O failed.

    :ivar device: the device's name for people
    :ivar errno: the system's error number
    """

    def __init__(self, device: str, errno: int, message: str) -> None:
        super().__init__(f"{device}: {message}")
        self.device = device
        self.errno = errno


class DeviceTimeout(DeviceError):
    """The deadline passed. Until `pending.done`, the buffer of a read may still be written to."""

    def __init__(self, device: str, errno: int, message: str, pending: Pending | None) -> None:
        super().__init__(device, errno, message)
        self.pending = pending


class DeviceGivenUp(DeviceTimeout):
    """The device was found to be lost while the operation was in it, or by it: at the deadline, or sooner."""


class WriteFailed(DeviceError):
    """The device answers, but did not take what was written: what is there is the old, or part of the new.

    A namespace that promises more than there is behind it (`errno` is ENOSPC), or a broken block.
    """


class DeviceClosed(DeviceError):
    """Used after it was closed."""


class DeviceLost(DeviceError):
    """Failed too often; not tried any more until it is opened anew."""


class IntegrityError(BlockError):
    """Bytes or records are not what was recorded."""


class ChecksumError(IntegrityError):
    """Bytes on media differ from the checksum that the head recorded, on two reads."""


class Raced(IntegrityError):
    """The slot was given to another object while it was read."""


class Unavailable(BlockError):
    """The object has parts on a device that is missing or lost."""


class NoSpace(BlockError):
    """Nothing more may be evicted and the request still does not fit."""


class NameConflict(BlockError):
    """The state of a name does not allow what was asked."""


class Exists(NameConflict):
    pass


class Missing(NameConflict):
    pass


class NotEmpty(NameConflict):
    pass


class NotDirectory(NameConflict):
    pass


class IsDirectory(NameConflict):
    pass


class RecordTooLarge(BlockError):
    """Name, attributes and inline payload together do not fit one descriptor."""


class BadName(BlockError):
    """Not a file name: empty, `.`, `..`, longer than 255 bytes, or with '/' or NUL in it."""


class FormatError(BlockError):
    """Media that cannot be used as they are."""


class BadSuperblock(FormatError):
    """No valid superblock: not a kvfs device, or both of its superblock pages are damaged."""


class UnknownVersion(FormatError):
    """Written by a newer version of kvfs."""


class ForeignSignature(FormatError):
    """The device holds something that is not ours to overwrite."""


class DeviceMismatch(FormatError):
    """The device does not fit the pool's own records."""


class PoolBusy(BlockError):
    """Another process has the pool open for writing."""


class WrongDomain(BlockError):
    """The pool is coordinated elsewhere."""


class LeaseLost(BlockError):
    """This member may no longer write."""


class ReadOnly(BlockError):
    """The pool was opened for reading."""


class PoolClosed(BlockError):
    """Used after it was closed."""


class FabricsError(BlockError):
    """A target over fabrics could not be reached or asked.

    :ivar said: what the program said, for those who look closer
    """

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


class NoNvmeCli(FabricsError):
    """The program `nvme` or a module of the kernel is missing, or closed to us."""


class FabricsTimeout(FabricsError):
    """The program did not end in time."""


class TargetUnreachable(FabricsError):
    """Nothing answers at the address."""


class WrongTransport(FabricsError):
    """Something answers at the address, but does not speak NVMe over this transport."""


class HostRefused(FabricsError):
    """The target has no such subsystem, or does not offer it to this host."""


class KeyRefused(FabricsError):
    """A key is wrong, missing, or not to be used as it is."""
