"""Freed slots until they may be used again.

A slot leaves limbo when all three hold: the record that freed it is as durable as publications are, nobody reads the
version that it held, and the grace is over, in which others may act on what they had read before that record.

Limbo is bounded: more is not let go while it holds its share of a class, so who needs a slot then waits. What is freed
because it was removed or replaced counts, and is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from blockdev.errors import DeviceError, DeviceTimeout, Unavailable
from blockdev.media import Media
from blockdev.region import Region
from blockdev.space import Space
from blockdev.types import Generation, SlotAddress, SlotClass, SlotRef

_SHARE = 8
"""One in so many slots of a class may be kept from being used, in limbo or free."""
_LEAST = 16
"""Slots that limbo may hold of any class, however small."""


def share(slots: int) -> int:
    """How many of a class's slots may be without an object for the sake of those that come."""
    return slots // _SHARE


@dataclass(slots=True)
class LimboCounters:
    waits: int = 0
    """Times somebody who needed a slot waited for slots to leave limbo: back-pressure."""
    seconds: float = 0.0
    """In all of these waits."""


class Limbo:
    """The slots in limbo of one writing member.

    :param flush: the records that free slots are flushed before the slots are used again (`durability: flush`)
    :param grace: seconds between freeing a slot and its reuse, asked at each
    """

    def __init__(self, media: Media, space: Space, grace: Callable[[], float], *, flush: bool) -> None:
        self._media = media
        self._space = space
        self._grace = grace
        self._flush = flush
        self.unflushed: set[SlotAddress] = set()
        """Slots whose invalidation is not durable yet."""
        self._flushing = trio.Lock()
        self._held: dict[SlotAddress, Callable[[], bool]] = {}
        self._freed = trio.Event()
        self._left = 0
        """Slots that have left."""
        self.counters = LimboCounters()

    def absorb(self, other: Limbo) -> None:
        """Take over slots that are in our space now."""
        self.unflushed |= other.unflushed
        self._held |= other._held

    @property
    def grace(self) -> float:
        """Seconds that a slot freed now will rest."""
        return self._grace()

    async def enter(
        self, ref: SlotRef, generation: Generation, sequence: int, held: Callable[[], bool] | None
    ) -> None:
        """The record that frees a slot was written, with this generation and sequence.

        :param held: says whether somebody still reads what was there; asked again until it is false
        """
        grace = self.grace
        pinned = held is not None and held()
        if held is not None and (
            pinned or grace
        ):  # others may pin what they found, until they see it is gone
            self._held[ref.address] = held
        if self._flush:
            self.unflushed.add(ref.address)
        elif ref.address not in self._held:
            await self._discard(ref.address)
        self._space.free(ref, generation, sequence, trio.current_time() + grace)

    async def flush(self) -> None:
        """With `durability: flush`, make the invalidations so far durable.

        A device that cannot is lost, and none of its slots are handed out.
        """
        async with self._flushing:  # who has discarded a slot may not find that another discards it later
            for device in {address.device for address in self.unflushed}:
                freed = [address for address in self.unflushed if address.device == device]
                try:
                    await self._media.flush([device])
                except (DeviceError, Unavailable):
                    self.unflushed.difference_update(freed)
                    continue
                for address in freed:
                    if address not in self._held:
                        await self._discard(address)
                    self.unflushed.discard(address)

    async def _discard(self, address: SlotAddress) -> None:
        """Tell the device that nobody needs a payload, while nobody can be given its slot.

        Not for what others may be reading: it will be overwritten anyway.
        """
        try:
            await self._media.discard_payload(address)
        except DeviceTimeout:
            self._space.quarantine(address)

    async def reap(self) -> bool:
        """Let the slots out that may be used again; whether there were any."""
        await self.flush()
        reaped = self._space.reap(trio.current_time(), self._is_held)
        self._left += len(reaped)
        if reaped:
            self.wake()
        return bool(reaped)

    def _is_held(self, address: SlotAddress) -> bool:
        if address in self.unflushed:
            return True
        pinned = self._held.get(address)
        if pinned is None:
            return False
        if pinned():
            return True
        del self._held[address]
        return False

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────

    def has_enough(self, slot_class: SlotClass, wanted: int) -> bool:
        """Whether as many slots as are wanted will leave, or as many as may be here: let no more go."""
        bound = max(_LEAST, share(self._space.slots(slot_class)))
        return self._space.resting(slot_class) >= min(wanted, bound)

    def wake(self) -> None:
        """Slots have become free, here or elsewhere."""
        self._freed.set()
        self._freed = trio.Event()

    async def wait(self, until: float, slot_class: SlotClass) -> bool:
        """Wait for a free slot of this class, at most until this time.

        :returns: whether any slot has become free
        """
        before = self._left
        with self._waiting(), trio.move_on_at(until):
            while not self._space.has_free(slot_class):
                await self._freed.wait()
        await self.reap()
        return self._left != before or self._space.has_free(slot_class)

    async def drain(self, region: Region) -> None:
        """Wait until no slot of a region is left but those that somebody reads."""
        await self.reap()
        while region.ledger is not None and region.resting:
            ready = region.next_ready()
            assert ready is not None
            with self._waiting():
                await trio.sleep_until(ready)
            await self.reap()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts and times the block, also one that is cancelled."""
        began = trio.current_time()
        self.counters.waits += 1
        try:
            yield
        finally:
            self.counters.seconds += trio.current_time() - began
