"""Directories: what is in them, what is about to be, and where they lie in each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from blockdev.catalogs import Catalogs
from blockdev.errors import Missing, NameConflict, NotEmpty
from blockdev.types import ROOT, Descriptor, DirectoryId, Kind, ObjectId


class Tree:
    """The directories of one pool. Names come and go across awaits; this keeps them from missing each other."""

    def __init__(self, catalog: Catalogs) -> None:
        self._catalog = catalog
        self._entering: Counter[DirectoryId] = Counter()
        self._leaving: set[DirectoryId] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._entering and not self._leaving

    def directory(self, directory: DirectoryId) -> Descriptor | None:
        """The record of a directory; None for an unknown one and for a root that was never changed."""
        record = self._catalog.by_id(ObjectId(directory))
        return record if record is not None and record.kind is Kind.DIRECTORY else None

    def is_empty(self, directory: DirectoryId) -> bool:
        """Whether nothing is in a directory or about to be."""
        return not self._catalog.has_children(directory) and not self._entering[directory]

    @asynccontextmanager
    async def entering(self, directory: DirectoryId) -> AsyncIterator[None]:
        """While something is being put into a directory, it is not empty. :raises Missing: it is gone, or going"""
        if directory in self._leaving or (directory != ROOT and self.directory(directory) is None):
            raise Missing("the directory is gone")
        self._entering[directory] += 1
        try:
            yield
        finally:
            self._entering[directory] -= 1
            if not self._entering[directory]:
                del self._entering[directory]

    @contextmanager
    def leaving(self, record: Descriptor | None) -> Iterator[None]:
        """While an empty directory is being removed, nothing is put into it. Nothing for what is no directory.

        :raises NotEmpty:
        """
        if record is None or record.kind is not Kind.DIRECTORY:
            yield
            return
        directory = DirectoryId(record.object_id)
        if not self.is_empty(directory):
            raise NotEmpty(f"{record.name!r} is not empty")
        self._leaving.add(directory)
        try:
            yield
        finally:
            self._leaving.discard(directory)

    def check_outside(self, record: Descriptor, directory: DirectoryId) -> None:
        """:raises NameConflict: `directory` is `record`, or in it"""
        seen: set[DirectoryId] = set()  # media may hold loops
        while record.kind is Kind.DIRECTORY and directory not in seen:
            if ObjectId(directory) == record.object_id:
                raise NameConflict(f"{record.name!r} cannot be moved into itself")
            seen.add(directory)
            parent = self.directory(directory)
            if parent is None:
                return
            directory = parent.directory
