"""The state directory: what a host keeps about its pools, one folder a pool, and in that one a mount point.

    <root>/<pool>/pool.yaml      the configuration that `pool create` wrote (kvfs.config)
                  devices/       devices of an embedded pool
                  learnt/        what was learnt of returns (kvfs.learnt): may be deleted
                  catalogue/     a cache of the media: may be deleted while nothing has the pool open
                  <uuid>.lock    who has the pool open (blockdev.lease)
                  mounts/<name>/ of one mount point; locked by the process that mounts there, for as long as it lives
                      control.sock   between the command and the mount (kvfs.control)
                      mount.json     where, and by which process; left behind when that is killed
                      mount.log      what a background mount has to say
                  caches/<pid>-<n>.sock  between the command and an engine's process that has the pool open

The name is the end of the mount point's path and a hash of all of it: the same for every mount that is made there, and
short, since the path of a socket may have no more than 107 bytes (kvfs.control gets by with longer ones).

`<root>/domain` names the coordination domain of the host: two state directories are two hosts.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blockdev.forks import closed_in_children
from kvfs.errors import ConfigError, MountPointBusy, UnknownPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_caches = itertools.count(1)
"""Of this process, for the names of their sockets."""
_NAME_LETTERS = 16
"""Of a mount point's path that its folder shows."""
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
class MountFolder:
    """Paths of the state of one mount point of a pool."""

    path: Path

    @property
    def pool(self) -> PoolFolder:
        return PoolFolder(self.path.parent.parent)

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
        """Make the folder, and the pool's if need be, readable by their owner only."""
        self.pool.create()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only process that mounts there, or cleans up. The kernel lets go when the process ends.

        :raises MountPointBusy: another one does
        """
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock(folder)
            with closed_in_children(folder):
                yield
        finally:
            os.close(folder)

    def _lock(self, folder: int) -> None:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MountPointBusy(
                f"another process mounts pool '{self.pool.name}' there, or has not ended yet; see {self.log}"
            ) from None

    def write_record(self, record: MountRecord) -> None:
        write_atomically(self.record, json.dumps(asdict(record)) + "\n")

    def read_record(self) -> MountRecord | None:
        """None if nothing is recorded, or what is there is not a record."""
        try:
            fields = json.loads(self.record.read_text())
            return MountRecord(int(fields["pid"]), str(fields["mount_point"]), float(fields["started"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        """Remove what a mount leaves for others to find it."""
        self.record.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)

    def discard(self) -> None:
        """Forget a mount whose process is gone, unless the next one has come meanwhile."""
        with suppress(MountPointBusy, FileNotFoundError), self.held():
            self.forget()


@dataclass(frozen=True, slots=True)
class CacheSocket:
    """Where a process that uses the Cache API answers the command. Left behind when that is killed."""

    path: Path

    @property
    def pid(self) -> int:
        return int(self.path.name.split("-")[0])

    @property
    def label(self) -> str:
        """What tells it apart from all others of the host: the process, and which of its caches it is."""
        return self.path.stem


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

    def learnt(self, by: str) -> Path:
        """What one of those who learn of returns has learnt; its folder is made."""
        folder = self.path / "learnt"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{by}.json"

    def create(self) -> None:
        """Make the folder, readable by its owner only."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)

    def mount(self, mount_point: str) -> MountFolder:
        """Where the state of a (resolved) mount point is, or would be."""
        return MountFolder(self.path / "mounts" / named_after(mount_point, _NAME_LETTERS))

    def new_cache(self) -> CacheSocket:
        """For one more cache of this process; its folder is made."""
        folder = self.path / "caches"
        folder.mkdir(mode=0o700, exist_ok=True)
        return CacheSocket(folder / f"{os.getpid()}-{next(_caches)}.sock")

    def caches(self) -> list[CacheSocket]:
        """Of live processes and of dead ones."""
        return [CacheSocket(path) for path in sorted(self.path.glob("caches/[0-9]*-*.sock"))]

    def mounts(self) -> list[MountFolder]:
        """Those that are recorded: of live mounts and of dead ones."""
        return [MountFolder(record.parent) for record in sorted(self.path.glob("mounts/*/mount.json"))]


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

    def mounted_on(self, mount_point: str) -> list[MountFolder]:
        """Mounts whose record names this directory: one that is live, and any that died there."""
        name = named_after(mount_point, _NAME_LETTERS)
        found = [MountFolder(path.parent) for path in sorted(self.root.glob(f"*/mounts/{name}/mount.json"))]
        return [mount for mount in found if _points_to(mount.read_record(), mount_point)]


def _points_to(record: MountRecord | None, mount_point: str) -> bool:
    return record is not None and record.mount_point == mount_point


def named_after(path: str, letters: int) -> str:
    """A file name that shows the end of a path and is another one for every other path."""
    last = re.sub(r"[^A-Za-z0-9._-]", "-", os.path.basename(path)).lstrip("._-")[:letters]  # noqa: PTH119
    return f"{last or 'root'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"


def read_text(path: Path) -> str:
    """A file's text; of a pipe or a device nobody waits for the end. :raises OSError, UnicodeDecodeError:"""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "Not a file", str(path))
    return path.read_text(encoding="utf-8")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that readers, and a crash, find the old or the new text whole. It stays whose and what it was."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with spare.open("w", encoding="utf-8") as file:
            with suppress(FileNotFoundError):
                _take_after(path.stat(), file.fileno())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        spare.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write does not say where
        raise
    finally:
        spare.unlink(missing_ok=True)


def _take_after(old: os.stat_result, descriptor: int) -> None:
    with suppress(PermissionError):  # only root gives files away
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
