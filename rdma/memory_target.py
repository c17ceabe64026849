"""A target in memory, behind the seam of `rdma.transport`: real commands in, real answers out, and what may go wrong between.

Shipped: whoever uses an initiator without a network needs it. Nothing here takes time; whoever tests says what is late.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

import trio

from rdma import nvme_wire as wire
from rdma.cuda import GpuSpan
from rdma.errors import MemoryRefused, TransportBroken, TransportClosed, TransportRefused
from rdma.host_memory import address_of
from rdma.memory_authentication import Authentication, Terms
from rdma.nvme_auth import Parties
from rdma.nvme_identify import IDENTIFY_SIZE, Capabilities, pack_uuid
from rdma.nvme_status import AUTHENTICATION_REQUIRED, INVALID_OPCODE, SUCCESS, Status
from rdma.testing import FakeCuda

ABORTED: Final = Status(0, 0x07)
INVALID_NAMESPACE: Final = Status(0, 0x0B)
OUT_OF_RANGE: Final = Status(0, 0x80, final=True)
IDENTITY: Final = UUID(int=1)
_CONTROLLER: Final = 7


@dataclass
class Region:
    """Registered memory."""

    target: MemoryTarget
    view: memoryview
    key: int
    address: int

    def close(self) -> None:
        self.target.regions.pop(self.key, None)


@dataclass(eq=False)
class Held:
    """A command that is not answered yet."""

    connection: MemoryConnection
    command_id: int
    command: wire.Command


class MemoryConnection:
    """One connected queue."""

    def __init__(self, target: MemoryTarget, queue: int) -> None:
        self.queue = queue
        self.authentication: Authentication | None = None
        self._target = target
        self._answers: deque[bytes] = deque()
        self._news = trio.Event()
        self._end: type[TransportClosed | TransportBroken] | None = None

    @property
    def is_open(self) -> bool:
        return self._end is None

    def post(self, capsule: bytes) -> None:
        self._check()
        self._target.take(self, *wire.unpack_command(capsule))

    async def completion(self) -> bytes:
        while not self._answers:
            self._check()
            await self._news.wait()
        return self._answers.popleft()

    def close(self) -> None:
        self.end(TransportClosed)

    def end(self, how: type[TransportClosed | TransportBroken]) -> None:
        """From here on nothing goes either way."""
        self._end = self._end or how
        self._answers.clear()
        self._news.set()

    def answer(self, completion: wire.Completion) -> None:
        self._answers.append(completion.pack())
        self._news.set()
        self._news = trio.Event()

    def _check(self) -> None:
        if self._end is not None:
            raise self._end(f"queue {self.queue} is not connected any more")


@dataclass(eq=False)
class MemoryTarget:
    """One subsystem with one namespace; a `rdma.transport.Fabric` that leads to it.

    :ivar hold: which commands are not answered until `release`
    :ivar is_deaf: it does not abort either
    :ivar is_down: nothing can be connected
    :ivar terms: what it demands of hosts before they may do anything
    :ivar refuses: opcodes of the admin queue that it does not know
    :ivar refuses_io: what it says to opcodes of the I/O queues that it does not do
    :ivar rng: answers come in any order, if given
    :ivar dropped: transfers of commands whose queue was gone: a network card does not do them
    """

    size: int = 4 << 20
    block_size: int = 4096
    metadata: int = 0
    uuid: UUID = IDENTITY
    limit_shift: int = 8
    """MDTS: a command moves 4 KiB shifted by so much."""
    queues: int = 4
    can_deallocate: bool = True
    hold: Callable[[wire.Command], bool] = lambda _: False
    is_deaf: bool = False
    is_down: bool = False
    terms: Terms | None = None
    refuses: set[int] = field(default_factory=set)
    refuses_io: dict[int, Status] = field(default_factory=dict)
    rng: Random | None = None
    dropped: int = 0
    commands: list[tuple[int, wire.Command]] = field(default_factory=list)
    """All that came, in order, each with its queue."""
    connections: list[MemoryConnection] = field(default_factory=list)
    regions: dict[int, Region] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.media = bytearray(self.size)
        self._keys = itertools.count(1)
        self._is_enabled = False

    # ── the way to it ────────────────────────────────────────────────────────────────────────────────────

    async def connect(self, request: wire.CmRequest) -> MemoryConnection:
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise TransportBroken("no route to the target")
        if request.queue > self.queues:
            raise TransportRefused(wire.CmReject.INVALID_QUEUE.name)
        connection = MemoryConnection(self, wire.CmRequest.unpack(request.pack()).queue)
        self.connections.append(connection)
        return connection

    def register(self, memory: memoryview | GpuSpan) -> Region:
        """:raises MemoryRefused: memory of a GPU, of which it reaches only a stand-in's"""
        if isinstance(memory, memoryview):
            region = Region(self, memory, next(self._keys), address_of(memory))
        elif isinstance(memory.driver, FakeCuda):
            view = memory.driver.reached(memory.address, memory.nbytes)
            region = Region(self, view, next(self._keys), memory.address)
        else:
            raise MemoryRefused("a target in memory does not reach a GPU's")
        self.regions[region.key] = region
        return region

    def kill(self) -> None:
        """It is gone, in the middle of whatever it does; nothing can be connected until `is_down` is false again."""
        self.is_down = True
        self.cut()

    def cut(self) -> None:
        """All connections break."""
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.end(TransportBroken)

    def release(self) -> None:
        """Do what was held, in any order: also what nobody waits for any more."""
        held, self.held = self.held, []
        if self.rng is not None:
            self.rng.shuffle(held)
        for one in held:
            self._do(one)

    def take(self, connection: MemoryConnection, command_id: int, command: wire.Command) -> None:
        """A command has come."""
        self.commands.append((connection.queue, command))
        one = Held(connection, command_id, command)
        if self.hold(command) or (self.rng is not None and self.rng.random() < 0.2):
            self.held.append(one)
        else:
            self._do(one)

    # ── what it does ─────────────────────────────────────────────────────────────────────────────────────

    def _do(self, one: Held) -> None:
        connection = one.connection
        if not connection.is_open:
            self.dropped += 1
            return
        try:
            result, status = self._result(one)
        except KeyError:  # memory that is not registered: the connection does not survive that
            connection.end(TransportBroken)
            return
        if connection.is_open:
            connection.answer(wire.Completion(one.command_id, result, queue=connection.queue, status=status))

    def _result(self, one: Held) -> tuple[int, Status]:
        command = one.command
        if command.is_fabrics:
            return self._fabrics(one.connection, command)
        if not self._may(one.connection):
            return 0, AUTHENTICATION_REQUIRED
        if one.connection.queue == wire.ADMIN_QUEUE:
            return self._admin(command)
        return 0, self._io(command)

    def _fabrics(self, connection: MemoryConnection, command: wire.Command) -> tuple[int, Status]:
        if command.nsid == wire.Fabrics.CONNECT:
            return self._connect(connection, command), SUCCESS
        if command.nsid == wire.Fabrics.AUTHENTICATION_SEND and connection.authentication is not None:
            connection.authentication.take(bytes(self._memory(command.data)))
            if connection.authentication.disbelieved:
                connection.end(TransportBroken)
            return 0, SUCCESS
        if command.nsid == wire.Fabrics.AUTHENTICATION_RECEIVE and connection.authentication is not None:
            said = connection.authentication.give()
            self._memory(command.data)[: len(said)] = said
            return 0, SUCCESS
        if not self._may(connection):
            return 0, AUTHENTICATION_REQUIRED
        if command.nsid == wire.Fabrics.PROPERTY_SET:
            self._is_enabled = bool(command.words[2] & 1)
            return 0, SUCCESS
        if command.words[1] == wire.Property.CAP:
            return Capabilities(128, 7.5).pack(), SUCCESS
        return int(self._is_enabled), SUCCESS

    def _connect(self, connection: MemoryConnection, command: wire.Command) -> int:
        data = wire.unpack_connect_data(self._memory(command.data))
        if self.terms is None:
            return _CONTROLLER
        who = Parties(data.host, data.subsystem)
        connection.authentication = Authentication(who, self.terms, Random(connection.queue))
        return _CONTROLLER | 1 << 17

    def _may(self, connection: MemoryConnection) -> bool:
        """Whether its host has proved who it is, if that is demanded."""
        return self.terms is None or (
            connection.authentication is not None and connection.authentication.passed
        )

    def _admin(self, command: wire.Command) -> tuple[int, Status]:
        if command.opcode in self.refuses:
            return 0, INVALID_OPCODE
        if command.opcode == wire.Admin.IDENTIFY:
            self._memory(command.data)[:] = self._described(wire.Cns(command.words[0]), command.nsid)
        elif command.opcode == wire.Admin.SET_FEATURES:
            return (self.queues - 1) << 16 | (self.queues - 1), SUCCESS
        elif command.opcode == wire.Admin.ABORT:
            return self._abort(command.words[0] & 0xFFFF, command.words[0] >> 16), SUCCESS
        return 0, SUCCESS

    def _abort(self, queue: int, command_id: int) -> int:
        """0 if it was aborted."""
        for one in self.held:
            found = (one.connection.queue, one.command_id, one.connection.is_open)
            if found == (queue, command_id, True) and not self.is_deaf:
                self.held.remove(one)
                one.connection.answer(wire.Completion(command_id, queue=queue, status=ABORTED))
                return 0
        return 1

    def _io(self, command: wire.Command) -> Status:
        if command.nsid != 1:
            return INVALID_NAMESPACE
        if command.opcode in self.refuses_io:
            return self.refuses_io[command.opcode]
        if command.opcode == wire.Io.DATASET_MANAGEMENT:
            for found in wire.unpack_ranges(self._memory(command.data)):
                start = found.block * self.block_size
                self.media[start : start + found.blocks * self.block_size] = bytes(
                    found.blocks * self.block_size
                )
            return SUCCESS
        if command.opcode == wire.Io.FLUSH:
            return SUCCESS
        start = (command.words[0] | command.words[1] << 32) * self.block_size
        stop = start + ((command.words[2] & 0xFFFF) + 1) * self.block_size
        if stop > self.size:
            return OUT_OF_RANGE
        memory = self._memory(command.data)
        if command.opcode == wire.Io.READ:
            memory[:] = self.media[start:stop]
        else:
            self.media[start:stop] = memory
        return SUCCESS

    def _memory(self, sgl: wire.Sgl) -> memoryview:
        """What a keyed descriptor names. :raises KeyError: nothing that is registered"""
        if not isinstance(sgl, wire.Keyed):
            raise KeyError(sgl)
        region = self.regions[sgl.key]
        start = sgl.address - region.address
        if not 0 <= start <= start + sgl.length <= region.view.nbytes:
            raise KeyError(sgl)
        return region.view[start : start + sgl.length]

    def _described(self, what: wire.Cns, nsid: int) -> bytes:
        if what is wire.Cns.CONTROLLER:
            return self._controller()
        if what is wire.Cns.ACTIVE_NAMESPACES:
            return (b"" if nsid else struct.pack("<I", 1)).ljust(IDENTIFY_SIZE, b"\0")
        if what is wire.Cns.DESCRIPTORS:
            return pack_uuid(self.uuid)
        return self._namespace(nsid)

    def _controller(self) -> bytes:
        data = bytearray(IDENTIFY_SIZE)
        data[4:24] = b"MEMORY".ljust(20)
        data[77] = self.limit_shift
        struct.pack_into("<H", data, 78, _CONTROLLER)
        struct.pack_into("<H", data, 520, 1 << 2 if self.can_deallocate else 0)
        struct.pack_into("<I", data, 536, 1 << 2 | 1)
        return bytes(data)

    def _namespace(self, nsid: int) -> bytes:
        data = bytearray(IDENTIFY_SIZE)
        if nsid == 1:
            struct.pack_into("<Q", data, 0, self.size // self.block_size)
            struct.pack_into("<HB", data, 128, self.metadata, self.block_size.bit_length() - 1)
        return bytes(data)
