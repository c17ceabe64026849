"""Several members of one pool on one host: each sees what the others do, and changes what the others have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from blockdev.errors import Exists, Missing, NotEmpty, Raced
from blockdev.lease import Leases
from blockdev.membership import FOLLOW_PERIOD, GRACE
from blockdev.pool import Pool
from blockdev.testing import RandomFaults
from blockdev.types import KIB, ROOT, Descriptor, DirectoryId, Foreign, Kind
from tests.blockdev.members import Host, host
from tests.blockdev.pools import EXTENT, content, pattern, put

SOON = 0.2
"""Seconds within which each must see what the others did."""

Both = tuple[Host, Pool, Pool]


async def seen(pool: Pool, name: bytes, directory: DirectoryId = ROOT) -> bytes | None:
    record = pool.lookup(directory, name)
    return None if record is None else await content(pool, record)


@pytest.fixture
async def both(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[Both]:
    made = await host(tmp_path)
    async with made.pool() as one, made.pool() as two:
        assert (one.seat, two.seat) == (0, 1)
        yield made, one, two


async def test_each_sees_what_the_other_stores(both: Both, autojump_clock: MockClock) -> None:
    _, one, two = both
    await put(one, b"x", 300 * KIB)
    await put(two, b"y", 3 * EXTENT + 1)
    await put(two, b"small", 100)
    await trio.sleep(SOON)
    for pool in (one, two):
        assert await seen(pool, b"x") == pattern(300 * KIB, b"x")
        assert await seen(pool, b"y") == pattern(3 * EXTENT + 1, b"y")
        assert await seen(pool, b"small") == pattern(100, b"small")
        assert [record.name for record in pool.children(ROOT)] == [b"small", b"x", b"y"]


async def test_each_hears_of_what_the_other_changes(both: Both, autojump_clock: MockClock) -> None:
    _, one, two = both
    await trio.sleep(1)
    heard: list[Foreign | None] = []
    two.on_changed.append(heard.append)
    record = await put(one, b"x", 300 * KIB)
    await trio.sleep(SOON)
    assert heard == [Foreign(record.object_id, ROOT, b"x")]
    heard.clear()
    await one.rename(record, ROOT, b"y")
    await trio.sleep(SOON)
    assert set(heard) == {Foreign(record.object_id, ROOT, name) for name in (b"x", b"y")}


@pytest.mark.parametrize("size", [100, 300 * KIB, 2 * EXTENT])
async def test_a_name_is_replaced_by_another_member(both: Both, autojump_clock: MockClock, size: int) -> None:
    _, one, two = both
    await put(one, b"x", pattern(size, 1))
    await trio.sleep(SOON)
    await put(two, b"x", pattern(size, 2))
    await trio.sleep(SOON)
    assert await seen(one, b"x") == await seen(two, b"x") == pattern(size, 2)
    await trio.sleep(5)
    assert one.statistics().space.live == 0
    await put(one, b"x", pattern(size, 3))
    await trio.sleep(5)
    assert await seen(one, b"x") == await seen(two, b"x") == pattern(size, 3)
    assert two.statistics().space.live == 0


@pytest.mark.parametrize("size", [100, 300 * KIB, 2 * EXTENT])
async def test_an_object_is_removed_by_another_member(
    both: Both, autojump_clock: MockClock, size: int
) -> None:
    _, one, two = both
    await put(one, b"x", size)
    await trio.sleep(SOON)
    record = two.lookup(ROOT, b"x")
    assert record is not None
    await two.remove(record)
    assert two.lookup(ROOT, b"x") is None
    with pytest.raises(Missing):
        await two.remove(record)
    await trio.sleep(SOON)
    assert one.lookup(ROOT, b"x") is None
    await trio.sleep(5)
    assert one.statistics().space.live == two.statistics().space.live == 0
    assert one.catalog.count == 0


@pytest.mark.parametrize("size", [100, 300 * KIB, 2 * EXTENT])
async def test_an_object_is_renamed_and_changed_by_another_member(
    both: Both, autojump_clock: MockClock, size: int
) -> None:
    _, one, two = both
    await put(one, b"x", size)
    await put(one, b"z", 70 * KIB)
    await trio.sleep(SOON)
    record = two.lookup(ROOT, b"x")
    assert record is not None
    moved = await two.rename(record, ROOT, b"z")
    for pool in (two, one):
        assert pool.lookup(ROOT, b"x") is None
        assert await seen(pool, b"z") == pattern(size, b"x")
        await trio.sleep(SOON)
    changed = await two.update(moved, mode=0o100600, xattrs=((b"user.a", b"1"),))
    assert changed.mode == 0o100600
    await trio.sleep(5)
    for pool in (one, two):
        now = pool.lookup(ROOT, b"z")
        assert now is not None
        assert (now.mode, now.xattrs, now.kind) == (0o100600, ((b"user.a", b"1"),), Kind.HEAD)
        assert await seen(pool, b"z") == pattern(size, b"x")
    assert two.statistics().space.live == 0  # what it had said is folded in


async def test_directories_are_everybodys(both: Both, autojump_clock: MockClock) -> None:
    _, one, two = both
    made = await one.make_directory(ROOT, b"d", 0o755, 0, 0)
    await trio.sleep(SOON)
    there = two.lookup(ROOT, b"d")
    assert there == made
    inside = await put(two, b"x", 300 * KIB, directory=DirectoryId(made.object_id))
    await trio.sleep(SOON)
    with pytest.raises(NotEmpty):
        await one.remove(made)
    moved = await two.rename(made, ROOT, b"e")
    await trio.sleep(SOON)
    assert one.lookup(ROOT, b"d") is None
    assert one.lookup(DirectoryId(moved.object_id), b"x") == inside
    await one.remove(inside)
    await trio.sleep(SOON)
    record = two.lookup(ROOT, b"e")
    assert record is not None
    await two.remove(record)
    await trio.sleep(SOON)
    assert one.lookup(ROOT, b"e") is None


async def test_two_who_make_a_directory_at_once_make_one(both: Both, autojump_clock: MockClock) -> None:
    _, one, two = both
    made: list[Descriptor] = []

    async def make(pool: Pool) -> None:
        with suppress(Exists):
            made.append(await pool.make_directory(ROOT, b"d", 0o755, 0, 0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make, one)
        nursery.start_soon(make, two)
    await trio.sleep(SOON)
    assert one.lookup(ROOT, b"d") == two.lookup(ROOT, b"d") == made[0]
    assert len(made) == 1


async def make_twice(made: Host, one: Pool, two: Pool) -> DirectoryId:
    """As it may be if somebody is stopped while they make a directory, and each puts a file into it at once."""

    async def make(pool: Pool, file: bytes) -> None:
        record = await pool.make_directory(ROOT, b"d", 0o755, 0, 0)
        await put(pool, file, 300 * KIB, directory=DirectoryId(record.object_id))

    with Leases.open(made.folder, one.uuid) as stopped:
        assert stopped.begin_naming()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make, one, b"x")
            nursery.start_soon(make, two, b"y")
    await trio.sleep(SOON)
    first, second = one.lookup(ROOT, b"d"), two.lookup(ROOT, b"d")
    assert first is not None
    assert first == second
    return DirectoryId(first.object_id)


def listed(pool: Pool, directory: DirectoryId) -> list[bytes]:
    return [record.name for record in pool.children(directory)]


async def test_a_directory_made_twice_is_one(both: Both, autojump_clock: MockClock) -> None:
    began = trio.current_time()
    made, one, two = both
    directory = await make_twice(made, one, two)
    assert trio.current_time() - began < 1.5  # nobody waits for long
    for pool in (one, two):
        assert listed(pool, directory) == [b"x", b"y"]
        assert listed(pool, ROOT) == [b"d"]
    await trio.sleep(SOON)  # and one record of it is left
    assert one.statistics().objects == two.statistics().objects == 3


@pytest.mark.parametrize("who", [0, 1])
async def test_a_directory_made_twice_is_moved_and_removed_as_one(
    both: Both, autojump_clock: MockClock, who: int
) -> None:
    made, one, two = both
    directory = await make_twice(made, one, two)
    here, there = (one, two) if who else (two, one)
    record = here.lookup(ROOT, b"d")
    assert record is not None
    moved = await here.rename(record, ROOT, b"e")
    again = await here.make_directory(ROOT, b"d", 0o700, 0, 0)
    assert again.object_id != moved.object_id
    await trio.sleep(SOON)
    assert listed(there, ROOT) == [b"d", b"e"]
    assert listed(there, directory) == [b"x", b"y"]
    assert listed(there, DirectoryId(again.object_id)) == []
    for child in list(here.children(directory)):
        await here.remove(child)
    await here.remove(moved)
    await trio.sleep(SOON)
    assert listed(there, ROOT) == listed(here, ROOT) == [b"d"]


async def test_what_is_in_a_directory_that_another_member_moved_outlives_both(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its maker ends before it has seen that, and the catalogues are lost."""
    made = await host(tmp_path)
    async with made.pool() as one, made.pool() as two:
        record = await one.make_directory(ROOT, b"d", 0o755, 0, 0)
        inside = DirectoryId(record.object_id)
        deeper = await one.make_directory(inside, b"deeper", 0o755, 0, 0)
        await put(one, b"x", 300 * KIB, directory=DirectoryId(deeper.object_id))
        await trio.sleep(SOON)
        await two.rename(record, ROOT, b"e")
    made.forget()
    for _ in range(2):
        async with made.pool() as pool:
            assert listed(pool, ROOT) == [b"e"]
            assert await seen(pool, b"x", DirectoryId(deeper.object_id)) == pattern(300 * KIB, b"x")
            await trio.sleep(5)


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_a_directory_made_twice_outlives_its_makers(
    tmp_path: Path, autojump_clock: MockClock, rebuilt: bool
) -> None:
    made = await host(tmp_path)
    async with made.pool() as one, made.pool() as two:
        directory = await make_twice(made, one, two)
    if rebuilt:
        made.forget()
    for _ in range(2):
        async with made.pool() as pool:
            assert listed(pool, ROOT) == [b"d"]
            assert listed(pool, directory) == [b"x", b"y"]
            await trio.sleep(5)
    async with made.pool() as pool:
        for child in list(pool.children(directory)):
            await pool.remove(child)
        record = pool.lookup(ROOT, b"d")
        assert record is not None
        await pool.remove(record)
    made.forget()
    async with made.pool() as pool:
        assert listed(pool, ROOT) == []


