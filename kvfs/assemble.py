"""From a configuration to the objects that run: devices, lock, pool, DRAM tier, mount. Everything lives in one block."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from blockdev.errors import (
    BadSuperblock,
    DeviceMismatch,
    PoolBusy,
    WrongDomain,
)
from blockdev.eviction import Lru
from blockdev.lease import Leases, local_domain
from blockdev.opening import OpenOptions, open_pool
from blockdev.superblocks import read_superblock
from blockdev.types import ROOT
from kvfs.config import load_config
from kvfs.devices import opening, settings_of
from kvfs.errors import ConfigError, FramesError, MissingDevice
from kvfs.frames import Arena, open_frames
from kvfs.fuse.mount import MountOptions, serve
from kvfs.learnt import remembering
from kvfs.names import is_temporary
from kvfs.prefetch.value import ByValue
from kvfs.prefetcher import Mode
from kvfs.sizes import format_size
from rdma.errors import MemoryRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from uuid import UUID

    from blockdev.device import Device
    from blockdev.eviction import Policy
    from blockdev.opening import Opened as OpenedPool
    from blockdev.pool import Pool
    from blockdev.returning import Returning
    from blockdev.types import Superblock
    from kvfs.config import Config
    from kvfs.devices import Opener
    from kvfs.frames import FrameCache
    from kvfs.fuse.mount import Mount
    from kvfs.state import PoolFolder

log = logging.getLogger(__name__)

LEAST_FRAMES = 2
"""One for what is being written, one for what is read."""


class Opened(NamedTuple):
    """A pool that is open, and the configuration that it was opened with."""

    pool: Pool
    config: Config
    returning: Returning
    opener: Opener


class Assembly(NamedTuple):
    """What a mount is made of."""

    pool: Pool
    frames: FrameCache
    returning: Returning
    opener: Opener


@asynccontextmanager
async def reading(folder: PoolFolder) -> AsyncIterator[Pool]:
    """The pool as its media have it, without the right to write; also while a mount has it open.

    :raises ConfigError, MissingDevice, WrongDomain, FormatError, DeviceError:
    """
    config = load_config(folder.config)
    async with AsyncExitStack() as stack:
        devices = await stack.enter_async_context(open_devices(config, writable=False))
        await _superblock_of(devices, config)
        options = OpenOptions(domain=local_domain(folder.path.parent), readonly=True)
        yield (await stack.enter_async_context(_pool(devices, folder, options))).pool


@asynccontextmanager
async def writing(folder: PoolFolder, purpose: str, config: Config | None = None) -> AsyncIterator[Opened]:
    """The pool, with the right to write, as one of its members on this host.

    :param purpose: for those who find the pool busy, such as "mounted on /mnt/kv"
    :param config: instead of the one in the pool's folder
    :raises PoolBusy: somebody is alone with it, or it has as many members as it can have
    :raises ConfigError, MissingDevice, WrongDomain, FormatError, DeviceError:
    """
    config = config or load_config(folder.config)
    async with AsyncExitStack() as stack:
        opener = await stack.enter_async_context(opening(settings_of(config)))
        devices = await stack.enter_async_context(_open(opener, config, writable=True))
        await _superblock_of(devices, config)
        options = OpenOptions(
            domain=local_domain(folder.path.parent),
            flush=config.durability == "flush",
            purpose=purpose,
            policy=await _policy(stack, folder, config),
            is_temporary=is_temporary,
        )
        opened = await stack.enter_async_context(_pool(devices, folder, options))
        yield Opened(opened.pool, config, opened.returning, opener)


async def _policy(stack: AsyncExitStack, folder: PoolFolder, config: Config) -> Callable[[], Policy]:
    """What makes the eviction policy; what it has learnt is kept when the stack ends."""
    if config.eviction != "value":
        return Lru
    return partial(ByValue, await stack.enter_async_context(remembering(folder.learnt("eviction"))))


@asynccontextmanager
async def locked(folder: PoolFolder, config: Config, purpose: str) -> AsyncIterator[Superblock]:
    """Be the only process of this host that has the pool open for writing, for what changes the pool itself; yields
    what its media say of it.

    For what members cannot do, such as adding a device.

    :raises PoolBusy, MissingDevice, FormatError, DeviceError:
    """
    async with open_devices(config, writable=False, quiet=True) as devices:
        superblock = await _superblock_of(devices, config)
    with Leases.open(folder.path, superblock.pool) as leases:
        try:
            leases.acquire_alone(purpose)
        except PoolBusy:
            raise PoolBusy(_busy(config.name, leases)) from None
        yield superblock


def _busy(name: str, leases: Leases) -> str:
    holders = leases.holders()
    if not holders:
        return f"pool '{name}' is open for writing in another process; try again when it has ended"
    who = " and ".join(f"process {holder.pid}, {holder.purpose}" for holder in holders)
    return f"pool '{name}' is in use by {who}; unmount it or wait for it to end"


@asynccontextmanager
async def assembled(folder: PoolFolder, config: Config, purpose: str) -> AsyncIterator[Assembly]:
    """The pool, open for writing, and its DRAM tier.

    :raises ConfigError: too little `memory`
    :raises FramesError: more `memory` than the system gives, or lets devices reach
    :raises PoolBusy, MissingDevice, WrongDomain, FormatError, DeviceError:
    """
    async with writing(folder, purpose, config) as opened:
        arena = _arena(config, opened.pool.extent_size)
        with _registered(opened.opener, arena.whole):
            async with open_frames(arena, opened.pool) as frames:
                yield Assembly(opened.pool, frames, opened.returning, opened.opener)


@contextmanager
def _registered(opener: Opener, memory: memoryview) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(opener.rdma.keeping([memory]))
        except MemoryRefused as error:
            raise FramesError(f"{error}; or have devices read through the kernel, with path=kernel") from None
        yield


def _arena(config: Config, extent_size: int) -> Arena:
    least = LEAST_FRAMES * extent_size
    if config.memory < least:
        raise ConfigError(
            f"memory {format_size(config.memory)} is too little for pool '{config.name}', whose extents have "
            f"{format_size(extent_size)}: give it at least {format_size(least)}"
        )
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if config.memory > there:  # it may be promised all the same, and then somebody be killed for it
        raise _too_much(config, f"it has {format_size(there)}")
    try:
        return Arena(config.memory, extent_size, huge_pages=config.huge_pages)
    except OSError as error:
        raise _too_much(config, str(error.strerror)) from None


def _too_much(config: Config, why: str) -> FramesError:
    return FramesError(
        f"the system does not give {format_size(config.memory)} of memory ({why}): "
        "lower 'memory' in the configuration, or --memory"
    )


async def serve_mount(
    assembly: Assembly, config: Config, mount_point: str, ready: Callable[[Mount], None]
) -> None:
    """Mount and serve until SIGTERM, SIGINT, cancellation or an unmount.

    :param ready: called once when the mount answers
    :raises MountError: it cannot be mounted
    """
    options = MountOptions(
        allow_other=config.allow_other,
        whole_limit=config.open_verify_limit,
        read_ahead=config.read_ahead,
        lane=config.lane,
        passthrough=config.passthrough,
        prefetch=Mode(config.prefetch),
    )
    if config.root_mode is not None:
        await _set_root_mode(assembly.pool, config.root_mode)
    await serve(assembly.pool, assembly.frames, Path(mount_point), options, ready=ready)


async def _set_root_mode(pool: Pool, mode: int) -> None:
    root = pool.directory(ROOT)
    if root is None:
        await pool.update_root(mode, os.geteuid(), os.getegid())
    elif stat.S_IMODE(root.mode) != mode:
        await pool.update_root(mode, root.uid, root.gid)


async def _superblock_of(devices: Sequence[Device], config: Config) -> Superblock:
    """The first device's superblock; sees that the devices are of the pool that the configuration names.

    :raises DeviceMismatch, FormatError, DeviceError:
    """
    superblocks = [await _read_superblock(device, config) for device in devices]
    seen: dict[UUID, Device] = {}
    for device, superblock in zip(devices, superblocks, strict=True):
        if superblock.device in seen:
            raise DeviceMismatch(
                f"{device.name} and {seen[superblock.device].name} are the same device of pool '{config.name}', or "
                "one is a copy: use one of them"
            )
        seen[superblock.device] = device
        if superblock.name != config.name:
            raise DeviceMismatch(
                f"{device.name} belongs to pool '{superblock.name}', not to '{config.name}': "
                "take it out of 'devices' in the configuration"
            )
    return superblocks[0]


async def _read_superblock(device: Device, config: Config) -> Superblock:
    try:
        return await read_superblock(device)
    except BadSuperblock as error:
        raise BadSuperblock(
            f"{error}; to go on without it, take it out of 'devices' in the configuration of pool '{config.name}'"
        ) from None


@asynccontextmanager
async def _pool(
    devices: Sequence[Device], folder: PoolFolder, options: OpenOptions
) -> AsyncIterator[OpenedPool]:
    try:
        async with open_pool(devices, folder.path, options) as opened:
            for number in opened.missing:
                log.warning("device %d of pool '%s' is missing: its objects are misses", number, folder.name)
            yield opened
    except PoolBusy as error:
        raise PoolBusy(f"pool '{folder.name}' cannot be opened now: {error}") from None
    except WrongDomain as error:
        raise WrongDomain(
            f"{error}: use the state directory it was made with, or take the pool over with "
            f"'kvfs pool take {folder.name} --force' when no other host uses it"
        ) from None


@asynccontextmanager
async def open_devices(config: Config, *, writable: bool, quiet: bool = False) -> AsyncIterator[list[Device]]:
    """The devices that are there; a warning for each that is not, unless `quiet`. Targets are connected.

    :raises MissingDevice: none is
    :raises DeviceError: one is there and cannot be used
    """
    async with (
        opening(settings_of(config)) as opener,
        _open(opener, config, writable=writable, quiet=quiet) as devices,
    ):
        yield devices


@asynccontextmanager
async def _open(
    opener: Opener, config: Config, *, writable: bool, quiet: bool = False
) -> AsyncIterator[list[Device]]:
    async with AsyncExitStack() as stack:
        devices: list[Device] = []
        absent: list[Exception] = []
        for found in await opener.open(config.devices, writable=writable):
            if isinstance(found, Exception):
                absent.append(found)
            else:
                stack.push_async_callback(found.aclose)
                devices.append(found)
        if not devices:
            raise MissingDevice(
                f"none of the devices of pool '{config.name}' is there: {'; '.join(map(str, absent))}; "
                "connect them, or correct 'devices' in the configuration"
            )
        for error in () if quiet else absent:
            log.warning("%s; the pool goes on without it", error)
        yield devices
