"""Makes room before somebody waits for it: regions are formatted, and objects let go, while others write.

What is kept free follows what is being written: as many slots as writers hold at a time, and as many as they take while a
freed slot rests. A pool that nobody writes to keeps nothing free, and as long as there are regions that were never used,
nothing is let go.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from blockdev.demand import Demand
from blockdev.errors import BlockError
from blockdev.limbo import share
from blockdev.media import Media
from blockdev.region import SlotState
from blockdev.room import Room
from blockdev.space import Space
from blockdev.types import DeviceNo, SlotClass

log = logging.getLogger(__name__)

_PERIOD = 0.05
"""Seconds between looks while somebody writes."""
_MARGIN = 2
"""How many times what was taken of late is kept: writers that are held back now double their pace with each look."""
_LEAST = 48
"""Slots of a class below which none are kept free: there it costs more to lose one than to wait for one."""
_PATIENCE = 1.0
"""Seconds until the next try, after nothing could be let go."""
_FIRST_FORMAT = 500e6
"""Bytes per second at which a region is formatted, until it was seen."""


class Ahead:
    """The background task of one writing member."""

    def __init__(self, room: Room, space: Space, media: Media) -> None:
        self._room = room
        self._space = space
        self._media = media
        self._demand = Demand()
        self._wanted = trio.Event()
        self._asleep = True
        self._clock = trio.lowlevel.current_clock()
        self._retry_at = [-math.inf] * len(SlotClass)
        self._format_seconds: float | None = None
        room.on_reserve = self._note
        room.is_watched = lambda: not self._asleep

    def _note(self, slot_class: SlotClass) -> None:
        held = self._space.slots(slot_class, SlotState.RESERVED) + self._room.waiting(slot_class)
        self._demand.note(slot_class, held + 1, self._clock.current_time())
        self._wanted.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            self._asleep = False
            while wanted := [c for c in SlotClass if self._demand.per_second(c, trio.current_time())]:
                await trio.sleep(_PERIOD)
                await self._spare_for_small_files()
                for slot_class in wanted:
                    await self._provide(slot_class)
            self._asleep = True

    async def _provide(self, slot_class: SlotClass) -> None:
        if trio.current_time() < self._retry_at[slot_class] or self._space.slots(slot_class) < _LEAST:
            return
        with self._failures_put_off(slot_class):
            await self._room.limbo.reap()
            await self._format(slot_class)
            if not self._space.has_unused:
                await self._let_go(slot_class)

    @contextmanager
    def _failures_put_off(self, slot_class: SlotClass) -> Iterator[None]:
        """Whoever needs the room will meet the same error, and tell of it."""
        try:
            yield
        except (BlockError, OSError) as error:
            log.info("no room can be made ahead: %s", error)
            self._retry_at[slot_class] = trio.current_time() + _PATIENCE

    # ── letting go ───────────────────────────────────────────────────────────────────────────────────────

    async def _let_go(self, slot_class: SlotClass) -> None:
        if self._coming(slot_class) >= self._goal(slot_class) * 2 // 3:
            return  # or it would let one go for each that is taken
        while self._coming(slot_class) < self._goal(slot_class):
            if self._room.waiting(slot_class):
                advanced = await self._room.advance(slot_class)
            else:
                async with self._media.pace.turn():
                    advanced = await self._room.advance(slot_class)
            if not advanced:
                self._retry_at[slot_class] = trio.current_time() + _PATIENCE
                break
        await self._room.limbo.reap()

    def _coming(self, slot_class: SlotClass) -> int:
        """Slots that are free or will be by themselves."""
        return self._space.slots(slot_class, SlotState.FREE) + self._space.resting(slot_class)

    def _goal(self, slot_class: SlotClass) -> int:
        now = trio.current_time()
        rest = self._room.limbo.grace + _PERIOD
        taken = math.ceil(self._demand.per_second(slot_class, now) * rest * _MARGIN)
        return min(self._demand.at_once(slot_class, now) + taken, share(self._space.slots(slot_class)))

    # ── formatting ───────────────────────────────────────────────────────────────────────────────────────

    async def _format(self, slot_class: SlotClass) -> None:
        """See that each device's next region is ready when the last one is full."""
        for device in self._space.unused_devices():
            slots = self._media.class_geometry(device, slot_class).slots
            if self._space.free_on(device, slot_class) < min(self._needed_on(device, slot_class), slots // 2):
                began = trio.current_time()
                await self._room.regions.format_ahead(slot_class, device)
                self._format_seconds = trio.current_time() - began

    async def _spare_for_small_files(self) -> None:
        """Give them a region before large files have taken all."""
        if self._space.spares_one and not self._space.slots(SlotClass.INLINE):
            with self._failures_put_off(SlotClass.INLINE):
                for device in self._space.unused_devices()[:1]:
                    await self._room.regions.format_ahead(SlotClass.INLINE, device)

    def _needed_on(self, device: DeviceNo, slot_class: SlotClass) -> int:
        """How many slots of a device will be taken while a region is formatted there."""
        seconds = self._format_seconds
        if seconds is None:
            seconds = self._media.devices[device].geometry.region_size / _FIRST_FORMAT
        taken = self._demand.per_second(slot_class, trio.current_time()) * (seconds + _PERIOD)
        return math.ceil(taken * _MARGIN / len(self._media.devices))
