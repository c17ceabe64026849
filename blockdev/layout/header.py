"""The region header: the first pair of pages of each region (page = sequence % 2). The body:

    offset  type  field
    0       u16   device               where this region is: a page found elsewhere is not believed
    2       u8    state (types.RegionState)
    3       u8    slot class (types.SlotClass)
    4       u32   region
    8       u32   epoch
    12      u32   flags: 1 = unproven
    16      16s   UUID of the member that writes into the region
    32      u64   sequence

A region without a valid header has never been formatted.
"""

from __future__ import annotations

import struct
from uuid import UUID

from blockdev.errors import RecordTooLarge
from blockdev.layout.page import Buffer, seal, unseal
from blockdev.types import (
    PAGE,
    DeviceNo,
    Epoch,
    RegionHeader,
    RegionNo,
    RegionState,
    SlotClass,
)

REGION_HEADER_MAGIC = b"kvfsregn"
REGION_HEADER_VERSION = 1

_BODY = struct.Struct("<HBBIII16sQ")
_UNPROVEN = 1


def encode_region_header(header: RegionHeader) -> bytes:
    """One page, to be written as page `header.sequence % 2` of the region.

    :raises RecordTooLarge: a number does not fit its field
    """
    try:
        body = _BODY.pack(
            header.device_no,
            header.state,
            header.slot_class,
            header.region,
            header.epoch,
            _UNPROVEN if header.unproven else 0,
            header.writer.bytes,
            header.sequence,
        )
    except struct.error as error:
        raise RecordTooLarge(f"a number does not fit its field: {error}") from error
    return seal(REGION_HEADER_MAGIC, REGION_HEADER_VERSION, header.pool, body)


def decode_region_header(pool: UUID, page: Buffer) -> RegionHeader | None:
    """The header in a page; None if it is not a valid one of this pool.

    :raises UnknownVersion: it is sound, of this pool and of a later version
    """
    found = unseal(REGION_HEADER_MAGIC, REGION_HEADER_VERSION, pool, page)
    if found is None or len(found[1]) != _BODY.size:
        return None
    device, state, slot_class, region, epoch, flags, writer, sequence = _BODY.unpack(found[1])
    if state >= len(RegionState) or slot_class >= len(SlotClass) or flags > _UNPROVEN:
        return None
    return RegionHeader(
        pool=pool,
        device_no=DeviceNo(device),
        region=RegionNo(region),
        state=RegionState(state),
        writer=UUID(bytes=writer),
        epoch=Epoch(epoch),
        slot_class=SlotClass(slot_class),
        unproven=bool(flags),
        sequence=sequence,
    )


def pick_region_header(pool: UUID, pair: Buffer, device: DeviceNo, region: RegionNo) -> RegionHeader | None:
    """The header that counts of a region's first two pages (8192 bytes): the valid one of this region with
    the highest sequence. None: the region has never been formatted for this pool, or both are damaged.

    :raises UnknownVersion: see `decode_region_header`
    """
    if len(pair) != 2 * PAGE:
        raise ValueError(f"a pair of pages has {2 * PAGE} bytes, not {len(pair)}")
    view = memoryview(pair)
    best: RegionHeader | None = None
    for page in (0, 1):
        found = decode_region_header(pool, view[page * PAGE : (page + 1) * PAGE])
        if found is None or found.sequence % 2 != page or (found.device_no, found.region) != (device, region):
            continue
        if best is None or found.sequence > best.sequence:
            best = found
    return best