async def test_a_slot_rests_while_another_member_reads_it(both: Both, autojump_clock: MockClock) -> None:
    _, one, two = both
    record = await put(one, b"x", EXTENT)
    await trio.sleep(SOON)
    two.pin(record)
    await one.remove(record)
    await trio.sleep(60)
    assert one.statistics().space.limbo == EXTENT
    assert await content(two, record) == pattern(EXTENT, b"x")
    two.unpin(record)
    await trio.sleep(SOON)
    assert two.lookup(ROOT, b"x") is None
    with pytest.raises(Raced):
        two.pin(record)
    await one._room.limbo.reap()
    assert one.statistics().space.limbo == 0


async def test_a_freed_slot_rests_for_the_grace_only_with_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made = await host(tmp_path)
    async with made.pool() as one:
        await one.remove(await put(one, b"x", EXTENT))
        ready = one._space.next_ready(one.superblock.extent_class)
        assert ready is not None
        assert ready <= trio.current_time()
        async with made.pool():
            await one.remove(await put(one, b"x", EXTENT))
            one._space.reap(trio.current_time())
            ready = one._space.next_ready(one.superblock.extent_class)
            assert ready == pytest.approx(trio.current_time() + GRACE, abs=0.1)
            assert GRACE >= 2 * FOLLOW_PERIOD + 1


