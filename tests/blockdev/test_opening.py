from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from blockdev import layout
from blockdev.catalog import Catalog, Trust
from blockdev.catalogs import catalog_folder
from blockdev.creating import CreateOptions, add_device, check_size, create_pool, erase, set_domain
from blockdev.errors import (
    BadSuperblock,
    DeviceError,
    DeviceLost,
    DeviceMismatch,
    NoSpace,
    ReadOnly,
    UnknownVersion,
    WrongDomain,
)
from blockdev.layout.page import seal, unseal
from blockdev.memory import page_buffer
from blockdev.opening import OpenOptions, open_pool
from blockdev.publication import NewObject
from blockdev.superblocks import read_superblock
from blockdev.testing import Fault, FaultyDevice, MemoryDevice, Operation
from blockdev.types import KIB, MIB, PAGE, ROOT, DeviceNo, SlotClass, Superblock
from tests.blockdev.pools import (
    DOMAIN,
    EXTENT,
    REGION,
    SUPERBLOCK_PAGES,
    Bench,
    content,
    header_at,
    made,
    page_at,
    pair_at,
    put,
    seen,
)
from tests.conftest import ExpectLog

OPTIONS = CreateOptions("test", DOMAIN, SlotClass.MIB2, REGION)
SIZE = MIB + 4 * REGION


async def page_of(device: FaultyDevice, offset: int) -> bytes:
    page = page_buffer(PAGE)
    await device.read_into(offset, page)
    return bytes(page)


async def write_page(device: FaultyDevice, offset: int, page: bytes) -> None:
    buffer = page_buffer(PAGE)
    buffer[:] = page
    await device.write_from(offset, buffer)


async def rewrite(device: FaultyDevice, change: Callable[[Superblock], Superblock]) -> None:
    """Write both pages of a device's superblock again, changed."""
    changed = change(await read_superblock(device))
    for sequence in (changed.sequence + 1, changed.sequence + 2):
        page = layout.encode_superblock(replace(changed, sequence=sequence))
        await write_page(device, layout.superblock_offset(sequence), page)


# ── creating ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_pool_is_empty_and_knows_itself(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.open() as opened:
        pool = opened.pool
        assert (pool.name, pool.extent_size, pool.readonly) == ("test", EXTENT, False)
        assert (opened.missing, opened.recovered.trust) == ((), Trust.STALE)
        assert [len(pool.superblock.devices), pool.statistics().objects] == [2, 0]
        assert pool.statistics().space.unused_regions == 8
        assert pool.lookup(ROOT, b"x") is None


async def test_a_pool_may_choose_its_regions_itself() -> None:
    device = MemoryDevice(512 * MIB)
    superblock = await create_pool([device], replace(OPTIONS, region_size=None, extent_class=SlotClass.MIB4))
    assert superblock.region_size == layout.default_region_size([512 * MIB], SlotClass.MIB4)


@pytest.mark.parametrize(
    "options",
    [
        replace(OPTIONS, extent_class=SlotClass.KIB64),
        replace(OPTIONS, region_size=MIB),
        replace(OPTIONS, region_size=2 * MIB),
        replace(OPTIONS, region_size=REGION + 512),
    ],
)
async def test_what_cannot_be_a_pool_is_refused(options: CreateOptions) -> None:
    device = MemoryDevice(SIZE)
    with pytest.raises(ValueError, match=r"extent|region"):
        await create_pool([device], options)


async def test_a_pool_has_at_least_one_device_and_a_limit() -> None:
    with pytest.raises(ValueError, match="1 to 128"):
        await create_pool([], OPTIONS)
    with pytest.raises(ValueError, match="1 to 128"):
        await create_pool([MemoryDevice(MIB)] * 129, OPTIONS)


async def test_a_small_device_is_refused_before_anything_is_written() -> None:
    devices = [FaultyDevice(size, Random(0)) for size in (SIZE, SIZE - PAGE)]
    with pytest.raises(NoSpace, match="33 MiB are needed"):
        await create_pool(devices, OPTIONS)
    assert not devices[0].operations
    with pytest.raises(NoSpace):
        check_size(devices[1], REGION)


