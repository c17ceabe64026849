from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple
from uuid import UUID

import pytest

from blockdev.region import Region
from blockdev.tally import Tally
from blockdev.types import DeviceNo, Epoch, Generation, ObjectId, RegionId, RegionNo, SlotClass, SlotNo
from kvfs.metrics import StatisticsCollector
from kvfs.report import GAUGES, class_name, flat, plain, space_of


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


def test_slot_classes_are_named_by_their_size() -> None:
    assert [class_name(slot_class) for slot_class in SlotClass] == [
        "inline", "64 KiB", "512 KiB", "2 MiB", "4 MiB", "8 MiB", "16 MiB",
    ]  # fmt: skip


def test_slots_are_told_by_class() -> None:
    tally = Tally()
    for number, slot_class in enumerate((SlotClass.INLINE, SlotClass.MIB4)):
        region = Region.formatted(RegionId(DeviceNo(0), RegionNo(number)), slot_class, Epoch(1), 8)
        for slot in [region.take() for _ in range(3)]:
            assert slot is not None
            region.publish(slot, ObjectId(bytes(16)))
        region.free(SlotNo(0), Generation(region.generation[0] + 1), 3, 0.0)
        tally.add(region)
    shown = space_of(tally.totals(7))
    assert shown["unused_regions"] == 7
    assert shown["regions_by_class"] == {"inline": 1, "4 MiB": 1}
    assert shown["live_slots_by_class"] == {"inline": 2, "4 MiB": 2}
    assert shown["limbo_slots_by_class"] == {"inline": 1, "4 MiB": 1}
    assert ("space.free_slots_by_class.4 MiB", 5) in flat({"space": shown})
    assert "classes" not in shown
    metrics = StatisticsCollector(lambda: {"space": shown}, {"pool": "hot"}, GAUGES).collect()
    samples = {(s.name, s.labels.get("class")): s.value for metric in metrics for s in metric.samples}
    assert samples["kvfs_space_live_slots", "4 MiB"] == 2
    assert samples["kvfs_space_live", None] == (2 << 22) + (2 << 13)
