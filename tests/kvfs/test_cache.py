"""Objects go into callers' memory and out of it: whole, verified, each with its own outcome."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from xxhash import xxh3_128_digest

from blockdev.errors import DeviceError, DeviceTimeout, Exists, IntegrityError, NoSpace
from blockdev.pool import Pool
from blockdev.testing import Fault, Operation
from blockdev.types import ROOT, DirectoryId
from kvfs.cache import Block, Cache, Namespace
from kvfs.errors import BadBuffer, BadKey, CacheClosed, NoObject, WrongNamespace
from rdma.errors import NoBuffers, TransferExpired
from tests.blockdev.members import host
from tests.blockdev.pools import EXTENT, Bench, content, found, made, pattern, payload_at, put, put_sparse
from tests.conftest import ExpectLog
from tests.kvfs.caches import LEASED, cache_of, direct, indirect

KIB = 1024
SIZES = [0, 1, 100, 4096, 5000, 64 * KIB, EXTENT - 1, EXTENT, EXTENT + 4096, 2 * EXTENT + 12345]


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await made(tmp_path, devices=2, regions=6)


@pytest.fixture
async def pool(bench: Bench) -> AsyncIterator[Pool]:
    async with bench.pool() as opened:
        yield opened


@pytest.fixture
async def cache(pool: Pool) -> AsyncIterator[Cache]:
    async with cache_of(pool) as opened:
        yield opened


async def got(cache: Cache, key: str | bytes, size: int) -> bytes:
    into = direct(size)
    length = await cache.get_into(key, into)
    return bytes(into[:length])


@pytest.mark.parametrize("memory", [direct, indirect])
@pytest.mark.parametrize("size", SIZES)
async def test_what_was_put_comes_back(cache: Cache, size: int, memory: Callable[[int], memoryview]) -> None:
    data = memory(size)
    data[:] = pattern(size)
    await cache.put(b"hash", data)
    assert cache.lookup([b"hash", b"other"]) == [size, None]
    into = memory(size + 100)
    into[size:] = b"\xa5" * 100
    assert await cache.get_into(b"hash", into) == size
    assert into[:size] == pattern(size)
    assert into[size:] == b"\xa5" * 100, "what is beyond the object stays as it was"


async def test_whole_pages_on_a_page_are_not_copied(cache: Cache) -> None:
    data = direct(2 * EXTENT)
    data[:] = pattern(2 * EXTENT)
    await cache.put(b"hash", data)
    await cache.get_into(b"hash", direct(2 * EXTENT))
    now = cache.statistics()
    assert (now.put_bytes_copied, now.bytes_copied, now.bytes) == (0, 0, 2 * EXTENT)
    await cache.put(b"hash", data[1:])
    await cache.get_into(b"hash", indirect(2 * EXTENT))
    now = cache.statistics()
    assert (now.put_bytes_copied, now.bytes_copied) == (2 * EXTENT - 1, 2 * EXTENT - 1)


async def test_paths_are_the_pools_names(cache: Cache, pool: Pool) -> None:
    await cache.put("/a/b/c.bin", pattern(100))
    directory = pool.lookup(ROOT, b"a")
    assert directory is not None
    record = await put(pool, b"plain", 3 * KIB + 17)
    assert await got(cache, "plain", record.size) == pattern(record.size, b"plain")
    assert cache.lookup(["a/b/c.bin", "/a", "a/b", "missing/c.bin", "plain/c.bin"]) == [
        100, None, None, None, None,
    ]  # fmt: skip


async def test_namespaces_are_apart(pool: Pool) -> None:
    other = Namespace("model", rank=1)
    async with cache_of(pool) as one, cache_of(pool, namespace=other) as two:
        await one.put(b"hash", b"one")
        assert two.lookup([b"hash"]) == [None]
        await two.put(b"hash", b"two")
        assert (await got(one, b"hash", 3), await got(two, b"hash", 3)) == (b"one", b"two")
        with pytest.raises(WrongNamespace):
            one.lookup([Block(other, b"hash")])
    async with cache_of(pool, namespace=None) as paths:
        assert paths.lookup(["kvfs-blocks/model/r1/g0/" + b"hash".hex()]) == [3]
        with pytest.raises(BadKey, match="give open_cache one"):
            paths.lookup([b"hash"])


async def test_replacing_and_not_replacing(cache: Cache) -> None:
    await cache.put(b"hash", b"old")
    with pytest.raises(Exists):
        await cache.put(b"hash", b"new", replace=False)
    assert await got(cache, b"hash", 3) == b"old"
    await cache.put(b"hash", pattern(EXTENT))
    assert await got(cache, b"hash", EXTENT) == pattern(EXTENT)
    assert await cache.remove(b"hash")
    assert not await cache.remove(b"hash")
    assert cache.lookup([b"hash"]) == [None]
    assert cache.statistics().removed == 1


async def test_many_arrive_as_they_come_each_with_its_outcome(cache: Cache, pool: Pool) -> None:
    keys = [bytes([number]) for number in range(8)]
    for key in keys[:6]:
        await cache.put(key, pattern(EXTENT + 4096, key))
    small = await put(pool, b"small", 10)
    assert small.inline
    pairs = [(key, direct(EXTENT + 4096)) for key in keys] + [("small", direct(10))]
    async with cache.stream(pairs) as arrivals:
        found = [one async for one in arrivals]
    assert [one.index for one in found[:3]] == [6, 7, 8], "what needs no device comes first"
    assert sorted(one.index for one in found) == list(range(9))
    for one in found:
        assert one.key == pairs[one.index][0]
        if one.index < 6:
            assert pairs[one.index][1] == pattern(EXTENT + 4096, keys[one.index])
        elif one.index < 8:
            assert isinstance(one.error, NoObject)
            assert one.length == 0
    assert [one.length for one in await cache.get_many_into(pairs)] == [EXTENT + 4096] * 6 + [0, 0, 10]
    now = cache.statistics()
    assert (now.hits, now.misses, now.failed) == (14, 4, 0)


async def test_what_one_writer_puts_is_a_chain(cache: Cache, pool: Pool) -> None:
    async def write(keys: str) -> None:
        for key in keys:
            await cache.put(key, pattern(5000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, "abc")
        nursery.start_soon(write, "xyz")
    await cache.put("d", b"inline", writer=7)
    await cache.put("e", b"inline", writer=7)
    for key, before in (("b", "a"), ("c", "b"), ("y", "x"), ("z", "y"), ("e", "d")):
        record = pool.lookup(ROOT, key.encode())
        assert record is not None
        assert record.predecessor == xxh3_128_digest(before.encode())
    first = pool.lookup(ROOT, b"d")
    assert first is not None
    assert first.predecessor == bytes(16)


async def test_holes_are_zeros(cache: Cache, pool: Pool) -> None:
    await put_sparse(pool, b"sparse", 3 * EXTENT, {1: pattern(EXTENT)})
    into = direct(3 * EXTENT)
    into[:] = b"\xa5" * into.nbytes
    assert await cache.get_into("sparse", into) == 3 * EXTENT
    assert into == bytes(EXTENT) + pattern(EXTENT) + bytes(EXTENT)


async def test_what_the_dram_tier_has_is_not_read_again(cache: Cache, pool: Pool) -> None:
    await cache.put(b"hash", pattern(2 * EXTENT))
    assert await cache.prefetch([b"hash", b"missing"]) == 2
    await trio.testing.wait_all_tasks_blocked()
    reads = pool.statistics().reads.extents
    assert await got(cache, b"hash", 2 * EXTENT) == pattern(2 * EXTENT)
    assert pool.statistics().reads.extents == reads == 2


async def test_what_is_prefetched_lands_in_its_buffer(cache: Cache) -> None:
    await cache.put(b"hash", pattern(EXTENT))
    into = direct(EXTENT)
    async with cache.prefetch_into([(b"hash", into)]) as arrivals:
        [one] = [one async for one in arrivals]
    assert (one.length, one.error, into == pattern(EXTENT)) == (EXTENT, None, True)


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("memory", [direct, indirect])
async def test_damage_is_a_miss_and_never_bytes(
    cache: Cache, pool: Pool, bench: Bench, memory: Callable[[int], memoryview], expect_log: ExpectLog
) -> None:
    expect_log("damaged|other bytes|quarantin")
    record = await put(pool, b"x", EXTENT)
    other = await put(pool, b"y", EXTENT)
    await bench.damage(record.address.device, payload_at(pool, record.ref) + 64 * KIB)
    x, y = await cache.get_many_into([("x", memory(EXTENT)), ("y", memory(EXTENT))])
    assert isinstance(x.error, IntegrityError)
    assert (y.error, y.length) == (None, other.size)
    assert cache.lookup(["x", "y"]) == [None, EXTENT]
    assert cache.statistics().failed == 1


@pytest.mark.parametrize("memory, landing", [(direct, [False]), (indirect, [])])
async def test_a_device_that_does_not_answer_says_what_may_still_land(
    cache: Cache,
    pool: Pool,
    bench: Bench,
    memory: Callable[[int], memoryview],
    landing: list[bool],
    autojump_clock: trio.testing.MockClock,
) -> None:
    record = await put(pool, b"x", EXTENT)
    device = bench.devices[record.address.device]
    device.inject(Fault(delay=math.inf), operation=Operation.READ)
    into = memory(EXTENT)
    [one] = await cache.get_many_into([("x", into)])
    assert isinstance(one.error, DeviceTimeout)
    assert [pending.done for pending in one.pending] == landing
    device.release()
    await trio.testing.wait_all_tasks_blocked()
    assert all(pending.done for pending in one.pending)
    assert await cache.get_into("x", into) == EXTENT


@pytest.mark.parametrize("memory", [direct, indirect])
async def test_a_put_that_its_device_does_not_answer_stores_nothing(
    cache: Cache,
    bench: Bench,
    memory: Callable[[int], memoryview],
    autojump_clock: trio.testing.MockClock,
) -> None:
    for number in range(4):
        await cache.put(b"%d" % number, pattern(EXTENT))  # until there are regions for it
    for device in bench.devices:
        device.inject(Fault(delay=math.inf), operation=Operation.WRITE)
    for _ in bench.devices:  # one after the other
        with pytest.raises(DeviceTimeout):
            await cache.put(b"hash", memory(EXTENT))
    assert cache.lookup([b"hash"]) == [None]
    for device in bench.devices:
        device.release()
    await cache.put(b"hash", pattern(EXTENT))
    assert await got(cache, b"hash", EXTENT) == pattern(EXTENT)


async def test_a_damaged_list_of_extents_is_a_miss(cache: Cache, pool: Pool, bench: Bench) -> None:
    record = await put_sparse(pool, b"x", 200 * EXTENT, {7: b"part"})
    await bench.damage(record.extents[0].device, payload_at(pool, record.extents[0].ref))
    pool.reader._lists.clear()
    pool.reader._kept = 0
    [one] = await cache.get_many_into([("x", memoryview(bytearray(200 * EXTENT)))])
    assert isinstance(one.error, IntegrityError)


async def test_who_stops_waiting_gets_his_memory_back(cache: Cache, pool: Pool, bench: Bench) -> None:
    record = await put(pool, b"x", EXTENT)
    device = bench.devices[record.address.device]
    device.freeze()
    into = direct(EXTENT)
    left = trio.Event()

    async def engine() -> None:
        with scope:
            await cache.get_into("x", into)
        left.set()

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not left.is_set(), "the device still writes into his memory"
        device.thaw()
        await left.wait()
    into[:] = bytes(EXTENT)
    await trio.testing.wait_all_tasks_blocked()
    assert into == bytes(EXTENT)
    assert cache.statistics().stream.running == 0
    await pool.remove(record)  # nothing is pinned any more


async def test_what_comes_too_late_is_not_begun(cache: Cache, pool: Pool) -> None:
    await put(pool, b"x", EXTENT)
    with pytest.raises(TransferExpired):
        await cache.get_into("x", direct(EXTENT), deadline=trio.current_time() - 1)
    assert pool.statistics().reads.extents == 0


async def test_a_version_that_is_read_is_not_reused(
    cache: Cache, pool: Pool, bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    old = await put(pool, b"x", EXTENT)
    device = bench.devices[old.address.device]
    device.inject(Fault(delay=2.0), operation=Operation.READ)
    into = direct(EXTENT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.get_into, "x", into)
        await trio.testing.wait_all_tasks_blocked()
        await cache.put("x", b"new")
        for number in range(6):
            await put(pool, b"%d" % number, EXTENT)
    assert into == pattern(EXTENT, b"x")


async def test_a_pin_keeps_an_object_from_being_evicted(cache: Cache) -> None:
    await cache.put(b"kept", pattern(EXTENT))
    with cache.pin(b"kept") as pin:
        assert pin.size == EXTENT
        for number in range(60):
            await cache.put(b"other%d" % number, pattern(EXTENT))
        assert await got(cache, b"kept", EXTENT) == pattern(EXTENT)
    pin.close()
    for number in range(60):
        await cache.put(b"other%d" % number, pattern(EXTENT))
    assert cache.lookup([b"kept"]) == [None]
    with pytest.raises(NoObject, match="is not there"):
        cache.pin(b"kept")


async def test_a_hint_keeps_what_will_be_wanted(cache: Cache) -> None:
    await cache.put(b"hinted", pattern(EXTENT))
    await cache.put(b"cold", pattern(EXTENT))
    cache.hint([b"hinted", b"missing"])
    number = 0
    while None not in cache.lookup([b"hinted", b"cold"]):
        await cache.put(b"other%d" % number, pattern(EXTENT))
        number += 1
    assert cache.lookup([b"hinted", b"cold"]) == [EXTENT, None]


async def test_a_put_that_fails_stores_nothing_and_takes_no_room(
    cache: Cache, pool: Pool, bench: Bench
) -> None:
    await cache.put(b"hash", b"old")
    used = pool.totals().used
    with pytest.raises(NoSpace):
        await cache.put(b"hash", memoryview(bytes(100 * EXTENT)))
    for device in bench.devices:
        device.inject(Fault(errno=5), operation=Operation.WRITE, count=100)
    with pytest.raises(DeviceError):
        await cache.put(b"hash", pattern(2 * EXTENT))
    assert await got(cache, b"hash", 3) == b"old"
    assert (pool.totals().used, pool.totals().held) == (used, 0)


@pytest.mark.parametrize("memory", [direct, indirect])
async def test_a_put_that_a_device_does_not_take_goes_elsewhere(
    cache: Cache, pool: Pool, bench: Bench, memory: Callable[[int], memoryview], expect_log: ExpectLog
) -> None:
    expect_log("cannot be formatted|could not be freed")
    await cache.put("before", pattern(EXTENT))
    first = found(pool, b"before").extents[0].device
    bench.devices[first].inject(Fault(errno=28), operation=Operation.WRITE, count=1000)
    data = memory(EXTENT)
    for number in range(6):
        data[:] = pattern(EXTENT, number)
        await cache.put(str(number), data)
        assert found(pool, b"%d" % number).extents[0].device != first
        assert await got(cache, str(number), EXTENT) == pattern(EXTENT, number)
    assert await got(cache, "before", EXTENT) == pattern(EXTENT)


@pytest.mark.parametrize(
    "key, into, error, message",
    [
        ("x", bytearray(EXTENT - 1), BadBuffer, f"/x has {EXTENT} bytes, its buffer {EXTENT - 1}"),
        ("x", bytes(EXTENT), BadBuffer, "read-only"),
        ("x", memoryview(bytearray(2 * EXTENT))[::2], BadBuffer, "not in one piece"),
        ("x", 17, BadBuffer, "a int is not memory"),
        ("../x", bytearray(EXTENT), BadKey, "cannot be a name"),
        ("missing", bytearray(EXTENT), NoObject, "/missing is not there"),
    ],
)
async def test_a_bad_argument_is_found_before_anything_is_read(
    cache: Cache, pool: Pool, key: str, into, error: type[Exception], message: str
) -> None:
    record = await put(pool, b"x", EXTENT)
    with pytest.raises(error, match=message):
        await cache.get_into(key, into)
    if error is not NoObject:
        with pytest.raises(error, match=message):
            await cache.get_many_into([("x", direct(EXTENT)), (key, into)])
    assert pool.statistics().reads.extents == 0
    await pool.remove(record)  # nothing is pinned


async def test_a_file_is_no_directory(cache: Cache) -> None:
    await cache.put("a", b"file")
    with pytest.raises(BadKey, match="'a' is not a directory"):
        await cache.put("a/b", b"x")


async def test_a_closed_cache_says_so(cache: Cache) -> None:
    cache.close()
    for call in (
        lambda: cache.lookup([b"x"]),
        lambda: cache.pin(b"x"),
        lambda: cache.hint([b"x"]),
        lambda: cache.lease(4096),
    ):
        with pytest.raises(CacheClosed, match="is closed"):
            call()
    for work in (
        cache.get_into(b"x", bytearray()),
        cache.put(b"x", b""),
        cache.remove(b"x"),
        cache.prefetch([b"x"]),
    ):
        with pytest.raises(CacheClosed):
            await work


async def test_leased_memory_needs_no_copy(cache: Cache) -> None:
    await cache.put(b"hash", pattern(EXTENT))
    with cache.lease(EXTENT) as lease:
        assert await cache.get_into(b"hash", lease.view) == EXTENT
        assert lease.view == pattern(EXTENT)
        with pytest.raises(NoBuffers):
            cache.lease(LEASED)
    assert cache.statistics().bytes_copied == 0


# ── beside others ────────────────────────────────────────────────────────────────────────────────────────────


async def test_members_see_what_the_others_put(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    shared = await host(tmp_path)
    async with shared.pool() as one, shared.pool() as two, cache_of(one) as ours, cache_of(two) as theirs:
        await ours.put(b"hash", pattern(EXTENT))
        await trio.sleep(0.2)
        assert await got(theirs, b"hash", EXTENT) == pattern(EXTENT)
        await theirs.put(b"hash", b"theirs")
        await trio.sleep(0.2)
        assert await got(ours, b"hash", 6) == b"theirs"
        assert await ours.remove(b"hash")
        await trio.sleep(0.2)
        assert theirs.lookup([b"hash"]) == [None]


async def test_many_threads_of_an_engine_at_once(cache: Cache, pool: Pool) -> None:
    async def worker(number: int) -> None:
        key = b"%d" % number
        for size in (100, EXTENT, EXTENT + 5):
            await cache.put(key, pattern(size, number))
            assert await got(cache, key, size) == pattern(size, number)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(worker, number)
    for number in range(6):
        record = pool.lookup(_directory(pool), (b"%d" % number).hex().encode())
        assert record is not None
        assert await content(pool, record) == pattern(EXTENT + 5, number)


def _directory(pool: Pool) -> DirectoryId:
    directory = ROOT
    for name in (b"kvfs-blocks", b"model", b"r0", b"g0"):
        record = pool.lookup(directory, name)
        assert record is not None
        directory = DirectoryId(record.object_id)
    return directory
