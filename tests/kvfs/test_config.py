"""Configuration files: what they may say, and how what they may not is refused."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdev.nvme import parse_namespace
from kvfs.config import (
    _NAMESPACE_KEYS,
    MAX_TIMEOUT,
    MIN_MEMORY,
    MIN_TIMEOUT,
    Address,
    Config,
    load_config,
    parse_address,
    parse_config,
    render_config,
)
from kvfs.errors import ConfigError
from kvfs.sizes import MAX_SIZE, exact_size

LEAST = "name: kv\ndevices: [/dev/a]\n"


def test_least():
    assert parse_config(LEAST, "x") == Config(name="kv", devices=(Path("/dev/a"),))


def test_everything():
    text = """
        name: kv.2
        devices:
          - /dev/a
          - "/dev/disk/by-id/two words"
        durability: flush
        memory: 4 GiB
        huge_pages: no
        io_timeout: 1.5s
        open_verify_limit: 0
        read_ahead: 8
        prefetch: observe
        eviction: value
        lane: false
        allow_other: true
        root_mode: 0750
        metrics: "[::1]:9464"
    """
    assert parse_config(text, "x") == Config(
        name="kv.2",
        devices=(Path("/dev/a"), Path("/dev/disk/by-id/two words")),
        durability="flush",
        memory=4 << 30,
        huge_pages=False,
        io_timeout=1.5,
        open_verify_limit=0,
        read_ahead=8,
        prefetch="observe",
        eviction="value",
        lane=False,
        allow_other=True,
        root_mode=0o750,
        metrics=Address("::1", 9464),
    )
    assert len(fields(Config)) <= 30


@pytest.mark.parametrize("text", ["memory: 16M", "memory: 16777216", "memory: '16MiB'"])
def test_sizes(text):
    assert parse_config(LEAST + text, "x").memory == 16 << 20


@pytest.mark.parametrize(
    "text", ["root_mode: 0700", "root_mode: 700", "root_mode: 0o700", "root_mode: '0700'"]
)
def test_modes_are_octal_however_yaml_reads_them(text):
    assert parse_config(LEAST + text, "x").root_mode == 0o700


@pytest.mark.parametrize("text, seconds", [("5", 5), ("5s", 5), ("500ms", 0.5), ("0.25 s", 0.25)])
def test_times(text, seconds):
    assert parse_config(f"{LEAST}io_timeout: {text}", "x").io_timeout == seconds


def test_namespaces_in_full_and_in_short():
    short = "nvme+rdma://192.0.2.1,192.0.2.2:4421/nqn.x/7?host-key=/etc/host.key&tls=yes&path=kernel"
    text = """
name: kv
keep_alive: 7s
ctrl_loss: 60
devices:
- /dev/a
- transport: rdma
  address: [192.0.2.1, 192.0.2.2:4421]
  nqn: nqn.x
  namespace: 7
  host_key: /etc/host.key
  tls: true
  path: kernel
