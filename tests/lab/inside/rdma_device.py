"""A namespace over RDMA as a device of kvfs.

    rdma_device conforms URI        it keeps the contract of `blockdev.device.Device`; what is on it is lost
    rdma_device had URI             it can be had, and read
    rdma_device refused URI         it cannot be had; prints why

Exit code 1 if it does not, or can; and if anything of descriptors, queue pairs or registered memory is left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine

import trio

from blockdev.device import Device
from blockdev.errors import FabricsError
from blockdev.memory import page_buffer
from blockdev.nvme import NamespaceName, Timers, parse_namespace
from blockdev.testing import check_device
from blockdev.types import PAGE
from kvfs.rdma_device import rdma_devices
from kvfs.targets import Settings
from tests.lab.inside.rdma_path import held

SETTINGS = Settings(Timers(keep_alive=60), io_timeout=60.0)
"""Emulation is slow."""


async def conforms(name: NamespaceName) -> bool:
    async with rdma_devices(SETTINGS) as devices:

        async def make(io_timeout: float) -> Device:
            return await devices.open(name)

        await check_device(make)
    return True


async def had(name: NamespaceName) -> bool:
    async with rdma_devices(SETTINGS) as devices:
        device = await devices.open(name)
        await device.read_into(0, page_buffer(PAGE))
    return True


async def refused(name: NamespaceName) -> bool:
    try:
        async with rdma_devices(SETTINGS) as devices:
            await devices.open(name)
    except FabricsError as error:
        print(error)
        return True
    return False


VERBS: dict[str, Callable[[NamespaceName], Coroutine[None, None, bool]]] = {
    "conforms": conforms,
    "had": had,
    "refused": refused,
}


def main(verb: str, uri: str) -> int:
    name = parse_namespace(uri)
    trio.run(refused, name)  # what libraries keep for good is there after this
    before = held()
    if not trio.run(VERBS[verb], name):
        return 1
    left = {kind: count - before[kind] for kind, count in held().items()}
    if any(left.values()):
        print(f"left: {left}", file=sys.stderr)
    return int(any(left.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
