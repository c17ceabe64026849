"""How regions come to be ours, get a slot class, get another one, and go to other members."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import trio

from blockdev.errors import DeviceError, Unavailable
from blockdev.formatting import format_region, retire_region
from blockdev.leasing import Leasing
from blockdev.media import Media
from blockdev.region import Region
from blockdev.slots import Slots
from blockdev.space import Space
from blockdev.types import DeviceNo, RegionId, RegionState, SlotClass

log = logging.getLogger(__name__)


class Empty(Protocol):
    async def __call__(self, region: Region, *, ahead: bool) -> bool:
        """Let go what is in a region; False if something stays."""


class Regions:
    """Regions of one member, one of them formatted or emptied at a time.

    :param empty: lets go what is in a region
    :param is_awaited: whether somebody waits for a slot
    """

    def __init__(
        self,
        media: Media,
        space: Space,
        leasing: Leasing,
        slots: Slots,
        *,
        empty: Empty,
        is_awaited: Callable[[], bool],
    ) -> None:
        self._media = media
        self._space = space
        self._leasing = leasing
        self._slots = slots
        self._limbo = slots.limbo
        self._counters = slots.counters
        self._member = slots.options.member
        self._empty = empty
        self._is_awaited = is_awaited
        self._formatting = trio.Lock()

    async def format_unused(self, slot_class: SlotClass) -> bool:
        """See that a class has a region on each device where one is in no use; whether there was one lacking."""
        async with self._formatting:
            if self._space.has_free(slot_class):
                return True  # given back, or formatted by somebody else, while we waited
            lacking = len(self._space.lacking_devices(slot_class))
            if not lacking:
                for free in self._leasing.free():
                    self._space.add_unused(free)
                lacking = len(self._space.lacking_devices(slot_class))
            for _ in range(lacking):  # one a device: stripes from the start
                region = self._space.unused_region(slot_class)
                if region is not None and await self._lease(region):
                    await self._format(region, slot_class)
            return lacking > 0

    async def _lease(self, region: RegionId) -> bool:
        """Become the writer of a region that nobody uses; False if another member was faster."""
        if self._leasing.is_ours(region):
            return True
        used = True
        try:
            # Looked at before it is locked, too: what a member that ended has left must not be locked by one that is
            # stopped while it looks.
            if await self._is_used(region) or not self._leasing.lease(region):
                return False
            used = await self._is_used(region)
        except BaseException:
            self._space.add_unused(region)  # cancelled: it is still nobody's, or will be found not to be
            raise
        finally:
            if not used:
                self._leasing.keep(region)
            elif not self._leasing.is_ours(region):  # it may have come to us with a seat meanwhile
                self._leasing.release(region)
        return not used

    async def _is_used(self, region: RegionId) -> bool:
        try:
            await self._media.reload_header(region)
            return self._media.header(region).state is RegionState.ACTIVE
        except (DeviceError, Unavailable):
            return True

    async def format_ahead(self, slot_class: SlotClass, device: DeviceNo) -> None:
        """Format an unused region of a device, if there still is one."""
        async with self._formatting:
            others = set(self._space.unused_devices()) - {device}
            region = self._space.unused_region(slot_class, avoid=others)
            if region is not None and await self._lease(region):
                before = self._counters.formatted
                await self._format(region, slot_class)
                self._counters.formatted_ahead += self._counters.formatted - before

    async def _format(self, region: RegionId, slot_class: SlotClass) -> None:
        try:
            header = await format_region(self._media, region, slot_class, self._member, self._is_awaited)
            slots = self._media.geometry(region).slots
        except (DeviceError, Unavailable) as error:
            log.warning("region %s of device %s cannot be formatted (%s): not used", *region[::-1], error)
            self._space.drop_region(region)
            return
        except BaseException:
            self._space.add_unused(region)  # cancelled: nothing of it goes on
            raise
        self._counters.formatted += 1
        self._leasing.keep(region)  # it may have come to us with another's seat
        self._slots.forget_marks(region)
        formatted = Region.formatted(region, slot_class, header.epoch, slots)
        formatted.last_used = trio.current_time()  # not to be taken for another class before it was of use
        self._space.add_region(formatted)
        self._limbo.wake()

    async def sign(self, region_id: RegionId) -> None:
        """Name ourselves as the writer of a region that came to us with another's seat.

        :raises Unavailable, DeviceError:
        """
        async with self._formatting:
            if not self._leasing.is_ours(region_id):
                return  # given up meanwhile
            header = self._media.header(region_id)
            await self._media.write_header(replace(header, writer=self._member, sequence=header.sequence + 1))
            self._leasing.keep(region_id)
            self._slots.forget_marks(region_id)

    async def repurpose(self, region_id: RegionId, slot_class: SlotClass, *, ahead: bool = False) -> bool:
        """Give a region to another class; False if something in it stays."""
        epoch = self._space.region(region_id).epoch
        async with self._formatting:
            try:
                region = self._space.close_region(region_id)  # no slot of it is handed out from here on
            except Unavailable:
                return True  # lost while we waited for our turn
            emptied = False
            try:
                if region.epoch != epoch:
                    return True  # another class was faster
                emptied = await self._empty(region, ahead=ahead)
            finally:
                self._space.reopen_region(region_id)
            if not (emptied and region.is_empty and region.ledger):
                return False
            self._space.remove_region(region_id)
            await self._format(region_id, slot_class)
            self._counters.repurposed += 1
            return True

    async def give(self, region_id: RegionId) -> bool:
        """Let a region go, to whoever of the members needs one; False if something in it stays."""
        async with self._formatting:
            try:
                region = self._space.close_region(region_id)
            except Unavailable:
                return False
            emptied = False
            try:
                emptied = await self._empty(region, ahead=True)
            finally:
                self._space.reopen_region(region_id)
            if not (emptied and region.is_empty and region.ledger):
                return False
            self._space.remove_region(region_id)
            self._space.drop_region(region_id)  # whoever meant to use it finds it gone
            with trio.CancelScope(shield=True):
                await retire_region(self._media, region_id)
            self._leasing.release(region_id)
            self._counters.given += 1
            return True
