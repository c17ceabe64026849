"""The frame around every page on media.

All metadata is written in pages of 4 KiB that begin alike, whatever they hold and whatever their version:

    offset  type  field
    0       8s    magic: which format this is
    8       u32   version of that format
    12      u32   length of the body, bytes
    16      u64   checksum: xxh3-64 of bytes 0..15 and 24..4095
    24      16s   UUID of the pool
    40      …     body, then zeros up to 4096

Numbers are little-endian, UUIDs big-endian (RFC 4122 order).

Why this order: the first 40 bytes keep their meaning in all versions, so any kvfs can tell a damaged page from
one of another pool and from one of a newer kvfs. The magic is first because other programs look for signatures
there. The checksum covers it and the version too, or a flipped bit in the version would read as "newer"; and it
covers the padding, so that a torn write is noticed wherever the tear is.
"""

from __future__ import annotations

import struct
from uuid import UUID

from xxhash import xxh3_64

from blockdev.errors import RecordTooLarge, UnknownVersion
from blockdev.types import PAGE

Buffer = bytes | bytearray | memoryview
"""What pages are decoded from."""

_FRAME = struct.Struct("<8sIIQ16s")
_COVERED_FIRST = 16
_COVERED_REST = 24

BODY_OFFSET = _FRAME.size
BODY_MAX = PAGE - BODY_OFFSET
"""Most bytes that a page holds besides its frame."""


def seal(magic: bytes, version: int, pool: UUID, body: bytes) -> bytes:
    """Put `body` into a page.

    :raises RecordTooLarge: it is longer than `BODY_MAX`
    """
    if len(body) > BODY_MAX:
        raise RecordTooLarge(f"{len(body)} bytes do not fit a page, {BODY_MAX} do")
    page = bytearray(PAGE)
    _FRAME.pack_into(page, 0, magic, version, len(body), 0, pool.bytes)
    page[BODY_OFFSET : BODY_OFFSET + len(body)] = body
    page[_COVERED_FIRST:_COVERED_REST] = _checksum(page).to_bytes(8, "little")
    return bytes(page)


def unseal(magic: bytes, version: int, pool: UUID | None, page: Buffer) -> tuple[UUID, bytes] | None:
    """Take the pool and the body out of a page; None if the page is damaged, of another format or of another
    pool (`pool` None accepts any).

    :raises UnknownVersion: the page is sound, ours, and of a later version
    """
    if len(page) != PAGE:
        return None
    found_magic, found_version, length, checksum, found_pool = _FRAME.unpack_from(page)
    if found_magic != magic or length > BODY_MAX or found_version == 0:
        return None
    if pool is not None and found_pool != pool.bytes:
        return None
    if checksum != _checksum(page):
        return None
    if found_version > version:
        what = magic.rstrip(b"\0").decode("ascii")
        raise UnknownVersion(f"{what} version {found_version}: this kvfs knows versions up to {version}")
    return pool or UUID(bytes=found_pool), bytes(page[BODY_OFFSET : BODY_OFFSET + length])


def _checksum(page: Buffer) -> int:
    view = memoryview(page)
    digest = xxh3_64(view[:_COVERED_FIRST])
    digest.update(view[_COVERED_REST:])
    return digest.intdigest()
