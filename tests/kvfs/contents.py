"""Fills pools of the command's tests without a mount."""

from __future__ import annotations

import mmap
import random
import stat
from pathlib import Path

import trio
import xxhash

from blockdev.pool import Pool
from blockdev.publication import NewObject
from blockdev.types import HOLE, PAGE, ROOT, Descriptor, DirectoryId, ExtentRef, Xxh3
from kvfs.assemble import writing
from kvfs.state import PoolFolder

MTIME = 1_700_000_000 * 10**9
MIB = 1 << 20


async def put(
    pool: Pool, directory: DirectoryId, name: bytes, data: bytes | None, size: int | None = None
) -> Descriptor:
    """Store a file; one without data is a hole of `size` bytes."""
    length = len(data) if data is not None else size or 0
    if data is not None and length <= pool.inline_limit(name):
        return await pool.publish(
            NewObject(directory, name, stat.S_IFREG | 0o640, 7, 8, MTIME, length, inline=data)
        )
    extents = []
    for start in range(0, length, pool.extent_size):
        piece = data[start : start + pool.extent_size] if data is not None else None
        extents.append(HOLE if piece is None else await _write(pool, piece))
    new = NewObject(directory, name, stat.S_IFREG | 0o640, 7, 8, MTIME, length, tuple(extents))
    return await pool.publish(new)


async def _write(pool: Pool, piece: bytes) -> ExtentRef:
    ref = await pool.reserve(len(piece))
    buffer = memoryview(mmap.mmap(-1, -(-len(piece) // PAGE) * PAGE))
    buffer[: len(piece)] = piece
    await pool.write(ref, buffer)
    return ExtentRef(*ref, Xxh3(xxhash.xxh3_64_intdigest(piece)))


def fill(folder: PoolFolder) -> dict[str, bytes]:
    """A file of every kind; returns their contents by path."""
    rng = random.Random(7)
    big, small = rng.randbytes(5 * MIB + 17), rng.randbytes(100)

    async def work() -> None:
        async with writing(folder, "filling it") as opened:
            pool = opened.pool
            await put(pool, ROOT, b"small.json", small)
            models = DirectoryId((await pool.make_directory(ROOT, b"models", 0o755, 7, 8)).object_id)
            await put(pool, models, b"big.bin", big)
            await put(pool, models, b"hole", None, 3 * MIB)
            await put(pool, models, b"odd \xff\n\x1b[31mname", small)
            await pool.make_symlink(ROOT, b"link", b"models/big.bin", 7, 8)

    trio.run(work)
    return {"/small.json": small, "/models/big.bin": big, "/models/odd \udcff\n\x1b[31mname": small}


def flip(devices: list[Path], needle: bytes) -> int:
    """Change one bit in every copy of `needle` on the devices; returns how many there were."""
    found = 0
    for device in devices:
        data = device.read_bytes()
        at = data.find(needle)
        with device.open("r+b") as file:
            while at >= 0:
                file.seek(at)
                file.write(bytes([needle[0] ^ 1]))
                found += 1
                at = data.find(needle, at + 1)
    return found
