"""Engines at work on a mount that is about to be killed: 16 threads that store, replace and remove, 16 that read.

A program of its own, since who has files open on a dead mount may be stuck, and a test must not be. It tells on stdout
what it does, a line of JSON each, before and after it is done:

    ["begin", name, seed, size]    the file is about to have `content(seed, size)`; seed null: to be removed
    ["done", name]                 close(2), rename(2) or unlink(2) has returned
    ["wrong", text]                an error, or bytes that nobody wrote
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.e2e.patterns.toolkit import PAGE, content, opened, write_all, write_direct

WRITERS, READERS = 16, 16
SIZES = (200, 5_000, 25 * PAGE, 150 * PAGE, 2_500_000)
BYTES = 110 << 20
"""Written at most: so little that nothing is evicted."""

Version = tuple[str, int] | None
"""What a name holds: the seed and size of its content, or nothing."""


class Journal:
    """What is true of every name, and the lines that say so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.acknowledged: dict[str, Version] = {}
        self.attempted: dict[str, Version] = {}
        self.over = threading.Event()
        self._room = BYTES
        self._changed = threading.Condition()

    def say(self, *line: object) -> None:
        with self._changed:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            self._changed.notify_all()

    def change(self, name: str, version: Version, act: Callable[[Path], object]) -> None:
        """Do one change, and tell before and after."""
        self.attempted[name] = version
        self.say("begin", name, *(version or (None, 0)))
        act(self.folder / name)
        self.acknowledged[name] = version
        del self.attempted[name]
        self.say("done", name)

    def take(self, size: int) -> bool:
        """False when enough is written."""
        with self._changed:
            self._room -= size
            return self._room > 0

    def settled(self, name: str) -> tuple[bool, Version]:
        """Whether nobody is changing it, and what it holds then."""
        return name not in self.attempted, self.acknowledged.get(name)

    def await_names(self) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: self.acknowledged or self.over.is_set(), timeout=1)
        return list(self.acknowledged)


def write(journal: Journal, thread: str) -> None:
    """New files by rename or in place, old ones replaced and removed."""
    rng = random.Random(thread)
    names: list[str] = []
    for number in range(1000):
        size = rng.choice(SIZES)
        if not journal.take(size):
            return
        act = rng.choice(("new", "new", "new in place", "replace", "remove"))
        if act == "remove" and names:
            journal.change(names.pop(rng.randrange(len(names))), None, Path.unlink)
            continue
        replaces = act == "replace" and bool(names)
        name = rng.choice(names) if replaces else f"{thread}-{number}.bin"
        data = content(f"{thread} {number}", size)
        store = store_in_place if act == "new in place" else store_by_rename
        journal.change(name, (f"{thread} {number}", size), partial(store, data=data))
        if not replaces:
            names.append(name)


def store_in_place(path: Path, data: bytes) -> None:
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        half = len(data) // 2
        os.write(fd, data[:half])
        os.write(fd, data[half:])


def store_by_rename(path: Path, data: bytes) -> None:
    temp = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
    put = write_all if len(data) % PAGE else write_direct
    put(temp, data=data, flags=os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    temp.rename(path)


def read(journal: Journal, thread: str) -> None:
    """What is acknowledged and not being changed reads as it was written."""
    rng = random.Random(thread)
    while not journal.over.is_set():
        names = journal.await_names()
        if not names:
            continue
        name = rng.choice(names)
        before = journal.settled(name)
        data = read_if_there(journal.folder / name)
        if before[0] and journal.settled(name) == before and data != expected(before[1]):
            journal.say("wrong", f"{name}: {said(data)}, expected {said(expected(before[1]))}")


def read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def expected(version: Version) -> bytes | None:
    return None if version is None else content(*version)


def said(data: bytes | None) -> str:
    return "gone" if data is None else f"{len(data)} bytes"


def main(folder: str, seed: str) -> None:
    journal = Journal(Path(folder))

    def job(work: Callable[[Journal, str], None], thread: str) -> None:
        try:
            work(journal, thread)
        except OSError as error:
            journal.over.set()
            journal.say("wrong", f"{work.__name__}: {error!r}")

    jobs = [(write, f"{seed}-{number}") for number in range(WRITERS)]
    jobs += [(read, f"reader {seed}-{number}") for number in range(READERS)]
    threads = [threading.Thread(target=job, args=arguments) for arguments in jobs]
    for thread in threads:
        thread.start()
    for thread in threads[:WRITERS]:
        thread.join()
    journal.over.set()


if __name__ == "__main__":
    main(*sys.argv[1:3])
