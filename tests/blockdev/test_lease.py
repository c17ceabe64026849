"""Locks between processes of one host, and the identity of the folder they are in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from blockdev.errors import LeaseLost, PoolBusy, WrongDomain
from blockdev.lease import SEATS, Holder, Leases, local_domain
from blockdev.types import DeviceNo, RegionId, RegionNo

POOL = UUID("12345678-1234-5678-1234-567812345678")
CHILD = """
import sys, uuid
from pathlib import Path
from blockdev.lease import Leases
leases = Leases.open(Path(sys.argv[1]), uuid.UUID(sys.argv[2]))
leases.acquire_alone("mounted on /mnt/kv")
print("held", flush=True)
sys.stdin.read()
"""
FORKING_CHILD = """
import os, sys, uuid
from pathlib import Path
from blockdev.lease import Leases
leases = Leases.open(Path(sys.argv[1]), uuid.UUID(sys.argv[2]))
leases.acquire_alone("mounted on /mnt/kv")
if child := os.fork():
    os.waitpid(child, 0)
print("held" if leases._fd == -1 else "the child kept it", flush=True)
sys.stdin.read()
"""


def start_holder(folder: Path, program: str = CHILD) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(POOL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_one_writer(tmp_path: Path) -> None:
    with Leases.open(tmp_path, POOL) as first, Leases.open(tmp_path, POOL) as second:
        assert first.holders() == []
        first.acquire_alone("a test")
        assert first.holders() == second.holders() == [Holder(os.getpid(), "a test")]
        with pytest.raises(
            PoolBusy, match=rf"{POOL} is open for writing by process {os.getpid()} \(a test\)"
        ):
            second.acquire_alone("another")
        first.close()
        assert second.holders() == []
        second.acquire_alone("another")
        assert second.holders() == [Holder(os.getpid(), "another")]


def test_pools_do_not_meet(tmp_path: Path) -> None:
    with Leases.open(tmp_path, POOL) as first, Leases.open(tmp_path, UUID(int=1)) as second:
        first.acquire_alone("a test")
        second.acquire_alone("a test")


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    try:
        with Leases.open(tmp_path, POOL) as leases:
            with pytest.raises(PoolBusy, match=rf"by process {process.pid} \(mounted on /mnt/kv\)"):
                leases.acquire_alone("a test")
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert leases.holders() == []
            leases.acquire_alone("a test")
    finally:
        end(process)


def test_another_open_of_the_file_releases_nothing(tmp_path: Path) -> None:
    with Leases.open(tmp_path, POOL) as first, Leases.open(tmp_path, POOL) as second:
        first.acquire_alone("a test")
        Leases.open(tmp_path, POOL).close()
        with pytest.raises(PoolBusy):
            second.acquire_alone("another")


def test_regions(tmp_path: Path) -> None:
    regions = [RegionId(DeviceNo(d), RegionNo(r)) for d in (0, 1, 127) for r in (0, 1, 99_999)]
    with Leases.open(tmp_path, POOL) as first, Leases.open(tmp_path, POOL) as second:
        second.acquire_alone("regions are locks of their own")
        for region in regions:
            assert first.acquire_region(region)
            assert first.acquire_region(region)
        assert not any(second.acquire_region(region) for region in regions)
        first.release_region(regions[4])
        assert [second.acquire_region(region) for region in regions].index(True) == 4
        first.close()
        assert all(second.acquire_region(region) for region in regions)


def test_what_the_holder_says_is_not_trusted(tmp_path: Path) -> None:
    with Leases.open(tmp_path, POOL) as first, Leases.open(tmp_path, POOL) as second:
        first.acquire_alone("x" * 2000)
        assert second.holders() == [Holder(os.getpid(), "")]
        for damage in (
            b"\xff" * 1024,
            b"[]".ljust(1024),
            b'{"pid": "x", "purpose": 1}'.ljust(1024),
            b"1".ljust(1024),
        ):
            with (tmp_path / f"{POOL}.lock").open("r+b") as file:
                file.write(damage)
            assert second.holders() == []
            with pytest.raises(PoolBusy, match="open for writing elsewhere"):
                second.acquire_alone("another")


def test_a_replaced_lock_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / f"{POOL}.lock"
    leases = Leases.open(tmp_path, POOL)
    leases.acquire_alone("a test")
    leases.verify()
    path.unlink()
    with pytest.raises(LeaseLost, match="removed or replaced"):
        leases.verify()
    with Leases.open(tmp_path, POOL) as other:
        other.acquire_alone("another")
        with pytest.raises(LeaseLost):
            leases.verify()
    leases.close()
    stale = Leases.open(tmp_path, POOL)
    path.unlink()
    with pytest.raises(LeaseLost):
        stale.acquire_alone("a test")
    stale.close()


def test_close_is_repeatable(tmp_path: Path) -> None:
    leases = Leases.open(tmp_path, POOL)
    leases.acquire_alone("a test")
    leases.close()
    leases.close()


def test_a_forked_child_keeps_nothing(tmp_path: Path) -> None:
    """The child outlives its killed parent, but not the parent's locks."""
    process = start_holder(tmp_path, FORKING_CHILD)
    try:
        with Leases.open(tmp_path, POOL) as leases:
            with pytest.raises(PoolBusy):
                leases.acquire_alone("while the parent has it")
            process.send_signal(signal.SIGKILL)
            process.wait()
            leases.acquire_alone("while the child lives")
    finally:
        end(process)  # closes the child's standard input, which ends it


