"""Serves the mount of a fresh, small pool in a process of its own, without the command around it.

Run as a program: mounts, writes a line to stdout when the mount answers, serves until it is told to stop.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from blockdev.creating import CreateOptions, create_pool
from blockdev.file_device import create_file, open_file_device
from blockdev.opening import OpenOptions, open_pool
from blockdev.types import MIB, SlotClass
from kvfs.frames import Arena, open_frames
from kvfs.fuse.mount import Mount, MountOptions, serve
from tests.e2e.helpers import LANE

DOMAIN = "local:test"
STUCK_AFTER = 100.0
"""Seconds; less than pytest gives a test."""
EXTENT = 2 * MIB


@dataclass(frozen=True, slots=True)
class Setup:
    """A pool and its mount.

    :ivar extent: name of the slot class
    :ivar frames: of one extent each
    :ivar whole_limit: bytes up to which files are read whole at open
    :ivar lane: whether reads and writes go past pyfuse3
    """

    device_mib: int = 96
    region_mib: int = 8
    extent: str = "MIB2"
    frames: int = 16
    whole_limit: int = 32 * MIB
    lane: bool = LANE


@dataclass(slots=True)
class Served:
    """A mount that is there."""

    path: Path
    process: subprocess.Popen[str]
    killed: bool = False

    def stop(self) -> None:
        """Ask the mount to end, as an operator would with SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STUCK_AFTER)

    def kill(self) -> None:
        """kill -9: a dead mount is left."""
        self.killed = True
        self.process.kill()
        self.process.wait()


@contextmanager
def served(folder: Path, setup: Setup = Setup(), stuck_after: float = STUCK_AFTER) -> Iterator[Served]:
    """A mount for the length of the block; nothing is left of it, and it had nothing to complain of.

    The same folder again: the same pool again.

    :param stuck_after: seconds after which the mount is killed, so that who hangs in it gets an error
    """
    path = folder / "mnt"
    with suppress(OSError):  # there is a dead mount
        path.mkdir(exist_ok=True)
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.serving", str(folder), json.dumps(asdict(setup))],
            stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        mount = Served(path, process)
        watchdog = threading.Timer(stuck_after, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", log.read_text()
            yield mount
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait()
            watchdog.cancel()
            if process.stdout is not None:
                process.stdout.close()
            subprocess.run(["fusermount3", "-u", "-z", "-q", path], check=False, capture_output=True)
    text = log.read_text()
    sys.stdout.write(text)
    assert code == 0 or mount.killed, text
    assert "Traceback" not in text, text


async def serve_fresh(folder: Path, setup: Setup, ready: Callable[[Mount], None]) -> None:
    """Serve the folder's pool, which is made if it is not there, on its `mnt`."""
    with suppress(OSError):  # there is a dead mount
        (folder / "mnt").mkdir()
    device_path = folder / "device"
    if not device_path.exists():
        await create_file(device_path, setup.device_mib * MIB)
        device = await open_file_device(device_path)
        options = CreateOptions("test", DOMAIN, SlotClass[setup.extent], setup.region_mib * MIB)
        await create_pool([device], options)
        await device.aclose()
    devices = [await open_file_device(device_path)]
    extent_size = SlotClass[setup.extent].payload_size
    arena = Arena(setup.frames * extent_size, extent_size, huge_pages=False)
    async with (
        open_pool(devices, folder / "catalogue", OpenOptions(DOMAIN)) as opened,
        open_frames(arena, opened.pool) as frames,
    ):
        mount_options = MountOptions(whole_limit=setup.whole_limit, lane=setup.lane)
        await serve(opened.pool, frames, folder / "mnt", mount_options, ready=ready)


def _ready(_: Mount) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    trio.run(serve_fresh, Path(sys.argv[1]), Setup(**json.loads(sys.argv[2])), _ready)
