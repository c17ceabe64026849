"""Copies of files that are opened again and again, which the kernel reads by itself; see `passthrough`.

A file is copied when it is opened for the second time while it is in memory, whole and verified, and later opens are told
of the copy. All that have a file open at once must be told of it, or none: a file that is open without gets to its copy when all have
closed it, and an open that cannot be told is refused while others have been.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import trio

from blockdev.types import MIB
from kvfs.fuse.ports import MustWait

if TYPE_CHECKING:
    from kvfs.fuse.inodes import Inode
    from kvfs.fuse.readers import Readers

log = logging.getLogger(__name__)

_LEAST: Final = MIB
"""Bytes from which a file is worth it."""
_SHARE: Final = 2
"""At most half of the room is one file's."""
_KEPT: Final = 10.0
"""Seconds since it was opened for which a copy does not make room for others: who opens more files in turn than there is
room for would have all of them copied all the time.
"""
_REMEMBERED: Final = 4096
"""Files of which it is known that they were opened once."""
_WAITING: Final = 64
"""Files that are about to be copied, one after the other."""
_QUIET: Final = 0.02
"""Seconds without an open after which one is made: it takes a processor for a moment."""
_PATIENCE: Final = 0.5
"""Seconds after which it is made all the same."""
_PASSING: Final = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EINTR, errno.EMFILE, errno.ENFILE})
"""After what else goes wrong, no file is copied any more."""


