"""The DRAM tier under any order of requests: pinned bytes never change, counts are exact, nothing is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from blockdev.errors import BlockError, ChecksumError, DeviceTimeout
from blockdev.testing.faults import LatePending
from blockdev.types import PAGE, Descriptor
from kvfs.errors import NoFrames
from kvfs.frames import Arena, Frame, FrameCache, open_frames
from tests.kvfs.test_frames import an_object, content_of, extent, slot, slots

FRAMES = 3
OBJECTS = [an_object(number) for number in range(1, 4)]
EXTENTS = 3
PATIENCE = 7.0


ACTIONS = (
    ["get"] * 5
    + ["unpin"] * 4
    + ["allocate", "peek", "adopt", "wait"] * 2
    + ["read ahead", "fetch", "fetch", "give up", "demote", "forget", "write times out", "late I/O returns"]
)


class Step(NamedTuple):
    action: str
    descriptor: Descriptor
    extent: int
    seconds: int
    choice: int


STEPS = st.builds(
    Step,
    st.sampled_from(ACTIONS),
    st.sampled_from(OBJECTS),
    st.integers(0, EXTENTS - 1),
    st.sampled_from([0, 1, 2, 20]),
    st.integers(0, 100),
)


class ScribblingIO(LatePending):
    """A read that writes into its buffer up to the moment it returns."""

    def __init__(self, buffer: memoryview) -> None:
        super().__init__()
        self.buffer = buffer

    def finish(self) -> None:
        self.buffer[:] = b"\xee" * len(self.buffer)
        super().finish()


class Disk:
    """Reads take a second or two and end well, with a checksum error, or with a time-out that leaves I/O behind."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.late: list[ScribblingIO] = []
        self.into: dict[int, memoryview] = {}

    async def read_extent(self, descriptor: Descriptor, index: int, into: memoryview, /) -> int:
        self.into[id(into)] = into
        into[:] = b"\xdd" * len(into)
        with trio.CancelScope(shield=True):
            await trio.sleep(self.chance.choice([0, 1, 2]))
        del self.into[id(into)]
        await trio.lowlevel.checkpoint_if_cancelled()
        outcome = self.chance.random()
        if outcome < 0.15:
            self.late.append(ScribblingIO(into))
            raise DeviceTimeout("disk", 110, "timed out", self.late[-1])
        if outcome < 0.25:
            raise ChecksumError("differs")
        content = content_of(descriptor.object_id, index)
        into[: len(content)] = content
        return len(content)


@dataclass
class Held:
    """A pin that the test owes, and the bytes that it was given or wrote."""

    frame: Frame
    content: bytes
    private: bool


