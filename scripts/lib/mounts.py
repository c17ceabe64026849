"""Pools and mounts for benchmarks, made by the `kvfs` command as an operator would make them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

_PIECE = 1 << 20


class Kvfs:
    """The command, with a state directory of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        self._command = [sys.executable, "-m", "kvfs", "--state-dir", str(self._state)]

    def __call__(self, *arguments: str) -> str:
        """Run it; what it printed. :raises CalledProcessError:"""
        return subprocess.run(
            [*self._command, *arguments], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def create(self, pool: str, device: Path, size: int, *, written: bool = False) -> None:
        """A pool of one file of `size` bytes, made for it.

        :param written: every byte of it, as on a drive that is in use: the first write to a block of a file takes its file
            system longer than later ones
        """
        with device.open("xb") as file:  # not by the command, which makes none in /dev
            os.posix_fallocate(file.fileno(), 0, size)
            for _ in range(0, size if written else 0, _PIECE):
                file.write(bytes(_PIECE))
            os.fsync(file.fileno())
        self("pool", "create", pool, str(device))

    @contextmanager
    def mounted(self, path: Path, *arguments: str) -> Iterator[Path]:
        """`kvfs mount ARGUMENTS PATH` for the length of the block."""
        path.mkdir(exist_ok=True)
        self("mount", *arguments, str(path))
        try:
            yield path
        finally:
            subprocess.run([*self._command, "umount", str(path)], check=False)

    def requests(self, path: Path) -> int:
        """How many requests a mount with the data lane has been sent."""
        lane = json.loads(self("stats", "--json", str(path)))["stats"]["mount"]["lane"]
        return sum(cast("dict[str, int]", lane).values())

    def memory(self, pool: str) -> int:
        """Bytes of memory of a mount's own, that is without files that it maps."""
        [path] = (self._state / pool).glob("mounts/*/mount.json")
        pid = json.loads(path.read_text())["pid"]
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    def pool_folder(self, pool: str) -> Path:
        """What the host keeps about a pool."""
        return self._state / pool