class Kernel(Protocol):
    """What copies are made with; `passthrough.Passthrough` is it."""

    def new_file(self) -> int:
        """An empty file in memory, open. From any thread. :raises OSError:"""

    def back(self, fd: int) -> int:
        """Let the kernel read a file for us; returns the number by which opens name it. :raises OSError:"""

    def let_go(self, number: int) -> None:
        """No open will name it any more; those that did go on."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Copy:
    """
    :ivar number: by which the kernel knows it
    :ivar opens: that were told of it, and are not closed
    :ivar used: when one was told last
    """

    inode: Inode
    fd: int
    number: int
    size: int
    used: float
    opens: int = 0

    @property
    def is_of_use(self) -> bool:
        """Whether somebody may find what it is a copy of."""
        return not (self.inode.gone or self.inode.stale)


@dataclass(frozen=True, slots=True)
class CopyStatistics:
    """Of one mount."""

    files: int
    bytes: int
    opens: int
    """That were told of a copy, since the mount was made."""


class Copies:
    """Of one mount, by inode: its number stands for one version, which never changes.

    :param kernel: None where there is none: then no file is copied
    :param soon: has the trio thread call something, with arguments; from any thread
    :param limit: most bytes
    """

    def __init__(
        self,
        kernel: Kernel | None,
        readers: Readers,
        nursery: trio.Nursery,
        soon: Callable[..., object],
        *,
        limit: int,
    ) -> None:
        self._kernel = kernel
        self._readers = readers
        self._nursery = nursery
        self._soon = soon
        self._limit = limit if kernel is not None else 0
        self._copies: OrderedDict[int, _Copy] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._wanted: OrderedDict[int, Inode] = OrderedDict()
        self._is_making = False
        self._now = trio.lowlevel.current_clock().current_time
        self._last_open = 0.0
        self._bytes = 0
        self._opens = 0

    def statistics(self) -> CopyStatistics:
        """A frozen snapshot."""
        return CopyStatistics(len(self._copies), self._bytes, self._opens)

    # --- with custody

    def opened(self, inode: Inode, *, hit: bool) -> int:
        """A version is about to be open to be read: the number of its copy for the kernel, or 0 if it is to ask us.

        :param hit: all of it was in memory
        """
        self._last_open = self._now()
        copy = self._copies.get(inode.number)
        if copy is None:
            if hit:
                self._note(inode)
            return 0
        if inode.handles > copy.opens:
            return 0
        copy.opens += 1
        copy.used = self._last_open
        self._opens += 1
        self._copies.move_to_end(inode.number)
        return copy.number

    def is_open(self, inode: Inode) -> bool:
        """Whether it is open by those who were told of a copy."""
        copy = self._copies.get(inode.number)
        return copy is not None and copy.opens > 0

    def closed(self, inode: Inode) -> None:
        """One that was told of the copy is closed."""
        self._copies[inode.number].opens -= 1

    def forget(self, inode: Inode) -> None:
        """Neither the kernel nor an open file knows the inode any more."""
        self._seen.pop(inode.number, None)
        if inode.number in self._copies:
            self._drop(self._copies[inode.number])

    def _note(self, inode: Inode) -> None:
        number, record = inode.number, inode.record
        if record is None or not _LEAST <= record.size <= self._limit // _SHARE or number in self._wanted:
            return
        if number not in self._seen:
            self._seen[number] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        elif len(self._wanted) < _WAITING:
            self._wanted[number] = inode
            if not self._is_making:
                self._is_making = True
                self._soon(self._nursery.start_soon, self._make_all)

    # --- in the trio thread

    async def _make_all(self) -> None:
        try:
            while self._wanted and self._limit:
                inode = next(iter(self._wanted.values()))
                await self._quiet()
                try:
                    await self._make(inode)
                except MustWait:
                    pass  # it has left memory since, or there is no room to keep it there meanwhile
                except OSError as error:
                    log.info("a file is not copied for the kernel: %s", error.strerror)
                    if error.errno not in _PASSING:
                        self._limit = 0
                finally:  # only now: it may be opened meanwhile
                    self._wanted.pop(inode.number, None)
        finally:
            self._is_making = False
            self._close_if_over()

    async def _quiet(self) -> None:
        """Wait for a moment in which nobody opens anything, but not for long."""
        with trio.move_on_after(_PATIENCE):
            while (left := self._last_open + _QUIET - self._now()) > 0:  # noqa: ASYNC110 - a thread may open one
                await trio.sleep(left)

    async def _make(self, inode: Inode) -> None:
        record, kernel = inode.record, self._kernel
        if record is None or inode.gone or inode.stale or kernel is None or not self._has_room(record.size):
            return
        reader = self._readers.open_now(record)
        try:
            views = reader.views(0, record.size)
            assert views is not None
            fd = await trio.to_thread.run_sync(_filled, kernel, views)
        finally:
            self._readers.close(reader)
        try:
            if not (inode.lookups or inode.handles) or not self._limit:
                raise InterruptedError(errno.EINTR, "nobody knows it any more")
            number = kernel.back(fd)
        except OSError:
            os.close(fd)
            raise
        self._copies[inode.number] = _Copy(inode, fd, number, record.size, self._now())
        self._bytes += record.size

    def _has_room(self, size: int) -> bool:
        """Make room, if that can be: of what nobody finds any more first, then of what was opened longest ago."""
        before = self._now() - _KEPT
        idle = [c for c in self._copies.values() if not c.opens and (c.used <= before or not c.is_of_use)]
        for copy in sorted(idle, key=lambda copy: copy.is_of_use):
            if self._bytes + size <= self._limit:
                break
            self._drop(copy)
        return self._bytes + size <= self._limit

    def _drop(self, copy: _Copy) -> None:
        assert self._kernel is not None
        del self._copies[copy.inode.number]
        self._bytes -= copy.size
        self._kernel.let_go(copy.number)
        os.close(copy.fd)

    def close(self) -> None:
        """The mount has ended."""
        self._limit = 0
        for copy in list(self._copies.values()):
            self._drop(copy)
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._kernel is not None and not self._limit and not self._is_making and not self._copies:
            self._kernel.close()
            self._kernel = None


def _filled(kernel: Kernel, views: Sequence[memoryview | bytes]) -> int:
    """A new file with these bytes, open."""
    fd = kernel.new_file()
    try:
        for view in views:
            done = 0
            while done < len(view):
                done += os.write(fd, view[done:])
    except BaseException:
        os.close(fd)
        raise
    return fd
