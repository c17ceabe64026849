"""Mounting /dev/fuse by ourselves, both ways."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kvfs.errors import MountFailed
from kvfs.fuse import connection, wire
from kvfs.fuse.connection import connect
from kvfs.fuse.wire import Handshake, Opcode
from kvfs.mountpoint import FSTYPE, mounted_at
from tests.e2e.serving import EXTENT, Setup, serve_fresh

pytestmark = pytest.mark.fuse


@pytest.fixture(params=["mount", "fusermount3"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With fusermount3: as if we were not root, to whom the system refuses umount2(2)."""
    if request.param == "mount" and os.geteuid() != 0:
        pytest.skip("only root may mount(2)")
    if request.param == "fusermount3":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setattr(connection, "_LIBC", SimpleNamespace(umount2=lambda *_: -1))
    return str(request.param)


async def test_the_mount_is_there_until_it_is_closed(tmp_path, way):
    link = await connect(str(tmp_path), "a pool", allow_other=False)
    try:
        entry = mounted_at(str(tmp_path))
        assert entry is not None
        assert (entry.fstype, entry.source) == (FSTYPE, "a pool")
        assert not os.get_inheritable(link.fd)
        message = os.read(link.fd, 1 << 20)
        assert wire.parse(message.ljust(wire.DATA_HEADER)).opcode == Opcode.INIT
        assert Handshake.of(message).flags
        with pytest.raises(BlockingIOError):
            os.read(link.fd, 1 << 20)
    finally:
        link.close()
    assert mounted_at(str(tmp_path)) is None


async def test_what_cannot_be_mounted(tmp_path, way):
    path = str(tmp_path / "none")
    with pytest.raises((MountFailed, FileNotFoundError), match="none"):
        await connect(path, "p", allow_other=False)


async def test_root_of_a_container_asks_fusermount3(tmp_path, monkeypatch):
    asked: list[Any] = []

    async def fusermount(path: str, options: list[str]) -> int:
        asked.append((path, options))
        return os.open(os.devnull, os.O_RDWR)

    def refused(*_: object) -> int:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(connection, "_mount", refused)
    monkeypatch.setattr(connection, "_fusermount", fusermount)
    link = await connect(str(tmp_path), "p", allow_other=True)
    os.close(link.fd)
    assert asked == [
        (str(tmp_path), ["default_permissions", "allow_other", "nosuid", "nodev", "fsname=p", "subtype=kvfs"])
    ]


async def test_a_whole_mount_through_fusermount3(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    ready = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_fresh, tmp_path, Setup(lane=True), lambda _: ready.set())
        await ready.wait()
        file = tmp_path / "mnt" / "f"
        await trio.to_thread.run_sync(file.write_bytes, b"1" * EXTENT)
        assert await trio.to_thread.run_sync(file.read_bytes) == b"1" * EXTENT
        nursery.cancel_scope.cancel()
    assert mounted_at(str(tmp_path / "mnt")) is None
