"""Plots as SVG, which need nothing but a style. Pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from kvfs.sizes import format_size

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 640, 240
_LEFT, _BOTTOM, _TOP, _RIGHT = 56, 40, 28, 12
_COLUMN = 72
SERIES = 8
"""That can be told apart, at most."""
_LIGHT = ("1b6ca8", "c8553d", "3a7d44", "8d6a9f", "b8860b", "d1478c", "20808d", "555555")
_DARK = ("6cb4ee", "f0907a", "86c98f", "c4a3d6", "e3b341", "f286b8", "5fc4d1", "aaaaaa")
STYLE = (
    ":root{" + "".join(f"--s{n}:#{colour};" for n, colour in enumerate(_LIGHT)) + "}"
    "@media(prefers-color-scheme:dark){:root{"
    + "".join(f"--s{n}:#{colour};" for n, colour in enumerate(_DARK))
    + "}}svg{width:100%;height:auto}svg text{fill:var(--ink);font:11px system-ui,sans-serif}"
    ".grid{stroke:var(--line);stroke-width:1}"
    + "".join(f".s{n}{{stroke:var(--s{n});fill:var(--s{n})}}" for n in range(SERIES))
)
"""Needs `--ink` and `--line` to be set."""


class Series(NamedTuple):
    """What one colour shows: a value for each place on the x axis."""

    name: str
    values: Sequence[float]


def powers(counts: Counter[int], name: str, *, as_bytes: bool) -> str:
    """Bars, one for each power of two."""
    places = range(min(counts, default=0), max(counts, default=0) + 1)
    labels = [format_size(1 << power) if as_bytes else f"{1 << power:,}" for power in places]
    values = [float(counts[power]) for power in places]
    top = max([*values, 1.0])
    step = (_WIDTH - _LEFT - _RIGHT) / len(values)
    bars = "".join(
        f'<rect class="s0" x="{_LEFT + n * step + 1:.1f}" y="{_y(value, top):.1f}" width="{max(step - 2, 1):.1f}" '
        f'height="{_HEIGHT - _BOTTOM - _y(value, top):.1f}"><title>{escape(labels[n])}: {value:,.0f} {name}</title></rect>'
        for n, value in enumerate(values)
    )
    return _frame(labels, top, bars)


def lines(labels: Sequence[str], series: Sequence[Series], top: float | None = None) -> str:
    top = top or max([value for one in series for value in one.values] + [1.0])
    drawn = []
    for number, one in enumerate(series):
        points = " ".join(
            f"{_x(n, len(labels)):.1f},{_y(value, top):.1f}" for n, value in enumerate(one.values)
        )
        drawn.append(f'<polyline class="s{number}" style="fill:none;stroke-width:2" points="{points}"/>')
        at = _LEFT + number * _COLUMN
        drawn.append(f'<rect class="s{number}" x="{at}" y="2" width="10" height="10"/>')
        drawn.append(f'<text x="{at + 14}" y="11">{escape(one.name)}</text>')
    return _frame(labels, top, "".join(drawn))


def _frame(labels: Sequence[str], top: float, inside: str) -> str:
    """Axes around what is drawn."""
    grid = []
    for part in range(5):
        value = top * part / 4
        y = _y(value, top)
        grid.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        grid.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.3g}</text>')
    every = max(len(labels) // 8, 1)
    for number in range(0, len(labels), every):
        x = _x(number, len(labels))
        grid.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{escape(labels[number])}</text>'
        )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(grid)}{inside}</svg>'


def _x(number: int, count: int) -> float:
    step = (_WIDTH - _LEFT - _RIGHT) / count
    return _LEFT + (number + 0.5) * step


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)