@dataclass
class World:
    cache: FrameCache
    disk: Disk
    nursery: trio.Nursery
    held: list[Held] = field(default_factory=list)
    writes: list[LatePending] = field(default_factory=list)
    requests: int = 0
    ended: int = 0
    written: int = 0

    async def get(self, descriptor: Descriptor, index: int, patience: float) -> None:
        try:
            with trio.move_on_after(patience):
                frame = await self.cache.get(*extent(descriptor, index))
                self.held.append(Held(frame, content_of(descriptor.object_id, index), private=False))
        except (BlockError, NoFrames):
            pass
        self.ended += 1

    async def allocate(self, patience: float) -> None:
        try:
            with trio.move_on_after(patience):
                frame = await self.cache.allocate()
                self.written += 1
                content = b"private %d" % self.written
                frame.view[: len(content)] = content
                self.held.append(Held(frame, content, private=True))
        except NoFrames:
            pass
        self.ended += 1

    def peek(self, descriptor: Descriptor, index: int) -> None:
        frame = self.cache.peek(slot(descriptor, index))
        if frame is not None:
            self.held.append(Held(frame, content_of(descriptor.object_id, index), private=False))

    def adopt(self, held: Held, descriptor: Descriptor, index: int) -> None:
        held.content = content_of(descriptor.object_id, index)
        held.frame.view[: len(held.content)] = held.content
        self.cache.adopt(held.frame, slot(descriptor, index), len(held.content))
        held.private = False

    def check(self) -> None:
        now = self.cache.statistics()
        assert now.free + now.idle + now.pinned + now.zombies == FRAMES
        assert now.free + now.idle == 0 or now.waiting == 0
        pins: dict[int, int] = {}
        for held in self.held:
            assert bytes(held.frame.view[: len(held.content)]) == held.content
            pins[id(held.frame)] = pins.get(id(held.frame), 0) + 1
            assert held.frame.pins >= pins[id(held.frame)]
        private = [held.frame for held in self.held if held.private]
        assert all(frame.pins == 1 for frame in private)
        touched = [*self.disk.into.values(), *(late.buffer for late in self.disk.late if not late.done)]
        assert not any(held.frame.view is buffer for held in self.held for buffer in touched)
        if now.loading == 0:
            assert now.pinned == len(pins)
            assert sum(pins.values()) == sum(held.pins for held in {held.frame for held in self.held})

    async def step(self, step: Step) -> None:
        """One thing that may happen."""
        if step.action == "get":
            self.requests += 1
            self.nursery.start_soon(self.get, step.descriptor, step.extent, step.seconds)
        elif step.action == "allocate":
            self.requests += 1
            self.nursery.start_soon(self.allocate, step.seconds)
        elif step.action == "read ahead":
            self.cache.read_ahead(step.descriptor, enumerate(slots(step.descriptor, EXTENTS)))
        elif step.action == "peek":
            self.peek(step.descriptor, step.extent)
        elif step.action == "forget":
            self.cache.forget(slots(step.descriptor, EXTENTS))
        elif step.action == "late I/O returns":
            self.finish_late()
        elif step.action == "wait":
            await trio.sleep(step.seconds)
        elif self.held:
            self.use_held(step)
        self.expect(step)

    def expect(self, step: Step) -> None:
        if step.action == "fetch":
            self.cache.fetch(step.descriptor, step.extent, slot(step.descriptor, step.extent))
        elif step.action == "give up":
            self.cache.give_up(slot(step.descriptor, step.extent))
        elif step.action == "demote":
            self.cache.demote(slots(step.descriptor, EXTENTS))

    def use_held(self, step: Step) -> None:
        private = [held for held in self.held if held.private]
        if step.action == "adopt" and private:
            self.adopt(private[0], step.descriptor, step.extent)
        elif step.action == "unpin":
            self.cache.unpin(self.held.pop(step.choice % len(self.held)).frame)
        elif step.action == "write times out" and private:
            self.writes.append(LatePending())
            self.cache.hold_until(private[0].frame, self.writes[-1])

    def finish_late(self) -> None:
        for late in (self.disk.late, self.writes):
            if late and not late[0].done:
                late.pop(0).finish()

    async def wind_down(self) -> None:
        """When everybody has given back what they hold, every frame is free or idle."""
        while self.ended < self.requests or self.held or self.disk.late or self.writes:
            while self.held:
                self.cache.unpin(self.held.pop().frame)
            self.finish_late()
            await trio.sleep(1)
        await trio.sleep(PATIENCE + 2)
        now = self.cache.statistics()
        while self.disk.late:
            self.finish_late()
        await wait_all_tasks_blocked()
        now = self.cache.statistics()
        assert (now.free + now.idle, now.pinned, now.zombies) == (FRAMES, 0, 0)
        assert (now.waiting, now.loading) == (0, 0)


@given(st.lists(STEPS, min_size=20, max_size=80), st.integers(0, 1000))
@settings(max_examples=60)
def test_whatever_happens_pinned_bytes_stay_and_nothing_is_lost(steps, seed):
    async def main() -> None:
        disk = Disk(random.Random(seed))
        arena = Arena(FRAMES * PAGE, PAGE, huge_pages=False)
        async with open_frames(arena, disk, patience=PATIENCE) as cache, trio.open_nursery() as nursery:
            world = World(cache, disk, nursery)
            for step in steps:
                await world.step(step)
                await wait_all_tasks_blocked()
                world.check()
            await world.wind_down()

    trio.run(main, clock=MockClock(autojump_threshold=0))
