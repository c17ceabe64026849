"""Runs one benchmark and prints its rows as one JSON object. Exit codes: 0 all bars met, 1 one missed or failed, 2 usage."""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

NAMES = tuple(sorted(path.stem for path in (Path(__file__).parent / "benches").glob("[a-z]*.py")))


@dataclass
class Row:
    """One figure, measured several times.

    :ivar unit: `ratio` is kvfs divided by its baseline of the same round
    :ivar floor: the median must not be less
    :ivar ceiling: the median must not be more
    """

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    floor: float | None = None
    ceiling: float | None = None

    def as_json(self) -> dict[str, Any]:
        median = statistics.median(self.values)
        shown: dict[str, Any] = {"name": self.name, "unit": self.unit}
        shown |= {"min": _short(min(self.values)), "median": _short(median), "max": _short(max(self.values))}
        ok = True
        if self.floor is not None:
            shown["floor"] = self.floor
            ok = median >= self.floor
        if self.ceiling is not None:
            shown["ceiling"] = self.ceiling
            ok = ok and median <= self.ceiling
        return shown | {"ok": ok}


class Rows:
    """The rows of a benchmark, in the order in which they were first measured."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self.notes: list[str] = []
        """What one must know to read the figures."""

    def add(
        self, name: str, unit: str, value: float, *, floor: float | None = None, ceiling: float | None = None
    ) -> None:
        """One more value of a row."""
        row = self._rows.setdefault(name, Row(name, unit, floor=floor, ceiling=ceiling))
        row.values.append(value)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def commit() -> str:
    """The checked-out commit, with `+` if there are changes; `unknown` outside a checkout."""
    try:
        run = [
            subprocess.run(["git", "-C", str(ROOT), *what], capture_output=True, text=True, check=True).stdout
            for what in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run[0].strip() + ("+" if run[1].strip() else "")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure kvfs against a baseline.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds: ends within 45 s")
    parser.add_argument(
        "--folder", type=Path, help="where the data go; both sides use the disk that it is on"
    )
    parser.add_argument("--trace", type=Path, help="prefetch: a trace of requests; else those in KVFS_TRACES")
    options = parser.parse_args(arguments)
    rows = Rows()
    importlib.import_module(f"scripts.lib.benches.{options.name}").run(rows, options)
    shown = [row.as_json() for row in rows]
    notes = {"notes": rows.notes} if rows.notes else {}
    print(json.dumps({"commit": commit(), **notes, "rows": shown}, indent=1))
    return 0 if all(row["ok"] for row in shown) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
