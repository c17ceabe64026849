from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kvfs.cli.exit_codes import USAGE
from kvfs.export import held
from kvfs.export.configfs import find_target
from kvfs.export.testing import FakeTarget
from tests.blockdev.block_devices import loop_device
from tests.conftest import ExpectLog
from tests.dhchap import secret
from tests.kvfs.conftest import Kvfs
from tests.kvfs.exporting import COLD, GPU1, GPU2, HOT, SIZE, Storage
from tests.test_project import ROOT


@pytest.fixture
def node(kvfs: Kvfs, monkeypatch: pytest.MonkeyPatch) -> Storage:
    storage = Storage(kvfs)

    def find(*, to_change: bool = True) -> FakeTarget:
        return storage.target

    monkeypatch.setattr("kvfs.cli.export.find_target", find)
    return storage


# ── add ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_export_is_made_whole_and_shown(node: Storage) -> None:
    node.ok(
        *("add", HOT, node.device("d1"), node.device("d2")),
        *("--port", "tcp:127.0.0.1", "--port", "rdma:[2001:db8::1]:4421", "--host", GPU1),
    )
    tree = node.tree()
    subsystem = f"subsystems/{HOT}"
    assert tree[f"{subsystem}/attr_allow_any_host"] == "0"
    assert tree[f"{subsystem}/allowed_hosts/{GPU1}"] == f"-> hosts/{GPU1}"
    assert tree[f"{subsystem}/namespaces/2/device_path"] == str(node.device("d2"))
    assert tree[f"{subsystem}/namespaces/2/enable"] == "1"
    assert [tree[f"ports/2/addr_{name}"] for name in ("trtype", "adrfam", "traddr", "trsvcid")] == [
        "rdma",
        "ipv6",
        "2001:db8::1",
        "4421",
    ]
    assert tree[f"ports/2/subsystems/{HOT}"] == f"-> {subsystem}"
    assert node.ok("list", "-H", "-p").rows == [
        [HOT, "live", "2", str(2 * SIZE), "1", "tcp:127.0.0.1:4420,rdma:[2001:db8::1]:4421"]
    ]
    shown = node.show()
    assert [one["uuid"] for one in shown["namespaces"]] == [
        tree[f"{subsystem}/namespaces/{number}/device_uuid"] for number in (1, 2)
    ]
    assert shown["serial"] == tree[f"{subsystem}/attr_serial"]
    assert shown["hosts"] == [{"nqn": GPU1, "key": False}]
    assert "ports: tcp:127.0.0.1:4420, rdma:[2001:db8::1]:4421\n" in node.ok("show", HOT).out


def test_the_same_again_changes_nothing(node: Storage) -> None:
    node.add("--key-file", node.key("k", secret(1)))
    before = node.tree(), node.file.read_text(), node.file.stat().st_ino
    node.add("--key-file", node.key("k", secret(1)))
    assert node.add("--key-file", node.key("k", secret(1)), "--dry-run", "-H").out == ""
    assert before == (node.tree(), node.file.read_text(), node.file.stat().st_ino)


def test_what_is_new_is_added_and_what_is_there_stays(node: Storage) -> None:
    node.add()
    node.target.connect(HOT, GPU1)
    before = node.show()
    node.ok("add", HOT, node.device("d2"), "--host", GPU2, "--port", "rdma:192.0.2.1")
    after = node.show()
    assert after["namespaces"][0] == before["namespaces"][0]
    assert [one["path"] for one in after["namespaces"]] == [str(node.device("d1")), str(node.device("d2"))]
    assert [one["nqn"] for one in after["hosts"]] == [GPU1, GPU2]
    assert [one["transport"] for one in after["ports"]] == ["tcp", "rdma"]
    assert node.target.connections, "whoever was connected still is"


def test_a_device_by_another_name_is_the_same_device(node: Storage) -> None:
    node.add()
    alias = node.kvfs.device("alias")
    alias.symlink_to(node.device("d1"))
    node.add(alias)
    assert len(node.show()["namespaces"]) == 1


