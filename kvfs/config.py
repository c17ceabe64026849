"""The configuration of a pool: one YAML file, a flat mapping of the keys of `Config`.

    name: kv
    devices:
      - /dev/nvme1n1
      - nvme+tcp://192.0.2.1/nqn.2014-08.org.example:kv/1
    memory: 16GiB

Scalars are taken as they are written, not as YAML would guess: a size is `512MiB`, a time `5s` or `500ms`, a mode the
octal digits that chmod takes. Whatever is wrong is a ConfigError that names the file and the line.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import yaml

from blockdev.nvme import Credentials, DataPath, NamespaceName, Transport, is_uri, parse_namespace
from blockdev.nvme.names import make_namespace, make_target, read_data_path, read_key_path, read_transport
from blockdev.types import GIB, MIB
from kvfs.errors import ConfigError
from kvfs.sizes import exact_size, parse_size
from kvfs.state import check_pool_name, read_text

if TYPE_CHECKING:
    from collections.abc import Callable

Durability = Literal["close", "flush"]
_DURABILITIES: dict[str, Durability] = {"close": "close", "flush": "flush"}

Prefetch = Literal["on", "off", "observe"]
_PREFETCHES: dict[str, Prefetch] = {"on": "on", "off": "off", "observe": "observe"}

Eviction = Literal["lru", "value"]
_EVICTIONS: dict[str, Eviction] = {"lru": "lru", "value": "value"}

DeviceName = Path | NamespaceName
"""How a device is named: the absolute path of a block device or file, or a namespace of a target."""

MIN_TIMEOUT = 0.1
MAX_TIMEOUT = 600.0
"""Of an I/O, in seconds."""
MIN_MEMORY = 8 * MIB
NEVER = "never"
_NAMESPACE_KEYS = ("transport", "address", "nqn", "namespace", "host_key", "controller_key", "tls", "path")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Config:
    """A pool and how it is mounted. Fields are the file's keys; those without a default must be given."""

    name: str
    devices: tuple[DeviceName, ...]
    """Block devices, files and namespaces of targets, in any order."""
    durability: Durability = "close"
    """What a closed file survives: a killed process, or with `flush` a power loss too."""
    memory: int = GIB
    """Bytes of the DRAM tier, taken when the mount starts."""
    huge_pages: bool = True
    """Ask for transparent huge pages for it."""
    io_timeout: float = 5.0
    """Seconds that an I/O may take before it counts as failed."""
    keep_alive: int = 5
    """Seconds between two signs of life that a target must give."""
    fast_io_fail: int = 5
    """Seconds that I/O waits for a lost connection to come back, before it fails."""
    reconnect_delay: int = 1
    """Seconds between two attempts to connect to a target again."""
    ctrl_loss: int | None = None
    """Seconds after which the kernel gives up a target and removes its devices; None never."""
    open_verify_limit: int = 32 * MIB
    """Files up to this many bytes are read and verified before open() returns, so that damage is a miss."""
    read_ahead: int = 2
    """Extents to read ahead of whoever reads a larger file."""
    prefetch: Prefetch = "on"
    """Fetch what requests show will be wanted; `observe` only counts what that would be."""
    eviction: Eviction = "lru"
    """What leaves a full pool: what was not used for longest, or what is worth its room least."""
    lane: bool = True
    """Answer reads and writes in threads of our own; without, pyfuse3 answers everything, more slowly."""
    passthrough: bool = True
    """Copy files that are opened again and again for the kernel, which then reads them by itself."""
    allow_other: bool = False
    """Let other users use the mount."""
    root_mode: int | None = None
    """Permissions of the mount's root directory; by default 0700, with `allow_other` 0755."""
    metrics: Address | None = None
    """Where to serve Prometheus metrics."""


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────


