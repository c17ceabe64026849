"""Small pools for tests: made, opened again, damaged, and filled with bytes that tell where they belong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from xxhash import xxh3_64_intdigest

from blockdev import layout
from blockdev.creating import CreateOptions, create_pool
from blockdev.memory import padded, page_buffer
from blockdev.opening import Opened, OpenOptions, open_pool
from blockdev.pool import Pool
from blockdev.publication import NewObject, extent_length
from blockdev.testing import FaultyDevice
from blockdev.types import (
    HOLE,
    MIB,
    PAGE,
    ROOT,
    Descriptor,
    DirectoryId,
    ExtentRef,
    RegionId,
    SlotClass,
    SlotNo,
    SlotRef,
    Xxh3,
)

DOMAIN = "local:test"
EXTENT = 2 * MIB
REGION = 8 * MIB
"""Room for 3 extents of 2 MiB, or 1023 inline slots."""
REGULAR = 0o100644


@dataclass
class Bench:
    """The devices of one pool, and what is around them.

    :ivar absent: devices that `open` leaves out, by position
    :ivar prepare: what `open` does to the devices before the pool is opened
    """

    folder: Path
    devices: list[FaultyDevice]
    boot: int = 0
    now: int = 10**18
    absent: set[int] = field(default_factory=set)
    prepare: Callable[[list[FaultyDevice]], None] = lambda devices: None
    _open: bool = False

    @property
    def present(self) -> list[FaultyDevice]:
        return [device for number, device in enumerate(self.devices) if number not in self.absent]

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Opened]:
        """Open the pool as it was left; devices that are lost or closed are opened again."""
        for number in range(len(self.devices)):
            if number not in self.absent:
                self.devices[number] = self.devices[number].reopen()
        self.prepare(self.devices)
        defaults: dict[str, Any] = {"boot_id": f"boot-{self.boot}", "wall_ns": lambda: self.now}
        async with open_pool(
            self.present, self.folder, OpenOptions(DOMAIN, **(defaults | options))
        ) as opened:
            self._open = True
            try:
                yield opened
            finally:
                self._open = False

    @asynccontextmanager
    async def pool(self, **options: Any) -> AsyncIterator[Pool]:
        async with self.open(**options) as opened:
            yield opened.pool

    async def damage(self, number: int, offset: int, length: int = PAGE) -> None:
        """Overwrite bytes of a device, in use or not, with what nobody wrote."""
        if not self._open:
            self.devices[number] = self.devices[number].reopen()
        junk = page_buffer(length)
        junk[:] = b"\xa5" * length
        await self.devices[number].write_from(offset, junk)

    def power_cut(self) -> None:
        """What was not flushed is there or not; the system starts anew."""
        self.devices = [device.crash("power") for device in self.devices]
        self.boot += 1


async def made(folder: Path, *, devices: int = 1, regions: int = 4, seed: int = 0) -> Bench:
    """A new pool on devices of `regions` regions each."""
    rng = Random(seed)
    size = MIB + regions * REGION
    result = Bench(folder, [FaultyDevice(size, rng, name=f"d{number}") for number in range(devices)])
    await create_pool(result.devices, CreateOptions("test", DOMAIN, SlotClass.MIB2, REGION))
    return result


def pattern(size: int, seed: int | bytes = 0) -> bytes:
    """Bytes that differ from one seed to the next, in every page."""
    number = seed if isinstance(seed, int) else xxh3_64_intdigest(seed)
    return Random(number).randbytes(size)


async def stored(pool: Pool, part: bytes) -> ExtentRef:
    """A reserved slot with these bytes in it."""
    ref = await pool.reserve(len(part))
    buffer = page_buffer(padded(len(part)))
    buffer[: len(part)] = part
    await pool.write(ref, buffer)
    return ExtentRef(*ref, Xxh3(xxh3_64_intdigest(part)))


async def put(
    pool: Pool,
    name: bytes,
    data: bytes | int = 100,
    *,
    directory: DirectoryId = ROOT,
    base: Descriptor | None = None,
    keep: Sequence[int] = (),
    **attributes: Any,
) -> Descriptor:
    """Store a file; a number stands for so many bytes.

    :param keep: extents that are `base`'s
    """
    data = pattern(data, name) if isinstance(data, int) else data
    values: dict[str, Any] = {"mode": REGULAR, "uid": 0, "gid": 0, "mtime_ns": 0} | attributes
    if len(data) <= pool.inline_limit(name, values.get("xattrs", ())):
        return await pool.publish(
            NewObject(directory, name, size=len(data), inline=data, base=base, **values)
        )
    old = await pool.extents(base) if base is not None else ()
    extents = []
    for index in range(-(-len(data) // EXTENT)):
        if index in keep:
            extents.append(old[index])
        else:
            extents.append(await stored(pool, data[index * EXTENT : (index + 1) * EXTENT]))
    new = NewObject(directory, name, size=len(data), extents=tuple(extents), base=base, **values)
    return await pool.publish(new)


async def put_sparse(pool: Pool, name: bytes, size: int, parts: dict[int, bytes]) -> Descriptor:
    """Store a file of holes, with some extents."""
    extents = [HOLE] * -(-size // EXTENT)
    for index, part in parts.items():
        extents[index] = await stored(pool, part)
    return await pool.publish(NewObject(ROOT, name, REGULAR, 0, 0, 0, size, tuple(extents)))


async def content(pool: Pool, record: Descriptor) -> bytes:
    """All bytes of an object, verified."""
    parts = []
    buffer = page_buffer(EXTENT)
    for index in range(-(-record.size // EXTENT)):
        length = await pool.read_extent(record, index, buffer)
        assert length == extent_length(record.size, index, EXTENT)
        parts.append(bytes(buffer[:length]))
    return b"".join(parts)


def found(pool: Pool, name: bytes) -> Descriptor:
    """What is stored under a name, which must be there."""
    record = pool.lookup(ROOT, name)
    assert record is not None
    return record


async def seen(pool: Pool, name: bytes, directory: DirectoryId = ROOT) -> bytes | None:
    """What a name stands for; None for a miss."""
    record = pool.lookup(directory, name)
    return None if record is None else await content(pool, record)


# ── where things are ─────────────────────────────────────────────────────────────────────────────────────────


def pair_at(pool: Pool, ref: SlotRef) -> int:
    """Offset on its device of a slot's pair of descriptor pages."""
    return _region_at(pool, ref) + pool.media.geometry(RegionId(ref.device, ref.region)).descriptor_offset(
        ref.slot
    )


