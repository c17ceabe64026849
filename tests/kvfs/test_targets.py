"""Connecting to targets, and what is said when that fails."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from blockdev.errors import (
    FabricsError,
    FabricsTimeout,
    HostRefused,
    KeyRefused,
    NoNvmeCli,
    TargetUnreachable,
    WrongTransport,
)
from blockdev.nvme import Portal, Sysfs, Timers, Transport, parse_namespace, parse_target
from blockdev.testing.nvme import HOST, FakeFabric
from kvfs import targets
from kvfs.targets import Fabric, Settings, health, resolved, target_of
from tests.conftest import ExpectLog
from tests.kvfs.fabrics import BOTH, FIRST, NQN, SECOND, URI, drives, host_of

KEY = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
OTHER = "DHHC-1:00:2wKd3YDIcRMN/rCJa/k60E8xBQMw+2D9UnigSQ6YFkEHV3Yy:"
SETTINGS = Settings(Timers(keep_alive=5, reconnect_delay=1, fast_io_fail=4, ctrl_loss=None), io_timeout=3)


@pytest.fixture
def fake(tmp_path: Path) -> FakeFabric:
    """One target with two namespaces, by two ways."""
    network = FakeFabric(tmp_path / "host")
    network.serve(NQN, FIRST, SECOND, namespaces=drives(tmp_path, 2))
    return network


@pytest.fixture
def host(fake: FakeFabric) -> Fabric:
    return host_of(fake)


def connections(host: Fabric) -> int:
    return sum(len(subsystem.controllers) for subsystem in host.sysfs.subsystems())


async def test_a_connection_gets_our_time_outs(host: Fabric) -> None:
    subsystem = await host.connect(parse_target(BOTH), SETTINGS)
    assert [one.timers for one in subsystem.controllers] == [SETTINGS.timers] * 2
    assert {host.sysfs.io_timeout(one.name) for one in subsystem.controllers} == {3.0}
    assert health(subsystem) == "live"
    assert str(target_of(subsystem)) == BOTH


async def test_connecting_again_changes_nothing(host: Fabric, fake: FakeFabric) -> None:
    await host.connect(parse_target(URI), SETTINGS)
    await host.connect(parse_target(BOTH), SETTINGS)
    assert connections(host) == 2
    assert [words[0] for words in fake.commands if words[0] == "connect"] == ["connect", "connect"]
    assert await host.commands(parse_target(BOTH), SETTINGS) == []


async def test_a_connection_is_made_when_its_namespaces_are_there(host: Fabric, fake: FakeFabric) -> None:
    (target,) = fake.subsystems
    target.unseen = {1, 2}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.connect, parse_target(URI), SETTINGS)
        while ["list-ns", "/dev/nvme1", "-o", "json"] not in fake.commands:
            await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        target.unseen.clear()
        fake.refresh()
    assert host.sysfs.io_timeout("nvme1") == 3.0


async def test_a_namespace_that_does_not_appear_is_told(
    host: Fabric, fake: FakeFabric, monkeypatch: pytest.MonkeyPatch, expect_log: ExpectLog
) -> None:
    monkeypatch.setattr(targets, "APPEAR_TIMEOUT", 0.2)
    fake.subsystems[0].unseen = {2}
    expect_log("has no namespace 2: it has 1")
    await host.connect(parse_target(URI), SETTINGS)


async def test_what_would_be_run_is_shown(host: Fabric, fake: FakeFabric) -> None:
    ((words),) = await host.commands(parse_target(URI), SETTINGS)
    assert words[:7] == ["connect", "-t", "tcp", "-a", "192.0.2.1", "-s", "4420"]
    assert fake.commands == []


async def test_nothing_listens(host: Fabric, fake: FakeFabric) -> None:
    with pytest.raises(TargetUnreachable, match=r"tcp://192\.0\.2\.9: nothing answers"):
        await host.connect(parse_target(f"nvme+tcp://192.0.2.9/{NQN}"), SETTINGS)
    assert fake.commands == []


async def test_one_way_of_two_is_down_and_the_other_is_taken_back(host: Fabric, fake: FakeFabric) -> None:
    fake.down.add(SECOND)
    with pytest.raises(TargetUnreachable, match=r"tcp://198\.51\.100\.1"):
        await host.connect(parse_target(BOTH), SETTINGS)
    assert connections(host) == 0


async def test_what_was_there_before_a_failure_stays(host: Fabric, fake: FakeFabric) -> None:
    await host.connect(parse_target(URI), SETTINGS)
    fake.down.add(SECOND)
    with pytest.raises(TargetUnreachable):
        await host.connect(parse_target(BOTH), SETTINGS)
    assert connections(host) == 1


async def test_this_host_is_not_allowed(host: Fabric, fake: FakeFabric) -> None:
    fake.subsystems[0].hosts = {"nqn.other"}
    fake.serve("nqn.open", FIRST)
    with pytest.raises(
        HostRefused, match=rf"does not offer {NQN} to this host, {HOST.nqn}: .* it offers nqn\.open"
    ):
        await host.connect(parse_target(URI), SETTINGS)
    with pytest.raises(HostRefused, match=r"does not offer nqn\.absent"):
        await host.connect(parse_target("nvme+tcp://192.0.2.1/nqn.absent"), SETTINGS)
    assert connections(host) == 0


async def test_keys(host: Fabric, fake: FakeFabric, tmp_path: Path) -> None:
    fake.subsystems[0].key = KEY
    path = tmp_path / "host.key"
    path.write_text(OTHER)
    path.chmod(0o600)
    with pytest.raises(KeyRefused, match="give the file that it is in"):
        await host.connect(parse_target(URI), SETTINGS)
    with pytest.raises(KeyRefused, match="refuses the key of this host"):
        await host.connect(parse_target(f"{URI}?host-key={path}"), SETTINGS)
    assert connections(host) == 0
    path.write_text(KEY)
    await host.connect(parse_target(f"{URI}?host-key={path}"), SETTINGS)
    assert connections(host) == 1
    assert not any(KEY in word for words in fake.commands for word in words)


async def test_rdma_where_only_tcp_is_spoken_and_the_other_way_round(host: Fabric, fake: FakeFabric) -> None:
    with pytest.raises(FabricsError, match="this host has no RDMA device"):
        await host.connect(parse_target(f"nvme+rdma://192.0.2.1/{NQN}"), SETTINGS)
    way = Portal(Transport.RDMA, "192.0.2.7", "4420")
    fake.serve("nqn.rdma", way)
    with pytest.raises(TargetUnreachable):
        await host.connect(parse_target("nvme+tcp://192.0.2.7/nqn.rdma"), SETTINGS)
    (fake.folder / "sys/class/infiniband/rxe0").mkdir(parents=True)
    with pytest.raises(WrongTransport, match=r"write nvme\+rdma://"):
        await host.connect(parse_target("nvme+tcp://192.0.2.7/nqn.rdma"), SETTINGS)
    with pytest.raises(WrongTransport, match="does not speak RDMA"):
        await host.connect(parse_target(f"nvme+rdma://192.0.2.1/{NQN}"), SETTINGS)
    fake.down.add(way)
    with pytest.raises(TargetUnreachable, match="no target answers"):
        await host.connect(parse_target("nvme+rdma://192.0.2.7/nqn.rdma"), SETTINGS)


async def answers(_: Portal) -> None:
    await trio.lowlevel.checkpoint()


async def test_something_else_listens(host: Fabric, fake: FakeFabric) -> None:
    fake.subsystems[0].portals.remove(FIRST)
    host = replace(host, reach=answers)
    with pytest.raises(KeyRefused, match="no connection with TLS"):
        await host.connect(parse_target(f"{URI}?tls=yes"), SETTINGS)
    with pytest.raises(WrongTransport, match=r"does not speak NVMe over TCP.*or it demands TLS"):
        await host.connect(parse_target(URI), SETTINGS)
    with pytest.raises(WrongTransport):
        await host.discover(FIRST)


async def test_no_target_in_this_kernel(host: Fabric) -> None:
    with pytest.raises(TargetUnreachable, match="no target in this kernel has a loop port"):
        await host.connect(parse_target(f"nvme+loop:///{NQN}"), SETTINGS)


async def test_a_program_that_hangs_leaves_nothing(fake: FakeFabric, tmp_path: Path) -> None:
    async def hang(arguments: list[str], **how: object) -> object:
        done = await fake(arguments, timeout=1)  # the kernel goes on by itself
        if arguments[0] == "connect":
            raise FabricsTimeout("'nvme connect' did not end within 1 s")
        return done

    host = replace(host_of(fake), cli=type(fake.cli)(hang))  # type: ignore[arg-type]
    with pytest.raises(TargetUnreachable, match="does not answer"):
        await host.connect(parse_target(URI), SETTINGS)
    assert connections(host) == 0


async def test_no_program(fake: FakeFabric) -> None:
    async def missing(arguments: list[str], **how: object) -> object:
        raise NoNvmeCli("the program 'nvme' is not installed: install the package nvme-cli")

    host = replace(host_of(fake), cli=type(fake.cli)(missing))  # type: ignore[arg-type]
    with pytest.raises(NoNvmeCli):
        await host.connect(parse_target(URI), SETTINGS)


async def test_another_keep_alive_is_told(host: Fabric, expect_log: ExpectLog) -> None:
    await host.connect(parse_target(URI), SETTINGS)
    expect_log("connected with a keep-alive of 5 s instead of 7 s", count=1)
    await host.connect(parse_target(URI), replace(SETTINGS, timers=replace(SETTINGS.timers, keep_alive=7)))


# ── the namespaces of a pool ─────────────────────────────────────────────────────────────────────────────────


async def test_what_a_pool_needs_is_connected_and_found(host: Fabric, tmp_path: Path) -> None:
    names = [parse_namespace(f"{BOTH}/1"), parse_namespace(f"{BOTH}/2")]
    found = await host.attach(names, SETTINGS)
    assert [path.resolve() for path in found.values() if isinstance(path, Path)] == [
        tmp_path / "drive0",
        tmp_path / "drive1",
    ]


async def test_one_way_of_two_is_enough_for_a_pool(
    host: Fabric, fake: FakeFabric, expect_log: ExpectLog
) -> None:
    fake.down.add(FIRST)
    expect_log(r"tcp://192\.0\.2\.1: nothing answers.*is used by its other ways", count=1)
    (path,) = (await host.attach([parse_namespace(f"{BOTH}/1")], SETTINGS)).values()
    assert isinstance(path, Path)
    assert connections(host) == 1


async def test_why_a_namespace_is_not_there(host: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "APPEAR_TIMEOUT", 0.2)
    began = trio.current_time()
    absent, unreachable = parse_namespace(f"{URI}/9"), parse_namespace(f"nvme+tcp://192.0.2.9/{NQN}.b/1")
    found = await host.attach([absent, unreachable], SETTINGS)
    assert f"{NQN} has no namespace 9: it has 1, 2" in str(found[absent])
    assert isinstance(found[unreachable], TargetUnreachable)
    assert trio.current_time() >= began + targets.APPEAR_TIMEOUT


async def test_a_namespace_whose_target_is_away_is_not_there(
    host: Fabric, fake: FakeFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device is, as long as the kernel tries to connect again, and gives errors."""
    monkeypatch.setattr(targets, "REACH_TIMEOUT", 0.2)
    name = parse_namespace(f"{URI}/1")
    await host.connect(name.target, SETTINGS)
    fake.set_state(FIRST, "connecting")
    reason = (await host.attach([name], SETTINGS))[name]
    assert isinstance(reason, TargetUnreachable)
    assert "its connection is lost" in str(reason)
    fake.set_state(FIRST, "live")
    assert (await host.attach([name], SETTINGS))[name] == host.find(name)


