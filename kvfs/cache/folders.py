"""From places to records, and the directories on the way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from blockdev.errors import Exists
from blockdev.types import ROOT, Descriptor, DirectoryId, Kind
from kvfs.errors import BadKey

if TYPE_CHECKING:
    from blockdev.pool import Pool
    from kvfs.cache.keys import Place

_MODE = 0o700
"""Of directories that are made: as the mount's root, whose files are its owner's."""


class Finder:
    """Looks places up; what it has learned of directories is right until the next await. One for each batch."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[tuple[bytes, ...], DirectoryId | None] = {(): ROOT}

    def find(self, place: Place) -> Descriptor | None:
        """The object of that place; None if there is none, or part of it cannot be reached."""
        directory = self.directory(place.parents)
        record = None if directory is None else self._pool.lookup(directory, place.name)
        return record if record is not None and record.kind is Kind.HEAD else None

    def size_of(self, place: Place) -> int | None:
        """Bytes of the object of that place; None as `find`."""
        directory = self.directory(place.parents)
        return None if directory is None else self._pool.size_of(directory, place.name)

    def directory(self, path: tuple[bytes, ...]) -> DirectoryId | None:
        if path not in self._known:
            above = self.directory(path[:-1])
            record = None if above is None else self._pool.lookup(above, path[-1])
            is_one = record is not None and record.kind is Kind.DIRECTORY
            self._known[path] = DirectoryId(record.object_id) if record is not None and is_one else None
        return self._known[path]


async def make_folders(pool: Pool, place: Place) -> DirectoryId:
    """The directory in which an object is to be; made, and those above it, where they are not there.

    :raises BadKey: something on the way is a file
    :raises BlockError: as `Pool.make_directory`
    """
    directory = ROOT
    for name in place.parents:
        record = pool.lookup(directory, name)
        if record is None:
            try:
                record = await pool.make_directory(directory, name, _MODE, os.geteuid(), os.getegid())
            except Exists:  # somebody else made it meanwhile
                record = pool.lookup(directory, name)
        if record is None or record.kind is not Kind.DIRECTORY:
            raise BadKey(
                f"{place} cannot be put: {name.decode(errors='backslashreplace')!r} is not a directory"
            )
        directory = DirectoryId(record.object_id)
    return directory
