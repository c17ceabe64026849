"""A pool full of small files, written as its media would be: a million in half a minute.

Each takes a slot of the inline class, and has the name that engines give to a block. Its content is as long as the
reference to an extent, so that its record is as long as that of a file of one extent.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from blockdev import layout
from blockdev.types import (
    MIB,
    PAGE,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    Epoch,
    Generation,
    Kind,
    ObjectId,
    RegionHeader,
    RegionNo,
    RegionState,
    SlotAddress,
    SlotClass,
    SlotNo,
    Stamp,
    Superblock,
)

_DEVICE = DeviceNo(0)
_EPOCH = Epoch(1)
_FIRST_USE = Generation(_EPOCH << 32)
_CONTENT = bytes(layout.EXTENT_ENTRY_SIZE)
_ZEROS = bytes(PAGE)


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory below the root, and how many files are in it."""

    name: str
    files: int


def file_name(number: int) -> str:
    """The name of a folder's file: a hash in hexadecimal and an ending, as engines name blocks."""
    return hashlib.sha256(b"%d" % number).hexdigest() + ".bin"


def device_size(files: int) -> int:
    """Bytes of a device for so many files, with a third to spare for what else is to be stored."""
    return 256 * MIB + files * layout.PAIR * 4 // 3


def forge(device: Path, folders: Sequence[Folder]) -> None:
    """Fill a new pool's only device.

    :raises ValueError: it is too small
    """
    with device.open("r+b", buffering=0) as file:
        pool = _superblock(file.fileno())
        geometry = layout.DeviceGeometry(pool.devices[0].size, pool.data_offset, pool.region_size)
        wanted = _wanted(folders)
        for number in range(geometry.regions):
            first = next(wanted, None)
            if first is None:
                break
            region = _Region(pool, RegionNo(number), file.fileno(), geometry.region_offset(RegionNo(number)))
            region.fill(itertools.chain([first], wanted))
        if next(wanted, None) is not None:
            raise ValueError(f"{device} is too small")
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a record is to say besides where it is."""

    kind: Kind
    number: int
    parent: DirectoryId
    name: bytes

    @property
    def object_id(self) -> ObjectId:
        return ObjectId((self.number + 1).to_bytes(16, "big"))


def _wanted(folders: Sequence[Folder]) -> Iterator[_Wanted]:
    numbers = itertools.count(1)
    for folder in folders:
        its = _Wanted(Kind.DIRECTORY, next(numbers), ROOT, folder.name.encode())
        yield its
        for index in range(folder.files):
            yield _Wanted(Kind.HEAD, next(numbers), DirectoryId(its.object_id), file_name(index).encode())


class _Region:
    """A region of small files that is being written."""

    def __init__(self, pool: Superblock, number: RegionNo, descriptor: int, start: int) -> None:
        self._pool = pool
        self._number = number
        self._descriptor = descriptor
        self._start = start
        self._geometry = layout.RegionGeometry(pool.region_size, SlotClass.INLINE)
        self._now = time.time_ns()

    def fill(self, wanted: Iterator[_Wanted]) -> None:
        """Write records into all slots, as long as there are some; then free ones. Then the header."""
        for chunk in range(self._geometry.chunks):
            first, count = self._geometry.chunk_span(chunk)
            pairs = b"".join(
                self._pair(SlotNo(slot), next(wanted, None)) for slot in range(first, first + count)
            )
            os.pwrite(self._descriptor, pairs, self._start + self._geometry.descriptor_offset(first))
        for sequence in (4, 5):
            header = RegionHeader(
                self._pool.pool, _DEVICE, self._number, RegionState.ACTIVE, uuid4(), _EPOCH,
                SlotClass.INLINE, unproven=False, sequence=sequence,
            )  # fmt: skip
            page = layout.encode_region_header(header)
            os.pwrite(self._descriptor, page, self._start + sequence % 2 * PAGE)

    def _pair(self, slot: SlotNo, wanted: _Wanted | None) -> bytes:
        address = SlotAddress(_DEVICE, self._number, slot)
        if wanted is None:
            free = Descriptor(Kind.FREE, address, _EPOCH, _FIRST_USE, sequence=2)
            return layout.encode_descriptor(self._pool.pool, free) + _ZEROS
        is_file = wanted.kind is Kind.HEAD
        record = Descriptor(
            wanted.kind, address, _EPOCH, _FIRST_USE,
            sequence=3,
            stamp=Stamp(self._now + wanted.number),
            object_id=wanted.object_id,
            directory=wanted.parent,
            name=wanted.name,
            mode=stat.S_IFREG | 0o644 if is_file else stat.S_IFDIR | 0o755,
            mtime_ns=self._now, ctime_ns=self._now, btime_ns=self._now,
            size=len(_CONTENT) if is_file else 0,
            stored_size=len(_CONTENT) if is_file else 0,
            inline=_CONTENT if is_file else b"",
        )  # fmt: skip
        return _ZEROS + layout.encode_descriptor(self._pool.pool, record)


def _superblock(descriptor: int) -> Superblock:
    return layout.pick_superblock(
        [os.pread(descriptor, PAGE, layout.superblock_offset(sequence)) for sequence in (0, 1)]
    )
