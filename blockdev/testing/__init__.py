"""Devices for tests, and the conformance suite that every Device passes. Shipped: whoever writes a Device needs it.

- `MemoryDevice`: a device in memory, sparse, cheap to make.
- `FaultyDevice`: the same with a volatile write cache, scripted and random faults, delays, and crashes.
- `DistantDevice`: another one, as if it were at the end of a slow and shared link.
- `check_device`: what a Device must do, as one coroutine.

Nothing here uses threads; delays go through trio's clock, so a MockClock makes them free.
"""

from blockdev.testing.conformance import check_device
from blockdev.testing.distant import DistantDevice
from blockdev.testing.faults import Fault, Operation, RandomFaults
from blockdev.testing.faulty import FaultyDevice
from blockdev.testing.memory import MemoryDevice, SparseBytes

__all__ = [
    "DistantDevice",
    "Fault",
    "FaultyDevice",
    "MemoryDevice",
    "Operation",
    "RandomFaults",
    "SparseBytes",
    "check_device",
]
