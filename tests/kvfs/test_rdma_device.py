"""Namespaces that this process reaches by itself: opened, shared memory, fallen back from, and come back to."""

from __future__ import annotations

import base64
import mmap
import resource
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from blockdev.errors import DeviceClosed, DeviceError, FabricsError, KeyRefused, TargetUnreachable
from blockdev.memory import page_buffer
from blockdev.nvme import NamespaceName, Portal, Transport, parse_namespace
from blockdev.tasks import background
from blockdev.testing.nvme import FakeFabric
from blockdev.types import MIB, DeviceNo
from kvfs import rdma_device, targets, watch
from kvfs.assemble import assembled
from kvfs.config import load_config
from kvfs.devices import opening
from kvfs.errors import FramesError
from kvfs.rdma_device import RdmaDevice, rdma_devices
from kvfs.report import devices_of, statistics_of_cache
from rdma.cuda import GpuSpan
from rdma.errors import CudaError, NoVerbs, RdmaError, TransportBroken, TransportRefused
from rdma.host_memory import lock_refused
from rdma.memory_authentication import Terms
from rdma.memory_target import MemoryTarget, Region
from rdma.nvme_auth import Secret
from rdma.testing import FakeCuda
from tests.conftest import ExpectLog
from tests.kvfs.caches import cache_of, descriptors
from tests.kvfs.conftest import Kvfs
from tests.kvfs.fabrics import NQN, SIZE, drives, host_of
from tests.kvfs.test_watch import contents, ok, put, until, watched

PORTAL = Portal(Transport.RDMA, "192.0.2.1", "4420")
URI = f"nvme+rdma://192.0.2.1/{NQN}/1"
SETTINGS = targets.Settings(io_timeout=5.0)


class Way:
    """One of several ways to the same target."""

    def __init__(self, target: MemoryTarget) -> None:
        self.connect, self.register = target.connect, target.register


class Network:
    """A target that this process and the kernel reach, and what keeps this process from it.

    :ivar refusal: why there is no way to it
    :ivar asked: to which addresses one was looked for
    """

    def __init__(self, target: MemoryTarget, kernel: FakeFabric) -> None:
        self.target = target
        self.kernel = kernel
        self.refusal: RdmaError | None = None
        self.asked: list[str] = []

    @asynccontextmanager
    async def way_to(self, portal: Portal) -> AsyncIterator[Way]:
        self.asked.append(portal.address)
        if self.refusal is not None:
            raise self.refusal
        yield Way(self.target)


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    """Both paths lead to the same bytes."""
    [drive] = drives(tmp_path, 1)
    target = MemoryTarget(SIZE)
    with drive.open("r+b") as file:
        target.media = mmap.mmap(file.fileno(), SIZE)  # type: ignore[assignment]
    kernel = FakeFabric(tmp_path / "host")
    kernel.serve(NQN, PORTAL, namespaces=[drive])
    (kernel.folder / "sys/class/infiniband/rxe0").mkdir(parents=True)
    found = Network(target, kernel)
    monkeypatch.setattr(rdma_device, "way_to", found.way_to)
    monkeypatch.setattr(targets, "fabric", lambda: host_of(kernel))
    monkeypatch.setattr(watch, "INTERVAL", 0.01)
    monkeypatch.setattr(watch, "RETRY", 0.01)
    return found


def named(query: str = "", namespace: str = "1", addresses: str = "192.0.2.1") -> NamespaceName:
    return parse_namespace(f"nvme+rdma://{addresses}/{NQN}/{namespace}{query}")


async def test_a_device_lives_until_it_is_closed(network: Network) -> None:
    async with rdma_devices(SETTINGS) as devices:
        device = await devices.open(named())
        assert (device.name, device.size, device.is_connected) == (URI, SIZE, True)
        data, into = page_buffer(MIB), page_buffer(MIB)
        data[:] = b"k" * MIB
        await device.write_from(MIB, data)
        await device.read_into(MIB, into)
        assert into == data
        await device.aclose()
        assert not any(connection.is_open for connection in network.target.connections)
        with pytest.raises(DeviceClosed):
            await device.flush()


async def test_devices_do_not_outlive_the_block(network: Network) -> None:
    async with rdma_devices(SETTINGS) as devices:
        await devices.open(named())
    assert not any(connection.is_open for connection in network.target.connections)


