"""The file that remembers what is exported, over reboots. `kvfs export` writes it; people may edit it.

    version: 1
    keys:                                  # of hosts that have some: files, never the secrets
      nqn.2014-08.org.nvmexpress:uuid:…:
        key_file: /etc/kvfs/keys/gpu1
        controller_key_file: /etc/kvfs/keys/target
    exports:
      nqn.2026-01.org.example:hot:
        serial: 1f0c9a…
        namespaces:
          1:
            path: /dev/disk/by-id/nvme-…
            uuid: 7d5c…
            nguid: 0a1b…
            wwid: eui.0025…                # only where the drive says one
        ports: ['tcp:192.0.2.1:4420']
        hosts: ['nqn.2014-08.org.nvmexpress:uuid:…']
        allow_any_host: false

What cannot be used is a ConfigError that names the file and the line. A file of a newer version is refused.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml

from kvfs.config import compose
from kvfs.errors import ConfigError
from kvfs.export.model import Export, Exports, HostKeys, Namespace, check_nqn, parse_port
from kvfs.state import read_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION: Final = 1
_MOST_NAMESPACES: Final = 1024  # NVMET_MAX_NAMESPACES
_HEADER: Final = (
    "# What this node exports: kept by 'kvfs export', put into effect at boot by 'kvfs export restore'.\n"
)
T = TypeVar("T")


def load_exports(path: Path) -> Exports:
    """What the file says; nothing is exported where there is no file.

    :raises ConfigError:
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        return Exports()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return parse_exports(text, str(path))


def save_exports(path: Path, exports: Exports) -> None:
    """:raises OSError:"""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render_exports(exports))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────


class _Mistake(Exception):
    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1


def parse_exports(text: str, source: str) -> Exports:
    """What a text says; `source` names it in errors.

    :raises ConfigError:
    """
    root = compose(text, source)
    if root is None:
        raise ConfigError(f"{source}: is empty; delete it if nothing is to be exported")
    try:
        return _exports(root)
    except _Mistake as mistake:
        raise ConfigError(f"{source}:{mistake.line}: {mistake}") from mistake


def _exports(root: yaml.Node) -> Exports:
    values = _fields(root, {"version": _scalar, "keys": _named, "exports": _named}, {"version"})
    if values["version"] != str(VERSION):
        raise _Mistake(
            root, f"version {values['version']} is not {VERSION}: written by a newer kvfs, use that"
        )
    exports = {nqn: _export(nqn, node) for nqn, node in values.get("exports", ())}
    keys = {nqn: _host_keys(node) for nqn, node in values.get("keys", ())}
    named = {host for export in exports.values() for host in export.hosts}
    for nqn in keys:
        if nqn not in named:
            raise _Mistake(root, f"keys: no export names the host {nqn}")
    return Exports(exports, keys)


def _named(node: yaml.Node) -> list[tuple[str, yaml.Node]]:
    return [(_value(key, check_nqn), value) for key, value in _pairs(node)]


def _export(nqn: str, node: yaml.Node) -> Export:
    readers = {
        "serial": lambda value: _value(value, _serial),
        "namespaces": _namespaces,
        "ports": lambda value: tuple(_value(item, parse_port) for item in _items(value)),
        "hosts": lambda value: tuple(_value(item, check_nqn) for item in _items(value)),
        "allow_any_host": _switch,
    }
    export = Export(nqn, **_fields(node, readers, {"serial", "namespaces", "ports"}))
    if export.allow_any_host and export.hosts:
        raise _Mistake(node, "hosts: any host may connect, so none can be named; remove one of the two")
    return export


def _namespaces(node: yaml.Node) -> dict[int, Namespace]:
    readers = {
        "path": lambda value: _value(value, _path),
        "uuid": lambda value: _value(value, uuid.UUID),
        "nguid": lambda value: _value(value, uuid.UUID),
        "wwid": _scalar,
    }
    return {
        _value(key, _number): Namespace(**_fields(value, readers, {"path", "uuid", "nguid"}))
        for key, value in _pairs(node)
    }


