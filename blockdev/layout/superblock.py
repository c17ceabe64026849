"""The superblock: what a device says of itself and of its pool.

A pair: one page at byte 0 and one at 512 KiB of the device (page = sequence % 2), far enough apart that what
overwrites the start of a device (a partition table, a boot loader) leaves one of them. The body:

    offset  type  field
    0       16s   UUID of the device
    16      u16   this device's number: its row in the table below
    18      u16   rows in the table
    20      u8    slot class of the extents (types.SlotClass)
    21      u8    length of the domain, bytes
    22      u8    length of the pool's name, bytes
    23      u8    0
    24      u64   region size, bytes
    32      u64   data offset: where region 0 begins, bytes
    40      u64   sequence
    48      …     domain, ASCII
    …       …     name, UTF-8
    …       24s   each row of the table: 16s UUID, u64 bytes that the pool uses

Why a whole table in each: any one device tells what the pool consists of, so a missing one is noticed and
named, and extents can name devices by a u16.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

from blockdev.errors import BadSuperblock, RecordTooLarge
from blockdev.layout.page import Buffer, seal, unseal
from blockdev.types import (
    EXTENT_CLASSES,
    KIB,
    PAGE,
    ByteOffset,
    DeviceEntry,
    DeviceNo,
    SlotClass,
    Superblock,
)

SUPERBLOCK_MAGIC = b"kvfspool"
SUPERBLOCK_VERSION = 1
SUPERBLOCK_OFFSETS = (ByteOffset(0), ByteOffset(512 * KIB))
"""Where the pair's pages are on the device, bytes."""
DEVICES_MAX = 128
"""Most devices in a pool: their table fits the page beside the longest domain and name."""
DOMAIN_MAX = 255
POOL_NAME_MAX = 64

_FIXED = struct.Struct("<16sHHBBBBQQQ")
_ENTRY = struct.Struct("<16sQ")


def superblock_offset(sequence: int) -> ByteOffset:
    """Where on the device the page with this sequence goes, bytes."""
    return SUPERBLOCK_OFFSETS[sequence % 2]


def encode_superblock(superblock: Superblock) -> bytes:
    """One page, to be written at `superblock_offset(superblock.sequence)`.

    :raises RecordTooLarge: domain, name or table are longer than the format allows
    :raises BadSuperblock: the record contradicts itself
    """
    domain = superblock.domain.encode()
    name = superblock.name.encode()
    if len(domain) > DOMAIN_MAX or len(name) > POOL_NAME_MAX or len(superblock.devices) > DEVICES_MAX:
        limits = f"{DOMAIN_MAX} bytes of domain, {POOL_NAME_MAX} of name, {DEVICES_MAX} devices"
        raise RecordTooLarge(f"a superblock holds at most {limits}")
    _check(superblock)
    try:
        fixed = _FIXED.pack(
            superblock.device.bytes,
            superblock.device_no,
            len(superblock.devices),
            superblock.extent_class,
            len(domain),
            len(name),
            0,
            superblock.region_size,
            superblock.data_offset,
            superblock.sequence,
        )
        table = b"".join(_ENTRY.pack(entry.uuid.bytes, entry.size) for entry in superblock.devices)
    except struct.error as error:
        raise RecordTooLarge(f"a number does not fit its field: {error}") from error
    return seal(SUPERBLOCK_MAGIC, SUPERBLOCK_VERSION, superblock.pool, fixed + domain + name + table)


def decode_superblock(page: Buffer) -> Superblock:
    """
    :raises BadSuperblock: damaged, or not a superblock
    :raises UnknownVersion: written by a newer kvfs
    """
    found = unseal(SUPERBLOCK_MAGIC, SUPERBLOCK_VERSION, None, page)
    if found is None:
        raise BadSuperblock("no valid superblock")
    pool, body = found
    try:
        superblock = _unpack(pool, body)
    except (struct.error, ValueError) as error:
        raise BadSuperblock(f"a superblock with impossible contents: {error}") from error
    _check(superblock)
    return superblock


def pick_superblock(pages: Sequence[Buffer]) -> Superblock:
    """The superblock that counts of the two pages, given in the order of `SUPERBLOCK_OFFSETS`.

    :raises BadSuperblock: neither is valid
    :raises UnknownVersion: one was written by a newer kvfs
    """
    best: Superblock | None = None
    for number, page in enumerate(pages):
        try:
            found = decode_superblock(page)
        except BadSuperblock:
            continue
        if found.sequence % 2 == number and (best is None or found.sequence > best.sequence):
            best = found
    if best is None:
        raise BadSuperblock("no valid superblock in either of its places")
    return best


def _unpack(pool: UUID, body: bytes) -> Superblock:
    (
        device, device_no, count, extent_class, domain_length, name_length, reserved,
        region_size, data_offset, sequence,
    ) = _FIXED.unpack_from(body)  # fmt: skip
    domain_end = _FIXED.size + domain_length
    name_end = domain_end + name_length
    if reserved or count > DEVICES_MAX or name_length > POOL_NAME_MAX:
        raise ValueError("a field beyond its limit")
    if name_end + count * _ENTRY.size != len(body):
        raise ValueError("lengths do not add up")
    table = _ENTRY.iter_unpack(body[name_end:])
    return Superblock(
        pool=pool,
        device=UUID(bytes=device),
        device_no=DeviceNo(device_no),
        domain=body[_FIXED.size : domain_end].decode("ascii"),
        name=body[domain_end:name_end].decode(),
        region_size=region_size,
        data_offset=ByteOffset(data_offset),
        extent_class=SlotClass(extent_class),
        devices=tuple(DeviceEntry(UUID(bytes=uuid), size) for uuid, size in table),
        sequence=sequence,
    )


def _check(superblock: Superblock) -> None:
    """
    :raises BadSuperblock: numbers that no geometry can be built on
    """
    flaw = ""
    if superblock.extent_class not in EXTENT_CLASSES:
        flaw = "no such extent size"
    elif superblock.region_size < PAGE or superblock.region_size % PAGE:
        flaw = "the region size is not a number of pages"
    elif superblock.data_offset < SUPERBLOCK_OFFSETS[1] + PAGE or superblock.data_offset % PAGE:
        flaw = "region 0 would begin before the superblock ends"
    elif superblock.device_no >= len(superblock.devices):
        flaw = "the device is not in its own table"
    elif superblock.devices[superblock.device_no].uuid != superblock.device:
        flaw = "the device's row in the table is another device's"
    elif not superblock.domain.isascii():
        flaw = "the domain is not ASCII"
    if flaw:
        raise BadSuperblock(f"a superblock with impossible contents: {flaw}")
