"""Threads that write and read files until SIGTERM, or for some seconds, and what they met.

workload FOLDER [SECONDS]

Each writes a file, renames it into place, and reads one that it wrote before; what is read must be what was written. Says
"begun" when every thread has written all of its files, and at the end, as JSON: {"written", "read", "missed", "wrong",
"longest" (seconds of the longest call), "call" (which that was), "calm" (seconds of the longest one that was over before
SIGUSR1, which tells what the machine can do), "late" (seconds by which somebody who does nothing but sleep woke up too
late, in the worst stretch of WINDOW), "failed" {"rename EIO": count}}.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

THREADS = 8
FILES = 4
SIZE = 256 << 10
NAP = 0.05
WINDOW = 6.0
"""Seconds."""
PAUSE = 0.2
"""Seconds between two rounds of a thread: it is about how long calls take, not how many there are."""

_Result = TypeVar("_Result")


class Thread(threading.Thread):
    def __init__(self, folder: Path, number: int, end: threading.Event) -> None:
        super().__init__()
        self.folder, self.number, self.end = folder, number, end
        self.begun = threading.Event()
        self.counts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.longest, self.call, self.calm = 0.0, "", 0.0
        self.last = ""
        self.contents: dict[int, set[int]] = {}
        """By file, the versions that it may have: a rename that failed may have happened."""

    def run(self) -> None:
        version = 0
        while not self.end.wait(PAUSE if self.begun.is_set() else 0):
            version += 1
            if version > FILES and not self.begun.is_set():
                self.longest = 0.0  # they had no pauses
                self.begun.set()
            number = version % FILES
            self.attempt(self.write, number, version)
            if self.begun.is_set():
                self.attempt(self.read, version * 7 % FILES, 0)

    def note_calm(self) -> None:
        """What was done up to now was done while nothing was wrong."""
        self.calm, self.longest = self.longest, 0.0

    def attempt(self, what: Callable[[int, int], None], number: int, version: int) -> None:
        try:
            what(number, version)
        except OSError as error:
            self.failed[f"{self.last} {errno.errorcode.get(error.errno or 0, '?')}"] += 1

    def timed(self, name: str, call: Callable[[], _Result]) -> _Result:
        began, self.last = time.monotonic(), name
        try:
            return call()
        finally:
            self.longest, self.call = max((self.longest, self.call), (time.monotonic() - began, name))

    def path(self, number: int) -> Path:
        return self.folder / f"{self.number}-{number}"

    def write(self, number: int, version: int) -> None:
        spare = self.folder / f"{self.number}.new"
        file = self.timed("open", lambda: os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        try:
            self.timed("write", lambda: os.write(file, content(self.number, number, version)))
        finally:
            self.timed("close", lambda: os.close(file))
        self.contents.setdefault(number, set()).add(version)
        self.timed("rename", lambda: os.rename(spare, self.path(number)))  # noqa: PTH104
        self.contents[number] = {version}
        self.counts["written"] += 1

    def read(self, number: int, _: int) -> None:
        try:
            file = self.timed("open", lambda: os.open(self.path(number), os.O_RDONLY))
        except FileNotFoundError:
            self.counts["missed"] += 1
            return
        try:
            data = self.timed("read", lambda: os.read(file, SIZE))
        finally:
            self.timed("close", lambda: os.close(file))
        known = self.contents.get(number)
        if known is not None and data not in [content(self.number, number, version) for version in known]:
            self.counts["wrong"] += 1
        self.counts["read"] += 1


def content(thread: int, number: int, version: int) -> bytes:
    return hashlib.shake_128(f"{thread} {number} {version}".encode()).digest(SIZE)


def nap(end: threading.Event, seconds: float | None) -> float:
    """Sleep, a moment at a time, until the end; how late it was to wake up in the worst WINDOW."""
    begun = time.monotonic()
    lost: deque[tuple[float, float]] = deque()
    worst = 0.0
    while not end.is_set() and (seconds is None or time.monotonic() < begun + seconds):
        before = time.monotonic()
        end.wait(NAP)
        lost.append((before, time.monotonic() - before - NAP))
        while lost[0][0] < before - WINDOW:
            lost.popleft()
        worst = max(worst, sum(late for _, late in lost))
    return worst


def main(folder: Path, seconds: float | None) -> None:
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    threads = [Thread(folder, number, end) for number in range(THREADS)]

    def note_calm(*_: object) -> None:
        for thread in threads:
            thread.note_calm()

    signal.signal(signal.SIGUSR1, note_calm)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.begun.wait()
    print("begun", flush=True)
    late = nap(end, seconds)
    end.set()
    for thread in threads:
        thread.join()
    counts = sum((thread.counts for thread in threads), Counter[str]())
    longest, call = max((thread.longest, thread.call) for thread in threads)
    print(
        json.dumps(
            {name: counts[name] for name in ("written", "read", "missed", "wrong")}
            | {"longest": round(longest, 3), "call": call}
            | {"calm": round(max(thread.calm for thread in threads), 3), "late": round(late, 3)}
            | {"failed": sum((thread.failed for thread in threads), Counter[str]())}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else None)
