"""Images of guests in a cache, one per recipe. A half-made one never counts: an image appears whole, by a rename."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.lib.lab import recipe
from scripts.lib.lab.build import DISK, INITRD, KERNEL, build
from scripts.lib.lab.errors import Unavailable

UNUSED_SECONDS = 7 * 86400
"""Images of other recipes are removed when they have not been used for as long."""
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class Image:
    """What a guest boots."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / KERNEL

    @property
    def initrd(self) -> Path:
        return self.folder / INITRD

    @property
    def disk(self) -> Path:
        return self.folder / DISK


def cache() -> Path:
    """Where images are kept: $KVFS_LAB_CACHE, or kvfs/lab in the user's cache directory."""
    if chosen := os.environ.get("KVFS_LAB_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "kvfs/lab")


def current() -> Image:
    """The image for the recipe as it is now.

    :raises Unavailable: there is none
    """
    folder = cache() / recipe.key()
    if not folder.is_dir():
        raise Unavailable("the lab has no image: make it with scripts/lab build (as root, about 2 minutes)")
    return Image(folder)


def ensure(tell: Callable[[str], None]) -> Image:
    """The image for the recipe as it is now, made if it is not there; one process makes it, others wait.

    :raises BuildFailed:
    :raises Unavailable: only root can make it
    """
    folder = cache() / recipe.key()
    if not folder.is_dir():
        if os.geteuid() != 0:
            raise Unavailable("making the lab's image takes root: sudo scripts/lab build")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent):
            if not folder.is_dir():
                _make(folder, tell)
    os.utime(folder)
    return Image(folder)


def _make(folder: Path, tell: Callable[[str], None]) -> None:
    for other in folder.parent.iterdir():
        unfinished = other.name.startswith(_UNFINISHED)  # whoever made it is gone: it would hold the lock
        if unfinished or (other.is_dir() and time.time() - other.stat().st_mtime > UNUSED_SECONDS):
            shutil.rmtree(other)
    unfinished_folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        build(unfinished_folder, tell)
        unfinished_folder.rename(folder)
    finally:
        shutil.rmtree(unfinished_folder, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
