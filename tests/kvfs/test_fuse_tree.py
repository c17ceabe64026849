"""Names and open files, driven as the kernel drives them, in orders that a real kernel takes only in a race."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

import pytest
import trio
import trio.testing

from blockdev.errors import ChecksumError, DeviceError, DeviceGivenUp, Missing, NoSpace
from blockdev.types import ROOT, Descriptor, DirectoryId
from kvfs.frames import Arena, open_frames
from kvfs.fuse.drafts import Draft
from kvfs.fuse.inodes import Inode
from kvfs.fuse.link import PlainLink
from kvfs.fuse.listing import Listing
from kvfs.fuse.metadata import Changes, Metadata
from kvfs.fuse.mount import Mount, MountOptions
from kvfs.fuse.openfiles import PATIENCE, Handle, OpenFiles
from kvfs.fuse.tree import Tree
from kvfs.fuse.volume import Caller, Volume
from tests.e2e.helpers import fails
from tests.kvfs.fake_pool import EXTENT, FakePool

A, B = Caller(1, 2, 100), Caller(1, 2, 200)
"""Two threads."""
WRITE, READ = os.O_RDWR, os.O_RDONLY
BROKEN = DeviceError("fake", errno.EIO, "broken")


@dataclass
class Kernel:
    """Does to a volume what the kernel would."""

    pool: FakePool
    volume: Volume
    tree: Tree
    files: OpenFiles
    metadata: Metadata
    told: list[int]

    @property
    def root(self) -> Inode:
        return self.volume.inodes.root

    async def lookup(self, name: bytes, caller: Caller = A) -> Inode | None:
        inode = await self.tree.lookup(self.root, name, caller)
        if inode is not None:
            inode.lookups += 1
        return inode

    async def found(self, name: bytes, caller: Caller = A) -> Inode:
        inode = await self.lookup(name, caller)
        assert inode is not None
        return inode

    async def create(self, name: bytes, caller: Caller = A) -> Handle:
        handle, inode = await self.files.create(self.root, name, 0o600, WRITE | os.O_CREAT, caller)
        inode.lookups += 1
        return handle

    async def store(self, name: bytes, data: bytes, caller: Caller = A) -> Inode:
        handle = await self.create(name, caller)
        await self.files.write(handle.number, 0, data)
        await self.close(handle)
        return handle.inode

    async def close(self, handle: Handle) -> None:
        await self.files.flush(handle.number)
        await self.files.release(handle.number)

    async def open(self, name: bytes, flags: int, caller: Caller = A) -> Handle:
        """With the one retry that the kernel makes."""
        try:
            return await self.files.open(await self.found(name, caller), flags, caller)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            await self.found(name, caller)
            return await self.files.open(await self.found(name, caller), flags, caller)

    async def content(self, name: bytes, caller: Caller = A) -> bytes:
        handle = await self.open(name, READ, caller)
        try:
            return bytes(await self.files.read(handle.number, 0, 1 << 20))
        finally:
            await self.close(handle)  # noqa: ASYNC102 - nobody cancels it


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until something is so."""
    while not condition():
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def kernel(capacity: int = 1000) -> AsyncIterator[Kernel]:
    pool = FakePool(capacity)
    arena = Arena(16 * EXTENT, EXTENT, huge_pages=False)
    async with open_frames(arena, pool, patience=0.1) as frames, trio.open_nursery() as nursery:
        told: list[int] = []
        link = PlainLink("/", "test", allow_other=False)
        mount = Mount(pool, frames, MountOptions(lane=False), nursery, link)
        mount.notifier.attributes = told.append  # type: ignore[assignment, method-assign]
        pool.on_gone.append(mount.volume.gone)
        yield Kernel(pool, mount.volume, mount.tree, mount.files, mount.metadata, told)


async def test_the_inode_of_a_new_file_is_that_of_its_first_version():
    async with kernel() as k:
        inode = await k.store(b"f", b"1")
        assert inode.draft is None
        assert await k.lookup(b"f") is inode
        assert await k.content(b"f") == b"1"
        assert not k.told


async def test_a_version_published_under_a_known_name_is_found_without_being_told():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        handle = await k.open(b"f", WRITE)
        assert handle.inode is not first
        await k.files.write(handle.number, 0, b"2")
        await k.close(handle)
        assert not k.told  # the kernel may not keep the name while there is a draft
        assert await k.lookup(b"f") is handle.inode


