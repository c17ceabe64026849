"""A mount of a pool of its own, made by the `kvfs` command as an operator would make it, that tests may kill, damage
and mount again."""

from __future__ import annotations

import copy
import mmap
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from kvfs.state import PoolFolder
from tests.e2e.helpers import LANE

STUCK_AFTER = 100.0
"""Seconds after which a mount is killed: whoever hangs in it gets an error, and pytest its thread back."""
COMMAND_SECONDS = 60
GONE_MS = 20_000
POOL = "test"
EXTENT = "2MiB"
MEMORY = "256MiB"
PAGE = 4096
SUPERBLOCKS = 1 << 20
"""Bytes at a device's beginning that hold the pair of superblocks."""


class Mount:
    """A small pool made of files, and the directory where it is mounted while it is."""

    def __init__(self, folder: Path, *options: str, device_size: str = "256MiB") -> None:
        self.path = folder / "mnt"
        self.state = folder / "state"
        self.devices = [folder / "device-0", folder / "device-1"]
        self._options = ("--memory", MEMORY, *(() if LANE else ("--no-lane",)), *options)
        self._watchdog: threading.Timer | None = None
        self.path.mkdir()
        self.command(
            "pool", "create", POOL, *map(str, self.devices), "--size", device_size, "--extent-size", EXTENT
        )

    def beside(self, name: str) -> Mount:
        """A second mount of the same pool, not started yet."""
        other = copy.copy(self)
        other.path = self.path.with_name(name)
        other.path.mkdir()
        other._watchdog = None
        return other

    @property
    def folder(self) -> Path:
        """Where kvfs keeps the pool's state."""
        return self.state / POOL

    @property
    def _mounts(self) -> PoolFolder:
        return PoolFolder(self.folder)

    @property
    def pid(self) -> int:
        """Of the process that serves the mount."""
        record = self._mounts.mount(str(self.path)).read_record()
        assert record is not None
        return record.pid

    @property
    def log(self) -> str:
        """What the mount had to say."""
        path = self._mounts.mount(str(self.path)).log
        return path.read_text() if path.exists() else ""

    def command(self, *arguments: str) -> str:
        """Run `kvfs`; what it printed.

        :raises CalledProcessError: with what it said as a note
        """
        result = subprocess.run(
            [sys.executable, "-m", "kvfs", "--state-dir", self.state, *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if result.returncode:
            error = subprocess.CalledProcessError(result.returncode, ["kvfs", *arguments])
            error.add_note(result.stderr)
            raise error
        return result.stdout

    def statistics(self) -> dict[str, str]:
        """The mount's counters, by dotted name."""
        lines = self.command("stats", "-H", "-p", str(self.path)).splitlines()
        return dict(line.split("\t", 1) for line in lines)

    def start(self) -> float:
        """Mount; returns the seconds until it could be used."""
        started = time.monotonic()
        self.command("mount", *self._options, POOL, str(self.path))
        self.path.stat()
        seconds = time.monotonic() - started
        self.watch()
        return seconds

    def watch(self) -> None:
        """Give whoever uses the mount from now on `STUCK_AFTER` seconds."""
        self._relax()
        self._watchdog = threading.Timer(STUCK_AFTER, self.abort)
        self._watchdog.daemon = True
        self._watchdog.start()

    def revive(self) -> None:
        """Mount again if an earlier test left it dead."""
        try:
            self.path.stat()
        except OSError:
            self.stop()
            self.start()

    def stop(self) -> None:
        """Unmount, and wait until the pool is closed. Also takes away what a killed mount left."""
        self._relax()
        self.command("umount", str(self.path))

    def remount(self) -> float:
        """Unmount and mount again, with nothing left in memory: a cold mount. Seconds of the second half."""
        self.stop()
        return self.start()

    def kill(self) -> None:
        """kill -9 of the mount's process; then the operator takes the dead mount away, and the process is gone."""
        self._relax()
        descriptor = os.pidfd_open(self.pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            self.stop()
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            assert waiting.poll(GONE_MS), "the mount's process outlives kill -9"
        finally:
            os.close(descriptor)

    def abort(self) -> None:
        """End the mount by force: kill its process, and have the kernel answer everything with an error, which it does
        by itself only when the process is gone. Touches nothing that could be stuck.
        """
        self._relax()
        with suppress(OSError, AssertionError):
            os.kill(self.pid, signal.SIGKILL)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            _, _, device, _, where, *_ = line.split(" ")
            if where == str(self.path):
                with suppress(OSError):
                    Path(f"/sys/fs/fuse/connections/{device.split(':')[1]}/abort").write_text("1")

    def _relax(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()

    def close(self) -> None:
        """Leave nothing mounted, nothing running and no devices, whatever state the test left.

        :raises AssertionError: the mount's process had a traceback to tell of
        :raises CalledProcessError: it did not end as it should; it has been killed
        """
        self._relax()
        try:
            if self._is_mounted():
                self.stop()
        finally:
            if self._is_mounted():
                self.abort()
                subprocess.run(["fusermount3", "-u", "-z", self.path], check=True)
            for device in self.devices:  # pytest keeps the folders of several runs
                device.unlink(missing_ok=True)
        sys.stdout.write(self.log)  # shown by pytest where a test failed
        assert "Traceback" not in self.log, self.log

    def _is_mounted(self) -> bool:
        return f" {self.path} " in Path("/proc/self/mountinfo").read_text()

    def wait_for(self, needle: bytes, seconds: float = 30.0) -> None:
        """Until these bytes are on the pool's devices."""
        deadline = time.monotonic() + seconds
        while all(media.find(needle) < 0 for media in self._media()):
            assert time.monotonic() < deadline, "they do not come"
            time.sleep(0.05)

    def overwrite(self, needle: bytes) -> int:
        """Replace every occurrence of `needle` on the pool's devices by as many other bytes; how many there were.
        Nothing is found that crosses from one extent into the next.
        """
        return self._replace(needle, random.Random(len(needle)).randbytes(len(needle)))

    def flip(self, needle: bytes, at: int) -> int:
        """Flip one bit of byte `at` in every occurrence of `needle` on the pool's devices; how many there were."""
        changed = bytearray(needle)
        changed[at] ^= 0x10
        return self._replace(needle, bytes(changed))

    def _replace(self, needle: bytes, other: bytes) -> int:
        found = 0
        for media in self._media():
            at = media.find(needle)
            while at >= 0:
                media[at : at + len(needle)] = other
                found += 1
                at = media.find(needle, at + len(needle))
        return found

    def scribble(self, rng: random.Random, pages: int) -> None:
        """Overwrite pages anywhere on the pool's devices but where they say that they are its devices."""
        for media in self._media():
            for _ in range(pages):
                at = rng.randrange(SUPERBLOCKS, len(media), PAGE)
                media[at : at + PAGE] = rng.randbytes(PAGE)

    def _media(self) -> Iterator[mmap.mmap]:
        for device in self.devices:
            with device.open("r+b") as file, mmap.mmap(file.fileno(), 0) as media:
                yield media
                media.flush()
                os.fsync(file.fileno())

    def forget(self) -> None:
        """Delete what the host remembers of the pool's contents: the next mount reads the media."""
        shutil.rmtree(self.folder / "catalogue")


MakeMount = Callable[..., Mount]
"""make_mount(*options, device_size="256MiB"): a started mount of a fresh pool of two devices; options are those of
`kvfs mount`."""
