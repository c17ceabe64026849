"""Devices of an open pool that go away and come back, seen through a network in a folder."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
import trio
from xxhash import xxh3_64_intdigest

from blockdev.errors import DeviceError, DeviceGivenUp, DeviceTimeout
from blockdev.memory import page_buffer
from blockdev.nvme import Portal, Transport
from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.testing.nvme import FakeFabric
from blockdev.types import MIB, ROOT, DeviceNo, ExtentRef, RegionId, RegionNo, Xxh3
from kvfs import targets, watch
from kvfs.assemble import writing
from kvfs.report import devices_of
from kvfs.watch import Watch
from tests.conftest import ExpectLog
from tests.kvfs.conftest import SIZE, Kvfs, Result
from tests.kvfs.fabrics import BOTH, FIRST, NQN, SECOND, drives, host_of

SECONDS = 20
ELSEWHERE = Portal(Transport.TCP, "203.0.113.7", "4420")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeFabric:
    network = FakeFabric(tmp_path / "host")
    network.serve(NQN, FIRST, SECOND, namespaces=drives(tmp_path, 2))
    monkeypatch.setattr(targets, "fabric", lambda: host_of(network))
    monkeypatch.setattr(watch, "INTERVAL", 0.01)
    monkeypatch.setattr(watch, "RETRY", 0.01)
    return network


@asynccontextmanager
async def watched(kvfs: Kvfs) -> AsyncIterator[Pool]:
    """The pool `hot`, open and watched."""
    async with writing(kvfs.state.folder("hot"), "testing") as opened, trio.open_nursery() as nursery:
        nursery.start_soon(Watch(opened.pool, opened.returning, opened.config, opened.opener).run)
        yield opened.pool
        nursery.cancel_scope.cancel()


async def ok(kvfs: Kvfs, *arguments: str | Path) -> Result:
    """A command that must succeed; it has an event loop of its own, and so takes a thread of its own."""
    return await trio.to_thread.run_sync(kvfs.ok, *arguments)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(SECONDS):
        while not condition():  # noqa: ASYNC110 - it is about what others change
            await trio.sleep(0.01)


def states(pool: Pool) -> list[str]:
    return [str(device["state"]) for device in devices_of(pool)]


async def put(pool: Pool, name: bytes) -> bytes:
    data = Random(name).randbytes(MIB)
    ref = await pool.reserve(len(data))
    buffer = page_buffer(len(data))
    buffer[:] = data
    await pool.write(ref, buffer)
    extents = (ExtentRef(*ref, Xxh3(xxh3_64_intdigest(data))),)
    await pool.publish(NewObject(ROOT, name, 0o100644, 0, 0, 0, len(data), extents))
    return data


async def contents(pool: Pool) -> dict[bytes, bytes]:
    buffer = page_buffer(2 * MIB)
    found = {}
    for record in pool.children(ROOT):
        length = await pool.read_extent(record, 0, buffer)
        found[record.name] = bytes(buffer[:length])
    return found


def lost(number: int) -> Callable[[Pool], bool]:
    return lambda pool: not pool.media.available(DeviceNo(number))


async def test_a_target_that_vanishes_and_comes_back(
    kvfs: Kvfs, fake: FakeFabric, tmp_path: Path, expect_log: ExpectLog
) -> None:
    await ok(
        kvfs, "pool", "create", "hot", f"{BOTH}/1", tmp_path / "plain",
        "--size", str(SIZE), "--extent-size", "2MiB",
    )  # fmt: skip
    expect_log("is lost:", count=1)
    expect_log(r"device \S+ is back$", count=1)
    async with watched(kvfs) as pool:
        data = {b"%d" % n: await put(pool, b"%d" % n) for n in range(6)}
        assert states(pool) == ["live", "live"]
        fake.set_state(FIRST, "connecting")
        await trio.sleep(0.1)  # several looks: one way is enough
        assert states(pool) == ["live", "live"]
        fake.set_state(SECOND, "connecting")
        await until(lambda: lost(0)(pool))
        assert states(pool) == ["connecting", "live"]
        assert 0 < len(await contents(pool)) < 6
        data[b"new"] = await put(pool, b"new")
        fake.set_state(SECOND, "live")
        await until(lambda: states(pool) == ["live", "live"])
        assert await contents(pool) == data


async def test_a_namespace_that_is_removed_and_made_again_under_another_name(
    kvfs: Kvfs, fake: FakeFabric, expect_log: ExpectLog
) -> None:
    await ok(kvfs, "target", "connect", BOTH)
    uris = [row[0] for row in (await ok(kvfs, "target", "list", "-H", "-o", "uri")).rows]
    await ok(kvfs, "pool", "create", "hot", *uris, "--extent-size", "2MiB")
    expect_log("is lost:", count=1)
    expect_log(r"device \S+ is back$", count=1)
    async with watched(kvfs) as pool:
        data = {b"%d" % n: await put(pool, b"%d" % n) for n in range(6)}
        namespaces = fake.subsystems[0].namespaces
        gone = namespaces.pop(2)
        fake.refresh()
        await until(lambda: lost(1)(pool))
        assert states(pool) == ["live", "lost"]
        namespaces[7] = gone
        fake.refresh()
        await until(lambda: not lost(1)(pool))
        assert pool.media.devices[DeviceNo(1)].device.name.endswith("n7")
        assert await contents(pool) == data


async def test_a_target_that_forgets_us_is_connected_again(
    kvfs: Kvfs, fake: FakeFabric, expect_log: ExpectLog
) -> None:
    await ok(kvfs, "pool", "create", "hot", f"{BOTH}/1", f"{BOTH}/2", "--extent-size", "2MiB")
    expect_log("is lost:", count=2)
    expect_log(r"device \S+ is back$", count=2)
    async with watched(kvfs) as pool:
        data = {b"%d" % n: await put(pool, b"%d" % n) for n in range(4)}
        fake.down |= {FIRST, SECOND}
        await host_of(fake).cli.disconnect(NQN)
        await until(lambda: states(pool) == ["lost", "lost"])
        assert await contents(pool) == {}
        fake.down.clear()
        await until(lambda: states(pool) == ["live", "live"])
        assert await contents(pool) == data


async def test_a_file_that_was_lost_is_tried_again(
    kvfs: Kvfs, fake: FakeFabric, expect_log: ExpectLog
) -> None:
    paths = await trio.to_thread.run_sync(kvfs.make_pool)
    expect_log("is lost:", count=1)
    expect_log(r"device \S+ is back$", count=1)
    async with watched(kvfs) as pool:
        data = {b"%d" % n: await put(pool, b"%d" % n) for n in range(4)}
        paths[1].rename(kvfs.device("elsewhere"))
        pool.media.mark_lost(DeviceNo(1))
        await trio.sleep(0.1)  # it is looked for in vain
        assert states(pool) == ["live", "lost"]
        kvfs.device("elsewhere").rename(paths[1])
        await until(lambda: states(pool) == ["live", "live"])
        assert await contents(pool) == data


@pytest.mark.parametrize("answer", ["none in time", "an error"])
async def test_one_that_does_not_answer_is_lost_until_it_does(
    kvfs: Kvfs, expect_log: ExpectLog, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """A single operation that was waited for is enough; one that failed is not, while nothing is known of the device."""
    await trio.to_thread.run_sync(kvfs.make_pool)
    late = answer == "none in time"
    if late:
        expect_log("is lost:", count=1)
        expect_log(r"device \S+ is back$", count=1)
    async with watched(kvfs) as pool:
        data = {b"%d" % n: await put(pool, b"%d" % n) for n in range(4)}
        device = pool.media.devices[DeviceNo(1)].device
        error = DeviceTimeout(device.name, errno.ETIMEDOUT, "no answer", None)

        async def fail(offset: int, buffer: memoryview) -> None:
            await trio.lowlevel.checkpoint()
            raise error if late else DeviceError(device.name, errno.EIO, "broken")

        with monkeypatch.context() as context:
            context.setattr(device, "read_into", fail)
            with pytest.raises(DeviceGivenUp if late else DeviceError):
                await pool.media.reload_header(RegionId(DeviceNo(1), RegionNo(0)))
        assert states(pool) == ["live", "lost" if late else "live"]
        await until(lambda: states(pool) == ["live", "live"])
        assert await contents(pool) == data


async def test_who_is_behind_the_address_of_one_that_does_not_answer_must_answer_at_once(
    kvfs: Kvfs, fake: FakeFabric, expect_log: ExpectLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four namespaces, three at one address: one was waited for in vain, one answers, one does not."""
    (folder := tmp_path / "more").mkdir()
    fake.subsystems[0].namespaces |= {3: (UUID(int=3), folder / "drive0")}
    fake.serve(f"{NQN}2", ELSEWHERE, namespaces=drives(folder, 2)[1:])
    uris = (*(f"{BOTH}/{number}" for number in (1, 2, 3)), f"nvme+tcp://{ELSEWHERE.address}/{NQN}2/1")
    await ok(kvfs, "pool", "create", "hot", *uris, "--extent-size", "2MiB")
    expect_log(r"is lost:|device \S+ is back$|cannot be formatted")  # the last may be under way at any time
    async with watched(kvfs) as pool:
        data = {b"one": await put(pool, b"one")}
        is_lost = {number: trio.Event() for number in pool.media.devices}
        pool.media.on_lost.append(lambda number: is_lost[number].set())
        with monkeypatch.context() as context:
            for number, attached in pool.media.devices.items():
                if number != 1:
                    context.setattr(attached.device, "read_into", partial(hang, is_lost[number]))
            name = pool.media.devices[DeviceNo(0)].device.name
            pool.media.on_failure[0](DeviceNo(0), DeviceTimeout(name, errno.ETIMEDOUT, "no answer", None))
            await until(is_lost[DeviceNo(2)].is_set)
            await until(lambda: states(pool) == ["live"] * 4)
        assert {number for number, event in is_lost.items() if event.is_set()} == {0, 2}
        assert await contents(pool) == data


async def hang(lost: trio.Event, offset: int, buffer: memoryview) -> None:
    """A read that ends when the device is given up."""
    await lost.wait()
    raise DeviceGivenUp("device", errno.ETIMEDOUT, "given up", None)
