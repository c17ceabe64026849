"""A page about a recorded trace: one HTML file with plots, which loads nothing and runs nothing. Pure."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from kvfs.hindsight import BEST, POLICIES, accesses, distances, following, ratios
from kvfs.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvfs.traces import Trace

_WIDTH, _HEIGHT = 640, 240
_LEFT, _BOTTOM, _TOP, _RIGHT = 56, 40, 12, 12
_BINS = 60
_SERIES = 4
_STYLE = """
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--line:#ccc;--s0:#1b6ca8;--s1:#c8553d;--s2:#3a7d44;--s3:#8d6a9f}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#181818;--line:#444;--s0:#6cb4ee;--s1:#f0907a;--s2:#86c98f;--s3:#c4a3d6}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:720px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse}td,th{padding:.15em .9em .15em 0;text-align:right}td:first-child,th:first-child{text-align:left}
svg{width:100%;height:auto}svg text{fill:var(--ink);font:11px system-ui,sans-serif}.grid{stroke:var(--line);stroke-width:1}
""" + "".join(f".s{n}{{stroke:var(--s{n});fill:var(--s{n})}}" for n in range(_SERIES))


class Series(NamedTuple):
    """What one colour shows: a value for each place on the x axis."""

    name: str
    values: Sequence[float]


def page(trace: Trace, title: str) -> str:
    """The page. `title` is shown as it is."""
    events, seen = trace.events, accesses(trace.events)
    parts = [f"<h1>{escape(title)}</h1>", _summary(trace)]
    if events:
        parts += ["<h2>Over time</h2>", _over_time(trace)]
    if seen:
        parts += ["<h2>Sizes</h2><p>Of files that were opened or published.</p>", _sizes(trace)]
        parts += [
            "<h2>Hits by size of cache</h2><p>Share of opens of which the file would have been there. Belady's choice knows "
            "the future: nobody has more.</p>",
            _hits(trace),
            "<h2>Until a file is opened again</h2><p>Other files used since it was used last: an LRU cache of as many has it."
            "</p>",
            _distances(trace),
            "<h2>What comes next</h2>",
            _following(trace),
        ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _summary(trace: Trace) -> str:
    counts = Counter(event.what for event in trace.events)
    opens = [event for event in trace.events if event.what == "open"]
    seconds = trace.events[-1].time if trace.events else 0.0
    rows = [
        ("seconds", f"{seconds:,.1f}"),
        *(
            (f"{name} events", f"{counts[name]:,}")
            for name in ("lookup", "open", "publish", "remove", "gone")
        ),
        ("files", f"{len({event.name for event in trace.events}):,}"),
        ("opens that were in memory", _share(sum(event.hit for event in opens), len(opens))),
        ("events lost while recording", f"{trace.lost:,}"),
        ("the file", "whole" if trace.whole else "was cut off"),
    ]
    return _table(("", ""), rows)


def _over_time(trace: Trace) -> str:
    end = max(trace.events[-1].time, 1e-6)
    names = ("lookup", "open", "publish")
    bins = {name: [0.0] * _BINS for name in names}
    for event in trace.events:
        if event.what in bins:
            bins[event.what][min(int(event.time / end * _BINS), _BINS - 1)] += 1
    labels = [f"{end * n / _BINS:.3g} s" for n in range(_BINS)]
    return _lines(labels, [Series(name, bins[name]) for name in names])


def _sizes(trace: Trace) -> str:
    sizes = {event.name: event.size for event in trace.events if event.what in ("open", "publish")}
    return _powers(Counter(max(size, 1).bit_length() - 1 for size in sizes.values()), "files", as_bytes=True)


def _hits(trace: Trace) -> str:
    found = ratios(accesses(trace.events))
    labels = [f"{one.share:.0%}" for one in found]
    names = [*POLICIES, BEST]
    plot = _lines(labels, [Series(name, [one.hits[name] for one in found]) for name in names], top=1.0)
    rows = [
        (f"{one.share:.0%} of files", f"{one.files:,}", *(f"{one.hits[n]:.3f}" for n in names))
        for one in found
    ]
    return plot + _table(("cache", "files", *names), rows)


def _distances(trace: Trace) -> str:
    return _powers(distances(accesses(trace.events)), "opens", as_bytes=False)


def _following(trace: Trace) -> str:
    found = following(trace.events)
    rows = [
        ("blocks opened", f"{found.opened:,}"),
        ("of these expected, from two blocks of their chain", _share(found.foretold, found.opened)),
        ("blocks expected", f"{found.expected:,}"),
        ("of these opened while they were", _share(found.foretold, found.expected)),
    ]
    return _table(("", ""), rows)


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else "none"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    head = line(heads, "th") if any(heads) else ""
    return f"<table>{head}{''.join(line(row, 'td') for row in rows)}</table>"


# ── plots ────────────────────────────────────────────────────────────────────────────────────────────────


def _powers(counts: Counter[int], name: str, *, as_bytes: bool) -> str:
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


def _lines(labels: Sequence[str], series: Sequence[Series], top: float | None = None) -> str:
    top = top or max([value for one in series for value in one.values] + [1.0])
    drawn = []
    for number, one in enumerate(series):
        points = " ".join(
            f"{_x(n, len(labels)):.1f},{_y(value, top):.1f}" for n, value in enumerate(one.values)
        )
        drawn.append(f'<polyline class="s{number}" style="fill:none;stroke-width:2" points="{points}"/>')
        at = _LEFT + 8 + number * 90
        drawn.append(f'<rect class="s{number}" x="{at}" y="{_TOP}" width="10" height="10"/>')
        drawn.append(f'<text x="{at + 14}" y="{_TOP + 9}">{escape(one.name)}</text>')
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
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP - 16)