def test_a_dry_run_shows_every_write_but_no_secret(node: Storage) -> None:
    key = secret(7)
    shown = node.add("--key-file", node.key("k", key), "--dry-run", "-H").rows
    assert ["write", f"hosts/{GPU1}/dhchap_key", "(secret)"] in shown
    assert shown[-1] == ["link", f"ports/1/subsystems/{HOT}", f"subsystems/{HOT}"]
    again = node.add("--key-file", node.key("k", key), "--dry-run", "--json")
    assert [list(step.values()) for step in again.json["steps"]] == [
        [step[0], step[1], "" if step[2] == "-" else step[2]] for step in shown
    ]
    assert key not in again.out
    assert not node.file.exists()
    assert set(node.tree()) == {"hosts/", "ports/", "subsystems/"}


def test_no_host_may_connect_unless_it_is_said(node: Storage) -> None:
    made = node("add", HOT, node.device("d1"), "--port", "tcp:127.0.0.1")
    assert made.code == 0
    assert "no host may connect" in made.err
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU1)
    node.ok("add", HOT, "--host", GPU1)
    node.target.connect(HOT, GPU1)
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU2)
    node.ok("add", HOT, "--allow-any-host")
    node.target.connect(HOT, GPU2)
    assert node.ok("list", "-H", "-o", "hosts").rows == [["any"]]
    node.ok("add", HOT, "--host", GPU1)
    assert node.target.connections == [], "who may no longer connect is cut off"
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU2)


def test_two_exports_share_a_port_and_a_host(node: Storage) -> None:
    node.add()
    node.ok("add", COLD, node.device("d2"), "--port", "tcp:127.0.0.1", "--host", GPU1)
    assert "ports/2/" not in node.tree()
    node.ok("remove", HOT)
    assert node.state(COLD) == "live"
    node.target.connect(COLD, GPU1)
    node.ok("remove", COLD)
    assert set(node.tree()) == {"hosts/", "ports/", "subsystems/"}


def test_what_others_made_stays(node: Storage) -> None:
    for folder in ("hosts/nqn.2026-01.org.other:h", "subsystems/nqn.2026-01.org.other:s", "ports/1"):
        node.target._make(node.target.root / folder)
    for name, value in (("trtype", "tcp"), ("adrfam", "ipv4"), ("traddr", "127.0.0.1"), ("trsvcid", "4420")):
        node.target._write(node.target.root / f"ports/1/addr_{name}", value)
    link = node.target.root / "ports/1/subsystems/nqn.2026-01.org.other:s"
    node.target._link(link, node.target.root / "subsystems/nqn.2026-01.org.other:s")
    before = node.tree()
    node.add()
    assert "ports/2/" not in node.tree(), "the port at that address is shared"
    node.ok("remove", HOT)
    assert node.tree() == before
    taken = "nqn.2026-01.org.other:s"
    node.fails(87, "not by kvfs", "add", taken, node.device("d1"), "--port", "tcp:127.0.0.1")


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_keys_reach_the_target_and_nothing_else(node: Storage) -> None:
    key, controller = secret(1), secret(2)
    files = node.key("k", key), node.key("c", controller)
    node.add("--key-file", files[0], "--controller-key-file", files[1])
    assert node.tree()[f"hosts/{GPU1}/dhchap_key"] == key
    assert node.tree()[f"hosts/{GPU1}/dhchap_ctrl_key"] == controller
    for name in ("dhchap_key", "dhchap_ctrl_key"):
        mode = (node.target.root / f"hosts/{GPU1}" / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600, "other users of the node cannot read it"
    for text in (node.file.read_text(), node.ok("show", HOT).out, node.ok("list", "--json").out):
        assert key not in text
        assert controller not in text
    assert "(with key)" in node.ok("show", HOT).out
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU1, secret(3))
    node.target.connect(HOT, GPU1, key)
    files[0].write_text(secret(4))
    node.ok("add", HOT)
    assert node.tree()[f"hosts/{GPU1}/dhchap_key"] == secret(4), "a key that was renewed counts after an add"


