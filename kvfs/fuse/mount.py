"""Makes the mount, serves it until it is told to stop, and leaves nothing behind."""

from __future__ import annotations

import errno
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from blockdev.types import MIB, ROOT
from kvfs.frames import FrameCache
from kvfs.fuse.attributes import Attributes, RootAttributes
from kvfs.fuse.copies import Copies, CopyStatistics
from kvfs.fuse.desk import Desk
from kvfs.fuse.drafts import DraftServices
from kvfs.fuse.foreign import ForeignChanges
from kvfs.fuse.foresight import Foresight
from kvfs.fuse.inodes import InodeTable, Overlay
from kvfs.fuse.lane import LaneStatistics
from kvfs.fuse.link import Link, make_link
from kvfs.fuse.memory import DraftMemory
from kvfs.fuse.metadata import Metadata
from kvfs.fuse.notify import Notifier, NotifyStatistics
from kvfs.fuse.openfiles import OpenFiles
from kvfs.fuse.operations import Operations
from kvfs.fuse.ports import PoolPort
from kvfs.fuse.readers import Readers
from kvfs.fuse.retries import Retries
from kvfs.fuse.tree import Tree
from kvfs.fuse.tune import tune
from kvfs.fuse.versions import Versions
from kvfs.fuse.volume import Volume
from kvfs.mountpoint import FSTYPE, check_fuse, check_mount_point, mounted_at, resolve
from kvfs.predecessors import Predecessors
from kvfs.prefetcher import Mode, Prefetcher
from kvfs.recording import Recorder

log = logging.getLogger(__name__)

