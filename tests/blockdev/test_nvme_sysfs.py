"""What the kernel shows of NVMe, read from trees that are laid out as it lays them out."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from blockdev.nvme import LIVE, NamespaceName, Portal, Sysfs, Target, Timers, Transport

NQN = "nqn.2014-08.org.example:kv"
FIRST, SECOND = Portal(Transport.TCP, "192.0.2.1", "4420"), Portal(Transport.TCP, "198.51.100.1", "4420")
UUID_1 = UUID("6f4e0c1a-7a1b-4f3c-9a55-0d2f3b1c8e77")


def put(root: Path, **files: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def controller(root: Path, name: str, address: str, state: str = LIVE, **more: str) -> None:
    timers = {"kato": "5", "reconnect_delay": "10", "ctrl_loss_tmo": "600", "fast_io_fail_tmo": "off"}
    put(
        root / "class/nvme" / name,
        **{"state": state, "transport": "tcp", "address": address, "hostnqn": "nqn.host", **timers, **more},
    )


@pytest.fixture
def multipath(tmp_path: Path) -> Sysfs:
    """One subsystem by two ways, with native multipath."""
    folder = tmp_path / "class/nvme-subsystem/nvme-subsys1"
    put(folder, subsysnqn=NQN)
    for name, address, ana in (
        ("nvme1", "192.0.2.1", "optimized"),
        ("nvme4", "198.51.100.1", "inaccessible"),
    ):
        (folder / name).mkdir()
        controller(tmp_path, name, f"traddr={address},trsvcid=4420,src_addr=192.0.2.9")
        put(tmp_path / f"class/nvme/{name}/nvme1c{name[4:]}n1", ana_state=ana, queue__io_timeout="30000")
    put(folder / "nvme1n1", nsid="7", uuid=str(UUID_1), nguid="0" * 32, size="262144")
    return Sysfs(tmp_path, tmp_path / "dev")


def test_one_namespace_by_two_ways(multipath: Sysfs) -> None:
    (subsystem,) = multipath.subsystems()
    assert (subsystem.nqn, subsystem.live) == (NQN, True)
    assert [one.name for one in subsystem.controllers] == ["nvme1", "nvme4"]
    first, second = subsystem.controllers
    assert (subsystem.at(FIRST), subsystem.at(SECOND)) == (first, second)
    assert first.timers == Timers(keep_alive=5, reconnect_delay=10, fast_io_fail=-1, ctrl_loss=600)
    (namespace,) = subsystem.namespaces
    assert (namespace.name, namespace.number, namespace.uuids) == ("nvme1n1", 7, (UUID_1,))
    assert namespace.size == 128 << 20
    assert [(way.controller, way.ana) for way in namespace.ways] == [
        ("nvme1", "optimized"),
        ("nvme4", "inaccessible"),
    ]
    assert multipath.io_timeout("nvme4") == 30.0


def test_a_namespace_is_found_by_what_stays(multipath: Sysfs) -> None:
    target = Target(NQN, (FIRST,))
    for name in (7, UUID_1):
        found = multipath.find(NamespaceName(target, name))
        assert found is not None
        assert multipath.device(found).name == "nvme1n1"
    assert multipath.find(NamespaceName(target, 1)) is None
    assert multipath.find(NamespaceName(Target("nqn.other", (FIRST,)), 7)) is None
    held = multipath.holding("/dev/nvme1n1")
    assert held is not None
    assert held[0].nqn == NQN
    assert multipath.holding("/dev/sda") is None


def test_without_multipath_a_namespace_belongs_to_its_controller(tmp_path: Path) -> None:
    put(tmp_path / "class/nvme-subsystem/nvme-subsys0", subsysnqn=NQN)
    (tmp_path / "class/nvme-subsystem/nvme-subsys0/nvme0").mkdir()
    controller(tmp_path, "nvme0", "traddr=192.0.2.1,trsvcid=4420")
    put(
        tmp_path / "class/nvme/nvme0/nvme0n1",
        nsid="1",
        nguid="ab" * 16,
        size="8",
        ana_state="optimized",
        queue__io_timeout="5000",
    )
    ((namespace,),) = [one.namespaces for one in Sysfs(tmp_path).subsystems()]
    assert namespace.uuids == (UUID("ab" * 16),)
    assert [way.ana for way in namespace.ways] == ["optimized"]
    assert Sysfs(tmp_path).carries("/dev/nvme0n1")
    (tmp_path / "class/nvme/nvme0/state").write_text("resetting\n")
    assert Sysfs(tmp_path).carries("/dev/nvme0n1") is False
    assert Sysfs(tmp_path).io_timeout("nvme0") == 5.0


def test_whether_a_device_carries_io(multipath: Sysfs, tmp_path: Path) -> None:
    (tmp_path / "by-id").symlink_to("/dev/nvme1n1")
    ways = [tmp_path / "class/nvme/nvme1", tmp_path / "class/nvme/nvme4"]
    assert multipath.carries("/dev/nvme1n1")
    assert multipath.carries(str(tmp_path / "by-id"))
    (ways[0] / "state").write_text("connecting\n")
    assert multipath.carries("/dev/nvme1n1") is False, "the other way is inaccessible"
    (ways[1] / "nvme1c4n1/ana_state").write_text("non-optimized\n")
    assert multipath.carries("/dev/nvme1n1")
    for way in ways:
        shutil.rmtree(next(way.glob("nvme1c*")))
    assert multipath.carries("/dev/nvme1n1") is False, "no way leads to it"
    shutil.rmtree(tmp_path / "class/nvme-subsystem/nvme-subsys1/nvme1n1")
    assert multipath.carries("/dev/nvme1n1") is None, "it was removed"
    assert multipath.carries("/dev/nvme9n1") is None
    assert multipath.carries("/dev/sda") is None


def test_timers_are_set_and_read_back(multipath: Sysfs, tmp_path: Path) -> None:
    wanted = Timers(keep_alive=5, reconnect_delay=1, fast_io_fail=4, ctrl_loss=None)
    multipath.set_timers("nvme1", wanted)
    assert (tmp_path / "class/nvme/nvme1/ctrl_loss_tmo").read_text() == "-1\n"
    now = multipath.controller("nvme1")
    assert now is not None
    assert now.timers == wanted
    multipath.set_io_timeout("nvme1", 2.5)
    assert [multipath.io_timeout(name) for name in ("nvme1", "nvme4")] == [2.5, 30.0]
    queue = tmp_path / "class/nvme/nvme1/nvme1c1n1/queue"
    before = (queue / "io_timeout").stat().st_mtime_ns
    multipath.set_io_timeout("nvme1", 2.5)
    assert (queue / "io_timeout").stat().st_mtime_ns == before, (
        "writing waits for I/O, so it is done where it must"
    )


def test_what_vanishes_while_it_is_read_is_not_there(multipath: Sysfs, tmp_path: Path) -> None:
    (tmp_path / "class/nvme/nvme1/state").unlink()
    (tmp_path / "class/nvme-subsystem/nvme-subsys1/nvme1n1/nsid").unlink()
    (subsystem,) = multipath.subsystems()
    assert [one.name for one in subsystem.controllers] == ["nvme4"]
    assert subsystem.namespaces == ()


def test_a_controller_may_tell_less(tmp_path: Path) -> None:
    put(tmp_path / "class/nvme-subsystem/nvme-subsys0", subsysnqn="nqn.drive")
    (tmp_path / "class/nvme-subsystem/nvme-subsys0/nvme0").mkdir()
    put(tmp_path / "class/nvme/nvme0", state=LIVE, transport="pcie", address="0000:00:06.0")
    ((drive,),) = [one.controllers for one in Sysfs(tmp_path).subsystems()]
    assert (drive.address, drive.service, drive.timers) == ("0000:00:06.0", "", None)
    assert not drive.is_at(FIRST)


def test_a_kernel_without_nvme(tmp_path: Path) -> None:
    assert Sysfs(tmp_path).subsystems() == []
    assert not Sysfs(tmp_path).has_rdma()
