"""Which slots are taken, said of many objects at once, as when a pool is opened. Pure but for what media are there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from blockdev.media import Media
from blockdev.region import Claim
from blockdev.space import Space
from blockdev.types import CHUNK_SLOTS, DeviceNo, DirtyChunk, ObjectId, RegionId, RegionNo, SlotClass, SlotRef

_AT_ONCE = 4096
"""Claims that are gathered before the space is told."""
_NONE: frozenset[SlotClass] = frozenset()


@dataclass(slots=True)
class _Part:
    """A region that can be read, and what is to be claimed there."""

    classes: frozenset[SlotClass]
    waiting: list[Claim] = field(default_factory=list)


class Claims:
    """Claims the slots of objects whose records were not read; `finish` when all were named.

    :param scanned: chunks of which the space knows already what is in them
    :ivar refused: owners of slots that are free, bad or somebody else's
    """

    def __init__(self, media: Media, space: Space, scanned: Iterable[DirtyChunk]) -> None:
        self._media = media
        self._space = space
        self._scanned: Collection[tuple[int, int, int]] = {(c.device, c.region, c.chunk) for c in scanned}
        self._parts: dict[tuple[int, int], _Part | None] = {}
        self._waiting = 0
        self.refused: list[ObjectId] = []

    def claim(self, owner: ObjectId, slots: Iterable[SlotRef], sequence: int) -> frozenset[SlotClass]:
        """Claim an object's slots; returns the classes of those that can be read.

        :param slots: the head's first
        :param sequence: of the head's record
        """
        classes = _NONE
        for device, region, slot, generation in slots:
            part = self._part(device, region)
            if part is not None:
                classes = classes | part.classes if classes else part.classes
                if not self._scanned or (device, region, slot // CHUNK_SLOTS) not in self._scanned:
                    part.waiting.append((slot, owner, generation, sequence))
                    self._waiting += 1
            sequence = 0  # of the others it is not known
        if self._waiting >= _AT_ONCE:
            self.finish()
        return classes

    def finish(self) -> None:
        """Tell the space what was claimed up to now."""
        self._waiting = 0
        for (device, region), part in self._parts.items():
            if part is not None and part.waiting:
                waiting, part.waiting = part.waiting, []
                self.refused += self._space.claim_all(RegionId(DeviceNo(device), RegionNo(region)), waiting)

    def _part(self, device: DeviceNo, region: RegionNo) -> _Part | None:
        """None for what cannot be read."""
        key = device, region
        if key not in self._parts:
            header = self._media.known_header(RegionId(device, region))
            reaches = header is not None and self._media.available(device)
            self._parts[key] = _Part(frozenset({header.slot_class})) if header and reaches else None
        return self._parts[key]