async def test_the_first_portal_that_can_be_reached(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = network.way_to

    @asynccontextmanager
    async def one_is_gone(portal: Portal) -> AsyncIterator[Way]:
        network.refusal = TransportBroken("no answer") if portal.address == "192.0.2.9" else None
        async with inner(portal) as way:
            yield way

    monkeypatch.setattr(rdma_device, "way_to", one_is_gone)
    async with rdma_devices(SETTINGS) as devices:
        await devices.open(named(addresses="192.0.2.9,192.0.2.1"))
        assert network.asked == ["192.0.2.9", "192.0.2.1"]
        with pytest.raises(TargetUnreachable, match=r"over RDMA: no answer"):
            await devices.open(named(addresses="192.0.2.9"))


async def test_another_portal_when_one_breaks(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its UUID, and with memory that is registered with both."""
    broken = ""
    inner = network.way_to

    @asynccontextmanager
    async def some_are_gone(portal: Portal) -> AsyncIterator[Way]:
        network.refusal = TransportBroken("no answer") if portal.address == broken else None
        async with inner(portal) as way:
            yield way

    monkeypatch.setattr(rdma_device, "way_to", some_are_gone)
    arena = page_buffer(MIB)
    async with rdma_devices(SETTINGS) as devices:
        name = named(namespace=str(network.target.uuid), addresses="192.0.2.1,192.0.2.9,192.0.2.2")
        device = await devices.open(name)
        with devices.keeping([arena]):
            assert network.asked == ["192.0.2.1"]
            broken = "192.0.2.9"
            network.target.cut()
            await device.read_into(0, arena)
            assert network.asked == ["192.0.2.1", "192.0.2.9", "192.0.2.2"]
            assert len(network.target.regions) == 2  # by the first way, and by the third
        assert not network.target.regions
        assert device.inner.sessions == 2
        await device.aclose()


@pytest.mark.parametrize(
    "name, words",
    [
        (named("?tls=yes"), "TLS is the kernel's: use path=kernel"),
        (named(namespace="6f4e0c1a-7a1b-4f3c-9a55-0d2f3b1c8e77"), "there is no namespace 6f4e0c1a"),
        (named(namespace="7"), "there is no namespace 7"),
    ],
)
async def test_what_cannot_be_had_so(network: Network, name: NamespaceName, words: str) -> None:
    async with rdma_devices(SETTINGS) as devices:
        with pytest.raises(FabricsError, match=words):
            await devices.open(name)


@pytest.mark.parametrize(
    "refusal, name, error, words",
    [
        (NoVerbs("this host has no RDMA device: load the driver"), named(), FabricsError, "no RDMA device"),
        (
            TransportRefused("192.0.2.1:4420: no NVMe/RDMA target listens there"),
            named(),
            TargetUnreachable,
            "no NVMe/RDMA target listens there",
        ),
        (None, named(namespace="7"), FabricsError, "there is no namespace 7"),
        (None, named(), KeyRefused, "demands authentication: give the DH-HMAC-CHAP key"),
        (None, named("?host-key=/none"), KeyRefused, "/none"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    network: Network,
    refusal: RdmaError | None,
    name: NamespaceName,
    error: type[Exception],
    words: str,
) -> None:
    if error is KeyRefused:
        network.target.terms = Terms(Secret(bytes(32), None))
    async with rdma_devices(SETTINGS) as devices:
        before = descriptors()
        network.refusal = refusal
        with pytest.raises(error, match=words) as raised:
            await devices.open(name)
        assert "\n" not in str(raised.value)
        await trio.testing.wait_all_tasks_blocked()
        assert descriptors() == before
        assert not network.target.regions
        assert not any(connection.is_open for connection in network.target.connections)


async def test_memory_that_may_not_be_locked_says_the_limit_and_how_to_raise_it(
    kvfs: Kvfs, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ok(kvfs, "pool", "create", "hot", f"{URI}?path=rdma", "--extent-size", "2MiB")
    register = network.target.register

    def of_little(memory: memoryview | GpuSpan) -> Region:
        if memory.nbytes > MIB:
            raise lock_refused(memory.nbytes)
        return register(memory)

    monkeypatch.setattr(network.target, "register", of_little)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64 << 10, 64 << 10))
    folder = kvfs.state.folder("hot")
    config = replace(load_config(folder.config), memory=16 * MIB)
    before = descriptors()
    with pytest.raises(
        FramesError, match=r"lock 16384 KiB .*is 64 KiB.*'ulimit -l 16384'.*LimitMEMLOCK.*; or .*path=kernel"
    ):
        async with background(), assembled(folder, config, "tried"):
            pass
    assert descriptors() == before
    assert not network.target.regions
    assert not any(connection.is_open for connection in network.target.connections)


async def test_a_target_that_demands_a_key(network: Network, tmp_path: Path) -> None:
    key = bytes(range(32))
    network.target.terms = Terms(Secret(key, None))
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path, content in ((right, key), (wrong, bytes(32))):
        checked = content + zlib.crc32(content).to_bytes(4, "little")
        path.write_text(f"DHHC-1:00:{base64.b64encode(checked).decode()}:\n")
        path.chmod(0o600)
    async with rdma_devices(SETTINGS) as devices:
        device = await devices.open(named(f"?host-key={right}"))
        await device.flush()
        for query, words in (
            ("", "demands authentication: give the DH-HMAC-CHAP key"),
            (f"?host-key={wrong}", "refuses the key of this host"),
            (f"?host-key={right}&controller-key={right}", "does not prove that it knows"),
            (f"?controller-key={right}", "a controller_key alone proves nothing"),
        ):
            with pytest.raises(KeyRefused, match=words):
                await devices.open(named(query))


async def test_memory_is_registered_once_with_every_device(network: Network) -> None:
    arena = page_buffer(MIB)
    async with rdma_devices(SETTINGS) as devices:
        first = await devices.open(named())
        with devices.keeping([arena]):
            assert len(network.target.regions) == 1
            second = await devices.open(named())
            assert len(network.target.regions) == 2
            await second.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert len(network.target.regions) == 1
        assert not network.target.regions
        await first.aclose()


async def test_memory_of_a_gpu_is_kept_registered_as_the_hosts_is(network: Network) -> None:
    gpu = FakeCuda()
    span = GpuSpan(gpu, gpu.allocate(MIB), MIB)
    async with rdma_devices(SETTINGS) as devices:
        device = await devices.open(named())
        with devices.keeping([page_buffer(MIB), span]):
            assert {region.address for region in network.target.regions.values()} > {span.address}
            data = page_buffer(MIB)
            data[:] = b"k" * MIB
            await device.write_from(0, data)
            await device.read_into(0, span)
            assert gpu.memory[span.address] == data
        assert not network.target.regions
        gpu.free(span.address)
        with pytest.raises(CudaError, match="are allocated at"), devices.keeping([page_buffer(MIB), span]):
            pass
        assert not network.target.regions
        with pytest.raises(DeviceError, match="are allocated at"):
            await device.read_into(0, span)
        await device.aclose()


async def test_a_target_that_cannot_be_reached_is_asked_through_the_kernel(network: Network) -> None:
    network.refusal = NoVerbs("this host has no RDMA device")
    async with opening(SETTINGS) as opener:
        found = await opener.open([named(), named("?path=rdma", "2")], writable=True)
    kernels, refused = found
    assert not isinstance(kernels, Exception | RdmaDevice)
    assert isinstance(refused, FabricsError)
    assert "no RDMA device" in str(refused)
    await kernels.aclose()


async def test_the_kernel_is_not_asked_for_what_it_is_not_needed_for(network: Network) -> None:
    async with opening(SETTINGS) as opener:
        [device] = await opener.open([named("?path=rdma")], writable=True)
        assert isinstance(device, RdmaDevice)
        assert not (await host_of(network.kernel).cli.list_subsystems())
        await device.aclose()


async def test_each_connection_is_tried_over_rdma_first(
    kvfs: Kvfs, network: Network, expect_log: ExpectLog
) -> None:
    """Lost over RDMA, had from the kernel, lost there, and had over RDMA again: the same objects."""
    await ok(kvfs, "pool", "create", "hot", f"{URI}?path=rdma", "--extent-size", "2MiB")
    config = kvfs.state.folder("hot").config
    config.write_text(config.read_text().replace("?path=rdma", ""))
    expect_log("is lost:", count=2)
    expect_log(r"device \S+ is back$", count=2)
    async with watched(kvfs) as pool, cache_of(pool) as cache:

        def seen() -> list[tuple[str, str]]:
            return [(row["state"], row["via"]) for row in devices_of(pool)]

        def counted() -> tuple[int, int]:
            figures = statistics_of_cache(pool, cache._frames, cache)["devices"]
            return figures["rdma"], figures["kernel"]

        assert seen() == [("live", "rdma")]
        assert [(row["ways"], row["nqn"]) for row in devices_of(pool)] == [("1/1", NQN)]
        assert counted() == (1, 0)
        data = {b"%d" % n: await put(pool, b"%d" % n) for n in range(3)}
        network.refusal = TransportBroken("no answer")
        network.target.kill()
        await until(lambda: seen() == [("live", "kernel")])
        assert counted() == (0, 1)
        assert await contents(pool) == data
        data[b"new"] = await put(pool, b"new")
        network.refusal, network.target.is_down = None, False
        pool.media.mark_lost(DeviceNo(0))
        await until(lambda: seen() == [("live", "rdma")])
        assert counted() == (1, 0)
        assert await contents(pool) == data
