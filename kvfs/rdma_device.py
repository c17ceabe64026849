"""Namespaces that this process reads and writes by itself, over RDMA: initiators as devices of a pool."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from blockdev.device import Begun, check_transfer
from blockdev.errors import (
    DeviceClosed,
    DeviceError,
    DeviceGivenUp,
    DeviceLost,
    DeviceTimeout,
    FabricsError,
    KeyRefused,
    TargetUnreachable,
)
from blockdev.nvme import Credentials, HostIdentity, NamespaceName, Portal
from blockdev.nvme.keys import read_key
from blockdev.tasks import background
from kvfs import targets
from rdma.authentication import Keys
from rdma.bring_up import Identity
from rdma.errors import KeyRefused as RefusedKey
from rdma.errors import (
    KeyWanted,
    MemoryRefused,
    NvmeError,
    RdmaError,
    TransportClosed,
    TransportError,
    TransportTimeout,
)
from rdma.initiator import Initiator, InitiatorOptions, open_initiator
from rdma.nvme_auth import Secret
from rdma.verbs import open_verbs
from rdma.verbs.way import Portal as Place

if TYPE_CHECKING:
    from rdma.cuda import GpuSpan
    from rdma.nvme_wire import CmRequest
    from rdma.transport import Connection, Fabric, Registration


_BEGUN_MOST: Final = 16 << 20
"""Bytes of writes that are begun before others have ended: enough to keep a fast network busy, few enough that on a slow one
the last of them ends within its deadline, too."""


@asynccontextmanager
async def way_to(portal: Portal) -> AsyncIterator[Fabric]:
    """The way through this host's RDMA devices. :raises NoVerbs, TransportBroken:"""
    async with open_verbs(Place(portal.address, int(portal.service))) as fabric:
        yield fabric


class _Write:
    """A write that whoever wants it does not wait for: it is done in a task of its own.

    :param ended: called then
    """

    def __init__(self, work: Callable[[], Awaitable[None]], ended: Callable[[], None]) -> None:
        self._work = work
        self._ended = ended
        self._error: DeviceError | None = None
        self._done = trio.Event()

    def start(self, token: trio.lowlevel.TrioToken) -> None:
        """Any thread may, once."""
        with suppress(trio.RunFinishedError):  # then nobody waits for it either
            token.run_sync_soon(trio.lowlevel.spawn_system_task, self._run)

    async def _run(self) -> None:
        try:
            await self._work()
        except DeviceError as error:
            self._error = error
        finally:
            self._ended()
            self._done.set()

    async def land(self) -> None:
        """:raises DeviceError: as the work did"""
        with trio.CancelScope(shield=True):  # the device's deadline bounds it
            await self._done.wait()
        if self._error is not None:
            raise self._error