def load_config(path: Path) -> Config:
    """Read a configuration file.

    :raises ConfigError: it cannot be read, or what it says cannot be used
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from error
    return parse_config(text, str(path))


def parse_config(text: str, source: str) -> Config:
    """Read a configuration; `source` names it in errors.

    :raises ConfigError:
    """
    root = compose(text, source)
    if root is None:
        raise ConfigError(f"{source}: is empty; it needs at least {' and '.join(_REQUIRED)}")
    try:
        return Config(**_values(root))
    except _Mistake as mistake:
        raise ConfigError(f"{source}:{mistake.line}: {mistake}") from mistake


def compose(text: str, source: str) -> yaml.Node | None:
    """The nodes of a YAML document, which know their lines; None if it is empty. `source` names it in errors.

    :raises ConfigError: it is no YAML
    """
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{source}: nested too deep") from None


class _Mistake(Exception):
    """Something wrong at one place of the file."""

    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1


def _values(root: yaml.Node) -> dict[str, Any]:
    if not isinstance(root, yaml.MappingNode):
        raise _Mistake(root, "not a mapping of keys to values, such as 'name: kv'")
    lines: dict[str, int] = {}
    values: dict[str, Any] = {}
    for key_node, value_node in root.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key not in _READERS:
            raise _Mistake(key_node, _unknown(key))
        if key in lines:
            raise _Mistake(key_node, f"{key}: given twice, first on line {lines[key]}")
        lines[key] = key_node.start_mark.line + 1
        if not _is_null(value_node) or key in _REQUIRED:
            try:
                values[key] = _READERS[key](value_node)
            except ConfigError as error:
                raise _Mistake(value_node, f"{key}: {error}") from error
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        raise _Mistake(root, f"key '{missing[0]}' is missing")
    return values


def _unknown(key: str | None) -> str:
    if key is None:
        return "a key must be a word"
    near = difflib.get_close_matches(key.lower().replace("-", "_"), _READERS, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys are {', '.join(_READERS)}"
    return f"unknown key '{key}'; {hint}"


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


# Readers of values: each takes a node and raises ConfigError, without file and line, or a _Mistake.


def _text(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or _is_null(node):
        raise ConfigError(f"must be a single value, not {_kind(node)}")
    return str(node.value)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "nothing"


def _switch(node: yaml.Node) -> bool:
    text = _text(node)
    if node.tag != "tag:yaml.org,2002:bool":
        raise ConfigError(f"must be true or false, not '{text}'")
    return text.lower() in ("true", "yes", "on")


def _size(least: int) -> Callable[[yaml.Node], int]:
    def read(node: yaml.Node) -> int:
        size = parse_size(_text(node))
        if size < least:
            raise ConfigError(f"must be at least {exact_size(least)}, not {exact_size(size)}")
        return size

    return read


def _count(least: int, most: int) -> Callable[[yaml.Node], int]:
    def read(node: yaml.Node) -> int:
        text = _text(node)
        if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise ConfigError(f"must be a number from {least} to {most}, not '{text}'")
        return int(text)

    return read


def _seconds(node: yaml.Node) -> float:
    text = _text(node)
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) *(s|ms|)", text, re.ASCII)
    if match is None:
        raise ConfigError(f"'{text}' is not a time: write it in seconds or milliseconds, such as 5s or 500ms")
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        raise ConfigError(f"must be from {MIN_TIMEOUT:g}s to {MAX_TIMEOUT:g}s, not {seconds:g}s")
    return seconds


def _mode(node: yaml.Node) -> int:
    text = _text(node)
    if not re.fullmatch(r"(?:0o?)?[0-7]{3}", text, re.ASCII):
        raise ConfigError(f"must be three octal digits, such as 0750, not '{text}'")
    return int(text.removeprefix("0o"), 8)


def _durability(node: yaml.Node) -> Durability:
    text = _text(node)
    if text not in _DURABILITIES:
        raise ConfigError(f"must be close or flush, not '{text}'")
    return _DURABILITIES[text]


def _prefetch(node: yaml.Node) -> Prefetch:
    text = _text(node)
    if text not in _PREFETCHES:
        raise ConfigError(f"must be on, off or observe, not '{text}'")
    return _PREFETCHES[text]


def _eviction(node: yaml.Node) -> Eviction:
    text = _text(node)
    if text not in _EVICTIONS:
        raise ConfigError(f"must be lru or value, not '{text}'")
    return _EVICTIONS[text]


def _whole_seconds(node: yaml.Node) -> int:
    """What the kernel counts in whole seconds."""
    text = _text(node)
    match = re.fullmatch(r"([0-9]{1,5}) *s?", text, re.ASCII)
    if match is None or not 1 <= int(match[1]) <= MAX_TIMEOUT:
        raise ConfigError(f"must be whole seconds from 1s to {MAX_TIMEOUT:g}s, not '{text}'")
    return int(match[1])


def _loss(node: yaml.Node) -> int | None:
    return None if _text(node) == NEVER else _whole_seconds(node)


def _devices(node: yaml.Node) -> tuple[DeviceName, ...]:
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise ConfigError("must be a list of paths, such as [/dev/nvme1n1, /dev/nvme2n1]")
    names: list[DeviceName] = []
    for item in node.value:
        try:
            name = _namespace(item) if isinstance(item, yaml.MappingNode) else parse_device(_text(item))
        except ConfigError as error:
            raise _Mistake(item, f"devices: each {error}") from error
        except ValueError as error:
            raise _Mistake(item, f"devices: {error}") from error
        if name in names:
            raise _Mistake(item, f"devices: '{name}' is listed twice")
        names.append(name)
    return tuple(names)


def parse_device(text: str) -> DeviceName:
    """A device as it is written in a list or on the command line: an absolute path, or `nvme+tcp://…`.

    :raises ValueError: with a reason for people
    """
    if is_uri(text):
        return parse_namespace(text)
    path = Path(text)
    if not path.is_absolute():
        raise ValueError(f"'{path}' is not an absolute path")
    return path


def _namespace(node: yaml.MappingNode) -> NamespaceName:
    """A namespace, its parts spelled out. :raises ValueError: with a reason for people"""
    said: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if key.value not in _NAMESPACE_KEYS:
            raise _Mistake(
                key, f"devices: unknown key '{key.value}'; known keys are {', '.join(_NAMESPACE_KEYS)}"
            )
        if key.value in said:
            raise _Mistake(key, f"devices: {key.value}: given twice")
        said[key.value] = value
    for key in ("nqn", "namespace"):
        if key not in said:
            raise _Mistake(node, f"devices: key '{key}' of a namespace is missing")
    text = {key: _text(value) for key, value in said.items() if key not in ("address", "tls")}
    host_key, controller_key = (
        read_key_path(text[key]) if key in text else None for key in ("host_key", "controller_key")
    )
    target = make_target(
        read_transport(text.get("transport", Transport.TCP.value)),
        _addresses(said.get("address")),
        text["nqn"],
        Credentials(host_key, controller_key, tls="tls" in said and _switch(said["tls"])),
    )
    data_path = read_data_path(text.get("path", DataPath.AUTO.value))
    return make_namespace(target, text["namespace"], data_path)


def _addresses(node: yaml.Node | None) -> list[str]:
    """One address, or a list of them: several ways to one target."""
    if node is None:
        return []
    return [_text(item) for item in node.value] if isinstance(node, yaml.SequenceNode) else [_text(node)]


def parse_address(text: str) -> Address:
    """`host:port`, with an IPv6 address in brackets.

    :raises ConfigError:
    """
    match = re.fullmatch(r"(?:\[([0-9A-Za-z:.%_-]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise ConfigError(f"'{text}' is not host:port, such as 127.0.0.1:9464")
    return Address(match[1] or match[2], int(match[3]))


_READERS: dict[str, Callable[[yaml.Node], Any]] = {
    "name": lambda node: check_pool_name(_text(node)),
    "devices": _devices,
    "durability": _durability,
    "memory": _size(MIN_MEMORY),
    "huge_pages": _switch,
    "io_timeout": _seconds,
    "keep_alive": _whole_seconds,
    "fast_io_fail": _whole_seconds,
    "reconnect_delay": _whole_seconds,
    "ctrl_loss": _loss,
    "open_verify_limit": _size(0),
    "read_ahead": _count(0, 64),
    "prefetch": _prefetch,
    "eviction": _eviction,
    "lane": _switch,
    "passthrough": _switch,
    "allow_other": _switch,
    "root_mode": _mode,
    "metrics": lambda node: parse_address(_text(node)),
}
_REQUIRED = [field.name for field in fields(Config) if field.default is MISSING]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────


def render_config(config: Config) -> str:
    """The text that `parse_config` reads back as `config`: what must be said, and what differs from the defaults."""
    said = {"name": config.name, "devices": [str(name) for name in config.devices]}
    for field in fields(Config):
        value = getattr(config, field.name)
        if field.name not in said and value != field.default:
            said[field.name] = _WRITERS.get(field.name, str)(value)
    lines = (yaml.safe_dump({key: value}, default_flow_style=False) for key, value in said.items())
    return "# How kvfs opens and mounts this pool; docs/configuration.md lists all keys.\n" + "".join(lines)


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "memory": exact_size,
    "open_verify_limit": exact_size,
    "huge_pages": bool,
    "lane": bool,
    "passthrough": bool,
    "allow_other": bool,
    "io_timeout": lambda seconds: f"{seconds:g}s",
    "keep_alive": lambda seconds: f"{seconds}s",
    "fast_io_fail": lambda seconds: f"{seconds}s",
    "reconnect_delay": lambda seconds: f"{seconds}s",
    "ctrl_loss": lambda seconds: f"{seconds}s",
    "root_mode": lambda mode: f"0o{mode:03o}",
    "read_ahead": int,
}
