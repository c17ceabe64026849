"""What names stand for, and how that changes: publishing, renaming, new attributes, removing.

Each change is shielded from cancellation and holds the locks of the names and objects that it concerns.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TypedDict, Unpack

import trio

from blockdev import layout
from blockdev.errors import Exists, IsDirectory, Missing, NotDirectory
from blockdev.locks import Locks
from blockdev.others import Others, Tools
from blockdev.pool_figures import PoolCounters
from blockdev.publication import NewObject, directory_mode, moved
from blockdev.publisher import OWED_ROOM, Arrived, Consumed
from blockdev.reading import Reader
from blockdev.stamps import NameKey
from blockdev.tree import Tree
from blockdev.types import NO_ID, ROOT, Descriptor, DirectoryId, Kind

_ALL_DIRECTORIES: NameKey = (DirectoryId(NO_ID), b"")
"""A lock for what concerns the tree of directories as a whole; no name has this key."""


class Attributes(TypedDict, total=False):
    """What `Pool.update` may change."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    xattrs: tuple[tuple[bytes, bytes], ...]


class Namespace:
    """The names of one pool. Whether it may be written to was looked at by the caller."""

    def __init__(
        self,
        tools: Tools,
        reader: Reader,
        others: Others,
        tree: Tree,
        locks: Locks,
        counters: PoolCounters,
    ) -> None:
        self._reader = reader
        self._catalogs = tools.catalogs
        self._room = tools.room
        self._publisher = tools.publisher
        self._versions = tools.versions
        self._sources = tools.sources
        self._others = others
        self._tree = tree
        self._locks = locks
        self._counters = counters

    def _current(self, record: Descriptor) -> Descriptor | None:
        return self._catalogs.by_id(record.object_id)

    async def _at_hand(self, record: Descriptor | None) -> None:
        """A directory of ours whose device is away is written again elsewhere, as the same, before it is changed or filled.

        :raises: as `publish`
        """
        if (
            record is None
            or record.kind is not Kind.DIRECTORY
            or DirectoryId(record.object_id) == ROOT
            or self._reader.reachable(record)
            or not self._others.is_ours(record)
        ):
            return
        again = NewObject(
            record.directory, record.name, record.mode, record.uid, record.gid, record.mtime_ns, 0,
            kind=Kind.DIRECTORY, xattrs=record.xattrs, replace=False,
        )  # fmt: skip
        with suppress(Exists):  # another one was faster
            await self.publish(again)

    async def publish(self, new: NewObject, arrived: Arrived | None = None) -> Descriptor:
        """See `Pool.publish`."""
        with trio.CancelScope(shield=True):
            taken = self._publisher.consumed(new)
            try:
                layout.check_name(new.name)
                await self._at_hand(self._tree.directory(new.directory))
                async with (
                    self._locks.making() if new.kind is Kind.DIRECTORY else nullcontext(),
                    self._tree.entering(new.directory),
                    self._locks.names.hold((new.directory, new.name)),
                ):
                    head = await self._publish_locked(new, taken, arrived)
            except BaseException:
                # Shielded, and every I/O has a deadline.
                if arrived is not None:
                    with suppress(Exception):  # what it says was raised already, or matters no more
                        await arrived()  # noqa: ASYNC102 - nothing is written into slots that are freed
                await self._publisher.abandon(taken)  # noqa: ASYNC102
                raise
        return head

    async def _publish_locked(
        self, new: NewObject, taken: Consumed, arrived: Arrived | None = None
    ) -> Descriptor:
        old = self._replaceable(new)
        base = self._current(new.base) if new.base is not None else None
        async with self._locks.objects.hold(
            *{record.object_id for record in (old, base) if record is not None}
        ):
            old = self._replaceable(new)  # may have been evicted while we waited
            base = self._current(new.base) if new.base is not None else None
            beaten = self._others.beaten(old)
            head = await self._publisher.write(new, old, base, taken, arrived)
            if old is not None and old.object_id != head.object_id:
                await self._versions.replaced(old, head)
            await self._free_beaten(beaten, head)
        if head.kind is Kind.HEAD:
            self._counters.published += 1
            self._counters.published_bytes += head.size
        return head

    async def _free_beaten(self, beaten: list[Descriptor], head: Descriptor) -> None:
        """Free objects of ours that `head` answers for, but those that somebody is about to free."""
        for record in beaten:
            with self._locks.objects.try_hold(record.object_id) as held:
                if held and self._others.own(record.object_id) is not None:
                    await self._versions.replaced(record, head)

    def _replaceable(self, new: NewObject) -> Descriptor | None:
        old = self._catalogs.get(new.directory, new.name)
        if old is None:
            return None
        if not self._reader.reachable(old) and (old.kind is not Kind.DIRECTORY or new.kind is Kind.DIRECTORY):
            return (
                old  # what cannot be reached is a miss: it gives way; a directory to itself, see `_at_hand`
            )
        if not new.replace:
            raise Exists(f"{new.name!r} exists")
        if old.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{new.name!r} is a directory")
        return old

    async def rename(
        self, record: Descriptor, directory: DirectoryId, name: bytes, *, replace: bool = True
    ) -> Descriptor:
        """See `Pool.rename`."""
        layout.check_name(name)
        source, target = (record.directory, record.name), (directory, name)
        if source == target:
            return self._must_be(record)
        await self._at_hand(record)
        await self._at_hand(self._tree.directory(directory))
        locks = [source, target]
        if record.kind is Kind.DIRECTORY:
            locks.append(_ALL_DIRECTORIES)  # or two of them at once could move into each other
        with trio.CancelScope(shield=True):
            async with self._tree.entering(directory), self._locks.names.hold(*locks):
                old = self._replaceable_by(record, target, replace=replace)
                ids = {r.object_id for r in (record, old) if r is not None}
                async with self._locks.objects.hold(*ids):
                    current = self._must_be(record)
                    old = self._replaceable_by(record, target, replace=replace)
                    self._tree.check_outside(current, directory)
                    with self._tree.leaving(old if old is not None and self._reader.is_there(old) else None):
                        head = await self._move(current, target, old)
        return head

    async def _move(self, current: Descriptor, target: NameKey, old: Descriptor | None) -> Descriptor:
        if not self._others.is_ours(current):
            return await self._others.alias(replace(current, directory=target[0], name=target[1]), old)
        await self._others.outdo_rivals(current)
        await self._free_beaten(self._others.beaten(current), current)
        owed = await self._versions.debts.inherit(current.object_id, old, target)
        stamp = self._sources.next_stamp(current, old)
        head = await self._rewrite(moved(current, *target, stamp, owed))
        beaten = self._others.beaten(old)
        self._versions.remember(head)
        if head.kind is Kind.HEAD:
            self._versions.renamed(head)
        if old is not None:
            await self._versions.replaced(old, head)
        await self._free_beaten(beaten, head)
        return head

    async def _rewrite(self, head: Descriptor) -> Descriptor:
        """Write the next page of a live head's slot, its sequence set here."""
        head = replace(head, sequence=await self._room.sequence_of(head.address) + 1)
        await self._publisher.write_head(head)
        await self._room.barrier([head.ref])
        return head

    def _must_be(self, record: Descriptor) -> Descriptor:
        current = self._current(record)
        if current is None or (current.directory, current.name) != (record.directory, record.name):
            raise Missing(f"{record.name!r} is gone")
        return current

    def _replaceable_by(self, record: Descriptor, key: NameKey, *, replace: bool) -> Descriptor | None:
        old = self._catalogs.get(*key)
        if old is None or old.object_id == record.object_id:
            return None
        if not self._reader.is_there(old):
            return old  # what cannot be reached is a miss: it gives way
        name = old.name
        if not replace:
            raise Exists(f"{name!r} exists")
        if old.kind is Kind.DIRECTORY:
            if record.kind is not Kind.DIRECTORY:
                raise IsDirectory(f"{name!r} is a directory")
        elif record.kind is Kind.DIRECTORY:
            raise NotDirectory(f"{name!r} is not a directory")
        return old

    async def update(self, record: Descriptor, **attributes: Unpack[Attributes]) -> Descriptor:
        """See `Pool.update`."""
        await self._at_hand(record)
        with trio.CancelScope(shield=True):
            async with (
                self._locks.names.hold((record.directory, record.name)),
                self._locks.objects.hold(record.object_id),
            ):
                current = self._must_be(record)
                if not self._others.is_ours(current):
                    return await self._others.alias(replace(current, **attributes), None)
                stamp = self._sources.next_stamp(current)
                owed = self._versions.debts.of(current.object_id)
                changed = replace(current, stamp=stamp, ctime_ns=stamp, supersedes=owed, **attributes)
                layout.pack_descriptor(replace(changed, supersedes=(*owed, *OWED_ROOM)[: len(OWED_ROOM)]))
                head = await self._rewrite(changed)
                self._versions.remember(head)
        return head

    async def update_root(self, mode: int, uid: int, gid: int) -> Descriptor:
        """See `Pool.update_root`."""
        mode = directory_mode(mode)
        with trio.CancelScope(shield=True):
            async with self._locks.names.hold(_ALL_DIRECTORIES):
                current = self._tree.directory(ROOT)
                if current is None or not self._reader.reachable(current):
                    return await self._publisher.write_root(mode, uid, gid, current)
        assert current is not None
        return await self.update(current, mode=mode, uid=uid, gid=gid)

    async def remove(self, record: Descriptor) -> None:
        """See `Pool.remove`."""
        with trio.CancelScope(shield=True):
            async with (
                self._locks.names.hold((record.directory, record.name)),
                self._locks.objects.hold(record.object_id),
            ):
                current = self._must_be(record)
                with self._tree.leaving(current):
                    beaten = self._others.beaten(current)
                    if self._others.is_ours(current):
                        await self._others.outdo_rivals(current)
                        await self._free_beaten(beaten, current)
                        await self._versions.remove(current)
                    else:
                        await self._others.remove(current)
                        await self._free_beaten(beaten, current)
                self._counters.removed += 1
