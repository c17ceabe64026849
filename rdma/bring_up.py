"""How a controller is brought up: which commands, in which order, and what their answers must say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from rdma import nvme_wire as wire
from rdma.authentication import Keys, authenticate
from rdma.errors import CommandFailed, KeyRefused, KeyWanted, NotSupported
from rdma.nvme_auth import Parties
from rdma.nvme_identify import (
    ACTIVE_MAX,
    ENABLE,
    IDENTIFY_SIZE,
    Capabilities,
    Controller,
    ControllerState,
    Namespace,
    unpack_active,
    unpack_uuid,
)
from rdma.nvme_status import AUTHENTICATION_REQUIRED
from rdma.steps import Ask, Steps

_PAGE = 4096
_POLL = 0.05
"""Seconds between two looks whether the controller is ready."""
_NO_KEY = (
    "demands authentication: give the DH-HMAC-CHAP key that the target has for this host, as 'host_key' in the "
    "configuration"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are, and whom we want.

    :ivar host_id: 16 bytes
    :ivar keep_alive: seconds of silence after which the controller gives us up
    :ivar keys: with which both prove who they are; None if we have none
    """

    subsystem: str
    host: str
    host_id: bytes
    keep_alive: float = 15.0
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What an admin queue has found out.

    :ivar number: the controller's id, by which I/O queues are connected to it
    :ivar queues: I/O queues that we may have
    :ivar depth: most entries of one
    """

    controller: Controller
    number: int
    queues: int
    depth: int


def start_controller(who: Identity, depth: int, queues: int) -> Steps[Found]:
    """On an admin queue that is connected to nothing yet.

    :param depth: entries of this queue
    :param queues: I/O queues that we would like
    :raises KeyWanted, KeyRefused, NotSupported, CommandFailed:
    """
    number = yield from _connect(who, wire.ADMIN_QUEUE, depth, wire.ANY_CONTROLLER)
    answer = yield Ask("reading its capabilities", lambda _: wire.property_get(wire.Property.CAP))
    capabilities = Capabilities.unpack(answer.result)
    yield Ask("enabling it", lambda _: wire.property_set(wire.Property.CC, ENABLE))
    yield from _wait_until_ready(capabilities.ready_seconds)
    answer = yield _identify("asking what it is", wire.Cns.CONTROLLER, 0)
    controller = Controller.unpack(answer.data)
    if not controller.takes_keyed:
        raise NotSupported(f"{who.subsystem} takes no keyed SGLs, without which nothing can be moved by RDMA")
    answer = yield Ask("asking for queues", lambda _: wire.set_queues(queues))
    granted = min(queues, wire.granted_queues(answer.result))
    most = min(capabilities.queue_depth, controller.commands or capabilities.queue_depth)
    return Found(controller, number, granted, most)


def start_queue(who: Identity, queue: int, depth: int, controller: int) -> Steps[None]:
    """On an I/O queue that is connected to nothing yet. :raises KeyWanted, KeyRefused, CommandFailed:"""
    yield from _connect(who, queue, depth, controller)


def find_namespace(wanted: int | UUID) -> Steps[tuple[int, Namespace]]:
    """On the admin queue of a controller that is ready; the namespace and its number.

    :raises NotSupported: it is not there, or its blocks carry more than data
    """
    nsid = (yield from _number_of(wanted)) if isinstance(wanted, UUID) else wanted
    answer = yield _identify(f"asking for namespace {nsid}", wire.Cns.NAMESPACE, nsid)
    namespace = Namespace.unpack(answer.data)
    if not namespace.exists:
        raise NotSupported(f"there is no namespace {nsid}, or it is not active")
    if namespace.metadata or namespace.protected:
        raise NotSupported(
            f"namespace {nsid} has {namespace.metadata} bytes of metadata with each block: format it without, and "
            "without protection information"
        )
    if namespace.block_size > _PAGE:
        raise NotSupported(
            f"namespace {nsid} has blocks of {namespace.block_size} bytes; at most {_PAGE} will do"
        )
    return nsid, namespace


def _number_of(uuid: UUID) -> Steps[int]:
    """:raises NotSupported: there is none"""
    after = 0
    while True:
        answer = yield _identify("asking which namespaces there are", wire.Cns.ACTIVE_NAMESPACES, after)
        numbers = unpack_active(answer.data)
        for nsid in numbers:
            answer = yield _identify(f"asking for the UUID of namespace {nsid}", wire.Cns.DESCRIPTORS, nsid)
            if unpack_uuid(answer.data) == uuid:
                return nsid
        if len(numbers) < ACTIVE_MAX:
            raise NotSupported(f"there is no namespace {uuid}, or it is not active")
        after = numbers[-1]


def _identify(why: str, what: wire.Cns, nsid: int) -> Ask:
    return Ask(why, lambda sgl: wire.identify(what, sgl, nsid), answer=IDENTIFY_SIZE)


def _connect(who: Identity, queue: int, depth: int, controller: int) -> Steps[int]:
    """Returns the controller's id."""
    keep_alive_ms = int(who.keep_alive * 1000) if queue == wire.ADMIN_QUEUE else 0
    data = wire.ConnectData(who.host_id, controller, who.subsystem, who.host).pack()
    try:
        answer = yield Ask(
            f"connecting queue {queue}",
            lambda sgl: wire.connect(queue, depth, sgl, keep_alive_ms=keep_alive_ms),
            data=data,
        )
    except CommandFailed as error:
        if error.status[:2] == AUTHENTICATION_REQUIRED[:2]:
            raise KeyWanted(f"{who.subsystem} {_NO_KEY}") from None
        raise
    if answer.result >> 16 & 0xFFFF:  # AUTHREQ: it wants to be authenticated to before anything else
        if who.keys is None:
            raise KeyWanted(f"{who.subsystem} {_NO_KEY}")
        yield from authenticate(Parties(who.host, who.subsystem), who.keys)
    elif who.keys is not None and who.keys.controller is not None:
        raise KeyRefused(f"{who.subsystem} does not prove who it is, as 'controller_key' wants it to")
    return answer.result & 0xFFFF


def _wait_until_ready(seconds: float) -> Steps[None]:
    left = max(seconds, 1.0)
    while True:
        answer = yield Ask("asking whether it is ready", lambda _: wire.property_get(wire.Property.CSTS))
        state = ControllerState.unpack(answer.result)
        if state.failed:
            raise NotSupported("the controller says that it has failed")
        if state.ready:
            return
        if left <= 0:
            raise NotSupported(f"the controller was not ready within the {seconds} s that it says it needs")
        yield _POLL
        left -= _POLL