async def test_closing_without_a_change_publishes_nothing():
    async with kernel() as k:
        await k.store(b"f", b"1")
        before = k.pool.lookup(ROOT, b"f")
        handle = await k.open(b"f", WRITE)
        await k.close(handle)
        assert k.pool.lookup(ROOT, b"f") is before
        assert await k.content(b"f") == b"1"


async def test_a_look_up_by_another_thread_does_not_find_the_draft():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        with fails(errno.ESTALE):
            await k.files.open(first, WRITE, A)
        assert await k.lookup(b"f", B) is first
        draft = await k.found(b"f", A)
        assert draft is not first
        handle = await k.files.open(draft, WRITE, A)
        assert await k.lookup(b"f", A) is first
        await k.close(handle)


async def test_an_open_that_was_led_astray_twice_goes_past_the_cache():
    """Another thread's look-up was answered first, so that both look-ups of the writer gave what it was to leave."""
    async with kernel() as k:
        first = await k.store(b"f", b"old")
        with fails(errno.ESTALE):
            await k.files.open(first, WRITE, A)
        handle = await k.files.open(first, WRITE, A)
        assert handle.uncached
        await k.files.write(handle.number, 0, b"new")
        assert await k.content(b"f", B) == b"old"
        await k.close(handle)
        assert await k.content(b"f", B) == b"new"


async def test_a_reader_that_was_led_astray_twice_gets_nothing_half_written():
    async with kernel() as k:
        await k.store(b"f", b"old")
        writer = await k.open(b"f", WRITE)
        await k.files.write(writer.number, 0, b"new")
        with fails(errno.ESTALE):
            await k.files.open(writer.inode, READ, B)
        await k.found(b"f", B)  # but the writer's own look-up made the kernel's entry
        with fails(errno.ENOENT):
            await k.files.open(writer.inode, READ, B)
        await k.close(writer)


async def test_a_draft_can_be_opened_for_reading_through_who_has_it_open():
    async with kernel() as k:
        await k.store(b"f", b"old")
        writer = await k.open(b"f", WRITE)
        await k.files.write(writer.number, 0, b"new")
        with fails(errno.ESTALE):
            await k.files.open(writer.inode, READ, B)
        reader = await k.files.open(writer.inode, READ, B)
        assert await k.files.read(reader.number, 0, 9) == b"new"
        await k.close(reader)
        await k.close(writer)


async def test_a_reader_of_a_replaced_version_is_sent_to_the_new_one():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        await k.store(b"tmp", b"2")
        await k.tree.rename((k.root, b"tmp"), (k.root, b"f"), replace=True, caller=A)
        with fails(errno.ESTALE):
            await k.files.open(first, READ, B)
        second = await k.found(b"f", B)
        assert await k.files.read((await k.files.open(second, READ, B)).number, 0, 9) == b"2"


async def test_a_removed_version_that_nobody_holds_is_missing():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        await k.tree.unlink(k.root, b"f")
        with fails(errno.ESTALE):
            await k.files.open(first, READ, A)
        assert await k.lookup(b"f", A) is None
        assert await k.lookup(b"f", A) is None  # its open failed, so what follows is another one
        for number in (errno.ESTALE, errno.ENOENT):
            with fails(number):
                await k.files.open(first, READ, A)


async def test_a_draft_that_is_looked_up_but_never_opened_goes_when_forgotten():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        with fails(errno.ESTALE):
            await k.files.open(first, WRITE, A)
        draft = await k.found(b"f", A)
        assert draft.draft is not None
        k.tree.forgot(draft.number, 1)
        assert not k.pool.pins
        assert await k.lookup(b"f", B) is first
        assert k.volume.inodes.get(draft.number) is None


async def test_an_idle_draft_forgotten_while_its_name_moves():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        with fails(errno.ESTALE):
            await k.files.open(first, WRITE, A)
        draft = await k.found(b"f", A)
        assert draft.draft is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_rename, k, b"f", b"g")
            await until(draft.draft.lock.locked)
            k.tree.forgot(draft.number, 1)
        assert not k.pool.pins
        assert await k.lookup(b"g", B) is first
        assert first.place == (ROOT, b"g")


