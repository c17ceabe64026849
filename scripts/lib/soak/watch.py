"""Looks at the members' processes and counters now and then."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvfs.errors import DeadMount, KvfsError, NotRunning
from scripts.lib.soak.calls import Call
from scripts.lib.soak.departures import Departures, Miss, Reason
from scripts.lib.soak.ledger import NANO, THREADS, Ledger, now
from scripts.lib.soak.pool import Member, SoakPool, departures
from scripts.lib.soak.samples import Sample

HUNG_SECONDS = 60.0
"""A call that takes longer hangs, whatever is the matter with its mount: no trouble lasts so long."""
SUMMED = ("evicted", "evicted_bytes", "quarantined", "published", "removed")


class Watch:
    """Of all members. Its methods may be called from any thread.

    :param find: told what should not be: a kind and a text
    :ivar died: a member's process ended by itself
    :ivar lives: samples of each process: a list for each time that a member was mounted
    """

    def __init__(self, pool: SoakPool, ledger: Ledger, find: Callable[[str, str], None]) -> None:
        self.departures = Departures()
        self.lives: list[tuple[int, list[Sample]]] = []
        self.died = False
        self.reasons: Counter[Reason] = Counter()
        self._pool = pool
        self._ledger = ledger
        self.find = find
        self._lock = threading.RLock()
        self._away: set[int] = set()
        self._current: dict[int, list[Sample]] = {}
        self._counters: dict[int, dict[str, int]] = {}
        self._past: Counter[str] = Counter()
        self._open: list[Miss] = []
        self._hung: set[tuple[int, int, int]] = set()

    def sample(self) -> int | None:
        """Ask everybody who can be asked. How many objects have departed so far; None if not all answered that
        should have.
        """
        with self._lock:
            begun = now()
            asked = [member for member in self._pool.members if member.number not in self._away]
            counts: dict[int, int] = {}
            for member in asked:
                self._ask(member, counts)
            everybody = len(counts) == len(self._pool.members)
            self.departures.sample(begun, counts, all_answered=everybody)
            self._settle()
            return self.departures.total if len(counts) == len(asked) else None

    def damaged(self, name: str) -> None:
        """A byte of this file was flipped below the mounts."""
        with self._lock:
            self.departures.damaged(name, now())

    def missed(self, miss: Miss) -> None:
        """A file that was just stored is a miss; why is told when there are counters from after that."""
        with self._lock:
            self._open.append(miss)

    @contextmanager
    def without(self, member: Member) -> Iterator[None]:
        """Do not ask this one meanwhile."""
        with self._lock:
            self._away.add(member.number)
        try:
            yield
        finally:
            with self._lock:
                self._away.discard(member.number)

    def ended(self, member: Member) -> None:
        """Its process is gone; the next one is another."""
        with self._lock:
            self.departures.ended(member.number, now())
            self._current.pop(member.number, None)
            self._past.update(self._counters.pop(member.number, {}))

    def look_for_hung(self) -> None:
        """Calls that do not return."""
        at = now()
        for member in self._pool.members:
            for thread in range(THREADS):
                begun, kind = self._ledger.in_call(member.number, thread)
                if begun and at - begun > HUNG_SECONDS * NANO:
                    self._hang(member.number, thread, begun, kind)

    def counters(self) -> dict[str, int]:
        """What all members have counted, over all their lives."""
        with self._lock:
            total = Counter(self._past)
            for counters in self._counters.values():
                total.update(counters)
            return {name: total[name] for name in SUMMED}

    def _ask(self, member: Member, counts: dict[int, int]) -> None:
        try:
            statistics: dict[str, Any] = member.statistics()
            sample = member.sample()
        except (NotRunning, DeadMount) as error:
            self.died = True
            self.find("died", f"the process of member {member.number}, and nobody killed it: {error}")
            return
        except (KvfsError, OSError) as error:
            self.find("stall", f"member {member.number} does not tell its counters: {error}")
            return
        counts[member.number] = departures(statistics)
        self._counters[member.number] = {name: int(statistics["pool"][name]) for name in SUMMED}
        if member.number not in self._current:
            self._current[member.number] = []
            self.lives.append((member.number, self._current[member.number]))
        self._current[member.number].append(sample)

    def _settle(self) -> None:
        """Say of files that are gone why, as far as that can be said by now."""
        waiting = []
        for miss in self._open:
            if not self.departures.covers(miss.missed_at):
                waiting.append(miss)
                continue
            reason = self.departures.reason(miss)
            self.reasons[reason] += 1
            if reason is Reason.LOST:
                age = (miss.missed_at - miss.stored_at) / NANO
                self.find(
                    "lost",
                    f"{miss.name}: stored by {miss.by}, missed on {miss.on} after {age:.2f} s, nothing departed",
                )
        self._open = waiting

    def _hang(self, member: int, thread: int, begun: int, kind: int) -> None:
        if (member, thread, begun) not in self._hung:
            self._hung.add((member, thread, begun))
            self.find("hung", f"{Call(kind).name.lower()} on member {member} does not return")
