"""Making, growing, taking over and removing pools: devices and the pool's folder in the state directory together.

What fails half-way leaves no file behind that it made, and no configuration of a pool that is not there.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import stat
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from blockdev.creating import CreateOptions, add_device, create_pool, erase, set_domain
from blockdev.errors import (
    DeviceError,
    DeviceMismatch,
    FabricsError,
    ForeignSignature,
    FormatError,
    NoSpace,
    PoolBusy,
    WrongDomain,
)
from blockdev.file_device import create_file
from blockdev.lease import Leases, local_domain
from blockdev.nvme import NamespaceName
from blockdev.signatures import foreign_signature, wipe_signatures
from blockdev.superblocks import read_superblock
from blockdev.types import EXTENT_CLASSES, PAGE, SlotClass
from kvfs import targets
from kvfs.assemble import locked, open_devices
from kvfs.config import Config, DeviceName, Durability, load_config, parse_config, render_config
from kvfs.devices import Place, known_path, locate, opened_at, settings_of
from kvfs.errors import ConfigError, MissingDevice
from kvfs.sizes import format_size
from kvfs.state import PoolFolder, StateDirectory, write_atomically

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Iterator, Sequence

    from blockdev.device import Device

log = logging.getLogger(__name__)

CREATE_FILE = "create file"
USE_FILE = "use file"
USE_DRIVE = "use drive"


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """What is to become of a device.

    :ivar name: as it is to be found again
    :ivar place: where it is opened
    :ivar size: bytes
    :ivar holds: what it holds now and would lose
    """

    name: DeviceName
    place: Place
    action: str
    size: int
    holds: str | None


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How devices may be taken.

    :ivar size: bytes of each device that is to be made as a file
    :ivar force: what a device holds may be lost
    :ivar connect: targets may be connected
    """

    size: int | None
    force: bool
    connect: bool = True


@dataclass(frozen=True, slots=True)
class NewPool:
    """A pool to be made.

    :ivar extent_size: bytes
    """

    name: str
    devices: Sequence[PlannedDevice]
    extent_size: int
    durability: Durability


def extent_class(size: int) -> SlotClass:
    """:raises ConfigError: not an extent size"""
    for candidate in EXTENT_CLASSES:
        if candidate.payload_size == size:
            return candidate
    known = ", ".join(format_size(candidate.payload_size) for candidate in EXTENT_CLASSES)
    raise ConfigError(f"extents cannot have {format_size(size)}: choose one of {known}")


# ── planning ─────────────────────────────────────────────────────────────────────────────────────────────────


async def plan(
    state: StateDirectory, names: Sequence[DeviceName], options: PlanOptions
) -> list[PlannedDevice]:
    """What would be done with each device. Changes nothing but that targets are connected.

    :raises MissingDevice: it is not there and cannot be made
    :raises DeviceMismatch: given twice
    :raises ForeignSignature: it holds something
    :raises PoolBusy: it belongs to a pool in use
    :raises DeviceError, FabricsError:
    """
    planned: list[PlannedDevice] = []
    for name, place in await _places(names, connect=options.connect):
        if isinstance(place, Path) and not os.path.lexists(place):
            device = await _new_file(place, options.size)
        else:
            device = await _existing(name, place)
        if device.holds is not None:
            await refuse_in_use(state, place)
            if not options.force:
                raise ForeignSignature(
                    f"{place} is not empty, it holds: {device.holds}; take another device, or --force to overwrite it"
                )
        planned.append(device)
    return planned


async def _places(names: Sequence[DeviceName], *, connect: bool) -> list[tuple[DeviceName, Place]]:
    """Where the devices are now. :raises DeviceMismatch, FabricsError:"""
    names = _absolute(names)
    places: list[tuple[DeviceName, Place]] = []
    for name, place in zip(names, await locate(names, targets.Settings(), connect=connect), strict=True):
        if isinstance(place, FabricsError):
            raise place
        places.append((name, place))
    _refuse_twice([(name, _identity(place)) for name, place in places])  # by a path and as a namespace
    return places


def _absolute(names: Sequence[DeviceName]) -> list[DeviceName]:
    """:raises DeviceMismatch: one is given twice"""
    # Path.resolve would follow by-id links, which are meant
    absolute = [Path(os.path.abspath(name)) if isinstance(name, Path) else name for name in names]  # noqa: PTH100
    _refuse_twice([(name, _identity(name) if isinstance(name, Path) else name) for name in absolute])
    return absolute


def _refuse_twice(identified: Sequence[tuple[DeviceName, Hashable]]) -> None:
    seen: dict[Hashable, DeviceName] = {}
    for name, identity in identified:
        if identity in seen:
            also = "" if seen[identity] == name else f", also as {seen[identity]}"
            raise DeviceMismatch(f"{name} is given twice{also}")
        seen[identity] = name