def page_at(pool: Pool, record: Descriptor) -> int:
    """Offset on its device of the page that holds `record`."""
    return pair_at(pool, record.ref) + record.sequence % 2 * PAGE


def payload_at(pool: Pool, ref: SlotRef) -> int:
    """Offset on its device of a slot's payload."""
    return _region_at(pool, ref) + pool.media.geometry(RegionId(ref.device, ref.region)).payload_offset(
        ref.slot
    )


def header_at(pool: Pool, ref: SlotRef) -> int:
    """Offset on its device of the header pair of a slot's region."""
    return _region_at(pool, ref)


def _region_at(pool: Pool, ref: SlotRef) -> int:
    return pool.media.devices[ref.device].geometry.region_offset(ref.region)


def leaked(pool: Pool) -> set[SlotRef]:
    """Slots in use that no object in the catalogue has, as far as heads tell: none of the test's objects is indexed."""
    held = {record.ref for record in pool.catalog.scan()}
    held |= {e.ref for record in pool.catalog.scan() for e in record.extents if not e.is_hole}
    live = {
        region.ref(slot)
        for region in pool._space.regions()
        for slot in map(SlotNo, range(region.slots))
        if region.owner(slot) is not None
    }
    return live - held


SUPERBLOCK_PAGES = (layout.superblock_offset(0), layout.superblock_offset(1))
