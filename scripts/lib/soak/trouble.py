"""What happens to the members while engines use them: kill -9, SIGSTOP, mounting again, and damage below."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from scripts.lib.soak.damage import Damager
from scripts.lib.soak.departures import UNTOLD
from scripts.lib.soak.ledger import Ledger
from scripts.lib.soak.pool import Member, SoakFailed, SoakPool
from scripts.lib.soak.universe import File
from scripts.lib.soak.watch import Watch

MEAN_SECONDS = 6.0
"""Between two troubles."""
STOPPED_SECONDS = (0.5, 5.0)
IDLE_SECONDS = 60.0
"""In which workers that are paused must have come to an end with what they were doing."""
CENSUS_SECONDS = 60.0
LATE_SECONDS = 3.0
"""After which what is missing is looked for once more, to tell what is late from what is lost."""


class Trouble:
    """Makes trouble, one after the other, in the order that the seed has.

    The first member is never killed, that its memory may be watched over the whole run; a lone one is.

    :ivar counts: of what was done
    """

    def __init__(
        self,
        pool: SoakPool,
        ledger: Ledger,
        files: list[File],
        watch: Watch,
        damager: Damager,
        rng: random.Random,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._pool = pool
        self._ledger = ledger
        self._files = files
        self._watch = watch
        self._damager = damager
        self._rng = rng

    def run(self, over: threading.Event) -> None:
        """Until it is over.

        :raises SoakFailed: a member does not come back
        """
        acts = {self._stop: 4, self._damage: 6, self._kill: 2, self._kill_and_count: 2, self._remount: 1}
        while not over.wait(self._rng.expovariate(1 / MEAN_SECONDS)):
            [act] = self._rng.choices(list(acts), list(acts.values()))
            act()

    def _victim(self) -> Member:
        return self._rng.choice(self._pool.members[1:] or self._pool.members)

    # ── troubles ────────────────────────────────────────────────────────────────────────────────────────

    def _stop(self) -> None:
        member = self._rng.choice(self._pool.members)
        with self._disturbed(member):
            member.stop()
            time.sleep(self._rng.uniform(*STOPPED_SECONDS))
            member.go_on()
        self.counts["stops"] += 1

    def _damage(self) -> None:
        hit = self._damager.flip()
        if hit is not None:
            self._watch.damaged(hit.name)
            self.counts["damages"] += 1

    def _kill(self) -> None:
        """The others go on meanwhile."""
        member = self._victim()
        with self._disturbed(member):
            self._killed(member)
            self._ledger.pause(member.number, on=True)
            self._await_idle([member])
            member.umount()
            member.mount()
        self._ledger.pause(member.number, on=False)

    def _kill_and_count(self) -> None:
        """Everybody is held still when it is dead: what the others see then, it must see too when it is back."""
        member = self._victim()
        others = [other for other in self._pool.members if other is not member]
        with self._quiet():
            with self._disturbed(member):
                self._killed(member)
                self._ledger.pause_all(on=True)
                self._await_idle(self._pool.members)
                counted = self._watch.sample()
                before = self._census(others[0]) if others else set()
                member.umount()
                member.mount()
            if others and counted is not None:
                self._compare(before, others[0], member, counted)
                self.counts["censuses"] += 1

    def _remount(self) -> None:
        member = self._victim()
        self._ledger.pause(member.number, on=True)
        self._await_idle([member])
        with self._disturbed(member):
            member.umount()
            self._watch.ended(member)
            member.mount()
        self._ledger.pause(member.number, on=False)
        self.counts["remounts"] += 1

    # ── their parts ─────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _disturbed(self, member: Member) -> Iterator[None]:
        """For the length of the block calls on the mount may take long and fail, and it is not asked."""
        self._watch.sample()
        with self._watch.without(member):
            self._ledger.disturb(member.number)
            yield
            self._ledger.calm(member.number)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        yield
        self._ledger.pause_all(on=False)

    def _killed(self, member: Member) -> None:
        member.kill()
        self._watch.ended(member)
        self.counts["kills"] += 1

    def _await_idle(self, members: list[Member]) -> None:
        deadline = time.monotonic() + IDLE_SECONDS
        while not all(self._ledger.is_idle(member.number) for member in members):
            if time.monotonic() > deadline:
                raise SoakFailed("calls do not return: see 'hung' among the findings")
            time.sleep(0.01)

    def _census(self, member: Member) -> set[str]:
        """Names of the files that are there, by this mount."""

        def there() -> set[str]:
            root = member.mount_point
            return {file.subject.name for file in self._files if (root / file.path).exists()}

        executor = ThreadPoolExecutor(1)  # not joined: it may hang in the mount
        try:
            return executor.submit(there).result(CENSUS_SECONDS)
        except TimeoutError:
            raise SoakFailed(f"looking up every file on {member.mount_point} does not end") from None
        finally:
            executor.shutdown(wait=False)

    def _compare(self, before: set[str], stayed: Member, back: Member, counted: int) -> None:
        """What `stayed` saw before `back` was there again, both must see now, but what departed meanwhile, and what had
        just departed when `back` was killed.
        """
        missing = sorted(before - self._census(back))
        departed = self._departed(counted)
        if len(missing) > departed + UNTOLD:
            time.sleep(LATE_SECONDS)
            late, there = (len(before - self._census(member)) for member in (back, stayed))
            self._watch.find(
                "lost",
                f"{len(missing)} files that member {stayed.number} saw are a miss on {back.number}, back from a kill, while"
                f" {departed} departed; {LATE_SECONDS:.0f} s later {late} are, {there} on the former, and"
                f" {self._departed(counted)} have departed: {missing[:3]}",
            )

    def _departed(self, counted: int) -> int:
        """Since so many had."""
        total = self._watch.sample()
        return 0 if total is None else total - counted
