from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, cast

import pytest
import trio
from trio.testing import MockClock

from blockdev.errors import BlockError, ChecksumError, DeviceError, PoolClosed, Raced, Unavailable
from blockdev.pool import Pool
from blockdev.scrub import WORKERS, Damage, ScrubReport, scrub
from blockdev.types import (
    ROOT,
    Descriptor,
    DeviceNo,
    DirectoryId,
    Epoch,
    Generation,
    Kind,
    ObjectId,
    RegionNo,
    SlotAddress,
    SlotNo,
    Stamp,
)

DIRECTORY = DirectoryId(b"d" * 16)


class Totals(NamedTuple):
    used: int


class FakePool:
    """What `scrub` needs of a pool, with an outcome for each file."""

    def __init__(self) -> None:
        self.records: list[Descriptor] = []
        self.outcomes: dict[bytes, BlockError] = {}
        self.out_of_reach: set[bytes] = set()
        self.catalog = self
        self.running = self.most = 0
        self.after: Callable[[Descriptor], None] = lambda _record: None

    def add(
        self, name: bytes, size: int, outcome: BlockError | None = None, kind: Kind = Kind.HEAD
    ) -> Descriptor:
        number = len(self.records)
        record = Descriptor(
            kind,
            SlotAddress(DeviceNo(0), RegionNo(0), SlotNo(number)),
            Epoch(1),
            Generation(1),
            2,
            Stamp(number),
            ObjectId(number.to_bytes(16)) if kind is Kind.HEAD else ObjectId(DIRECTORY),
            DIRECTORY if kind is Kind.HEAD else ROOT,
            name,
            size=size,
            stored_size=size,
        )
        self.records.append(record)
        if outcome is not None:
            self.outcomes[name] = outcome
        return record

    def scan(self) -> Iterator[Descriptor]:
        yield from list(self.records)

    def by_id(self, object_id: ObjectId) -> Descriptor | None:
        return next((record for record in self.records if record.object_id == object_id), None)

    def current(self, record: Descriptor) -> Descriptor | None:
        return self.by_id(record.object_id)

    def reachable(self, record: Descriptor) -> bool:
        return record.name not in self.out_of_reach

    def totals(self) -> Totals:
        return Totals(sum(record.stored_size for record in self.records))

    async def verify(self, record: Descriptor) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(1)
        self.running -= 1
        self.after(record)
        outcome = self.outcomes.get(record.name)
        if isinstance(outcome, ChecksumError) and self.current(record) == record:
            self.records.remove(record)  # as the pool does: it is a miss from then on
        if outcome is not None:
            raise outcome

    async def scrub(self) -> tuple[ScrubReport, list[tuple[int, int]]]:
        seen: list[tuple[int, int]] = []

        async def progress(done: int, total: int) -> None:
            seen.append((done, total))

        return await scrub(cast("Pool", self), progress), seen


@pytest.fixture
def pool() -> FakePool:
    pool = FakePool()
    pool.add(b"dir", 0, kind=Kind.DIRECTORY)
    return pool


async def test_every_file_is_verified_several_at_once(pool: FakePool, autojump_clock: MockClock) -> None:
    for number in range(10):
        pool.add(b"%d" % number, 10)
    report, seen = await pool.scrub()
    assert (report.objects, report.bytes, report.damaged) == (10, 100, ())
    assert pool.most == WORKERS
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (100, 100)
    assert {total for _, total in seen} == {100}
    assert len(seen) <= 5, "progress is reported now and then, not for each file"


async def test_damaged_files_are_listed_with_their_path(pool: FakePool, autojump_clock: MockClock) -> None:
    pool.add(b"bad", 7, ChecksumError("slot 3"))
    pool.add(b"failing", 8, DeviceError("disk", 5, "Input/output error"))
    report, _ = await pool.scrub()
    assert set(report.damaged) == {
        Damage(b"dir/bad", 7, "slot 3", dropped=True),
        Damage(b"dir/failing", 8, "disk: Input/output error", dropped=False),
    }


async def test_what_moved_or_cannot_be_reached_is_no_damage(
    pool: FakePool, autojump_clock: MockClock
) -> None:
    pool.add(b"raced", 1, Raced("x"))
    pool.add(b"lost", 1, Unavailable("x"))
    pool.add(b"away", 1)
    pool.out_of_reach = {b"away"}
    replaced = pool.add(b"replaced", 1, ChecksumError("x"))
    removed = pool.add(b"removed", 1, DeviceError("disk", 5, "x"))

    def change(record: Descriptor) -> None:
        if record == replaced:
            pool.records[pool.records.index(replaced)] = replace(replaced, stamp=Stamp(99))
        elif record == removed:
            pool.records.remove(removed)

    pool.after = change
    report, _ = await pool.scrub()
    assert (report.objects, report.changed, report.unreachable, report.damaged) == (0, 3, 2, ())


async def test_a_file_of_an_unknown_directory_has_its_id_for_a_path(autojump_clock: MockClock) -> None:
    pool = FakePool()
    pool.add(b"bad", 7, ChecksumError("x"))
    report, _ = await pool.scrub()
    assert report.damaged[0].path == b"<" + b"64" * 16 + b">/bad"


async def test_a_closed_pool_ends_it(pool: FakePool, autojump_clock: MockClock) -> None:
    pool.add(b"x", 1, PoolClosed("closed"))
    with pytest.RaisesGroup(PoolClosed):
        await pool.scrub()
