"""A trace done again in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfs.replaying import content, percentile, replay
from kvfs.traces import Event

SIZE = 100_000


def test_what_is_stored_is_loaded_and_checked(tmp_path: Path) -> None:
    events = [
        Event(0, "publish", "a", "a", size=SIZE),
        Event(1, "open", "a", "a", size=SIZE),
        Event(2, "open", "before", "b", size=5),
        Event(3, "remove", "a", "a"),
        Event(4, "open", "a", "a", size=SIZE),
        Event(5, "gone", "before", "b"),
        Event(6, "lookup", "nothing", "n"),
    ]
    told: list[tuple[int, int]] = []
    done = replay(events, tmp_path, fast=True, told=lambda *what: told.append(what))
    assert (done.stored, done.loaded, done.missed, done.wrong) == (1, 2, 1, 0)
    assert (len(done.stores), len(done.loads)) == (1, 2)
    assert told[-1] == (3 * SIZE + 5, 3 * SIZE + 5)
    assert {path.name for path in tmp_path.iterdir()} == {"before.bin"}


class Corrupt:
    """Changes a byte of a file when the clock is asked the third time: between its store and its load."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked = 0

    def __call__(self) -> float:
        self._asked += 1
        if self._path.exists() and self._asked > 2:
            data = bytearray(self._path.read_bytes())
            data[-1] = content("a", SIZE)[-1] ^ 1
            self._path.write_bytes(data)
        return float(self._asked)


def test_a_wrong_byte_is_seen(tmp_path: Path) -> None:
    events = [Event(0, "publish", "a", "a", size=SIZE), Event(0, "open", "a", "a", size=SIZE)]
    assert replay(events, tmp_path, fast=True, clock=Corrupt(tmp_path / "a.bin")).wrong == 1


def test_events_have_their_time(tmp_path: Path) -> None:
    now, slept = [10.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    events = [Event(1.0, "lookup", "a", "a"), Event(3.5, "lookup", "a", "a")]
    done = replay(events, tmp_path, fast=False, clock=lambda: now[0], sleep=sleep)
    assert slept == [1.0, 2.5]
    assert done.late == 0


@pytest.mark.parametrize("share, found", [(0.5, 2.0), (0.99, 4.0), (0.0, 1.0)])
def test_percentiles(share: float, found: float) -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], share) == found
    assert percentile([], share) is None
