"""What was learnt of returns, in a file: it is there after a restart, fades, and whatever else is there is a beginning from nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kvfs.learnt import HALF_LIFE, LARGEST, load, remembering, save
from kvfs.prefetch.returns import Kind, Returns, bucket
from tests.conftest import ExpectLog

QUICK: Kind = (1, True)
NOTHING = Returns().as_json()


def learnt() -> Returns:
    returns = Returns()
    for _ in range(100):
        returns.stayed(QUICK, 5.0)
        returns.returned(QUICK, 5.0)
    return returns


def counted(returns: Returns) -> float:
    """Returns of the kind at its age."""
    kinds = {tuple(kind): seen for kind, seen, _ in returns.as_json()["kinds"]}
    return float(kinds[QUICK][bucket(5.0)]) if QUICK in kinds else 0.0


def test_half_of_it_is_forgotten_in_a_day(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    save(path, learnt(), 1000.0)
    assert counted(load(path, 1000.0)) == 100
    assert counted(load(path, 1000.0 + HALF_LIFE)) == pytest.approx(50)
    assert counted(load(path, 0.0)) == 100  # the clock went back


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert load(tmp_path / "it.json", 0.0).as_json() == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"saved": 1}',
        '{"saved": NaN, "returns": {"version": 1, "all": 3, "kinds": []}}',
        json.dumps({"saved": "soon", "returns": NOTHING}),
        json.dumps({"saved": float("nan"), "returns": NOTHING}),
        json.dumps({"saved": 0, "returns": {**NOTHING, "version": 99}}),
        json.dumps({"saved": 0, "returns": {**NOTHING, "all": [[float("inf")] * 28] * 2}}),
        "[" * 100_000,
        " " * (LARGEST + 1),
    ],
)
def test_whatever_else_is_there_is_a_beginning_from_nothing(
    tmp_path: Path, expect_log: ExpectLog, text: str
) -> None:
    expect_log("begun anew", count=1)
    path = tmp_path / "it.json"
    path.write_text(text)
    assert load(path, 0.0).as_json() == NOTHING


def test_a_file_that_was_cut_off_anywhere(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("begun anew")
    path = tmp_path / "it.json"
    save(path, learnt(), 0.0)
    whole = path.read_text()
    for length in range(0, len(whole) - 2, 97):
        path.write_text(whole[:length])
        assert load(path, 0.0).as_json() == NOTHING


async def test_who_has_the_pool_open_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    async with remembering(path, clock=lambda: 0.0) as returns:
        returns.returned(QUICK, 5.0)
    async with remembering(path, clock=lambda: 0.0) as returns:
        assert counted(returns) == 1
        returns.returned(QUICK, 5.0)
    assert counted(load(path, 0.0)) == 2


async def test_it_is_kept_when_the_block_fails(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    with pytest.raises(RuntimeError, match="as itself"):
        async with remembering(path):
            raise RuntimeError("as itself")
    assert path.exists()


async def test_it_is_written_again_and_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "it.json"
    async with remembering(path, clock=trio.current_time, every=HALF_LIFE) as returns:
        for _ in range(8):
            returns.returned(QUICK, 5.0)
        assert not path.exists()
        await trio.sleep(HALF_LIFE + 1)
        assert counted(load(path, trio.current_time())) == pytest.approx(4, rel=1e-3)


async def test_a_folder_that_takes_nothing_costs_a_warning(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("cannot be written", count=1)
    async with remembering(tmp_path / "not there" / "it.json") as returns:
        returns.returned(QUICK, 5.0)


def test_times_beyond_all_numbers_are_a_beginning_from_nothing(tmp_path: Path, expect_log: ExpectLog) -> None:
    expect_log("begun anew")
    path = tmp_path / "returns.json"
    path.write_text('{"saved":1' + "0" * 400 + ',"returns":{"version":1,"all":[[],[]],"kinds":[]}}')
    load(path, 0.0)