def test_a_child_that_never_ran_keeps_nothing(tmp_path: Path) -> None:
    """A copy of the open file in some child is no matter when the holder closes in good order."""
    first = Leases.open(tmp_path, POOL)
    first.acquire_alone("a test")
    copy = os.dup(first._fd)
    first.close()
    with Leases.open(tmp_path, POOL) as second:
        second.acquire_alone("another")
    os.close(copy)


def test_domain_is_given_once(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "kvfs"
    with ThreadPoolExecutor(8) as pool:
        domains = set(pool.map(lambda _: local_domain(folder), range(32)))
    (domain,) = domains
    assert domain.startswith("local:")
    assert UUID(domain.removeprefix("local:")).version == 4
    assert [path.name for path in folder.iterdir()] == ["domain"]
    assert local_domain(folder) == domain
    assert local_domain(tmp_path / "other") != domain


@pytest.mark.parametrize("text", ["", "local:", "etcd:1", "local:not-a-uuid", f"local:{POOL.hex}", str(POOL)])
def test_a_damaged_domain_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "domain").write_text(text)
    with pytest.raises(WrongDomain, match="does not hold a domain"):
        local_domain(tmp_path)


def test_who_is_there_is_known(tmp_path: Path) -> None:
    members = [Leases.open(tmp_path, POOL) for _ in range(5)]
    try:
        assert [member.join(f"member {number}") for number, member in enumerate(members)] == [0, 1, 2, 3, 4]
        members[1].close()
        assert members[2].take_seat(9)
        assert members[2].others() == [0, 3, 4]
        assert members[0].others() == [2, 3, 4, 9]
        assert not members[0].alone
        assert [holder.purpose for holder in members[4].holders()] == [
            "member 0",
            "member 2",
            "member 3",
            "member 4",
        ]
        with pytest.raises(PoolBusy, match=r"by process \d+ \(member 0\), by process"):
            Leases.open(tmp_path, POOL).acquire_alone("another")
    finally:
        for member in members:
            member.close()


def test_the_last_seat_is_the_last(tmp_path: Path) -> None:
    members = [Leases.open(tmp_path, POOL) for _ in range(SEATS)]
    with Leases.open(tmp_path, POOL) as late:
        for member in members:
            member.join("a test")
        assert late.others() == list(range(SEATS))
        with pytest.raises(PoolBusy, match="64 members"):
            late.join("one too many")
    for member in members:
        member.close()


def test_members_wait_for_who_must_be_alone(tmp_path: Path) -> None:
    with Leases.open(tmp_path, POOL) as alone, Leases.open(tmp_path, POOL) as member:
        alone.acquire_alone("adding a device")
        with pytest.raises(PoolBusy, match="adding a device"):
            member.join("mounted")
