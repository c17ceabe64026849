"""One engine process: threads that use one mount, and judge all that they read.

Says on stdout what it finds, a line of JSON each, and once a second what it has counted since it began:

    ["tally", {…}]      see `Tally.as_json`
    ["finding", {…}]    what should not be: a kind, a text, the file's name
    ["gone", {…}]       a file that was stored a moment ago is a miss: who stored it, on whose mount it is missed, when
"""

from __future__ import annotations

import errno
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.lib.soak.calls import Call, Calls, When
from scripts.lib.soak.contents import Allowed, judge
from scripts.lib.soak.engines import Player
from scripts.lib.soak.ledger import NANO, THREADS, VISIBLE_NS, Ledger, Stored, now
from scripts.lib.soak.universe import Engine, File, files

FRESH_NS = 10 * NANO
"""A file that was stored less than this ago should be there."""
WEIGHTS = {
    Engine.VLLM: 6,
    Engine.SGLANG: 6,
    Engine.LMCACHE: 4,
    Engine.NOTES: 2,
    Engine.REPLACED: 3,
    Engine.SLAB: 2,
}
"""How often which engine is played."""
HOT = 0.7
"""Part of the uses that go to files that are in fashion; the others go anywhere."""
HOT_SHARE = 0.2
"""Part of an engine's files that is in fashion at a time."""
FASHION_SECONDS = 120.0
"""After which every file has been in fashion once."""
DEAD = {errno.ENOTCONN, errno.ECONNABORTED}
"""What calls on a mount fail with when its process is gone."""
AGAIN = 0.2
"""Part of the uses that go to what this thread stored last."""


@dataclass
class Tally:
    """What one thread has counted."""

    hits: int = 0
    misses: int = 0
    stores: int = 0
    bytes_stored: int = 0
    bytes_loaded: int = 0
    gone: int = 0
    """Misses of files that had been stored."""
    youngest_gone: float = float("inf")
    """Seconds between a store and the miss."""
    errors: Counter[str] = field(default_factory=Counter)
    """That calls failed with while their mount, or the file, was disturbed."""


