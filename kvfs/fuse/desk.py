"""Requests that are answered at once, by whichever thread has custody of the mount's state; see `custody`.

They are what engines ask for again and again: look-ups, new files, opens of what is in memory, and the ends of opens. What
must wait is left to pyfuse3, and nothing was changed; but the two for which each store waits have tasks of their own.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable

from blockdev.types import NAME_MAX
from kvfs.fuse import wire
from kvfs.fuse.attributes import Attributes
from kvfs.fuse.errno_map import errno_of
from kvfs.fuse.openfiles import Handle, OpenFiles
from kvfs.fuse.ports import MustWait
from kvfs.fuse.tree import Tree
from kvfs.fuse.volume import Caller, Volume, refused
from kvfs.fuse.wire import Opcode, OpenFlag, Request

log = logging.getLogger(__name__)

Handler = Callable[[Request, bytes], bytes]
Task = Callable[[Request, bytes], Awaitable[None]]


class Desk:
    """Answers for one volume. Everything here needs custody of its state."""

    def __init__(self, volume: Volume, tree: Tree, files: OpenFiles, attributes: Attributes) -> None:
        self._volume = volume
        self._tree = tree
        self._files = files
        self._attributes = attributes
        self._handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.OPEN: self._open,
            Opcode.RELEASE: self._release,
            Opcode.CREATE: self._create,
        }
        self._tasks: dict[int, Task] = {Opcode.FLUSH: self._flush, Opcode.RENAME: self._rename}

    def serves(self, opcode: int) -> bool:
        """Whether it may have an answer to such a request."""
        return opcode in self._handlers

    def answer(self, request: Request, message: bytes) -> bytes | None:
        """What the kernel is to be told; None if that takes waiting.

        :param message: the whole request
        """
        try:
            return self._handlers[request.opcode](request, message)
        except MustWait:
            return None
        except Exception as error:  # noqa: BLE001 - the mount lives on, whatever it was
            return _failure(request, error)

    def attends(self, opcode: int) -> bool:
        """Whether it has an answer that takes a task."""
        return opcode in self._tasks

    async def attend(self, request: Request, message: bytes) -> bytes:
        """What the kernel is to be told, in a task."""
        try:
            await self._tasks[request.opcode](request, message)
        except Exception as error:  # noqa: BLE001 - as above
            return _failure(request, error)
        return wire.error_answer(request.unique, 0)

    # --- at once

    def _lookup(self, request: Request, message: bytes) -> bytes:
        name = _checked(wire.name_at(message, 0))
        inode = self._tree.lookup_now(self._volume.inode(request.inode), name, _caller(message))
        if inode is None:
            return wire.entry_answer(request.unique, self._attributes.missing())
        inode.lookups += 1
        return wire.entry_answer(request.unique, self._attributes.of(inode))

    def _getattr(self, request: Request, _: bytes) -> bytes:
        inode = self._volume.inode(request.inode)
        if inode.draft is not None or self._volume.is_missing(inode):
            raise MustWait
        entry = self._attributes.of(inode)
        return wire.attributes_answer(request.unique, entry.attr_timeout, entry)

    def _open(self, request: Request, message: bytes) -> bytes:
        flags, _ = wire.OPEN_ARGUMENTS.unpack_from(message, wire.IN_HEADER.size)
        handle = self._files.open_now(self._volume.inode(request.inode), flags, _caller(message))
        return wire.open_answer(request.unique, handle.number, _flags(handle), handle.backing)

    def _create(self, request: Request, message: bytes) -> bytes:
        _, mode, _, _ = wire.CREATE_ARGUMENTS.unpack_from(message, wire.IN_HEADER.size)
        name = _checked(wire.name_at(message, wire.CREATE_ARGUMENTS.size))
        parent = self._volume.inode(request.inode)
        handle, inode = self._files.create_now(parent, name, mode, _caller(message))
        inode.lookups += 1
        opened = wire.opened(handle.number, _flags(handle))
        return wire.entry_answer(request.unique, self._attributes.of(inode), opened)

    def _release(self, request: Request, _: bytes) -> bytes:
        self._files.release_now(request.handle)
        return wire.error_answer(request.unique, 0)

    # --- in tasks

    async def _flush(self, request: Request, _: bytes) -> None:
        await self._files.flush(request.handle)

    async def _rename(self, request: Request, message: bytes) -> None:
        (directory,) = wire.RENAME_ARGUMENTS.unpack_from(message, wire.IN_HEADER.size)
        old, new = wire.names_at(message, wire.RENAME_ARGUMENTS.size)
        source, target = self._volume.inode(request.inode), self._volume.inode(directory)
        await self._tree.rename((source, old), (target, _checked(new)), replace=True, caller=_caller(message))


def _failure(request: Request, error: Exception) -> bytes:
    number = errno_of(error)
    if number is None:
        log.error("request %d failed", request.opcode, exc_info=error)
        number = errno.EIO
    return wire.error_answer(request.unique, number)


def _checked(name: bytes) -> bytes:
    if len(name) > NAME_MAX:
        raise refused(errno.ENAMETOOLONG)
    return name


def _caller(message: bytes) -> Caller:
    return Caller(*wire.CALLER.unpack_from(message))


def _flags(handle: Handle) -> OpenFlag:
    # Cached pages stay true: a number stands for one version. Only an open that could not be led to its own number
    # goes past the cache.
    return OpenFlag.DIRECT_IO if handle.uncached else OpenFlag.KEEP_CACHE
