"""Memory is lent to one holder at a time, and to nobody while a transfer that was given up may still touch it."""

from __future__ import annotations

import ctypes
import errno
import resource
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from blockdev.testing.faults import LatePending
from rdma.buffers import Arena, HostMemory, Kind, Lease, Memory, allocate
from rdma.errors import CudaError, LeaseEnded, LockRefused, NoBuffers
from rdma.host_memory import PAGE, host_memory
from rdma.testing import FakeCuda

FRAME = 4 * PAGE
FRAMES = 8


def arena(kind: Kind = Kind.HOST, driver: FakeCuda | None = None) -> Arena:
    return Arena(allocate(FRAMES * FRAME, kind, driver=driver), FRAMES * FRAME, FRAME)


def addresses(lease: Lease) -> range:
    return range(lease.address, lease.address + lease.size)


def test_a_lease_is_memory_of_its_own_on_a_page() -> None:
    lent = arena()
    with lent.lease(FRAME) as first, lent.lease(2 * FRAME - 5) as second:
        assert (first.view.nbytes, second.view.nbytes) == (FRAME, 2 * FRAME - 5)
        assert first.address % PAGE == second.address % PAGE == 0
        assert addresses(first).stop <= addresses(second).start
        first.view[:] = b"1" * FRAME
        second.view[:] = b"2" * second.size
        assert first.view == b"1" * FRAME
        assert lent.statistics().leased == 3
    assert lent.statistics().free == FRAMES


def test_what_was_given_up_is_lent_again_and_cannot_be_used() -> None:
    lent = arena()
    lease = lent.lease(FRAMES * FRAME)
    lease.close()
    lease.close()
    for use in (lambda: lease.view, lambda: lease.hold_until(LatePending())):
        with pytest.raises(LeaseEnded, match="somebody else's"):
            use()
    lent.lease(FRAMES * FRAME)


def test_a_lease_that_is_not_to_be_had_says_why() -> None:
    lent = arena()
    leases = [lent.lease(FRAME) for _ in range(FRAMES)]
    leases[1].close()
    leases[3].close()
    with pytest.raises(NoBuffers, match=f"has {2 * FRAME} bytes left, in pieces"):
        lent.lease(2 * FRAME)
    leases[2].close()
    lent.lease(2 * FRAME)
    assert lent.statistics().refused == 1
    for size in (0, -1, FRAMES * FRAME + 1):
        with pytest.raises(ValueError, match="not to be had"):
            lent.lease(size)


@pytest.mark.parametrize("size, frame", [(FRAME, 0), (FRAME, 100), (FRAME - 1, FRAME)])
def test_an_arena_has_whole_frames(size: int, frame: int) -> None:
    with pytest.raises(ValueError, match="frame"):
        Arena(HostMemory(FRAME), size, frame)