def test_who_may_not_read_secrets_sees_the_exports(node: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add("--key-file", node.key("k", secret(1)))
    read = node.target.read

    def without_secrets(path: str) -> str:
        if path.endswith("dhchap_key"):
            raise PermissionError(13, "Permission denied", path)
        return read(path)

    monkeypatch.setattr(node.target, "read", without_secrets)
    assert node.state() == "live"


def test_keys_that_cannot_be_used_are_refused(node: Storage) -> None:
    add = ("add", HOT, node.device("d1"), "--port", "tcp:127.0.0.1", "--host", GPU1, "--key-file")
    node.fails(106, "No such file", *add, node.kvfs.device("nothing"))
    node.fails(106, "not a secret of the form", *add, node.key("text", "swordfish"))
    node.fails(106, "was not copied whole", *add, node.key("cut", secret(1).replace("AQEBA", "AQECA", 1)))
    node.fails(106, "has 32 bytes", *add, node.key("hash", secret(1, "03")))
    open_key = node.key("open", secret(1))
    open_key.chmod(0o640)
    assert "swordfish" not in node.fails(106, "others may read it; 'chmod 600", *add, open_key).err


def test_a_secret_in_the_file_of_exports_is_not_shown(node: Storage) -> None:
    node.file.write_text(f"version: 1\nkeys:\n  {GPU1}:\n    key_file: '{secret(1)}'\n")
    said = node.fails(10, "give the file that it is in", "list").err
    assert secret(1) not in said


def test_the_file_stays_as_private_as_it_was(node: Storage) -> None:
    add = ("add", HOT, node.device("d1"), "--port", "tcp:127.0.0.1", "--host")
    node.ok(*add, GPU1)
    node.file.chmod(0o640)
    node.ok(*add, GPU2)
    assert node.file.stat().st_mode & 0o777 == 0o640


def test_a_kernel_that_cannot_authenticate_is_told_so(node: Storage) -> None:
    node.target = FakeTarget(node.target.root, authentication=False)
    node.fails(
        *(89, "cannot authenticate", "add", HOT, node.device("d1"), "--port", "tcp:127.0.0.1"),
        *("--host", GPU1, "--key-file", node.key("k", secret(1))),
    )


def test_options_that_do_not_go_together(node: Storage) -> None:
    device, key = node.device("d1"), node.key("k", secret(1))
    node.fails(USAGE, "exclude each other", "add", HOT, device, "--allow-any-host", "--host", GPU1)
    node.fails(USAGE, "needs the --host", "add", HOT, device, "--key-file", key)
    said = node.fails(USAGE, "a secret may not stand", "add", HOT, "--host", GPU1, "--key-file", secret(1))
    assert secret(1) not in said.err
    node.fails(USAGE, "needs --key-file", "add", HOT, device, "--host", GPU1, "--controller-key-file", key)
    node.fails(USAGE, "is not an NQN", "add", "hot", device)
    node.fails(USAGE, "is not a port", "add", HOT, device, "--port", "192.0.2.1")
    node.fails(USAGE, "no transport 'udp'", "add", HOT, device, "--port", "udp:192.0.2.1")
    node.fails(USAGE, "not an IP address", "add", HOT, device, "--port", "tcp:localhost")


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────


def test_addresses_that_cannot_be_used_undo_everything(node: Storage) -> None:
    node.target.taken.add(("127.0.0.1", "4420"))
    add = ("add", HOT, node.device("d1"), "--host", GPU1, "--port", "rdma:192.0.2.1")
    node.fails(85, "something else listens there", *add, "--port", "tcp:127.0.0.1")
    node.fails(86, "not an address of this node", *add, "--port", "tcp:192.0.2.99")
    node.ok(*add)
    node.target.connect(HOT, GPU1)
    node.fails(85, "something else", "add", HOT, "--host", GPU2, "--port", "tcp:127.0.0.1")
    assert node.target.connections, "undoing cuts nobody off"
    assert node.state() == "live"


def test_devices_that_are_not_there_or_nothing_to_export(node: Storage) -> None:
    add = ("add", HOT, "--port", "tcp:127.0.0.1")
    node.fails(14, "make a file with 'fallocate", *add, node.kvfs.device("none"))
    node.fails(14, "see that the drive is connected", *add, "/dev/kvfs-no-such-drive")
    node.fails(40, "neither a file nor a block device", *add, node.kvfs.folder)
    node.kvfs.device("empty").touch()
    node.fails(40, "it is empty", *add, node.kvfs.device("empty"))
    node.fails(10, "would have no device", *add)
    node.fails(10, "would be reached nowhere", "add", HOT, node.device("d1"))


def test_a_device_is_exported_once(node: Storage) -> None:
    node.add()
    node.fails(87, f"as namespace 1 of {HOT}", "add", COLD, node.device("d1"), "--port", "tcp:127.0.0.1")


def test_a_device_is_exported_once_though_nothing_is_in_effect(node: Storage) -> None:
    node.add()
    node.ok("stop")
    other = ("add", COLD, node.device("d1"), "--port", "tcp:127.0.0.1", "--host", GPU1)
    node.fails(87, f"d1 is exported already, as namespace 1 of {HOT}", *other)


def test_a_device_that_the_file_names_twice_is_exported_once(node: Storage) -> None:
    node.add(node.device("d2"))
    node.ok("add", COLD, node.device("d3"), "--port", "tcp:127.0.0.1", "--host", GPU1)
    node.file.write_text(node.file.read_text().replace("/d2\n", "/d1\n").replace("/d3\n", "/d1\n"))
    node.reboot()
    result = node("restore")
    assert result.code == 91
    assert result.err.count(f"d1 is exported already, as namespace 1 of {HOT}") == 2
    paths = [name for name, value in node.tree().items() if value.endswith("/d1")]
    assert paths == [f"subsystems/{HOT}/namespaces/1/device_path"]


@pytest.mark.loop
def test_a_disk_and_its_partition_are_not_both_exported(
    node: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loop_device(node.device("one")) as disk, loop_device(node.device("two")) as part:
        family = {str(held.device_number(path)) for path in (disk, part)}
        monkeypatch.setattr(
            "kvfs.export.held.related", lambda number: family if number in family else {number}
        )
        add = ("--port", "tcp:127.0.0.1", "--host", GPU1)
        node.fails(87, "are on the same drive", "add", HOT, disk, part, *add)
        node.ok("add", HOT, disk, *add)
        node.fails(87, f"{part} is exported already, as namespace 1 of {HOT}", "add", HOT, part)


def test_what_a_device_holds_is_not_given_away(node: Storage) -> None:
    ext4 = b"\0" * 1080 + b"\x53\xef"
    add = ("add", HOT, node.device("d1", ext4), "--port", "tcp:127.0.0.1", "--host", GPU1)
    node.fails(53, "is not empty, it holds: .*ext.*--force to let hosts", *add)
    node.ok(*add, "--force")
    node.ok(*add)  # it is exported now: what hosts put there is theirs


def test_a_pool_may_be_exported_unless_this_node_has_it_open(node: Storage) -> None:
    (device,) = node.kvfs.make_pool(devices=1)
    node.ok("add", HOT, device, "--port", "tcp:127.0.0.1", "--host", GPU1)


@pytest.mark.loop
def test_a_drive_that_this_node_uses_is_refused(node: Storage, tmp_path: Path) -> None:
    with loop_device(node.device("backing")) as drive:
        add = ("--port", "tcp:127.0.0.1", "--host", GPU1)
        node.fails(88, f"attached to {drive}", "add", HOT, node.device("backing"), *add)
        node.ok("add", HOT, drive, *add)
        descriptor = os.open(drive, os.O_RDONLY | os.O_EXCL)  # as the kernel has what is mounted
        try:
            node.ok("remove", HOT)
            node.fails(88, "in use on this node: mounted, or part of", "add", HOT, drive, *add, "--force")
        finally:
            os.close(descriptor)


def test_files_get_all_their_blocks(node: Storage) -> None:
    sparse = node.kvfs.device("sparse")
    with sparse.open("wb") as file:
        file.truncate(SIZE)
    node.ok("add", HOT, sparse, "--port", "tcp:127.0.0.1", "--host", GPU1)
    assert sparse.stat().st_blocks * 512 >= SIZE


# ── remove ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_removing_leaves_nothing(node: Storage) -> None:
    empty = node.tree()
    node.add("--key-file", node.key("k", secret(1)))
    assert node.ok("remove", HOT, "--dry-run", "-H").rows[0] == [
        "unlink",
        f"ports/1/subsystems/{HOT}",
        "-",
    ]
    node.ok("remove", HOT)
    assert node.tree() == empty
    assert node.ok("list", "-H").out == ""
    node.fails(84, "no export .*; known exports: none", "remove", HOT)


def test_parts_are_removed(node: Storage) -> None:
    node.add(node.device("d2"), "--port", "tcp:192.0.2.1", "--host", GPU2)
    node.target.connect(HOT, GPU1)
    node.target.connect(HOT, GPU2)
    node.ok("remove", HOT, node.device("d1"), "--port", "tcp:127.0.0.1", "--host", GPU2)
    tree = node.tree()
    assert f"subsystems/{HOT}/namespaces/1/" not in tree
    assert f"hosts/{GPU2}/" not in tree
    assert "ports/1/" not in tree
    assert node.target.connections == [], "a host that may no longer connect does not stay connected"
    node.target.connect(HOT, GPU1)
    node.fails(10, "the last device", "remove", HOT, node.device("d2"))
    node.fails(10, "the last port", "remove", HOT, "--port", "tcp:192.0.2.1")
    node.fails(84, "does not have", "remove", HOT, node.device("d1"))
    node.fails(84, "does not have", "remove", HOT, "--port", "tcp:127.0.0.1")
    node.fails(84, "does not have", "remove", HOT, "--host", GPU2)
    node.ok("add", HOT, node.device("d1"))
    assert [one["number"] for one in node.show()["namespaces"]] == [2, 1]


def test_a_host_is_removed_though_key_files_are_gone(node: Storage) -> None:
    key = node.key("k", secret(1))
    node.add("--host", GPU2, "--key-file", key)
    key.unlink()
    node.ok("remove", HOT, "--host", GPU2)
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU2, secret(1))
    node.target.connect(HOT, GPU1, secret(1))


def test_what_is_down_stays_down_when_a_part_is_removed(node: Storage) -> None:
    node.add("--host", GPU2)
    node.ok("stop")
    node.ok("remove", HOT, "--host", GPU2)
    assert node.state() == "down"
    node.ok("restore")
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU2)