async def test_what_a_member_had_is_the_next_ones(tmp_path: Path, autojump_clock: MockClock) -> None:
    made = await host(tmp_path)
    async with made.pool() as one:
        async with made.pool() as two:
            await put(two, b"x", 300 * KIB)
        await trio.sleep(SOON)
        assert await seen(one, b"x") == pattern(300 * KIB, b"x")
        await trio.sleep(3)
        assert one.catalog.regions > 0
        record = one.lookup(ROOT, b"x")
        assert record is not None
        await one.rename(record, ROOT, b"y")
        assert await seen(one, b"y") == pattern(300 * KIB, b"x")
    async with made.pool() as three:
        assert await seen(three, b"y") == pattern(300 * KIB, b"x")


async def test_a_second_member_gets_regions_of_a_full_pool(tmp_path: Path, autojump_clock: MockClock) -> None:
    made = await host(tmp_path)
    async with made.pool() as one:
        for number in range(60):
            await put(one, b"%d" % number, EXTENT)
        async with made.pool() as two:
            for number in range(30):
                await put(two, b"n%d" % number, EXTENT)
            await trio.sleep(10)
            assert abs(one.catalog.regions - two.catalog.regions) <= 3
            assert await seen(one, b"n29") == pattern(EXTENT, b"n29")