"""
    config = parse_config(text, "x")
    assert config.devices == (Path("/dev/a"), parse_namespace(short))
    assert (config.keep_alive, config.ctrl_loss) == (7, 60)
    assert f"- {short}\n" in render_config(config)
    assert parse_config(render_config(config), "y") == config
    plain = "name: kv\nctrl_loss: never\ndevices: [{nqn: nqn.x, namespace: 7, address: 192.0.2.1}]"
    assert parse_config(plain, "x").devices == (parse_namespace("nvme+tcp://192.0.2.1/nqn.x/7"),)


def test_optional_key_without_value_has_its_default():
    assert parse_config(LEAST + "memory:\nmetrics: ~\n", "x") == parse_config(LEAST, "x")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "x: is empty; it needs at least name and devices"),
        ("- a\n", "x:1: not a mapping of keys to values"),
        ("kv", "x:1: not a mapping"),
        ("name: kv\n", "x:1: key 'devices' is missing"),
        ("devices: [/dev/a]\n", "x:1: key 'name' is missing"),
        ("name:\ndevices: [/dev/a]\n", "x:1: name: must be a single value, not nothing"),
        (LEAST + "memroy: 1GiB", "x:3: unknown key 'memroy'; did you mean 'memory'?"),
        (LEAST + "allow-other: true", "x:3: unknown key 'allow-other'; did you mean 'allow_other'?"),
        (LEAST + "MEMORY: 1GiB", "x:3: unknown key 'MEMORY'; did you mean 'memory'?"),
        (LEAST + "zzz: 1", "x:3: unknown key 'zzz'; known keys are name, devices,"),
        (LEAST + "? [a]\n: b", "x:3: a key must be a word"),
        (LEAST + "name: other", "x:3: name: given twice, first on line 1"),
        ("name: a/b\ndevices: [/dev/a]", "x:1: name: pool name 'a/b' is not usable"),
        ("name: [kv]\ndevices: [/dev/a]", "x:1: name: must be a single value, not a list"),
        ("name: kv\ndevices: /dev/a", "x:2: devices: must be a list of paths"),
        ("name: kv\ndevices: []", "x:2: devices: must be a list of paths"),
        ("name: kv\ndevices:\n- /a\n- b\n", "x:4: devices: 'b' is not an absolute path"),
        ("name: kv\ndevices:\n- /a\n- /a\n", "x:4: devices: '/a' is listed twice"),
        (
            "name: kv\ndevices:\n- /a\n- a: b\n",
            "x:4: devices: unknown key 'a'; known keys are transport, address,",
        ),
        ("name: kv\ndevices:\n- /a\n- [b]\n", "x:4: devices: each must be a single value, not a list"),
        ("name: kv\ndevices:\n- nqn: nqn.x\n  nqn: nqn.y\n", "x:4: devices: nqn: given twice"),
        ("name: kv\ndevices:\n- nqn: nqn.x\n", "x:3: devices: key 'namespace' of a namespace is missing"),
        ("name: kv\ndevices:\n- {nqn: nqn.x, namespace: 1}\n", "x:3: devices: an address is missing"),
        (
            "name: kv\ndevices:\n- {nqn: nqn.x, namespace: 1, address: a, host_key: 'DHHC-1:00:x:'}\n",
            "x:3: devices: a secret may not stand here",
        ),
        (
            "name: kv\ndevices:\n- nvme+tcp://a/nqn.x\n",
            "x:3: devices: 'nvme+tcp://a/nqn.x' lacks the namespace",
        ),
        (LEAST + "keep_alive: 500ms", "x:3: keep_alive: must be whole seconds from 1s to 600s, not '500ms'"),
        (LEAST + "ctrl_loss: 0", "x:3: ctrl_loss: must be whole seconds from 1s to 600s, not '0'"),
        (LEAST + "memory: 4GB", "x:3: memory: '4GB' is ambiguous: write 4GiB"),
        (LEAST + "memory:\n\n  lots", "x:5: memory: 'lots' is not a size"),
        (LEAST + "memory: 4MiB", "x:3: memory: must be at least 8MiB, not 4MiB"),
        (LEAST + "memory: [4MiB]", "x:3: memory: must be a single value, not a list"),
        (LEAST + "huge_pages: 1", "x:3: huge_pages: must be true or false, not '1'"),
        (LEAST + "allow_other: 'true'", "x:3: allow_other: must be true or false, not 'true'"),
        (LEAST + "durability: fsync", "x:3: durability: must be close or flush, not 'fsync'"),
        (LEAST + "io_timeout: 5m", "x:3: io_timeout: '5m' is not a time"),
        (LEAST + "io_timeout: 0", "x:3: io_timeout: must be from 0.1s to 600s, not 0s"),
        (LEAST + "read_ahead: 65", "x:3: read_ahead: must be a number from 0 to 64, not '65'"),
        (LEAST + "prefetch: maybe", "x:3: prefetch: must be on, off or observe, not 'maybe'"),
        (LEAST + "eviction: maybe", "x:3: eviction: must be lru or value, not 'maybe'"),
        (LEAST + "read_ahead: two", "x:3: read_ahead: must be a number from 0 to 64, not 'two'"),
        (LEAST + "root_mode: 0789", "x:3: root_mode: must be three octal digits"),
        (LEAST + "root_mode: 4755", "x:3: root_mode: must be three octal digits"),
        (LEAST + "metrics: 9464", "x:3: metrics: '9464' is not host:port"),
        (LEAST + "a: [", "x:3: not valid YAML: "),
        (LEAST + "a: b: c", "x:3: not valid YAML: mapping values are not allowed here"),
        (LEAST + "\tname: x", "x:3: not valid YAML: "),
        (LEAST + "---\nname: b", "x:3: not valid YAML: "),
        ("name: \x01", "x: not valid YAML: "),
        ("[" * 5000, "x: nested too deep"),
    ],
)
def test_refuses_with_file_and_line(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        parse_config(text, "x")
    assert "\n" not in str(caught.value)


def test_load(tmp_path):
    path = tmp_path / "pool.yaml"
    path.write_text(LEAST)
    assert load_config(path).name == "kv"
    with pytest.raises(ConfigError, match=r"other.yaml: No such file or directory"):
        load_config(tmp_path / "other.yaml")
    path.write_bytes(LEAST.encode() + b"memory: \xff")
    with pytest.raises(ConfigError, match=r"pool.yaml:3: not UTF-8"):
        load_config(path)


@pytest.mark.parametrize(
    "text, address",
    [
        ("127.0.0.1:9464", Address("127.0.0.1", 9464)),
        ("localhost:1", Address("localhost", 1)),
        ("[fe80::1%eth0]:65535", Address("fe80::1%eth0", 65535)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "host:", "host:0", "host:65536", "::1:80", "a b:1", "h:1x"]
)
def test_not_addresses(text):
    with pytest.raises(ConfigError, match="is not host:port"):
        parse_address(text)


CONFIGS = st.builds(
    Config,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    devices=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).map(
            lambda s: Path("/", s)
        ),
        min_size=1,
        unique=True,
    ).map(tuple),
    durability=st.sampled_from(["close", "flush"]),
    memory=st.integers(MIN_MEMORY, MAX_SIZE),
    huge_pages=st.booleans(),
    io_timeout=st.integers(int(MIN_TIMEOUT * 1000), int(MAX_TIMEOUT * 1000)).map(lambda ms: ms / 1000),
    open_verify_limit=st.integers(0, MAX_SIZE),
    read_ahead=st.integers(0, 64),
    prefetch=st.sampled_from(["on", "off", "observe"]),
    eviction=st.sampled_from(["lru", "value"]),
    lane=st.booleans(),
    allow_other=st.booleans(),
    root_mode=st.none() | st.integers(0, 0o777),
    metrics=st.none() | st.builds(Address, st.sampled_from(["::", "localhost"]), st.integers(1, 65535)),
)


@given(CONFIGS)
def test_rendered_configuration_reads_back(config):
    assert parse_config(render_config(config), "x") == config


def test_rendered_configuration_says_no_more_than_it_must():
    lines = render_config(parse_config(LEAST, "x")).splitlines()
    assert lines[1:] == ["name: kv", "devices:", "- /dev/a"]


def test_documentation_lists_every_key_with_its_default():
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    text, _, parts = text.partition("\n## Namespaces of targets")
    rows, its = (dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", one, re.MULTILINE)) for one in (text, parts))
    assert list(its) == list(_NAMESPACE_KEYS)
    assert list(rows) == [field.name for field in fields(Config)]
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Config)}
    for key in ("memory", "open_verify_limit"):
        assert rows[key] == f"`{exact_size(defaults[key])}`"
    for key in ("huge_pages", "lane", "allow_other", "durability", "read_ahead"):
        assert rows[key] == f"`{str(defaults[key]).lower()}`"
    for key in ("io_timeout", "keep_alive", "fast_io_fail", "reconnect_delay"):
        assert rows[key] == f"`{defaults[key]:g}s`"
    assert rows["ctrl_loss"] == "`never`"
