"""Extents of a namespace into and out of registered memory, by the initiator of kvfs, without the kernel's.

    rdma_path ADDRESS PORT NQN read SEED MIB [QUEUES]      compare with what `direct_io` writes for SEED
    rdma_path ADDRESS PORT NQN write SEED MIB [QUEUES]

Moves everything in extents of 2 MiB, then of 16 MiB, four at once. Prints what it found as JSON: how fast, and what was
left of descriptors, queue pairs and memory. Exit code 1 if any byte is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from rdma.bring_up import Identity
from rdma.host_memory import host_memory
from rdma.initiator import Initiator, InitiatorOptions, open_initiator
from rdma.session import SessionOptions
from rdma.verbs import VerbsFabric, open_verbs
from rdma.verbs.way import Portal
from tests.lab.inside.direct_io import PIECE, content

HOST = Identity("", "nqn.2026-11.org.example:host", bytes(range(16)), keep_alive=60.0)
PATIENT = InitiatorOptions(SessionOptions(connect_timeout=60.0), io_timeout=60.0)
"""Emulation is slow, and the machine may be busy."""
AT_ONCE = 4


def identity(nqn: str) -> Identity:
    return Identity(nqn, HOST.host, HOST.host_id, HOST.keep_alive)


def held() -> dict[str, int]:
    """What this process has of the system: descriptors, and objects of the RDMA device by kind."""
    found = Counter({"fd": len(list(Path("/proc/self/fd").iterdir()))})
    for kind in ("qp", "cq", "mr", "pd", "cm_id"):
        listed = subprocess.run(["rdma", "-j", "resource", "show", kind], check=True, capture_output=True)
        entries: list[dict[str, Any]] = json.loads(listed.stdout or b"[]")
        found[kind] = sum(one.get("pid") == os.getpid() for one in entries)
    return dict(found)


async def move(device: Initiator, memory: memoryview, verb: str, extent: int) -> float:
    """All of the memory, `AT_ONCE` extents at a time; seconds."""
    free = trio.CapacityLimiter(AT_ONCE)

    async def one(offset: int) -> None:
        part = memory[offset : offset + extent]
        async with free:
            await (device.write_from if verb == "write" else device.read_into)(offset, part)

    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        for offset in range(0, memory.nbytes, extent):
            nursery.start_soon(one, offset)
    return time.monotonic() - began


async def opened(
    stack: AsyncExitStack, portal: Portal, nqn: str, queues: int
) -> tuple[VerbsFabric, Initiator]:
    fabric = await stack.enter_async_context(open_verbs(portal))
    options = InitiatorOptions(SessionOptions(queues, connect_timeout=60.0), io_timeout=60.0)
    return fabric, await stack.enter_async_context(open_initiator([fabric], identity(nqn), 1, options))


async def run(portal: Portal, nqn: str, verb: str, seed: str, mebibytes: int, queues: int) -> dict[str, Any]:
    memory = host_memory(mebibytes * PIECE)
    pieces = [memory[at : at + PIECE] for at in range(0, memory.nbytes, PIECE)]
    said: dict[str, Any] = {"wrong": []}
    async with AsyncExitStack() as stack:
        await opened(stack, portal, nqn, 1)  # what libraries keep for good is there after this
    before = held()
    async with AsyncExitStack() as stack:
        fabric, device = await opened(stack, portal, nqn, queues)
        whole = fabric.register(memory)
        for mib in (2, 16):
            for number, piece in enumerate(pieces):
                piece[:] = content(seed, number) if verb == "write" else bytes(PIECE)
            said[f"{mib} MiB"] = mebibytes / await move(device, memory, verb, mib * PIECE)
            said["wrong"] += [n for n, piece in enumerate(pieces) if piece != content(seed, n)]
        said["regions"], said["held"] = fabric.regions, held()
        await device.flush()
        whole.close()
    said["left"] = {kind: count - before[kind] for kind, count in held().items()}
    return said


def main(address: str, port: str, nqn: str, verb: str, seed: str, mebibytes: str, queues: str = "4") -> int:
    said = trio.run(run, Portal(address, int(port)), nqn, verb, seed, int(mebibytes), int(queues))
    print(json.dumps(said))
    return int(bool(said["wrong"]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
