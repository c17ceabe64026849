"""Guests for the tests in this directory: booted once for all tests of a module, and again if a test killed them.

See docs/lab.md for what a guest can do.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.lib.lab.guest import Guest
from scripts.lib.lab.lab import Lab
from tests.lab import pools
from tests.lab.sizes import MIB, STATE

HERE = Path(__file__).parent
TEST_SECONDS = 900
"""Boots included, on a machine that is busy with other work."""
CONSOLE_LINES = 60
DRIVE = 512 * MIB
GPU_MEMORY = 2560
"""MiB; a mount takes 1 GiB unless it is told otherwise."""


class Pair(NamedTuple):
    """A storage node with two NVMe drives, /dev/lab/d0 and d1, and a GPU node; each with a disk, /dev/lab/state."""

    storage: Guest
    gpu: Guest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The end of each guest's console, when a test fails."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and lab:
        for guest in lab.guests:
            with suppress(OSError):  # the lab has been put away, and what its guests said with it
                lines = guest.console.splitlines()[-CONSOLE_LINES:]
                report.sections.append((f"console of {guest.name}", "\n".join(lines)))
    return report


@pytest.fixture(autouse=True)
def _patience() -> None:
    """No tracebacks while a test only waits for its guests: the test's own deadlines tell what hangs."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab without guests, for the tests of one module. Ask for `guest` or `pair`, or make others with it."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def _guest(lab: Lab) -> Guest:
    return lab.guest("solo", disks={"state": STATE}, drives={"d0": DRIVE})


@pytest.fixture
def guest(lab: Lab, _guest: Guest) -> Guest:
    """A running guest with a disk, /dev/lab/state, and an NVMe drive, /dev/lab/d0."""
    ready(lab, _guest)
    return _guest


@pytest.fixture(scope="module")
def _pair(lab: Lab) -> Pair:
    storage = lab.guest("storage", disks={"state": STATE}, drives={"d0": DRIVE, "d1": DRIVE})
    return Pair(storage, lab.guest("gpu", disks={"state": STATE}))


@pytest.fixture
def pair(lab: Lab, _pair: Pair) -> Pair:
    """Two running guests on one network, which know each other as `storage` and `gpu`."""
    ready(lab, *_pair)
    return _pair


@pytest.fixture(scope="module")
def _nodes(lab: Lab) -> pools.Nodes:
    storage = lab.guest("storage", drives={f"d{number}": pools.DRIVE for number in range(5)})
    gpu = lab.guest("gpu", memory=GPU_MEMORY, disks={"state": STATE}, drives={"near": pools.DRIVE})
    return pools.Nodes(storage, gpu)


@pytest.fixture
def nodes(lab: Lab, _nodes: pools.Nodes) -> Iterator[pools.Nodes]:
    """Two running guests, for pools over fabrics; nothing is exported yet, if they were just booted."""
    ready(lab, *_nodes)
    pools.prepare_gpu(_nodes.gpu)
    yield _nodes
    if _nodes.gpu.running:
        _nodes.gpu.sh(f"umount -l {pools.MOUNT} 2> /dev/null || true; nvme disconnect-all")


def ready(lab: Lab, *guests: Guest) -> None:
    """Guests run, and their cables are plugged in, whatever the test before did."""
    lab.boot(*(guest for guest in guests if not guest.running))
    for guest in guests:
        guest.plug()
