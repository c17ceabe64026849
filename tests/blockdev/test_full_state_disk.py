"""A catalogue that cannot be written does not take the pool down."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio

from blockdev.creating import CreateOptions, create_pool
from blockdev.opening import OpenOptions, open_pool
from blockdev.publication import NewObject
from blockdev.testing import MemoryDevice
from blockdev.types import MIB, ROOT, SlotClass


async def test_the_pool_goes_on(tmp_path: Path, autojump_clock, monkeypatch: pytest.MonkeyPatch, expect_log):
    expect_log("the catalogue cannot be written", count=1)
    device = MemoryDevice(40 * MIB)
    await create_pool([device], CreateOptions("t", "local:x", SlotClass.MIB2, 8 * MIB))
    async with open_pool([device.reopen()], tmp_path / "cat", OpenOptions("local:x")) as opened:
        pool = opened.pool

        async def publish(name: bytes) -> None:
            await pool.publish(NewObject(ROOT, name, 0o100644, 0, 0, 1, 5, inline=b"hello"))
            await trio.sleep(1)

        await publish(b"before")
        with monkeypatch.context() as full:

            def refuse(now: float) -> bool:
                raise OSError(errno.ENOSPC, "No space left on device")

            full.setattr(pool.catalog, "commit_due", refuse)
            await publish(b"meanwhile")
        await publish(b"after")
        assert [record.name for record in pool.children(ROOT)] == [b"after", b"before", b"meanwhile"]