class RdmaDevice:
    """An initiator as `blockdev.device.Device`. What it gave up is fenced off, so that nothing is ever pending.

    :param name: for people, instead of the initiator's
    """

    is_file = False

    def __init__(self, inner: Initiator, name: str | None = None) -> None:
        self.inner = inner
        self.name = name or inner.name
        self.size, self.block_size = inner.size, inner.block_size
        self.closed = trio.Event()
        self._given_up = False
        self._token = trio.lowlevel.current_trio_token()
        self._begun = 0
        """Bytes of writes that were begun and have not ended."""

    @property
    def is_connected(self) -> bool:
        """Whether an operation could begin now."""
        return self.inner.is_connected

    async def read_into(self, offset: int, buffer: memoryview | GpuSpan) -> None:
        """Memory of a GPU, too, which is best kept registered (`RdmaDevices.keeping`)."""
        await self._do(lambda: self.inner.read_into(offset, buffer))

    async def write_from(self, offset: int, buffer: memoryview) -> None:
        await self._do(lambda: self.inner.write_from(offset, buffer))

    def begin_write(self, offset: int, buffer: memoryview) -> Begun | None:
        check_transfer(self, offset, buffer, fill=False)
        self._check_usable()
        length = buffer.nbytes
        if not self.is_connected or self._begun + length > max(_BEGUN_MOST, length):
            return None
        self._begun += length
        work = partial(self._translated, partial(self.inner.write_from, offset, buffer))
        write = _Write(work, partial(self._landed, length))
        return Begun(partial(write.start, self._token), write.land)

    def _landed(self, length: int) -> None:
        self._begun -= length

    async def flush(self) -> None:
        await self._do(self.inner.flush)

    async def discard(self, offset: int, length: int) -> None:
        await self._do(lambda: self.inner.discard(offset, length))

    def give_up(self) -> None:
        self._given_up = True
        self.inner.give_up()

    async def aclose(self) -> None:
        self.closed.set()
        await self.inner.aclose()

    def _check_usable(self) -> None:
        if self.closed.is_set():
            raise DeviceClosed(self.name, errno.EBADF, "the device is closed")
        if self._given_up:
            raise DeviceLost(self.name, errno.ENODEV, "it was given up")

    async def _do(self, work: Callable[[], Awaitable[None]]) -> None:
        self._check_usable()
        await self._translated(work)

    async def _translated(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except TransportClosed as error:
            if self._given_up:
                raise DeviceGivenUp(self.name, errno.ETIMEDOUT, str(error), None) from error
            raise DeviceClosed(self.name, errno.EBADF, str(error)) from error
        except TransportTimeout as error:
            raise DeviceTimeout(self.name, errno.ETIMEDOUT, str(error), None) from error
        except MemoryRefused as error:
            raise DeviceError(self.name, errno.ENOMEM, str(error)) from error
        except (TransportError, NvmeError) as error:
            raise DeviceError(self.name, errno.EIO, str(error)) from error


@dataclass(eq=False, slots=True)
class _Kept:
    """Memory that is registered once, for as long as it is used.

    :ivar registrations: by the way that they belong to
    """

    whole: memoryview | GpuSpan
    registrations: dict[Fabric, Registration] = field(default_factory=dict)

    def register(self, way: Fabric) -> None:
        self.registrations[way] = way.register(self.whole)

    def forget(self, way: Fabric) -> None:
        registration = self.registrations.pop(way, None)
        if registration is not None:
            registration.close()


class _Way:
    """A `rdma.transport.Fabric` that is looked for when it is first used: one of several may not be there yet.

    :param opened: where it is kept open
    :param known: what is done about it meanwhile
    """

    def __init__(
        self,
        portal: Portal,
        opened: AsyncExitStack,
        known: Callable[[Fabric], AbstractContextManager[None]],
    ) -> None:
        self._portal = portal
        self._opened = opened
        self._known = known
        self._fabric: Fabric | None = None

    async def connect(self, request: CmRequest) -> Connection:
        if self._fabric is None:
            async with AsyncExitStack() as opening:
                fabric = await opening.enter_async_context(way_to(self._portal))
                opening.enter_context(self._known(fabric))
                self._opened.push_async_exit(opening.pop_all())
            self._fabric = fabric
        return await self._fabric.connect(request)

    def register(self, memory: memoryview | GpuSpan) -> Registration:
        assert self._fabric is not None, "memory is registered for a connection"
        return self._fabric.register(memory)


class RdmaDevices:
    """Opens devices over RDMA, whose connections live in one nursery. Made by `rdma_devices`."""

    def __init__(self, nursery: trio.Nursery, settings: targets.Settings) -> None:
        self._nursery = nursery
        self._settings = settings
        self._open: list[Fabric] = []
        self._kept: list[_Kept] = []

    async def open(self, name: NamespaceName) -> RdmaDevice:
        """The namespace, connected; by the first of its target's portals that can be reached, and by another one when that
        breaks.

        :raises FabricsError: it cannot be had so; says why
        """
        if name.target.credentials.tls:
            raise FabricsError(f"{name} over RDMA: TLS is the kernel's: use path=kernel")
        keys = _keys(name.target.credentials)
        resolved = await targets.resolved(name.target)
        who = self._identity(name, targets.fabric().identity(), keys)
        try:
            device: RdmaDevice = await self._nursery.start(self._hold, name, resolved.portals, who)
        except TransportError as error:
            raise TargetUnreachable(f"{name} over RDMA: {error}") from None
        except (RefusedKey, KeyWanted) as error:
            raise KeyRefused(f"{name} over RDMA: {error}") from None
        except RdmaError as error:
            raise FabricsError(f"{name} over RDMA: {error}") from None
        return device

    @contextmanager
    def keeping(self, memory: Sequence[memoryview | GpuSpan]) -> Iterator[None]:
        """Have this memory registered with all devices, those opened meanwhile too, for the length of the block: transfers
        from and to parts of it then need no registration of their own.

        :raises MemoryRefused:
        """
        kept = [_Kept(one) for one in memory]
        with ExitStack() as stack:
            for one in kept:
                stack.callback(self._release, one)
                self._kept.append(one)
                for way in self._open:
                    one.register(way)
            yield

    def _release(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        for way in list(kept.registrations):
            kept.forget(way)

    def _identity(self, name: NamespaceName, host: HostIdentity, keys: Keys | None) -> Identity:
        keep_alive = float(self._settings.timers.keep_alive)
        return Identity(name.target.nqn, host.nqn, UUID(host.id).bytes, keep_alive, keys)

    async def _hold(
        self,
        name: NamespaceName,
        portals: Sequence[Portal],
        who: Identity,
        task_status: trio.TaskStatus[RdmaDevice],
    ) -> None:
        """Have a device, until it is closed."""
        options = InitiatorOptions(io_timeout=self._settings.io_timeout)
        async with AsyncExitStack() as opened:
            ways = [_Way(portal, opened, self._known) for portal in portals]
            async with open_initiator(ways, who, name.namespace, options) as initiator:
                device = RdmaDevice(initiator, str(name))
                task_status.started(device)
                await device.closed.wait()

    @contextmanager
    def _known(self, way: Fabric) -> Iterator[None]:
        try:
            for one in self._kept:
                one.register(way)
            self._open.append(way)
            yield
        finally:
            if way in self._open:
                self._open.remove(way)
            for one in self._kept:
                one.forget(way)


def _keys(credentials: Credentials) -> Keys | None:
    """:raises KeyRefused: they cannot be used"""
    if credentials.host_key is None:
        if credentials.controller_key is not None:
            raise KeyRefused("a controller_key alone proves nothing: give a host_key too")
        return None
    its = credentials.controller_key
    return Keys(_secret(credentials.host_key), _secret(its) if its is not None else None)


def _secret(path: PurePath) -> Secret:
    text = read_key(Path(path))
    try:
        return Secret.parse(text)
    except ValueError as error:
        raise KeyRefused(f"{path}: {error}") from None


@asynccontextmanager
async def rdma_devices(settings: targets.Settings) -> AsyncIterator[RdmaDevices]:
    """See `RdmaDevices`. Devices that are not closed at the end of the block are."""
    async with background() as nursery:
        yield RdmaDevices(nursery, settings)
