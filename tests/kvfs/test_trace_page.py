"""The page about a trace."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from kvfs.trace_page import page
from kvfs.traces import Event, Trace
from tests.kvfs.test_hindsight import chain_events


def svgs(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_plots_of_what_happened() -> None:
    text = page(Trace(chain_events(5, 8), 3, whole=False), "a <trace>")
    assert "<h1>a &lt;trace&gt;</h1>" in text
    assert "was cut off" in text
    over_time, sizes, hits, reuse = svgs(text)
    assert len(over_time.findall("polyline")) == 3
    assert len(hits.findall("polyline")) == 4
    assert all(plot.findall("rect/title") for plot in (sizes, reuse))
    assert not re.search(r"<script|https?://|src=|href=", text), "it loads nothing"


def test_a_trace_of_nothing() -> None:
    text = page(Trace([], 0, whole=True), "empty")
    assert svgs(text) == []
    assert page(Trace([Event(0, "lookup", "a", "b")], 0, whole=True), "one").count("<svg") == 1
