"""A recorded trace done again in a directory: files of the recorded sizes, with bytes that tell whose they are.

Events are done one after the other, each not before its time. Files that were there before the recording began are stored
first. What the trace says of evictions is not done: the pool decides for itself.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from hashlib import shake_128
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvfs.traces import Event

_PATTERN: Final = 1 << 16
_MOVES: Final = ("publish", "open")


@dataclass(slots=True)
class Replayed:
    """What happened.

    :ivar stored: files, without those that were there before
    :ivar loaded: opens that found the file
    :ivar missed: opens that did not
    :ivar wrong: loads of which a byte was not the file's
    :ivar late: seconds by which the last event was behind its time
    :ivar stores: seconds of each store
    :ivar loads: seconds of each load
    """

    stored: int = 0
    loaded: int = 0
    missed: int = 0
    wrong: int = 0
    late: float = 0.0
    stores: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


def percentile(seconds: Sequence[float], share: float) -> float | None:
    """The smallest that as large a share of them does not exceed; None of none."""
    ranked = sorted(seconds)
    return ranked[max(math.ceil(share * len(ranked)) - 1, 0)] if ranked else None


def content(name: str, size: int) -> bytes:
    """The bytes of a file."""
    pattern = shake_128(name.encode()).digest(min(_PATTERN, size))
    return (pattern * (size // _PATTERN + 1))[:size]


def replay(
    events: Sequence[Event],
    folder: Path,
    *,
    fast: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> Replayed:
    """Do what a trace says in a directory, which is left as it is then.

    :param fast: do not wait for an event's time
    :param told: called with how many bytes were stored and loaded, and how many there are in the trace
    :raises OSError: something failed otherwise than by a file not being there
    """
    result = Replayed()
    for name, size in _before(events).items():
        _store(folder, name, size)
    began = clock()
    moved, total = 0, sum(event.size for event in events if event.what in _MOVES)
    for event in events:
        due = began + event.time
        if not fast and clock() < due:
            sleep(due - clock())
        _do(event, folder, result, clock)
        result.late = 0.0 if fast else max(clock() - due, 0.0)
        if event.what in _MOVES:
            moved += event.size
            told(moved, total)
    return result


def _before(events: Sequence[Event]) -> dict[str, int]:
    """Files that are opened before they are published, and their sizes."""
    published: set[str] = set()
    found: dict[str, int] = {}
    for event in events:
        if event.what == "publish":
            published.add(event.name)
        elif event.what == "open" and event.name not in published:
            found.setdefault(event.name, event.size)
    return found


def _do(event: Event, folder: Path, result: Replayed, clock: Callable[[], float]) -> None:
    path = folder / f"{event.name}.bin"
    began = clock()
    if event.what == "publish":
        _store(folder, event.name, event.size)
        result.stores.append(clock() - began)
        result.stored += 1
    elif event.what == "open":
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            result.missed += 1
            return
        result.loads.append(clock() - began)
        result.loaded += 1
        result.wrong += data != content(event.name, len(data))
    elif event.what == "lookup":
        path.exists()
    elif event.what == "remove":
        path.unlink(missing_ok=True)


def _store(folder: Path, name: str, size: int) -> None:
    spare = folder / f"{name}.tmp"
    file = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        left = memoryview(content(name, size))
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)
    spare.replace(folder / f"{name}.bin")
