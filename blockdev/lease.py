"""Who may write to a pool, among the processes of one host: byte-range locks on one file per pool.

The locks are open-file-description locks: they belong to the open file, not to the process, so a library that opens
and closes the same file elsewhere in the process does not drop them, and the kernel releases them when the holder
ends, however it ends. What each byte of the file is:

    0 … 1023           text: who holds the pool, JSON padded with spaces; for messages only, never trusted
    byte 1024          the pool: exclusive for its sole writing member (several members would each hold it shared)
    bytes 1025 … 2^32  reserved
    (device + 1) * 2^32 + region   that region, exclusive for its writer

Bytes beyond the end of the file can be locked without being there.

The folder is the coordination domain: processes that do not see the same folder would not see each other's locks. So
it has an identity, which each pool's superblock records; see `local_domain`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID, uuid4

from blockdev.errors import LeaseLost, PoolBusy, WrongDomain

if TYPE_CHECKING:
    from types import TracebackType

    from blockdev.types import RegionId

_RECORD_SIZE: Final = 1024
_POOL_BYTE: Final = 1024
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock with 64-bit off_t: type, whence, start, length, pid
_HELD: Final = frozenset({errno.EAGAIN, errno.EACCES})


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a pool, as it says itself.

    :ivar purpose: for people, such as "mounted on /mnt/kv"
    """

    pid: int
    purpose: str


class Leases:
    """One process's locks on one pool; made by `open`. Everything is released by `close`, or when the process ends.

    A child made by fork does not keep them: its copy of the file is closed.
    """

    def __init__(self, path: Path, pool: UUID, fd: int) -> None:
        self._path = path
        self._pool = pool
        self._fd = fd
        self._writer = False
        _OPEN.add(self)

    @classmethod
    def open(cls, folder: Path, pool: UUID) -> Leases:
        """
        :param folder: the host's state folder; made if absent
        :raises OSError:
        """
        _watch_forks()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{pool}.lock"
        return cls(path, pool, os.open(path, os.O_RDWR | os.O_CREAT, 0o600))

    def acquire_writer(self, purpose: str) -> None:
        """Become the pool's sole writing member on this host.

        :param purpose: for the people who find the pool busy, such as "mounted on /mnt/kv"
        :raises PoolBusy: another process, or another pool object of this one, is it
        :raises LeaseLost: the lock file was replaced since `open`
        """
        if not self._lock(_POOL_BYTE):
            raise PoolBusy(f"pool {self._pool} is open for writing {_by(self.holder())}")
        self._writer = True
        try:
            self.verify()
        except LeaseLost:
            self.close()
            raise
        self._record(Holder(os.getpid(), purpose))

    def acquire_region(self, region: RegionId) -> bool:
        """Become a region's writer; whether nobody else is. Harmless when it is ours already."""
        return self._lock(_region_byte(region))

    def release_region(self, region: RegionId) -> None:
        self._set(fcntl.F_UNLCK, _region_byte(region))

    def holder(self) -> Holder | None:
        """Who says to hold the pool for writing. None if nobody does or it cannot be told; may be outdated."""
        if not self._writer and not self._is_held(_POOL_BYTE):
            return None
        try:
            record = json.loads(os.pread(self._fd, _RECORD_SIZE, 0))
            return Holder(int(record["pid"]), str(record["purpose"]))
        except (ValueError, KeyError, TypeError):
            return None

    def verify(self) -> None:
        """Locks protect only against those who open the same file: check that it is still the one in the folder.

        :raises LeaseLost: it was removed or replaced
        """
        ours = os.fstat(self._fd)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise LeaseLost(f"the lock file {self._path} was removed or replaced")

    def close(self) -> None:
        """Release everything; harmless when repeated."""
        if self._fd < 0:
            return
        if self._writer:
            os.pwrite(self._fd, b" " * _RECORD_SIZE, 0)
        # Said, not left to close(2): a child that was forked a moment ago has the file open until its exec.
        self._set(fcntl.F_UNLCK, 0, length=0)
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _forget(self) -> None:
        fd, self._fd, self._writer = self._fd, -1, False
        _OPEN.discard(self)
        os.close(fd)

    def _lock(self, position: int) -> bool:
        try:
            self._set(fcntl.F_WRLCK, position)
        except OSError as error:
            if error.errno in _HELD:
                return False
            raise
        return True

    def _set(self, kind: int, position: int, *, length: int = 1) -> None:
        """:param length: bytes; 0 means to the end of all offsets"""
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, position, length, 0))

    def _is_held(self, position: int) -> bool:
        """By someone else."""
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, position, 1, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, wanted))[0]
        return kind != fcntl.F_UNLCK

    def _record(self, holder: Holder) -> None:
        text = json.dumps({"pid": holder.pid, "purpose": holder.purpose}).encode()
        if len(text) > _RECORD_SIZE:
            text = json.dumps({"pid": holder.pid, "purpose": ""}).encode()
        os.pwrite(self._fd, text.ljust(_RECORD_SIZE), 0)


def local_domain(folder: Path) -> str:
    """The identity of a state folder as a coordination domain, `local:<uuid>`; given to it when first asked.

    :raises WrongDomain: the folder's `domain` file does not hold one
    :raises OSError:
    """
    path = folder / "domain"
    if not path.exists():
        _give_domain(folder, path)
    text = path.read_text().strip()
    kind, _, identity = text.partition(":")
    try:
        if kind != "local" or str(UUID(identity)) != identity:
            raise ValueError(text)
    except ValueError as error:
        raise WrongDomain(f"{path} does not hold a domain: {text[:64]!r}") from error
    return text


def _give_domain(folder: Path, path: Path) -> None:
    """Whole or not at all, and only one of several processes at once succeeds."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".domain-") as file:
        file.write(f"local:{uuid4()}\n")
        file.flush()
        os.fsync(file.fileno())
        try:
            path.hardlink_to(file.name)
        except FileExistsError:
            return
    _sync(folder)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _region_byte(region: RegionId) -> int:
    return (region.device + 1 << 32) + region.region


def _by(holder: Holder | None) -> str:
    if holder is None:
        return "elsewhere"
    return f"by process {holder.pid}" + (f" ({holder.purpose})" if holder.purpose else "")


_OPEN: Final[weakref.WeakSet[Leases]] = weakref.WeakSet()
_watching = False


def _watch_forks() -> None:
    global _watching  # noqa: PLW0603 - os.register_at_fork cannot be undone, so once for the process
    if not _watching:
        os.register_at_fork(after_in_child=_drop_in_child)
        _watching = True


def _drop_in_child() -> None:
    """The child shares the open file: while it had it, the locks would outlive the parent.

    Closing is no unlocking as long as the parent has it open, and the record is the parent's.
    """
    for leases in list(_OPEN):
        leases._forget()
