"""A pool: named, immutable objects on many devices. Combines space, media, catalogue and eviction.

A Pool is made by `opening.open_pool` and lives inside its `async with`. Its state changes only in the trio thread and
only between awaits. What must always hold:

- Whoever finds an object by name can read all of it, or gets a miss. Payloads and body records are written before the
  head record that lists them; the head is one page of a pair, so it is there or not.
- A name goes from one version to the next by one page: the new head has the higher stamp. The old version is made
  invalid after that, and the new one may not leave before: else a crash would bring the old one back.
- A freed slot is invalid on media before it is reused, and while anybody still reads the version that held it, it is
  not reused at all.

Locks: names before objects, each kind in one order; eviction only tries.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict, Unpack

import trio

from blockdev import layout
from blockdev.catalogs import Catalogs
from blockdev.errors import (
    ChecksumError,
    DeviceError,
    Exists,
    FormatError,
    IsDirectory,
    Missing,
    NoSpace,
    NotDirectory,
    PoolClosed,
    Raced,
    ReadOnly,
    Unavailable,
)
from blockdev.eviction import Policy
from blockdev.forks import ends_in_children
from blockdev.locks import KeyedLocks
from blockdev.media import Media
from blockdev.membership import Membership
from blockdev.others import Others, Tools
from blockdev.pool_figures import LimboTotals, PoolCounters, PoolStatistics, RoomTotals
from blockdev.publication import NewObject, directory_mode, moved, symlink_mode
from blockdev.publisher import OWED_ROOM, Arrived, Consumed, Publisher
from blockdev.reading import Reader
from blockdev.recovery import Recovered
from blockdev.room import Room
from blockdev.sources import Sources
from blockdev.space import Space
from blockdev.stamps import NameKey
from blockdev.tree import Tree
from blockdev.types import (
    NO_ID,
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    ExtentRef,
    Kind,
    ObjectId,
    SlotRef,
    Stamp,
    Superblock,
)
from blockdev.versions import Versions

log = logging.getLogger(__name__)

_SWEEP = 64
"""Slots of others that are looked at in one sweep."""
_ALL_DIRECTORIES: NameKey = (DirectoryId(NO_ID), b"")
"""A lock for what concerns the tree of directories as a whole; no name has this key."""


class Attributes(TypedDict, total=False):
    """What `Pool.update` may change."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    xattrs: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Foreign:
    """What another member changed: what a name stands for, or an object, in existence, name, attributes or content."""

    object_id: ObjectId
    directory: DirectoryId
    name: bytes


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


