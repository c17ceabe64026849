"""Watches the devices of a mounted pool: what goes away is not waited for, what comes back is used again.

The kernel knows within moments that the connection to a target is gone, while I/O to it waits for the connection to
come back, up to `fast_io_fail`. A cache need not wait: the device counts as lost, so that its objects are misses and
what is stored goes to the others. So it does when one operation did not end in time, and those behind the same address
must then prove at once that they answer: no call is to wait for two. When the kernel has its connection back, or the
device can be opened again, it is taken back after it was seen to be the one that was lost. Of a device that this process
reaches by itself, over RDMA, its own connection tells how it is; when it is lost, it is opened anew, by whichever path
there is then.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from blockdev.errors import BlockError, DeviceError, DeviceTimeout, FabricsError
from blockdev.file_device import open_file_device
from blockdev.memory import page_buffer
from blockdev.nvme import NamespaceName
from blockdev.types import PAGE
from kvfs import targets
from kvfs.devices import locate, may_use_rdma, settings_of
from kvfs.rdma_device import RdmaDevice

if TYPE_CHECKING:
    from blockdev.device import Device
    from blockdev.pool import Pool
    from blockdev.returning import Returning
    from blockdev.types import DeviceNo
    from kvfs.config import Config, DeviceName
    from kvfs.devices import Opener
    from kvfs.targets import Fabric

log = logging.getLogger(__name__)

INTERVAL: Final = 0.5
"""Seconds between two looks."""
PATIENCE: Final = 2
"""Looks in a row at which a device must be out of reach to count as lost: a connection may be back in between."""
PROOF: Final = 0.5
"""Seconds in which a device must answer when one behind the same address did not in its time."""
RETRY: Final = 1.0
RETRY_MAX: Final = 15.0
"""Seconds until a device that could not be taken back is tried again: doubled each time, up to the second."""


@dataclass(slots=True)
class _Watched:
    """What is known of one device.

    :ivar over_fabrics: it is a namespace that the kernel has, and so tells how it is
    :ivar addresses: of its target
    :ivar away: looks in a row at which it was out of reach
    :ivar retry_at: when to try again to take it back
    """

    name: DeviceName
    over_fabrics: bool
    addresses: frozenset[str]
    away: int = 0
    retry_at: float = -math.inf
    retry_after: float = RETRY
    returning: bool = False


class Watch:
    """Over the devices of one pool, those that were there when it was opened."""

    def __init__(
        self, pool: Pool, returning: Returning, config: Config, opener: Opener, fabric: Fabric | None = None
    ) -> None:
        self._media = pool.media
        self._returning = returning
        self._config = config
        self._opener = opener
        self._fabric = fabric or targets.fabric()
        self._watched: dict[DeviceNo, _Watched] = {}
        self._nursery: trio.Nursery | None = None
        pool.media.on_failure.append(self._look_again)

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._begin()
        async with trio.open_nursery() as self._nursery:
            while True:
                for number, one in self._watched.items():
                    if self._media.available(number):
                        self._look(number, one)
                    elif not one.returning and self._may_be_back(number, one):
                        one.returning = True
                        self._nursery.start_soon(self._take_back, number, one)
                await trio.sleep(INTERVAL)

    async def _begin(self) -> None:
        names = self._config.devices
        places = await locate(names, settings_of(self._config), connect=False)
        named = {str(place): name for name, place in zip(names, places, strict=True)}
        named |= {str(name): name for name in names}
        for number, attached in self._media.devices.items():
            path = attached.device.name
            name = named.get(path, Path(path))
            held = self._fabric.sysfs.holding(path)
            addresses = (
                {controller.address for controller in held[0].controllers} if held is not None else set()
            )
            if isinstance(name, NamespaceName):
                addresses |= {portal.address for portal in name.target.portals}
            self._watched[number] = _Watched(name, held is not None, frozenset(addresses))

    def _is_reached(self, number: DeviceNo, one: _Watched) -> bool:
        device = self._media.devices[number].device
        if isinstance(device, RdmaDevice):
            return device.is_connected
        return not one.over_fabrics or bool(self._fabric.sysfs.carries(device.name))

    def _look(self, number: DeviceNo, one: _Watched) -> None:
        if self._is_reached(number, one):
            one.away = 0
            return
        one.away += 1
        if one.away >= PATIENCE:
            self._media.mark_lost(number)

    def _look_again(self, number: DeviceNo, error: DeviceError) -> None:
        """An operation failed: a device that is out of reach now has been so for long enough.

        One that did not answer is out of reach, whatever the kernel says of it: nobody else should wait as long.
        """
        one = self._watched.get(number)
        if one is None or not self._media.available(number):
            return
        if isinstance(error, DeviceTimeout):
            self._media.mark_lost(number)
            self._doubt_neighbours(one)
        one.away = max(one.away, PATIENCE - 1)
        self._look(number, one)

    def _doubt_neighbours(self, silent: _Watched) -> None:
        for number, one in self._watched.items():
            if self._nursery and one.addresses & silent.addresses and self._media.available(number):
                self._nursery.start_soon(self._prove, number, self._media.devices[number].device)

    async def _prove(self, number: DeviceNo, device: Device) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, device, nursery.cancel_scope)
            await trio.sleep(PROOF)
            if self._media.devices[number].device is device:
                self._media.mark_lost(number)  # and so what was asked is given up

    # ── coming back ──────────────────────────────────────────────────────────────────────────────────────

    def _may_be_back(self, number: DeviceNo, one: _Watched) -> bool:
        """Whether it makes sense to try; while the kernel has the device and no way to it, that is known for nothing."""
        known = self._media.devices[number].device.name
        if self._fabric.sysfs.carries(known) is False and not may_use_rdma(one.name):
            return False
        return trio.current_time() >= one.retry_at

    async def _take_back(self, number: DeviceNo, one: _Watched) -> None:
        try:
            await self._open_and_take_back(number, one)
        except (BlockError, OSError) as error:
            log.info("%s is not back yet: %s", one.name, error)
            one.retry_at = trio.current_time() + one.retry_after
            one.retry_after = min(2 * one.retry_after, RETRY_MAX)
        else:
            one.away, one.retry_after = 0, RETRY
        finally:
            one.returning = False

    async def _opened(self, known: str, one: _Watched) -> Device:
        """The device as it is now; its target is connected again, if need be. :raises FabricsError, DeviceError:"""
        if not may_use_rdma(one.name) and self._fabric.sysfs.carries(known):
            # As it was; that it is the same one is seen when it is read.
            return await open_file_device(Path(known), io_timeout=self._config.io_timeout)
        (device,) = await self._opener.open([one.name], writable=True)
        if isinstance(device, Exception):
            raise device
        is_kernels = self._fabric.sysfs.holding(device.name) is not None
        if is_kernels and not self._fabric.sysfs.carries(device.name):
            await device.aclose()
            raise FabricsError(f"{device.name}: no way to it is open")
        one.over_fabrics = is_kernels
        return device

    async def _open_and_take_back(self, number: DeviceNo, one: _Watched) -> None:
        device = await self._opened(self._media.devices[number].device.name, one)
        try:
            await self._returning.take_back(number, device)
        finally:
            if self._media.devices[number].device is not device:
                with trio.CancelScope(shield=True):
                    await device.aclose()


async def _ask(device: Device, answered: trio.CancelScope) -> None:
    with suppress(DeviceError):  # an error is an answer
        await device.read_into(0, page_buffer(PAGE))
    answered.cancel()
