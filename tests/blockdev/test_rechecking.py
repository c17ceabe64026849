"""Extents that are read again without being compared: when that is done, what it notices, and what it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from blockdev.device import Device
from blockdev.errors import DeviceError, Raced, Unavailable
from blockdev.memory import page_buffer
from blockdev.pool import Pool
from blockdev.rechecking import Compared, Rechecker
from blockdev.types import (
    KIB,
    PAGE,
    Descriptor,
    DeviceNo,
    ExtentRef,
    Generation,
    RegionNo,
    SlotNo,
    Xxh3,
)
from tests.blockdev.pools import EXTENT, Bench, made, pair_at, pattern, payload_at, put, put_sparse
from tests.conftest import ExpectLog


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


@dataclass
class Network:
    """What reads, into `into`.

    :ivar connection: of all devices
    :ivar meanwhile: what happens while a transfer is under way
    """

    pool: Pool
    connection: Hashable | None = "first"
    into: memoryview = field(default_factory=lambda: page_buffer(EXTENT))
    transfers: int = 0
    meanwhile: Callable[[], Awaitable[object]] = nothing

    def __post_init__(self) -> None:
        self.rechecker = Rechecker(self.pool.media, self.pool.reader, lambda _: self.connection)

    async def again(self, record: Descriptor, index: int = 0) -> bool:
        return await self.rechecker.read_extent(record, index, self._transfer)

    async def compare(self, record: Descriptor, size: int = EXTENT) -> None:
        await self.pool.read_extent(record, 0, page_buffer(size))

    async def _transfer(self, device: Device, offset: int) -> None:
        self.transfers += 1
        await device.read_into(offset, self.into)
        await self.meanwhile()


async def test_only_what_was_compared_is_read_without_comparing(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        before = await put(pool, b"before", EXTENT)
        await pool.read_extent(before, 0, page_buffer(EXTENT))
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)
        assert not await network.again(before), "nobody had asked for it to be noted"
        assert not await network.again(record)
        assert network.transfers == 0
        await network.compare(record)
        assert await network.again(record)
        assert network.into == pattern(EXTENT, b"x")
        assert (network.transfers, network.rechecker.extents) == (1, 1)


async def test_what_has_no_bytes_of_its_own_on_a_device(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        for record in (await put(pool, b"x", 100), await put_sparse(pool, b"y", EXTENT, {})):
            await network.compare(record)
            assert not await network.again(record)


async def test_another_connection_may_lead_to_other_bytes(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)
        await network.compare(record)
        for connection in ("second", None):
            network.connection = connection
            assert not await network.again(record)
        network.connection = "first"
        assert await network.again(record)

        async def connect_anew() -> None:
            await trio.lowlevel.checkpoint()
            network.connection = "third"

        network.meanwhile = connect_anew
        assert not await network.again(record), "nobody knows which of them the bytes came over"
        await network.compare(record)
        network.meanwhile = nothing
        assert await network.again(record)


async def test_what_was_compared_while_the_connection_changed_is_not_noted(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)

        def connect_anew(*_: object) -> None:
            network.connection = "second"

        bench.devices[0].on_operation = connect_anew
        await network.compare(record)
        assert not await network.again(record)
        await network.compare(record)
        assert await network.again(record)


async def test_what_was_removed_meanwhile_is_left_to_who_compares(tmp_path: Path) -> None:
    """Its slot may be another object's by now, or not yet."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)
        await network.compare(record)
        network.meanwhile = lambda: pool.remove(record)
        assert not await network.again(record)
        assert network.transfers == 1
        await network.compare(record)  # it was not reused yet


async def test_a_region_that_was_formatted_is_a_plain_miss(tmp_path: Path, autojump_clock: MockClock) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool, into=page_buffer(64 * KIB))
        records = [await put(pool, b"%d" % number, 60 * KIB) for number in range(100)]
        await network.compare(records[0], 64 * KIB)
        assert await network.again(records[0])
        await trio.sleep(1)
        for number in range(12):
            await put(pool, b"n%d" % number, EXTENT)
        with pytest.raises(Raced):
            await network.again(records[0])
        assert network.transfers == 1


async def test_a_region_without_a_fence_is_compared(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)
        await network.compare(record)
        headers = pool.media.devices[DeviceNo(0)].headers
        region = record.extents[0].region
        headers[region] = replace(headers[region], unproven=True)
        assert not await network.again(record)


async def test_a_descriptor_that_is_damaged_proves_nothing(tmp_path: Path) -> None:
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)
        await network.compare(record)
        network.meanwhile = lambda: bench.damage(0, pair_at(pool, record.ref), 2 * PAGE)
        assert not await network.again(record)


async def test_it_takes_from_earlier_that_the_bytes_are_right(tmp_path: Path) -> None:
    """What it is worth: bytes that rot on the device after they were compared reach whoever asked for this."""
    bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)
        await network.compare(record)
        await bench.damage(0, payload_at(pool, record.ref))
        assert await network.again(record)
        assert network.into != pattern(EXTENT, b"x")


async def test_a_device_that_fails_or_is_lost(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("device d0 is lost", count=1)
    bench: Bench = await made(tmp_path)
    async with bench.pool() as pool:
        network = Network(pool)
        record = await put(pool, b"x", EXTENT)
        await network.compare(record)
        bench.devices[0].lose()
        with pytest.raises(DeviceError):
            await network.again(record)
        with pytest.raises(Unavailable, match="d0 is lost"):
            await network.again(record)


def test_what_is_remembered_is_bounded() -> None:
    class Somewhere:
        pass

    device: Device = Somewhere()  # type: ignore[assignment]
    compared = Compared(lambda _: 1, limit=2)
    one, two, three = (
        ExtentRef(DeviceNo(0), RegionNo(0), SlotNo(n), Generation(1), Xxh3(0)) for n in range(3)
    )
    for ref in (one, two, one, three):
        compared.note(ref, 1, device)
    assert len(compared) == 2
    assert [compared.has(ref, device) for ref in (one, two, three)] == [True, False, True]
    assert not compared.has(one._replace(generation=Generation(2)), device)
    assert not compared.has(one._replace(xxh3=Xxh3(1)), device), "a head that names it, and other bytes"