# ── reboots ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_is_as_it_was_after_a_reboot(node: Storage) -> None:
    node.add(node.device("d2"), "--key-file", node.key("k", secret(1)), "--port", "rdma:192.0.2.1")
    node.ok("add", COLD, node.device("d3"), "--port", "tcp:127.0.0.1", "--allow-any-host")
    before = node.tree()
    node.reboot()
    assert {node.state(HOT), node.state(COLD)} == {"down"}
    node.ok("restore")
    assert node.tree() == before
    node.target.connect(HOT, GPU1, secret(1))
    node.ok("restore")
    assert node.target.connections, "what is in effect is left alone"
    node.ok("stop")
    assert set(node.tree()) == {"hosts/", "ports/", "subsystems/"}
    node.ok("restore")
    assert node.tree() == before


def test_identities_survive_the_loss_of_the_file(node: Storage) -> None:
    node.add()
    before = node.tree()
    node.reboot()
    node.file.unlink()
    node.add()
    assert node.tree() == before
    assert (
        len({uuid.UUID(value) for name, value in before.items() if name.endswith(("_uuid", "_nguid"))}) == 2
    )


def test_what_is_missing_takes_nothing_else_with_it(node: Storage) -> None:
    node.add(node.device("d2"), "--port", "rdma:192.0.2.1")
    node.ok("add", COLD, node.device("d3"), "--port", "tcp:127.0.0.1", "--host", GPU1)
    node.reboot()
    away = node.device("d1").rename(node.kvfs.device("away"))
    node.target.taken.add(("192.0.2.1", "4420"))
    result = node("restore")
    assert result.code == 91
    assert f"kvfs: {HOT}: {node.kvfs.device('d1')} does not exist" in result.err
    assert f"kvfs: {HOT}: rdma 192.0.2.1 4420: something else listens there" in result.err
    assert "1 of 2 exports are not, or not wholly, in effect" in result.err
    assert (node.state(HOT), node.state(COLD)) == ("partial", "live")
    node.target.connect(HOT, GPU1)
    away.rename(node.kvfs.device("d1"))
    node.target.taken.clear()
    node.ok("restore")
    assert node.state() == "live"
    assert node.target.connections, "what came later cut nobody off"