def test_late_bytes_do_not_land_in_memory_that_was_handed_on() -> None:
    lent = arena()
    late = LatePending()
    with lent.lease(FRAME) as lease:
        target = lease.view
        lease.hold_until(late)
    assert lent.statistics().zombies == 1
    others = [lent.lease(FRAME) for _ in range(FRAMES - 1)]
    for other in others:
        other.view[:] = b"\xa5" * FRAME
    with pytest.raises(NoBuffers):
        lent.lease(FRAME)
    target[:] = b"late" * (FRAME // 4)  # the transfer lands, long after its holder has gone
    assert all(other.view == b"\xa5" * FRAME for other in others)
    late.finish()
    assert lent.statistics().zombies == 0
    assert lent.lease(FRAME).address == lease.address


def test_a_lease_waits_for_all_transfers_that_touch_it() -> None:
    lent = arena()
    transfers = [LatePending() for _ in range(3)]
    with lent.lease(FRAME) as lease:
        for transfer in transfers:
            lease.hold_until(transfer)
        transfers[0].finish()  # while it is still held
        assert lent.statistics().zombies == 0
    transfers[1].finish()
    assert lent.statistics().zombies == 1
    transfers[2].finish()
    assert lent.statistics() == arena().statistics()


def test_a_transfer_that_has_ended_holds_nothing() -> None:
    lent = arena()
    ended = LatePending()
    ended.finish()
    with lent.lease(FRAME) as lease:
        lease.hold_until(ended)
    assert lent.statistics().free == FRAMES


class Lending(RuleBasedStateMachine):
    """Leases against a model: which addresses may still be touched, by a holder or by a late transfer."""

    leases: Bundle[Lease] = Bundle("leases")
    late: Bundle[tuple[Lease, LatePending]] = Bundle("late")

    def __init__(self) -> None:
        super().__init__()
        self.arena = arena()
        self.held: list[Lease] = []
        self.touching: list[tuple[Lease, LatePending]] = []

    def touched(self) -> list[Lease]:
        return list({id(one): one for one in [*self.held, *(lease for lease, _ in self.touching)]}.values())

    @rule(target=leases, size=st.integers(1, 3 * FRAME))
    def lend(self, size: int):
        before = self.touched()
        try:
            lease = self.arena.lease(size)
        except NoBuffers:
            frames = sorted(
                frame
                for one in before
                for frame in range((one.address - self.arena.address) // FRAME, FRAMES)
                if frame * FRAME < one.address - self.arena.address + one.size
            )
            runs = "".join("x" if frame in frames else "." for frame in range(FRAMES))
            assert "." * -(-size // FRAME) not in runs, "there was room"
            return None
        assert all(not set(addresses(lease)[::PAGE]) & set(addresses(one)[::PAGE]) for one in before)
        self.held.append(lease)
        return lease

    @rule(lease=consumes(leases))
    def give_up(self, lease: Lease | None) -> None:
        if lease is not None:
            lease.close()
            self.held.remove(lease)

    @rule(target=late, lease=leases)
    def abandon_transfer(self, lease: Lease | None):
        if lease is None:
            return None
        transfer = LatePending()
        lease.hold_until(transfer)
        self.touching.append((lease, transfer))
        return lease, transfer

    @rule(one=consumes(late))
    def end_transfer(self, one: tuple[Lease, LatePending] | None) -> None:
        if one is not None:
            self.touching.remove(one)
            one[1].finish()

    @invariant()
    def every_frame_is_somewhere(self) -> None:
        now = self.arena.statistics()
        assert now.free + now.leased + now.zombies == now.frames
        assert now.leased == sum(-(-one.size // FRAME) for one in self.held)


TestLending = Lending.TestCase

# ── kinds ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pinned_memory_is_pinned_until_nobody_touches_it() -> None:
    driver = FakeCuda()
    lent = arena(Kind.PINNED, driver)
    assert driver.pinned == {lent.address: FRAMES * FRAME}
    late = LatePending()
    with lent.lease(FRAME) as lease:
        lease.view[:4] = b"host"
        lease.hold_until(late)
    assert not lent.close()
    with pytest.raises(NoBuffers, match="is closed"):
        lent.lease(FRAME)
    assert driver.pinned
    late.finish()
    assert not driver.pinned


def test_memory_of_the_gpu_has_an_address_and_no_bytes() -> None:
    driver = FakeCuda()
    lent = arena(Kind.DEVICE, driver)
    with lent.lease(FRAME) as first, lent.lease(FRAME) as second:
        assert second.address - first.address == FRAME
        with pytest.raises(TypeError, match="cannot reach"):
            first.view  # noqa: B018 - the property raises
        driver.copy_in(second.address, memoryview(bytearray(b"kv" * 8)))
        into = memoryview(bytearray(16))
        driver.copy_out(into, second.address)
        assert into == b"kv" * 8
    assert lent.close()
    assert not driver.memory


def test_a_gpu_that_has_not_so_much_memory() -> None:
    with pytest.raises(CudaError, match="out of memory") as info:
        allocate(FRAMES * FRAME, Kind.DEVICE, driver=FakeCuda(size=FRAME))
    assert info.value.code == 2


def test_memory_is_given_back_once() -> None:
    driver = FakeCuda()
    kinds: list[Memory] = [allocate(FRAME, kind, driver=driver) for kind in Kind]
    for memory in kinds:
        memory.close()
        memory.close()
    assert (driver.pinned, driver.memory) == ({}, {})


@pytest.mark.parametrize("huge_pages", [False, True])
def test_host_memory_is_zeros_on_a_page(huge_pages: bool) -> None:
    view = host_memory(3 * PAGE, huge_pages=huge_pages)
    assert view == bytes(3 * PAGE)


def test_locked_memory_stays_in_memory() -> None:
    size = 4 * PAGE
    before = locked()
    memory = HostMemory(size, huge_pages=False, lock=True)
    assert locked() == before + size
    memory.close()
    assert locked() == before
    assert memory.view == bytes(size), "it is there as long as somebody holds a view"


def locked() -> int:
    """Bytes that this process has locked."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmLck:"))


def test_locking_more_than_is_allowed_says_the_limit_and_how_to_raise_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(address: int, size: int) -> int:  # root is not refused, whatever the limit
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr("rdma.host_memory._libc.mlock", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 << 10, 64 << 10))
    with pytest.raises(LockRefused, match=r"lock 16384 KiB .*is 64 KiB.*'ulimit -l 16384'.*LimitMEMLOCK"):
        host_memory(16 << 20, lock=True)