class Pool:
    """See the module. Everything but giving back and unpinning raises PoolClosed once it is closed.

    :ivar extent_size: bytes
    :ivar on_gone: called, between awaits, with each object of ours that leaves without being asked to: evicted,
        damaged, or outdone by another member
    :ivar on_changed: called, between awaits, with what another member changed, soon after it became visible; None:
        anything may have changed
    """

    def __init__(self, parts: Parts) -> None:
        self.superblock = parts.superblock
        self.name = parts.superblock.name
        self.uuid = parts.superblock.pool
        self.extent_size = parts.superblock.extent_class.payload_size
        self.readonly = parts.membership is None
        self.on_gone: list[Callable[[Descriptor], None]] = []
        self.on_changed: list[Callable[[Foreign | None], None]] = []
        self.media = parts.media
        self.catalog = parts.catalog
        self._space = parts.space
        self._policy = parts.policy
        self._room = parts.room
        self._reader = self.reader = parts.reader
        self._versions = parts.versions
        self._sources = parts.sources
        self._publisher = Publisher(
            parts.media, parts.room, parts.reader, parts.versions, parts.sources, extent_size=self.extent_size
        )
        self._membership = parts.membership
        tools = Tools(parts.media, parts.catalog, parts.room, self._publisher, parts.versions, parts.sources)
        self._others = Others(tools, parts.aliases)
        self._names: KeyedLocks[tuple[DirectoryId, bytes]] = KeyedLocks()
        self._objects: KeyedLocks[ObjectId] = KeyedLocks()
        self._tree = Tree(parts.catalog)
        self._counters = PoolCounters()
        self._suspects: dict[ObjectId, Stamp] = {}
        """Objects of others whose bytes we found wrong: misses, whatever their owner finds."""
        self._closed = ""
        self._room.evict = self._evict
        self._room.may_go = lambda object_id: object_id not in self._versions.pins
        self._room.found = self._versions.found
        self.media.on_lost.append(self._device_lost)
        for number in self.media.devices:
            if not self.media.available(number):  # lost while the pool was opened
                self._device_lost(number)
        ends_in_children(self)

    def close(self) -> None:
        """Refuse everything from here on with PoolClosed; `open_pool` does this at its end."""
        self._closed = "it was closed"

    def end_in_child(self) -> None:
        """After a fork, the child's copy is as good as closed: the devices and the lock are the parent's."""
        self._closed = "it belongs to the parent of this process"

    # ── members ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def alone(self) -> bool:
        """Whether no other member has the pool open now."""
        return self._membership is None or self._membership.alone

    @property
    def seat(self) -> int | None:
        """The number that no other member on this host has; None if we only read."""
        return None if self._membership is None else self._membership.seat

    def owner_of(self, ref: SlotRef) -> ObjectId | None:
        """The object of ours that has a slot in this use."""
        return self._space.owner_of(ref)

    def used_elsewhere(self, object_id: ObjectId) -> None:
        """Another member used an object of ours: it moves away from eviction."""
        self._versions.unread.discard(object_id)
        self._policy.touch(object_id, trio.current_time())

    def show_figures(self) -> None:
        """Let the other members see what we have."""
        if self._membership is not None:
            used = self._space.totals().live
            self._membership.board.say(regions=self.catalog.regions, used=used, held=self._held)

    async def give_region(self) -> bool:
        """Give up a region for another member; whether one could go."""
        return await self._room.give_region()

    async def sweep(self) -> None:
        """Free what we said about other members' objects and they have heard. :raises DeviceError, Unavailable:"""
        with trio.CancelScope(shield=True):
            await self._others.sweep(_SWEEP)

    def absorb(self, space: Space, room: Room, found: Recovered) -> None:
        """Take over what another seat had."""
        self._space.absorb(space)
        self._room.absorb(room)
        self._versions.absorb(found.stranded)
        self._versions.debts.absorb(found.owed, found.tombstones)
        self._others.absorb(found.aliases)

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────

    def lookup(self, directory: DirectoryId, name: bytes) -> Descriptor | None:
        """The object, directory or symlink of that name; None if there is none or part of it cannot be reached."""
        self._check_open()
        record = self.catalog.get(directory, name)
        return record if record is not None and self._is_there(record) else None

    def children(self, directory: DirectoryId, after: bytes = b"") -> Iterator[Descriptor]:
        """What is in a directory, by name, from the first name greater than `after`."""
        self._check_open()
        return (record for record in self.catalog.children(directory, after) if self._is_there(record))

    def _is_there(self, record: Descriptor) -> bool:
        return self.reachable(record) and self._suspects.get(record.object_id) != record.stamp

    def entries(self, directory: DirectoryId, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """As `children`: names and packed records, of which `layout` reads parts without unpacking them."""
        self._check_open()
        return (
            (name, packed)
            for name, packed in self.catalog.entries(directory, after)
            if self._is_reachable(packed)
        )

    def _is_reachable(self, packed: bytes) -> bool:
        try:
            outline = layout.outline_descriptor(packed)
            if outline.is_plain:
                return all(map(self.media.reaches, outline.slots))
            return self.reachable(layout.unpack_descriptor(packed))
        except FormatError:
            return False

    def current(self, record: Descriptor) -> Descriptor | None:
        """What the object of `record` is now, under whatever name; None if it is gone."""
        return self.catalog.by_id(record.object_id)

    def directory(self, directory: DirectoryId) -> Descriptor | None:
        """The record of a directory by its id; None for an unknown one and for a root that was never changed."""
        return self._tree.directory(directory)

    def is_empty(self, directory: DirectoryId) -> bool:
        return self._tree.is_empty(directory)

    def reachable(self, record: Descriptor) -> bool:
        """Whether every slot of the object is on a device and in a region that can be read."""
        return self._reader.reachable(record)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    async def extents(self, record: Descriptor) -> tuple[ExtentRef, ...]:
        """All extents of an object. :raises ChecksumError, Raced, Unavailable, DeviceError:"""
        self._check_open()
        return await self._reader.extents(record)

    async def read_extent(self, record: Descriptor, index: int, into: memoryview) -> int:
        """Fill `into` (page-aligned, whole pages) with extent `index`, verified; returns its used bytes.

        An object whose bytes are wrong is dropped before the error is raised: from then on it is a miss.

        :raises ChecksumError, Raced, Unavailable, DeviceError:
        """
        self._check_open()
        try:
            return await self._reader.read_extent(record, index, into)
        except ChecksumError as error:
            await self._quarantine(record, error)  # noqa: ASYNC120 - shielded inside
            raise

    async def verify(self, record: Descriptor) -> None:
        """Read all of an object. :raises: as `read_extent`, which also says what happens to a damaged one"""
        self._check_open()
        try:
            await self._reader.verify(record)
        except ChecksumError as error:
            await self._quarantine(record, error)  # noqa: ASYNC120 - shielded inside
            raise

    def touch(self, record: Descriptor) -> None:
        """Say that the object was used: it moves away from eviction."""
        if self._membership is not None and not self.catalog.is_ours(record):
            self._membership.board.used(record.object_id)
            return
        now = trio.current_time()
        self._versions.unread.discard(record.object_id)
        self._policy.touch(record.object_id, now)
        self._space.touch(record.address, now)

    def pin(self, record: Descriptor) -> None:
        """Keep this version's slots from being evicted or reused until `unpin`.

        :raises Raced: it has left already, and nobody else has pinned it
        """
        self._check_open()
        pins = self._versions.pins
        is_known = pins.holds(record)
        pins.add(record, ours=is_known or self.catalog.is_ours(record))
        if is_known:
            return
        current = self.current(record)  # after its owner can see the pin
        if current is None or (current.ref, current.extents) != (record.ref, record.extents):
            pins.remove(record)
            raise Raced(f"{record.name!r} is gone")

    def unpin(self, record: Descriptor) -> None:
        """Undo one `pin` of the same version. :raises KeyError: it was not pinned"""
        self._versions.pins.remove(record)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────

    async def reserve(self, length: int) -> SlotRef:
        """A private slot for up to `length` bytes (at most an extent), made by evicting others if need be.

        :raises NoSpace: nothing more may be evicted
        :raises ReadOnly:
        """
        self._check_writable()
        return await self._room.reserve(self._room.class_for(length))

    def slot_size(self, length: int) -> int:
        """Payload bytes of the slot that `reserve(length)` gives."""
        return self._room.class_for(length).payload_size

    def give_back(self, ref: SlotRef) -> None:
        """Undo `reserve`."""
        self._room.give_back(ref)

    async def write(self, ref: SlotRef, data: memoryview, at: int = 0) -> None:
        """Write `data` (page-aligned, whole pages) into a reserved slot's payload, from its byte `at` on.

        Parts may be written in any order and at once, as long as they do not overlap.

        :param at: a multiple of the page
        :raises DeviceTimeout: the slot is not used again, since the write may still arrive
        :raises Unavailable, DeviceError:
        """
        self._check_open()
        await self._room.write_payload(ref, data, at)

    async def read_reserved(self, ref: SlotRef, into: memoryview) -> None:
        """Read back what was written to a reserved slot. :raises Unavailable, DeviceError:"""
        await self.media.read_payload(ref.address, into)

    def inline_limit(self, name: bytes, xattrs: tuple[tuple[bytes, bytes], ...] = ()) -> int:
        """Most bytes that `publish` takes inline for such an object; negative if the attributes alone do not fit."""
        return layout.max_inline(name, xattrs, OWED_ROOM)

    async def publish(self, new: NewObject, arrived: Arrived | None = None) -> Descriptor:
        """Make `new` what its name stands for.

        Takes over every reserved slot in `new.extents`, also when it fails: then they are freed.

        :param arrived: waits for writes into these slots that are still on their way; see `Arrived`

        :raises BadName, RecordTooLarge:
        :raises Missing: no such directory
        :raises Exists, IsDirectory: the name is taken
        :raises NoSpace, ReadOnly, IntegrityError, Unavailable, DeviceError:
        """
        self._check_writable()
        with trio.CancelScope(shield=True):
            taken = self._publisher.consumed(new)
            try:
                layout.check_name(new.name)
                async with (
                    self._tree.entering(new.directory),
                    self._names.hold((new.directory, new.name)),
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
        base = self.current(new.base) if new.base is not None else None
        async with self._objects.hold(*{record.object_id for record in (old, base) if record is not None}):
            old = self._replaceable(new)  # may have been evicted while we waited
            base = self.current(new.base) if new.base is not None else None
            beaten = self._others.beaten(old)
            head = await self._publisher.write(new, old, base, taken, arrived)
            if old is not None and old.object_id != head.object_id:
                await self._versions.replaced(old, head)
            for record in beaten:
                await self._versions.replaced(record, head)
        if head.kind is Kind.HEAD:
            self._counters.published += 1
            self._counters.published_bytes += head.size
        return head

    def _replaceable(self, new: NewObject) -> Descriptor | None:
        old = self.catalog.get(new.directory, new.name)
        if old is None or not self.reachable(old):
            return old  # what cannot be reached is a miss: it gives way
        if not new.replace:
            raise Exists(f"{new.name!r} exists")
        if old.kind is Kind.DIRECTORY:
            raise IsDirectory(f"{new.name!r} is a directory")
        return old

    async def make_directory(
        self, directory: DirectoryId, name: bytes, mode: int, uid: int, gid: int
    ) -> Descriptor:
        """A new, empty directory; `mode` without a file type.

        :raises Exists: the name is taken
        :raises: as `publish`
        """
        return await self.publish(
            NewObject(
                directory, name, directory_mode(mode), uid, gid, self._sources.wall_ns(), 0,
                kind=Kind.DIRECTORY, replace=False,
            )
        )  # fmt: skip

    async def make_symlink(
        self, directory: DirectoryId, name: bytes, target: bytes, uid: int, gid: int
    ) -> Descriptor:
        """A symlink to `target`. :raises Exists: the name is taken. :raises: as `publish`"""
        return await self.publish(
            NewObject(
                directory, name, symlink_mode(), uid, gid, self._sources.wall_ns(), len(target),
                kind=Kind.SYMLINK, inline=target, replace=False,
            )
        )  # fmt: skip

    # ── changing names and attributes ────────────────────────────────────────────────────────────────────

    async def rename(
        self, record: Descriptor, directory: DirectoryId, name: bytes, *, replace: bool = True
    ) -> Descriptor:
        """Give an object, directory or symlink another name, in one step; what had that name is replaced.

        :raises Missing: it is gone, or the directory is
        :raises Exists: the name is taken and `replace` is false
        :raises IsDirectory, NotDirectory, NotEmpty: the two are not of a kind that may replace each other
        :raises NameConflict: a directory into itself
        :raises RecordTooLarge: attributes and the new name do not fit
        :raises BadName, ReadOnly, Unavailable, DeviceError:
        """
        self._check_writable()
        layout.check_name(name)
        source, target = (record.directory, record.name), (directory, name)
        if source == target:
            return self._must_be(record)
        locks = [source, target]
        if record.kind is Kind.DIRECTORY:
            locks.append(_ALL_DIRECTORIES)  # or two of them at once could move into each other
        with trio.CancelScope(shield=True):
            async with self._tree.entering(directory), self._names.hold(*locks):
                old = self._replaceable_by(record, target, replace=replace)
                ids = {r.object_id for r in (record, old) if r is not None}
                async with self._objects.hold(*ids):
                    current = self._must_be(record)
                    old = self._replaceable_by(record, target, replace=replace)
                    self._tree.check_outside(current, directory)
                    with self._tree.leaving(old if old is not None and self.reachable(old) else None):
                        head = await self._move(current, target, old)
        return head

    async def _move(self, current: Descriptor, target: NameKey, old: Descriptor | None) -> Descriptor:
        if not self._others.is_ours(current):
            return await self._others.alias(replace(current, directory=target[0], name=target[1]), old)
        await self._others.outdo_rivals(current)
        owed = await self._versions.debts.inherit(current.object_id, old, target)
        stamp = self._sources.next_stamp(current, old)
        head = await self._rewrite(moved(current, *target, stamp, owed))
        beaten = self._others.beaten(old)
        self._versions.remember(head)
        if head.kind is Kind.HEAD:
            self._versions.renamed(head)
        if old is not None:
            await self._versions.replaced(old, head)
        for record in beaten:
            await self._versions.replaced(record, head)
        return head

    async def _rewrite(self, head: Descriptor) -> Descriptor:
        """Write the next page of a live head's slot, its sequence set here."""
        head = replace(head, sequence=await self._room.sequence_of(head.address) + 1)
        await self._publisher.write_head(head)
        await self._room.barrier([head.ref])
        return head

    def _must_be(self, record: Descriptor) -> Descriptor:
        current = self.current(record)
        if current is None or (current.directory, current.name) != (record.directory, record.name):
            raise Missing(f"{record.name!r} is gone")
        return current

    def _replaceable_by(self, record: Descriptor, key: NameKey, *, replace: bool) -> Descriptor | None:
        old = self.catalog.get(*key)
        if old is None or old.object_id == record.object_id:
            return None
        if not self.reachable(old):
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
        """Change attributes of an object, directory or symlink.

        :raises Missing: it is gone
        :raises RecordTooLarge: they do not fit
        :raises ReadOnly, Unavailable, DeviceError:
        """
        self._check_writable()
        with trio.CancelScope(shield=True):
            async with (
                self._names.hold((record.directory, record.name)),
                self._objects.hold(record.object_id),
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
        """Change the attributes of the pool's root directory. :raises: as `publish`"""
        self._check_writable()
        mode = directory_mode(mode)
        with trio.CancelScope(shield=True):
            async with self._names.hold(_ALL_DIRECTORIES):
                current = self.directory(ROOT)
                if current is None or not self.reachable(current):
                    return await self._publisher.write_root(mode, uid, gid, current)
        assert current is not None
        return await self.update(current, mode=mode, uid=uid, gid=gid)

    async def remove(self, record: Descriptor) -> None:
        """Remove an object, symlink or empty directory. Those who pinned it may go on reading.

        :raises Missing: it is gone
        :raises NotEmpty:
        :raises NoSpace: there is no slot for a tombstone, and without one it could come back
        :raises Unavailable, DeviceError: it may come back
        :raises ReadOnly:
        """
        self._check_writable()
        with trio.CancelScope(shield=True):
            async with (
                self._names.hold((record.directory, record.name)),
                self._objects.hold(record.object_id),
            ):
                current = self._must_be(record)
                with self._tree.leaving(current):
                    if self._others.is_ours(current):
                        await self._others.outdo_rivals(current)
                        await self._versions.remove(current)
                    else:
                        await self._others.remove(current)
                self._counters.removed += 1

    # ── leaving unasked ──────────────────────────────────────────────────────────────────────────────────

    async def _evict(self, object_id: ObjectId, *, ahead: bool = False) -> bool:
        with trio.CancelScope(shield=True):
            if self._versions.is_stranded(object_id):
                await self._versions.drop_stranded(object_id)
                return True
            with self._objects.try_hold(object_id) as held:
                record = self._others.own(object_id) if held else None
                if record is None or not await self._may_go(record):
                    return False
                self._counters.evicted += 1
                self._counters.evicted_bytes += record.size
                self._counters.evicted_unread += object_id in self._versions.unread
                self._counters.evicted_ahead += ahead
                self._counters.evicted_temporary += self._is_overdue(object_id)
                await self._versions.leave(record)
            self._tell_gone(record)
        return True

    def _is_overdue(self, object_id: ObjectId) -> bool:
        return object_id in self._policy and self._policy.last_used(object_id) == -math.inf

    async def _may_go(self, record: Descriptor) -> bool:
        pins = self._versions.pins
        if record.object_id in pins or not await self._others.try_to_outdo_rivals(record):
            return False
        if not await self._versions.may_leave(record):
            return False
        return record.object_id not in pins  # while its debts were looked at

    async def _quarantine(self, record: Descriptor, error: ChecksumError) -> None:
        with trio.CancelScope(shield=True):
            async with self._objects.hold(record.object_id):
                current = self.current(record)
                if current is None or current.stamp != record.stamp:
                    return
                self._counters.quarantined += 1
                log.warning("object dropped: %s", error)
                if self._membership is None:
                    return
                if self._others.is_ours(current):
                    await self._versions.leave_damaged(current)
                else:
                    self._membership.board.report(current.object_id)
                    self._suspects[current.object_id] = current.stamp
        self._tell_gone(record)

    async def fold(self, object_id: ObjectId) -> bool:
        """Do what other members have said about an object of ours; whether anything was done.

        :raises NoSpace, Unavailable, DeviceError:
        """
        verdict = self._others.verdict(object_id)
        if verdict is None:
            return False
        records = [record for record in verdict if record is not None]
        keys = {(record.directory, record.name) for record in records}
        with trio.CancelScope(shield=True):
            async with self._names.hold(*keys), self._objects.hold(*{r.object_id for r in records}):
                if self._others.verdict(object_id) != verdict:
                    return False  # not any more: the next look will tell
                own, alias, old = verdict
                if alias is not None:
                    await self._others.take_over(own, alias, old)
                elif await self._versions.debts.clear(own, patient=True):
                    await self._versions.leave(own)
                else:
                    return False
        if alias is None:
            self._tell_gone(own)
        return True

    def _tell_gone(self, record: Descriptor) -> None:
        for callback in self.on_gone:
            callback(record)

    def _device_lost(self, device: DeviceNo) -> None:
        self._space.drop_device(device)

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosed(f"pool {self.name!r} cannot be used any more: {self._closed}")

    def _check_writable(self) -> None:
        self._check_open()
        if self.readonly:
            raise ReadOnly(f"pool {self.name!r} was opened for reading")

    # ── figures ──────────────────────────────────────────────────────────────────────────────────────────

    def totals(self) -> RoomTotals:
        """Payload bytes; regions not in use yet count as free."""
        space = self._space.totals()
        others = self._membership.board.figures().values() if self._membership is not None else ()
        regions = space.unused_regions + sum(figures.regions for figures in others)
        return RoomTotals(
            total=space.total + regions * self.superblock.region_size,
            used=space.live + sum(figures.used for figures in others),
            held=self._held + sum(figures.held for figures in others),
        )

    @property
    def _held(self) -> int:
        space = self._space.totals()
        return min(space.live, self._versions.pins.bytes) + space.reserved

    def _limbo_totals(self) -> LimboTotals:
        space, counters = self._space.totals(), self._room.limbo.counters
        slots = sum(totals.limbo for totals in space.classes)
        return LimboTotals(slots, space.limbo, counters.waits, counters.seconds)

    def statistics(self) -> PoolStatistics:
        """A snapshot of counters and sums."""
        return PoolStatistics(
            pool=replace(self._counters),
            reads=replace(self._reader.counters),
            room=replace(self._room.counters),
            limbo=self._limbo_totals(),
            space=self._space.totals(),
            totals=self.totals(),
            objects=self.catalog.count,
            unreachable_devices=tuple(
                DeviceNo(number)
                for number in range(len(self.superblock.devices))
                if not self.media.available(DeviceNo(number))
            ),
        )
