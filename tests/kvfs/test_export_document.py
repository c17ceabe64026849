from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.errors import ConfigError
from kvfs.export.document import load_exports, parse_exports, render_exports, save_exports
from kvfs.export.model import Export, Exports, HostKeys, Namespace, Port
from tests.kvfs.exporting import COLD, GPU1, GPU2, HOT

paths = st.text("abc /:'\"#-é", min_size=1).map(lambda text: Path("/" + text))
uuids = st.uuids()
namespaces = st.builds(Namespace, paths, uuids, uuids, st.none() | st.text("a0. :-", min_size=1))
ports = st.builds(Port, st.sampled_from(["tcp", "rdma"]), st.just("2001:db8::1"), st.integers(1, 65535))


@st.composite
def all_exports(draw: st.DrawFn) -> Exports:
    found = {
        nqn: Export(
            nqn,
            draw(st.text("0123456789e_.", min_size=1, max_size=20)),
            draw(st.dictionaries(st.integers(1, 1024), namespaces, min_size=1, max_size=3)),
            tuple(draw(st.lists(ports, min_size=1, max_size=3, unique=True))),
            hosts := tuple(draw(st.lists(st.sampled_from([GPU1, GPU2]), unique=True))),
            False if hosts else draw(st.booleans()),
        )
        for nqn in draw(st.lists(st.sampled_from([HOT, COLD]), unique=True))
    }
    named = {host for export in found.values() for host in export.hosts}
    keys = (
        draw(st.dictionaries(st.sampled_from(sorted(named)), st.builds(HostKeys, paths, st.none() | paths)))
        if named
        else {}
    )
    return Exports(found, keys)


@given(all_exports())
def test_what_is_written_is_read_back(exports: Exports) -> None:
    assert parse_exports(render_exports(exports), "x") == exports


def test_a_file_that_is_not_there_exports_nothing(tmp_path: Path) -> None:
    file = tmp_path / "etc/kvfs/exports.yaml"
    assert load_exports(file) == Exports()
    one = Export(HOT, "s", {1: Namespace(Path("/d"), UUID(int=1), UUID(int=2))}, (Port("tcp", "::1"),))
    save_exports(file, Exports({HOT: one}))
    assert load_exports(file).exports == {HOT: one}
    assert [path.name for path in file.parent.iterdir()] == [file.name]


RIGHT = f"""version: 1
keys:
  {GPU1}: {{key_file: /k}}
exports:
  {HOT}:
    serial: abc
    namespaces:
      1: {{path: /d, uuid: {UUID(int=1)}, nguid: {UUID(int=2)}}}
    ports: ['tcp:192.0.2.1:4420']
    hosts: ['{GPU1}']
"""


def test_the_form_in_the_docstring_is_the_form() -> None:
    assert parse_exports(RIGHT, "x").keys == {GPU1: HostKeys(Path("/k"))}


@pytest.mark.parametrize(
    "old, new, error",
    [
        ("version: 1", "version: 2", "x:1: version 2 is not 1"),
        ("version: 1\n", "", "x:1: key 'version' is missing"),
        ("serial: abc", "serial: ''", "x:6: a serial number is"),
        ("    serial: abc\n", "", "x:6: key 'serial' is missing"),
        ("serial:", "colour:", "x:6: unknown key 'colour'; known keys are serial,"),
        ("      1:", "      0:", "x:8: a namespace is a number from 1 to 1024, not '0'"),
        ("path: /d", "path: d", "x:8: 'd' is not an absolute path"),
        (str(UUID(int=1)), "1", "x:8: badly formed"),
        ("tcp:", "udp:", "x:9: 'udp:192.0.2.1:4420': there is no transport 'udp'"),
        ("['tcp:192.0.2.1:4420']", "tcp:192.0.2.1", "x:9: must be a list"),
        (f"hosts: ['{GPU1}']", f"hosts: ['{GPU1}', '{GPU1}']", "x:10: .* is listed twice"),
        (f"hosts: ['{GPU1}']", "hosts: []", f"x:1: keys: no export names the host {GPU1}"),
        (f"hosts: ['{GPU1}']", f"hosts: ['{GPU1}']\n    allow_any_host: true", "any host may connect"),
        (f"hosts: ['{GPU1}']", f"hosts: ['{GPU1}']\n    allow_any_host: yes", "must be true or false"),
        ("key_file: /k", "key: DHHC", "x:3: unknown key 'key'"),
        ("    serial: abc", "    serial: abc\n    serial: abc", "x:7: 'serial' is given twice"),
        (f"  {HOT}:", "  hot:", "x:5: 'hot' is not an NQN"),
        ("exports:", "exports: 3 #", "must be a mapping|not valid YAML"),
        ("serial: abc", "serial: [abc", "not valid YAML"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(old: str, new: str, error: str) -> None:
    assert old in RIGHT
    with pytest.raises(ConfigError, match=error):
        parse_exports(RIGHT.replace(old, new, 1), "x")


def test_other_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="x: is empty"):
        parse_exports("", "x")
    with pytest.raises(ConfigError, match="x: not valid YAML"):
        parse_exports("\x00", "x")
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_exports(tmp_path / "x")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_exports(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="fifo: Not a file"):
        load_exports(tmp_path / "fifo")
