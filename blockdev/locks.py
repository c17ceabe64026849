"""One lock a key, made when first wanted and forgotten when nobody wants it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Generic, TypeVar

import trio

from blockdev.types import DirectoryId, ObjectId

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """Mutual exclusion by key for trio tasks. Release is synchronous, so a cancelled holder leaves nothing behind."""

    def __init__(self) -> None:
        self._locks: dict[K, tuple[trio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, *keys: K) -> AsyncIterator[None]:
        """Hold all of `keys` (at least one, equal ones count once), always taken in one order: no deadlock.

        No checkpoint if nobody else holds any of them.
        """
        taken: list[tuple[K, trio.Lock]] = []
        try:
            for key in sorted(set(keys), key=repr) if len(keys) > 1 else keys:
                lock = await self._take(key)
                taken.append((key, lock))
            yield
        finally:
            for key, lock in reversed(taken):
                lock.release()
                self._drop(key)

    async def _take(self, key: K) -> trio.Lock:
        lock = self._want(key)
        try:
            try:
                lock.acquire_nowait()
            except trio.WouldBlock:
                await lock.acquire()
        except BaseException:
            self._drop(key)
            raise
        return lock

    @contextmanager
    def try_hold(self, key: K) -> Iterator[bool]:
        """Hold `key` if that needs no waiting; yields whether it does."""
        lock = self._want(key)
        try:
            if lock.locked():  # by this task, too: whoever tries does not wait, and must not take it twice
                yield False
                return
            lock.acquire_nowait()
            try:
                yield True
            finally:
                lock.release()
        finally:
            self._drop(key)

    def is_wanted(self, key: K) -> bool:
        """Whether somebody holds `key` or waits for it."""
        return key in self._locks

    def __len__(self) -> int:
        return len(self._locks)

    def _want(self, key: K) -> trio.Lock:
        lock, wanted = self._locks.get(key, (None, 0))
        lock = lock or trio.Lock()
        self._locks[key] = (lock, wanted + 1)
        return lock

    def _drop(self, key: K) -> None:
        lock, wanted = self._locks[key]
        if wanted == 1:
            del self._locks[key]
        else:
            self._locks[key] = (lock, wanted - 1)


class Locks:
    """The locks of a pool: names before objects, each kind in one order; eviction only tries.

    :ivar making: before names: keeps other members from making directories
    """

    def __init__(self, making: Callable[[], AbstractAsyncContextManager[None]] = nullcontext) -> None:
        self.making = making
        self.names: KeyedLocks[tuple[DirectoryId, bytes]] = KeyedLocks()
        self.objects: KeyedLocks[ObjectId] = KeyedLocks()

    @property
    def are_free(self) -> bool:
        """Whether nobody holds one or waits for one."""
        return not (len(self.names) or len(self.objects))
