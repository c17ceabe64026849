"""What a cache says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvfs.prefetcher import PrefetchStatistics
    from rdma.stream import StreamStatistics


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A cache since it was opened."""

    hits: int
    misses: int
    failed: int
    """Objects that were there and could not be read, or not in time."""
    bytes: int
    """That reached their buffers."""
    bytes_copied: int
    """Of these, through the DRAM tier: from it, or because the buffer could not be read into directly."""
    puts: int
    put_bytes: int
    put_bytes_copied: int
    """Of these, because the buffer could not be written from directly."""
    removed: int
    bytes_straight: int
    """That went from devices straight into memory of a GPU, and were not compared: `Cache.rechecked`. Those that were wanted so
    and had to be compared are among `bytes_copied`."""
    stream: StreamStatistics
    prefetch: PrefetchStatistics
