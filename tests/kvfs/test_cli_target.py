"""`kvfs target`, and pools whose devices are namespaces of targets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from uuid import UUID

import pytest

from blockdev.errors import FabricsError, HostRefused, PoolBusy, TargetUnreachable
from blockdev.lease import Leases
from blockdev.nvme import Completed
from blockdev.testing.nvme import FakeFabric
from kvfs import targets
from kvfs.cli import target as command
from kvfs.cli.exit_codes import EXIT_CODES, USAGE
from kvfs.cli.running import Found
from kvfs.config import load_config
from kvfs.errors import MissingDevice
from kvfs.state import MountRecord
from tests.conftest import ExpectLog
from tests.kvfs.conftest import Kvfs
from tests.kvfs.fabrics import BOTH, FIRST, NQN, SECOND, SIZE, URI, drives, host_of


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeFabric:
    """The network that the command sees: one target with three namespaces, by two ways."""
    network = FakeFabric(tmp_path / "host")
    network.serve(NQN, FIRST, SECOND, namespaces=drives(tmp_path, 3))
    monkeypatch.setattr(targets, "fabric", lambda: host_of(network))
    return network


def test_discover(kvfs: Kvfs, fake: FakeFabric) -> None:
    assert kvfs.ok("target", "discover", "nvme+tcp://192.0.2.1,198.51.100.1", "-H").rows == [
        [NQN, "tcp", "192.0.2.1", "4420", "no"],
        [NQN, "tcp", "198.51.100.1", "4420", "no"],
    ]
    kvfs.ok("target", "connect", URI)
    shown = kvfs.ok("target", "discover", "nvme+tcp://192.0.2.1", "--json").json
    assert shown["output_version"] == {"command": "target discover", "major": 1, "minor": 0}
    assert [(one["uri"], one["connected"]) for one in shown["targets"]] == [(URI, True)]
    kvfs.fails(EXIT_CODES[TargetUnreachable], "nothing answers", "target", "discover", "nvme+tcp://192.0.2.9")
    kvfs.fails(USAGE, "is not where a target may be", "target", "discover", "192.0.2.1")


def test_connect_list_status_disconnect(kvfs: Kvfs, fake: FakeFabric) -> None:
    assert kvfs.ok("target", "list", "-H").rows == []
    for _ in range(2):
        assert kvfs.ok("target", "connect", BOTH).out == ""
    rows = kvfs.ok("target", "list", "-H", "-p").rows
    assert [row[1:5] for row in rows] == [[str(n), str(SIZE), "live", "2"] for n in (1, 2, 3)]
    ways = kvfs.ok("target", "status", "-H", "-o", "address,state,ana,io_timeout,fast_io_fail,ctrl_loss").rows
    assert ways == [
        ["192.0.2.1", "live", "optimized", "5.0", "5", "-"],
        ["198.51.100.1", "live", "optimized", "5.0", "5", "-"],
    ]
    fake.set_state(SECOND, "connecting")
    assert kvfs.ok("target", "list", "-H", "-o", "state").rows == [["degraded"]] * 3
    for name in (URI, NQN):
        assert kvfs.ok("target", "disconnect", name).out == ""
        assert kvfs.ok("target", "list", "-H").rows == []


def test_status_of_one(kvfs: Kvfs, fake: FakeFabric) -> None:
    fake.serve("nqn.empty", FIRST)
    kvfs.ok("target", "connect", URI, "nvme+tcp://192.0.2.1/nqn.empty")
    assert kvfs.ok("target", "status", NQN, "-H", "-o", "nqn").rows == [[NQN]]
    assert ["-", "-", "-", "live", "-", "nqn.empty"] in kvfs.ok("target", "list", "-H").rows
    result = kvfs("target", "status", "nqn.absent", "-H")
    assert (result.code, result.out, result.err) == (0, "", "kvfs: nqn.absent is not connected\n")


def test_dry_runs_show_the_commands(kvfs: Kvfs, fake: FakeFabric, tmp_path: Path) -> None:
    key = tmp_path / "host.key"
    key.write_text("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:")
    key.chmod(0o600)
    shown = kvfs.ok("target", "connect", URI, "--host-key", key, "--dry-run", "-H").out
    assert shown.startswith("nvme connect -t tcp -a 192.0.2.1 -s 4420 ")
    assert "DHHC" not in shown
    assert kvfs.ok("target", "list", "-H").rows == []
    kvfs.ok("target", "connect", URI)
    shown = kvfs.ok("target", "disconnect", URI, "--dry-run", "--json").json
    assert shown["commands"] == [{"command": f"nvme disconnect -n {NQN}"}]
    assert len(kvfs.ok("target", "list", "-H").rows) == 3
    shown = kvfs.ok("target", "connect", f"{URI};%24(x)", "--dry-run", "-H").out
    assert f" -n '{NQN};$(x)' " in shown, "a shell takes it for one word"


def test_a_key_on_the_command_line_is_refused(kvfs: Kvfs, fake: FakeFabric) -> None:
    kvfs.fails(USAGE, "a secret may not stand here", "target", "connect", URI, "--host-key", "DHHC-1:00:x:")
    for uri in (
        f"{URI}?secret=DHHC-1:00:x:",
        f"{URI}?host-key=DHHC-1:00:x:#",
        "nvme+tcp://h/?k=DHHC-1:00:x:",
    ):
        assert "DHHC-1:00" not in kvfs.fails(USAGE, "", "target", "connect", uri).err
    kvfs.fails(USAGE, "is not a target", "target", "connect", "192.0.2.1")
    kvfs.fails(USAGE, "is not a target", "target", "disconnect", "192.0.2.1")


def test_refusals_have_their_exit_code(kvfs: Kvfs, fake: FakeFabric) -> None:
    fake.subsystems[0].hosts = set()
    kvfs.fails(EXIT_CODES[HostRefused], "does not offer", "target", "connect", URI)


# ── pools ────────────────────────────────────────────────────────────────────────────────────────────────────


def make_pool(kvfs: Kvfs, *numbers: int) -> None:
    names = [f"{BOTH}/{number}" for number in numbers]
    kvfs.ok("pool", "create", "hot", *names, "--extent-size", "2MiB")


def test_a_pool_over_fabrics_is_connected_when_it_is_needed(kvfs: Kvfs, fake: FakeFabric) -> None:
    make_pool(kvfs, 1, 2)
    config = load_config(kvfs.state.folder("hot").config)
    assert [str(name) for name in config.devices] == [f"{BOTH}/1", f"{BOTH}/2"]
    kvfs.ok("target", "disconnect", NQN)
    assert kvfs.ok("pool", "list", "-H", "-p", "-o", "devices,size").rows == [["2", "-"]]
    rows = kvfs.ok("pool", "status", "hot", "-H", "-o", "state,ways").rows
    assert rows == [["live", "2/2"], ["live", "2/2"]]
    fake.set_state(SECOND, "connecting")
    assert (
        kvfs.ok("pool", "status", "hot", "-H", "-o", "state,ways,ana").rows
        == [["live", "1/2", "optimized"]] * 2
    )
    assert kvfs.ok("pool", "list", "-H", "-p", "-o", "size").rows == [[str(2 * SIZE)]]


def test_a_pool_grows_by_a_namespace(kvfs: Kvfs, fake: FakeFabric) -> None:
    make_pool(kvfs, 1)
    kvfs.ok("pool", "add", "hot", f"{BOTH}/2")
    assert len(kvfs.ok("pool", "status", "hot", "-H").rows) == 2
    assert f"- {BOTH}/2\n" in kvfs.state.folder("hot").config.read_text()


def test_a_namespace_is_found_by_uuid_whatever_its_number(kvfs: Kvfs, fake: FakeFabric) -> None:
    kvfs.ok("target", "connect", URI)
    (uri,) = kvfs.ok("target", "list", "-H", "-o", "uri").rows[0]
    kvfs.ok("pool", "create", "hot", uri, "--extent-size", "2MiB")
    kvfs.ok("target", "disconnect", NQN)
    subsystem = fake.subsystems[0]
    subsystem.namespaces = {number + 10: entry for number, entry in subsystem.namespaces.items()}
    assert kvfs.ok("pool", "status", "hot", "-H", "-o", "state").rows == [["live"]]


def test_the_same_namespace_twice(kvfs: Kvfs, fake: FakeFabric) -> None:
    kvfs.ok("target", "connect", URI)
    device = kvfs.ok("target", "list", "-H", "-o", "device").rows[0][0]
    there = fake.folder / device.removeprefix("/")
    kvfs.fails(54, "is given twice, also as", "pool", "create", "hot", f"{URI}/1", there)


def test_what_is_not_there_is_named_with_the_reason(
    kvfs: Kvfs, fake: FakeFabric, expect_log: ExpectLog
) -> None:
    make_pool(kvfs, 1, 2)
    kvfs.ok("target", "disconnect", NQN)
    fake.down |= {FIRST, SECOND}
    kvfs.fails(EXIT_CODES[MissingDevice], r"none of the devices.*nothing answers", "pool", "status", "hot")
    kvfs.fails(EXIT_CODES[TargetUnreachable], "nothing answers", "pool", "create", "cold", f"{URI}/3")
    kvfs.fails(
        EXIT_CODES[FabricsError],
        "is not connected: connect it with 'kvfs target connect",
        "pool", "create", "cold", f"{URI}/3", "--dry-run",
    )  # fmt: skip
    kvfs.fails(USAGE, "lacks the namespace", "pool", "create", "cold", URI)


def test_a_pool_goes_on_without_a_target(
    kvfs: Kvfs, fake: FakeFabric, tmp_path: Path, expect_log: ExpectLog
) -> None:
    other = tmp_path / "plain"
    kvfs.ok("pool", "create", "hot", f"{URI}/1", other, "--size", str(SIZE), "--extent-size", "2MiB")
    kvfs.ok("target", "disconnect", NQN)
    fake.down.add(FIRST)
    expect_log("nothing answers.*the pool goes on without it")
    expect_log("device 0 of pool 'hot' is missing")
    assert kvfs("pool", "status", "hot", "-H", "-o", "state").rows == [["missing"], ["live"]]


@pytest.mark.parametrize("by_link", [False, True])
def test_what_a_mounted_pool_uses_is_not_disconnected(
    kvfs: Kvfs, fake: FakeFabric, monkeypatch: pytest.MonkeyPatch, by_link: bool
) -> None:
    make_pool(kvfs, 1)
    path = kvfs.ok("target", "list", "-H", "-o", "device").rows[0][0]
    if by_link:
        link = kvfs.device("nvme-by-id")
        link.symlink_to(path)
        path = str(link)
    mount = kvfs.state.known("hot").mount("/mnt/kv")
    found = Found(mount, MountRecord(1, "/mnt/kv", 0.0), alive=True)
    monkeypatch.setattr(command, "live_mounts", lambda _: [found])
    monkeypatch.setattr(command, "ask", lambda *_: {"devices": [{"path": path}]})
    kvfs.fails(EXIT_CODES[PoolBusy], "in use: pool 'hot' is mounted on /mnt/kv", "target", "disconnect", NQN)
    assert len(kvfs.ok("target", "list", "-H").rows) == 3


def test_what_an_engine_has_open_is_not_disconnected(kvfs: Kvfs, fake: FakeFabric) -> None:
    make_pool(kvfs, 1)
    pool = kvfs.ok("pool", "status", "hot", "--json").json["pool"]["uuid"]
    with Leases.open(kvfs.state.known("hot").path, UUID(pool)) as leases:
        leases.join("open in an engine")
        busy = f"pool 'hot' is open in process {os.getpid()}"
        kvfs.fails(EXIT_CODES[PoolBusy], busy, "target", "disconnect", NQN)
    kvfs.ok("target", "disconnect", NQN)


def test_another_hosts_pool_is_refused_with_what_to_do(kvfs: Kvfs, fake: FakeFabric, tmp_path: Path) -> None:
    make_pool(kvfs, 1)
    there = Kvfs(tmp_path / "elsewhere", kvfs._capsys)
    there.fails(
        61, "coordinated by local:.*say --force if no other host uses it", "pool", "take", "hot", f"{URI}/1"
    )
    there.fails(53, r"it holds: kvfs pool 'hot'", "pool", "create", "mine", f"{URI}/1")
    there.ok("pool", "take", "hot", f"{URI}/1", "--force")
    kvfs.fails(61, "take the pool over with 'kvfs pool take hot --force'", "pool", "status", "hot")
    assert there.ok("pool", "status", "hot", "-H", "-o", "state").rows == [["live"]]


def test_what_a_hostile_target_says_is_shown_and_does_nothing(
    kvfs: Kvfs, fake: FakeFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {
        "trtype": "tcp",
        "subtype": "nvme subsystem",
        "portid": 1,
        "trsvcid": "4420",
        "traddr": "192.0.2.1",
    }
    names = ["nqn.\x1b[31mred", "iqn.other", "", NQN]
    records = [said | {"subnqn": name} for name in names]
    records += [
        said | {"subnqn": NQN} | odd for odd in ({"traddr": "a b"}, {"trsvcid": "none"}, {"trtype": "fc"})
    ]
    answer = Completed(0, json.dumps({"records": records}), "")
    monkeypatch.setattr(FakeFabric, "_discover", lambda *_: answer)
    rows = kvfs.ok("target", "discover", "nvme+tcp://192.0.2.1", "-H", "-o", "nqn,uri").rows
    assert rows[:4] == [[r"nqn.\x1b[31mred", "-"], ["iqn.other", "-"], ["-", "-"], [NQN, URI]]
    assert [uri for _, uri in rows[4:]] == ["-", "-", "-"]
    fake.subsystems[0].hosts = set()
    monkeypatch.setattr(fake.subsystems[0], "nqn", "nqn.moved")
    result = kvfs.fails(EXIT_CODES[HostRefused], "it offers", "target", "connect", f"{URI}x")
    assert r"nqn.\x1b[31mred" in result.err
    assert "\x1b" not in result.err


def test_transports_that_kvfs_does_not_connect_by_are_listed(kvfs: Kvfs, fake: FakeFabric) -> None:
    kvfs.ok("target", "connect", BOTH)
    first, second = sorted((fake.folder / "sys/class/nvme").glob("*/transport"))
    second.write_text("rdma\n")
    uris = [row[0] for row in kvfs.ok("target", "list", "-H", "-o", "uri").rows]
    assert all(uri.startswith(f"{URI}/") for uri in uris), "a name has one transport"
    first.write_text("fc\n")
    second.write_text("fc\n")
    assert kvfs.ok("target", "list", "-H", "-o", "nqn,uri").rows == [[NQN, "-"]] * 3


def test_a_drive_of_this_host_is_not_disconnected(kvfs: Kvfs, fake: FakeFabric) -> None:
    kvfs.ok("target", "connect", URI)
    (transport,) = (fake.folder / "sys/class/nvme").glob("*/transport")
    transport.write_text("pcie\n")
    kvfs.ok("target", "disconnect", NQN)
    assert ["disconnect", "-n", NQN] not in fake.commands
