"""What opening a pool found."""

from __future__ import annotations

from dataclasses import dataclass, field

from blockdev.catalog import Trust
from blockdev.types import Descriptor, ObjectId, SlotRef, Stamp


class Contradiction(Exception):
    """The catalogue says what the media deny: it must be built again."""


@dataclass(slots=True)
class Recovered:
    """What opening a pool found."""

    trust: Trust
    chunks: int = 0
    """Chunks of descriptors read."""
    garbage: int = 0
    """Slots freed that no object claimed."""
    broken: int = 0
    """Heads dropped because a part was missing."""
    damaged_regions: int = 0
    """Regions whose header is damaged."""
    unread_regions: int = 0
    """Regions whose records could not be read: until they are, the catalogue is not complete."""
    left_over: int = 0
    """Records that are outdone and could not be freed yet: they are to be looked at the next time, too."""
    high: Stamp = field(default=Stamp(0))
    owed: dict[ObjectId, tuple[SlotRef, ...]] = field(default_factory=dict)
    stranded: dict[ObjectId, list[SlotRef]] = field(default_factory=dict)
    """Parts of objects whose head is out of reach and not in the catalogue."""
    tombstones: list[Descriptor] = field(default_factory=list)
    aliases: list[Descriptor] = field(default_factory=list)
    doubtful: list[ObjectId] = field(default_factory=list)
    """Objects of other catalogues that what was found here has outdone."""
