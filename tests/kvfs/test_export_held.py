"""Who holds a device: a made-up /sys and /proc of a node with a partitioned disk, a RAID, LVM and swap."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfs.export.held import holder_of, holder_of_block, related, wwid_of

DISK, PART1, PART2, OTHER, DM = "8:0", "8:1", "8:2", "8:16", "253:0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """sda with sda1 and sda2, sdb, and dm-0 on sdb."""
    block = tmp_path / "sys/devices/block"
    places = {DISK: "sda", PART1: "sda/sda1", PART2: "sda/sda2", OTHER: "sdb", DM: "dm-0"}
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    for number, place in places.items():
        (block / place / "holders").mkdir(parents=True)
        (block / place / "dev").write_text(number + "\n")
        (tmp_path / "sys/dev/block" / number).symlink_to(block / place)
    for number in ("1", "2"):
        (block / f"sda/sda{number}/partition").write_text(f"{number}\n")
    (block / "sda/device").mkdir()
    (block / "sda/device/wwid").write_text("naa.5000c500a1b2c3d4\n")
    (block / "dm-0/dm").mkdir()
    (block / "dm-0/dm/name").write_text("vg-data\n")
    (block / "dm-0/dm/uuid").write_text("LVM-abc\n")
    (block / "sdb/holders/dm-0").symlink_to(block / "dm-0")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("22 1 0:21 / /proc rw - proc proc rw\n")
    (tmp_path / "proc/swaps").write_text("Filename\tType\tSize\tUsed\tPriority\n")
    return tmp_path


def mount(root: Path, number: str) -> None:
    with (root / "proc/self/mountinfo").open("a") as file:
        file.write(f"30 1 {number} / /my\\040data rw - ext4 /dev/x rw\n")


def test_an_idle_disk_is_free(root: Path) -> None:
    assert holder_of_block(DISK, Path("/dev/sda"), root) is None


@pytest.mark.parametrize(
    "mounted, held", [(DISK, {DISK, PART1, PART2}), (PART1, {DISK, PART1}), (OTHER, set())]
)
def test_what_is_mounted_holds_what_shares_its_bytes(root: Path, mounted: str, held: set[str]) -> None:
    mount(root, mounted)
    found = {number: holder_of_block(number, Path("/dev/none"), root) for number in (DISK, PART1, PART2)}
    assert found == {
        number: "mounted on /my data" if number in held else None for number in (DISK, PART1, PART2)
    }


def test_volumes_are_named(root: Path) -> None:
    assert holder_of_block(OTHER, Path("/dev/sdb"), root) == "part of dm-0 (vg-data)"
    (root / "sys/devices/block/sda/sda2/holders/md127").mkdir()
    assert holder_of_block(DISK, Path("/dev/sda"), root) == "part of md127"
    assert holder_of_block(PART2, Path("/dev/sda2"), root) == "part of md127"
    assert holder_of_block(PART1, Path("/dev/sda1"), root) is None


def test_swap_is_seen_by_partition_and_file(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "swap file"
    file.touch()
    with (root / "proc/swaps").open("a") as swaps:
        swaps.write(f"/dev/sda2 partition 1 0 -2\n{tmp_path}/swap\\040file file 1 0 -2\n")
    assert holder_of_block(DISK, Path("/dev/sda"), root) == "swap"
    assert holder_of_block(PART1, Path("/dev/sda1"), root) is None
    assert holder_of(file, root) == "swap"


def test_files_behind_loop_devices_are_seen(root: Path, tmp_path: Path) -> None:
    backing = tmp_path / "image"
    backing.touch()
    assert holder_of(backing, root) is None
    (root / "sys/block/loop3/loop").mkdir(parents=True)
    (root / "sys/block/loop3/loop/backing_file").write_text(f"{backing}\n")
    assert holder_of(backing, root) == "attached to /dev/loop3"


def test_drives_say_who_they_are(root: Path) -> None:
    assert wwid_of(DISK, root) == "naa.5000c500a1b2c3d4"
    assert wwid_of(PART2, root) == "naa.5000c500a1b2c3d4-part2"
    assert wwid_of(DM, root) == "LVM-abc"
    assert wwid_of(OTHER, root) is None
    assert related(DISK, root) == {DISK, PART1, PART2}
    assert related(PART1, root) == {DISK, PART1}