async def test_a_drive_that_has_two_names_is_no_pool() -> None:
    """Two targets may offer the same drive, and nothing but what is written to it tells."""
    other, twice = MemoryDevice(8 * REGION, name="other"), MemoryDevice(8 * REGION, name="twice")
    devices = [twice, other, twice]
    with pytest.raises(DeviceMismatch, match="twice and twice are the same drive"):
        await create_pool(devices, CreateOptions("x", DOMAIN, SlotClass.MIB2, REGION))
    for device in devices:
        with pytest.raises(BadSuperblock):
            await read_superblock(device)


async def test_whatever_a_device_held_is_gone(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await put(pool, b"x")
    bench.devices = [device.reopen() for device in bench.devices]
    await create_pool(bench.devices, OPTIONS)
    async with bench.pool() as pool:
        assert pool.lookup(ROOT, b"x") is None


@pytest.mark.parametrize("written", range(8))
async def test_creating_that_is_cut_off_leaves_no_half_pool(tmp_path: Path, written: int) -> None:
    """Two pages of superblock are erased first and written last."""
    bench = await made(tmp_path)
    device = bench.devices[0].reopen()
    device.inject(Fault(errno.EIO), operation=Operation.WRITE, skip=written, count=1000)
    with pytest.raises(DeviceError):
        await create_pool([device], replace(OPTIONS, name="new"))
    bench.devices = [device]
    try:
        async with bench.pool() as pool:
            assert pool.name == ("test" if written < 2 else "new")
    except BadSuperblock:
        return
    assert not 2 <= written < 6


# ── superblocks ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", [0, 1])
async def test_a_damaged_superblock_page_is_made_good_by_the_other(tmp_path: Path, page: int) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await put(pool, b"x")
    await bench.damage(0, SUPERBLOCK_PAGES[page])
    async with bench.pool() as pool:
        assert await seen(pool, b"x") is not None
    async with bench.pool():
        pass  # the pages are written in turn: by now both are good again
    await bench.damage(0, SUPERBLOCK_PAGES[1 - page])
    async with bench.pool() as pool:
        assert await seen(pool, b"x") is not None


async def test_a_superblock_with_both_pages_damaged_is_none(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    for offset in SUPERBLOCK_PAGES:
        await bench.damage(0, offset)
    with pytest.raises(BadSuperblock, match="d0: no valid superblock"):
        async with bench.open():
            pass


async def test_a_device_that_is_too_small_has_no_superblock() -> None:
    with pytest.raises(BadSuperblock, match="too small"):
        await read_superblock(MemoryDevice(512 * KIB))


async def test_a_newer_version_is_refused_though_the_other_page_is_ours(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    device = bench.devices[0]
    found = unseal(layout.SUPERBLOCK_MAGIC, layout.SUPERBLOCK_VERSION, None, await page_of(device, 0))
    assert found is not None
    newer = seal(layout.SUPERBLOCK_MAGIC, layout.SUPERBLOCK_VERSION + 1, *found)
    await write_page(device, 0, newer)
    with pytest.raises(UnknownVersion, match=r"d0: .* version 2"):
        async with bench.open():
            pass


async def test_another_domain_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    device = bench.devices[0].reopen()
    with pytest.raises(WrongDomain, match=f"coordinated by {DOMAIN}, this host's domain is local:else"):
        async with open_pool([device], tmp_path / "other", OpenOptions("local:else")):
            pass
    assert device.operations[Operation.WRITE] == 0
    assert not (tmp_path / "other").exists()
    bench.devices = [device]
    async with bench.open():
        pass


async def test_taking_over_a_pool(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    bench.devices = [device.reopen() for device in bench.devices]
    await set_domain(bench.devices, "local:else")
    with pytest.raises(WrongDomain):
        async with bench.open():
            pass
    async with open_pool([d.reopen() for d in bench.devices], tmp_path, OpenOptions("local:else")) as opened:
        assert opened.pool.superblock.domain == "local:else"


@pytest.mark.parametrize("order", [1, -1])
async def test_a_pool_half_taken_over_is_nobodys(tmp_path: Path, order: int) -> None:
    bench = await made(tmp_path, devices=2)
    await set_domain(bench.devices[:1], "local:else")
    bench.devices = bench.devices[::order]
    for domain in (DOMAIN, "local:else"):
        with pytest.raises(WrongDomain):
            async with open_pool([d.reopen() for d in bench.devices], tmp_path, OpenOptions(domain)):
                pass


async def test_erasing_makes_a_device_no_device_of_a_pool(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    await erase(bench.devices[0])
    with pytest.raises(BadSuperblock):
        await read_superblock(bench.devices[0])


# ── which devices ────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_order_of_the_devices_does_not_matter(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=3)
    async with bench.pool() as pool:
        data = await content(pool, await put(pool, b"x", 5 * MIB))
    bench.devices = bench.devices[::-1]
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CURRENT
        assert await seen(opened.pool, b"x") == data


async def test_devices_of_two_pools_are_refused(tmp_path: Path) -> None:
    one, two = await made(tmp_path), await made(tmp_path)
    one.devices += two.devices
    with pytest.raises(DeviceMismatch, match="another pool"):
        async with one.open():
            pass


async def test_a_device_given_twice_is_refused(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    bench.devices.append(bench.devices[0].reopen())
    bench.devices[0] = bench.devices[1]
    with pytest.raises(DeviceMismatch, match="same device"):
        async with bench.open():
            pass


async def test_no_devices_are_no_pool(tmp_path: Path) -> None:
    with pytest.raises(DeviceMismatch, match="no device"):
        async with Bench(tmp_path, []).open():
            pass


async def test_a_device_that_has_shrunk_is_refused(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    small = FaultyDevice(SIZE - PAGE, Random(0), name="d0")
    for offset in SUPERBLOCK_PAGES:
        await write_page(small, offset, await page_of(bench.devices[0], offset))
    bench.devices = [small]
    with pytest.raises(DeviceMismatch, match="has shrunk"):
        async with bench.open():
            pass


async def test_a_device_that_has_grown_is_used_as_far_as_recorded(tmp_path: Path) -> None:
    device = FaultyDevice(SIZE + 5 * REGION, Random(0))
    await create_pool([device], OPTIONS)
    await rewrite(device, lambda s: replace(s, devices=(s.devices[0]._replace(size=SIZE),)))
    async with Bench(tmp_path, [device]).pool() as pool:
        assert pool.statistics().space.unused_regions == 4


async def test_devices_that_were_mixed_up_are_refused(tmp_path: Path) -> None:
    """Same pool, other regions: only somebody who writes superblocks by hand gets there."""
    bench = await made(tmp_path, devices=2)
    await rewrite(bench.devices[1], lambda s: replace(s, region_size=REGION // 2))
    with pytest.raises(DeviceMismatch, match="d1 does not agree"):
        async with bench.open():
            pass


async def test_an_error_of_a_device_closes_all_of_them(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    devices = [device.reopen() for device in bench.devices]
    devices[1].inject(Fault(errno.EIO), operation=Operation.READ)
    with pytest.raises(DeviceError):
        async with open_pool(devices, tmp_path, OpenOptions(DOMAIN)):
            pass
    for device in devices:
        with pytest.raises(DeviceError):
            await device.flush()


# ── a missing device ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("forget", [False, True])
async def test_without_a_device_its_objects_are_misses_and_come_back(tmp_path: Path, *, forget: bool) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        data = {
            name: await content(pool, await put(pool, name, 300 * KIB)) for name in (b"a", b"b", b"c", b"d")
        }
        big = await content(pool, await put(pool, b"big", 3 * MIB))
        where = {name: pool.lookup(ROOT, name).address.device for name in data}  # type: ignore[union-attr]
    assert set(where.values()) == {0, 1}
    bench.absent = {1}
    if forget:
        Catalog.open(catalog_folder(tmp_path, 0), UUID(int=0)).close(clean=False)  # of another pool: emptied
    async with bench.open() as opened:
        pool = opened.pool
        assert opened.missing == (1,)
        assert pool.statistics().unreachable_devices == (1,)
        for name, device in where.items():
            assert await seen(pool, name) == (data[name] if device == 0 else None)
        assert await seen(pool, b"big") is None, "half of it is missing"
        listed = {record.name for record in pool.children(ROOT)}
        assert listed == {name for name, device in where.items() if device == 0}
    bench.absent = set()
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.STALE, "what happened without the device is compared with it"
        assert {name: await seen(opened.pool, name) for name in data} == data
        assert await seen(opened.pool, b"big") == big


async def test_names_on_a_missing_device_can_be_stored_again(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        names = [await put(pool, b"%d" % number, 300 * KIB) for number in range(4)]
        (there, gone) = (next(r.name for r in names if r.address.device == d) for d in (0, 1))
    bench.absent = {1}
    bench.now += 1000
    async with bench.pool() as pool:
        new = await content(pool, await put(pool, gone, 400 * KIB, replace=False))
        assert await seen(pool, gone) == new
    for _ in range(2):
        bench.absent = set()
        async with bench.pool() as pool:
            assert await seen(pool, gone) == new
            assert await seen(pool, there) is not None


async def test_a_device_that_comes_and_goes_again_keeps_its_objects(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % number, 300 * KIB) for number in range(4)]
    for absent in ({0}, {1}, {0}, set()):
        bench.absent = absent
        async with bench.pool() as pool:
            for record in records:
                assert (pool.lookup(ROOT, record.name) is None) == (record.address.device in absent)


# ── adding a device ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_device_is_added(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        data = await content(pool, await put(pool, b"x", 5 * MIB))
    bench.devices = [device.reopen() for device in bench.devices]
    new = FaultyDevice(SIZE, Random(1), name="new")
    superblock = await add_device(bench.devices, new)
    assert (superblock.device_no, len(superblock.devices)) == (1, 2)
    bench.devices.append(new)
    async with bench.open() as opened:
        assert opened.missing == ()
        assert opened.pool.statistics().space.unused_regions == 7
        assert await seen(opened.pool, b"x") == data
        records = [await put(opened.pool, b"%d" % n, 300 * KIB) for n in range(2)]
        assert {record.address.device for record in records} == {0, 1}


async def test_a_device_is_added_only_if_all_others_are_there(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    new = FaultyDevice(SIZE, Random(1))
    with pytest.raises(DeviceMismatch, match="all others"):
        await add_device(bench.devices[:1], new)
    with pytest.raises(NoSpace):
        await add_device(bench.devices, FaultyDevice(SIZE - PAGE, Random(1)))
    assert not new.operations


async def test_a_device_that_comes_back_learns_of_those_added_meanwhile(tmp_path: Path) -> None:
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        data = {n: await content(pool, await put(pool, b"%d" % n, 300 * KIB)) for n in range(4)}
    bench.devices = [device.reopen() for device in bench.devices]
    new = FaultyDevice(SIZE, Random(1), name="new")
    superblock = await add_device(bench.devices[:1], new, degraded=True)
    assert (superblock.device_no, len(superblock.devices)) == (2, 3)
    bench.devices.append(new)
    async with bench.open() as opened:
        assert opened.missing == ()
        assert {n: await seen(opened.pool, b"%d" % n) for n in range(4)} == data
    other = FaultyDevice(SIZE, Random(2), name="other")
    alone = bench.devices[1].reopen()
    await rewrite(alone, lambda s: replace(s, devices=s.devices[:2]))
    await add_device([alone], other, degraded=True)
    bench.devices[1] = alone
    with pytest.raises(DeviceMismatch, match="does not agree"):
        async with bench.open():
            pass


async def test_a_pool_does_not_grow_beyond_its_limit(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    device = bench.devices[0]
    table = (await read_superblock(device)).devices
    full = (*table, *(table[0]._replace(uuid=UUID(int=number)) for number in range(127)))
    await rewrite(device, lambda s: replace(s, devices=full))
    with pytest.raises(DeviceMismatch, match="all others"):
        await add_device([device], FaultyDevice(SIZE, Random(1)))
    devices = [device]
    for number in range(1, 128):
        twin = FaultyDevice(SIZE, Random(1), name=f"twin{number}")
        page = layout.encode_superblock(
            replace(
                await read_superblock(device),
                device=full[number].uuid,
                device_no=DeviceNo(number),
                sequence=2,
            )
        )
        await write_page(twin, 0, page)
        devices.append(twin)
    with pytest.raises(ValueError, match="at most 128"):
        await add_device(devices, FaultyDevice(SIZE, Random(1)))


async def cut_off(old: list[FaultyDevice], new: FaultyDevice, writes: int) -> list[FaultyDevice]:
    """What is found if the process ends after so many writes while `new` is added; nothing if it was added by then."""
    found: list[FaultyDevice] = []
    remaining = writes

    def count(operation: Operation, *_: int) -> None:
        nonlocal remaining
        remaining -= operation is Operation.WRITE
        if remaining < 0 and not found:
            found.extend(device.crash("kill") for device in [*old, new])

    for device in [*old, new]:
        device.on_operation = count
    with suppress(DeviceLost):
        await add_device(old, new)
    return found


async def test_adding_that_is_cut_off_can_be_done_again_or_has_been_done(tmp_path: Path) -> None:
    """A crash at each write: the pool is whole with the new device, or as it was without it."""
    bench = await made(tmp_path / "a", devices=2)
    async with bench.pool() as pool:
        data = await content(pool, await put(pool, b"x", 5 * MIB))
    base = [device.reopen() for device in bench.devices]
    writes = 0
    while found := await cut_off(
        [device.reopen() for device in base], FaultyDevice(SIZE, Random(writes)), writes
    ):
        known = max([len((await read_superblock(device)).devices) for device in found[:2]])
        async with Bench(tmp_path / f"after-{writes}", found[:known]).open() as opened:
            assert opened.missing == ()
            assert await seen(opened.pool, b"x") == data
        if known == 2:
            again = FaultyDevice(SIZE, Random(1), name="again")
            assert (await add_device([device.reopen() for device in found[:2]], again)).device_no == 2
        writes += 1
    assert writes > 6


async def test_a_device_whose_number_went_to_another_is_refused(tmp_path: Path) -> None:
    """Adding it was cut off before the others knew; then another one was added in its place."""
    bench = await made(tmp_path)
    device = bench.devices[0]
    before = device.reopen()
    forgotten = FaultyDevice(SIZE, Random(1), name="forgotten")
    await add_device([before], forgotten)
    await rewrite(before, lambda s: replace(s, devices=s.devices[:1]))
    bench.devices = [before.reopen()]
    new = FaultyDevice(SIZE, Random(2), name="new")
    await add_device(bench.devices, new)
    for devices in ([*bench.devices, new, forgotten], [forgotten, *bench.devices, new]):
        with pytest.raises(DeviceMismatch, match=r"does not agree|same device"):
            async with open_pool([d.reopen() for d in devices], tmp_path, OpenOptions(DOMAIN)):
                pass


# ── damaged records ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", [0, 1])
async def test_a_damaged_page_of_a_region_header_is_repaired(
    tmp_path: Path, expect_log: ExpectLog, page: int
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        at = header_at(pool, record.ref)
    await bench.damage(0, at + page * PAGE)
    expect_log("one page of the header of region . was damaged: repaired", count=2)
    for _ in range(2):
        async with bench.pool() as pool:
            assert await seen(pool, b"x") is not None
    await bench.damage(0, at + (1 - page) * PAGE)
    async with bench.pool() as pool:
        assert await seen(pool, b"x") is not None


async def test_reading_repairs_nothing(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        at = header_at(pool, (await put(pool, b"x", 300 * KIB)).ref)
    await bench.damage(0, at)
    async with bench.pool(readonly=True) as pool:
        assert await seen(pool, b"x") is not None
        assert bench.devices[0].operations[Operation.WRITE] == 0


@pytest.mark.parametrize("current", [True, False])
async def test_a_damaged_page_of_a_descriptor_costs_one_object_at_most(
    tmp_path: Path, *, current: bool
) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        other = await put(pool, b"y", 300 * KIB)
        at = (
            page_at(pool, record) if current else pair_at(pool, record.ref) + (1 - record.sequence % 2) * PAGE
        )
    await bench.damage(0, at)
    bench.boot += 1
    Catalog.open(catalog_folder(tmp_path, 0), UUID(int=0)).close(clean=False)
    async with bench.pool() as pool:
        assert (await seen(pool, b"x") is None) == current
        assert await seen(pool, other.name) is not None
        data = await content(pool, await put(pool, b"x", 400 * KIB))
    async with bench.pool() as pool:
        assert await seen(pool, b"x") == data


async def test_a_slot_with_both_pages_damaged_is_not_used(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        at = pair_at(pool, record.ref)
    await bench.damage(0, at, 2 * PAGE)
    Catalog.open(catalog_folder(tmp_path, 0), UUID(int=0)).close(clean=False)
    async with bench.pool() as pool:
        assert await seen(pool, b"x") is None
        assert pool.statistics().space.bad == 512 * KIB
        assert (await put(pool, b"x", 300 * KIB)).address != record.address


# ── the catalogue ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pool_closed_clean_is_not_scanned(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        await put(pool, b"x", 300 * KIB)
    bench.boot += 1
    async with bench.open() as opened:
        assert (opened.recovered.trust, opened.recovered.chunks) == (Trust.CURRENT, 0)
        assert await seen(opened.pool, b"x") is not None


async def test_another_catalogue_in_between_makes_ours_stale(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        await put(pool, b"x", 300 * KIB)
    bench.folder = tmp_path / "b"
    async with bench.pool() as pool:
        await pool.remove(await put(pool, b"y", 300 * KIB))
        data = await content(pool, await put(pool, b"x", 400 * KIB))
    bench.folder = tmp_path / "a"
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.STALE
        assert await seen(opened.pool, b"x") == data
        assert await seen(opened.pool, b"y") is None


async def test_a_catalogue_that_contradicts_the_media_is_built_again(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("contradicts the media")
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        await put(pool, b"y", 300 * KIB)
        pool.catalog.put(replace(record, name=b"twin", object_id=b"t" * 16))  # type: ignore[arg-type]
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.STALE
        assert await seen(opened.pool, b"twin") is None
        assert await seen(opened.pool, b"x") is not None


async def test_a_catalogue_with_a_damaged_page_is_built_again(tmp_path: Path, expect_log: ExpectLog) -> None:
    """LMDB has no checksums: it finds the damage at once, or where it walks."""
    expect_log("the catalogue is damaged .*: it is built again from the media")
    for page in range(2, 12):
        bench = await made(tmp_path / f"{page}")
        async with bench.pool() as pool:
            data = {b"%d" % n: await content(pool, await put(pool, b"%d" % n, n * 100)) for n in range(60)}
        with (catalog_folder(bench.folder, 0) / "data.mdb").open("r+b") as file:
            file.seek(page * PAGE)
            file.write(Random(page).randbytes(PAGE))
        async with bench.pool() as pool:
            assert {record.name: await seen(pool, record.name) for record in pool.children(ROOT)} == data


async def test_after_a_rebuild_a_crash_loses_nothing(tmp_path: Path, expect_log: ExpectLog) -> None:
    """What was dirty before the catalogue was emptied is not taken for dirty afterwards."""
    expect_log("contradicts the media")
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
    async with bench.pool() as pool:
        pool.catalog.put(replace(record, name=b"twin", object_id=b"t" * 16))  # type: ignore[arg-type]
        await put(pool, b"small")
        copy(tmp_path / "a", tmp_path / "b")
    bench.folder = tmp_path / "b"
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.STALE
        await put(opened.pool, b"y")
        copy(tmp_path / "b", tmp_path / "c")
    bench.folder = tmp_path / "c"
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CRASHED
        assert await seen(opened.pool, b"y") is not None


def copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


async def test_a_failing_flush_at_the_end_loses_the_device_and_nothing_else(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("d1 is lost")
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % number, 300 * KIB) for number in range(4)]
        bench.devices[1].inject(Fault(errno.EIO), operation=Operation.FLUSH)
    bench.absent = {1}
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.CURRENT
        for record in records:
            assert (await seen(opened.pool, record.name) is None) == (record.address.device == 1)
    bench.absent = set()
    async with bench.open() as opened:
        assert opened.recovered.trust is Trust.STALE
        for record in records:
            assert await seen(opened.pool, record.name) is not None


# ── reading only ─────────────────────────────────────────────────────────────────────────────────────────────


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock.mdb"]


async def test_a_pool_opened_for_reading_writes_nothing(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
    before = {file: file.read_bytes() for file in files_in(tmp_path)}
    async with bench.pool(readonly=True) as pool:
        assert await seen(pool, b"x") is not None
        new = NewObject(ROOT, b"y", 0o100644, 0, 0, 0, 1, inline=b"y")
        with pytest.raises(ReadOnly, match="opened for reading"):
            await pool.publish(new)
        with pytest.raises(ReadOnly):
            await pool.reserve(1)
        with pytest.raises(ReadOnly):
            await pool.rename(record, ROOT, b"y")
        with pytest.raises(ReadOnly):
            await pool.update(record, mode=0o100600)
        with pytest.raises(ReadOnly):
            await pool.update_root(0o700, 0, 0)
        with pytest.raises(ReadOnly):
            await pool.remove(record)
        with pytest.raises(ReadOnly):
            await pool.make_directory(ROOT, b"d", 0o700, 0, 0)
        with pytest.raises(ReadOnly):
            await pool.make_symlink(ROOT, b"l", b"x", 0, 0)
        operations = bench.devices[0].operations
        assert (
            operations[Operation.WRITE] == operations[Operation.FLUSH] == operations[Operation.DISCARD] == 0
        )
    after = {file: file.read_bytes() for file in files_in(tmp_path)}
    assert before == after


async def test_reading_without_a_catalogue_looks_at_the_media(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        await put(pool, b"x", 300 * KIB)
        await pool.remove(await put(pool, b"y", 300 * KIB))
    bench.folder = tmp_path / "b"
    async with bench.open(readonly=True) as opened:
        assert opened.recovered.trust is Trust.STALE
        assert await seen(opened.pool, b"x") is not None
        assert await seen(opened.pool, b"y") is None
        assert bench.devices[0].operations[Operation.WRITE] == 0
    assert not bench.folder.exists()


async def test_reading_beside_a_member_believes_its_catalogue(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        record = await put(pool, b"x", 300 * KIB)
        pool.catalog.commit()
        mirror = FaultyDevice(bench.devices[0].size, Random(0))
        mirror._view = bench.devices[0]._view.copy()
        options = OpenOptions(DOMAIN, readonly=True, boot_id="boot-0")
        async with open_pool([mirror], tmp_path, options) as opened:
            assert opened.recovered.trust is Trust.CURRENT
            assert await seen(opened.pool, b"x") is not None
            await pool.remove(record)
            pool.catalog.commit()
            assert await seen(opened.pool, b"x") is None


async def test_reading_what_a_killed_member_left_looks_at_the_media(tmp_path: Path) -> None:
    bench = await made(tmp_path / "a")
    async with bench.pool() as pool:
        await put(pool, b"x", 300 * KIB)
        pool.catalog.commit()
        copy(tmp_path / "a", tmp_path / "b")
    bench.folder = tmp_path / "b"
    async with bench.open(readonly=True) as opened:
        assert opened.recovered.trust is Trust.STALE
        assert await seen(opened.pool, b"x") is not None


# ── devices that fail while the pool is opened ───────────────────────────────────────────────────────────────


async def test_a_device_that_is_lost_while_the_pool_is_opened_is_not_used(
    tmp_path: Path, expect_log: ExpectLog
) -> None:
    expect_log("device d1 is lost", count=1)
    bench = await made(tmp_path, devices=2)
    async with bench.pool() as pool:
        records = [await put(pool, b"%d" % number, 300 * KIB) for number in range(4)]
        await pool.remove(records[3])
        at = pair_at(pool, records[1].ref)
    shutil.rmtree(tmp_path)

    def lose(devices: list[FaultyDevice]) -> None:
        def count(operation: Operation, offset: int, length: int) -> None:
            if operation is Operation.READ and offset <= at < offset + length:
                devices[1].lose()

        devices[1].on_operation = count

    bench.prepare = lose
    async with bench.pool() as pool:
        assert pool.statistics().unreachable_devices == (1,)
        for number in range(6):
            assert (await put(pool, b"n%d" % number, 300 * KIB)).address.device == 0
        assert pool.lookup(ROOT, b"1") is None
