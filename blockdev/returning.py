"""A lost device comes back while its pool is open, and what it holds is served again.

It must be the device that was lost, as it was left: its superblock tells who it is and that no other host took it, the
headers of our regions that none was formatted since. What the pool knew of its slots was kept (`Space`), and the
catalogues still have its objects, so nothing is scanned. Other members may have gone on using it, and see to their own
regions: those are only read again, headers first. In this order:

1. Fence. A record whose write was given up may have arrived, or may yet. In place of each, what the pool has since said
   of that slot is written with a higher sequence, into one page of the pair after the other: then the late one counts
   for nothing, whenever it arrives.
2. Use it again, in one step: from here on its objects are found, and its slots handed out.
3. Sweep. What was replaced or removed while it was away is still valid on it, and no object claims it any more: it is
   made invalid, as it would have been then. Objects that are back get their place in the order of eviction.

A device that fails on the way is lost as before. What members have that ended while it was away is taken over when it is
back, see `adoption`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from blockdev.catalogs import is_aside
from blockdev.errors import DeviceError, DeviceMismatch, ReadOnly, Unavailable
from blockdev.media import Attached, Media
from blockdev.superblocks import read_superblock
from blockdev.types import (
    Descriptor,
    DeviceNo,
    Generation,
    Kind,
    RegionId,
    RegionNo,
    SlotAddress,
    SlotRef,
)

if TYPE_CHECKING:
    from blockdev.device import Device
    from blockdev.parts import Parts
    from blockdev.pool import Pool
    from blockdev.region import Region
    from blockdev.types import ObjectId, Superblock

log = logging.getLogger(__name__)

_STAYS = frozenset({Kind.TOMBSTONE, Kind.ALIAS, Kind.DIRECTORY})
"""What may keep others alive or dead without being in the catalogue: only a scan of everything tells."""


class Returning:
    """Takes devices of one open pool back.

    :param followed: our catalogues say all that the media say, the returned device included
    """

    def __init__(self, pool: Pool, parts: Parts, followed: Callable[[], None]) -> None:
        self._pool = pool
        self._media = parts.media
        self._space = parts.space
        self._catalogs = parts.catalog
        self._membership = parts.membership
        self._policy = parts.policy
        self._room = parts.room
        self._versions = parts.versions
        self._followed = followed

    async def take_back(self, number: DeviceNo, device: Device) -> None:
        """Use a lost device again.

        :param device: opened anew; the pool's from now on, but the caller's to close if this fails
        :raises DeviceMismatch: it is another one, or was changed meanwhile
        :raises ReadOnly: the pool was opened for reading
        :raises FormatError, Unavailable, DeviceError: it cannot be read or written
        """
        if self._membership is None:
            raise ReadOnly(f"pool {self._pool.name!r} was opened for reading")
        lost = self._media.devices[number]
        superblock = await read_superblock(device)
        _check_same(lost.superblock, superblock, device)
        fresh = Attached(device, superblock, lost.geometry, late=lost.late)
        view = Media(self._media.pool, [fresh])
        await view.load_headers(number, repair=False)
        fenced = await self._fence(view, number, self._changed(lost, fresh))
        await view.flush([number])
        regions = self._put_back(lost, fresh)
        complete = fenced and not self._membership.incomplete_seats(self._media)
        with trio.CancelScope(shield=True):
            await lost.device.aclose()  # waits no longer than for any other operation
        if await self._sweep(regions) and complete and self._media.available(number):
            self._followed()

    def _changed(self, lost: Attached, fresh: Attached) -> set[RegionNo]:
        """Regions of ours that are not what they were when the device was lost."""
        numbers = map(RegionNo, range(lost.geometry.regions))
        device = lost.superblock.device_no
        ours = {n for n in numbers if self._catalogs.assigned(RegionId(device, n)) is not None}
        return {n for n in ours if fresh.headers.get(n) != lost.headers.get(n)}

    def _put_back(self, lost: Attached, fresh: Attached) -> list[Region]:
        changed = self._changed(lost, fresh)  # again: what was under way may have arrived
        for region in changed:
            log.warning(
                "%s: region %d is not what it was: not used until the pool is opened again",
                fresh.device.name,
                region,
            )
            fresh.headers.pop(region, None)
        self._media.put_back(fresh)
        return self._space.take_back(fresh.superblock.device_no, changed)

    # ── 1. fence ─────────────────────────────────────────────────────────────────────────────────────────

    async def _fence(self, view: Media, number: DeviceNo, changed: Collection[RegionNo]) -> bool:
        """Outdo what was given up; whether all of it is."""
        done = True
        regions = {region.id: region for region in self._space.lost_regions(number)}
        for address in self._room.late_on(number):
            region = regions.get(RegionId(address.device, address.region))
            if region is None or address.region in changed:
                continue  # nothing in it is believed, or handed out
            found = await view.read_descriptor(address)
            is_buried = (
                found is not None and found.kind is Kind.TOMBSTONE
            )  # the late one says no more than that
            if is_buried or await self._outdo(view, region, address, found):
                self._room.forget_late(address)
            else:
                done = False
        return done

    async def _outdo(
        self, view: Media, region: Region, address: SlotAddress, found: Descriptor | None
    ) -> bool:
        """Write what counts into both pages of a slot, later than anything that was ever written there.

        :returns: whether that could be: of an object that another member gave another name, we do not know ours
        """
        known = region.sequence[address.slot] or (found.sequence if found is not None else 0)
        record = self._claimed(region, address) or _free(region, address, found)
        if is_aside(record):
            return False
        for step in (3, 4):  # known + 1 is what is late, and in the page that is written first
            record = replace(record, sequence=known + step)
            await view.write_descriptor(record)
        region.set_sequence(address.slot, record.sequence)
        if record.kind is not Kind.FREE:
            self._catalogs.put(record)
        return True

    def _claimed(self, region: Region, address: SlotAddress) -> Descriptor | None:
        """The record that our catalogues have of this use of a slot."""
        ref = region.ref(address.slot)
        return next((r for r in self._own(region.last_owner(address.slot)) if r.ref == ref), None)

    def _own(self, object_id: ObjectId) -> list[Descriptor]:
        """What our catalogues have of an object, whatever others say of it."""
        return [
            record
            for catalog in self._catalogs.own.values()
            for alias in (False, True)
            if (record := catalog.by_id(object_id, alias=alias)) is not None
        ]

    # ── 3. sweep ─────────────────────────────────────────────────────────────────────────────────────────

    async def _sweep(self, regions: Iterable[Region]) -> bool:
        """Free what nothing claims any more; whether all of it is invalid now."""
        done = True
        for region in regions:
            for owner, refs in region.owned().items():
                await trio.lowlevel.checkpoint()
                claimed = await self._claims(owner)
                left = [ref for ref in refs if ref not in claimed]
                if left:
                    done = await self._free(owner, left) and done
                else:
                    self._order(owner, claimed)
        return done

    def _order(self, owner: ObjectId, slots: Collection[SlotRef]) -> None:
        heads = [record for record in self._own(owner) if record.kind is Kind.HEAD]
        if heads and owner not in self._policy:
            self._policy.named(owner, heads[0].name, heads[0].stamp)
            self._policy.follows(owner, heads[0].predecessor)
            self._policy.add(owner, self._room.classes(slots), trio.current_time())

    async def _claims(self, owner: ObjectId) -> frozenset[SlotRef]:
        """The slots of what our catalogues have of an object."""
        return frozenset([ref for record in self._own(owner) for ref in await self._versions.slots(record)])

    async def _free(self, owner: ObjectId, refs: Iterable[SlotRef]) -> bool:
        async with self._pool.exclusively(owner):
            claimed = await self._claims(owner)
            try:
                left = [ref for ref in refs if ref not in claimed and await self._may_go(ref)]
            except (DeviceError, Unavailable):
                return False
            held = self._versions.pins.older_than(owner, None)
            with trio.CancelScope(shield=True):
                done = [await self._room.invalidate([ref], held) for ref in left]
        return all(done)

    async def _may_go(self, ref: SlotRef) -> bool:
        """Whether a record is still there, and means nothing. :raises Unavailable, DeviceError:"""
        if not self._space.in_use(ref):
            return False  # freed meanwhile
        found = await self._media.read_descriptor(ref.address)
        return found is None or found.kind not in _STAYS


def _check_same(lost: Superblock, found: Superblock, device: Device) -> None:
    """:raises DeviceMismatch:"""
    if (found.pool, found.device) != (lost.pool, lost.device):
        raise DeviceMismatch(f"{device.name} is not the device that was lost, but of pool {found.name!r}")
    if found.sequence < lost.sequence or found.domain != lost.domain:
        raise DeviceMismatch(
            f"{device.name} is an older copy, or another host took it: it is not used until the pool is opened again"
        )
    if device.size < lost.devices[lost.device_no].size:
        raise DeviceMismatch(f"{device.name} has shrunk to {device.size} bytes")


def _free(region: Region, address: SlotAddress, found: Descriptor | None) -> Descriptor:
    newest = max(region.generation[address.slot], found.generation if found is not None else 0)
    return Descriptor(Kind.FREE, address, region.epoch, Generation(newest + 1), 0)
