"""A page about a trace: one HTML file with plots, which loads nothing and runs nothing. Pure."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from kvfs.foretelling import following
from kvfs.hindsight import SHARES, distances, policies_for, ratios
from kvfs.plots import STYLE, Series, lines, powers
from kvfs.sizes import format_size
from kvfs.traces import Trace
from kvfs.uses import Uses, uses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvfs.traces import Requests

_BINS = 60
_STYLE = (
    """
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--line:#ccc}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#181818;--line:#444}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:720px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse}td,th{padding:.15em .9em .15em 0;text-align:right}td:first-child,th:first-child{text-align:left}
"""
    + STYLE
)
_POLICIES = {
    "lru": "the least recently used leaves first",
    "leaf_lru": "so, but a block only after all that follow it",
    "arc": "ARC",
    "s3fifo": "S3-FIFO",
    "ours": "a pool of kvfs with eviction: value",
    "ours_ahead": "the memory of a mount before such a pool, with what it fetches ahead, as if that took no time",
    "ours_told": "the memory of an engine that uses the Cache API and tells of its requests",
    "belady": "Belady's choice, which knows the future: nobody has more, but for who fetches ahead",
}


def page(
    trace: Trace | Requests,
    title: str,
    shares: Sequence[float] = SHARES,
    policies: Sequence[str] | None = None,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> str:
    """The page. `title` is shown as it is; the others are of `hindsight.ratios`."""
    uses = uses_of(trace)
    parts = [f"<h1>{escape(title)}</h1>", _summary(trace) if isinstance(trace, Trace) else _asked(uses)]
    times = _times(trace)
    if times:
        parts += ["<h2>Over time</h2>", _over_time(times)]
    if uses.each:
        names = policies_for(uses) if policies is None else tuple(policies)
        each = "file" if uses.unit == "bytes" else "block"
        parts += [
            *_sizes(uses),
            f"<h2>Hits by size of cache</h2><p>The part of the {uses.unit} asked for that would have been there.</p>",
            _hits(uses, shares, names, told),
            f"<h2>Until a {each} is asked for again</h2><p>Other {uses.unit} used since it was used last: an LRU cache of as "
            "many has it.</p>",
            powers(distances(uses.each), "times", as_bytes=uses.unit == "bytes"),
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


def _asked(uses: Uses) -> str:
    seconds = uses.each[-1].time - uses.each[0].time if uses.each else 0.0
    rows = [
        ("seconds", f"{seconds:,.1f}"),
        ("requests", f"{len(uses.each):,}"),
        ("blocks asked for", f"{uses.wanted:,}"),
        ("of these asked for the first time", _share(uses.total, uses.wanted)),
    ]
    return _table(("", ""), rows)


def _times(trace: Trace | Requests) -> dict[str, list[float]]:
    """When what happened, by what it was."""
    if not isinstance(trace, Trace):
        begins = trace.asked[0].time if trace.asked else 0.0
        return {"request": [one.time - begins for one in trace.asked]} if trace.asked else {}
    names = ("lookup", "open", "publish")
    found = {name: [event.time for event in trace.events if event.what == name] for name in names}
    return found if trace.events else {}


def _over_time(times: dict[str, list[float]]) -> str:
    end = max([1e-6, *(time for each in times.values() for time in each)])
    bins = {name: [0.0] * _BINS for name in times}
    for name, each in times.items():
        for time in each:
            bins[name][min(int(time / end * _BINS), _BINS - 1)] += 1
    labels = [f"{end * n / _BINS:.3g} s" for n in range(_BINS)]
    return lines(labels, [Series(name, values) for name, values in bins.items()])


def _sizes(uses: Uses) -> list[str]:
    if uses.unit == "blocks":
        counts = Counter(max(len(use.chain), 1).bit_length() - 1 for use in uses.each)
        return [
            "<h2>Lengths</h2><p>Blocks of a request.</p>",
            powers(counts, "requests", as_bytes=False),
        ]
    sizes = {use.chain[0]: use.size for use in uses.each}
    counts = Counter(size.bit_length() - 1 for size in sizes.values())
    return [
        "<h2>Sizes</h2><p>Of files that were opened or published.</p>",
        powers(counts, "files", as_bytes=True),
    ]


def _hits(uses: Uses, shares: Sequence[float], names: Sequence[str], told: Callable[[int, int], None]) -> str:
    found = ratios(uses, shares, names, told)
    labels = [one.percent for one in found]
    plot = lines(labels, [Series(name, [one.hits[name] for one in found]) for name in names], top=1.0)
    rows = [
        (
            one.percent,
            format_size(one.size) if uses.unit == "bytes" else f"{one.size:,} blocks",
            *(f"{one.hits[name]:.3f}" for name in names),
        )
        for one in found
    ]
    legend = _table(("", ""), [(name, _POLICIES[name]) for name in names])
    return plot + _table(("of all", "cache", *names), rows) + legend


def _following(trace: Trace | Requests) -> str:
    found = following(trace)
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
