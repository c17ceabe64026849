"""Transfers under which the way to the target breaks, over and over: in seeded rounds, over one initiator.

    rdma_faults ADDRESS PORT[,PORT] NQN FAULT SEED ROUNDS       FAULT is one of `FAULTS`

In each round extents are read, at some moment something breaks, and later it is mended. Whatever a transfer ended with, its
memory is filled with other bytes at once, as somebody else's would be; they must still be there when the round ends. Then
the same extents must be read right, whatever connection that takes.

What breaks and mends is outside: it is told to by lines `break 0`, `mend 0`, `break 1` and so on. The last line is what was
seen, as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from rdma.bring_up import Identity
from rdma.errors import RdmaError
from rdma.host_memory import host_memory
from rdma.initiator import Initiator, InitiatorOptions, open_initiator
from rdma.session import SessionOptions
from rdma.verbs import open_verbs
from rdma.verbs.way import Portal
from tests.lab.inside.direct_io import PIECE, content

log = logging.getLogger(__name__)

AT_ONCE = 8
EXTENT = 2
"""MiB."""
DEADLINE = 4.0
"""Seconds that a transfer may take."""
KEEP_ALIVE = 3.0
SEED = "under faults"
"""Of what is on the device, in the words of `direct_io`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """:ivar seconds: from which to which it lasts
    :ivar resume: seconds in which all must be well again, on a machine that is busy
    :ivar idle: nothing is under way meanwhile
    :ivar sleeps: this process stops for longer than the target waits for a sign of life
    """

    seconds: tuple[float, float]
    resume: float = 40.0
    idle: bool = False
    sleeps: bool = False


FAULTS = {
    "target": Fault((0.0, DEADLINE + 1)),
    "way": Fault((0.0, 0.0)),
    "link": Fault((0.0, DEADLINE + 1)),
    "node": Fault((0.0, 0.0), resume=120.0),
    "silence": Fault((2 * KEEP_ALIVE, 2 * KEEP_ALIVE), idle=True),
    "stopped": Fault((0.0, 0.0), sleeps=True),
}


def sleep_soon() -> None:
    """Stop this process for a while, which somebody else has to do."""
    script = f"kill -STOP {os.getpid()}; sleep {2 * KEEP_ALIVE}; kill -CONT {os.getpid()}"
    os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", script)


@dataclass(slots=True)
class Seen:
    """:ivar interrupted: transfers that were under way when something broke
    :ivar slowest: seconds that a transfer took
    :ivar late: transfers of which a byte came after they had ended
    :ivar resumed: the most seconds until all was well, after it was mended
    """

    rounds: int = 0
    interrupted: int = 0
    right: int = 0
    failed: int = 0
    wrong: int = 0
    late: int = 0
    slowest: float = 0.0
    resumed: float = 0.0
    sessions: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class Trial:
    def __init__(self, device: Initiator, arena: memoryview, fault: Fault, rng: Random) -> None:
        self.device = device
        self.frames = [arena[at : at + EXTENT * PIECE] for at in range(0, arena.nbytes, EXTENT * PIECE)]
        self.expected = [
            b"".join(content(SEED, EXTENT * number + part) for part in range(EXTENT))
            for number in range(len(self.frames))
        ]
        self.fault, self.rng = fault, rng
        self.seen = Seen()

    async def round(self) -> None:
        poison = self.rng.randbytes(PIECE) * EXTENT
        async with trio.open_nursery() as nursery:
            if not self.fault.idle:
                for number in range(len(self.frames)):
                    nursery.start_soon(self.transfer, number, poison)
            await trio.sleep(self.rng.uniform(0, 0.4))
            self.tell("break")
            self.seen.interrupted += len(nursery.child_tasks)
            if self.fault.sleeps:
                sleep_soon()
            await trio.sleep(self.rng.uniform(*self.fault.seconds))
            self.tell("mend")
        await self.resume()
        if not self.fault.idle:
            self.seen.late += sum(frame != poison for frame in self.frames)
        self.seen.rounds += 1

    def tell(self, what: str) -> None:
        log.info("%s %d", what, self.seen.rounds)
        print(what, self.seen.rounds, flush=True)

    async def transfer(self, number: int, poison: bytes) -> None:
        frame = self.frames[number]
        frame[:] = bytes(frame.nbytes)
        began = time.monotonic()
        try:
            await self.device.read_into(number * frame.nbytes, frame)
        except RdmaError as error:
            self.seen.failed += 1
            name = type(error).__name__
            self.seen.errors[name] = self.seen.errors.get(name, 0) + 1
        else:
            self.seen.right += frame == self.expected[number]
            self.seen.wrong += frame != self.expected[number]
        self.seen.slowest = max(self.seen.slowest, time.monotonic() - began)
        frame[:] = poison  # it is somebody else's now

    async def resume(self) -> None:
        """All is well again: into other memory than what is watched."""
        other = host_memory(EXTENT * PIECE)
        began = time.monotonic()
        with trio.fail_after(self.fault.resume):
            for number, expected in enumerate(self.expected):
                while True:
                    try:
                        await self.device.read_into(number * other.nbytes, other)
                        break
                    except RdmaError:
                        await trio.sleep(0.1)
                self.seen.wrong += other != expected
        self.seen.resumed = max(self.seen.resumed, time.monotonic() - began)


async def rounds(portals: Sequence[Portal], nqn: str, fault: Fault, seed: str, count: int) -> dict[str, Any]:
    who = Identity(nqn, "nqn.2026-11.org.example:host", bytes(range(16)), KEEP_ALIVE)
    options = InitiatorOptions(SessionOptions(connect_timeout=DEADLINE), io_timeout=DEADLINE)
    arena = host_memory(AT_ONCE * EXTENT * PIECE)
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(open_verbs(portal)) for portal in portals]
        device = await stack.enter_async_context(open_initiator(ways, who, 1, options))
        whole = [way.register(arena) for way in ways]
        trial = Trial(device, arena, fault, Random(seed))
        for _ in range(count):
            await trial.round()
        trial.seen.sessions = device.sessions
        for one in whole:
            one.close()
    return {name: getattr(trial.seen, name) for name in Seen.__dataclass_fields__}


def main(address: str, ports: str, nqn: str, fault: str, seed: str, count: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d ms: %(message)s")
    said = trio.run(
        rounds,
        [Portal(address, int(port)) for port in ports.split(",")],
        nqn,
        FAULTS[fault],
        seed,
        int(count),
    )
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
