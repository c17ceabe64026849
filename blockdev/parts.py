"""The parts of a pool."""

from __future__ import annotations

from typing import NamedTuple

from blockdev.catalogs import Catalogs
from blockdev.eviction import Policy
from blockdev.media import Media
from blockdev.membership import Membership
from blockdev.reading import Reader
from blockdev.room import Room
from blockdev.sources import Sources
from blockdev.space import Space
from blockdev.types import Descriptor, Superblock
from blockdev.versions import Versions


class Parts(NamedTuple):
    """What a pool is made of; `opening` assembles them."""

    superblock: Superblock
    media: Media
    catalog: Catalogs
    space: Space
    policy: Policy
    room: Room
    reader: Reader
    versions: Versions
    sources: Sources
    membership: Membership | None
    aliases: list[Descriptor]
