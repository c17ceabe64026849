"""A seeded model of three members that share a pool: random work, among kills, stops, slow media and new members.

As in `crash_model`, the model keeps the set of versions that may be seen under each name. An operation leaves one once
every member must have seen it; one that was cut off leaves the old and the new. On top of that it watches every write:
no two live members write to one region, and no payload is written to a slot that somebody reads.

Some names are in directories, which come and go. Who puts a file into one that another member is removing may lose it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

import trio
from xxhash import xxh3_64_intdigest

from blockdev.catalog import Catalog, Trust
from blockdev.errors import BlockError, ChecksumError, Exists, IsDirectory, Missing, NoSpace, NotEmpty, Raced
from blockdev.memory import padded, page_buffer
from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.testing import RandomFaults
from blockdev.types import (
    ROOT,
    Descriptor,
    DirectoryId,
    ExtentRef,
    Kind,
    ObjectId,
    RegionId,
    RegionNo,
    SlotAddress,
    SlotNo,
    Xxh3,
)
from tests.blockdev.crash_model import EXTENT, SIZES, Failure, Seen, Version
from tests.blockdev.members import Handle, Host, host

Key = tuple[bytes, bytes]
"""The name of a directory in the root, empty for the root itself, and a name in it."""

MEMBERS = 3
DIRECTORIES = (b"d0", b"d1")
KEYS: tuple[Key, ...] = (
    *((b"", b"n%d" % number) for number in range(8)),
    *((directory, b"n%d" % number) for directory in DIRECTORIES for number in range(3)),
)
SEEN_BY_ALL = 0.2
"""Seconds after which every member must see what another did."""
TAKEN_OVER = 8.0
"""Seconds after which everything that a member left is somebody's, and all that was said of it is folded in."""


@dataclass(eq=False)
class Member:
    """One member: it lives until `ending`."""

    number: int
    handles: list[Handle]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ending: trio.Event = field(default_factory=trio.Event)
    pool: Pool | None = None
    dead: bool = False
    stopped: bool = False

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            for handle in self.handles:
                handle.gate = trio.Event()

    def go_on(self) -> None:
        self.stopped = False
        for handle in self.handles:
            handle.gate.set()

    def kill(self) -> None:
        """As kill -9: nothing of it is written any more, and its locks are free."""
        self.dead = True
        for handle in self.handles:
            handle.dead = True
        self.go_on()
        if self.pool is not None:
            membership = self.pool._membership
            assert membership is not None
            for catalog in self.pool.catalog.own.values():
                if catalog._opened is not None:
                    catalog._opened.drop()
            membership.board._base = None
            self.pool.media.on_lost.clear()
            membership.leases._forget()
        self.scope.cancel()


