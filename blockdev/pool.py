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

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Unpack

import trio

from blockdev import layout
from blockdev.departures import Departures
from blockdev.device import Begun
from blockdev.errors import ChecksumError, PoolClosed, Raced, ReadOnly
from blockdev.forks import ends_in_children
from blockdev.locks import Locks
from blockdev.namespace import Attributes, Namespace
from blockdev.others import Others, Tools
from blockdev.parts import Parts
from blockdev.pool_figures import Figures, PoolCounters, PoolStatistics, RoomTotals
from blockdev.publication import NewObject, directory_mode, symlink_mode
from blockdev.publisher import OWED_ROOM, Arrived, Publisher
from blockdev.recovered import Recovered
from blockdev.slots import Slots
from blockdev.space import Space
from blockdev.tree import Tree
from blockdev.types import (
    Descriptor,
    DirectoryId,
    ExtentRef,
    Foreign,
    Kind,
    ObjectId,
    RegionId,
    SlotRef,
)

_SWEEP = 64
"""Slots of others that are looked at in one sweep."""


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
        self._locks = Locks() if parts.membership is None else Locks(parts.membership.naming)
        self._tree = Tree(parts.catalog)
        counters = PoolCounters()
        self._figures = Figures(parts, counters)
        self._namespace = Namespace(tools, self._reader, self._others, self._tree, self._locks, counters)
        board = None if parts.membership is None else parts.membership.board
        self._departures = Departures(tools, self._others, parts.policy, board, self._locks, counters)
        self.on_gone = self._departures.on_gone
        self._clock = trio.lowlevel.current_clock()
        self._closed = ""
        self._room.evict = self._departures.evict
        self._room.may_go = lambda object_id: object_id not in self._versions.pins
        self._room.found = self._versions.found
        self.media.on_lost.append(self._space.drop_device)
        for number in self.media.devices:
            if not self.media.available(number):  # lost while the pool was opened
                self._space.drop_device(number)
        ends_in_children(self)

    def close(self) -> None:
        """Refuse everything from here on with PoolClosed; `open_pool` does this at its end."""
        self._closed = "it was closed"

    def end_in_child(self) -> None:
        """After a fork, the child's copy is as good as closed: the devices and the lock are the parent's."""
        self._closed = "it belongs to the parent of this process"

    def exclusively(self, object_id: ObjectId) -> AbstractAsyncContextManager[None]:
        """While it is entered, nobody else changes the object or lets it go."""
        return self._locks.objects.hold(object_id)

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
        self._figures.show()

    async def give_region(self) -> bool:
        """Give up a region for another member; whether one could go."""
        return await self._room.give_region()

    async def sweep(self) -> None:
        """Free what we said about other members' objects and they have heard. :raises DeviceError, Unavailable:"""
        with trio.CancelScope(shield=True):
            await self._others.sweep(_SWEEP, self._locks.objects)

    async def fold(self, object_id: ObjectId) -> bool:
        """Do what other members have said about an object of ours; whether anything was done.

        :raises NoSpace, Unavailable, DeviceError:
        """
        return await self._departures.fold(object_id)

    def owe(self, record: Descriptor, ref: SlotRef) -> None:
        """Before an object of ours goes, or changes its name, what is in a slot must be gone or buried."""
        self._versions.debts.add(record.object_id, ref)

    async def sign_region(self, region: RegionId) -> None:
        """Make a region that came with another's seat our own. :raises Unavailable, DeviceError:"""
        await self._room.regions.sign(region)

    def absorb(self, space: Space, slots: Slots, found: Recovered) -> None:
        """Take over what another seat had."""
        self._space.absorb(space)
        self._room.absorb(slots)
        self._versions.absorb(found.stranded)
        self._versions.debts.absorb(found.owed, found.tombstones)
        self._others.absorb(found.aliases)

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────

    def lookup(self, directory: DirectoryId, name: bytes) -> Descriptor | None:
        """The object, directory or symlink of that name; None if there is none or part of it cannot be reached."""
        self._check_open()
        record = self.catalog.get(directory, name)
        return record if record is not None and self._is_there(record) else None

    def published_after(self, predecessor: bytes, limit: int) -> list[Descriptor]:
        """The files that were published after the one with this hash, by the same writer, the latest first.

        :param predecessor: 128-bit hash, as `NewObject.predecessor` says it
        :param limit: at most so many of each member
        """
        self._check_open()
        found = self.catalog.published_after(predecessor, limit)
        return [record for record in found if record.kind is Kind.HEAD and self._is_there(record)]

    def size_of(self, directory: DirectoryId, name: bytes) -> int | None:
        """Bytes of the file of that name, as `lookup` would find it; None if there is none. For very many names: it unpacks
        no record where a glance is enough."""
        self._check_open()
        glance = None if self._departures.suspects else self.catalog.glance(directory, name)
        if glance is not None:
            return glance.size if all(map(self.media.reaches, glance.regions)) else None
        record = self.lookup(directory, name)
        return record.size if record is not None and record.kind is Kind.HEAD else None

    def children(self, directory: DirectoryId, after: bytes = b"") -> Iterator[Descriptor]:
        """What is in a directory, by name, from the first name greater than `after`."""
        self._check_open()
        return (record for record in self.catalog.children(directory, after) if self._is_there(record))

    def _is_there(self, record: Descriptor) -> bool:
        return self._reader.is_there(record) and not self._departures.is_suspect(record)

    def entries(self, directory: DirectoryId, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """As `children`: names and packed records, of which `layout` reads parts without unpacking them."""
        self._check_open()
        return (
            (name, packed)
            for name, packed in self.catalog.entries(directory, after)
            if self._reader.is_there_packed(packed)
        )

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

    async def read_extent(
        self, record: Descriptor, index: int, into: memoryview, landed: Callable[[], None] | None = None
    ) -> int:
        """Fill `into` (page-aligned, whole pages) with extent `index`, verified; returns its used bytes.

        An object whose bytes are wrong is dropped before the error is raised: from then on it is a miss.

        :param landed: called when the device has done its part, at least once if it has one
        :raises ChecksumError, Raced, Unavailable, DeviceError:
        """
        self._check_open()
        try:
            return await self._reader.read_extent(record, index, into, landed)
        except ChecksumError as error:
            await self._departures.quarantine(record, error)  # noqa: ASYNC120 - shielded inside
            raise

    async def verify(self, record: Descriptor) -> None:
        """Read all of an object. :raises: as `read_extent`, which also says what happens to a damaged one"""
        self._check_open()
        try:
            await self._reader.verify(record)
        except ChecksumError as error:
            await self._departures.quarantine(record, error)  # noqa: ASYNC120 - shielded inside
            raise

    def touch(self, record: Descriptor) -> None:
        """Say that the object was used: it moves away from eviction."""
        if self._membership is not None and not self.catalog.is_ours(record):
            self._membership.board.used(record.object_id)
            return
        now = self._clock.current_time()
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

    def try_reserve(self, length: int) -> SlotRef | None:
        """As `reserve`, if that takes no waiting and wakes no task up; else None, and nothing was done.

        Like `lookup`, `pin`, `touch` and `unpin` it may be called from another thread while the trio thread waits.
        """
        self._check_writable()
        return self._room.try_reserve(self._room.class_for(length))

    def slot_size(self, length: int) -> int:
        """Payload bytes of the slot that `reserve(length)` gives."""
        return self._room.class_for(length).payload_size

    def give_back(self, ref: SlotRef) -> None:
        """Undo `reserve`."""
        self._room.give_back(ref)

    def is_lost(self, ref: SlotRef) -> bool:
        """Whether a slot is on a device that is lost: what was written there is out of reach."""
        return not self.media.available(ref.device)

    async def write(self, ref: SlotRef, data: memoryview, at: int = 0) -> None:
        """Write `data` (page-aligned, whole pages) into a reserved slot's payload, from its byte `at` on.

        Parts may be written in any order and at once, as long as they do not overlap.

        :param at: a multiple of the page
        :raises DeviceTimeout: the slot is not used again, since the write may still arrive
        :raises Unavailable, DeviceError:
        """
        self._check_open()
        await self._room.write_payload(ref, data, at)

    def begin_write(self, ref: SlotRef, data: memoryview) -> Begun | None:
        """As `write` from the payload's beginning, begun in this call; None if that takes waiting. See
        `Device.begin_write`, and `try_reserve` for who may call it.

        :raises Unavailable, DeviceError:
        """
        self._check_open()
        return self._room.begin_payload(ref, data)

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
        return await self._namespace.publish(new, arrived)

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
        return await self._namespace.rename(record, directory, name, replace=replace)

    async def update(self, record: Descriptor, **attributes: Unpack[Attributes]) -> Descriptor:
        """Change attributes of an object, directory or symlink.

        :raises Missing: it is gone
        :raises RecordTooLarge: they do not fit
        :raises ReadOnly, Unavailable, DeviceError:
        """
        self._check_writable()
        return await self._namespace.update(record, **attributes)

    async def update_root(self, mode: int, uid: int, gid: int) -> Descriptor:
        """Change the attributes of the pool's root directory. :raises: as `publish`"""
        self._check_writable()
        return await self._namespace.update_root(mode, uid, gid)

    async def remove(self, record: Descriptor) -> None:
        """Remove an object, symlink or empty directory. Those who pinned it may go on reading.

        :raises Missing: it is gone
        :raises NotEmpty:
        :raises NoSpace: there is no slot for a tombstone, and without one it could come back
        :raises Unavailable, DeviceError: it may come back
        :raises ReadOnly:
        """
        self._check_writable()
        await self._namespace.remove(record)

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
        return self._figures.totals()

    def statistics(self) -> PoolStatistics:
        """A snapshot of counters and sums."""
        return self._figures.statistics()
