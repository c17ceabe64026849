"""Targets over fabrics: connecting to them, saying why that fails, and finding the namespaces of pools.

A connection is made with time-outs of ours, which are read back: the kernel's own let a write hang for minutes. What
is there already stays; what one call made and could not finish is taken away again.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

import trio

from blockdev.errors import (
    FabricsError,
    FabricsTimeout,
    HostRefused,
    KeyRefused,
    NoNvmeCli,
    TargetUnreachable,
    WrongTransport,
)
from blockdev.nvme import (
    CLOSED,
    LIVE,
    Controller,
    HostIdentity,
    Namespace,
    NamespaceName,
    NvmeCli,
    Portal,
    Subsystem,
    Sysfs,
    Target,
    Timers,
    Transport,
    read_host_identity,
)
from blockdev.nvme.records import DiscoveryEntry

_Thing = TypeVar("_Thing")

log = logging.getLogger(__name__)

REACH_TIMEOUT: Final = 3.0
"""Seconds for a TCP connection to a target: without it, the kernel would try for two minutes."""
APPEAR_TIMEOUT: Final = 10.0
"""Seconds for the namespaces of a target to become block devices, once it is connected."""
SET_TIMEOUT: Final = 10.0
"""Seconds for the kernel to take time-outs, which may wait for I/O that is under way."""
_LOOK: Final = 0.05
"""Seconds between two looks at sysfs while something is to appear there."""
Health = Literal["live", "degraded", "connecting", "lost"]
_COMING: Final = frozenset({LIVE, "new", "resetting", "connecting"})
"""States of a connection that may carry I/O again."""
_AUTH: Final = ("auth", "key", "permission")


@dataclass(frozen=True, slots=True)
class Settings:
    """How connections treat a target that does not answer.

    :ivar io_timeout: seconds that the kernel gives a command
    """

    timers: Timers = field(default_factory=Timers)
    io_timeout: float = 5.0


async def reach(portal: Portal) -> None:
    """See that something listens there for TCP. :raises TargetUnreachable:"""
    reason = f"no answer within {REACH_TIMEOUT:g} s"
    family = socket.AF_INET6 if ":" in portal.address else socket.AF_INET
    try:
        with trio.move_on_after(REACH_TIMEOUT), trio.socket.socket(family, socket.SOCK_STREAM) as connection:
            await connection.connect((portal.address, int(portal.service)))
            return
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
    raise TargetUnreachable(
        f"{portal}: nothing answers: {reason}; see that the address and the port are the target's"
    )


@dataclass(slots=True)
class Fabric:
    """This host's end of the network.

    :ivar reach: see `reach`
    :ivar identity: reads who we are
    """

    cli: NvmeCli = field(default_factory=NvmeCli)
    sysfs: Sysfs = field(default_factory=Sysfs)
    reach: Callable[[Portal], Awaitable[None]] = reach
    identity: Callable[[], HostIdentity] = read_host_identity

    # ── connecting ───────────────────────────────────────────────────────────────────────────────────────

    async def connect(self, target: Target, settings: Settings) -> Subsystem:
        """Connect to a target by each of its ways, and wait for its namespaces; nothing where it is all there already.

        :raises TargetUnreachable, WrongTransport, HostRefused, KeyRefused, FabricsError: none of the ways that this
            call made is left
        """
        subsystem = await self._connect_all(target, settings)
        await self._scanned(subsystem, target)
        await self._set_all(target, settings)
        return self.sysfs.of(target) or subsystem

    async def _connect_all(self, target: Target, settings: Settings) -> Subsystem:
        target = await resolved(target)
        made: list[Portal] = []
        try:
            for portal in target.portals:
                if self._at(target, portal) is None:
                    made.append(portal)
                    await self._connect(target, portal, settings)
                else:
                    await self._settle(target, portal, settings)
        except BaseException:
            with trio.CancelScope(shield=True):
                for portal in made:
                    await self._undo(target, portal)
            raise
        subsystem = self.sysfs.of(target)
        if subsystem is None:
            raise FabricsError(f"{target.nqn} was connected and is gone again: see the kernel's log")
        return subsystem

    async def commands(self, target: Target, settings: Settings) -> list[list[str]]:
        """The arguments of `nvme` that `connect` would run. Secrets are not in them. :raises FabricsError:"""
        host, target = self.identity(), await resolved(target)
        return [
            (await self.cli.connect_command(target, portal, host, settings.timers)).arguments
            for portal in target.portals
            if self._at(target, portal) is None
        ]

    async def _connect(self, target: Target, portal: Portal, settings: Settings) -> None:
        host = self.identity()
        if portal.transport is Transport.TCP:
            await self._reach(portal, host)
        if portal.transport is Transport.RDMA and not self.sysfs.has_rdma():
            raise FabricsError(
                f"{portal}: this host has no RDMA device: load its driver, or use another transport"
            )
        try:
            await self.cli.connect(target, portal, host, settings.timers)
        except (KeyRefused, NoNvmeCli):
            raise
        except FabricsError as error:
            raise await self._reason(target, portal, host, error) from error
        await self._settle(target, portal, settings)

    async def _reach(self, portal: Portal, host: HostIdentity) -> None:
        try:
            await self.reach(portal)
        except TargetUnreachable as error:
            silent = error
        else:
            return
        if (
            self.sysfs.has_rdma()
            and await self._offered(replace(portal, transport=Transport.RDMA), host) is not None
        ):
            raise WrongTransport(
                f"{portal}: nothing answers there over TCP, but a target does over RDMA: write nvme+rdma://"
            )
        raise silent

    async def _offered(self, portal: Portal, host: HostIdentity) -> set[str] | None:
        """The subsystems that are offered to us there; None if nobody can be asked."""
        try:
            return {one.nqn for one in await self.cli.discover(portal, host) if not one.discovery}
        except FabricsError:
            return None

    async def _reason(
        self, target: Target, portal: Portal, host: HostIdentity, error: FabricsError
    ) -> FabricsError:
        """Why a connection was refused. The kernel says EIO to everything, so the target is asked what it offers."""
        if isinstance(error, FabricsTimeout) and target.credentials.host_key is None:
            # with a key, the target may have gone silent over it: nvmet does
            return TargetUnreachable(f"{portal}: {target.nqn} does not answer: {error}")
        offered = await self._offered(portal, host)
        if offered is None:
            return (
                _no_handshake(target, portal)
                if target.credentials.tls
                else await self._not_nvme(portal, error)
            )
        if target.nqn not in offered:
            return HostRefused(
                f"{portal} does not offer {target.nqn} to this host, {host.nqn}: allow this host at the target, or "
                f"correct the name; it offers {', '.join(sorted(offered)) or 'nothing'}"
            )
        if target.credentials.host_key is not None or any(word in error.said.lower() for word in _AUTH):
            return KeyRefused(
                f"{portal}: {target.nqn} refuses the key of this host, {host.nqn}: the DH-HMAC-CHAP key in the file "
                "is not the one that the target has for it"
            )
        return error

    async def _not_nvme(self, portal: Portal, error: FabricsError) -> FabricsError:
        if portal.transport is Transport.LOOP:
            return TargetUnreachable(f"no target in this kernel has a loop port: {error.said}")
        try:
            await self.reach(portal)
        except TargetUnreachable:
            return TargetUnreachable(
                f"{portal}: no target answers: {error.said}; see that the address and the port are the target's"
            )
        kind, or_else = (
            ("NVMe over TCP", ", or it demands TLS: --tls")
            if portal.transport is Transport.TCP
            else ("RDMA", "")
        )
        return WrongTransport(
            f"{portal}: something answers there, but it does not speak {kind}: correct the transport or the port{or_else}"
        )

    async def _scanned(self, subsystem: Subsystem, target: Target) -> None:
        """Wait until the kernel has found what the target offers, and udev has made devices of it."""
        try:
            offered = await self.cli.active_namespaces(subsystem.controllers[0].name)
        except FabricsError as error:
            log.debug("what namespaces %s has cannot be told: %s", target.nqn, error)
            return
        deadline = trio.current_time() + APPEAR_TIMEOUT
        for number in offered:
            found = await self._appeared(NamespaceName(target, number), deadline)
            if isinstance(found, FabricsError):
                log.warning("%s", found)

    async def _settle(self, target: Target, portal: Portal, settings: Settings) -> None:
        """Wait for a connection to show, and give it our time-outs."""
        controller = await _seen(lambda: self._at(target, portal), trio.current_time() + APPEAR_TIMEOUT)
        if controller is None:
            raise FabricsError(
                f"{portal}: {target.nqn} was connected, but the kernel does not show the connection"
            )
        await self._set_timeouts(controller, settings)
        kept, wanted = controller.timers, settings.timers.keep_alive
        if kept is not None and kept.keep_alive != wanted:
            log.warning(
                "%s was connected with a keep-alive of %d s instead of %d s: disconnect and connect it again",
                controller.name,
                kept.keep_alive,
                wanted,
            )

    async def _set_timeouts(self, controller: Controller, settings: Settings) -> None:
        """:raises FabricsError: the kernel does not take them, or is stuck with I/O"""
        wanted = settings.timers

        try:
            self.sysfs.set_timers(controller.name, wanted)
            with trio.fail_after(SET_TIMEOUT):
                await trio.to_thread.run_sync(
                    self.sysfs.set_io_timeout, controller.name, settings.io_timeout, abandon_on_cancel=True
                )
        except trio.TooSlowError:
            raise FabricsError(
                f"{controller.name}: its time-outs cannot be set: the kernel waits for I/O"
            ) from None
        except OSError as error:
            raise FabricsError(
                f"{controller.name}: its time-outs cannot be set: {error.strerror}; run as root"
            ) from error
        now = self.sysfs.controller(controller.name)
        timers = now.timers if now is not None else None
        if timers is not None and replace(timers, keep_alive=wanted.keep_alive) != wanted:
            raise FabricsError(
                f"{controller.name}: the kernel did not take the time-outs: {timers} instead of {wanted}"
            )

    async def _undo(self, target: Target, portal: Portal) -> None:
        controller = self._at(target, portal)
        if controller is not None:
            with suppress(FabricsError):  # why the connection failed is what is told
                await self.cli.disconnect_controller(controller.name)

    def _at(self, target: Target, portal: Portal) -> Controller | None:
        subsystem = self.sysfs.of(target)
        return None if subsystem is None else subsystem.at(portal)

    async def discover(self, portal: Portal) -> list[DiscoveryEntry]:
        """What is offered to this host there. :raises FabricsError:"""
        portal = (await resolved(Target("", (portal,)))).portals[0]
        if portal.transport is Transport.TCP:
            await self.reach(portal)
        try:
            return await self.cli.discover(portal, self.identity())
        except (NoNvmeCli, FabricsTimeout):
            raise
        except FabricsError as error:
            raise await self._not_nvme(portal, error) from error

    # ── the namespaces of a pool ─────────────────────────────────────────────────────────────────────────

    async def attach(
        self, names: Iterable[NamespaceName], settings: Settings
    ) -> dict[NamespaceName, Path | FabricsError]:
        """Connect what these namespaces need, and find them; for each its block device, or why it is not there.

        A target with several ways is there if one of them is.
        """
        found: dict[NamespaceName, Path | FabricsError] = {}

        async def attach_one(target: Target, wanted: Sequence[NamespaceName]) -> None:
            refused = await self._connect_some(target, settings)
            deadline, answer = (trio.current_time() + seconds for seconds in (APPEAR_TIMEOUT, REACH_TIMEOUT))
            for name in wanted:
                place = refused or await self._appeared(name, deadline)
                found[name] = (
                    place if isinstance(place, FabricsError) else await self._answers(name, place, answer)
                )
            await self._set_all(target, settings)

        wanted = list(names)
        async with trio.open_nursery() as nursery:
            for target in dict.fromkeys(name.target for name in wanted):
                nursery.start_soon(attach_one, target, [name for name in wanted if name.target == target])
        return found

    def find(self, name: NamespaceName) -> Path | FabricsError:
        """The block device of a namespace, if its target is connected."""
        namespace = self.sysfs.find(name)
        if namespace is not None:
            return self.sysfs.device(namespace)
        return FabricsError(f"{name} is not connected: connect it with 'kvfs target connect {name.target}'")

    async def _connect_some(self, target: Target, settings: Settings) -> FabricsError | None:
        """Connect by as many ways as can be; the first error if there is none."""
        errors: list[FabricsError] = []
        for portal in target.portals:
            try:
                await self._connect_all(replace(target, portals=(portal,)), settings)
            except FabricsError as error:
                errors.append(error)
        if len(errors) == len(target.portals):
            return errors[0]
        for one in errors:
            log.warning("%s; %s is used by its other ways", one, target.nqn)
        return None

    async def _answers(self, name: NamespaceName, place: Path, deadline: float) -> Path | FabricsError:
        """The kernel keeps the devices of a target that is away: all they give is errors, as if they were broken."""
        carries = self.sysfs.carries
        if carries(str(place)) is False and not await _seen(lambda: carries(str(place)) or None, deadline):
            return TargetUnreachable(
                f"{name} does not answer: its connection is lost, and the kernel tries again"
            )
        return place

    def _look_again(self, target: Target) -> None:
        """The kernel drops a namespace that is another one after a reconnect, and does not look for more by itself."""
        subsystem = self.sysfs.of(target)
        for controller in () if subsystem is None else subsystem.controllers:
            if controller.state == LIVE:
                with suppress(OSError):  # without root, or gone
                    self.sysfs.rescan(controller.name)

    async def _appeared(self, name: NamespaceName, deadline: float) -> Path | FabricsError:
        if self.sysfs.find(name) is None:
            self._look_again(name.target)
        namespace = await _seen(lambda: self.sysfs.find(name), deadline)
        if namespace is None:
            there = self.sysfs.of(name.target)
            numbers = [str(one.number) for one in there.namespaces] if there is not None else []
            return FabricsError(
                f"{name.target.nqn} has no namespace {name.namespace}: it has {', '.join(numbers) or 'none'}"
            )
        device = self.sysfs.device(namespace)
        await _seen(lambda: device.exists() or None, deadline)  # udev makes it a moment later
        return device

    async def _set_all(self, target: Target, settings: Settings) -> None:
        subsystem = self.sysfs.of(target)
        for controller in () if subsystem is None else subsystem.controllers:
            if controller.state == LIVE:
                with suppress(FabricsError):  # it was possible a moment ago; now the connection is gone
                    await self._set_timeouts(controller, settings)


def target_of(subsystem: Subsystem) -> Target | None:
    """The target that a subsystem is, by the ways that are there now and have the transport of the first; None for
    transports that kvfs does not connect by, such as Fibre Channel.
    """
    portals = [
        Portal(Transport(one.transport), one.address, one.service)
        for one in subsystem.controllers
        if one.transport in {known.value for known in Transport}
    ]
    if not portals:
        return None
    return Target(subsystem.nqn, tuple(one for one in portals if one.transport is portals[0].transport))


def health(subsystem: Subsystem, namespace: Namespace | None = None) -> Health:
    """How well a namespace, or a subsystem as a whole, can be reached now."""
    ways = subsystem.controllers
    if namespace is not None and namespace.ways:
        names = {way.controller for way in namespace.ways if way.ana not in CLOSED}
        ways = tuple(one for one in ways if one.name in names)
    live = sum(one.state == LIVE for one in ways)
    if live:
        return "live" if live == len(subsystem.controllers) else "degraded"
    return "connecting" if any(one.state in _COMING for one in ways) else "lost"


async def _seen(look: Callable[[], _Thing | None], deadline: float) -> _Thing | None:
    """What `look` finds, as soon as it does; sysfs tells nobody when it changes."""
    while (found := look()) is None and trio.current_time() < deadline:  # noqa: ASYNC110
        await trio.sleep(_LOOK)
    return found


def _no_handshake(target: Target, portal: Portal) -> KeyRefused:
    return KeyRefused(
        f"{portal}: no connection with TLS: the key for {target.nqn} in the kernel's keyring is not the one that the target "
        "has, tlshd does not run at both ends, or the target does not allow this host"
    )


async def resolved(target: Target) -> Target:
    """With IP addresses, written as the kernel writes them, instead of names. :raises TargetUnreachable:"""
    portals = []
    for portal in target.portals:
        address = portal.address
        if portal.transport is not Transport.LOOP:
            try:
                found = await trio.socket.getaddrinfo(address, portal.service, type=socket.SOCK_STREAM)
            except OSError as error:
                raise TargetUnreachable(f"{portal}: no such host: {error.strerror}") from None
            except UnicodeError:
                raise TargetUnreachable(
                    f"{portal}: no such host: it is no name that a host can have"
                ) from None
            # Of a link-local address: it is only reached by that interface.
            _, scope, zone = address.partition("%")
            # Of a name's addresses always the same one: name servers change their order, and connections must not follow.
            first = min(str(one[4][0]) for one in found if one[0] == found[0][0])
            address = f"{first}{scope}{zone}"
        portals.append(replace(portal, address=address))
    return replace(target, portals=tuple(portals))


def fabric() -> Fabric:
    """This host's, with the installed nvme-cli."""
    return Fabric()
