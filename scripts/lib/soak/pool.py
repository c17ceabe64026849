"""The pool of a soak and its members: made, killed, stopped, mounted again and taken away, by the `kvfs` command."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvfs.control import ask
from kvfs.state import MountFolder, PoolFolder
from scripts.lib.soak.samples import Sample
from scripts.lib.trial_pool import run_kvfs

POOL = "soak"
DEVICES = 2
EXTENT = 2 << 20
"""Bytes; small, so that blocks of 4 MiB have two."""
GONE_MS = 30_000
STATS_SECONDS = 5.0
KIB = 1 << 10


class SoakFailed(Exception):
    """The soak cannot go on."""


class Member:
    """One mount of the pool."""

    def __init__(self, pool: SoakPool, number: int) -> None:
        self.number = number
        self.mount_point = pool.folder / f"mnt-{number}"
        self._pool = pool
        self._pid = 0

    @property
    def _state(self) -> MountFolder:
        return PoolFolder(self._pool.state / POOL).mount(str(self.mount_point.resolve()))

    @property
    def log(self) -> str:
        """What its processes had to say."""
        return self._state.log.read_text() if self._state.log.exists() else ""

    def mount(self) -> None:
        """:raises SoakFailed:"""
        self._pool.kvfs("mount", POOL, str(self.mount_point), "--memory", self._pool.memory)
        record = self._state.read_record()
        if record is None:
            raise SoakFailed(f"{self.mount_point} is mounted and has no record")
        self._pid = record.pid

    def umount(self) -> None:
        """Also takes away what a killed mount left.

        :raises SoakFailed:
        """
        self._pool.kvfs("umount", str(self.mount_point))

    def kill(self) -> None:
        """kill -9; returns when the process is gone.

        :raises SoakFailed: it outlives it
        """
        descriptor = os.pidfd_open(self._pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            if not waiting.poll(GONE_MS):
                raise SoakFailed(f"process {self._pid} outlives kill -9")
        finally:
            os.close(descriptor)

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def statistics(self) -> dict[str, Any]:
        """Its counters.

        :raises KvfsError, OSError: it does not answer
        """
        return ask(self._state.socket, "stats", timeout=STATS_SECONDS)

    def sample(self) -> Sample:
        """:raises OSError: the process is gone"""
        process = Path("/proc") / str(self._pid)
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        resident, files = (int(status[name].split()[0]) * KIB for name in ("VmRSS", "RssFile"))
        return Sample(
            at=time.monotonic(),
            memory=resident - files,
            descriptors=len(os.listdir(process / "fd")),  # noqa: PTH208
            threads=int(status["Threads"]),
        )

    def clean_up(self) -> None:
        """Unmounted and its process ended, whatever state it is in."""
        with suppress(OSError):
            if self._pid:
                self.go_on()
        if self.is_mounted():
            with suppress(SoakFailed, subprocess.TimeoutExpired):
                self.umount()
        if self.is_mounted():
            self._abort()

    def _abort(self) -> None:
        with suppress(OSError, SoakFailed):
            self.kill()
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            _, _, device, _, where, *_ = line.split(" ")
            if where == str(self.mount_point):
                with suppress(OSError):
                    Path(f"/sys/fs/fuse/connections/{device.split(':')[1]}/abort").write_text("1")
        subprocess.run(["fusermount3", "-u", "-z", "--", self.mount_point], check=False)

    def is_mounted(self) -> bool:
        return f" {self.mount_point} " in Path("/proc/self/mountinfo").read_text()


class SoakPool:
    """The pool in `folder`, of files, and its members.

    :param size: bytes of all devices together
    :param memory: of each member, as `kvfs mount --memory` takes it
    """

    def __init__(self, folder: Path, size: int, members: int, memory: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.devices = [folder / f"device-{number}" for number in range(DEVICES)]
        self.memory = memory
        self._size = size
        self.members = [Member(self, number) for number in range(members)]

    def kvfs(self, *arguments: str) -> str:
        """Run a kvfs command; its output.

        :raises SoakFailed: it failed
        """
        result = run_kvfs(self.state, *arguments)
        if result.returncode:
            raise SoakFailed(f"kvfs {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def create(self) -> None:
        """Make it, and mount every member.

        :raises SoakFailed:
        """
        sizes = ("--size", str(self._size // DEVICES), "--extent-size", str(EXTENT))
        self.kvfs("pool", "create", *sizes, POOL, *map(str, self.devices))
        for member in self.members:
            member.mount_point.mkdir()
            member.mount()

    def clean_up(self, *, keep: bool) -> None:
        """Nothing mounted, no process left; and nothing on disk, unless it is to be kept."""
        for member in self.members:
            member.clean_up()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def departures(statistics: dict[str, Any]) -> int:
    """Objects that a member has let go without being asked to."""
    pool = statistics["pool"]
    return int(pool["evicted"]) + int(pool["quarantined"])
