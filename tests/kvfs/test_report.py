from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple
from uuid import UUID

import pytest

from kvfs.report import flat, plain


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    pair: Pair
    inner: tuple[Inner, ...]
    by_level: dict[Level, int]
    uuid: UUID
    id: bytes
    colour: Colour
    none: None = None
    on: bool = True


SNAPSHOT = Snapshot(Pair(1, "r"), (Inner("a", 2**60),), {Level.HIGH: 4}, UUID(int=7), b"\x0a\xff", Colour.RED)


def test_a_snapshot_becomes_what_json_has() -> None:
    expected = {
        "pair": {"left": 1, "right": "r"},
        "inner": [{"name": "a", "bytes": 2**60}],
        "by_level": {"high": 4},
        "uuid": "00000000-0000-0000-0000-000000000007",
        "id": "0aff",
        "colour": "red",
        "none": None,
        "on": True,
    }
    assert plain(SNAPSHOT) == expected
    assert json.loads(json.dumps(plain(SNAPSHOT))) == expected


def test_what_is_no_snapshot_is_refused() -> None:
    with pytest.raises(TypeError, match="object is not part of a snapshot"):
        plain({"a": object()})


def test_nested_values_get_dotted_names() -> None:
    assert flat(plain(SNAPSHOT)) == [
        ("pair.left", 1),
        ("pair.right", "r"),
        ("inner.a.name", "a"),
        ("inner.a.bytes", 2**60),
        ("by_level.high", 4),
        ("uuid", "00000000-0000-0000-0000-000000000007"),
        ("id", "0aff"),
        ("colour", "red"),
        ("none", None),
        ("on", True),
    ]
    assert flat({"gone": [], "lost": [1, 2], "rows": [{"x": 1}]}) == [
        ("gone", None),
        ("lost", "1,2"),
        ("rows.0.x", 1),
    ]