class Say:
    """Lines on stdout, whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, what: str, **fields: object) -> None:
        with self._lock:
            sys.stdout.write(json.dumps([what, fields]) + "\n")
            sys.stdout.flush()


@dataclass(frozen=True)
class Site:
    """What the threads of a worker share."""

    ledger: Ledger
    member: int
    root: Path
    files: dict[Engine, list[File]]
    locks: dict[int, threading.Lock]
    """Of versioned files that this member writes."""
    say: Callable[..., None]
    """As `Say`."""


class Thread:
    """One thread of engines."""

    def __init__(self, site: Site, number: int, seed: str) -> None:
        self._site = site
        self._ledger = site.ledger
        self._number = number
        self._rng = random.Random(seed)
        self._last: list[File] = []
        self._mount_died = False
        self.tally = Tally()
        self.calls = Calls(site.ledger, site.member, number, self._stalled)
        self._player = Player(site.root, self.calls)

    def run(self) -> None:
        while not self._ledger.ending and not self._mount_died:
            if not self._ledger.enter(self._site.member, self._number):
                time.sleep(0.02)  # paused: the run's own time is what this program is about
                continue
            try:
                self._use(self._choose())
            finally:
                self._ledger.leave(self._site.member, self._number)

    # ── what it does ────────────────────────────────────────────────────────────────────────────────────

    def _choose(self) -> File:
        if self._last and self._rng.random() < AGAIN:
            return self._rng.choice(self._last)
        [engine] = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        some = self._site.files[engine]
        if self._rng.random() > HOT:
            return self._rng.choice(some)
        begin = time.monotonic() / FASHION_SECONDS % 1.0
        return some[int((begin + self._rng.random() * HOT_SHARE) % 1.0 * len(some))]

    def _use(self, file: File) -> None:
        begun = now()
        try:
            if file.engine.versioned:
                self._use_versioned(file)
            elif self._look(file) is None:
                self._store(file, file.subject.first_version)
            if self._rng.random() < 0.01:
                self._player.look_around(file)
        except OSError as error:
            self._failed(file, error, begun)

    def _use_versioned(self, file: File) -> None:
        """Only its owner writes it, one thread at a time."""
        lock = self._site.locks.get(file.number)
        if lock is None or not lock.acquire(blocking=False):
            self._look(file)
            return
        try:
            version = self._look(file)
            new = max(self._ledger.newest(file.number) + 1, file.subject.first_version)
            act = self._rng.random()
            if version is None:
                self._store(file, new)
            elif act < 0.05:
                self._remove(file)
            elif act < 0.5 and file.engine is Engine.SLAB:
                self._change(file, version, new)
            elif act < 0.5:
                self._store(file, new)
        finally:
            lock.release()

    def _look(self, file: File) -> int | None:
        """Load it; its version, if it is there and right."""
        stored = self._ledger.stored(file.number)
        least = self._ledger.allowed_from(file.number, self._site.member)
        data = self._player.load(file)
        if data is None:
            self.tally.misses += 1
            self._missed(file, stored)
            return None
        self.tally.hits += 1
        self.tally.bytes_loaded += len(data)
        return self._judge(file, data, self._ledger.allowed(file.number, least))

    def _judge(self, file: File, data: bytes, allowed: Allowed) -> int | None:
        judgement = judge(file.subject, data)
        complaint = judgement.complaint
        if judgement.version is not None:
            complaint = allowed.complaint(judgement.version)
        if complaint:
            self._find("stale" if complaint.startswith("stale") else "wrong bytes", complaint, file)
        return judgement.version

    def _store(self, file: File, version: int) -> None:
        data = file.subject.content(version)
        self._ledger.begin(file.number, version)
        self._player.store(file, data)
        self._stored(file, version, len(data))

    def _change(self, file: File, old: int, new: int) -> None:
        self._ledger.begin(file.number, new)
        try:
            self._player.change(file, old, new)
        except FileNotFoundError:
            self.tally.misses += 1
            return
        parts = file.subject.changed(old, new)
        self._stored(file, new, sum(end - begin for begin, end in map(file.subject.span, parts)))

    def _stored(self, file: File, version: int, size: int) -> None:
        self._ledger.acknowledge(file.number, version, self._site.member)
        self.tally.stores += 1
        self.tally.bytes_stored += size
        self._last = [*self._last[-7:], file]

    def _remove(self, file: File) -> None:
        self._ledger.removing(file.number)
        try:
            self._player.remove(file)
        except FileNotFoundError:
            return  # evicted meanwhile
        self._ledger.removed(file.number)

    # ── what it finds ───────────────────────────────────────────────────────────────────────────────────

    def _missed(self, file: File, stored: Stored) -> None:
        age = now() - stored.at
        if stored.by != self._site.member and age < VISIBLE_NS:
            return  # it need not be seen here yet
        if not self._ledger.is_gone(file.number, stored):
            return
        self.tally.gone += 1
        self.tally.youngest_gone = min(self.tally.youngest_gone, age / NANO)
        if age < FRESH_NS:
            self._site.say(
                "gone",
                name=file.subject.name,
                by=stored.by,
                on=self._site.member,
                stored_at=stored.at,
                missed_at=now(),
            )

    def _failed(self, file: File, error: OSError, begun: int) -> None:
        name = errno.errorcode.get(error.errno or 0, str(error))
        if self._ledger.disturbed(self._site.member, begun, now()) or error.errno == errno.ENOSPC:
            self.tally.errors[name] += 1
            return
        self._mount_died = error.errno in DEAD
        self._find("error", f"{name}: {error}", file)

    def _stalled(self, kind: Call, seconds: float, when: When) -> None:
        self._find("stall", f"{kind.name.lower()} took {seconds:.1f} s, {when.name.lower()}", None)

    def _find(self, kind: str, text: str, file: File | None) -> None:
        name = file.subject.name if file else None
        self._site.say("finding", kind=kind, text=text, member=self._site.member, name=name, at=now())


def totals(threads: list[Thread]) -> dict[str, Any]:
    """The tallies of all threads together, as plain values."""
    tallies = [thread.tally for thread in threads]
    names = ("hits", "misses", "stores", "bytes_stored", "bytes_loaded", "gone")
    body: dict[str, Any] = {name: sum(getattr(tally, name) for tally in tallies) for name in names}
    youngest = min(tally.youngest_gone for tally in tallies)
    body["youngest_gone"] = None if youngest == float("inf") else youngest
    body["errors"] = dict(sum((tally.errors for tally in tallies), Counter()))
    body["calls"] = dict(sum((thread.calls.counts for thread in threads), Counter()))
    body["slowest"] = {when.name.lower(): _slowest(threads, when) for when in When}
    return body


def _slowest(threads: list[Thread], when: When) -> dict[str, float]:
    found: dict[str, float] = {}
    for thread in threads:
        for name, seconds in list(thread.calls.slowest[when].items()):
            found[name] = max(found.get(name, 0.0), seconds)
    return found


def main(ledger_path: str, root: str, member: str, members: str, working_set: str, seed: str) -> None:
    universe = files(int(working_set))
    mine = int(member)
    site = Site(
        ledger=Ledger(Path(ledger_path), int(members), len(universe)),
        member=mine,
        root=Path(root),
        files={engine: [file for file in universe if file.engine is engine] for engine in Engine},
        locks={
            file.number: threading.Lock()
            for file in universe
            if file.engine.versioned and file.owner(int(members)) == mine
        },
        say=Say(),
    )
    players = [Thread(site, number, f"{seed} {member} {number}") for number in range(THREADS)]
    threads = [threading.Thread(target=player.run, daemon=True) for player in players]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(1.0)
        site.say("tally", **totals(players))


if __name__ == "__main__":
    main(*sys.argv[1:])