def test_an_export_whose_key_is_missing_is_not_open_to_all(node: Storage) -> None:
    key = node.key("k", secret(1))
    node.add("--key-file", key)
    node.reboot()
    key.unlink()
    assert node("restore").code == 91
    with pytest.raises(ConnectionError):
        node.target.connect(HOT, GPU1)


def test_another_drive_in_its_place_is_not_exported(node: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add()
    node.file.write_text(node.file.read_text().replace("    ports:", "        wwid: eui.0025\n    ports:"))
    node.reboot()
    result = node("restore")
    assert result.code == 91
    assert "is another drive than the one that was exported (without identity, not eui.0025)" in result.err
    assert node.state() == "down"


KILLED = """
import itertools, os, signal, sys
from pathlib import Path
import kvfs.cli.export
from kvfs.cli.main import main
from kvfs.export.testing import FakeTarget

class Mortal(FakeTarget):
    steps = itertools.count()

    def do(self, step):
        if next(self.steps) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        super().do(step)

target = Mortal(Path(sys.argv[1]))
kvfs.cli.export.find_target = lambda **how: target
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.loop
def test_a_drive_that_is_held_after_a_reboot_is_not_exported(node: Storage) -> None:
    with loop_device(node.device("backing")) as drive:
        node.ok("add", HOT, drive, "--port", "tcp:127.0.0.1", "--host", GPU1)
        node.reboot()
        descriptor = os.open(drive, os.O_RDONLY | os.O_EXCL)  # as a file system of several devices has it
        try:
            result = node("restore")
            assert result.code == 91
            assert "in use on this node" in result.err
            assert node.state() == "down"
        finally:
            os.close(descriptor)


def another_drive(node: Storage) -> None:
    """Export two drives to two hosts, then reboot; since then the second is another drive."""
    node.add(node.device("d2"), "--host", GPU2)
    node.file.write_text(node.file.read_text().replace("    ports:", "        wwid: eui.0025\n    ports:"))
    node.reboot()
    assert node("restore").code == 91
    assert node.state() == "partial"


def test_what_is_added_does_not_export_another_drive(node: Storage, expect_log: ExpectLog) -> None:
    another_drive(node)
    expect_log("d2 is another drive than the one that was exported")
    result = node("add", HOT, "--host", "nqn.2014-08.org.nvmexpress:uuid:gpu3")
    assert result.code == 0
    assert f"subsystems/{HOT}/namespaces/2/" not in node.tree()
    node.target.connect(HOT, "nqn.2014-08.org.nvmexpress:uuid:gpu3")
    node.fails(88, "is another drive", "add", HOT, node.device("d2"))


def test_a_host_is_removed_while_a_drive_is_another_one(node: Storage) -> None:
    another_drive(node)
    node.ok("remove", HOT, "--host", GPU2)
    assert f"subsystems/{HOT}/namespaces/2/" not in node.tree()
    assert len(node.show()["namespaces"]) == 2, "it is remembered"
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU2)


def test_a_host_is_removed_while_a_drive_and_an_address_are_missing(node: Storage) -> None:
    node.add(node.device("d2"), "--host", GPU2, "--port", "tcp:192.0.2.1")
    node.device("d2").unlink()
    node.target = FakeTarget(node.kvfs.folder / "rebooted")
    assert node("restore").code == 91
    node.ok("remove", HOT, "--host", GPU2)
    node.target.connect(HOT, GPU1)
    with pytest.raises(PermissionError):
        node.target.connect(HOT, GPU2)
    node.ok("remove", HOT, node.device("d2"))
    node.ok("remove", HOT, "--port", "tcp:192.0.2.1")
    assert node.state() == "live"


def killed(node: Storage, after: int, *command: str | Path) -> None:
    """Run a command that is killed after so many of its steps."""
    arguments = (node.target.root, str(after), "export", *command, "--file", node.file)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "KVFS_STATE_DIR": str(node.kvfs.state.root)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("steps", [0, 4, 13, 14])
def test_a_change_that_was_killed_is_completed_by_saying_it_again(node: Storage, steps: int) -> None:
    empty = node.tree()
    add = ("add", HOT, node.device("d1"), "--port", "tcp:127.0.0.1", "--host", GPU1)
    killed(node, steps, *add)
    assert node.state() == ("partial" if steps else "down")
    node.ok(*add)
    assert node.state() == "live"
    killed(node, min(steps, 6), "remove", HOT)
    node.ok("remove", HOT)
    assert node.tree() == empty
    assert node.ok("list", "-H").out == ""


def test_a_removal_that_cannot_be_remembered_is_undone(
    node: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device", str(node.file))

    with monkeypatch.context() as patch:
        patch.setattr("kvfs.export.node.save_exports", refuse)
        node.fails(3, "No space left", "remove", HOT)
    assert node.state() == "live"


def test_a_disk_that_is_full_is_named_and_nothing_changes(
    node: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add()

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    node.fails(3, f"{node.file}: No space left", "add", HOT, "--host", GPU2)
    assert list(node.kvfs.folder.glob(".exports*")) == []


def test_the_file_may_be_a_link(node: Storage) -> None:
    kept = node.kvfs.device("kept.yaml")
    node.file.symlink_to(kept)
    node.add()
    assert node.file.is_symlink()
    assert HOT in kept.read_text()


def test_what_cannot_be_undone_is_said(
    node: Storage, monkeypatch: pytest.MonkeyPatch, expect_log: ExpectLog
) -> None:
    node.target.taken.add(("127.0.0.1", "4420"))

    def refuse(path: Path) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(node.target, "_remove", refuse)
    expect_log("could not undo: rmdir")
    result = node("add", HOT, node.device("d1"), "--port", "tcp:127.0.0.1", "--host", GPU1)
    assert result.code == 85


# ── the node itself ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_the_node_lacks_is_told_apart(
    kvfs: Kvfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configfs = tmp_path / "config"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    add = ("export", "restore", "--file", tmp_path / "exports.yaml")
    kvfs.fails(83, "only root may", *add)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("kvfs.cli.export.find_target", lambda **how: find_target(configfs, **how))
    kvfs.fails(82, "configfs is not mounted", *add)
    monkeypatch.setattr("os.path.ismount", lambda path: True)
    kvfs.fails(81, "'modprobe -a nvmet nvmet-tcp'", *add)
    assert kvfs.ok("export", "list", "-H", "--file", tmp_path / "exports.yaml").out == ""
    (configfs / "nvmet").mkdir(parents=True)
    kvfs.ok(*add)
