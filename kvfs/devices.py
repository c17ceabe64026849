"""From the names of a pool's devices to devices: namespaces are connected and found, paths are what they are.

A namespace over RDMA can be read and written by this process itself, or through the kernel's block device. Which of them is
asked each time that a device is opened, so that one that was reached through the kernel because RDMA did not work is
tried over RDMA again when its connection is made anew.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from blockdev.errors import DeviceError, DeviceTimeout, FabricsError
from blockdev.file_device import open_file_device
from blockdev.nvme import DataPath, NamespaceName, Timers, Transport
from blockdev.tasks import for_each
from kvfs import targets
from kvfs.rdma_device import RdmaDevices, rdma_devices

if TYPE_CHECKING:
    from blockdev.device import Device
    from kvfs.config import Config, DeviceName

log = logging.getLogger(__name__)

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENXIO, errno.ENODEV})
_AT_ONCE: Final = 8
"""Targets that are connected at the same time."""


Place: TypeAlias = Path | NamespaceName
"""Where a device is opened: by a path that the kernel has, or by this process itself, over RDMA."""


def settings_of(config: Config) -> targets.Settings:
    """How a pool wants its connections to be."""
    timers = Timers(config.keep_alive, config.reconnect_delay, config.fast_io_fail, config.ctrl_loss)
    return targets.Settings(timers, config.io_timeout)


async def locate(
    names: Sequence[DeviceName], settings: targets.Settings, *, connect: bool = True
) -> list[Place | FabricsError]:
    """Where each device is opened if it is not to be tried over RDMA first, or why it is not there. So only namespaces
    that must not go through the kernel have another place than a path.

    :param connect: connect to the targets that are needed; else only what is connected is found
    """
    found: dict[DeviceName, Place | FabricsError] = {name: name for name in names}
    namespaces = [
        name for name in names if isinstance(name, NamespaceName) and name.data_path is not DataPath.RDMA
    ]
    if namespaces:
        fabric = targets.fabric()
        attached = await fabric.attach(namespaces, settings) if connect else {}
        found |= {name: attached[name] if connect else fabric.find(name) for name in namespaces}
    return [found[name] for name in names]


@asynccontextmanager
async def opened_at(place: Place, *, writable: bool) -> AsyncIterator[Device]:
    """One device, for the length of the block. :raises FabricsError, DeviceError:"""
    async with opening(targets.Settings()) as opener:
        device = (
            await opener.rdma.open(place)
            if isinstance(place, NamespaceName)
            else await open_file_device(place, writable=writable)
        )
        try:
            yield device
        finally:
            with trio.CancelScope(shield=True):
                await device.aclose()


def known_path(name: DeviceName) -> Path | None:
    """By which path the kernel has a device, without connecting to anything; None if it has not."""
    if isinstance(name, Path):
        return name
    found = targets.fabric().find(name)
    return found if isinstance(found, Path) else None


def may_use_rdma(name: DeviceName) -> bool:
    """Whether this process may read and write it without the kernel."""
    if isinstance(name, Path) or name.target.transport is not Transport.RDMA:
        return False
    return name.data_path is not DataPath.KERNEL


class Opener:
    """Opens devices by their names. Made by `opening`.

    :ivar rdma: those that this process reaches by itself
    """

    def __init__(self, settings: targets.Settings, rdma: RdmaDevices) -> None:
        self.rdma = rdma
        self._settings = settings

    async def open(
        self, names: Sequence[DeviceName], *, writable: bool
    ) -> list[Device | DeviceError | FabricsError]:
        """Each device, or why it is not there. Their targets are connected.

        :raises DeviceError: one is there and cannot be used
        """
        found: dict[DeviceName, Device | DeviceError | FabricsError] = {}

        async def try_rdma(name: NamespaceName) -> None:
            try:
                found[name] = await self.rdma.open(name)
            except FabricsError as error:
                if name.data_path is DataPath.RDMA:
                    found[name] = error
                else:
                    log.info("%s; the kernel is asked for it", error)

        try:
            over_rdma = [one for one in names if isinstance(one, NamespaceName) and may_use_rdma(one)]
            await for_each(over_rdma, try_rdma, at_once=_AT_ONCE)
            rest = [name for name in names if name not in found]
            for name, place in zip(rest, await locate(rest, self._settings), strict=True):
                if isinstance(place, Path):
                    found[name] = await self._at(place, writable=writable)
                elif isinstance(place, FabricsError):
                    found[name] = place
        except BaseException:
            for device in found.values():
                if not isinstance(device, Exception):
                    device.give_up()
            raise
        return [found[name] for name in names]

    async def _at(self, path: Path, *, writable: bool) -> Device | DeviceError:
        try:
            return await open_file_device(path, writable=writable, io_timeout=self._settings.io_timeout)
        except DeviceError as error:
            if not (error.errno in _ABSENT or isinstance(error, DeviceTimeout)):
                raise
            return error


@asynccontextmanager
async def opening(settings: targets.Settings) -> AsyncIterator[Opener]:
    """See `Opener`. What it opened over RDMA ends with the block; the rest is its user's to close."""
    async with rdma_devices(settings) as rdma:
        yield Opener(settings, rdma)
