"""One soak: a pool, its members, workers that use them, trouble, and the report of it all."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfs.sizes import format_size
from scripts.lib.bench import commit
from scripts.lib.soak import samples
from scripts.lib.soak.crew import Crew
from scripts.lib.soak.damage import Damager
from scripts.lib.soak.departures import Reason
from scripts.lib.soak.ledger import Ledger
from scripts.lib.soak.pool import EXTENT, SoakFailed, SoakPool
from scripts.lib.soak.trouble import Trouble
from scripts.lib.soak.universe import files
from scripts.lib.soak.watch import Watch

SAMPLE_SECONDS = 2.0
LINE_SECONDS = 60.0
FINDINGS_SHOWN = 50
TROUBLE_SECONDS = 180.0
"""In which a trouble that is under way has come to its end."""
NEW_LINE = "\r\x1b[K" if sys.stderr.isatty() else ""
"""Over the progress that a terminal shows."""
NO_SPACE_PART = 0.01
"""Of the stores, that may be refused because nothing could be evicted just then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    :ivar seconds: for how long
    :ivar size: bytes of the pool
    """

    folder: Path
    seconds: float
    seed: int
    members: int
    size: int
    memory: str


class Soak:
    """Runs by `run`; whatever happens, `clean_up` follows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rng = random.Random(plan.seed)
        self._working_set = int(plan.size * self._rng.uniform(1.5, 3.0))
        self._files = files(self._working_set)
        self._pool = SoakPool(plan.folder, plan.size, plan.members, plan.memory)
        ledger = plan.folder / "ledger"
        self._ledger = Ledger(ledger, plan.members, len(self._files))
        self._watch = Watch(self._pool, self._ledger, self._find)
        self._trouble = Trouble(
            self._pool, self._ledger, self._files, self._watch, self._damager(), self._rng
        )
        self._findings: list[dict[str, Any]] = []
        self._kinds: Counter[str] = Counter()
        self._over = threading.Event()
        self._troubles = threading.Thread(target=self._make_trouble, daemon=True)
        self._crew: Crew | None = None
        self._begun = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Soak, and report.

        :raises SoakFailed: it could not begin
        """
        self._pool.create()
        plan, begun = self._plan, time.monotonic()
        self._begun = begun
        arguments = [str(plan.members), str(self._working_set), str(plan.seed)]
        self._crew = Crew(self._pool, plan.folder / "ledger", arguments, self._found, self._watch.missed)
        self._troubles.start()
        self._look_on(begun + plan.seconds)
        self._over.set()
        self._troubles.join()
        self._ledger.end()
        for member in self._crew.end():
            self._find("error", f"the worker of member {member} did not end as it should")
        self._watch.sample()
        return self._report(time.monotonic() - begun)

    def clean_up(self, *, keep: bool) -> None:
        """Everything ended, unmounted, and removed unless it is to be kept."""
        self._over.set()
        self._ledger.end()
        if self._crew is not None:
            self._crew.kill()
        if self._troubles.is_alive():  # it may be about to mount
            self._troubles.join(TROUBLE_SECONDS)
        self._pool.clean_up(keep=keep)

    def _damager(self) -> Damager:
        subjects = [file.subject for file in self._files]
        return Damager(self._pool.devices, subjects, EXTENT, random.Random(self._plan.seed))

    def _make_trouble(self) -> None:
        try:
            self._trouble.run(self._over)
        except (SoakFailed, OSError) as error:
            self._find("error", f"the soak ended early: {error}")
            self._over.set()

    def _look_on(self, until: float) -> None:
        """Until it is time, or something is so wrong that there is no use in going on."""
        assert self._crew is not None
        last_line = time.monotonic()
        while time.monotonic() < until and not self._over.wait(SAMPLE_SECONDS):
            self._watch.sample()
            self._watch.look_for_hung()
            if self._watch.died:
                return
            if dead := self._crew.dead():
                self._find("error", f"the workers of members {dead} are gone")
                return
            if sys.stderr.isatty() or time.monotonic() - last_line >= LINE_SECONDS:
                last_line = time.monotonic()
                self._tell(max(0.0, until - last_line))

    def _tell(self, left: float) -> None:
        assert self._crew is not None
        totals, troubles = self._crew.totals(), self._trouble.counts
        line = (
            f"{left / 60:.1f} min left, {sum(totals['calls'].values())} calls, {totals['hits']} hits, "
            f"{totals['misses']} misses, {format_size(totals['bytes_stored'])} stored, {troubles['kills']} kills, "
            f"{troubles['stops']} stops, {troubles['damages']} damages, {self._kinds.total()} findings"
        )
        end = "" if sys.stderr.isatty() else "\n"
        print(f"{NEW_LINE}soak: {line}", end=end, file=sys.stderr, flush=True)

    # ── findings ────────────────────────────────────────────────────────────────────────────────────────

    def _find(self, kind: str, text: str) -> None:
        self._found({"kind": kind, "text": text})

    def _found(self, finding: dict[str, Any]) -> None:
        after = round(time.monotonic() - self._begun, 1)
        self._kinds[finding["kind"]] += 1
        if len(self._findings) < FINDINGS_SHOWN:
            self._findings.append(finding | {"after": after})
            print(f"{NEW_LINE}soak: after {after} s: {finding['kind']}: {finding['text']}", file=sys.stderr)

    # ── the report ──────────────────────────────────────────────────────────────────────────────────────

    def _report(self, seconds: float) -> dict[str, Any]:
        assert self._crew is not None
        totals, counters = self._crew.totals(), self._watch.counters()
        lives = [(member, samples.as_json(life)) for member, life in self._watch.lives if life]
        self._judge(totals, lives)
        plan = self._plan
        return {
            "output_version": {"command": "soak", "major": 1, "minor": 0},
            "commit": commit(),
            "ok": not self._findings,
            "seconds": round(seconds, 1),
            "seed": plan.seed,
            "pool_bytes": plan.size,
            "working_set_bytes": self._working_set,
            "files": len(self._files),
            "members": plan.members,
            "work": {
                name: totals[name] for name in ("hits", "misses", "stores", "bytes_stored", "bytes_loaded")
            },
            "errors_while_disturbed": totals["errors"],
            "calls": totals["calls"],
            "slowest_seconds": totals["slowest"],
            "troubles": dict(self._trouble.counts),
            "pool": counters,
            "gone": {"found": totals["gone"], "youngest_seconds": totals["youngest_gone"]}
            | {"fresh": {reason.value: self._watch.reasons[reason] for reason in Reason}},
            "rule": samples.RULE,
            "processes": [{"member": member} | life for member, life in lives],
            "findings": {"kinds": dict(self._kinds), "first": self._findings},
        }

    def _judge(self, totals: dict[str, Any], lives: list[tuple[int, dict[str, Any]]]) -> None:
        """What only the whole of it shows."""
        if unexplained := self._watch.departures.unexplained(totals["gone"]):
            self._find("lost", f"{unexplained} files are gone beyond what the members let go")
        if totals["errors"].get("ENOSPC", 0) > NO_SPACE_PART * (totals["stores"] + 1):
            self._find(
                "no space", f"{totals['errors']['ENOSPC']} stores were refused, {totals['stores']} done"
            )
        for member, life in lives:
            for name in samples.ALLOWANCES:
                if life[name]["trend"] == samples.Trend.GROWING:
                    self._find("growing", f"{name} of member {member}: {life[name]}")
        for one in self._pool.members:
            if "Traceback" in one.log:
                self._find("error", f"member {one.number} had a traceback to tell of: {one.log[-2000:]}")