def _identity(place: Place) -> Hashable:
    """What is the same for all names of a device or file."""
    if isinstance(place, NamespaceName):
        return place
    try:
        found = place.stat()
    except OSError:
        return os.path.realpath(place)
    return found.st_rdev if stat.S_ISBLK(found.st_mode) else (found.st_dev, found.st_ino)


async def _new_file(path: Path, size: int | None) -> PlannedDevice:
    if path.is_relative_to("/dev"):
        raise MissingDevice(f"{path} does not exist: see that the drive is connected")
    if not path.parent.is_dir():
        raise MissingDevice(f"{path} cannot be made: there is no directory {path.parent}")
    if size is None:
        raise MissingDevice(
            f"{path} does not exist: give --size to make a file of that size, such as --size 4GiB"
        )
    if size < PAGE:
        raise NoSpace(
            f"{path}: a device of {format_size(size)} is too small for a pool; give a larger --size"
        )
    return PlannedDevice(path, path, CREATE_FILE, size, None)


async def _existing(name: DeviceName, place: Place) -> PlannedDevice:
    async with opened_at(place, writable=False) as device:
        action = USE_FILE if device.is_file else USE_DRIVE
        return PlannedDevice(name, place, action, device.size, await foreign_signature(device))


async def refuse_in_use(state: StateDirectory, place: Place) -> None:
    """--force is no licence to pull a device from under a running mount.

    :raises PoolBusy:
    """
    async with opened_at(place, writable=False) as device:
        try:
            superblock = await read_superblock(device)
        except FormatError:
            return
    folder = PoolFolder(state.root / superblock.name)
    if folder.config.exists():
        with Leases.open(folder.path, superblock.pool) as leases:
            holders = leases.holders()
        if holders:
            who = " and ".join(f"process {holder.pid}, {holder.purpose}" for holder in holders)
            raise PoolBusy(f"{place} is in use by pool '{superblock.name}', {who}")


# ── creating ─────────────────────────────────────────────────────────────────────────────────────────────────


async def create(folder: PoolFolder, new: NewPool) -> None:
    """Make the pool and write its configuration.

    :raises NoSpace: a device is too small, or there is no room for a file
    :raises ConfigError: no such extent size
    :raises DeviceError, OSError:
    """
    options = CreateOptions(new.name, local_domain(folder.path.parent), extent_class(new.extent_size))
    names = tuple(device.name for device in new.devices)
    with made(folder):
        async with _devices_for(new.devices) as devices:
            await create_pool(devices, options)
            config = Config(name=new.name, devices=names, durability=new.durability)
            write_atomically(folder.config, render_config(config))


@contextmanager
def made(folder: PoolFolder) -> Iterator[None]:
    """The folder of a pool that is to be made; where that fails, it goes unless there is something in it."""
    folder.create()
    try:
        yield
    except BaseException:
        if not folder.config.exists():
            for path in (folder.devices, folder.path):
                with suppress(OSError):  # not there, or there is something in it
                    path.rmdir()
        raise


@asynccontextmanager
async def _devices_for(
    planned: Sequence[PlannedDevice], present: Sequence[Device] = ()
) -> AsyncIterator[list[Device]]:
    """The planned devices, open for writing and without what they held; files are made, and removed on failure.

    :param present: the devices that the pool has already
    :raises DeviceMismatch: one of the planned devices is one of those, perhaps by another name; nothing was changed
    """
    made: list[Path] = []
    async with AsyncExitStack() as stack:
        try:
            for one in planned:
                if one.action == CREATE_FILE and isinstance(one.place, Path):
                    await _make(one.place, one.size)
                    made.append(one.place)
            devices = [
                await stack.enter_async_context(opened_at(one.place, writable=True)) for one in planned
            ]
            for device in devices:
                await _refuse_own(device, present)
            for one, device in zip(planned, devices, strict=True):
                if one.holds is not None:
                    await wipe_signatures(device)
            yield devices
        except BaseException:
            for path in made:
                path.unlink(missing_ok=True)
            raise


async def _refuse_own(new: Device, present: Sequence[Device]) -> None:
    """A device has many names: hard links, loop devices, paths. Its superblock tells it by any of them."""
    try:
        superblock = await read_superblock(new)
    except FormatError:
        return
    for device in present:
        its = await read_superblock(device)
        if (its.pool, its.device) == (superblock.pool, superblock.device):
            raise DeviceMismatch(
                f"{new.name} is in pool '{its.name}' already, as {device.name}; a copy of that must be erased first"
            )


