"""What an engine may give that cannot be used, over RDMA: each is one clear error, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvfs.cache import Block, Namespace
from kvfs.errors import BadBuffer, BadKey, CacheClosed, NoObject, RecheckRefused, WrongNamespace
from rdma.errors import CudaError, NoBuffers
from rdma.verbs.numbers import CmEvent
from rdma.verbs.way import Happened, Portal, refused
from tests.blockdev.pools import EXTENT, pattern, put
from tests.kvfs.caches import LEASED, descriptors, direct, indirect
from tests.kvfs.test_cache_gpu import Tensor
from tests.kvfs.test_cache_straight import Host, host

__all__ = ["host"]

Misuse = Callable[[Host], Awaitable[Any]]


@contextmanager
def nothing_left(host: Host) -> Iterator[None]:
    """Descriptors, registered memory, connections, frames, leases, and memory that is pinned: as before."""

    def held() -> dict[str, int]:
        leases = host.cache._arena
        assert leases is not None
        return {
            "descriptors": descriptors(),
            "regions": len(host.target.regions),
            "connections": sum(one.is_open for one in host.target.connections),
            "frames": host.cache._frames.statistics().pinned,
            "leases": leases.statistics().leased,
            "host memory": len(host.gpu.pinned),
        }

    before = held()
    yield
    assert held() == before


def gone(host: Host) -> Tensor:
    """A tensor whose memory is not there any more."""
    tensor = host.tensor()
    host.gpu.free(tensor.address)
    return tensor


async def rechecked(host: Host, buffer: object) -> None:
    with host.cache.rechecked(buffer):
        await host.cache.get_into("x", buffer)


async def leased(host: Host) -> None:
    with host.cache.lease(LEASED), host.cache.lease(EXTENT):
        pass


async def closed(host: Host) -> None:
    host.cache.close()
    await host.cache.get_into("x", direct(EXTENT))


NOT_OURS = Block(Namespace("another"), b"hash")
MISUSES: dict[str, tuple[Misuse, type[Exception], str]] = {
    "a buffer that is too small": (
        lambda host: host.cache.get_into("x", bytearray(EXTENT - 1)),
        BadBuffer,
        f"/x has {EXTENT} bytes, its buffer {EXTENT - 1}: ask 'lookup' for sizes",
    ),
    "a tensor that is too small": (
        lambda host: host.cache.get_into("x", host.tensor(EXTENT - 1)),
        BadBuffer,
        f"/x has {EXTENT} bytes, its buffer {EXTENT - 1}",
    ),
    "a buffer that is read-only": (
        lambda host: host.cache.get_into("x", direct(EXTENT).toreadonly()),
        BadBuffer,
        "that is read-only cannot be read into: give contiguous memory",
    ),
    "a buffer in pieces": (
        lambda host: host.cache.put("y", memoryview(bytearray(EXTENT))[::2]),
        BadBuffer,
        "not in one piece in memory",
    ),
    "no buffer": (lambda host: host.cache.get_into("x", 17), BadBuffer, "a int is not memory"),
    "memory of a GPU that was freed": (
        lambda host: host.cache.get_into("x", gone(host)),
        CudaError,
        "are allocated at",
    ),
    "memory of a GPU that was freed, straight": (
        lambda host: rechecked(host, gone(host)),
        RecheckRefused,
        "are allocated at",
    ),
    "memory of the host, straight": (
        lambda host: rechecked(host, direct(EXTENT)),
        BadBuffer,
        "only memory of a GPU",
    ),
    "a key of another namespace": (
        lambda host: host.cache.get_into(NOT_OURS, direct(EXTENT)),
        WrongNamespace,
        "another",
    ),
    "a key that cannot be": (lambda host: host.cache.put("../x", b""), BadKey, "cannot be a name"),
    "a key of nothing": (
        lambda host: host.cache.get_into("z", direct(EXTENT)),
        NoObject,
        "/z is not there",
    ),
    "more leases than there are": (leased, NoBuffers, "give back leases, or make it larger"),
    "a closed cache": (closed, CacheClosed, "the cache is closed"),
}


@pytest.mark.parametrize("name", MISUSES)
async def test_what_cannot_be_used_is_one_clear_error_and_leaves_nothing(host: Host, name: str) -> None:
    misuse, error, words = MISUSES[name]
    await put(host.pool, b"x", EXTENT)
    await host.compare(b"x")
    with nothing_left(host):
        with pytest.raises(error, match=words) as raised:
            await misuse(host)
        assert "\n" not in str(raised.value)


async def test_memory_off_the_page_is_no_mistake(host: Host) -> None:
    """Of the host and of a GPU: the bytes are copied."""
    await put(host.pool, b"x", EXTENT)
    into, tensor = indirect(EXTENT), host.tensor(EXTENT + 512)
    with nothing_left(host):
        await host.cache.get_into("x", into)
        with host.cache.rechecked(tensor):
            await host.cache.get_into("x", tensor)
    assert into == tensor.content[:EXTENT] == pattern(EXTENT, b"x")


def test_who_answers_and_is_no_such_target() -> None:
    portal = Portal("192.0.2.1", 4420)
    for data in (b"", b"ssh-2.0", bytes(32)):
        error = refused(portal, Happened(CmEvent.REJECTED, data))
        assert str(error) == "192.0.2.1:4420: no NVMe/RDMA target listens there"
        assert error.status == CmEvent.REJECTED
    said = refused(portal, Happened(CmEvent.REJECTED, b"\0\0\6\0"))
    assert str(said) == "192.0.2.1:4420: the target refuses the connection: no resources (6)"