def _draft(handle: Handle) -> Draft:
    assert handle.draft is not None
    return handle.draft


def _record(k: Kernel, name: bytes) -> Descriptor:
    record = k.pool.lookup(ROOT, name)
    assert record is not None
    return record


async def _rename(k: Kernel, old: bytes, new: bytes) -> None:
    await k.tree.rename((k.root, old), (k.root, new), replace=True, caller=B)


async def test_an_idle_draft_forgotten_while_its_attributes_change():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        with fails(errno.ESTALE):
            await k.files.open(first, WRITE, A)
        draft = await k.found(b"f", A)
        assert draft.draft is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(k.metadata.change, first, Changes(mode=0o640))
            await until(draft.draft.lock.locked)
            k.tree.forgot(draft.number, 1)
            assert await k.found(b"f", A) is draft  # the second of two look-ups, overtaken by the forgetting
        assert k.volume.inodes.get(draft.number) is draft
        k.tree.forgot(draft.number, 1)
        assert k.volume.inodes.get(draft.number) is None
        assert not k.pool.pins


async def test_two_threads_that_want_to_write_share_a_draft():
    async with kernel() as k:
        first = await k.store(b"f", b"1234")
        for caller in (A, B):
            with fails(errno.ESTALE):
                await k.files.open(first, WRITE, caller)
        one, two = await k.found(b"f", A), await k.found(b"f", B)
        assert one is two
        handles = [await k.files.open(inode, WRITE, caller) for inode, caller in ((one, A), (two, B))]
        await k.files.write(handles[0].number, 0, b"x")
        await k.files.write(handles[1].number, 3, b"y")
        for handle in handles:
            await k.close(handle)
        assert await k.content(b"f") == b"x23y"


async def test_truncation_by_name():
    async with kernel() as k:
        first = await k.store(b"f", b"1234")
        with fails(errno.ESTALE):
            await k.files.truncate(first, 2, None, A)
        draft = await k.found(b"f", A)
        await k.files.truncate(draft, 2, None, A)
        assert draft.draft is None
        assert await k.content(b"f") == b"12"
        with fails(errno.ESTALE):
            await k.files.truncate(draft, 1, None, A)
        with fails(errno.EBUSY):
            await k.files.truncate(draft, 1, None, A)


async def test_truncation_through_a_reader_is_refused():
    async with kernel() as k:
        await k.store(b"f", b"1234")
        reader = await k.open(b"f", READ)
        with fails(errno.EINVAL):
            await k.files.truncate(reader.inode, 1, reader.number, A)
        with fails(errno.EBADF):
            await k.files.write(reader.number, 0, b"1")
        await k.close(reader)
        with fails(errno.EBADF):
            await k.files.read(reader.number, 0, 1)


async def test_a_file_that_cannot_be_read_is_missing_and_told():
    async with kernel() as k:
        inode = await k.store(b"f", bytes(EXTENT))
        k.volume.versions.forget(inode.record.extents)  # type: ignore[union-attr]
        k.pool.fail["read_extent"] = BROKEN
        with fails(errno.ENOENT):
            await k.files.open(inode, READ, A)
        assert k.told == [inode.number]
        assert not k.pool.pins


async def test_a_file_that_is_dropped_when_it_is_opened_is_looked_up_again():
    async with kernel() as k:
        inode = await k.store(b"f", bytes(EXTENT))
        record = inode.record
        assert record is not None
        k.volume.versions.forget(record.extents)

        async def read_extent(*arguments: object) -> int:
            k.pool.evict(record)
            raise ChecksumError("wrong bytes")

        k.pool.read_extent = read_extent  # type: ignore[method-assign, assignment]
        with fails(errno.ESTALE):
            await k.files.open(inode, READ, A)
        assert await k.lookup(b"f") is None


