"""The page about a trace."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from kvfs.hindsight import NAMES
from kvfs.plots import SERIES
from kvfs.request_traces import Asked
from kvfs.trace_page import page
from kvfs.traces import Event, Requests, Trace
from tests.kvfs.test_hindsight import chain_events


def svgs(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_plots_of_what_happened() -> None:
    text = page(Trace(chain_events(5, 8), 3, whole=False), "a <trace>")
    assert "<h1>a &lt;trace&gt;</h1>" in text
    assert "was cut off" in text
    over_time, sizes, hits, reuse = svgs(text)
    assert len(over_time.findall("polyline")) == 3
    assert len(hits.findall("polyline")) == len(NAMES) - 1, "all that need no requests"
    assert all(plot.findall("rect/title") for plot in (sizes, reuse))
    assert not re.search(r"<script|https?://|src=|href=", text), "it loads nothing"


def test_a_trace_of_nothing() -> None:
    text = page(Trace([], 0, whole=True), "empty")
    assert svgs(text) == []
    assert page(Trace([Event(0, "lookup", "a", "b")], 0, whole=True), "one").count("<svg") == 1


def test_plots_of_requests() -> None:
    asked = [Asked(float(n), None, tuple(range(n % 5 * 100, n % 5 * 100 + n))) for n in range(1, 40)]
    text = page(Requests(asked), "requests", (0.1, 0.5), ["lru", "ours"])
    over_time, lengths, hits, reuse = svgs(text)
    assert len(over_time.findall("polyline")) == 1
    assert len(hits.findall("polyline")) == 2
    assert all(plot.findall("rect/title") for plot in (lengths, reuse))
    assert "<td>blocks asked for</td><td>780</td>" in text
    assert svgs(page(Requests([]), "none")) == []


def test_each_policy_has_a_colour() -> None:
    assert len(NAMES) <= SERIES
