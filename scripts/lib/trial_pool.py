"""A pool in files, made, mounted, killed and damaged by scripts that show what comes of it."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICES = 2
POOL = "trial"
COMMAND_SECONDS = 120


class TrialFailed(Exception):
    """Something that was to be shown did not happen."""


def run_kvfs(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a kvfs command with this state folder, whatever comes of it.

    :raises subprocess.TimeoutExpired: it takes longer than COMMAND_SECONDS
    """
    return subprocess.run(
        [sys.executable, "-m", "kvfs", "--state-dir", str(state), *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


@dataclass
class TrialPool:
    """One pool, in a folder that is its alone.

    :ivar folder: of pool, mount point and state; `clean_up` removes it
    :ivar pool_size: bytes of all devices together
    """

    folder: Path
    pool_size: int

    @property
    def mount_point(self) -> Path:
        return self.folder / "mnt"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def devices(self) -> list[Path]:
        return [self.folder / f"device{number}" for number in range(DEVICES)]

    # ── the command, as one would type it ───────────────────────────────────────────────────────────────

    def kvfs(self, *arguments: str) -> str:
        """Run a kvfs command; its output.

        :raises TrialFailed: it failed
        """
        result = run_kvfs(self.state, *arguments)
        if result.returncode:
            raise TrialFailed(f"kvfs {' '.join(arguments)}: {result.stderr.strip()}\n{self._log()}".rstrip())
        return result.stdout

    def _log(self) -> str:
        """What the mount had to say: `clean_up` removes it."""
        path = self.state / POOL / "mount.log"
        return path.read_text() if path.exists() else ""

    def create(self) -> None:
        self.state.mkdir()
        self.mount_point.mkdir()
        self.kvfs("pool", "create", "--size", str(self.pool_size // DEVICES), POOL, *map(str, self.devices))

    def mount(self) -> None:
        self.kvfs("mount", POOL, str(self.mount_point))

    def umount(self) -> None:
        self.kvfs("umount", str(self.mount_point))

    def read_from_devices(self) -> int:
        """Bytes that the mount has read from the devices for readers, since it was mounted."""
        stats: dict[str, Any] = json.loads(self.kvfs("stats", "--json", POOL))["stats"]
        return int(stats["reads"]["bytes"])

    # ── what happens to it ──────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """kill -9 of the process that serves the mount."""
        os.kill(self._serving(), signal.SIGKILL)

    def _serving(self) -> int:
        [path] = (self.state / POOL).glob("mounts/*/mount.json")
        record: dict[str, int] = json.loads(path.read_text())
        return record["pid"]

    def flip(self, payload: bytes, at: int) -> Path:
        """Flip one bit, `at` bytes behind the beginning of `payload`, on the device that has it."""
        with self._found(payload) as (device, media, start):
            media[start + at] ^= 1
        return device

    def overwrite(self, payload: bytes, other: bytes) -> None:
        """Put `other` in the place of `payload`, on the device that has it."""
        with self._found(payload) as (_, media, start):
            media[start : start + len(other)] = other

    @contextmanager
    def _found(self, payload: bytes) -> Iterator[tuple[Path, mmap.mmap, int]]:
        """The device that has `payload` in one piece, its bytes, and where in them.

        :raises TrialFailed: none has
        """
        for device in self.devices:
            with device.open("r+b") as file, mmap.mmap(file.fileno(), 0) as media:
                start = media.find(payload)
                if start >= 0:
                    yield device, media, start
                    media.flush()
                    return
        raise TrialFailed("what is to be damaged is on no device")

    def clean_up(self) -> None:
        """Whatever state it is in: unmounted, its process ended, its files gone."""
        for attempt in (self.umount, self.kill):
            try:
                attempt()
            except (TrialFailed, OSError, ValueError, subprocess.TimeoutExpired):
                continue
        if os.path.ismount(self.mount_point) or str(self.mount_point) in Path("/proc/mounts").read_text():
            subprocess.run(["fusermount3", "-u", "-z", "--", self.mount_point], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
