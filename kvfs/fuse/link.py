"""How the kernel's requests reach us: pyfuse3 on /dev/fuse itself, or behind the data lane."""

from __future__ import annotations

import os
from typing import Protocol

import pyfuse3
import trio

from blockdev.types import PAGE
from kvfs.errors import MountFailed
from kvfs.frames import FrameCache
from kvfs.fuse.connection import Connection, allow_pages, connect
from kvfs.fuse.desk import Desk
from kvfs.fuse.lane import Lane, LaneSize, LaneStatistics, Served
from kvfs.fuse.openfiles import OpenFiles
from kvfs.fuse.operations import Operations
from kvfs.fuse.passthrough import Passthrough, passthrough_of

MAX_PAGES = 1024
"""Of a READ or WRITE: 4 MiB, which is what most engines read and write at once."""


class Link(Protocol):
    """Between the kernel and us. Used by the trio thread only, but for `forget_attributes`.

    :ivar is_tuned: requests in flight are set when the mount is made
    :ivar passthrough: for copies that the kernel reads by itself, if it can
    """

    is_tuned: bool
    passthrough: Passthrough | None

    def attach(self, operations: Operations, files: OpenFiles, desk: Desk, frames: FrameCache) -> None:
        """Say who serves. :raises MountFailed: it cannot be mounted"""

    async def serve(self) -> None:
        """Serve until `terminate`, or until the mount is gone."""

    def terminate(self) -> None:
        """Have `serve` return when the requests under way are answered."""

    def close(self) -> None:
        """Leave nothing mounted."""

    def forget_attributes(self, inode: int) -> None:
        """Have the kernel forget them. May wait for the kernel. :raises OSError:"""

    def statistics(self) -> LaneStatistics | None: ...


async def make_link(path: str, name: str, *, allow_other: bool, lane: bool, passthrough: bool) -> Link:
    """A link to what is, or will be, mounted on `path`.

    :param name: the pool's
    :param passthrough: let the kernel read copies by itself, if it can; with the lane only
    :raises MountFailed:
    """
    source = name.replace("\\", "_").replace(",", "_") or "kvfs"
    if not lane:
        return PlainLink(path, source, allow_other=allow_other)
    max_pages = allow_pages(MAX_PAGES)
    connection = await connect(path, source, allow_other=allow_other)
    return LaneLink(connection, max_pages, passthrough_of(connection.fd) if passthrough else None)


class PlainLink:
    """pyfuse3 mounts and answers everything."""

    is_tuned = False
    passthrough: Passthrough | None = None

    def __init__(self, path: str, source: str, *, allow_other: bool) -> None:
        self._path = path
        self._options = {"default_permissions", "nosuid", "nodev", f"fsname={source}", "subtype=kvfs"}
        if allow_other:
            self._options.add("allow_other")

    def attach(self, operations: Operations, files: OpenFiles, desk: Desk, frames: FrameCache) -> None:
        try:
            pyfuse3.init(operations, self._path, self._options)
        except RuntimeError as error:
            raise MountFailed(
                f"{self._path}: the system refused the mount ({error}); see the messages above"
            ) from error

    async def serve(self) -> None:
        await pyfuse3.main()

    def terminate(self) -> None:
        pyfuse3.terminate()

    def close(self) -> None:
        pyfuse3.close(unmount=True)

    def forget_attributes(self, inode: int) -> None:
        pyfuse3.invalidate_inode(pyfuse3.InodeT(inode), attr_only=True)

    def statistics(self) -> None:
        return None


class LaneLink:
    """We mount, the lane answers READ and WRITE, pyfuse3 the rest."""

    is_tuned = True

    def __init__(self, connection: Connection, max_pages: int, passthrough: Passthrough | None) -> None:
        self._connection = connection
        self._max_pages = max_pages
        self.passthrough = passthrough
        self._lane: Lane | None = None

    def attach(self, operations: Operations, files: OpenFiles, desk: Desk, frames: FrameCache) -> None:
        threads = min(4, max(2, os.cpu_count() or 1))
        pages = min(self._max_pages, frames.frame_size // PAGE)
        size = LaneSize(threads, frames.frame_size, pages, passthrough=self.passthrough is not None)
        lane = self._lane = Lane(
            self._connection, Served(files, operations, desk, frames), size, ended=self.terminate
        )
        try:
            pyfuse3.init(operations, lane.device, set())
        except RuntimeError as error:
            lane.close()
            raise MountFailed(f"libfuse does not serve {lane.device} ({error})") from error

    async def serve(self) -> None:
        assert self._lane is not None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._lane.serve)
            try:
                await pyfuse3.main()
            finally:
                self._lane.retire()

    def terminate(self) -> None:
        pyfuse3.terminate()

    def close(self) -> None:
        assert self._lane is not None
        self._lane.close()
        pyfuse3.close(unmount=False)

    def forget_attributes(self, inode: int) -> None:
        self._connection.forget_attributes(inode)

    def statistics(self) -> LaneStatistics:
        assert self._lane is not None
        return self._lane.statistics()