async def test_evicting_what_was_outdone_leaves_what_outdid_it(both: Both, autojump_clock: MockClock) -> None:
    _, one, two = both
    await trio.sleep(SOON)  # they know of each other
    loser = await put(one, b"x", pattern(300 * KIB, 1))
    one.catalog.commit()
    await put(two, b"x", pattern(300 * KIB, 2))
    two.catalog.commit()
    assert await one._departures.evict(loser.object_id)  # before it was seen that it counts no more
    for _ in range(20):
        assert await seen(one, b"x") == await seen(two, b"x") == pattern(300 * KIB, 2)
        await trio.sleep(SOON)


@pytest.mark.parametrize("how", ["evict", "remove", "replace", "rename"])
async def test_what_moved_away_outlives_what_has_its_former_name(
    both: Both, autojump_clock: MockClock, how: str
) -> None:
    _, one, two = both
    await trio.sleep(SOON)
    moved = await put(one, b"x", pattern(300 * KIB, 1))
    await trio.sleep(SOON)
    async with one.exclusively(moved.object_id):  # so that its owner does not come to folding it in
        await two.rename(moved, ROOT, b"y")
        later = await put(two, b"x", pattern(300 * KIB, 2))
        if how == "evict":
            assert await two._departures.evict(later.object_id)
        elif how == "remove":
            await two.remove(later)
        elif how == "replace":
            await put(two, b"x", pattern(300 * KIB, 3))
        else:
            other = await put(two, b"z", 1000)
            await two.rename(other, ROOT, b"x")
        await trio.sleep(SOON)
        assert await seen(two, b"y") == await seen(one, b"y") == pattern(300 * KIB, 1)
    await trio.sleep(5)
    assert await seen(two, b"y") == await seen(one, b"y") == pattern(300 * KIB, 1)


async def test_an_alias_that_is_written_anew_while_it_is_swept_stays(
    both: Both, autojump_clock: MockClock
) -> None:
    made, one, two = both
    await trio.sleep(SOON)
    record = await put(one, b"x", 300 * KIB)
    await trio.sleep(SOON)
    record = await two.update(record, mode=0o100600)
    await trio.sleep(SOON)  # its owner has done it
    for device in made.devices:
        device.random_faults = RandomFaults(delay=(0.01, 0.01))
    async with one.exclusively(record.object_id), trio.open_nursery() as nursery:
        nursery.start_soon(two.sweep)
        await trio.sleep(0.005)
        nursery.start_soon(partial(two.update, record, mode=0o100640))
        for _ in range(20):
            await trio.sleep(0.01)
            assert one.lookup(ROOT, b"x") is not None
            assert two.lookup(ROOT, b"x") is not None
    await trio.sleep(SOON)
    for pool in (one, two):
        shown = pool.lookup(ROOT, b"x")
        assert shown is not None
        assert shown.mode == 0o100640


async def test_two_that_come_at_once_do_not_share_out_what_one_left(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    made = await host(tmp_path)
    async with made.pool() as one, made.pool():
        await put(one, b"x", 300 * KIB)
    for device in made.devices:
        device.random_faults = RandomFaults(delay=(0.01, 0.01))
    seats = []
    there = trio.Event()

    async def come() -> None:
        async with made.pool() as pool:
            seats.append(sorted(pool.catalog.own))
            assert await seen(pool, b"x") == pattern(300 * KIB, b"x")
            await there.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        nursery.start_soon(come)
        await trio.sleep(5)
        there.set()
    assert sorted(seats) in ([[0], [1]], [[0, 1], [2]])
