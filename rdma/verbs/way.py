"""The way to a target, as rdma_cm finds it: a connection's identifier, with a channel of its own for what happens to it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from rdma.errors import TransportBroken, TransportRefused, WireError
from rdma.nvme_wire import CmReject
from rdma.verbs.library import CM_DEVICE, Library, translated, with_descriptor
from rdma.verbs.numbers import PORT_SPACE_TCP, CmEvent, in_words

if TYPE_CHECKING:
    from pyverbs.cmid import ConnParam

RESOLVE_MS: Final = 2000
"""Milliseconds that the kernel may look for an address, and for a route."""
_MEANT: Final = {
    CmEvent.ADDR_ERROR: "no RDMA device of this host leads there",
    CmEvent.ROUTE_ERROR: "no RDMA device of this host leads there",
    CmEvent.UNREACHABLE: "no answer",
    CmEvent.DISCONNECTED: "the target has disconnected",
    CmEvent.DEVICE_REMOVAL: "the RDMA device has gone away",
}


class Portal(NamedTuple):
    """Where a target listens.

    :ivar address: an IP address; names are not looked up
    """

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class Happened(NamedTuple):
    """:ivar data: that the peer sent along"""

    event: CmEvent
    data: bytes


class Way:
    """See the module. :raises NoVerbs, TransportBroken:"""

    def __init__(self, library: Library, portal: Portal) -> None:
        self.portal = portal
        self._library = library
        self._channel, self.descriptor = with_descriptor(library, library.CMEventChannel, CM_DEVICE)
        try:
            with translated(library, str(portal)):
                self.id = library.CMID(creator=self._channel, port_space=PORT_SPACE_TCP)
        except BaseException:
            self._channel.close()
            raise

    async def resolve(self) -> None:
        """Find the device and the route. :raises TransportBroken:"""
        with translated(self._library, f"{self.portal}: no RDMA device of this host leads there"):
            where = self._library.AddrInfo(
                dst=self.portal.address, dst_service=str(self.portal.port), port_space=PORT_SPACE_TCP
            )
            self.id.resolve_addr(where, RESOLVE_MS)
        await self.expect(CmEvent.ADDR_RESOLVED)
        with translated(self._library, f"{self.portal}: no route"):
            self.id.resolve_route(RESOLVE_MS)
        await self.expect(CmEvent.ROUTE_RESOLVED)

    async def connect(self, parameters: ConnParam) -> bytes:
        """Ask the target for a connection; what it answered. :raises TransportRefused, TransportBroken:"""
        with translated(self._library, f"{self.portal}: connecting"):
            self.id.connect(parameters)
        return await self.expect(CmEvent.CONNECT_RESPONSE)

    async def expect(self, wanted: CmEvent) -> bytes:
        """Wait for an event; the data that came with it. :raises TransportRefused, TransportBroken: it is another one"""
        while (happened := self.next()) is None:
            await trio.lowlevel.wait_readable(self.descriptor)
        if happened.event is CmEvent.REJECTED:
            raise refused(self.portal, happened)
        if happened.event is not wanted:
            raise TransportBroken(self.describe(happened.event), happened.event)
        return happened.data

    def describe(self, event: CmEvent) -> str:
        """An event that ends the connection, in words."""
        return f"{self.portal}: {_MEANT.get(event, in_words(event))}"

    def next(self) -> Happened | None:
        """What has happened and was not told yet. :raises TransportBroken:"""
        try:
            event = self._library.CMEvent(self._channel)
        except self._library.SystemError as error:
            if error.error_code in (errno.EAGAIN, errno.EINTR):
                return None
            raise TransportBroken(f"{self.portal}: {error}", error.error_code) from None
        try:
            kind = CmEvent(event.event_type)
            carries = kind in (CmEvent.REJECTED, CmEvent.CONNECT_RESPONSE)
            return Happened(kind, event.private_data if carries else b"")
        finally:
            event.close()  # acknowledges it: the identifier cannot be closed before

    def close(self) -> None:
        """:raises TransportBroken: the system does not let go"""
        with translated(self._library, f"{self.portal}: closing"):
            try:
                self.id.close()
            finally:
                self._channel.close()


def refused(portal: Portal, happened: Happened) -> TransportRefused:
    """The error that says by whom, and why, a connection was refused."""
    try:
        reason = CmReject.unpack(happened.data)
    except WireError:
        return TransportRefused(f"{portal}: no NVMe/RDMA target listens there", happened.event)
    return TransportRefused(f"{portal}: the target refuses the connection: {in_words(reason)}", reason)