async def test_a_failed_write_poisons_until_the_last_close(expect_log):
    async with kernel(capacity=1) as k:
        handle = await k.create(b"f")
        await k.files.write(handle.number, 0, bytes(EXTENT))
        for call in (
            lambda: k.files.write(handle.number, EXTENT, b"1"),
            lambda: k.files.flush(handle.number),
            lambda: _rename(k, b"f", b"g"),
        ):
            with pytest.raises(NoSpace):
                await call()
        await k.files.release(handle.number)
        await trio.testing.wait_all_tasks_blocked()
        assert await k.lookup(b"f") is None
        assert handle.inode.number in k.told
        assert not k.pool.slots
        with fails(errno.ESTALE):
            await k.files.open(handle.inode, READ, A)
        with fails(errno.ENOENT):
            await k.files.open(handle.inode, READ, A)


async def test_a_failed_rewrite_leaves_the_old_version():
    async with kernel() as k:
        await k.store(b"f", b"old")
        handle = await k.open(b"f", WRITE)
        k.pool.fail["reserve"] = NoSpace("full")
        with pytest.raises(NoSpace):
            await k.files.write(handle.number, 0, b"new")
        with pytest.raises(NoSpace):
            await k.files.flush(handle.number)
        await k.files.release(handle.number)
        assert await k.content(b"f") == b"old"


async def test_what_fails_after_the_last_close_is_logged(expect_log):
    expect_log("closed without being published", count=1)
    async with kernel() as k:
        handle = await k.create(b"f")
        await k.files.write(handle.number, 0, bytes(500))
        k.pool.fail["publish"] = BROKEN
        await k.files.release(handle.number)
        assert await k.lookup(b"f") is None


async def test_a_read_open_waits_for_what_a_mapping_left():
    async with kernel() as k:
        await k.store(b"f", b"old")
        handle = await k.open(b"f", WRITE)
        await k.files.flush(handle.number)
        await k.files.write(handle.number, 0, b"new")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(k.files.release, handle.number)
            await until(lambda: _draft(handle).is_closing)
            assert await k.content(b"f", B) == b"new"


async def test_release_without_changes_has_no_checkpoint():
    """The kernel's next request is handled before any other task runs, and must find the file closed."""
    async with kernel() as k:
        handle = await k.create(b"f")
        await k.files.flush(handle.number)
        with trio.testing.assert_no_checkpoints():
            await k.files.release(handle.number)
        assert handle.inode.draft is None


async def test_who_asks_about_an_evicted_inode_is_sent_to_its_name():
    """The kernel asks before it opens a file that it remembers; what it then finds under the name is opened."""
    async with kernel() as k:
        inode = await k.store(b"f", b"old")
        assert inode.record is not None
        k.pool.evict(inode.record)
        await k.store(b"f", b"new", B)
        assert k.volume.send_to_name(inode, A).errno == errno.ESTALE
        handle = await k.files.open(await k.found(b"f"), WRITE, A)  # no second retry: none is left
        await k.files.write(handle.number, 0, b"mine")
        await k.close(handle)
        assert await k.content(b"f") == b"mine"


@pytest.mark.parametrize("looked_up", [False, True])
async def test_who_asked_about_an_inode_opens_another_file_as_ever(looked_up):
    async with kernel() as k:
        evicted, other = await k.store(b"evicted", b"1"), await k.store(b"other", b"1")
        assert evicted.record is not None
        k.pool.evict(evicted.record)
        await k.store(b"evicted", b"2", B)
        await k.store(b"other", b"2", B)
        k.volume.send_to_name(evicted, A)
        if looked_up:
            await k.found(b"evicted")
        with fails(errno.ESTALE):
            await k.files.open(other, READ, A)
        assert await k.content(b"other") == b"2"


async def test_eviction_is_told_and_the_name_is_missing():
    async with kernel() as k:
        inode = await k.store(b"f", b"1")
        assert inode.record is not None
        k.pool.evict(inode.record)
        assert k.told == [inode.number]
        assert k.volume.is_missing(inode)
        with fails(errno.ESTALE):
            await k.files.open(inode, READ, A)
        assert await k.lookup(b"f") is None


async def test_publishing_all_at_the_end(expect_log):
    expect_log("was not published", count=1)
    async with kernel() as k:
        good, bad = await k.create(b"good"), await k.create(b"bad")
        await k.files.write(good.number, 0, b"1")
        await k.files.write(bad.number, 0, bytes(500))
        k.pool.fail["write"] = BROKEN
        await k.tree.publish_all()
        assert k.pool.lookup(ROOT, b"good") is not None
        assert k.pool.lookup(ROOT, b"bad") is None


