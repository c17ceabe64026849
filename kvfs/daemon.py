"""A mount's process: opens and mounts the pool, tells who waits for it, answers the control socket, ends cleanly."""

from __future__ import annotations

import logging
import math
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from kvfs import __version__, control
from kvfs.assemble import assembled, serve_mount
from kvfs.errors import ControlError
from kvfs.metrics import CachesCollector, StatisticsCollector, from_trio, serve_metrics
from kvfs.mountpoint import unmount_command, unmount_refused
from kvfs.recording import Recording
from kvfs.report import GAUGES, describe_pool, scrub_report, statistics_of_mount
from kvfs.sd_notify import notify
from kvfs.state import MountRecord
from kvfs.warming import warm
from kvfs.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvfs.assemble import Assembly
    from kvfs.config import Config
    from kvfs.control import Json, Report
    from kvfs.fuse.mount import Mount
    from kvfs.state import MountFolder, PoolFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to mount where."""

    folder: PoolFolder
    config: Config
    mount_point: str

    @property
    def state(self) -> MountFolder:
        return self.folder.mount(self.mount_point)


async def run(plan: Plan, announce: Callable[[], None]) -> None:
    """Serve the mount until it is unmounted or told to end.

    :param announce: called once, when the mount and its control socket answer
    :raises MountError, ConfigError, PoolBusy, MissingDevice, WrongDomain, FormatError, DeviceError:
    """
    plan.state.create()
    with plan.state.held():  # until our record is gone
        await _serve(plan, announce)


async def _serve(plan: Plan, announce: Callable[[], None]) -> None:
    folder, config, path = plan.folder, plan.config, plan.mount_point
    async with assembled(folder, config, f"mounted on {path}") as assembly, trio.open_nursery() as nursery:

        def ready(mount: Mount) -> None:
            nursery.start_soon(Service(plan, assembly, mount).run, announce)

        nursery.start_soon(Watch(assembly.pool, assembly.returning, config, assembly.opener).run)
        try:
            await serve_mount(assembly, config, path, ready)
        finally:
            notify("STOPPING=1")
            nursery.cancel_scope.cancel()


_EVENTS = 1000
"""Recorded events in one line of the control socket."""
_RECORD_EVERY = 0.25
"""Seconds between two lines."""


class Service:
    """What a mount offers besides files: the control socket, metrics, and its record in the state directory."""

    def __init__(self, plan: Plan, assembly: Assembly, mount: Mount) -> None:
        self._plan = plan
        self._pool = assembly.pool
        self._frames = assembly.frames
        self._mount = mount
        self._started = time.time()

    async def run(self, announce: Callable[[], None]) -> None:
        """Make the mount known and answer requests until cancelled."""
        state = self._plan.state
        async with trio.open_nursery() as nursery:
            with ExitStack() as stack:
                await nursery.start(control.serve, state.socket, self._handlers())
                stack.callback(state.forget)
                state.write_record(MountRecord(os.getpid(), self._plan.mount_point, self._started))
                self._serve_metrics(stack)
                log.info("pool %s is mounted on %s", self._pool.name, self._plan.mount_point)
                announce()
                notify("READY=1")
                await trio.sleep_forever()

    def _serve_metrics(self, stack: ExitStack) -> None:
        address = self._plan.config.metrics
        if address is not None:
            labels = {"pool": self._pool.name}
            mount = StatisticsCollector(from_trio(self._statistics), labels, GAUGES)
            caches = CachesCollector(partial(control.statistics_of_caches, self._plan.folder), labels, GAUGES)
            stack.enter_context(serve_metrics(address, mount, caches))

    def _handlers(self) -> dict[str, control.Handler]:
        return {
            "status": self._status,
            "stats": self._stats,
            "commit": self._commit,
            "scrub": self._scrub,
            "prefetch": self._prefetch,
            "record": self._record,
            "unmount": self._unmount,
        }

    def _statistics(self) -> Json:
        return statistics_of_mount(self._pool, self._frames, self._mount)

    async def _status(self, _arguments: Json, _report: Report) -> Json:
        return describe_pool(self._pool) | {
            "mount_point": self._plan.mount_point,
            "pid": os.getpid(),
            "started": self._started,
            "version": __version__,
        }

    async def _stats(self, _arguments: Json, _report: Report) -> Json:
        return self._statistics()

    async def _commit(self, _arguments: Json, _report: Report) -> Json:
        """Let others see in the catalogue what was published up to now."""
        self._pool.catalog.commit()
        return {}

    async def _scrub(self, _arguments: Json, report: Report) -> Json:
        return await scrub_report(self._pool, report)

    async def _prefetch(self, arguments: Json, report: Report) -> Json:
        return await warm(self._pool, self._frames, arguments["paths"], report)

    async def _record(self, arguments: Json, report: Report) -> Json:
        """Tell what is asked for, for so many seconds or until the client leaves."""
        seconds = arguments.get("seconds")
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise ControlError(f"seconds: {seconds!r:.40} is no time")
        recording = Recording(time.monotonic)
        recordings = self._mount.recorder.recordings
        recordings.append(recording)
        try:
            with trio.move_on_after(math.inf if seconds is None else float(seconds)):
                while True:
                    events = recording.take(_EVENTS)
                    await report({"events": events})  # also if there are none: the client sees that we live
                    if len(events) < _EVENTS:
                        await trio.sleep(_RECORD_EVERY)
        finally:
            recordings.remove(recording)
        while events := recording.take(_EVENTS):
            await report({"events": events})
        return {"recorded": recording.recorded, "lost": recording.lost}

    async def _unmount(self, _arguments: Json, _report: Report) -> Json:
        """Not lazily: whoever has a file open must not lose it without being told."""
        path = self._plan.mount_point
        unmount = partial(
            trio.run_process, check=False, capture_stderr=True, env=os.environ | {"LC_ALL": "C"}
        )
        with trio.CancelScope(shield=True):  # its success ends the mount, and with it the control socket
            result = await unmount(unmount_command(path, lazy=False))
        if result.returncode:
            raise unmount_refused(path, result.stderr.decode(errors="replace"))
        return {"unmounted": path}
