"""Every byte on media: how records become pages, and where the pages are. Pure.

Each format is described beside the code that owns it: `page` (the frame around all of them), `superblock`,
`header` (of a region), `descriptor`, `extents`, and `geometry` (all offsets). docs/media-format.md has it in one
place.
"""

from blockdev.layout.descriptor import (
    DESCRIPTOR_MAGIC,
    DESCRIPTOR_VERSION,
    INLINE_MAX,
    Outline,
    check_name,
    decode_descriptor,
    descriptor_room,
    encode_descriptor,
    max_extents,
    max_inline,
    outline_descriptor,
    pack_descriptor,
    pick_descriptor,
    unpack_descriptor,
)
from blockdev.layout.extents import (
    EXTENT_ENTRY_SIZE,
    SLOT_REF_SIZE,
    entries_per_index,
    index_class,
    pack_extents,
    unpack_extents,
)
from blockdev.layout.geometry import (
    DEFAULT_DATA_OFFSET,
    PAIR,
    DeviceGeometry,
    RegionGeometry,
    default_region_size,
)
from blockdev.layout.header import (
    REGION_HEADER_MAGIC,
    REGION_HEADER_VERSION,
    decode_region_header,
    encode_region_header,
    pick_region_header,
)
from blockdev.layout.page import Buffer
from blockdev.layout.superblock import (
    DEVICES_MAX,
    DOMAIN_MAX,
    POOL_NAME_MAX,
    SUPERBLOCK_MAGIC,
    SUPERBLOCK_OFFSETS,
    SUPERBLOCK_VERSION,
    decode_superblock,
    encode_superblock,
    pick_superblock,
    superblock_offset,
)

__all__ = [
    "DEFAULT_DATA_OFFSET",
    "DESCRIPTOR_MAGIC",
    "DESCRIPTOR_VERSION",
    "DEVICES_MAX",
    "DOMAIN_MAX",
    "EXTENT_ENTRY_SIZE",
    "INLINE_MAX",
    "PAIR",
    "POOL_NAME_MAX",
    "REGION_HEADER_MAGIC",
    "REGION_HEADER_VERSION",
    "SLOT_REF_SIZE",
    "SUPERBLOCK_MAGIC",
    "SUPERBLOCK_OFFSETS",
    "SUPERBLOCK_VERSION",
    "Buffer",
    "DeviceGeometry",
    "Outline",
    "RegionGeometry",
    "check_name",
    "decode_descriptor",
    "decode_region_header",
    "decode_superblock",
    "default_region_size",
    "descriptor_room",
    "encode_descriptor",
    "encode_region_header",
    "encode_superblock",
    "entries_per_index",
    "index_class",
    "max_extents",
    "max_inline",
    "outline_descriptor",
    "pack_descriptor",
    "pack_extents",
    "pick_descriptor",
    "pick_region_header",
    "pick_superblock",
    "superblock_offset",
    "unpack_descriptor",
    "unpack_extents",
]
