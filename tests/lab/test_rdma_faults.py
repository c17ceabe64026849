"""What breaks under transfers over RDMA: they end in time, nothing of them comes late, and all is well when it is mended.

A few rounds each; `--long` makes it fifty.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.lib.lab.guest import Guest
from tests.lab.fabric import PORTS, export
from tests.lab.inside import rdma_faults
from tests.lab.pools import SECONDS

NQN = "nqn.2026-11.org.example:faults"
SLACK = 2.0
"""Seconds by which a machine that is busy may be late."""
MIB = rdma_faults.AT_ONCE * rdma_faults.EXTENT


def prepared(target: Guest) -> None:
    """A target with known bytes."""
    target.rdma_up()
    if not target.run("test", "-d", f"/sys/kernel/config/nvmet/subsystems/{NQN}", check=False).code:
        return
    write = (
        "python3",
        "-m",
        "tests.lab.inside.direct_io",
        "write",
        "/dev/lab/d0",
        rdma_faults.SEED,
        str(MIB),
    )
    target.run(*write, seconds=SECONDS)
    export(target, NQN, "/dev/lab/d0", "rdma")


def broken(guest: Guest, fault: str, rounds: int, *, asleep: float = 0.0) -> dict[str, Any]:
    """Go through the rounds; what was seen.

    :param asleep: seconds for which the host itself does not run
    """
    program = ("python3", "-m", "tests.lab.inside.rdma_faults", guest.address, str(PORTS["rdma"]), NQN)
    said = guest.run(*program, fault, f"seed of {fault}", str(rounds), seconds=SECONDS * (1 + rounds // 10))
    seen: dict[str, Any] = json.loads(said.stdout)
    assert (seen["rounds"], seen["wrong"], seen["late"]) == (rounds, 0, 0), seen
    assert seen["slowest"] <= rdma_faults.DEADLINE + asleep + SLACK, seen
    return seen


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return 50 if request.config.getoption("--long") else 3


def test_the_target_is_killed(guest: Guest, rounds: int) -> None:
    prepared(guest)
    seen = broken(guest, "target", rounds)
    assert seen["sessions"] == rounds + 1, seen


def test_the_target_gives_up_a_host_that_is_silent_and_the_host_comes_back(guest: Guest) -> None:
    prepared(guest)
    seen = broken(guest, "stopped", 1, asleep=2 * rdma_faults.KEEP_ALIVE)
    assert seen["sessions"] == 2, seen
    assert "keep-alive timer (3 seconds) expired" in guest.sh("dmesg")
