"""Fetches what is expected into the DRAM tier, before anybody asks: bounded, after demand, and never anybody's failure.

Who expects something says so with `want` and `cancel`, from any thread that has custody of the state; the task `run` does the
rest in the trio thread. What is fetched is verified like any load, as it is one. These bounds hold:

- While somebody waits for a load of his own, each source keeps to its share of the link (`prefetch.planner`).
- As much is under way as keeps the link busy, and about one load more (`prefetch.pace`): a demand waits behind that one.
- A quarter of the frames may hold what nobody has asked for yet. Frames in use are never taken (`FrameCache.fetch`).

If anything here fails that should not, it is logged, and nothing more is predicted until the next mount.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol

import trio

from kvfs.frame_table import NobodyWatches
from kvfs.interference import Interference
from kvfs.prefetch.ledger import Ledger, accuracy
from kvfs.prefetch.pace import Pace
from kvfs.prefetch.planner import Planner, Source, Want

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable

    from blockdev.types import Descriptor, SlotRef
    from kvfs.frame_table import Landed, Watcher
    from kvfs.latency import Histogram
    from kvfs.prefetch.ledger import Account

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds after which what was expected is not expected any more."""
SAVES = 0.01
"""Seconds that a reader is spared by an extent: the same for all, so that of what is as likely the earliest goes first."""
STEP = 1e-6
"""Seconds between the deadlines of what is wanted one after the other."""
UNUSED_SHARE = 4
"""One in so many frames may hold what nobody has asked for yet."""
RETRY = 0.02
"""Seconds until there may be room again, where nothing under way will tell."""
WANTS = 4096
"""Extents that are expected at once; beyond that, new ones are passed over."""


class Mode(Enum):
    """What is done about predictions; `OBSERVE` counts what would have been fetched and used."""

    OFF = "off"
    ON = "on"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class PrefetchStatistics:
    """Since the mount began. Bytes, by source; see `prefetch.ledger.Account`."""

    mode: str
    fetched_by_source: dict[str, int]
    used_by_source: dict[str, int]
    late_by_source: dict[str, int]
    wasted_by_source: dict[str, int]
    cancelled_by_source: dict[str, int]
    failed_by_source: dict[str, int]
    accuracy_by_source: dict[str, float]
    """Of what was used or wasted, the part that was used; of those where anything was."""
    missed: int
    """Bytes that somebody had to wait for and nobody had predicted."""
    coverage: float | None
    """The part of all bytes not in memory when they were wanted, or not without this, that was predicted."""
    demand_alone: Histogram
    """Loads on demand that began while nothing was being fetched ahead."""
    demand_beside: Histogram
    """Loads on demand that began while something was."""
    interference: float | None
    """The mean time of the latter, in units of that of the former."""
    expected: int
    """Extents that are to be fetched."""
    unused: int
    """Extents under way, or in memory, that nobody has asked for."""
    window: int
    """Extents that may be under way at once."""


class Frames(Protocol):
    """What is needed of the DRAM tier; `kvfs.frames.FrameCache` fits."""

    @property
    def count(self) -> int: ...

    @property
    def frame_size(self) -> int: ...

    @property
    def demanded(self) -> int: ...

    @property
    def reading(self) -> int: ...

    def watch(self, watcher: Watcher) -> None: ...

    def holds(self, slot: SlotRef) -> bool: ...

    def fetch(self, descriptor: Descriptor, index: int, slot: SlotRef) -> bool: ...

    def give_up(self, slot: SlotRef) -> None: ...


@dataclass(slots=True)
class _Extent:
    """Something expected.

    :ivar block: the block of a chain that it is a part of
    :ivar flying: its load has begun
    """

    block: Hashable
    slot: SlotRef
    record: Descriptor
    index: int
    want: Want
    flying: bool = False


P = ParamSpec("P")