_STOP_GRACE = 30.0
"""Seconds that requests under way may take when the mount ends."""
_COPIES_SHARE = 4
"""Files that the kernel reads by itself take at most a quarter of what the DRAM tier takes, beside it."""
_PROBE = 5.0
"""Seconds that what is already mounted may take to answer."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """How to mount.

    :ivar allow_other: other users may use it, as file modes permit
    :ivar whole_limit: bytes up to which a file is fetched and verified whole when it is opened
    :ivar read_ahead: extents to read ahead of whoever reads a larger one
    :ivar lane: answer reads and writes in threads of our own, and have pyfuse3 answer the rest only
    :ivar passthrough: copy files that are opened again and again for the kernel, where the lane is used and it can
    :ivar prefetch: fetch what requests show will be wanted
    """

    allow_other: bool = False
    whole_limit: int = 32 * MIB
    read_ahead: int = 2
    lane: bool = True
    passthrough: bool = True
    prefetch: Mode = Mode.ON


@dataclass(frozen=True, slots=True)
class MountStatistics:
    """The mount at one moment."""

    inodes: int
    open_files: int
    drafts: int
    """Files being written."""
    spilled: int
    """Frames of drafts passed on for want of others."""
    notify: NotifyStatistics
    lane: LaneStatistics | None
    """None without one."""
    copies: CopyStatistics


class Mount:
    """The parts of a mount, wired. `serve` runs it."""

    def __init__(
        self, pool: PoolPort, frames: FrameCache, options: MountOptions, nursery: trio.Nursery, link: Link
    ) -> None:
        drafts, readers = _shares(frames.statistics().frames)
        versions = Versions(pool, frames)
        soon = trio.lowlevel.current_trio_token().run_sync_soon if options.lane else None
        self.memory = DraftMemory(pool, frames, versions, nursery, limit=drafts)
        self.link = link
        self.notifier = Notifier(send=link.forget_attributes)
        self.prefetcher = Prefetcher(frames, options.prefetch, time.monotonic)
        self.recorder = Recorder()
        self.volume = Volume(
            pool=pool,
            versions=versions,
            services=DraftServices(
                pool, versions, self.memory, Predecessors(), time.time_ns, soon, self.recorder
            ),
            inodes=InodeTable(),
            overlay=Overlay(),
            retries=Retries(trio.lowlevel.current_clock().current_time),
            invalidator=self.notifier,
            now_ns=time.time_ns,
            foresight=Foresight(pool, self.prefetcher),
            recorder=self.recorder,
        )
        root = _root(pool, options)
        self.tree = Tree(self.volume)
        opener = Readers(
            pool,
            versions,
            whole_limit=options.whole_limit,
            pinned_limit=readers,
            read_ahead=options.read_ahead,
        )
        limit = frames.statistics().frames * frames.frame_size // _COPIES_SHARE
        token = trio.lowlevel.current_trio_token()
        self.copies = Copies(link.passthrough, opener, nursery, token.run_sync_soon, limit=limit)
        self.volume.inodes.on_drop = self.copies.forget
        self.files = OpenFiles(self.volume, self.tree, opener, self.copies)
        self.metadata = Metadata(self.volume, root)
        self.foreign = ForeignChanges(self.volume, root, nursery)
        attributes = Attributes(self.volume, root)
        self.operations = Operations(self.volume, self.tree, self.files, self.metadata, attributes)
        self.desk = Desk(self.volume, self.tree, self.files, attributes)

    def statistics(self) -> MountStatistics:
        """A frozen snapshot."""
        return MountStatistics(
            inodes=len(self.volume.inodes),
            open_files=len(self.files),
            drafts=sum(1 for _ in self.volume.overlay.all()),
            spilled=self.memory.spilled,
            notify=self.notifier.statistics(),
            lane=self.link.statistics(),
            copies=self.copies.statistics(),
        )


def _shares(frames: int) -> tuple[int, int]:
    """How many frames drafts, and how many open files, may keep. The rest is for reading on demand."""
    drafts = max(1, frames * 3 // 8)
    return drafts, max(0, min(frames // 2, frames - drafts - 1))


def _root(pool: PoolPort, options: MountOptions) -> RootAttributes:
    record = pool.directory(ROOT)
    if record is not None:
        return RootAttributes(record.mode, record.uid, record.gid, record.mtime_ns)
    # KV blocks may reveal prompts: nobody else looks in unless that is asked for.
    mode = stat.S_IFDIR | (0o755 if options.allow_other else 0o700)
    return RootAttributes(mode, os.geteuid(), os.getegid(), time.time_ns())


async def serve(
    pool: PoolPort,
    frames: FrameCache,
    mountpoint: Path,
    options: MountOptions,
    *,
    ready: Callable[[Mount], None],
) -> None:
    """Mount and serve until SIGTERM or SIGINT (in the main thread), cancellation, or an unmount from outside.

    However it ends, what was being written is published as far as it had arrived, and the mount is gone.

    :param ready: called once when the mount answers
    :raises MountError: it could not be made
    """
    path = resolve(mountpoint)
    await _detach_dead(path)
    check_fuse(allow_other=options.allow_other)
    check_mount_point(path)
    async with trio.open_nursery() as nursery:
        link = await make_link(
            path,
            pool.name,
            allow_other=options.allow_other,
            lane=options.lane,
            passthrough=options.passthrough,
        )
        mount = Mount(pool, frames, options, nursery, link)
        link.attach(mount.operations, mount.files, mount.desk, frames)
        pool.on_gone.append(mount.volume.gone)
        pool.on_changed.append(mount.foreign.changed)
        mount.notifier.start()
        nursery.start_soon(mount.prefetcher.run)
        try:
            await _run(mount, path, ready)
        finally:
            with trio.CancelScope(shield=True):
                await mount.tree.publish_all()
            pool.on_gone.remove(mount.volume.gone)
            pool.on_changed.remove(mount.foreign.changed)
            mount.notifier.close()
            mount.copies.close()  # it needs the link's device
            link.close()
        nursery.cancel_scope.cancel()


async def _run(mount: Mount, path: str, ready: Callable[[Mount], None]) -> None:
    async with trio.open_nursery() as nursery:
        serving = trio.CancelScope(shield=True)
        nursery.start_soon(_stop_when_told, mount, serving)
        nursery.start_soon(_introduce, mount, path, ready)
        with serving:
            await mount.link.serve()
        nursery.cancel_scope.cancel()


async def _stop_when_told(mount: Mount, serving: trio.CancelScope) -> None:
    """End the serving on a signal, or when the caller is cancelled: requests under way are answered first."""
    try:
        if threading.current_thread() is threading.main_thread():
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    break
        else:
            await trio.sleep_forever()
    finally:
        serving.deadline = trio.current_time() + _STOP_GRACE
        mount.link.terminate()


async def _introduce(mount: Mount, path: str, ready: Callable[[Mount], None]) -> None:
    # The settings count only after the kernel has shaken hands, which it has when it answers this.
    device = (await trio.to_thread.run_sync(os.stat, path, abandon_on_cancel=True)).st_dev
    await tune(device, connection=not mount.link.is_tuned)
    ready(mount)


async def _detach_dead(path: str) -> None:
    """Take away what a killed mount left on the directory: to ask it for anything fails with ENOTCONN."""
    there = mounted_at(path)
    if there is None or there.fstype != FSTYPE:
        return
    with trio.move_on_after(_PROBE):
        try:
            # Not stat(2): the kernel may still know the root's attributes, and answer for the dead.
            await trio.to_thread.run_sync(os.statvfs, path, abandon_on_cancel=True)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                log.info("%s: a mount of %s whose process is gone is taken away", path, there.source)
                await trio.run_process(
                    ["fusermount3", "-u", "-z", "--", path], check=False, capture_stderr=True
                )
