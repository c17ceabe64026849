"""Who may write to a pool, among the processes of one host: byte-range locks on one file per pool.

The locks are open-file-description locks: they belong to the open file, not to the process, so a library that opens
and closes the same file elsewhere in the process does not drop them, and the kernel releases them when the holder
ends, however it ends. It does so when the last thread has ended, so none of its writes comes after that.

What each byte of the file is:

    0 … 1023           text: who holds the pool alone, JSON padded with spaces; for messages only, never trusted
    byte 1024          the pool: shared by its members, exclusive for who must be alone with it
    bytes 1025 … 1088  the seats of members, 0 to 63: exclusive
    byte 1089          opening: exclusive for a member while it takes its seats
    byte 1090          naming: exclusive for a member while it makes a directory
    bytes 4096 …       text as above, 512 bytes a seat
    (device + 1) * 2^32 + region   that region, exclusive for its writer

Bytes beyond the end of the file can be locked without being there.

A **seat** is what outlives its holder: an identity, which the headers of the regions it writes name, and a catalogue.
Whoever takes a free seat takes over its regions and objects.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID, uuid4, uuid5

from blockdev.errors import LeaseLost, PoolBusy, WrongDomain
from blockdev.forks import ends_in_children

if TYPE_CHECKING:
    from types import TracebackType

    from blockdev.types import RegionId

SEATS: Final = 64
"""Most members of a pool on one host."""

_RECORD_SIZE: Final = 1024
_SEAT_RECORDS: Final = 4096
_SEAT_RECORD_SIZE: Final = 512
_POOL_BYTE: Final = 1024
_FIRST_SEAT_BYTE: Final = _POOL_BYTE + 1
_OPENING_BYTE: Final = _FIRST_SEAT_BYTE + SEATS
_NAMING_BYTE: Final = _OPENING_BYTE + 1
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
    """One member's locks on one pool; made by `open`. Everything is released by `close`, or when the process ends.

    A child made by fork does not keep them: its copy of the file is closed.

    :ivar seats: the seats that are ours; the first is the one we came with
    """

    def __init__(self, path: Path, pool: UUID, fd: int) -> None:
        self._path = path
        self._pool = pool
        self._fd = fd
        self._sole = False
        self.seats: list[int] = []
        ends_in_children(self)

    @classmethod
    def open(cls, folder: Path, pool: UUID) -> Leases:
        """
        :param folder: the host's state folder; made if absent
        :raises OSError:
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{pool}.lock"
        return cls(path, pool, os.open(path, os.O_RDWR | os.O_CREAT, 0o600))

    # ── the pool ─────────────────────────────────────────────────────────────────────────────────────────

    def acquire_alone(self, purpose: str) -> None:
        """Be the only process of this host that may write to the pool, for what members cannot do.

        :param purpose: for the people who find the pool busy, such as "adding a device"
        :raises PoolBusy: it has members, or somebody else is alone with it
        :raises LeaseLost: the lock file was replaced since `open`
        """
        if not self._lock(_POOL_BYTE):
            raise PoolBusy(f"pool {self._pool} is open for writing {_by(self.holders())}")
        self._sole = True
        self._verify_or_close()
        self._record(0, _RECORD_SIZE, Holder(os.getpid(), purpose))

    def join(self, purpose: str) -> int:
        """Become a member, which may write to the regions that it leases; returns its seat, the first that is free.

        :raises PoolBusy: somebody is alone with the pool, or every seat is taken
        :raises LeaseLost: the lock file was replaced since `open`
        """
        if not self._lock(_POOL_BYTE, fcntl.F_RDLCK):
            raise PoolBusy(f"pool {self._pool} is open for writing {_by(self.holders())}")
        self._verify_or_close()
        seat = next((seat for seat in range(SEATS) if self.take_seat(seat)), None)
        if seat is None:
            raise PoolBusy(f"pool {self._pool} has {SEATS} members on this host, which is the most")
        self._record(
            _SEAT_RECORDS + seat * _SEAT_RECORD_SIZE, _SEAT_RECORD_SIZE, Holder(os.getpid(), purpose)
        )
        return seat

    def take_seat(self, seat: int) -> bool:
        """Take a seat, if it is free; whether it was."""
        if seat in self.seats or not self._lock(_FIRST_SEAT_BYTE + seat):
            return False
        self.seats.append(seat)
        return True

    def leave_seat(self, seat: int) -> None:
        """Give up a seat that is ours."""
        self.seats.remove(seat)
        self._set(fcntl.F_UNLCK, _FIRST_SEAT_BYTE + seat)

    def others(self) -> list[int]:
        """The seats that other members hold."""
        seats: list[int] = []
        waiting = [(0, SEATS)]
        while (
            waiting
        ):  # the kernel names one lock of a range, whichever: then what is before and behind it is asked for
            first, end = waiting.pop()
            held = self._held_in(_FIRST_SEAT_BYTE + first, end - first) if first < end else None
            if held is not None:
                start, stop = max(held[0] - _FIRST_SEAT_BYTE, first), min(held[1] - _FIRST_SEAT_BYTE, end)
                seats += range(start, stop)
                waiting += [(first, start), (stop, end)]
        return sorted(seats)

    @property
    def alone(self) -> bool:
        """Whether there are no other members."""
        return not self._is_held(_FIRST_SEAT_BYTE, length=SEATS)

    def begin_opening(self) -> bool:
        """Take seats undisturbed until `end_opening`; False if another member is about it."""
        return self._lock(_OPENING_BYTE)

    def end_opening(self) -> None:
        self._set(fcntl.F_UNLCK, _OPENING_BYTE)

    def begin_naming(self) -> bool:
        """Make a directory undisturbed until `end_naming`; False if another member is about it."""
        return self._lock(_NAMING_BYTE)

    def end_naming(self) -> None:
        self._set(fcntl.F_UNLCK, _NAMING_BYTE)

    # ── regions ──────────────────────────────────────────────────────────────────────────────────────────

    def acquire_region(self, region: RegionId) -> bool:
        """Become a region's writer; whether nobody else is. Harmless when it is ours already."""
        return self._lock(_region_byte(region))

    def release_region(self, region: RegionId) -> None:
        self._set(fcntl.F_UNLCK, _region_byte(region))

    def is_region_held(self, region: RegionId) -> bool:
        """Whether another member writes to a region."""
        return self._is_held(_region_byte(region))

    # ── who ──────────────────────────────────────────────────────────────────────────────────────────────

    def holders(self) -> list[Holder]:
        """Who says to hold the pool for writing. Empty if nobody does or it cannot be told; may be outdated."""
        places = [
            (_SEAT_RECORDS + s * _SEAT_RECORD_SIZE, _SEAT_RECORD_SIZE) for s in self.others() + self.seats
        ]
        if self._sole or (self._is_held(_POOL_BYTE) and not places):
            places.append((0, _RECORD_SIZE))
        return [holder for place in places if (holder := self._recorded(*place)) is not None]

    def _recorded(self, offset: int, size: int) -> Holder | None:
        try:
            record = json.loads(os.pread(self._fd, size, offset))
            return Holder(int(record["pid"]), str(record["purpose"]))
        except (ValueError, KeyError, TypeError):
            return None

    def _verify_or_close(self) -> None:
        try:
            self.verify()
        except LeaseLost:
            self.close()
            raise

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
        if self._sole:
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

    def end_in_child(self) -> None:
        """The child shares the open file: while it had it, the locks would outlive the parent.

        Closing is no unlocking as long as the parent has it open, and the record is the parent's.
        """
        if self._fd >= 0:
            self._forget()

    def _forget(self) -> None:
        fd, self._fd, self._sole, self.seats = self._fd, -1, False, []
        os.close(fd)

    def _lock(self, position: int, kind: int = fcntl.F_WRLCK) -> bool:
        try:
            self._set(kind, position)
        except OSError as error:
            if error.errno in _HELD:
                return False
            raise
        return True

    def _set(self, kind: int, position: int, *, length: int = 1) -> None:
        """:param length: bytes; 0 means to the end of all offsets"""
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, position, length, 0))

    def _is_held(self, position: int, *, length: int = 1) -> bool:
        """By someone else."""
        return self._held_in(position, length) is not None

    def _held_in(self, position: int, length: int) -> tuple[int, int] | None:
        """First and end byte of a lock that someone else has in a range, if there is one."""
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, position, length, 0)
        kind, _, start, size, _ = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, wanted))
        if kind == fcntl.F_UNLCK:
            return None
        return start, start + size if size else 1 << 63

    def _record(self, offset: int, size: int, holder: Holder) -> None:
        text = json.dumps({"pid": holder.pid, "purpose": holder.purpose}).encode()
        if len(text) > size:
            text = json.dumps({"pid": holder.pid, "purpose": ""}).encode()
        os.pwrite(self._fd, text.ljust(size), offset)


def seat_identity(pool: UUID, domain: str, seat: int) -> UUID:
    """The identity by which a seat is named as the writer of its regions."""
    return uuid5(pool, f"{domain}/{seat}")


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


def _by(holders: list[Holder]) -> str:
    if not holders:
        return "elsewhere"
    return ", ".join(f"by process {h.pid}" + (f" ({h.purpose})" if h.purpose else "") for h in holders)
