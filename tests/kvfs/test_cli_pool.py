from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from kvfs.cli.exit_codes import INTERRUPTED, USAGE
from kvfs.config import load_config
from tests.blockdev.block_devices import allocated, loop_device
from tests.conftest import ExpectLog
from tests.kvfs.conftest import SIZE, Kvfs, Terminal

SUPERBLOCKS = (0, 512 << 10)


def damage(device: Path, *offsets: int) -> None:
    with device.open("r+b") as file:
        for offset in offsets:
            file.seek(offset + 100)
            file.write(b"\xa5" * 64)


# ── create ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pool_of_files_is_made_and_seen(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    for path in paths:
        assert path.stat().st_size == SIZE
        assert path.stat().st_blocks * 512 >= SIZE, "sparse"
    assert kvfs.ok("pool", "list", "-H", "-p").rows == [["hot", "idle", "2", str(2 * SIZE), "-"]]
    shown = kvfs.ok("pool", "status", "hot", "--json").json
    assert shown["output_version"] == {"command": "pool status", "major": 1, "minor": 1}
    assert shown["pool"]["extent_size"] == 2 << 20
    assert [device["path"] for device in shown["pool"]["devices"]] == [str(path) for path in paths]
    assert {device["state"] for device in shown["pool"]["devices"]} == {"live"}
    assert load_config(kvfs.state.folder("hot").config).devices == tuple(paths)


