"""The devices of one pool, addressed by slot: reads and writes the records of `layout` and the payloads beside them.

Knows where things are and in which order they become durable; knows nothing of names, space or who may write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import trio

from blockdev import layout
from blockdev.device import Begun, Device
from blockdev.errors import (
    DeviceClosed,
    DeviceError,
    DeviceGivenUp,
    DeviceLost,
    DeviceTimeout,
    Unavailable,
    WriteFailed,
)
from blockdev.memory import PageBuffers
from blockdev.pace import Pace
from blockdev.rechecking import Transfer
from blockdev.tasks import for_each
from blockdev.types import (
    CHUNK_SLOTS,
    PAGE,
    Descriptor,
    DeviceNo,
    ExtentRef,
    RegionHeader,
    RegionId,
    RegionNo,
    SlotAddress,
    SlotClass,
    SlotNo,
    SlotRef,
    Superblock,
)

log = logging.getLogger(__name__)

PAIR = layout.PAIR


@dataclass(slots=True)
class Attached:
    """One device of the pool that is present."""

    device: Device
    superblock: Superblock
    geometry: layout.DeviceGeometry
    headers: dict[RegionNo, RegionHeader] = field(default_factory=dict)
    """Regions whose header is damaged on both pages, or that could not be read, are absent."""
    lost: bool = False
    late: set[RegionNo] = field(default_factory=set)
    """Regions that a write or discard which was given up may still change."""
    flush_lock: trio.Lock = field(default_factory=trio.Lock)
    flush_asked: int = 0
    flush_done: int = 0


class Media:
    """All devices of a pool that are present, by device number.

    :param pool: the pool's UUID; pages of other pools are not believed
    :param attached: the devices that are present
    """

    def __init__(self, pool: UUID, attached: Iterable[Attached]) -> None:
        self.pool = pool
        self.devices: dict[DeviceNo, Attached] = {a.superblock.device_no: a for a in attached}
        self.on_lost: list[Callable[[DeviceNo], object]] = []
        """Called, between awaits, with a device that is not used any more."""
        self.on_failure: list[Callable[[DeviceNo, DeviceError], object]] = []
        """Called, between awaits, with a device and what an operation on it failed with: it may be found to be lost."""
        self.pace = Pace()
        """Tells work in the background when it may use the devices."""
        self.buffers = PageBuffers()
        """For whoever reads and writes records."""
        self._geometry: dict[tuple[int, SlotClass], layout.RegionGeometry] = {}

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────

    def available(self, device: DeviceNo) -> bool:
        attached = self.devices.get(device)
        return attached is not None and not attached.lost

    def known_header(self, region: RegionId) -> RegionHeader | None:
        """A region's header; None if it is damaged or its device is missing."""
        attached = self.devices.get(region.device)
        return attached.headers.get(region.region) if attached is not None else None

    def reaches(self, place: SlotAddress | SlotRef | ExtentRef | RegionId) -> bool:
        """Whether this is on a device and in a region that can be read."""
        attached = self.devices.get(place.device)
        return attached is not None and not attached.lost and place.region in attached.headers

    def reachable(self, record: Descriptor) -> bool:
        """Whether every slot that the record itself lists can be read; of an indexed one, its index slots."""
        return self.reaches(record.address) and all(
            self.reaches(extent) for extent in record.extents if not extent.is_hole
        )

    def may_change(self, region: RegionId) -> bool:
        """Whether a write that was given up may still land in a region: it keeps its geometry as long."""
        attached = self.devices.get(region.device)
        return attached is not None and region.region in attached.late

    def give_up(self, region: RegionId) -> None:
        """A region's descriptors cannot be read: what is in it is out of reach until the pool is opened again."""
        self.devices[region.device].headers.pop(region.region, None)

    def mark_lost(self, device: DeviceNo) -> None:
        """Stop using a device: its objects become misses until it is back (`put_back`)."""
        attached = self.devices[device]
        if not attached.lost:
            attached.lost = True
            attached.device.give_up()
            log.error(
                "device %s is lost: its objects are misses until it is back",
                attached.device.name,
            )
            for callback in self.on_lost:
                callback(device)

    def put_back(self, attached: Attached) -> None:
        """Use a device again that was lost; see `returning`, which saw that it is as it was."""
        self.devices[attached.superblock.device_no] = attached
        log.warning("device %s is back", attached.device.name)

    def device(self, device: DeviceNo) -> Device:
        """:raises Unavailable: it is missing or lost"""
        return self._attached(device).device

    def header(self, region: RegionId) -> RegionHeader:
        """:raises Unavailable: the device is missing or the region's header is damaged"""
        attached = self._attached(region.device)
        try:
            return attached.headers[region.region]
        except KeyError:
            raise Unavailable(f"{attached.device.name}: region {region.region} has no valid header") from None

    def geometry(self, region: RegionId) -> layout.RegionGeometry:
        """Where the slots of an active region are. :raises Unavailable:"""
        header = self.header(region)
        return self.class_geometry(region.device, header.slot_class)

    def class_geometry(self, device: DeviceNo, slot_class: SlotClass) -> layout.RegionGeometry:
        size = self._attached(device).geometry.region_size
        key = (size, slot_class)
        if key not in self._geometry:
            self._geometry[key] = layout.RegionGeometry(size, slot_class)
        return self._geometry[key]

    def classes(self, refs: Iterable[SlotRef]) -> frozenset[SlotClass]:
        """The slot classes of those of these slots that can be read."""
        return frozenset(
            self.devices[ref.device].headers[ref.region].slot_class for ref in refs if self.reaches(ref)
        )

    def _attached(self, device: DeviceNo) -> Attached:
        attached = self.devices.get(device)
        if attached is None:
            raise Unavailable(f"device {device} of the pool is missing")
        if attached.lost:
            raise Unavailable(f"{attached.device.name} is lost")
        return attached

    def _pair_offset(self, address: SlotAddress) -> tuple[Attached, int]:
        attached = self._attached(address.device)
        geometry = self.geometry(RegionId(address.device, address.region))
        return attached, attached.geometry.region_offset(address.region) + geometry.descriptor_offset(
            address.slot
        )

    def _payload_offset(self, address: SlotAddress) -> tuple[Attached, int]:
        attached = self._attached(address.device)
        geometry = self.geometry(RegionId(address.device, address.region))
        return attached, attached.geometry.region_offset(address.region) + geometry.payload_offset(
            address.slot
        )

    # ── descriptors ──────────────────────────────────────────────────────────────────────────────────────

    async def read_descriptor(self, address: SlotAddress) -> Descriptor | None:
        """The slot's current record, or None if neither page of its pair is valid.

        :raises Unavailable, DeviceError:
        """
        attached, offset = self._pair_offset(address)
        epoch = self.header(RegionId(address.device, address.region)).epoch
        with self.buffers.take(PAIR) as pair:
            await self._read(attached, offset, pair)
            return layout.pick_descriptor(self.pool, pair, address, epoch)

    async def read_chunk(self, region: RegionId, chunk: int) -> list[Descriptor | None]:
        """The current records of the slots `chunk_span(chunk)`, in order. :raises Unavailable, DeviceError:"""
        geometry, header = self.geometry(region), self.header(region)
        attached = self._attached(region.device)
        first, count = geometry.chunk_span(chunk)
        offset = attached.geometry.region_offset(region.region) + geometry.descriptor_offset(SlotNo(first))
        with self.buffers.take(CHUNK_SLOTS * PAIR) as buffer:
            await self._read(attached, offset, buffer[: count * PAIR])
            return [
                layout.pick_descriptor(
                    self.pool,
                    buffer[i * PAIR : (i + 1) * PAIR],
                    SlotAddress(region.device, region.region, SlotNo(first + i)),
                    header.epoch,
                )
                for i in range(count)
            ]

    async def write_descriptor(self, descriptor: Descriptor) -> None:
        """Write the page of the pair that `descriptor.sequence` names; the other page stays as it is.

        :raises Unavailable, DeviceError: whether the page was written is then unknown
        """
        attached, offset = self._pair_offset(descriptor.address)
        with self.buffers.take(PAGE) as page:
            page[:] = layout.encode_descriptor(self.pool, descriptor)
            await self._write(attached, offset + (descriptor.sequence % 2) * PAGE, page)

    # ── payloads ─────────────────────────────────────────────────────────────────────────────────────────

    async def read_payload(self, address: SlotAddress, into: memoryview) -> None:
        """Fill `into` (whole pages) from the start of the slot's payload. :raises Unavailable, DeviceError:"""
        attached, offset = self._payload_offset(address)
        await self._read(attached, offset, into)

    async def transfer_payload(self, address: SlotAddress, transfer: Transfer) -> None:
        """Have the slot's payload read by somebody else. :raises Unavailable, DeviceError:"""
        attached, offset = self._payload_offset(address)
        with self._noticing_loss(attached):
            await transfer(attached.device, offset)

    async def write_payload(self, address: SlotAddress, data: memoryview, at: int = 0) -> None:
        """Write `data` (whole pages) into the slot's payload, from its byte `at` (a multiple of the page) on.

        :raises ValueError: that is not all inside the payload
        :raises Unavailable, DeviceError:
        """
        attached, offset = self._payload_offset(address)
        size = self.header(RegionId(address.device, address.region)).slot_class.payload_size
        if not 0 <= at <= at + data.nbytes <= size:
            raise ValueError(f"{data.nbytes} bytes at {at} are not inside a payload of {size}")
        await self._write(attached, offset + at, data)

    def begin_payload(self, address: SlotAddress, data: memoryview) -> Begun | None:
        """As `write_payload` from the payload's beginning; see `Device.begin_write`. :raises Unavailable, DeviceError:"""
        attached, offset = self._payload_offset(address)
        begun = attached.device.begin_write(offset, data)
        return begun and begun._replace(land=partial(self._land, begun, attached, offset))

    async def _land(self, begun: Begun, attached: Attached, offset: int) -> None:
        with self._noticing(attached, offset):
            await begun.land()

    async def discard_payload(self, address: SlotAddress) -> None:
        """Tell the device that the payload is not needed; never touches descriptors. Most errors are only logged.

        :raises DeviceTimeout: it may yet happen
        """
        try:
            size = self.header(RegionId(address.device, address.region)).slot_class.payload_size
            if size and not self._attached(address.device).device.is_file:  # a file keeps its blocks
                attached, offset = self._payload_offset(address)
                with self._noticing(attached, offset):
                    await attached.device.discard(offset, size)
        except DeviceTimeout:
            raise
        except (Unavailable, DeviceError) as error:
            log.info("discard of %s failed: %s", address, error)

    # ── order ────────────────────────────────────────────────────────────────────────────────────────────

    async def flush(self, devices: Iterable[DeviceNo]) -> None:
        """Make every write that has returned on these devices durable against a power loss.

        Concurrent callers share a flush. A flush that fails loses the device: what it had not yet written cannot
        be known any more, and asking again may succeed without having written it.

        :raises Unavailable, DeviceError:
        """
        numbers = sorted(set(devices))
        if len(numbers) == 1:
            await self._flush_one(self._attached(numbers[0]))
            return
        for attached in [self._attached(number) for number in numbers]:
            await self._flush_one(attached)

    async def _flush_one(self, attached: Attached) -> None:
        attached.flush_asked += 1
        ticket = attached.flush_asked
        async with attached.flush_lock:
            if attached.flush_done >= ticket:
                return
            covers = attached.flush_asked
            try:
                await attached.device.flush()
            except DeviceError:
                self.mark_lost(attached.superblock.device_no)
                raise
            attached.flush_done = covers

    # ── regions and superblocks ──────────────────────────────────────────────────────────────────────────

    async def load_headers(self, device: DeviceNo, *, repair: bool) -> list[RegionNo]:
        """Read every region header of a device; returns the regions whose header is damaged on both pages.

        :param repair: write again what is damaged on one page
        :raises Unavailable, DeviceError:
        """
        attached = self._attached(device)
        damaged: list[RegionNo] = []

        async def load(number: RegionNo) -> None:
            with self.buffers.take(PAIR) as pair:
                await self._read(attached, attached.geometry.region_offset(number), pair)
                header = layout.pick_region_header(self.pool, pair, device, number)
                pages = (pair[:PAGE], pair[PAGE:])
                valid = sum(layout.decode_region_header(self.pool, page) is not None for page in pages)
            if header is None:
                damaged.append(number)
                return
            attached.headers[number] = header
            if valid == 1 and repair:
                log.warning(
                    "%s: one page of the header of region %d was damaged: repaired",
                    attached.device.name,
                    number,
                )
                await self.write_header(replace(header, sequence=header.sequence + 1))

        await for_each(map(RegionNo, range(attached.geometry.regions)), load, at_once=16)
        return sorted(damaged)

    async def reload_header(self, region: RegionId) -> None:
        """Read a region's header again: the process that writes to it may have formatted it. Damage changes nothing.

        :raises Unavailable, DeviceError:
        """
        attached = self._attached(region.device)
        with self.buffers.take(PAIR) as pair:
            await self._read(attached, attached.geometry.region_offset(region.region), pair)
            header = layout.pick_region_header(self.pool, pair, region.device, region.region)
        known = attached.headers.get(region.region)
        if header is not None and known is not None and header.sequence > known.sequence:
            attached.headers[region.region] = header

    async def reload_headers(self) -> None:
        """Read the headers of all regions again. Damage, and what cannot be read, changes nothing."""

        async def reload(region: RegionId) -> None:
            with suppress(DeviceError, Unavailable):
                await self.reload_header(region)

        await for_each(
            [RegionId(d, r) for d, a in self.devices.items() if not a.lost for r in list(a.headers)],
            reload,
            at_once=16,
        )

    async def write_header(self, header: RegionHeader) -> None:
        """Write the page of a region's header pair that its sequence names. :raises Unavailable, DeviceError:"""
        attached = self._attached(header.device_no)
        offset = attached.geometry.region_offset(header.region) + (header.sequence % 2) * PAGE
        with self.buffers.take(PAGE) as page:
            page[:] = layout.encode_region_header(header)
            await self._write(attached, offset, page)
        self.devices[header.device_no].headers[header.region] = header  # it may be back meanwhile

    async def write_in_region(self, region: RegionId, at: int, data: memoryview) -> None:
        """Write `data` (whole pages) at byte `at` of a region. :raises Unavailable, DeviceError:"""
        attached = self._attached(region.device)
        await self._write(attached, attached.geometry.region_offset(region.region) + at, data)

    async def write_superblock(self, superblock: Superblock) -> None:
        """Write the page of the device's superblock pair that its sequence names. :raises Unavailable, DeviceError:"""
        attached = self._attached(superblock.device_no)
        with self.buffers.take(PAGE) as page:
            page[:] = layout.encode_superblock(superblock)
            await self._write(attached, layout.superblock_offset(superblock.sequence), page)
        attached.superblock = superblock

    # ── I/O with the loss of a device noticed ────────────────────────────────────────────────────────────

    async def _read(self, attached: Attached, offset: int, into: memoryview) -> None:
        with self._noticing_loss(attached):
            await attached.device.read_into(offset, into)

    async def _write(self, attached: Attached, offset: int, data: memoryview) -> None:
        with self._noticing(attached, offset):
            await attached.device.write_from(offset, data)

    @contextmanager
    def _noticing(self, attached: Attached, offset: int) -> Iterator[None]:
        """Around what changes media at `offset`: notice the loss of the device, and what may change it later."""
        with self._noticing_loss(attached):
            try:
                yield
            except DeviceTimeout:
                geometry = attached.geometry
                attached.late.add(RegionNo((offset - geometry.data_offset) // geometry.region_size))
                raise
            except (DeviceLost, DeviceClosed):
                raise
            except DeviceError as error:
                raise WriteFailed(error.device, error.errno, f"not written: {error}") from error

    @contextmanager
    def _noticing_loss(self, attached: Attached) -> Iterator[None]:
        """Around an operation: what fails because the device is lost says so."""
        try:
            yield
        except DeviceGivenUp:
            raise
        except DeviceError as error:
            if not attached.lost:  # else it is known, and the device may be back, opened anew
                self._tell(attached.superblock.device_no, error)
            if isinstance(error, DeviceLost) or not attached.lost:
                raise
            if isinstance(error, DeviceTimeout):
                raise DeviceGivenUp(
                    error.device, error.errno, f"lost, after: {error}", error.pending
                ) from error
            raise DeviceLost(error.device, error.errno, f"lost, after: {error}") from error

    def _tell(self, device: DeviceNo, error: DeviceError) -> None:
        if isinstance(error, DeviceLost):
            self.mark_lost(device)
            return
        for callback in self.on_failure:
            callback(device, error)

    async def aclose(self) -> None:
        """Close every device."""
        for attached in self.devices.values():
            await attached.device.aclose()
