"""Transfers under which the way to the target breaks, over and over: in seeded rounds, over one initiator.

    rdma_faults ADDRESS PORT NQN FAULT SEED ROUNDS      FAULT is one of `FAULTS`

In each round extents are read, at some moment something breaks, and later it is mended. Whatever a transfer ended with, its
memory is filled with other bytes at once, as somebody else's would be; they must still be there when the round ends. Then
the same extents must be read right over a connection that was made anew. Prints what was seen as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
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
RESUME = 40.0
"""Seconds in which all must be well again, on a machine that is busy."""
SEED = "under faults"
"""Of what is on the device, in the words of `direct_io`."""
_PORTS = Path("/sys/kernel/config/nvmet/ports")


@dataclass(frozen=True, slots=True)
class Fault:
    """:ivar seconds: from which to which it lasts"""

    breaks: Callable[[str], object]
    mends: Callable[[str], object]
    seconds: tuple[float, float]


def run(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


def offered(nqn: str) -> Path:
    return next(_PORTS.iterdir()) / "subsystems" / nqn


def stop(_: str) -> None:
    """This process, for longer than the target waits for a sign of life; it is not there to mend it."""
    script = f"kill -STOP {os.getpid()}; sleep {2 * KEEP_ALIVE}; kill -CONT {os.getpid()}"
    run(f"({script}) > /dev/null 2>&1 &")


FAULTS = {
    "target": Fault(
        lambda nqn: offered(nqn).unlink(),
        lambda nqn: offered(nqn).symlink_to(_PORTS.parent / "subsystems" / nqn),
        (0.0, DEADLINE + 1),
    ),
    "stopped": Fault(stop, lambda _: None, (0.0, 0.0)),
}


@dataclass(slots=True)
class Seen:
    """:ivar slowest: seconds that a transfer took
    :ivar late: transfers of which a byte came after they had ended
    :ivar resumed: the most seconds until all was well, after it was mended
    """

    rounds: int = 0
    right: int = 0
    failed: int = 0
    wrong: int = 0
    late: int = 0
    slowest: float = 0.0
    resumed: float = 0.0
    sessions: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class Trial:
    def __init__(self, device: Initiator, arena: memoryview, nqn: str, fault: Fault, rng: Random) -> None:
        self.device = device
        self.frames = [arena[at : at + EXTENT * PIECE] for at in range(0, arena.nbytes, EXTENT * PIECE)]
        self.expected = [
            b"".join(content(SEED, EXTENT * number + part) for part in range(EXTENT))
            for number in range(len(self.frames))
        ]
        self.nqn, self.fault, self.rng = nqn, fault, rng
        self.seen = Seen()

    async def round(self) -> None:
        poison = self.rng.randbytes(PIECE) * EXTENT
        async with trio.open_nursery() as nursery:
            for number in range(len(self.frames)):
                nursery.start_soon(self.transfer, number, poison)
            await trio.sleep(self.rng.uniform(0, 0.4))
            log.info("broken")
            self.fault.breaks(self.nqn)
            await trio.sleep(self.rng.uniform(*self.fault.seconds))
            self.fault.mends(self.nqn)
            log.info("mended")
        await self.resume()
        self.seen.late += sum(frame != poison for frame in self.frames)
        self.seen.rounds += 1

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
        with trio.fail_after(RESUME):
            for number, expected in enumerate(self.expected):
                while True:
                    try:
                        await self.device.read_into(number * other.nbytes, other)
                        break
                    except RdmaError:
                        await trio.sleep(0.1)
                self.seen.wrong += other != expected
        self.seen.resumed = max(self.seen.resumed, time.monotonic() - began)


async def rounds(portal: Portal, nqn: str, fault: Fault, seed: str, count: int) -> dict[str, Any]:
    who = Identity(nqn, "nqn.2026-11.org.example:host", bytes(range(16)), KEEP_ALIVE)
    options = InitiatorOptions(SessionOptions(connect_timeout=10.0), io_timeout=DEADLINE)
    arena = host_memory(AT_ONCE * EXTENT * PIECE)
    async with open_verbs(portal) as fabric, open_initiator(fabric, who, 1, options) as device:
        whole = fabric.register(arena)
        trial = Trial(device, arena, nqn, fault, Random(seed))
        for _ in range(count):
            await trial.round()
        trial.seen.sessions = device.sessions
        whole.close()
    return {name: getattr(trial.seen, name) for name in Seen.__dataclass_fields__}


def main(address: str, port: str, nqn: str, fault: str, seed: str, count: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d ms: %(message)s")
    said = trio.run(rounds, Portal(address, int(port)), nqn, FAULTS[fault], seed, int(count))
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