def _host_keys(node: yaml.Node) -> HostKeys:
    def path(value: yaml.Node) -> Path:
        return _value(value, _path)

    return HostKeys(**_fields(node, {"key_file": path, "controller_key_file": path}, {"key_file"}))


def _fields(
    node: yaml.Node, readers: dict[str, Callable[[yaml.Node], Any]], required: set[str]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in _pairs(node):
        key = _scalar(key_node)
        if key not in readers:
            raise _Mistake(key_node, f"unknown key '{key}'; known keys are {', '.join(readers)}")
        values[key] = readers[key](value_node)
    for key in readers:
        if key in required and key not in values:
            raise _Mistake(node, f"key '{key}' is missing")
    return values


def _pairs(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise _Mistake(node, "must be a mapping with at least one entry")
    seen: set[str] = set()
    for key, _ in node.value:
        if _scalar(key) in seen:
            raise _Mistake(key, f"'{key.value}' is given twice")
        seen.add(key.value)
    return list(node.value)


def _items(node: yaml.Node) -> list[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode):
        raise _Mistake(node, "must be a list")
    texts = [_scalar(item) for item in node.value]
    for item, text in zip(node.value, texts, strict=True):
        if texts.count(text) > 1:
            raise _Mistake(item, f"'{text}' is listed twice")
    return list(node.value)


def _scalar(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _Mistake(node, "must be a single value")
    return str(node.value)


def _value(node: yaml.Node, read: Callable[[str], T]) -> T:
    try:
        return read(_scalar(node))
    except (ConfigError, ValueError) as error:
        raise _Mistake(node, str(error)) from None


def _switch(node: yaml.Node) -> bool:
    if _scalar(node) not in ("true", "false"):
        raise _Mistake(node, f"must be true or false, not '{node.value}'")
    return bool(node.value == "true")


def _number(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII) or int(text) > _MOST_NAMESPACES:
        raise ConfigError(f"a namespace is a number from 1 to {_MOST_NAMESPACES}, not '{text}'")
    return int(text)


def _serial(text: str) -> str:
    if not re.fullmatch(r"[!-~]{1,20}", text, re.ASCII):
        raise ConfigError(f"a serial number is 1 to 20 printable characters, not '{text}'")
    return text


def _path(text: str) -> Path:
    if text.startswith("DHHC-"):
        raise ConfigError(
            "a secret may not stand here, where others can read it: give the file that it is in"
        )
    if not text.startswith("/") or any(char < " " for char in text):
        raise ConfigError(f"'{text}' is not an absolute path")
    return Path(text)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────


def render_exports(exports: Exports) -> str:
    """The text that `parse_exports` reads back as the same."""
    said: dict[str, object] = {"version": VERSION}
    if exports.keys:
        said["keys"] = {nqn: _said_keys(keys) for nqn, keys in exports.keys.items()}
    if exports.exports:
        said["exports"] = {nqn: _said_export(export) for nqn, export in exports.exports.items()}
    return _HEADER + yaml.safe_dump(said, sort_keys=False, default_flow_style=False, width=1000)


def _said_keys(keys: HostKeys) -> dict[str, str]:
    said = {"key_file": str(keys.key_file)}
    if keys.controller_key_file is not None:
        said["controller_key_file"] = str(keys.controller_key_file)
    return said


def _said_export(export: Export) -> dict[str, object]:
    return {
        "serial": export.serial,
        "namespaces": {number: _said_namespace(one) for number, one in export.namespaces.items()},
        "ports": [str(port) for port in export.ports],
        "hosts": list(export.hosts),
        "allow_any_host": export.allow_any_host,
    }


def _said_namespace(namespace: Namespace) -> dict[str, str]:
    said = {"path": str(namespace.path), "uuid": str(namespace.uuid), "nguid": str(namespace.nguid)}
    if namespace.wwid is not None:
        said["wwid"] = namespace.wwid
    return said
