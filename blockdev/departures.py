"""How objects leave without being asked to: evicted, found damaged, or outdone by what another member did."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from blockdev.board import Board
from blockdev.errors import ChecksumError
from blockdev.eviction import Policy
from blockdev.locks import Locks
from blockdev.others import Others, Tools
from blockdev.pool_figures import PoolCounters
from blockdev.types import Descriptor, ObjectId, Stamp

log = logging.getLogger(__name__)


class Departures:
    """
    :ivar on_gone: called, between awaits, with each object of ours that left
    """

    def __init__(
        self,
        tools: Tools,
        others: Others,
        policy: Policy,
        board: Board | None,
        locks: Locks,
        counters: PoolCounters,
    ) -> None:
        self._catalogs = tools.catalogs
        self._versions = tools.versions
        self._others = others
        self._policy = policy
        self._board = board
        self._locks = locks
        self._counters = counters
        self._suspects: dict[ObjectId, Stamp] = {}
        """Objects of others whose bytes we found wrong: misses, whatever their owner finds."""
        self.on_gone: list[Callable[[Descriptor], None]] = []

    @property
    def suspects(self) -> bool:
        """Whether there is any such version."""
        return bool(self._suspects)

    def is_suspect(self, record: Descriptor) -> bool:
        """Whether we found the bytes of this version wrong, and it is another's to drop."""
        return self._suspects.get(record.object_id) == record.stamp

    async def evict(self, object_id: ObjectId, *, ahead: bool = False) -> bool:
        """Let an object go; False if it may not go now. :param ahead: nobody waits for its room yet"""
        with trio.CancelScope(shield=True):
            if self._versions.is_stranded(object_id):
                await self._versions.drop_stranded(object_id)
                return True
            with self._locks.objects.try_hold(object_id) as held:
                record = self._others.own(object_id) if held else None
                if record is None or not await self._may_go(record):
                    return False
                self._counters.evicted += 1
                self._counters.evicted_bytes += record.size
                self._counters.evicted_unread += object_id in self._versions.unread
                self._counters.evicted_ahead += ahead
                self._counters.evicted_temporary += self._is_overdue(object_id)
                await self._versions.leave(record)
            self._tell_gone(record)
        return True

    def _is_overdue(self, object_id: ObjectId) -> bool:
        return object_id in self._policy and self._policy.last_used(object_id) == -math.inf

    async def _may_go(self, record: Descriptor) -> bool:
        if record.object_id in self._versions.pins:
            return False
        # From here on a tombstone may say that it is gone. Who pins it now can read it all the same until they unpin.
        return (
            await self._others.try_to_outdo_rivals(record)
            and await self._versions.may_leave(record)
            and await self._drop_beaten(record)
        )

    async def _drop_beaten(self, record: Descriptor) -> bool:
        """Let objects of ours go that have the name of one that is about to go; whether they are gone.

        A seat that we took over may have had them, and nobody has looked at them yet.
        """
        for one in self._others.beaten(record):
            with self._locks.objects.try_hold(one.object_id) as held:
                if not held:
                    return False
                if self._others.own(one.object_id) is not None:
                    await self._versions.leave(one)
        return True

    async def quarantine(self, record: Descriptor, error: ChecksumError) -> None:
        """Drop an object whose bytes are wrong; another's is not there for us from now on, and its owner is told."""
        with trio.CancelScope(shield=True):
            async with self._locks.objects.hold(record.object_id):
                current = self._catalogs.by_id(record.object_id)
                if current is None or current.stamp != record.stamp:
                    return
                self._counters.quarantined += 1
                log.warning("object dropped: %s", error)
                if self._board is None:
                    return
                if self._others.is_ours(current):
                    await self._versions.leave_damaged(current)
                else:
                    self._board.report(current.object_id)
                    self._suspects[current.object_id] = current.stamp
        self._tell_gone(record)

    async def fold(self, object_id: ObjectId) -> bool:
        """Do what other members have said about an object of ours; whether anything was done.

        :raises NoSpace, Unavailable, DeviceError:
        """
        verdict = self._others.verdict(object_id)
        if verdict is None:
            return False
        records = [record for record in verdict if record is not None]
        keys = {(record.directory, record.name) for record in records}
        with trio.CancelScope(shield=True):
            async with (
                self._locks.names.hold(*keys),
                self._locks.objects.hold(*{r.object_id for r in records}),
            ):
                if self._others.verdict(object_id) != verdict:
                    return False  # not any more: the next look will tell
                own, alias, old = verdict
                if alias is not None:
                    await self._others.take_over(own, alias, old)
                elif await self._versions.debts.clear(own, patient=True):
                    await self._versions.leave(own)
                    self._catalogs.not_outdone(own.ref)
                else:
                    return False
        if alias is None and not self._versions.exists(object_id):  # a directory may be another's now
            self._tell_gone(own)
        return True

    def _tell_gone(self, record: Descriptor) -> None:
        for callback in self.on_gone:
            callback(record)
