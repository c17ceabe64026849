"""Several members of one pool in one process, each with its own handle on the same media, that can be killed or stopped."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio

from blockdev.creating import CreateOptions, create_pool
from blockdev.device import Begun
from blockdev.errors import DeviceLost
from blockdev.opening import Opened, OpenOptions, open_pool
from blockdev.pool import Pool
from blockdev.testing import FaultyDevice
from blockdev.types import MIB, DeviceNo, SlotClass
from tests.blockdev.pools import DOMAIN, REGION


@dataclass
class Handle:
    """One member's handle on a device that others have open, too.

    A killed member's requests end as if its process had: those that the device has are finished, no more come. A
    stopped one's wait until it goes on.
    """

    inner: FaultyDevice
    gate: trio.Event = field(default_factory=trio.Event)
    dead: bool = False
    on_write: Callable[[Handle, int], None] = lambda _, __: None

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def block_size(self) -> int:
        return self.inner.block_size

    @property
    def is_file(self) -> bool:
        return self.inner.is_file

    async def read_into(self, offset: int, buffer: memoryview) -> None:
        await self._do(lambda: self.inner.read_into(offset, buffer))

    def device_no(self, pool: Pool) -> DeviceNo:
        """Which device of a pool this is."""
        return next(number for number, one in pool.media.devices.items() if one.device is self)

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        self.on_write(self, offset)
        await self._do(lambda: self.inner.write_from(offset, buffer))

    def begin_write(self, offset: int, buffer: memoryview) -> Begun:
        # Any moment until it is awaited is one at which it may reach the media.
        return Begun(lambda: None, partial(self.write_from, offset, buffer))

    async def flush(self) -> None:
        await self._do(self.inner.flush)

    async def discard(self, offset: int, length: int) -> None:
        await self._do(lambda: self.inner.discard(offset, length))

    async def _do(self, operation: Callable[[], Awaitable[None]]) -> None:
        await self._pass()
        await operation()
        await self._pass()

    async def _pass(self) -> None:
        with trio.CancelScope(shield=True):
            await self.gate.wait()
        if self.dead:
            raise DeviceLost(self.name, errno.ENODEV, "its member was killed")

    def give_up(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


@dataclass
class Host:
    """One host with a pool.

    :param folder: the pool's state
    """

    folder: Path
    devices: list[FaultyDevice]
    now: int = 10**18

    def handles(self) -> list[Handle]:
        return [Handle(device) for device in self.devices]

    @asynccontextmanager
    async def member(self, handles: list[Handle] | None = None, **options: Any) -> AsyncIterator[Opened]:
        values: dict[str, Any] = {"boot_id": "boot", "wall_ns": self._wall, **options}
        async with open_pool(handles or self.handles(), self.folder, OpenOptions(DOMAIN, **values)) as opened:
            yield opened

    @asynccontextmanager
    async def pool(self, **options: Any) -> AsyncIterator[Pool]:
        async with self.member(**options) as opened:
            yield opened.pool

    def forget(self) -> None:
        """Lose the catalogues."""
        shutil.rmtree(self.folder / "catalogue")

    def _wall(self) -> int:
        self.now += 1
        return self.now


async def host(folder: Path, *, devices: int = 1, regions: int = 8, seed: int = 0) -> Host:
    """A host with a new pool."""
    rng = Random(seed)
    size = MIB + regions * REGION
    made = Host(folder, [FaultyDevice(size, rng, name=f"d{number}") for number in range(devices)])
    await create_pool(made.devices, CreateOptions("test", DOMAIN, SlotClass.MIB2, REGION))
    return made
