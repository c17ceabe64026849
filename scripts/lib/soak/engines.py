"""How each engine stores and loads a file: the calls it makes, in its order, with its flags."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from pathlib import Path

from scripts.lib.soak.calls import Call, Calls
from scripts.lib.soak.contents import PART_MAX
from scripts.lib.soak.universe import Engine, File

PAGE = mmap.PAGESIZE
_DIRECT = {Engine.VLLM, Engine.SLAB}
_BUFFER_SIZE = 2 * PART_MAX + PAGE


class ShortTransfer(OSError):
    """A write(2) took, or a read(2) before the end gave, less than it was asked to."""


class NotMounted(OSError):
    """What is stored now would land below the mount point."""


class Player:
    """Plays every engine on one mount; of one thread.

    :param root: the mount point
    """

    def __init__(self, root: Path, calls: Calls) -> None:
        self._root = root
        self._below = os.stat(root.parent).st_dev  # noqa: PTH116
        self._calls = calls
        self._buffer = mmap.mmap(-1, _BUFFER_SIZE)  # aligned, as O_DIRECT wants it
        self._view = memoryview(self._buffer)

    def load(self, file: File) -> bytes | None:
        """The whole file, or None for a miss.

        :raises OSError: an engine would have to be told
        """
        path = self._path(file)
        if file.engine in (Engine.VLLM, Engine.LMCACHE) and not self._calls.exists(path):
            return None
        try:
            with self._calls.opened(path, os.O_RDONLY | self._flags(file)) as descriptor:
                data = self._read(descriptor, file)
            if file.engine is Engine.LMCACHE:
                with self._calls.timed(Call.UTIME):
                    os.utime(path)
        except FileNotFoundError:
            return None
        return data

    def store(self, file: File, data: bytes) -> None:
        """Make it, or replace it.

        :raises OSError: it may be stored, or not
        """
        path = self._path(file)
        if os.stat(self._root).st_dev == self._below:  # noqa: PTH116
            raise NotMounted(errno.ENOTCONN, "the mount is gone, and the directory that it hid is no place")
        with self._calls.timed(Call.MKDIR):
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        draft = f"{path}.{secrets.token_hex(4)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_TRUNC | self._flags(file)
        try:
            with self._calls.opened(draft, flags) as descriptor:
                self._write(descriptor, data, 0)
            with self._calls.timed(Call.RENAME):
                os.rename(draft, path)  # noqa: PTH104
        except OSError:
            self._discard(draft)
            raise

    def change(self, file: File, old: int, new: int) -> None:
        """Turn a slab of one version into another, in place.

        :raises FileNotFoundError: it is not there
        :raises OSError: it is of the old version, or the new
        """
        subject = file.subject
        with self._calls.opened(self._path(file), os.O_RDWR | self._flags(file)) as descriptor:
            for part in subject.changed(old, new):
                self._write(descriptor, subject.part(part, new), subject.span(part)[0])
            with self._calls.timed(Call.FSYNC):
                os.fsync(descriptor)

    def remove(self, file: File) -> None:
        """:raises OSError:"""
        with self._calls.timed(Call.UNLINK):
            os.unlink(self._path(file))  # noqa: PTH108

    def look_around(self, file: File) -> None:
        """What engines do to see how they stand: list a directory, ask how full it is."""
        folder = os.path.dirname(self._path(file))  # noqa: PTH120
        with self._calls.timed(Call.STATVFS):
            os.statvfs(self._root)
        try:
            with self._calls.timed(Call.LIST):
                os.listdir(folder)  # noqa: PTH208
        except FileNotFoundError:
            pass

    def _discard(self, draft: str) -> None:
        try:
            with self._calls.timed(Call.UNLINK):
                os.unlink(draft)  # noqa: PTH108
        except OSError:
            pass

    def _path(self, file: File) -> str:
        return f"{self._root}/{file.path}"

    @staticmethod
    def _flags(file: File) -> int:
        return os.O_DIRECT if file.engine in _DIRECT else 0

    def _write(self, descriptor: int, data: bytes, offset: int) -> None:
        self._buffer[: len(data)] = data
        with self._calls.timed(Call.WRITE):
            written = os.pwrite(descriptor, self._view[: len(data)], offset)
        if written != len(data):
            raise ShortTransfer(0, f"a write took {written} bytes of {len(data)}")

    def _read(self, descriptor: int, file: File) -> bytes:
        """One read, of a page more than there should be: what is too long is wrong as well."""
        wanted = -(-file.subject.size // PAGE) * PAGE
        with self._calls.timed(Call.READ):
            got = os.preadv(descriptor, [self._view[: min(wanted + PAGE, _BUFFER_SIZE)]], 0)
        return self._buffer[:got]