def test_people_see_a_table_and_scripts_choose_columns(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    assert kvfs.ok("pool", "list").out.splitlines()[0].split() == [
        "NAME",
        "STATE",
        "DEVICES",
        "SIZE",
        "MOUNT_POINT",
    ]
    assert "128MiB" in kvfs.ok("pool", "list").out
    assert kvfs.ok("pool", "list", "-H", "-o", "size,name").rows == [["128MiB", "hot"]]
    assert "name: hot\n" in kvfs.ok("pool", "status", "hot").out
    assert [row[1] for row in kvfs.ok("pool", "status", "hot", "-H", "-o", "number,uuid").rows] == [
        device["uuid"] for device in kvfs.ok("pool", "status", "hot", "--json").json["pool"]["devices"]
    ]
    kvfs.fails(USAGE, "no column 'colour', there are name, state", "pool", "list", "-o", "colour")


def test_a_dry_run_changes_nothing(kvfs: Kvfs) -> None:
    kvfs.device("old").write_bytes(b"\0" * SIZE)
    arguments = (
        "pool",
        "create",
        "hot",
        kvfs.device("new"),
        kvfs.device("old"),
        "--size",
        "64MiB",
        "--dry-run",
    )
    assert kvfs.ok(*arguments, "-H", "-p").rows == [
        ["create file", str(SIZE), str(kvfs.device("new")), "-"],
        ["use file", str(SIZE), str(kvfs.device("old")), "-"],
    ]
    shown = kvfs.ok(*arguments, "--json").json
    assert shown["dry_run"] is True
    assert [device["size"] for device in shown["devices"]] == [SIZE, SIZE]
    assert not kvfs.device("new").exists()
    assert kvfs.ok("pool", "list", "-H").out == ""


def test_a_name_is_taken_once(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    kvfs.fails(13, "pool 'hot' exists", "pool", "create", "hot", kvfs.device("x"), "--size", "64MiB")
    kvfs.fails(
        USAGE, "pool name 'a/b' is not usable", "pool", "create", "a/b", kvfs.device("x"), "--size", "64MiB"
    )


def test_what_cannot_become_a_device_is_refused(kvfs: Kvfs) -> None:
    create = ("pool", "create", "hot")
    kvfs.fails(14, "does not exist: give --size", *create, kvfs.device("a"))
    kvfs.fails(14, "see that the drive is connected", *create, "/dev/kvfs-no-such-drive", "--size", "64MiB")
    kvfs.fails(14, "there is no directory", *create, kvfs.device("no/a"), "--size", "64MiB")
    kvfs.fails(54, "is given twice", *create, kvfs.device("a"), kvfs.device("a"), "--size", "64MiB")
    kvfs.fails(40, "neither a file nor a block device", *create, kvfs.folder)
    assert list(kvfs.folder.iterdir()) == []


def test_sizes_need_their_right_unit(kvfs: Kvfs) -> None:
    create = ("pool", "create", "hot", kvfs.device("a"))
    kvfs.fails(USAGE, "'64MB' is ambiguous: write 64MiB", *create, "--size", "64MB")
    kvfs.fails(USAGE, "extents cannot have 3MiB: choose one of 2MiB, 4MiB", *create, "--extent-size", "3MiB")


def test_a_device_that_is_too_small_leaves_nothing_behind(kvfs: Kvfs) -> None:
    kvfs.fails(45, "are needed", "pool", "create", "hot", kvfs.device("a"), "--size", "2MiB")
    assert not kvfs.device("a").exists()
    assert not kvfs.state.folder("hot").path.exists()


def test_a_full_file_system_is_named_and_left_as_it_was(kvfs: Kvfs) -> None:
    free = os.statvfs(kvfs.folder)
    more = 2 * free.f_bavail * free.f_frsize
    kvfs.fails(
        45,
        "choose a smaller --size or another file system; nothing was made",
        *("pool", "create", "hot", kvfs.device("a"), kvfs.device("b"), "--size", str(more)),
    )
    assert not kvfs.device("a").exists()


def test_a_device_that_holds_something_needs_force(kvfs: Kvfs) -> None:
    device = kvfs.device("a")
    with device.open("wb") as file:
        file.truncate(SIZE)
        file.seek(4096 - 10)
        file.write(b"SWAPSPACE2")
    kvfs.fails(53, "holds: swap.*--force", "pool", "create", "hot", device)
    kvfs.ok("pool", "create", "hot", device, "--force", "--extent-size", "2MiB")
    kvfs.fails(53, r"holds: kvfs pool 'hot'", "pool", "create", "cold", device)


# ── what may be wrong with devices ───────────────────────────────────────────────────────────────────────────


def test_a_missing_device_leaves_the_pool_degraded(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    paths[1].rename(kvfs.device("away"))
    expect_log("hot-1.*the pool goes on without it")
    expect_log("device 1 of pool 'hot' is missing: its objects are misses")
    devices = kvfs.ok("pool", "status", "hot", "-H", "-o", "state,path").rows
    assert devices == [["live", str(paths[0])], ["missing", "-"]]


def test_without_any_device_there_is_no_pool(kvfs: Kvfs) -> None:
    for path in kvfs.make_pool():
        path.unlink()
    missing = "none of the devices of pool 'hot' is there: .*hot-0: No such file.*hot-1: No such file"
    kvfs.fails(14, missing, "pool", "status", "hot")


def test_swapped_devices_are_told_apart_by_what_they_say(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    before = kvfs.ok("pool", "status", "hot", "-H", "-o", "number,uuid").out
    paths[0].rename(kvfs.device("x"))
    paths[1].rename(paths[0])
    kvfs.device("x").rename(paths[1])
    assert kvfs.ok("pool", "status", "hot", "-H", "-o", "number,uuid").out == before
    kvfs("pool", "scrub", "hot")
    assert kvfs.ok("pool", "status", "hot", "-H", "-o", "number,path").rows == [
        ["0", str(paths[1])],
        ["1", str(paths[0])],
    ]


def test_a_device_of_another_pool_is_named(kvfs: Kvfs) -> None:
    hot = kvfs.make_pool("hot")
    cold = kvfs.make_pool("cold")
    shutil.copyfile(cold[0], hot[1])
    kvfs.fails(54, "hot-1 belongs to pool 'cold', not to 'hot'", "pool", "status", "hot")


def test_a_device_given_under_two_names_is_named(kvfs: Kvfs) -> None:
    hot = kvfs.make_pool()
    shutil.copyfile(hot[0], hot[1])
    kvfs.fails(54, "are the same device", "pool", "status", "hot")


def test_a_shrunk_device_is_named(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    os.truncate(paths[1], SIZE // 2)
    kvfs.fails(54, "hot-1 has shrunk", "pool", "status", "hot")


def test_one_damaged_superblock_is_no_harm_and_two_are_named(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    damage(paths[0], SUPERBLOCKS[0])
    kvfs.ok("pool", "status", "hot")
    damage(paths[0], SUPERBLOCKS[1])
    kvfs.fails(51, "hot-0: .*; to go on without it, take it out of 'devices'", "pool", "status", "hot")


def test_a_newer_format_is_refused(kvfs: Kvfs, monkeypatch: pytest.MonkeyPatch) -> None:
    from blockdev import layout

    newer = layout.superblock if hasattr(layout, "superblock") else layout
    monkeypatch.setattr(newer, "SUPERBLOCK_VERSION", 99)
    kvfs.make_pool()
    monkeypatch.undo()
    kvfs.fails(52, "hot-0: .*version 99", "pool", "status", "hot")


def test_a_pool_of_another_domain_is_taken_only_with_force(kvfs: Kvfs, tmp_path: Path) -> None:
    paths = kvfs.make_pool()
    (kvfs.state.root / "domain").write_text("local:00000000-0000-4000-8000-000000000001\n")
    kvfs.fails(61, "use the state directory it was made with, or take the pool over", "pool", "status", "hot")
    kvfs.fails(61, "say --force if no other host uses it", "pool", "take", "hot", *paths)
    kvfs.ok("pool", "take", "hot", *paths, "--force")
    kvfs.ok("pool", "status", "hot")


def test_a_pool_whose_state_is_lost_is_taken_from_its_devices(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    shutil.rmtree(kvfs.state.root)
    kvfs.fails(12, "no pool 'hot'", "pool", "status", "hot")
    kvfs.fails(54, "belongs to pool 'hot', not to 'cold'", "pool", "take", "cold", *paths)
    kvfs.ok("pool", "take", "hot", *reversed(paths), "--force")
    assert kvfs.ok("pool", "list", "-H", "-o", "name,devices").rows == [["hot", "2"]]
    kvfs.ok("pool", "status", "hot")


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_configuration_is_named_with_its_line(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    config = kvfs.state.folder("hot").config
    good = config.read_text()
    config.write_text(good + "memroy: 1GiB\n")
    kvfs.fails(10, r"pool.yaml:6: .*memroy.*memory", "pool", "status", "hot")
    config.write_text(good + "memory: 1GB\n")
    kvfs.fails(10, r"pool.yaml:6: .*'1GB' is ambiguous", "pool", "status", "hot")


def test_a_broken_configuration_hides_no_other_pool(kvfs: Kvfs) -> None:
    kvfs.make_pool("cold")
    kvfs.make_pool("hot")
    kvfs.state.folder("cold").config.write_text("x: 1\n")
    listed = kvfs("pool", "list", "-H", "-o", "name,state,devices")
    assert listed.rows == [["cold", "unreadable", "-"], ["hot", "idle", "2"]]
    assert "pool.yaml:1: " in listed.err
    assert listed.code == 10


def test_an_unknown_pool_is_named_with_the_known_ones(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    for command in (("status",), ("scrub",), ("destroy", "--yes")):
        kvfs.fails(12, "no pool 'cold' .*known pools: hot", "pool", command[0], "cold", *command[1:])


# ── add, destroy ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pool_grows_and_its_configuration_keeps_its_comments(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    config = kvfs.state.folder("hot").config
    config.write_text("# mine\n" + config.read_text() + "memory: 256MiB  # small\n")
    kvfs.ok("pool", "add", "hot", kvfs.device("more"), "--size", "64MiB")
    text = config.read_text()
    assert text.startswith("# mine\n")
    assert "memory: 256MiB  # small\n" in text
    assert load_config(config).devices[-1] == kvfs.device("more")
    assert kvfs.ok("pool", "status", "hot", "-H", "-o", "number,state").rows == [
        ["0", "live"],
        ["1", "live"],
        ["2", "live"],
    ]


@pytest.mark.parametrize("style", ["[{}, {}]", "[ {}\n , {} ]  # two", "\n  - {}\n  - {}\n"])
def test_a_list_of_devices_grows_in_its_own_style(kvfs: Kvfs, style: str) -> None:
    paths = kvfs.make_pool()
    config = kvfs.state.folder("hot").config
    config.write_text(f"devices: {style.format(*paths)}\nname: hot  # ours\n")
    kvfs.ok("pool", "add", "hot", kvfs.device("more"), "--size", "64MiB")
    assert load_config(config).devices == (*paths, kvfs.device("more"))
    assert "name: hot  # ours" in config.read_text()


def test_nothing_is_added_while_a_device_is_missing(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    paths[0].rename(kvfs.device("away"))
    expect_log("the pool goes on without it")
    kvfs.fails(
        54, "only while all others are there", "pool", "add", "hot", kvfs.device("more"), "--size", "64MiB"
    )
    assert not kvfs.device("more").exists()


def test_destroying_needs_a_word(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    kvfs.fails(USAGE, "say --yes", "pool", "destroy", "hot")
    kvfs.ok("pool", "destroy", "hot", "--yes")
    assert kvfs.ok("pool", "list", "-H").out == ""
    assert [path.stat().st_size for path in paths] == [SIZE, SIZE]
    kvfs.ok("pool", "create", "hot", *paths, "--extent-size", "2MiB")


def test_destroying_goes_on_over_damage_only_with_force(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    damage(paths[0], *SUPERBLOCKS)
    kvfs.fails(51, "hot-0", "pool", "destroy", "hot", "--yes")
    paths[0].unlink()
    expect_log("the pool goes on without it", count=2)
    kvfs.fails(14, "is missing: connect it; --force destroys", "pool", "destroy", "hot", "--yes")
    kvfs.ok("pool", "destroy", "hot", "--yes", "--force")
    assert not kvfs.state.folder("hot").path.exists()


@pytest.mark.loop
def test_a_block_device_is_used_whole(kvfs: Kvfs) -> None:
    with loop_device(allocated(kvfs.device("backing"), SIZE)) as drive:
        create = ("pool", "create", "hot", drive, "--extent-size", "2MiB")
        assert kvfs.ok(*create, "--dry-run", "-H", "-p").rows == [["use drive", str(SIZE), str(drive), "-"]]
        kvfs.ok(*create)
        assert kvfs.ok("pool", "list", "-H", "-p", "-o", "size").rows == [[str(SIZE)]]
        kvfs.fails(53, "holds: kvfs pool 'hot'", "pool", "create", "cold", drive)
        kvfs.ok("pool", "destroy", "hot", "--yes")
        kvfs.ok(*create, "--dry-run")


def test_force_takes_no_device_of_another_pool_along(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    hot = kvfs.make_pool("hot")
    cold = kvfs.make_pool("cold")
    shutil.copyfile(cold[0], hot[1])
    kvfs.fails(54, "belongs to pool 'cold'", "pool", "destroy", "hot", "--yes")
    kvfs.ok("pool", "destroy", "hot", "--yes", "--force")
    assert kvfs("pool", "create", "new", hot[0], "--dry-run").code == 0
    kvfs.fails(53, "holds: kvfs pool 'cold'", "pool", "create", "new", hot[1])


def test_a_device_that_fails_is_left_by_force(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    paths[1].unlink()
    paths[1].mkdir()
    kvfs.fails(40, "neither a file nor a block device", "pool", "destroy", "hot", "--yes")
    expect_log("hot-1: neither a file nor a block device; it is left as it is")
    kvfs.ok("pool", "destroy", "hot", "--yes", "--force")
    assert kvfs("pool", "create", "new", paths[0], "--dry-run").code == 0


def test_destroying_asks_a_person(kvfs: Kvfs, monkeypatch: pytest.MonkeyPatch) -> None:
    kvfs.make_pool()
    for answer, code in (("n\n", INTERRUPTED), ("y\n", 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        result = kvfs("pool", "destroy", "hot")
        assert (result.code, result.out) == (code, "")
        assert "Remove pool 'hot' and everything in it?" in result.err
    assert kvfs.ok("pool", "list", "-H").out == ""


def test_taking_without_devices_needs_a_known_pool(kvfs: Kvfs) -> None:
    kvfs.fails(12, "no pool 'hot'", "pool", "take", "hot")
    kvfs.make_pool()
    kvfs.ok("pool", "take", "hot")
    config = kvfs.state.folder("hot").config
    assert "docs/configuration.md" in config.read_text()


@pytest.mark.parametrize("name", ["with, comma", "a: b", 'quo"te', "ü"])
def test_any_path_can_be_added(kvfs: Kvfs, name: str) -> None:
    paths = kvfs.make_pool(devices=1)
    config = kvfs.state.folder("hot").config
    config.write_text(f"name: hot\ndevices:\n- {paths[0]}  # the first")
    kvfs.ok("pool", "add", "hot", kvfs.device(name), "--size", "64MiB")
    assert load_config(config).devices == (paths[0], kvfs.device(name))
    assert f"- {paths[0]}  # the first\n- " in config.read_text()


def test_a_list_that_cannot_be_grown_in_place_is_written_again(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool(devices=1)
    config = kvfs.state.folder("hot").config
    config.write_text(f"devices: [{paths[0]} # ]\n ]\nname: hot  # lost\n")
    kvfs.ok("pool", "add", "hot", kvfs.device("more"), "--size", "64MiB")
    assert load_config(config).devices == (paths[0], kvfs.device("more"))


def test_a_damaged_device_is_replaced_as_the_guide_says(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    """Without it, then with it again: as another device, of which the others know."""
    expect_log("device 1 of pool 'hot' is missing")
    paths = kvfs.make_pool()
    damage(paths[1], *SUPERBLOCKS)
    kvfs.fails(51, "take it out of 'devices'", "pool", "status", "hot")
    config = kvfs.state.folder("hot").config
    config.write_text(config.read_text().replace(f"- {paths[1]}\n", ""))
    kvfs.fails(54, "lost for good and that is forced", "pool", "add", "hot", paths[1])
    kvfs.ok("pool", "add", "hot", paths[1], "--force")
    states = kvfs("pool", "status", "hot", "-H", "-o", "number,state").rows
    assert states == [["0", "live"], ["1", "missing"], ["2", "live"]]
    kvfs.ok("pool", "destroy", "hot", "--yes", "--force")


# ── one device by several names ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("alias", ["hard link", "symlink", "same"])
def test_a_device_of_the_pool_is_not_added_again_by_force(kvfs: Kvfs, alias: str) -> None:
    """It would be wiped before the pool found out that it is its own."""
    first = kvfs.make_pool()[0]
    name = first if alias == "same" else kvfs.device("alias")
    if alias == "hard link":
        name.hardlink_to(first)
    elif alias == "symlink":
        name.symlink_to(first)
    before = first.read_bytes()
    kvfs.fails(54, "is in pool 'hot' already", "pool", "add", "hot", name, "--force")
    assert first.read_bytes() == before
    kvfs.ok("pool", "status", "hot")


def test_a_copy_of_a_device_is_no_second_device(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    copy = kvfs.device("copy")
    shutil.copyfile(paths[0], copy)
    kvfs.fails(54, "is in pool 'hot' already", "pool", "add", "hot", copy, "--force")
    kvfs.fails(54, "are the same device of pool 'hot'", "pool", "take", "hot", *paths, copy)
    assert load_config(kvfs.state.folder("hot").config).devices == tuple(paths)


def test_two_names_of_a_file_are_one_device(kvfs: Kvfs) -> None:
    file = kvfs.device("file")
    file.write_bytes(b"\0" * SIZE)
    kvfs.device("link").hardlink_to(file)
    kvfs.fails(54, "link is given twice, also as ", "pool", "create", "hot", file, kvfs.device("link"))


# ── nothing is left of what failed ───────────────────────────────────────────────────────────────────────────


def test_a_pool_that_was_not_made_or_taken_leaves_no_folder(kvfs: Kvfs) -> None:
    kvfs.fails(45, "too small for a pool", "pool", "create", "hot", kvfs.device("new"), "--size", "1")
    kvfs.fails(45, "at least", "pool", "create", "hot", kvfs.device("new"), "--size", "1MiB")
    kvfs.device("junk").write_bytes(b"x" * SIZE)
    kvfs.fails(51, "no valid superblock", "pool", "take", "hot", kvfs.device("junk"))
    assert not kvfs.state.folder("hot").path.exists()
    assert not kvfs.device("new").exists()