async def test_no_inode_outlives_its_uses():
    async with kernel() as k:
        for name in (b"a", b"b"):
            await k.store(name, b"1")
        handle = await k.open(b"a", WRITE)
        await k.files.write(handle.number, 0, b"2")
        await k.close(handle)
        await k.tree.unlink(k.root, b"b")
        for inode in list(k.volume.inodes):
            k.tree.forgot(inode.number, inode.lookups)
        assert len(k.volume.inodes) == 1
        assert len(k.files) == 0
        assert not k.pool.pins


async def test_unknown_inodes():
    async with kernel() as k:
        with fails(errno.ESTALE):
            k.volume.inode(99)
        k.tree.forgot(99, 1)


async def test_mknod_of_what_cannot_be():
    async with kernel() as k:
        with fails(errno.EPERM):
            await k.tree.mknod(k.root, b"f", stat.S_IFIFO | 0o600, A)
        await k.tree.mknod(k.root, b"f", stat.S_IFREG | 0o600, A)
        with fails(errno.EEXIST):
            await k.tree.mknod(k.root, b"f", stat.S_IFREG | 0o600, A)
        assert await k.content(b"f") == b""


async def test_creating_what_the_kernel_did_not_know_of():
    async with kernel() as k:
        await k.store(b"f", b"old")
        with fails(errno.EEXIST):
            await k.files.create(k.root, b"f", 0o600, WRITE | os.O_EXCL, A)
        await k.tree.mkdir(k.root, b"d", 0o700, A)
        with fails(errno.EISDIR):
            await k.files.create(k.root, b"d", 0o600, WRITE, A)
        await k.tree.symlink(k.root, b"s", b"f", A)
        with fails(errno.EEXIST):
            await k.files.create(k.root, b"s", 0o600, WRITE, A)
        reader, _ = await k.files.create(k.root, b"f", 0o600, READ, A)
        assert await k.files.read(reader.number, 0, 9) == b"old"
        writer, _ = await k.files.create(k.root, b"f", 0o600, WRITE | os.O_TRUNC, A)
        await k.files.write(writer.number, 0, b"n")
        await k.close(writer)
        assert await k.content(b"f") == b"n"
        await k.close(reader)


def _listed(listing: Listing, position: int, count: int) -> list[bytes]:
    """As many entries as fit an answer that begins at a position."""
    listing.seek(position)
    found: list[bytes] = []
    while len(found) < count and (entry := listing.peek()) is not None:
        found.append(entry[0])
        listing.accept()
    return found


async def test_listing_from_any_position():
    async with kernel() as k:
        for number in range(30):
            await k.store(b"%02d" % number, b"")
        draft = await k.create(b"05-draft")
        listing = Listing(k.volume, k.root)
        everything = _listed(listing, 0, 100)
        assert everything[:2] == [b".", b".."]
        assert everything[2:] == sorted([*(b"%02d" % n for n in range(30)), b"05-draft"])
        for position in (0, 1, 2, 3, 10, 31, 33, 40):
            assert _listed(listing, position, 5) == everything[position : position + 5]
        await k.close(draft)


async def test_listing_goes_on_by_name_when_entries_come_and_go():
    async with kernel() as k:
        for number in range(20):
            await k.store(b"%02d" % number, b"")
        listing = Listing(k.volume, k.root)
        assert _listed(listing, 0, 10)[-1] == b"07"
        for number in (1, 7, 8):
            await k.tree.unlink(k.root, b"%02d" % number)
        await k.store(b"0", b"")
        assert _listed(listing, 10, 3) == [b"09", b"10", b"11"]
        await k.tree.unlink(k.root, b"09")
        assert _listed(listing, 11, 2) == [b"10", b"11"]  # the caller's buffer was full after the first


async def test_listing_shows_a_draft_once_when_it_is_published_meanwhile():
    async with kernel() as k:
        await k.store(b"a", b"")
        draft = await k.create(b"b")
        listing = Listing(k.volume, k.root)
        assert _listed(listing, 0, 3) == [b".", b"..", b"a"]
        await k.close(draft)
        assert _listed(listing, 3, 9) == [b"b"]


