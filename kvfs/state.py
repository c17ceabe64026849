"""The state directory: what a host keeps about its pools, one folder a pool.

    <root>/<pool>/pool.yaml      the configuration that `pool create` wrote (kvfs.config)
                  devices/       devices of an embedded pool
                  catalogue/     a cache of the media: may be deleted while nothing has the pool open
                  lock           who writes
                  control.sock   between the command and the mount that runs (kvfs.control)
                  mount.json     where and by which process it is mounted; left behind when that is killed
                  mount.log      what a background mount has to say

`<root>/domain` names the coordination domain of the host: two state directories are two hosts.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvfs.errors import ConfigError, UnknownPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_POOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_pool_name(name: str) -> str:
    """The name, if it may be a pool's: it is a folder's name and part of a mount's source.

    :raises ConfigError:
    """
    if not _POOL_NAME.fullmatch(name):
        raise ConfigError(
            f"pool name '{name}' is not usable: take 1 to 64 letters, digits, '.', '_' or '-', "
            "the first of them a letter or a digit"
        )
    return name


def default_root(environ: Mapping[str, str], uid: int) -> Path:
    """$KVFS_STATE_DIR, else /var/lib/kvfs for root, else $XDG_STATE_HOME/kvfs."""
    if chosen := environ.get("KVFS_STATE_DIR"):
        return Path(chosen).absolute()
    if uid == 0:
        return Path("/var/lib/kvfs")
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "/"), ".local", "state")  # noqa: PTH118
    return Path(home) / "kvfs"


@dataclass(frozen=True, slots=True)
class MountRecord:
    """Who has a pool mounted. It outlives a killed process: only the control socket tells whether that is alive."""

    pid: int
    mount_point: str
    started: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class PoolFolder:
    """Paths of one pool's state."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "pool.yaml"

    @property
    def devices(self) -> Path:
        return self.path / "devices"

    @property
    def socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def log(self) -> Path:
        return self.path / "mount.log"

    @property
    def record(self) -> Path:
        return self.path / "mount.json"

    def create(self) -> None:
        """Make the folder, readable by its owner only."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)

    def write_record(self, record: MountRecord) -> None:
        write_atomically(self.record, json.dumps(asdict(record)) + "\n")

    def read_record(self) -> MountRecord | None:
        """None if nothing is recorded, or what is there is not a record."""
        try:
            fields = json.loads(self.record.read_text())
            return MountRecord(int(fields["pid"]), str(fields["mount_point"]), float(fields["started"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def forget_mount(self) -> None:
        """Remove what a mount leaves for others to find it."""
        self.record.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """All pools that this host knows."""

    root: Path

    def folder(self, name: str) -> PoolFolder:
        """Where a pool's state is, or would be.

        :raises ConfigError: not a pool's name
        """
        return PoolFolder(self.root / check_pool_name(name))

    def known(self, name: str) -> PoolFolder:
        """The folder of a pool that exists.

        :raises UnknownPool, ConfigError:
        """
        folder = self.folder(name)
        if not folder.config.is_file():
            names = ", ".join(known.name for known in self) or "none"
            raise UnknownPool(
                f"no pool '{name}' in {self.root}; known pools: {names}; make one with 'kvfs pool create'"
            )
        return folder

    def __iter__(self) -> Iterator[PoolFolder]:
        """Every pool with a configuration, by name; none where there is no such directory.

        :raises OSError: it cannot be read
        """
        with suppress(FileNotFoundError):
            os.scandir(self.root).close()  # glob takes what it may not read for empty
        for config in sorted(self.root.glob("*/pool.yaml")):
            yield PoolFolder(config.parent)

    def mounted_on(self, mount_point: str) -> PoolFolder | None:
        """The pool whose record, of a live or of a dead mount, names this directory."""
        for path in sorted(self.root.glob("*/mount.json")):
            record = PoolFolder(path.parent).read_record()
            if record is not None and record.mount_point == mount_point:
                return PoolFolder(path.parent)
        return None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that readers, and a crash, find the old or the new text whole."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with spare.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        spare.replace(path)
    finally:
        spare.unlink(missing_ok=True)