async def test_namespaces_that_changed_places_are_looked_for(
    host: Fabric, fake: FakeFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel has it after a reconnect to a target that numbers its namespaces otherwise now: none."""
    name = parse_namespace(f"{URI}/1")
    await host.connect(name.target, SETTINGS)
    fake.subsystems[0].unseen = {1, 2}
    fake.refresh()

    def rescan(_: Sysfs, controller: str) -> None:
        assert controller == "nvme1"
        fake.subsystems[0].unseen = set()
        fake.refresh()

    monkeypatch.setattr(Sysfs, "rescan", rescan)
    assert isinstance((await host.attach([name], SETTINGS))[name], Path)


async def test_without_connecting(host: Fabric) -> None:
    name = parse_namespace(f"{URI}/1")
    assert "is not connected: connect it with 'kvfs target connect" in str(host.find(name))
    await host.connect(name.target, SETTINGS)
    assert isinstance(host.find(name), Path)


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_health(host: Fabric, fake: FakeFabric) -> None:
    await host.connect(parse_target(BOTH), SETTINGS)

    def now() -> str:
        (subsystem,) = host.sysfs.subsystems()
        return health(subsystem, subsystem.namespaces[0])

    assert now() == "live"
    fake.ana[SECOND] = "inaccessible"
    fake.refresh()
    assert now() == "degraded"
    fake.set_state(FIRST, "connecting")
    assert now() == "connecting"
    fake.set_state(FIRST, "deleting")
    assert now() == "lost"
    fake.ana[SECOND] = "non-optimized"
    fake.refresh()
    assert now() == "degraded"


async def test_names_become_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_target(f"nvme+tcp://[2001:DB8:0::1]:4421,127.0.0.1/{NQN}")
    assert [one.address for one in (await resolved(target)).portals] == ["2001:db8::1", "127.0.0.1"]
    loop = parse_target(f"nvme+loop:///{NQN}")
    assert await resolved(loop) == loop
    with pytest.raises(TargetUnreachable, match="no such host"):
        await resolved(parse_target(f"nvme+tcp://kvfs-test.invalid/{NQN}"))
    for name in ("a..b", "x" * 64):
        with pytest.raises(TargetUnreachable, match="no name that a host can have"):
            await resolved(parse_target(f"nvme+tcp://{name}/{NQN}"))
    near = await resolved(parse_target(f"nvme+tcp://[fe80::1%lo]/{NQN}"))
    assert near.portals[0].address == "fe80::1%lo", "it says by which interface"


async def test_the_order_of_a_names_addresses_does_not_matter(
    host: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [FIRST.address, SECOND.address]

    async def look_up(*_: object, **_options: object) -> list[tuple[object, ...]]:
        addresses.reverse()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 4420)) for one in addresses]

    monkeypatch.setattr(trio.socket, "getaddrinfo", look_up)
    for _ in range(2):
        await host.connect(parse_target(f"nvme+tcp://storage/{NQN}"), SETTINGS)
    assert connections(host) == 1


async def test_reaching_for_real() -> None:
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        way = Portal(Transport.TCP, "127.0.0.1", str(listener.getsockname()[1]))
        with pytest.raises(TargetUnreachable, match="nothing answers: Connection refused"):
            await targets.reach(way)
        listener.listen(1)
        await targets.reach(way)


def test_errors_that_are_not_translated_say_what_the_program_said() -> None:
    assert FabricsError("x", "said").said == "said"


async def test_time_outs_that_the_kernel_does_not_take_in_time(
    host: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for I/O that is under way; nothing else does."""
    target, stuck = parse_target(BOTH), threading.Event()
    await host.connect(target, SETTINGS)
    monkeypatch.setattr(targets, "SET_TIMEOUT", 0.05)
    monkeypatch.setattr(host.sysfs, "set_io_timeout", lambda *_: stuck.wait(20))
    with pytest.raises(FabricsError, match="the kernel waits for I/O"):
        await host.connect(target, SETTINGS)
    stuck.set()
    assert connections(host) == 2, "what was there stays"