async def test_a_directory_that_is_removed_takes_its_inode_along():
    async with kernel() as k:
        directory = await k.tree.mkdir(k.root, b"d", 0o700, A)
        assert k.volume.inodes.of_directory(DirectoryId(directory.directory)) is directory
        await k.tree.rmdir(k.root, b"d")
        assert directory.gone
        with fails(errno.ENOENT):
            await k.tree.rmdir(k.root, b"d")
        await k.store(b"f", b"")
        with fails(errno.ENOTDIR):
            await k.tree.rmdir(k.root, b"f")


async def test_a_removed_file_can_be_opened_for_writing_through_who_has_it_open():
    async with kernel() as k:
        inode = await k.store(b"f", b"old")
        reader = await k.open(b"f", READ)
        await k.tree.unlink(k.root, b"f")
        writer = await k.files.open(inode, WRITE, A)
        assert writer.uncached
        await k.files.write(writer.number, 0, b"new")
        assert await k.files.read(writer.number, 0, 9) == b"new"
        assert await k.files.read(reader.number, 0, 9) == b"old"
        await k.close(writer)
        await k.close(reader)
        assert k.pool.lookup(ROOT, b"f") is None
        with fails(errno.ENOENT):
            await k.files.open(inode, WRITE, A)
        assert not k.pool.pins
        assert not k.pool.reserved


async def test_two_threads_that_begin_to_write_at_the_same_time():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        found = []

        async def look(caller: Caller) -> None:
            found.append(await k.found(b"f", caller))

        for caller in (A, B):
            with fails(errno.ESTALE):
                await k.files.open(first, WRITE, caller)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look, A)
            nursery.start_soon(look, B)
        assert found[0] is found[1]
        assert sum(k.pool.pins.values()) == 1


async def test_what_became_a_directory_or_a_symlink_meanwhile():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        with fails(errno.ESTALE):
            await k.files.open(first, WRITE, A)
        await k.tree.unlink(k.root, b"f")
        link = await k.tree.symlink(k.root, b"f", b"target", B)
        assert await k.lookup(b"f", A) is link
        with fails(errno.ENOENT):
            await k.files.open(first, WRITE, A)
        directory = await k.tree.mkdir(k.root, b"d", 0o700, A)
        with fails(errno.EISDIR):
            await k.files.open(directory, READ, A)


async def test_names_that_the_kernel_would_have_refused():
    async with kernel() as k:
        await k.tree.mkdir(k.root, b"d", 0o700, A)
        await k.tree.mkdir(k.root, b"e", 0o700, A)
        await k.store(b"f", b"1")
        for number, call in (
            (errno.ENOENT, k.tree.unlink(k.root, b"none")),
            (errno.EISDIR, k.tree.unlink(k.root, b"d")),
            (errno.ENOENT, _rename(k, b"none", b"x")),
            (errno.EISDIR, _rename(k, b"f", b"d")),
            (errno.ENOTDIR, _rename(k, b"d", b"f")),
            (errno.EEXIST, k.tree.rename((k.root, b"d"), (k.root, b"e"), replace=False, caller=A)),
            (errno.EEXIST, k.tree.mkdir(k.root, b"f", 0o700, A)),
            (errno.EEXIST, k.tree.symlink(k.root, b"f", b"x", A)),
        ):
            with fails(number):
                await call
        await _rename(k, b"f", b"f")
        assert await k.content(b"f") == b"1"
        inside = await k.files.create(await k.found(b"d"), b"draft", 0o600, WRITE, A)
        with fails(errno.ENOTEMPTY):
            await _rename(k, b"e", b"d")
        with fails(errno.ENOTEMPTY):
            await k.tree.rmdir(k.root, b"d")
        await k.files.release(inside[0].number)


async def test_a_file_removed_while_it_is_published_is_not_there():
    async with kernel() as k:
        handle = await k.create(b"f")
        await k.files.write(handle.number, 0, bytes(500))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(k.files.flush, handle.number)
            await until(_draft(handle).lock.locked)
            nursery.start_soon(k.tree.unlink, k.root, b"f")
        assert k.pool.lookup(ROOT, b"f") is None
        await k.files.write(handle.number, 0, b"1")
        await k.close(handle)
        assert k.pool.lookup(ROOT, b"f") is None
        assert not k.pool.pins
        assert not k.pool.slots


