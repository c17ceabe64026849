"""Keeps a member in touch with the others: sees what they changed, does what they ask for, and takes over from the dead.

There is nothing to elect and nobody to wait for. Each member reads the others' catalogues (LMDB's readers wait for no
writer) and notices changes by their number, so one that was stopped in the middle of whatever it did holds up nobody;
what it could have done, others find undone. What went by unseen, because a follower was too slow, is looked for.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import trio

from blockdev.catalog import Catalog, Change
from blockdev.errors import BlockError, ChecksumError, PoolClosed
from blockdev.membership import FOLLOW_PERIOD, Membership
from blockdev.pool import Pool
from blockdev.types import NO_ID, Foreign, ObjectId, SlotRef

log = logging.getLogger(__name__)

_TEND_PERIOD = 1.0
"""Seconds between looks for members that ended, and for what is over."""


class Adopter(Protocol):
    """Takes over the seats of members that ended."""

    async def adopt(self, pool: Pool) -> list[int]:
        """Take over every free seat that has something; returns them."""


class Follower:
    """Two tasks: one looks and never waits, the other does what the first has found."""

    def __init__(
        self, pool: Pool, membership: Membership, adopter: Adopter, doubtful: Iterable[ObjectId]
    ) -> None:
        self._pool = pool
        self._membership = membership
        self._adopter = adopter
        self._cursors: dict[int, int] = {}
        self._doubtful: OrderedDict[ObjectId, None] = OrderedDict.fromkeys(doubtful)
        """Objects of ours that others may have spoken of."""
        self._work = trio.Event()
        self._live: list[int] | None = None
        """Seats that others hold."""
        self._seats: list[int] = []
        """Seats that have a catalogue."""

    async def run(self) -> None:
        """Until it is cancelled."""
        for catalog in self._pool.catalog.own.values():
            self._doubt_all(catalog)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tend)
            while True:
                await trio.sleep(FOLLOW_PERIOD)
                try:
                    self.look()
                except OSError as error:
                    log.warning("what other members changed cannot be seen: %s", error)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """See what others changed since the last look. :raises OSError:"""
        pool, board = self._pool, self._membership.board
        live = self._membership.leases.others()
        if live != self._live:  # who ended is read until its seat is taken over
            self._live = live
            self._seats = self._membership.seats_there()
        if live:
            pool.show_figures()
        pool.catalog.see_others({*self._seats, *live})
        if not pool.catalog.others:
            self._cursors.clear()
            return
        for seat, catalog in pool.catalog.others.items():
            self._follow(seat, catalog)
        for seat in self._cursors.keys() - pool.catalog.others.keys():
            del self._cursors[seat]
        for object_id in board.take_uses():
            pool.used_elsewhere(object_id)
        if self._doubtful or self._membership.should_give():
            self._work.set()

    def _follow(self, seat: int, catalog: Catalog) -> None:
        cursor = self._cursors.get(seat)
        seen = catalog.changes_since(cursor) if cursor is not None else None
        if seen is None:
            self._cursors[seat] = catalog.last_change()
            self._doubt_all(catalog)
            self._tell(None)
            return
        self._cursors[seat], changes = seen
        for change in changes:
            self._doubt(change)
            if change.outdone is None:
                self._tell(Foreign(change.object_id, change.directory, change.name))

    def _doubt(self, change: Change) -> None:
        if change.outdone is not None:
            self._doubt_slot(change.outdone)
            return
        self._doubtful[change.object_id] = None
        for catalog in self._pool.catalog.own.values():
            ours = catalog.get(change.directory, change.name)
            if ours is not None and ours.object_id != change.object_id:
                self._doubtful[ours.object_id] = None

    def _doubt_slot(self, ref: SlotRef) -> None:
        owner = self._pool.owner_of(ref)
        if owner is not None:
            self._doubtful[owner] = None

    def _doubt_all(self, catalog: Catalog) -> None:
        after: SlotRef | None = None
        while batch := catalog.all_outdone(after):
            for after, _ in batch:
                self._doubt_slot(after)

    def _tell(self, change: Foreign | None) -> None:
        if change is not None and change.object_id == NO_ID:
            return
        for callback in self._pool.on_changed:
            callback(change)

    # ── doing ────────────────────────────────────────────────────────────────────────────────────────────

    async def _tend(self) -> None:
        chores = (self._adopter_turn, self._reports, self._pool.sweep, self._doubt_own)
        due = trio.current_time() + _TEND_PERIOD
        while True:
            with trio.move_on_at(due):
                await self._work.wait()
            self._work = trio.Event()
            while self._doubtful:
                object_id, _ = self._doubtful.popitem(last=False)
                await self._try(lambda object_id=object_id: self._pool.fold(object_id))  # type: ignore[misc]
            if self._membership.should_give():
                await self._try(self._pool.give_region)
            if trio.current_time() >= due:
                for chore in chores:
                    await self._try(chore)
                due = trio.current_time() + _TEND_PERIOD

    @staticmethod
    async def _try(work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except PoolClosed:
            raise
        except (BlockError, OSError) as error:
            log.warning("%s", error)

    async def _adopter_turn(self) -> None:
        adopted = await self._adopter.adopt(self._pool)
        for seat in adopted:
            self._cursors.pop(seat, None)
        if adopted:  # what was said of it meanwhile, by whoever
            for catalog in (*self._pool.catalog.own.values(), *self._pool.catalog.others.values()):
                self._doubt_all(catalog)

    async def _doubt_own(self) -> None:
        """Others' objects that came to us while we said something of them are folded as all are."""
        for catalog in self._pool.catalog.own.values():
            self._doubt_all(catalog)

    async def _reports(self) -> None:
        for object_id in self._membership.board.take_reports():
            record = self._pool.catalog.by_id(object_id)
            if record is not None:
                try:
                    await self._pool.verify(record)
                except ChecksumError:
                    log.warning("another member found %r damaged, and it is", record.name)
