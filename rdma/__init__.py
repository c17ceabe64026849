"""rdma: moves extents between devices and memory that stays put. Knows nothing of pools, names or engines."""

from __future__ import annotations
