"""The regions of one slot class, in the two orders that matter: which gives the next slot, which is emptied first. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from heapq import heappop, heappush, heapreplace

from blockdev.region import Region, SlotState
from blockdev.types import DeviceNo, Epoch, RegionId, SlotRef


class Shelf:
    """The regions with free slots. They give in turn: device by device and, within a device, region by region."""

    def __init__(self) -> None:
        self._devices: deque[DeviceNo] = deque()
        self._regions: dict[DeviceNo, deque[Region]] = {}
        self._shelved: set[RegionId] = set()

    def __bool__(self) -> bool:
        return bool(self._devices)

    def has_device(self, device: DeviceNo) -> bool:
        """Whether a region of this device has a free slot."""
        return device in self._regions

    def free_on(self, device: DeviceNo) -> int:
        """How many free slots a device has."""
        return sum(region.counts[SlotState.FREE] for region in self._regions.get(device, ()))

    def add(self, region: Region) -> None:
        """A region has free slots; nothing if that is known."""
        if region.id in self._shelved:
            return
        self._shelved.add(region.id)
        device = region.id.device
        if device not in self._regions:
            self._regions[device] = deque()
            self._devices.append(device)
        self._regions[device].append(region)

    def discard(self, region: Region) -> None:
        """A region has no free slots, or they are not to be used; nothing if that is known."""
        if region.id not in self._shelved:
            return
        self._shelved.remove(region.id)
        device = region.id.device
        self._regions[device].remove(region)
        if not self._regions[device]:
            del self._regions[device]
            self._devices.remove(device)

    def take(self, avoid: Collection[DeviceNo]) -> SlotRef | None:
        """Reserve a slot of the next device that is not in `avoid`."""
        for _ in range(len(self._devices)):
            device = self._devices[0]
            self._devices.rotate(-1)
            if device not in avoid:
                return self._take_from(self._regions[device])
        return None

    def _take_from(self, regions: deque[Region]) -> SlotRef:
        region = regions[0]
        regions.rotate(-1)
        slot = region.take()
        assert slot is not None, "a region without free slots was on the shelf"
        if not region.counts[SlotState.FREE]:
            self.discard(region)
        return region.ref(slot)


class Coldest:
    """Regions by when they were last used.

    A heap of lower bounds: a use only raises `Region.last_used`, and the bound is raised when it reaches the front. The
    epoch tells apart a region and what it was before it was formatted.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, RegionId, Epoch]] = []

    def add(self, region: Region) -> None:
        """A region came, or was formatted. One that goes need not be taken out."""
        heappush(self._heap, (region.last_used, region.id, region.epoch))

    def find(
        self, current: Callable[[RegionId], Region | None], suits: Callable[[Region], bool], before: float
    ) -> Region | None:
        """The region last used first, if that was before `before`, among those that suit."""
        heap = self._heap
        passed_over: list[tuple[float, RegionId, Epoch]] = []
        found: Region | None = None
        while heap and heap[0][0] < before and found is None:
            bound, region_id, epoch = heap[0]
            region = current(region_id)
            if region is None or region.epoch != epoch:
                heappop(heap)
            elif region.last_used > bound:
                heapreplace(heap, (region.last_used, region_id, epoch))
            elif suits(region):
                found = region
            else:
                passed_over.append(heappop(heap))
        for entry in passed_over:
            heappush(heap, entry)
        return found
