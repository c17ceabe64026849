"""The catalogues of seats that are recovered together, as one.

A member that took over other seats has objects with slots in regions of several of them. It ends with all of them, and
whoever takes them over takes them at once: then no object is ever seen in part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from blockdev.catalog import Catalog, Trust
from blockdev.catalogs import aliases_in, forget_elsewhere
from blockdev.layout import Outline
from blockdev.types import Descriptor, DirectoryId, DirtyChunk, Kind, ObjectId, RegionId, SlotRef, Stamp


class SeatCatalogs:
    """
    :param catalogs: by seat
    :param regions: which seat each region is written by
    """

    def __init__(self, catalogs: Mapping[int, Catalog], regions: Mapping[RegionId, int]) -> None:
        self._catalogs = catalogs
        self._regions = regions

    @property
    def seats(self) -> frozenset[int]:
        return frozenset(self._catalogs)

    @property
    def regions(self) -> frozenset[RegionId]:
        return frozenset(self._regions)

    def clear_stale(self, trusts: Mapping[int, Trust]) -> None:
        """Empty those that are worth nothing."""
        for seat, catalog in self._catalogs.items():
            if trusts[seat] is Trust.STALE:
                catalog.clear()

    def is_to_be_read(self, region: RegionId, trusts: Mapping[int, Trust]) -> bool:
        """Whether nothing is known of a region, since its seat's catalogue is worth nothing."""
        return trusts[self._regions[region]] is Trust.STALE

    def dirty_chunks(self) -> set[DirtyChunk]:
        """As `Catalog.dirty_chunks`, of regions that are these seats'."""
        chunks = chain.from_iterable(catalog.dirty_chunks() for catalog in self._catalogs.values())
        return {chunk for chunk in chunks if chunk.where in self._regions}

    def mark_dirty(self, *chunks: DirtyChunk) -> None:
        """As `Catalog.mark_dirty`."""
        for chunk in chunks:
            self._of(chunk.where).mark_dirty(chunk)

    def by_id(self, object_id: ObjectId) -> Descriptor | None:
        """The record of an object."""
        return next((r for c in self._catalogs.values() if (r := c.by_id(object_id)) is not None), None)

    def aliases(self, object_id: ObjectId) -> list[Descriptor]:
        """Every ALIAS of an object."""
        return aliases_in(self._catalogs.values(), object_id)

    def raw(self, directory: DirectoryId, name: bytes) -> list[Descriptor]:
        """Every record of a name."""
        found = (catalog.get(directory, name) for catalog in self._catalogs.values())
        return [record for record in found if record is not None]

    def record_of(self, outline: Outline) -> Descriptor | None:
        """The whole of a record."""
        for catalog in self._catalogs.values():
            record = catalog.by_id(outline.object_id, alias=outline.kind is Kind.ALIAS)
            if record is not None and record.ref == outline.ref:
                return record
        return None

    def put(self, record: Descriptor) -> None:
        """As `Catalog.put`, where the record's region belongs."""
        catalog = self._of(RegionId(*record.address[:2]))
        catalog.put(record)
        forget_elsewhere(self._catalogs.values(), catalog, record)

    def forget(self, record: Descriptor) -> None:
        """Forget an object or an alias, if it is in the slot that `record` says."""
        for catalog in self._catalogs.values():
            catalog.forget(record)

    def outdo(self, ref: SlotRef, stamp: Stamp) -> None:
        """As `Catalog.outdo`."""
        next(iter(self._catalogs.values())).outdo(ref, stamp)

    def scan(self) -> Iterator[Descriptor]:
        """Every record, in no useful order."""
        return chain.from_iterable(catalog.scan() for catalog in self._catalogs.values())

    def outlines(self) -> Iterator[Outline]:
        """The outline of every record."""
        return chain.from_iterable(catalog.outlines() for catalog in self._catalogs.values())

    def load_order(self) -> Iterator[ObjectId]:
        """As `Catalog.load_order`."""
        return chain.from_iterable(catalog.load_order() for catalog in self._catalogs.values())

    def _of(self, region: RegionId) -> Catalog:
        seat = self._regions.get(region)
        return next(iter(self._catalogs.values())) if seat is None else self._catalogs[seat]


def worst(trusts: Mapping[int, Trust]) -> Trust:
    """What can be said of all together."""
    return max(trusts.values(), key=list(Trust).index)