async def test_a_file_replaced_while_it_is_published():
    async with kernel() as k:
        await k.store(b"f", b"old")
        await k.store(b"tmp", b"new")
        handle = await k.open(b"f", WRITE)
        await k.files.write(handle.number, 0, b"mine")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(k.files.flush, handle.number)
            await until(_draft(handle).lock.locked)
            nursery.start_soon(_rename, k, b"tmp", b"f")
        assert await k.content(b"f", B) == b"new"
        await k.files.write(handle.number, 0, b"more")
        await k.close(handle)
        assert await k.content(b"f", B) == b"new"
        assert not k.pool.pins


async def test_a_name_that_moves_while_a_remover_waits_for_it():
    """The kernel orders changes of a directory; if it did not, the draft that has the name in the end would count."""
    async with kernel() as k:
        handle = await k.create(b"f")
        await k.files.write(handle.number, 0, bytes(500))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_rename, k, b"f", b"g")
            await until(_draft(handle).lock.locked)
            with fails(errno.ENOENT):
                await k.tree.unlink(k.root, b"f")
        assert k.pool.lookup(ROOT, b"g") is not None
        await k.close(handle)


async def test_a_rename_that_fails_leaves_the_name_and_poisons_what_was_never_published():
    async with kernel() as k:
        handle = await k.create(b"f")
        await k.files.write(handle.number, 0, bytes(500))
        k.pool.fail["publish"] = BROKEN
        with pytest.raises(DeviceError):
            await _rename(k, b"f", b"g")
        assert await k.lookup(b"f") is handle.inode
        assert await k.lookup(b"g") is None
        with pytest.raises(DeviceError):
            await k.files.flush(handle.number)
        await k.files.release(handle.number)


async def test_a_rename_that_fails_leaves_a_published_file_where_it_was():
    async with kernel() as k:
        await k.store(b"f", b"old")
        handle = await k.open(b"f", WRITE)
        k.pool.fail["rename"] = BROKEN
        with pytest.raises(DeviceError):
            await _rename(k, b"f", b"g")
        await k.files.write(handle.number, 0, b"new")
        await k.close(handle)
        assert await k.content(b"f") == b"new"


async def test_a_file_whose_device_is_lost_while_it_is_renamed_is_not_there(monkeypatch: pytest.MonkeyPatch):
    async with kernel() as k:
        await k.store(b"f", b"old")

        async def lose(*args: object, **options: object) -> NoReturn:
            monkeypatch.setattr(k.pool, "lookup", lambda *place: None)
            raise DeviceGivenUp("device", errno.ETIMEDOUT, "lost", None)

        monkeypatch.setattr(k.pool, "rename", lose)
        with fails(errno.ENOENT):
            await _rename(k, b"f", b"g")


@pytest.mark.parametrize("is_told", [True, False])
async def test_who_opens_a_file_that_only_a_mapping_is_left_of_waits_until_that_is_gone(
    is_told: bool, autojump_clock: trio.testing.MockClock
):
    async with kernel() as k:
        handle = await k.create(b"f")
        await k.files.write(handle.number, 0, b"early")
        await k.files.flush(handle.number)
        await k.files.write(handle.number, 0, b"later")
        found: list[bytes] = []

        async def read() -> None:
            found.append(await k.content(b"f"))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(PATIENCE / 2)
            assert not found
            if is_told:
                await k.files.release(handle.number)
        assert found == [b"later" if is_told else b"early"]
        assert (trio.current_time() - began >= PATIENCE) is not is_told
        if not is_told:
            await k.files.release(handle.number)
        assert await k.content(b"f") == b"later"


async def test_a_failed_truncating_open_leaves_nothing_open():
    async with kernel() as k:
        handle = await k.create(b"f")
        k.pool.fail["reserve"] = NoSpace("full")
        with pytest.raises(NoSpace):
            await k.files.write(handle.number, 0, b"1")
        with pytest.raises(NoSpace):
            await k.files.open(handle.inode, WRITE | os.O_TRUNC, A)
        assert len(k.files) == 1
        await k.files.release(handle.number)
        with fails(errno.EBADF):
            await k.files.release(handle.number)