@dataclass
class MembersModel:
    """One run."""

    seed: int
    folder: Path
    rng: Random = field(init=False)
    host: Host = field(init=False)
    members: list[Member] = field(default_factory=list)
    may: dict[Key, set[Seen]] = field(default_factory=dict)
    busy: set[Key] = field(default_factory=set)
    evictions: Counter[Key] = field(default_factory=Counter)
    names: dict[ObjectId, set[Key]] = field(default_factory=dict)
    """That objects were given by renaming."""
    unanswered: dict[Key, set[Seen]] = field(default_factory=dict)
    """What was being stored, or evicted, when the member was killed: may be there, and may be found only when its seat is
    taken over, whatever others did with the name in between."""
    stored: dict[Key, set[Seen]] = field(default_factory=dict)
    """Every version that a name ever had."""
    kills: int = 0
    places: dict[DirectoryId, set[bytes]] = field(default_factory=lambda: {ROOT: {b""}})
    """The names that directories had."""
    blank: set[Path] = field(default_factory=set)
    """Catalogues that are being built again. What they will say is missing meanwhile: for others in other processes, which go
    on reading what they were, less is than here."""
    read: Counter[SlotAddress] = field(default_factory=Counter)
    tag: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    # ── a run ────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, events: int) -> None:
        with (
            patch.object(Catalog, "clear", self._blanking(Catalog.clear)),
            patch.object(Catalog, "begin_session", self._filled(Catalog.begin_session)),
        ):
            await self._run(events)

    def _blanking(self, clear: Callable[[Catalog], None]) -> Callable[[Catalog], None]:
        def watched(catalog: Catalog) -> None:
            self.blank.add(catalog._folder)
            clear(catalog)

        return watched

    def _filled(self, begin: Callable[..., None]) -> Callable[..., None]:
        def watched(catalog: Catalog, *arguments: object) -> None:
            begin(catalog, *arguments)
            self.blank.discard(catalog._folder)

        return watched

    async def _run(self, events: int) -> None:
        self.host = await host(self.folder, devices=2, regions=7, seed=self.seed)
        if self.rng.random() < 0.3:
            for device in self.host.devices:
                device.random_faults = RandomFaults(delay=(0.0, 0.05))
        async with trio.open_nursery() as nursery:
            try:
                await self._story(nursery, events)
            finally:
                for member in self.members:  # whatever went wrong: or it would never come to light
                    member.go_on()
        await self._check_after_rebuild()

    async def _story(self, nursery: trio.Nursery, events: int) -> None:
        for _ in range(MEMBERS):
            nursery.start_soon(self._live, self._new())
            await trio.sleep(self.rng.choice((0, 0.01, 0.3)))
        for _ in range(events):
            await trio.sleep(self.rng.random() * 1.5)
            self._event(nursery)
        for member in self.members:
            member.go_on()
        self.over = True
        await trio.sleep(TAKEN_OVER)
        await self._agree()
        for member in self.members:
            member.ending.set()

    def _new(self) -> Member:
        number = self.members[-1].number + 1 if self.members else 0
        member = Member(number, self.host.handles())
        for handle in member.handles:
            handle.on_write = lambda handle, offset: self._written(member, handle, offset)
        self.members.append(member)
        return member

    def _event(self, nursery: trio.Nursery) -> None:
        live = [member for member in self.members if member.pool is not None and not member.dead]
        what = self.rng.choice(("kill", "stop", "go on", "close", "new", "none"))
        if what == "new" or not live:
            if len(live) < MEMBERS:
                nursery.start_soon(self._live, self._new())
            return
        member = self.rng.choice(live)
        if what == "kill":
            self.kills += 1
            member.kill()
        elif what == "stop":
            member.stop()
        elif what == "go on":
            for one in live:
                one.go_on()
        elif what == "close" and not member.stopped:
            member.ending.set()

    async def _live(self, member: Member) -> None:
        with suppress(BlockError, OSError):
            await self._life(member)
        member.pool = None
        if member in self.members:
            self.members.remove(member)

    async def _life(self, member: Member) -> None:
        with member.scope:
            async with self.host.member(member.handles, entropy=self.rng.randbytes) as opened:
                member.pool = opened.pool
                self._spy(opened.pool, member)
                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(self._worker, member)
                    await member.ending.wait()
                    nursery.cancel_scope.cancel()

    def _spy(self, pool: Pool, member: Member | None = None) -> None:
        evict = pool._room.evict

        async def spy(object_id: ObjectId, *, ahead: bool = False) -> bool:
            record = pool.catalog.by_id(object_id)
            if record is not None:
                self._may_be_gone(record)
            gone = await evict(object_id, ahead=ahead)
            if record is not None and member is not None and member.dead:
                for key in self._keys(record):
                    self._unanswered(member, key, self.stored.get(key, set()))
            if record is not None and gone:  # it may have been renamed meanwhile
                self._may_be_gone(record)
            return gone

        pool._room.evict = spy

    def _may_be_gone(self, evicted: Descriptor) -> None:
        # What is being renamed has another name already, which its owner may not have seen.
        keys = {*self._keys(evicted), *self.names.get(evicted.object_id, ()), *self.busy}
        for key in keys:
            self._known(key).add(None)
            self.evictions[key] += 1

    # ── what is written ──────────────────────────────────────────────────────────────────────────────────

    def _written(self, member: Member, handle: Handle, offset: int) -> None:
        pool = member.pool
        if pool is None or member.dead:
            return
        number = handle.device_no(pool)
        geometry = pool.media.devices[number].geometry
        if offset < geometry.data_offset:
            return
        region = RegionId(number, RegionNo((offset - geometry.data_offset) // geometry.region_size))
        for other in self.members:
            if other is member or other.pool is None or other.dead or other.pool._closed:
                continue
            if other.pool.catalog.assigned(region) is not None:
                seats = pool.seat, other.pool.seat
                raise Failure(f"seed {self.seed}: {region} is written by two, in seats {seats}")
        header = pool.media.known_header(region)
        if header is None or not header.slot_class.payload_size:
            return
        slots = pool.media.geometry(region)
        inside = offset - geometry.region_offset(region.region)
        for slot in range(slots.slots):
            start = slots.payload_offset(SlotNo(slot))
            is_hit = start <= inside < start + header.slot_class.payload_size
            if is_hit and self.read[SlotAddress(*region, SlotNo(slot))]:
                raise Failure(f"seed {self.seed}: slot {slot} of {region} is reused while it is read")

    # ── work ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _worker(self, member: Member) -> None:
        work: list[Callable[[Pool, Member], Awaitable[None]]] = [
            self.put, self.put, self.put, self.get, self.get, self.rename, self.remove, self.update,
            self.directory, self.move_directory,
        ]  # fmt: skip
        while not self.over:
            await trio.sleep(self.rng.random() * 0.1)
            assert member.pool is not None
            with suppress(NoSpace, Missing, Raced, Exists, NotEmpty, IsDirectory):
                await self.rng.choice(work)(member.pool, member)

    def _take(self) -> Key | None:
        return self._take_one(self.rng.choice(KEYS))

    def _take_one(self, key: Key) -> Key | None:
        if key in self.busy:
            return None
        self.busy.add(key)
        return key

    def _keys(self, record: Descriptor) -> set[Key]:
        return {(place, record.name) for place in self.places[record.directory]}

    def _found(self, pool: Pool, key: Key) -> Descriptor | None:
        directory = self._directory(pool, key[0])
        return None if directory is None else pool.lookup(directory, key[1])

    def _directory(self, pool: Pool, name: bytes) -> DirectoryId | None:
        record = pool.lookup(ROOT, name) if name else None
        directory = ROOT if not name else DirectoryId(record.object_id) if record is not None else None
        if directory is not None:
            self.places.setdefault(directory, set()).add(name)
        return directory

    async def _made(self, pool: Pool, name: bytes) -> DirectoryId:
        directory = self._directory(pool, name)
        while directory is None:
            with suppress(Exists):
                await pool.make_directory(ROOT, name, 0o700, 0, 0)
            directory = self._directory(pool, name)
        return directory

    async def _done(self, key: Key, versions: set[Seen], evictions: int, kills: int) -> None:
        """An operation succeeded; what it left counts for all once they had time to see it, and nobody was killed."""
        await trio.sleep(SEEN_BY_ALL)
        self._settle(key, versions, evictions, kills)
        self.busy.discard(key)

    def _settle(self, key: Key, versions: set[Seen], evictions: int, kills: int) -> None:
        if self.kills == kills:
            gone = {None} if self.evictions[key] != evictions else set()
            self.may[key] = versions | gone | self.unanswered.get(key, set())

    def _unanswered(self, member: Member, key: Key, versions: set[Seen]) -> None:
        if member.dead:
            self.unanswered.setdefault(key, set()).update(versions)
            self._known(key).update(versions)

    def _known(self, key: Key) -> set[Seen]:
        return self.may.setdefault(key, {None})

    async def put(self, pool: Pool, member: Member) -> None:
        key = self._take()
        if key is None:
            return
        size = self.rng.choice(SIZES)
        self.tag += 1
        version = Version.tagged(size, (self.tag * 100 + n for n in range(-(-size // EXTENT))))
        self._known(key).add(version)
        self.stored.setdefault(key, set()).add(version)
        evictions, kills = self.evictions[key], self.kills
        try:
            await self._publish(pool, key, version)
        except BaseException:
            self._unanswered(member, key, {version})
            self.busy.discard(key)
            raise
        await self._done(key, {version}, evictions, kills)

    async def _publish(self, pool: Pool, key: Key, version: Version) -> None:
        attributes = (await self._made(pool, key[0]), key[1], 0o100644, 0, 0, 0, version.size)
        if version.size <= pool.inline_limit(key[1]):
            inline = version.part(0) if version.size else b""
            await pool.publish(NewObject(*attributes, inline=inline))
            return
        taken: list[ExtentRef] = []
        try:
            for index in range(version.extents):
                part = version.part(index)
                ref = await pool.reserve(len(part))
                taken.append(ExtentRef(*ref, Xxh3(xxh3_64_intdigest(part))))
                buffer = page_buffer(padded(len(part)))
                buffer[: len(part)] = part
                await pool.write(ref, buffer)
        except BaseException:
            for extent in taken:
                pool.give_back(extent.ref)
            raise
        await pool.publish(NewObject(*attributes, extents=tuple(taken)))

    async def get(self, pool: Pool, member: Member) -> None:
        key = self._take()
        if key is None:
            return
        try:
            await self._check(pool, key)
        finally:
            self.busy.discard(key)

    async def _check(self, pool: Pool, key: Key) -> Seen:
        record = self._found(pool, key)
        if record is None:
            return None if self.blank else self._allow(key, None)
        pool.pin(record)
        slots = [extent.address for extent in await pool.extents(record) if not extent.is_hole]
        self.read.update(slots)
        try:
            pool.touch(record)
            await trio.sleep(self.rng.choice((0, 0, 0.5, 3)))
            content = await self._content(pool, record)
        except (ChecksumError, Raced) as error:
            raise Failure(f"seed {self.seed}: {key}, pinned: {error}") from error
        finally:
            self.read.subtract(slots)
            with suppress(KeyError):
                pool.unpin(record)
        return self._allow(key, content)

    async def _content(self, pool: Pool, record: Descriptor) -> Version:
        tags = []
        for index in range(-(-record.size // EXTENT)):
            buffer = page_buffer(EXTENT)
            length = await pool.read_extent(record, index, buffer)
            part = bytes(buffer[:length])
            if part != (part[:8] * (length // 8 + 1))[:length]:
                raise Failure(f"seed {self.seed}: {record.name!r} holds a mix of bytes")
            tags.append(int.from_bytes(part[:8].ljust(8, b"\0"), "little"))
        return Version(record.size, tuple(tags))

    def _allow(self, key: Key, seen: Seen) -> Seen:
        if seen not in self._known(key):
            raise Failure(f"seed {self.seed}: {key} is {seen}, allowed {self._known(key)}")
        return seen

    async def rename(self, pool: Pool, member: Member) -> None:
        source, target = self._take(), self._take()
        record = self._found(pool, source) if source and target else None
        if source is None or target is None or record is None:
            self.busy -= {key for key in (source, target) if key}
            return
        self.names.setdefault(record.object_id, set()).add(target)
        moving = self._known(source) - {None} or {None}
        self._known(source).add(None)
        self._known(target).update(moving)
        self.stored.setdefault(target, set()).update(moving)
        evictions, kills = self.evictions[target], self.kills
        try:
            await pool.rename(record, await self._made(pool, target[0]), target[1])
        except BaseException:
            self._unanswered(member, target, moving)
            self.busy -= {source, target}
            raise
        await self._done(target, moving, evictions, kills)
        await self._done(source, {None}, 0, kills)

    async def remove(self, pool: Pool, member: Member) -> None:
        key = self._take()
        record = self._found(pool, key) if key else None
        if key is None or record is None:
            self.busy.discard(key) if key else None
            return
        self._known(key).add(None)
        kills = self.kills
        try:
            await pool.remove(record)
        except BaseException:
            self.busy.discard(key)
            raise
        await self._done(key, {None}, 0, kills)

    async def update(self, pool: Pool, member: Member) -> None:
        key = self._take()
        record = self._found(pool, key) if key else None
        try:
            if key is not None and record is not None:
                assert (await pool.update(record, mode=0o100600)).mode == 0o100600
                await trio.sleep(SEEN_BY_ALL)
        finally:
            self.busy.discard(key) if key else None

    async def directory(self, pool: Pool, member: Member) -> None:
        """Directories come and go; what is put into one while it goes may be lost."""
        key = self._take_one((b"", self.rng.choice(DIRECTORIES)))
        if key is None:
            return
        record = pool.lookup(ROOT, key[1])
        try:
            if record is None:
                await self._made(pool, key[1])
                await trio.sleep(SEEN_BY_ALL)
            elif self.rng.random() < 0.3:
                await self._remove_directory(pool, member, record)
        finally:
            self.busy.discard(key)

    async def _remove_directory(self, pool: Pool, member: Member, record: Descriptor) -> None:
        places = self.places.get(DirectoryId(record.object_id), {record.name})
        # Its name may give one that has moved its identity again: what is still being put into it goes there, then.
        keys = {key for place in places for key in _inside(place)} if len(places) > 1 else set()
        if not self.busy.isdisjoint(keys):
            return
        self.busy.update(keys)
        try:
            await self._remove_empty(pool, member, record)
        finally:
            self.busy.difference_update(keys)

    async def _remove_empty(self, pool: Pool, member: Member, record: Descriptor) -> None:
        self._may_vanish(record.name)
        try:
            await pool.remove(record)
        except BaseException:
            for key in _inside(record.name):
                self._unanswered(member, key, {None})
            raise
        finally:
            self._may_vanish(record.name)
        await trio.sleep(SEEN_BY_ALL)
        self._may_vanish(record.name)

    async def move_directory(self, pool: Pool, member: Member) -> None:
        """Give a directory the name of the other one, which is empty or not there, while nobody is in either."""
        source, target = self.rng.sample(DIRECTORIES, 2)
        keys = [(b"", source), (b"", target), *_inside(source), *_inside(target)]
        if self.rng.random() < 0.7 or not self.busy.isdisjoint(keys):
            return
        self.busy.update(keys)
        try:
            record = pool.lookup(ROOT, source)
            if record is not None:
                await self._move_directory(pool, member, record, target)
        finally:
            self.busy.difference_update(keys)

    async def _move_directory(self, pool: Pool, member: Member, record: Descriptor, target: bytes) -> None:
        self.places.setdefault(DirectoryId(record.object_id), set()).add(target)
        moving = {(target, key[1]): set(self._known(key)) for key in _inside(record.name)}
        for key, versions in moving.items():
            self._known(key).update(versions)
            self.stored.setdefault(key, set()).update(versions)
        evictions, kills = Counter(self.evictions), self.kills
        self._may_vanish(record.name)
        try:
            await pool.rename(record, ROOT, target)
            await trio.sleep(SEEN_BY_ALL)
        except (
            BaseException
        ):  # killed, perhaps: what others put into the one that gives way goes with it, later
            for key, versions in moving.items():
                self._unanswered(member, key, versions | {None})
                self._unanswered(member, (record.name, key[1]), {None})
            raise
        for key, versions in moving.items():
            self._settle(key, versions, evictions[key], kills)
        for key in _inside(record.name):
            self._settle(key, {None}, 0, kills)

    def _may_vanish(self, directory: bytes) -> None:
        for key in _inside(directory):
            self._known(key).add(None)
            self.evictions[key] += 1

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────

    async def _agree(self) -> None:
        """When all is quiet, every member says the same."""
        listings = []
        for member in self.members:
            if member.pool is None:
                continue
            listing = {}
            for key in KEYS:
                listing[key] = await self._check(member.pool, key)
            directories = {r.name for r in member.pool.children(ROOT) if r.kind is Kind.DIRECTORY}
            listings.append((listing, directories))
        if any(listing != listings[0] for listing in listings):
            raise Failure(f"seed {self.seed}: members do not agree: {listings}")

    async def _check_after_rebuild(self) -> None:
        """The catalogues and a scan of everything come to the same."""
        async with self.host.member() as opened:
            self._spy(opened.pool)
            await trio.sleep(TAKEN_OVER)
            before = {key: await self._check(opened.pool, key) for key in KEYS}
        self.host.forget()
        async with self.host.member() as opened:
            assert opened.recovered.trust is Trust.STALE
            self._spy(opened.pool)
            after = {key: await self._check(opened.pool, key) for key in KEYS}
        if before != after:
            raise Failure(f"seed {self.seed}: {before} before, {after} after a rebuild")


def _inside(directory: bytes) -> list[Key]:
    return [key for key in KEYS if key[0] == directory]