def harmless(
    method: Callable[Concatenate[Prefetcher, P], None],
) -> Callable[Concatenate[Prefetcher, P], None]:
    """For what requests call on their way: if it fails, they go on, and nothing is predicted any more."""

    @functools.wraps(method)
    def call(self: Prefetcher, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.failed:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it was, requests are served
            self.fail(error)

    return call


class Prefetcher:
    """Made where there is a trio loop; `run` is to be started in a nursery, once.

    :param clock: seconds, from any thread
    :ivar failed: it has failed, and does nothing any more
    """

    def __init__(self, frames: Frames, mode: Mode, clock: Callable[[], float]) -> None:
        self.mode = mode
        self.failed = False
        self._frames = frames
        self._clock = clock
        self._pace = Pace(frames.frame_size)
        self._planner = Planner(self._pace.rate)
        self._ledger: Ledger[SlotRef] = Ledger()
        self._interference = Interference()
        self._unused_limit = max(1, frames.count // UNUSED_SHARE)
        self._extents: dict[Hashable, _Extent] = {}
        """Expected or under way."""
        self._slots: defaultdict[Hashable, list[Hashable]] = defaultdict(list)
        """Of each block, those in `_extents`."""
        self._flying = 0
        self._due = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        if mode is not Mode.OFF:
            frames.watch(self)

    @property
    def is_on(self) -> bool:
        """Whether to tell it anything is of use."""
        return self.mode is not Mode.OFF and not self.failed

    def fail(self, error: Exception) -> None:
        """Give up, for good."""
        if not self.failed:
            log.error("nothing is fetched ahead any more until the next mount", exc_info=error)
            self.failed = True
            self._frames.watch(NobodyWatches())
            with suppress(Exception):  # whatever is wrong with it
                for slot in self._ledger:
                    self._frames.give_up(slot)

    def has(self, record: Descriptor) -> bool:
        """Whether every extent that an object's record lists is in memory."""
        return all(extent.is_hole or self._frames.holds(extent.ref) for extent in record.extents)

    # ── what is expected ─────────────────────────────────────────────────────────────────────────────────

    def expected(self, block: Hashable) -> Collection[Descriptor]:
        """The objects of a block of which something is expected or under way."""
        slots = self._slots.get(block)
        if slots is None:
            return ()
        return {id(record): record for record in (self._extents[slot].record for slot in slots)}.values()

    @harmless
    def want(
        self,
        block: Hashable,
        records: Iterable[Descriptor],
        source: Source,
        chance: float,
        deadline: float = math.inf,
    ) -> None:
        """These objects, which are one block, will be wanted, after all that is wanted already.

        Objects with so many extents that their record does not list them are not fetched: who reads one is read ahead of.

        :param chance: 0 to 1
        :param deadline: when they will not be wanted any more, by the clock; at most `PATIENCE` from now
        """
        now = self._clock()
        if not self.is_on or len(self._extents) >= WANTS or not self._planner.allows(source, now):
            return
        deadline = min(deadline, now + PATIENCE) + len(self._planner) * STEP
        step = self._frames.frame_size
        for record in records:
            for index, extent in enumerate(() if record.indexed else record.extents):
                slot = extent.ref
                if extent.is_hole or self._frames.holds(slot) or slot in self._ledger:
                    continue
                size = min(step, record.size - index * step)
                want = Want(slot, source, size, chance, deadline, SAVES)
                known = self._extents.get(slot)
                if known is None:
                    self._extents[slot] = _Extent(block, slot, record, index, want)
                    self._slots[block].append(slot)
                elif not known.flying and known.want.value < want.value:
                    if source is not known.want.source:
                        self._planner.judged(known.want.source, used=True)  # it had been right
                    known.want = want
                self._planner.offer([want])
        self._nudge()

    @harmless
    def cancel(self, blocks: Iterable[Hashable]) -> None:
        """They will not be wanted. What is under way of them arrives all the same."""
        for block in blocks:
            for slot in [*self._slots.get(block, ())]:
                if not self._extents[slot].flying:
                    self._planner.cancel([slot])
                    self._give_up(slot)

    def _give_up(self, slot: Hashable) -> None:
        want = self._drop(slot).want
        self._ledger.accounts[want.source].cancelled += want.size

    def _drop(self, slot: Hashable) -> _Extent:
        extent = self._extents.pop(slot)
        slots = self._slots[extent.block]
        slots.remove(slot)
        if not slots:
            del self._slots[extent.block]
        return extent

    # ── what becomes of it: see `Watcher` ────────────────────────────────────────────────────────────────

    @harmless
    def missed(self, slot: SlotRef, length: int) -> None:
        self._planner.demand(slot, length, self._clock())
        extent = self._extents.get(slot)
        if extent is not None and not extent.flying:
            self._drop(slot)
        if slot in self._ledger:  # as only those that were not really fetched can be
            self._judge(self._ledger.used(slot, late=False), used=True)
        else:
            self._ledger.missed += length

    @harmless
    def used(self, slot: SlotRef, *, late: bool) -> None:
        self._judge(self._ledger.used(slot, late=late), used=True)

    @harmless
    def wasted(self, slot: SlotRef) -> None:
        self._judge(self._ledger.wasted(slot), used=False)

    @harmless
    def landed(self, load: Landed) -> None:
        if load.length is not None:
            self._pace.landed(load.seconds, load.flying)
            self._planner.rate = self._pace.rate
            if not load.ahead:
                self._interference.loaded(load.seconds, beside=load.beside > 0)
        extent = self._extents.get(load.slot)
        if extent is not None and extent.flying:
            self._drop(load.slot)
            self._flying -= 1
            self._planner.arrived(load.slot)
            if load.length is None:
                self._ledger.failed(load.slot)
        self._nudge()

    def _judge(self, source: Source | None, *, used: bool) -> None:
        if source is not None:
            self._planner.judged(source, used=used)
            self._nudge()

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────────────

    def _nudge(self) -> None:
        """Have it looked what to fetch. From any thread that has custody."""
        if len(self._planner):
            if threading.get_ident() == self._thread:
                self._wake()
            else:
                self._token.run_sync_soon(self._wake, idempotent=True)

    def _wake(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Fetch, until cancelled."""
        try:
            while True:
                with trio.move_on_after(PATIENCE if len(self._ledger) else math.inf):
                    await self._due.wait()
                self._due = trio.Event()
                self._start()
                if len(self._planner) and not self._flying:  # nothing that lands will tell
                    with trio.move_on_after(RETRY):
                        await self._due.wait()
                    self._due.set()
        except Exception as error:  # noqa: BLE001 - as `harmless`
            self.fail(error)

    def _start(self) -> None:
        now = self._clock()
        for want in self._planner.expired(now):
            self._give_up(want.block)
        self._reclaim(now)
        flying = max(self._flying, self._frames.reading)
        room = min(self._pace.window - flying, self._unused_limit - len(self._ledger))
        if room > 0:
            for want in self._planner.start(now, room, contended=self._frames.demanded > 0):
                self._fetch(self._extents[want.block], now)

    def _fetch(self, extent: _Extent, now: float) -> None:
        slot = extent.slot
        if self.mode is Mode.ON and not self._frames.fetch(extent.record, extent.index, slot):
            self._planner.arrived(slot)  # it is there, somebody is loading it, or there is no memory to spare
            self._give_up(slot)
            return
        self._ledger.begun(slot, extent.want.source, extent.want.size, now)
        if self.mode is Mode.ON:
            self._flying += 1
            extent.flying = True
        else:
            self._planner.arrived(slot)
            self._drop(slot)

    def _reclaim(self, now: float) -> None:
        """Let go what nobody has asked for in time."""
        while len(self._ledger):
            slot, since = self._ledger.oldest()
            full = self.mode is Mode.OBSERVE and len(self._ledger) >= self._unused_limit
            if slot in self._extents or not (full or now - since >= PATIENCE):
                return
            self._frames.give_up(slot)
            self.wasted(slot)  # where the frames did not say so: it was not really fetched

    def statistics(self) -> PrefetchStatistics:
        """A frozen snapshot."""
        accounts = {source.label: account for source, account in self._ledger.snapshot().items()}

        def each(value: Callable[[Account], int]) -> dict[str, int]:
            return {label: value(account) for label, account in accounts.items()}

        rates = {label: accuracy(account) for label, account in accounts.items()}
        return PrefetchStatistics(
            mode=self.mode.value if not self.failed else "failed",
            fetched_by_source=each(lambda account: account.fetched),
            used_by_source=each(lambda account: account.used),
            late_by_source=each(lambda account: account.late),
            wasted_by_source=each(lambda account: account.wasted),
            cancelled_by_source=each(lambda account: account.cancelled),
            failed_by_source=each(lambda account: account.failed),
            accuracy_by_source={label: rate for label, rate in rates.items() if rate is not None},
            missed=self._ledger.missed,
            coverage=self._ledger.coverage,
            demand_alone=self._interference.alone,
            demand_beside=self._interference.beside,
            interference=self._interference.ratio,
            expected=len(self._planner),
            unused=len(self._ledger),
            window=self._pace.window,
        )
