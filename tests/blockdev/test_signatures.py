"""What is on a device is recognised before anything is written to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from blockdev import layout, signatures
from blockdev.errors import DeviceError, UnknownVersion
from blockdev.file_device import open_file_device
from blockdev.memory import page_buffer
from blockdev.signatures import foreign_signature, wipe_signatures
from blockdev.testing import Fault, FaultyDevice, MemoryDevice
from blockdev.types import (
    KIB,
    MIB,
    PAGE,
    ByteOffset,
    DeviceEntry,
    DeviceNo,
    SlotClass,
    Superblock,
)
from tests.blockdev.block_devices import allocated, run

SIZE = 8 * MIB
NO_BLKID = r"it is not installed"
POOL, DEVICE = UUID(int=1), UUID(int=2)

needs_blkid = pytest.mark.skipif(signatures._find_blkid() is None, reason="blkid is not installed")


def tool(name: str) -> pytest.MarkDecorator:
    path = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin")
    return pytest.mark.skipif(path is None, reason=f"{name} is not installed")


@pytest.fixture
def _without_blkid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_find_blkid", lambda: None)


async def put(device: MemoryDevice | FaultyDevice, offset: int, data: bytes) -> None:
    start = offset // PAGE * PAGE
    buffer = page_buffer(2 * PAGE if start + 2 * PAGE <= device.size else PAGE)
    await device.read_into(start, buffer)
    buffer[offset - start : offset - start + len(data)] = data
    await device.write_from(start, buffer)


def superblock(sequence: int) -> Superblock:
    return Superblock(
        pool=POOL,
        device=DEVICE,
        device_no=DeviceNo(0),
        domain="local:x",
        name="a",
        region_size=MIB,
        data_offset=ByteOffset(MIB),
        extent_class=SlotClass.MIB2,
        devices=(DeviceEntry(DEVICE, SIZE),),
        sequence=sequence,
    )


@needs_blkid
@pytest.mark.parametrize("size", [64 * KIB, MIB, 3 * MIB, SIZE])
async def test_nothing(size: int) -> None:
    assert await foreign_signature(MemoryDevice(size)) is None


@needs_blkid
async def test_noise_is_no_signature() -> None:
    device = MemoryDevice(SIZE)
    noise = page_buffer(SIZE)
    noise[:] = Random(1).randbytes(SIZE)
    await device.write_from(0, noise)
    assert await foreign_signature(device) is None


@needs_blkid
@pytest.mark.parametrize(
    "command, expected",
    [
        pytest.param(["mkfs.ext4", "-q", "-L", "data"], "ext4 file system 'data'", marks=tool("mkfs.ext4")),
        pytest.param(["mkswap"], "swap signature", marks=tool("mkswap")),
        pytest.param(["mkfs.minix"], "minix file system", marks=tool("mkfs.minix")),
    ],
)
async def test_what_others_made(tmp_path: Path, command: list[str], expected: str) -> None:
    path = allocated(tmp_path / "device", SIZE)
    run(*command, str(path))
    device = await open_file_device(path)
    assert await foreign_signature(device) == expected
    await wipe_signatures(device)
    assert await foreign_signature(device) is None
    await device.aclose()


@needs_blkid
async def test_marks_at_the_end() -> None:
    device = MemoryDevice(SIZE)
    await put(device, SIZE - 64 * KIB, (0xA92B4EFC).to_bytes(4, "little") + bytes(7) + b"\x5a")
    assert await foreign_signature(device) == "linux_raid_member RAID or volume group member"


@needs_blkid
async def test_partition_table_of_a_disk_with_large_blocks() -> None:
    device = MemoryDevice(SIZE)
    await put(device, PAGE, b"EFI PART")
    assert await foreign_signature(device) == "gpt partition table"


@pytest.mark.parametrize("sequence", [1, 2])
async def test_kvfs(sequence: int) -> None:
    device = MemoryDevice(SIZE)
    await put(device, layout.superblock_offset(sequence), layout.encode_superblock(superblock(sequence)))
    assert await foreign_signature(device) == f"kvfs pool 'a' ({POOL})"
    await wipe_signatures(device)
    assert await foreign_signature(device) is None


@pytest.mark.usefixtures("_without_blkid")
@pytest.mark.parametrize("entry", signatures._OWN_TABLE, ids=lambda entry: f"{entry[2]} {entry[0]}")
async def test_without_blkid(entry: tuple[int, bytes, str], expect_log: Callable[..., None]) -> None:
    expect_log(NO_BLKID, count=1)
    offset, mark, meaning = entry
    device = MemoryDevice(SIZE)
    await put(device, offset % SIZE, mark)
    assert await foreign_signature(device) == meaning


@pytest.mark.usefixtures("_without_blkid")
async def test_nothing_without_blkid(expect_log: Callable[..., None]) -> None:
    expect_log(NO_BLKID, count=1)
    assert await foreign_signature(MemoryDevice(64 * KIB)) is None


def fake_blkid(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "blkid"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(signatures, "_find_blkid", lambda: str(program))


@pytest.mark.parametrize(
    "script, reason",
    [("exit 4", "it failed with exit code 4"), ("exit 2", "it does not find what is there")],
)
async def test_a_blkid_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expect_log: Callable[..., None],
    script: str,
    reason: str,
) -> None:
    fake_blkid(tmp_path, monkeypatch, script)
    expect_log(reason, count=1)
    device = MemoryDevice(SIZE)
    await put(device, 0, b"XFSB")
    assert await foreign_signature(device) == "xfs file system"


async def test_signatures_that_contradict_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_blkid(tmp_path, monkeypatch, "exit 8")
    assert await foreign_signature(MemoryDevice(SIZE)) == "signatures of more than one kind"


async def test_partition_table_and_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_blkid(
        tmp_path, monkeypatch, "echo PTTYPE=dos; echo TYPE=vfat; echo USAGE=filesystem; echo 'LABEL=a=b'"
    )
    expected = "dos partition table and vfat file system 'a=b'"
    assert await foreign_signature(MemoryDevice(SIZE)) == expected


async def test_a_kvfs_pool_of_a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    device = MemoryDevice(SIZE)
    await put(device, 0, layout.encode_superblock(superblock(2)))

    def refuse(_: object) -> None:
        raise UnknownVersion("superblock version 2")

    monkeypatch.setattr(layout, "pick_superblock", refuse)
    assert await foreign_signature(device) == "kvfs pool of a newer version (superblock version 2)"


async def test_wipe_touches_only_the_ends() -> None:
    device = MemoryDevice(SIZE)
    ones = page_buffer(SIZE)
    ones[:] = b"\1" * SIZE
    await device.write_from(0, ones)
    await wipe_signatures(device)
    await device.read_into(0, ones)
    reach = 2 * MIB
    assert bytes(ones) == bytes(reach) + b"\1" * (SIZE - 2 * reach) + bytes(reach)


async def test_a_device_that_cannot_be_read() -> None:
    device = FaultyDevice(SIZE, Random(1))
    device.inject(Fault(errno=5))
    with pytest.raises(DeviceError):
        await foreign_signature(device)
