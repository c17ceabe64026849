"""Reading an extent again without comparing it: opt-in, for memory that the processor cannot look at.

Behind such a read its descriptor and its region's header are read again. That proves only that the slot was not used for something
else meanwhile; that the bytes are right, it takes from an earlier time. So it is done for no extent but one that this process
has compared with its checksum since its region's epoch last changed and its device was last connected, and in no region that was
taken over without a fence. Whatever else is asked for is left to be read and compared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Final

from blockdev.types import RegionId

if TYPE_CHECKING:
    from blockdev.device import Device
    from blockdev.media import Media
    from blockdev.reading import Reader
    from blockdev.types import Descriptor, ExtentRef, SlotAddress

ConnectionOf = Callable[["Device"], Hashable | None]
"""Something else each time that a device was connected anew; None while it is not, or where nobody can tell."""
Transfer = Callable[["Device", int], Awaitable[None]]
"""Brings an extent from a device, from an offset on, to where it is wanted. Raises what `Device.read_into` does."""

_KEPT: Final = 1 << 18
"""Most extents of which it is known that they were compared; about 60 MB."""


class Compared:
    """Extents that were compared with their checksum, the last ones, each with the connection that they came over."""

    def __init__(self, connection_of: ConnectionOf, limit: int = _KEPT) -> None:
        self.connection_of = connection_of
        self._limit = limit
        self._known: OrderedDict[SlotAddress, tuple[ExtentRef, Hashable]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def note(self, ref: ExtentRef, before: Hashable | None, device: Device) -> None:
        """Its bytes are right.

        :param before: the connection, as it was before they were read
        """
        if before is None or before != self.connection_of(device):
            return
        self._known[ref.address] = (ref, before)
        self._known.move_to_end(ref.address)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def has(self, ref: ExtentRef, device: Device) -> bool:
        """Whether its bytes were right, by this very checksum, and neither its slot nor its device has become another since. A
        region's epoch is part of each generation."""
        connection = self.connection_of(device)
        return connection is not None and self._known.get(ref.address) == (ref, connection)


class Rechecker:
    """See the module. From when it is made on, whatever the reader compares is noted.

    :ivar extents: that were read without being compared
    """

    def __init__(self, media: Media, reader: Reader, connection_of: ConnectionOf) -> None:
        self.extents = 0
        self._media = media
        self._reader = reader
        self._compared = reader.compared = Compared(connection_of)

    async def read_extent(self, head: Descriptor, index: int, transfer: Transfer) -> bool:
        """Have an extent transferred, and see that its slot is still its object's. False: it has to be read and compared
        instead, whatever has reached its place.

        :raises Raced: its region was formatted
        :raises Unavailable, DeviceError:
        """
        with self._media.pace.demand():
            extents = await self._reader.extents(head)
            ref = extents[index] if extents else None
            if ref is None or ref.is_hole:
                return False
            await self._reader.check_epoch(head, ref)
            if not self._is_compared(ref):
                return False
            await self._media.transfer_payload(ref.address, transfer)
            return await self._is_as_it_was(head, ref)

    async def _is_as_it_was(self, head: Descriptor, ref: ExtentRef) -> bool:
        record = await self._media.read_descriptor(ref.address)
        if record is None or (record.generation, record.object_id) != (ref.generation, head.object_id):
            return False  # removed at least; who compares its bytes finds out whether it was reused, too
        await self._reader.check_epoch(head, ref, again=True)
        if not self._is_compared(ref):  # connected anew, with this read perhaps before and perhaps behind
            return False
        self.extents += 1
        return True

    def _is_compared(self, ref: ExtentRef) -> bool:
        if self._media.header(RegionId(ref.device, ref.region)).unproven:
            return False
        return self._compared.has(ref, self._media.device(ref.device))