async def test_a_reader_of_a_draft_outlives_its_writer():
    async with kernel() as k:
        writer = await k.create(b"f")
        await k.files.write(writer.number, 0, b"1")
        reader = await k.open(b"f", READ, B)
        assert reader.inode is writer.inode
        await k.close(writer)
        assert await k.files.read(reader.number, 0, 9) == b"1"
        await k.files.flush(reader.number)
        await k.close(reader)
        assert not k.pool.pins
        unlinked = await k.create(b"g")
        reader = await k.open(b"g", READ, B)
        await k.files.write(unlinked.number, 0, b"2")
        await k.tree.unlink(k.root, b"g")
        await k.close(unlinked)
        assert await k.files.read(reader.number, 0, 9) == b"2"
        await k.close(reader)
        assert not k.pool.pins
        assert not k.pool.reserved


async def test_eviction_of_what_a_remover_was_about_to_remove():
    async with kernel() as k:
        await k.store(b"f", b"1")
        handle = await k.open(b"f", WRITE)
        k.pool.fail["remove"] = Missing("evicted")
        await k.tree.unlink(k.root, b"f")
        await k.close(handle)
        await k.store(b"g", b"1")
        k.pool.fail["remove"] = Missing("evicted")
        with pytest.raises(Missing):
            await k.tree.unlink(k.root, b"g")


async def test_a_reader_gets_what_it_found_although_it_is_replaced_again():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        await k.store(b"tmp", b"22")
        await _rename(k, b"tmp", b"f")
        with fails(errno.ESTALE):
            await k.files.open(first, READ, A)
        await k.found(b"f", A)
        second = await k.found(b"f", A)
        for number in (b"333", b"4444"):
            await k.store(b"tmp", number, B)
            await _rename(k, b"tmp", b"f")
        reader = await k.files.open(second, READ, A)
        assert await k.files.read(reader.number, 0, 9) == b"22"
        assert not reader.uncached
        await k.close(reader)
        assert not k.pool.pins


async def test_a_writer_of_what_is_replaced_twice_writes_to_the_newest():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        for number in (b"2", b"3"):
            await k.store(b"tmp", number, B)
            await _rename(k, b"tmp", b"f")
        with pytest.raises(OSError, match="Errno"):
            await k.files.open(first, READ, A)
        writer = await k.files.open(first, WRITE, A)
        assert writer.uncached
        await k.files.write(writer.number, 0, b"4")
        await k.close(writer)
        assert await k.content(b"f") == b"4"


async def test_attributes_of_versions_that_are_not_the_newest():
    async with kernel() as k:
        first = await k.store(b"f", b"1")
        reader = await k.open(b"f", READ, B)
        writer = await k.open(b"f", WRITE)
        await k.files.write(writer.number, 0, b"2")
        await k.close(writer)
        await k.metadata.change(first, Changes(mode=0o600))  # the kernel had looked it up before
        assert _record(k, b"f").mode == stat.S_IFREG | 0o600
        assert first.record is not None
        assert first.record.mode == stat.S_IFREG | 0o600
        await k.tree.unlink(k.root, b"f")
        await k.metadata.change(first, Changes(mode=0o640))
        await k.metadata.set_xattr(first, b"user.a", b"1")
        assert first.record.mode == stat.S_IFREG | 0o640
        assert k.metadata.xattr(first, b"user.a") == b"1"
        await k.close(reader)
        second = await k.store(b"g", b"1")
        k.pool.evict(_record(k, b"g"))
        with fails(errno.ENOENT):
            await k.metadata.change(second, Changes(mode=0o600))


async def test_attributes_changed_while_a_draft_is_published():
    async with kernel() as k:
        await k.store(b"f", bytes(500))
        writer = await k.open(b"f", WRITE)
        await k.files.write(writer.number, 0, b"2")
        published = await k.found(b"f", B)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(k.files.flush, writer.number)
            await until(_draft(writer).lock.locked)
            nursery.start_soon(k.metadata.change, writer.inode, Changes(uid=7))
            nursery.start_soon(k.metadata.change, published, Changes(gid=8))
        await k.close(writer)
        record = _record(k, b"f")
        assert (record.uid, record.gid) == (7, 8)
        assert await k.content(b"f") == b"2" + bytes(499)
        assert not k.pool.pins
