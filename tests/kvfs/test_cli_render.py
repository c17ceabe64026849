from __future__ import annotations

import io
import json
import re
import sys

import pytest

from kvfs.cli import render
from kvfs.cli.render import Column, Style, Unit
from tests.kvfs.conftest import Terminal

COLUMNS = (
    Column("name"),
    Column("size", Unit.BYTES),
    Column("when", Unit.TIME),
    Column("mode", Unit.OCTAL, shown=False),
)
ROWS: list[render.Row] = [
    {"name": "a", "size": 5 << 30, "when": 1.7e9, "mode": 0o644},
    {"name": "a longer one", "size": 17, "when": None, "mode": 0},
]


def test_people_get_aligned_columns_with_numbers_to_the_right() -> None:
    lines = render.table(COLUMNS, ROWS, Style()).splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "WHEN"]
    assert re.fullmatch(r"a             5GiB  2023-11-1\d \d\d:\d\d:\d\d", lines[1])
    assert lines[2] == "a longer one   17B  -"


def test_scripts_get_tabs_and_exact_numbers_in_the_columns_they_name() -> None:
    style = Style(bare=True, exact=True, columns=("size", "mode", "name", "when"))
    assert render.table(COLUMNS, ROWS, style) == (
        f"{5 << 30}\t0644\ta\t1700000000.0\n17\t0000\ta longer one\t-\n"
    )


def test_no_rows_leave_only_the_header() -> None:
    assert render.table(COLUMNS, [], Style()) == "NAME  SIZE  WHEN\n"
    assert render.table(COLUMNS, [], Style(bare=True)) == ""


def test_fields_are_lines_for_people_and_one_line_for_scripts() -> None:
    assert render.fields(COLUMNS[:2], ROWS[1], Style()) == "name: a longer one\nsize: 17B\n"
    assert render.fields(COLUMNS[:2], ROWS[1], Style(bare=True)) == "a longer one\t17B\n"


@pytest.mark.parametrize(
    "value, unit, shown",
    [
        (True, Unit.TEXT, "yes"),
        (False, Unit.TEXT, "no"),
        (0, Unit.COUNT, "0"),
        (None, Unit.BYTES, "-"),
        ("", Unit.TEXT, "-"),
        (1.5, Unit.COUNT, "1.5"),
    ],
)
def test_cells(value: render.Cell, unit: Unit, shown: str) -> None:
    assert render.cell(value, unit, exact=False) == shown


def test_json_is_one_line_with_its_version_first() -> None:
    text = render.as_json("pool list", {"pools": [{"size": 2**62}], "name": "\udcff"})
    assert text.count("\n") == 1
    assert list(json.loads(text)) == ["output_version", "pools", "name"]
    assert json.loads(text)["pools"][0]["size"] == 2**62


def test_a_message_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    render.message("first\n   second")
    assert capsys.readouterr() == ("", "kvfs: first second\n")


def test_progress_is_a_bar_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, silent in ((Terminal(), False), (io.StringIO(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with render.progress("scrub hot") as advance:
            advance(1 << 20, 4 << 20)
            advance(4 << 20, 4 << 20)
        assert (stream.getvalue() == "") is silent
        assert silent or "scrub hot" in stream.getvalue()
