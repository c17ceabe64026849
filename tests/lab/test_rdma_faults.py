"""What breaks under transfers over RDMA: they end in time, nothing of them comes late, and all is well when it is mended.

A few rounds each; `--long` makes it fifty, and `--log-cli-level info` tells what was seen.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from scripts.lib.lab.guest import Guest
from tests.lab.conftest import Pair
from tests.lab.fabric import PORTS, export
from tests.lab.inside import rdma_faults
from tests.lab.pools import SECONDS

log = logging.getLogger(__name__)

NQN = "nqn.2026-11.org.example:faults"
SLACK = 2.0
"""Seconds by which a machine that is busy may be late."""
MIB = rdma_faults.AT_ONCE * rdma_faults.EXTENT
PORT, OTHER_PORT = str(PORTS["rdma"]), "4422"
NVMET = "/sys/kernel/config/nvmet"
SUBSYSTEM = f"{NVMET}/subsystems/{NQN}"
OFFERED, OFFERED_TOO = (f"{NVMET}/ports/{port}/subsystems/{NQN}" for port in (PORT, OTHER_PORT))
EXPIRED = f"keep-alive timer ({rdma_faults.KEEP_ALIVE:.0f} seconds) expired"
"""What a target says that gives up a host."""


class Outside(NamedTuple):
    """What is done to machines, round by round."""

    breaks: Callable[[], object]
    mends: Callable[[], object]


NOTHING = Outside(lambda: None, lambda: None)


@pytest.fixture
def far(pair: Pair) -> Pair:
    """The storage node is a target with known bytes; the GPU node can reach it over RDMA."""
    pair.gpu.rdma_up()
    if pair.storage.run("test", "-d", OFFERED, check=False).code:
        fill = ("write", "/dev/lab/d0", rdma_faults.SEED, str(MIB))
        pair.storage.run("python3", "-m", "tests.lab.inside.direct_io", *fill, seconds=SECONDS)
        offer(pair.storage)
    return pair


def offer(target: Guest) -> None:
    target.rdma_up()
    export(target, NQN, "/dev/lab/d0", "rdma")


def broken(
    far: Pair, fault: str, rounds: int, outside: Outside, *, asleep: float = 0.0, ports: str = PORT
) -> tuple[dict[str, Any], str]:
    """Go through the rounds; what was seen, and what was logged.

    :param asleep: seconds for which the host itself does not run
    """
    program = ("python3", "-m", "tests.lab.inside.rdma_faults", far.storage.address, ports, NQN)
    command = far.gpu.popen(*program, fault, f"seed of {fault}", str(rounds))
    for number in range(rounds):
        command.wait_for(f"break {number}\n")
        outside.breaks()
        command.wait_for(f"mend {number}\n")
        outside.mends()
    said = command.wait(SECONDS).check()
    seen: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    log.info("%s: %s", fault, seen)
    assert (seen["rounds"], seen["wrong"], seen["late"]) == (rounds, 0, 0), seen
    assert seen["interrupted"] or rdma_faults.FAULTS[fault].idle, seen
    assert seen["slowest"] <= rdma_faults.DEADLINE + asleep + SLACK, seen
    return seen, said.stderr


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return 50 if request.config.getoption("--long") else 2


def test_the_target_is_killed(far: Pair, rounds: int) -> None:
    """What was offered is not any more: the target ends all connections at once."""
    outside = Outside(
        lambda: far.storage.run("rm", OFFERED), lambda: far.storage.run("ln", "-s", SUBSYSTEM, OFFERED)
    )
    seen, _ = broken(far, "target", rounds, outside)
    assert seen["sessions"] == rounds + 1, seen


def test_the_link_is_down(far: Pair, rounds: int) -> None:
    """Packets are lost both ways and nobody is told. If it does not last, the connection may survive."""
    outside = Outside(far.gpu.unplug, far.gpu.plug)
    seen, _ = broken(far, "link", rounds, outside)
    assert 1 < seen["sessions"] <= rounds + 1, seen
    assert seen["failed"], seen


def test_both_ends_notice_that_the_other_is_silent(far: Pair) -> None:
    """Nothing is under way, so that only the keep-alive can tell."""
    seen, log = broken(far, "silence", 1, Outside(far.gpu.unplug, far.gpu.plug))
    assert seen["sessions"] == 2, seen
    assert f"gave no sign of life for {rdma_faults.KEEP_ALIVE}" in log
    assert EXPIRED in far.storage.sh("dmesg -c")


@pytest.mark.slow
def test_the_target_gives_up_a_host_that_is_silent_and_the_host_comes_back(far: Pair) -> None:
    far.storage.sh("dmesg -C")
    seen, _ = broken(far, "stopped", 1, NOTHING, asleep=2 * rdma_faults.KEEP_ALIVE)
    assert seen["sessions"] == 2, seen
    assert EXPIRED in far.storage.sh("dmesg")


@pytest.mark.slow
def test_one_way_of_two_is_gone(far: Pair) -> None:
    """All is well over the other one before it is mended; and back again."""
    far.storage.sh(
        f"cd {NVMET}/ports; mkdir {OTHER_PORT}; cd {OTHER_PORT}; echo ipv4 > addr_adrfam; echo rdma > addr_trtype;"
        f"echo {far.storage.address} > addr_traddr; echo {OTHER_PORT} > addr_trsvcid; ln -s {SUBSYSTEM} subsystems/"
    )
    turns = iter((f"rm {OFFERED}", f"ln -s {SUBSYSTEM} {OFFERED}; rm {OFFERED_TOO}"))
    outside = Outside(lambda: far.storage.sh(next(turns)), lambda: None)
    seen, _ = broken(far, "way", 2, outside, ports=f"{PORT},{OTHER_PORT}")
    assert seen["sessions"] == 3, seen
    far.storage.sh(f"rmdir {NVMET}/ports/{OTHER_PORT}")


@pytest.mark.slow
def test_the_node_is_killed(far: Pair) -> None:
    """The whole machine, and it is booted again."""

    def boot() -> None:
        far.storage.start()
        offer(far.storage)

    rounds = 5
    seen, _ = broken(far, "node", rounds, Outside(far.storage.kill, boot))
    assert seen["sessions"] == rounds + 1, seen
