"""What the parts of storing one file cost by themselves, in seconds each: the calls that a mount makes, without a mount."""

from __future__ import annotations

import ctypes
import mmap
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import trio
import xxhash

from blockdev.catalog import Catalog
from blockdev.file_device import create_file, open_file_device
from blockdev.layout import encode_descriptor
from blockdev.memory import address_of, page_buffer
from blockdev.types import (
    PAGE,
    ROOT,
    Descriptor,
    DeviceNo,
    Epoch,
    ExtentRef,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotAddress,
    SlotNo,
    Stamp,
    Xxh3,
)
from scripts.lib.sides import BLOCK

_TIMES = 50
_BLOCKS = 32


def parts(folder: Path, payload: mmap.mmap) -> Iterator[tuple[str, float]]:
    """Measure each, on the disk that `folder` is on.

    :param payload: at least one block
    """
    blocks = _Blocks(payload)
    yield "checksum of 4 MiB", _median(lambda number: xxhash.xxh3_64_intdigest(blocks[number]))
    yield "copy of 4 MiB", _copy(blocks)
    yield "hand-over to the event loop and back", trio.run(_hand_over)
    yield from trio.run(_device, folder, blocks[0]).items()
    yield "catalogue: a record and its commit", _catalogue(folder)


def _median(work: Callable[[int], object], times: int = _TIMES) -> float:
    return statistics.median(_seconds(work, number) for number in range(times))


def _seconds(work: Callable[[int], object], number: int) -> float:
    begun = time.perf_counter()
    work(number)
    return time.perf_counter() - begun


class _Blocks:
    """More memory than the processor's caches hold, as what engines store is."""

    def __init__(self, payload: mmap.mmap) -> None:
        self._memory = page_buffer(_BLOCKS * BLOCK)
        for number in range(_BLOCKS):
            self[number][:] = memoryview(payload)[:BLOCK]

    def __getitem__(self, number: int) -> memoryview:
        start = number % _BLOCKS * BLOCK
        return self._memory[start : start + BLOCK]


def _copy(blocks: _Blocks) -> float:
    def one(number: int) -> None:
        ctypes.memmove(address_of(blocks[number]), address_of(blocks[number + _BLOCKS // 2]), BLOCK)

    return _median(one)


async def _hand_over() -> float:
    token, seen = trio.lowlevel.current_trio_token(), threading.Event()

    def one(_: int) -> None:
        seen.clear()
        token.run_sync_soon(seen.set)
        seen.wait()

    return await trio.to_thread.run_sync(_median, one, 10 * _TIMES)


async def _device(folder: Path, view: memoryview) -> dict[str, float]:
    path = folder / "parts"
    await create_file(path, 4 * BLOCK)
    device = await open_file_device(path)
    page = page_buffer(PAGE)
    record, pool = _record(0), uuid4()

    async def write_record() -> None:
        page[:] = encode_descriptor(pool, record)
        await device.write_from(0, page)

    async def write_payload() -> None:
        await device.write_from(BLOCK, view)

    seconds = {}
    for name, work in (("device: 4 MiB", write_payload), ("device: a record", write_record)):
        taken = []
        for _ in range(_TIMES):
            begun = time.perf_counter()
            await work()
            taken.append(time.perf_counter() - begun)
        seconds[name] = statistics.median(taken)
    await device.aclose()
    path.unlink()
    return seconds


def _catalogue(folder: Path) -> float:
    catalog = Catalog.open(folder / "catalogue", uuid4())

    def put(number: int) -> None:
        catalog.put(_record(number))
        catalog.commit()

    try:
        return _median(put)
    finally:
        catalog.close(clean=False)


def _record(number: int) -> Descriptor:
    address = SlotAddress(DeviceNo(0), RegionNo(0), SlotNo(number))
    return replace(
        Descriptor(Kind.HEAD, address, Epoch(1), Generation(1), 2),
        stamp=Stamp(time.time_ns()),
        object_id=ObjectId(secrets.token_bytes(16)),
        directory=ROOT,
        name=secrets.token_hex(32).encode() + b".bin",
        mode=0o100644,
        size=BLOCK,
        stored_size=BLOCK,
        extents=(ExtentRef(*address, Generation(1), Xxh3(1)),),
    )
