"""Objects into memory of a GPU and out of it, through memory of the host, where they are verified. The GPU is a stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from blockdev.errors import IntegrityError
from blockdev.pool import Pool
from kvfs.cache import Cache
from kvfs.errors import BadBuffer
from rdma.cuda import CudaDriver
from rdma.errors import CudaError
from rdma.testing import FakeCuda
from tests.blockdev.pools import EXTENT, Bench, made, pattern, payload_at, put, put_sparse
from tests.conftest import ExpectLog
from tests.kvfs.caches import cache_of, direct

FILL = b"\xa5"


@dataclass
class Tensor:
    """What is used of a torch.Tensor on a GPU."""

    driver: FakeCuda
    nbytes: int
    device: str = "cuda:1"

    def __post_init__(self) -> None:
        self.address = self.driver.allocate(max(self.nbytes, 1))
        self.content[:] = FILL * max(self.nbytes, 1)

    @property
    def content(self) -> bytearray:
        return self.driver.memory[self.address]

    def data_ptr(self) -> int:
        return self.address

    def is_contiguous(self) -> bool:
        return True


@pytest.fixture
def gpu() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await made(tmp_path, devices=2, regions=6)


@pytest.fixture
async def pool(bench: Bench) -> AsyncIterator[Pool]:
    async with bench.pool() as opened:
        yield opened


@pytest.fixture
async def cache(pool: Pool, gpu: FakeCuda) -> AsyncIterator[Cache]:
    def driver_of(number: int) -> CudaDriver:
        if number != 1:
            raise CudaError(f"there is no GPU {number}", 101)
        return gpu

    async with cache_of(pool, driver_of=driver_of) as opened:
        yield opened


@pytest.mark.parametrize("size", [0, 100, 5000, EXTENT, 2 * EXTENT + 12345])
async def test_what_was_put_from_a_gpu_comes_back_to_it(cache: Cache, gpu: FakeCuda, size: int) -> None:
    source = Tensor(gpu, size)
    source.content[:size] = pattern(size)
    await cache.put(b"hash", source)
    into, host = Tensor(gpu, size + 10), direct(size)
    assert await cache.get_into(b"hash", into) == size
    assert into.content[:size] == pattern(size)
    assert into.content[size:] == FILL * 10
    assert await cache.get_into(b"hash", host) == size
    assert host == pattern(size)


async def test_holes_and_the_dram_tier(cache: Cache, pool: Pool, gpu: FakeCuda) -> None:
    await put_sparse(pool, b"x", 3 * EXTENT, {1: pattern(EXTENT)})
    into = Tensor(gpu, 3 * EXTENT)
    for _ in range(2):  # the second time from memory
        await cache.get_into("x", into)
        assert into.content == bytes(EXTENT) + pattern(EXTENT) + bytes(EXTENT)
        into.content[:] = FILL * (3 * EXTENT)
    assert pool.statistics().reads.extents == 1


async def test_host_and_gpu_may_want_the_same_at_once(cache: Cache, pool: Pool, gpu: FakeCuda) -> None:
    await put(pool, b"x", EXTENT)
    one, two = Tensor(gpu, EXTENT), Tensor(gpu, EXTENT)
    host, odd = direct(EXTENT), bytearray(EXTENT + 1)
    pairs = [("x", one), ("x", host), ("x", two), ("x", memoryview(odd)[1:])]
    async with trio.open_nursery() as nursery:
        for pair in pairs:
            nursery.start_soon(cache.get_many_into, [pair])
    await cache.get_many_into(pairs)
    want = pattern(EXTENT, b"x")
    assert one.content == two.content == want
    assert host == want
    assert odd[1:] == want


async def test_wrong_bytes_do_not_reach_the_gpu(
    cache: Cache, pool: Pool, bench: Bench, gpu: FakeCuda, expect_log: ExpectLog
) -> None:
    expect_log("damaged|other bytes|quarantin")
    record = await put(pool, b"x", EXTENT)
    await bench.damage(record.address.device, payload_at(pool, record.ref))
    into = Tensor(gpu, EXTENT)
    [got] = await cache.get_many_into([("x", into)])
    assert isinstance(got.error, IntegrityError)
    assert into.content == FILL * EXTENT


async def test_what_a_gpu_refuses_is_the_outcome(cache: Cache, pool: Pool, gpu: FakeCuda) -> None:
    await put(pool, b"x", EXTENT)
    gone = Tensor(gpu, EXTENT)
    gpu.free(gone.address)
    await put(pool, b"inline", 100)
    await put_sparse(pool, b"hole", EXTENT, {})
    await cache.get_into("x", memoryview(bytearray(EXTENT + 1))[1:])  # from here on it is in memory, too
    for key in ("x", "inline", "hole"):
        [got] = await cache.get_many_into([(key, gone)])
        assert isinstance(got.error, CudaError)
    assert cache._frames.statistics().pinned == 0
    with pytest.raises(CudaError, match="are allocated at"):
        await cache.put("y", gone)
    with pytest.raises(CudaError, match="no GPU 0"):
        await cache.get_into("x", Tensor(gpu, EXTENT, "cuda"))
    with pytest.raises(BadBuffer, match=f"its buffer {EXTENT - 1}"):
        await cache.get_into("x", Tensor(gpu, EXTENT - 1))
    assert cache.lookup(["x", "y"]) == [EXTENT, None]
