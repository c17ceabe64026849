"""The worker processes, one a member, and what they say."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.lib.soak.departures import Miss
from scripts.lib.soak.pool import SoakPool

ROOT = Path(__file__).parents[3]
ENDS_SECONDS = 30.0
"""In which a worker ends when it is told to."""
SUMMED = ("hits", "misses", "stores", "bytes_stored", "bytes_loaded", "gone")


class Crew:
    """Starts a worker for each member; `end` ends them.

    :param arguments: of every worker, behind the ledger, its mount point and its number
    :param on_finding: told what should not be: a worker's line
    :param on_miss: told of files that are gone though they were just stored
    """

    def __init__(
        self,
        pool: SoakPool,
        ledger: Path,
        arguments: list[str],
        on_finding: Callable[[dict[str, Any]], None],
        on_miss: Callable[[Miss], None],
    ) -> None:
        self._on_finding = on_finding
        self._on_miss = on_miss
        self._tallies: dict[int, dict[str, Any]] = {}
        self._processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "scripts.lib.soak.worker", str(ledger)),
                    *(str(member.mount_point), str(member.number), *arguments),
                ],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                start_new_session=True,  # an interrupt is for who started the soak, who then ends the workers
            )
            for member in pool.members
        ]
        self._threads = [
            threading.Thread(target=self._listen, args=item, daemon=True)
            for item in enumerate(self._processes)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> list[int]:
        """Wait for workers that have been told to end; the members of those that ended otherwise."""
        wrong = []
        for number, (process, thread) in enumerate(zip(self._processes, self._threads, strict=True)):
            try:
                process.wait(ENDS_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            thread.join(ENDS_SECONDS)
            if process.poll() != 0:
                wrong.append(number)
        return wrong

    def kill(self) -> None:
        """For who does not care any more."""
        for process in self._processes:
            process.kill()

    def dead(self) -> list[int]:
        """Members whose worker is gone."""
        return [number for number, process in enumerate(self._processes) if process.poll() is not None]

    def totals(self) -> dict[str, Any]:
        """What all have counted together."""
        tallies = list(self._tallies.values())
        body: dict[str, Any] = {name: sum(tally[name] for tally in tallies) for name in SUMMED}
        ages = [tally["youngest_gone"] for tally in tallies if tally["youngest_gone"] is not None]
        body["youngest_gone"] = min(ages, default=None)
        for name in ("errors", "calls"):
            body[name] = dict(sorted(sum((Counter(tally[name]) for tally in tallies), Counter()).items()))
        body["slowest"] = _slowest([tally["slowest"] for tally in tallies])
        return body

    def _listen(self, member: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            what, fields = json.loads(line)
            if what == "tally":
                self._tallies[member] = fields
            elif what == "gone":
                self._on_miss(Miss(**fields))
            else:
                self._on_finding(fields)


def _slowest(several: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The slowest of each kind, seconds."""
    found: dict[str, dict[str, float]] = {}
    for one in several:
        for when, calls in one.items():
            known = found.setdefault(when, {})
            for name, seconds in calls.items():
                known[name] = round(max(known.get(name, 0.0), seconds), 3)
    return found
