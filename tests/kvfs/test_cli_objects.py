from __future__ import annotations

import pytest

from kvfs.cli.exit_codes import USAGE
from tests.conftest import ExpectLog
from tests.kvfs.conftest import Kvfs
from tests.kvfs.contents import MIB, fill, flip

# ── ls ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_is_listed(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    assert kvfs.ok("ls", "hot", "-H", "-p", "-o", "name,type,size,mtime").rows == [
        ["link", "symlink", "14", kvfs.ok("ls", "hot:/link", "-H", "-p", "-o", "mtime").out.strip()],
        ["models", "directory", "0", kvfs.ok("ls", "hot", "-H", "-p", "-o", "mtime").rows[1][0]],
        ["small.json", "file", "100", "1700000000.0"],
    ]
    assert kvfs.ok("ls", "hot:small.json", "-H", "-o", "name,mode,uid,gid").rows == [
        ["small.json", "0640", "7", "8"]
    ]


def test_paths_are_resolved_from_the_root(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    listed = kvfs.ok("ls", "hot:/models", "-H", "-o", "name").out
    for path in ("models", "models/", "/models/.", "//models", "../models/x/.."):
        assert kvfs.ok("ls", f"hot:{path}", "-H", "-o", "name").out == listed
    kvfs.fails(15, "hot:/nothing: no such file or directory", "ls", "hot:nothing")
    kvfs.fails(15, "hot:/small.json/x: no such", "ls", "hot:small.json/x")
    kvfs.fails(USAGE, "names no pool: write POOL:PATH", "ls", ":/x")
    kvfs.fails(12, "no pool 'cold'", "ls", "cold")


def test_no_name_breaks_a_line_or_speaks_to_the_terminal(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    assert kvfs.ok("ls", "hot:models", "-H", "-o", "size,name").rows[-1] == [
        "100B",
        "odd \\udcff\\n\\x1b[31mname",
    ]
    assert kvfs.ok("ls", "hot:models", "--json").json["entries"][-1]["name"] == "odd \udcff\n\x1b[31mname"


def test_json_has_every_column_exactly(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    shown = kvfs.ok("ls", "hot:models", "--json").json
    assert shown["output_version"] == {"command": "ls", "major": 1, "minor": 0}
    assert shown["path"] == "/models"
    first = shown["entries"][0]
    assert first.keys() == {"name", "type", "size", "mtime", "mode", "uid", "gid", "id"}
    assert (first["name"], first["size"], first["mode"]) == ("big.bin", 5 * MIB + 17, 0o640)


def test_people_see_rounded_sizes_and_dates(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    lines = kvfs.ok("ls", "hot:models").out.splitlines()
    assert lines[0].split() == ["TYPE", "SIZE", "MTIME", "NAME"]
    assert "5MiB" in lines[1]
    assert "2023-11-1" in lines[1]


# ── stat ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_objects_extents_are_shown_and_verified(kvfs: Kvfs) -> None:
    paths = kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    shown = kvfs.ok("stat", "hot:models/big.bin", "--json").json
    assert shown["object"]["size"] == 5 * MIB + 17
    assert [extent["length"] for extent in shown["extents"]] == [2 * MIB, 2 * MIB, MIB + 17]
    assert [extent["state"] for extent in shown["extents"]] == ["ok"] * 3
    assert {extent["device"] for extent in shown["extents"]} == {0, 1}, "not striped"
    for extent in shown["extents"]:
        assert extent["path"] == str(paths[extent["device"]])
    text = kvfs.ok("stat", "hot:models/big.bin").out
    assert "path: /models/big.bin\n" in text
    assert text.count(" ok ") == 3


def test_what_has_no_extents_says_so(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    assert kvfs.ok("stat", "hot:small.json", "-H", "-o", "length,state").rows == [["100B", "inline"]]
    assert kvfs.ok("stat", "hot:models/hole", "-H", "-o", "state,xxh3").rows == [["hole", "-"], ["hole", "-"]]
    assert "target: models/big.bin\n" in kvfs.ok("stat", "hot:link").out
    assert kvfs.ok("stat", "hot:models", "-H").out == ""
    assert "type: directory\n" in kvfs.ok("stat", "hot:").out


def test_damage_is_seen_and_nothing_is_dropped_by_looking(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    big = fill(kvfs.state.folder("hot"))["/models/big.bin"]
    assert flip(paths, big[3 * MIB : 3 * MIB + 64]) == 1
    expect_log(r".*big\.bin.*")
    for _ in range(2):
        assert kvfs.ok("stat", "hot:models/big.bin", "-H", "-o", "state").rows == [
            ["ok"],
            ["damaged"],
            ["ok"],
        ]


def test_extents_on_a_missing_device_are_shown_as_missing(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    shown = kvfs.ok("stat", "hot:models/big.bin", "-H", "-p", "-o", "device").rows
    paths[1].unlink()
    expect_log("the pool goes on without it")
    expect_log("device 1 of pool 'hot' is missing")
    states = kvfs.ok("stat", "hot:models/big.bin", "-H", "-o", "state").rows
    assert states == [["missing"] if device == ["1"] else ["ok"] for device in shown]
    names = kvfs.ok("ls", "hot:models", "-H", "-o", "name").rows
    assert ["big.bin"] not in names


# ── scrub ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scrubbing_a_sound_pool_finds_nothing(kvfs: Kvfs) -> None:
    kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    result = kvfs("pool", "scrub", "hot")
    assert (result.code, result.out, result.err) == (0, "", "kvfs: scrub of hot: 4 objects are right\n")
    shown = kvfs("pool", "scrub", "hot", "--json").json["scrub"]
    assert (shown["objects"], shown["bytes"], shown["damaged"]) == (4, 8 * MIB + 17 + 200, [])


def test_scrubbing_drops_and_lists_what_is_damaged(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    big = fill(kvfs.state.folder("hot"))["/models/big.bin"]
    assert flip(paths, big[3 * MIB : 3 * MIB + 64]) == 1
    expect_log("dropped")
    result = kvfs("pool", "scrub", "hot", "-H", "-p", "-o", "path,size,dropped")
    assert result.code == 58
    assert result.rows == [["/models/big.bin", str(len(big)), "yes"]]
    assert result.err == "kvfs: 1 damaged object was found; look at the devices with 'kvfs pool status hot'\n"
    assert kvfs("pool", "scrub", "hot").code == 0
    kvfs.fails(15, "no such file", "stat", "hot:models/big.bin")


def test_scrubbing_counts_what_is_out_of_reach(kvfs: Kvfs, expect_log: ExpectLog) -> None:
    paths = kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    paths[1].unlink()
    expect_log("the pool goes on without it")
    expect_log("device 1 of pool 'hot' is missing")
    result = kvfs("pool", "scrub", "hot", "--json")
    assert result.code == 0
    away = result.json["scrub"]["unreachable"]
    assert away >= 1
    assert f"{away} on missing devices could not be read" in result.err


@pytest.mark.parametrize("command", ["ls", "stat"])
def test_looking_changes_no_byte_of_the_media(kvfs: Kvfs, command: str) -> None:
    paths = kvfs.make_pool()
    fill(kvfs.state.folder("hot"))
    before = [path.read_bytes() for path in paths]
    kvfs.ok(command, "hot:models/big.bin")
    assert [path.read_bytes() for path in paths] == before