async def _make(path: Path, size: int) -> None:
    try:
        await create_file(path, size)
    except DeviceError as error:
        if error.errno == errno.ENOSPC:
            raise NoSpace(
                f"{error}: choose a smaller --size or another file system; nothing was made"
            ) from None
        raise


# ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────


async def add(folder: PoolFolder, planned: Sequence[PlannedDevice], *, force: bool) -> None:
    """Add devices to a pool that nobody has open.

    :param force: also while others are missing, such as one that is damaged and whose place this one takes
    :raises PoolBusy, NoSpace, DeviceMismatch, FormatError, DeviceError, OSError:
    """
    config = load_config(folder.config)
    async with (
        locked(folder, config, "adding a device"),
        open_devices(config, writable=True) as present,
        _devices_for(planned, present) as new,
    ):
        for one, device in zip(planned, new, strict=True):
            await add_device(present, device, degraded=force)
            present.append(device)
            config = replace(config, devices=(*config.devices, one.name))
            write_atomically(folder.config, with_device(folder.config.read_text(), config))


def with_device(text: str, config: Config) -> str:
    """The configuration file `text`, whose comments and order are kept, with the last device of `config` added."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == "devices":
            with suppress(ConfigError):
                grown = _grown(text, value, config.devices[-1])
                if parse_config(grown, "") == config:
                    return grown
    return render_config(config)


def _grown(text: str, devices: yaml.SequenceNode, name: DeviceName) -> str:
    plain = re.fullmatch(r"(?:nvme\+[a-z]+:/)?/[A-Za-z0-9/._:,+=?-]+", str(name))
    entry = str(name) if plain else json.dumps(str(name))  # which YAML reads too
    at = devices.value[-1].end_mark.index
    if devices.flow_style:
        return f"{text[:at]}, {entry}{text[at:]}"
    at = text.find("\n", at)  # after the last device's comment
    at = len(text) if at < 0 else at
    return f"{text[:at]}\n{' ' * devices.start_mark.column}- {entry}{text[at:]}"


async def take(folder: PoolFolder, names: Sequence[DeviceName], *, force: bool) -> None:
    """Make a pool that exists on its devices known to this host; with `force`, take it from another domain.

    :param names: its devices; none for those that the configuration lists
    :raises WrongDomain: it is coordinated elsewhere, and `force` is not given
    :raises ConfigError: no devices and no configuration
    :raises PoolBusy, MissingDevice, FormatError, DeviceError, OSError:
    """
    domain = local_domain(folder.path.parent)
    if names:
        config = Config(name=folder.name, devices=tuple(_absolute(names)))
    else:
        config = load_config(folder.config)
    with made(folder):
        async with locked(folder, config, "taking it over") as superblock:
            if superblock.domain != domain:
                if not force:
                    raise WrongDomain(
                        f"pool '{folder.name}' is coordinated by {superblock.domain}: "
                        "say --force if no other host uses it"
                    )
                async with open_devices(config, writable=True) as devices:
                    await set_domain(devices, domain)
            if names:
                write_atomically(folder.config, render_config(config))


async def destroy(folder: PoolFolder, *, force: bool) -> None:
    """Make the devices no pool's any more and remove the folder. Files outside it stay.

    :param force: go on where devices are missing, damaged or fail
    :raises PoolBusy, MissingDevice, FormatError, DeviceError, OSError:
    """
    config = load_config(folder.config)
    try:
        async with locked(folder, config, "destroying it"), open_devices(config, writable=True) as devices:
            if len(devices) < len(config.devices) and not force:
                raise MissingDevice(f"a device of pool '{folder.name}' is missing: connect it")
            for device in devices:
                await erase(device)
            shutil.rmtree(folder.path)
    except (FormatError, MissingDevice, DeviceError) as error:
        if not force:
            if isinstance(error, MissingDevice):
                raise MissingDevice(f"{error}; --force destroys what is there and forgets the rest") from None
            raise
        await _erase_what_can_be(config)
        shutil.rmtree(folder.path)


async def _erase_what_can_be(config: Config) -> None:
    for place in await locate(config.devices, settings_of(config)):
        try:
            if isinstance(place, FabricsError):
                raise place
            async with opened_at(place, writable=True) as device:
                if await _may_be_of(device, config.name):
                    await erase(device)
        except (DeviceError, FabricsError) as error:
            log.warning("%s; it is left as it is", error)


async def _may_be_of(device: Device, name: str) -> bool:
    try:
        return (await read_superblock(device)).name == name
    except FormatError:
        return True


def size_of(name: DeviceName) -> int | None:
    """Bytes of a device or file; None if it is not there or may not be asked. Connects to nothing."""
    path = known_path(name)
    if path is None:
        return None
    try:
        with path.open("rb", buffering=0) as file:
            return file.seek(0, os.SEEK_END)
    except OSError:
        return None
