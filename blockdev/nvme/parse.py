"""From nvme-cli's JSON to records, for the shapes that its versions have. Pure.

Debian 12 has 2.3, Debian 13 2.13, and 3.x changed more. What moves between them:

- `list` is flat (`Devices` with `DevicePath`), or a tree of subsystems, controllers, namespaces and paths, in one of two
  orders (`--output-format-version`). Keys have changed their case (`NameSpace`, `Namespace`).
- `list-subsys` is a list of hosts that hold subsystems, or one object that does.
- Counters are numbers or strings: what has more than 64 bits always was a string.
- Nothing to tell may be no output at all.

So subsystems and namespaces are found by what they have, wherever they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from blockdev.nvme.records import (
    ControllerIdentity,
    DiscoveryEntry,
    NamespaceEntry,
    NamespaceIdentity,
    PathEntry,
    SmartLog,
    SubsystemEntry,
)

_MDTS_PAGE = 4096
_DATA_UNIT = 512_000
"""Bytes; smart-log counts thousands of 512 bytes."""


class Unreadable(ValueError):
    """Not what this command of nvme-cli prints in any version that is known."""


def parse_discovery(text: str) -> list[DiscoveryEntry]:
    """Of `discover -o json`, the answering service itself included. :raises Unreadable:"""
    return [_entry(record) for record in _objects(_load(text)) if "subnqn" in record and "trtype" in record]


def parse_connected(text: str) -> str | None:
    """Of `connect -o json`: the controller's name; None if it does not say. :raises Unreadable:"""
    for record in _objects(_load(text)):
        if "device" in record:
            return str(record["device"]).removeprefix("/dev/")
    return None


def parse_active(text: str) -> list[int]:
    """Of `list-ns -o json`: the numbers of the namespaces that a controller offers. :raises Unreadable:"""
    return [_number(record, "nsid") for record in _objects(_load(text)) if "nsid" in record]


def parse_namespaces(text: str) -> list[NamespaceEntry]:
    """Of `list -o json` and `list -v -o json`. :raises Unreadable:"""
    found: dict[str, NamespaceEntry] = {}
    for record, around in _walk(_load(text), {}):
        if "sectorsize" in record and "physicalsize" in record:
            entry = _namespace(record, around)
            found[entry.name] = entry
    return list(found.values())


def parse_subsystems(text: str) -> list[SubsystemEntry]:
    """Of `list-subsys -o json`. :raises Unreadable:"""
    return [
        SubsystemEntry(_text(record, "name"), _text(record, "nqn"), tuple(map(_path, record["paths"])))
        for record in _objects(_load(text))
        if "nqn" in record and isinstance(record.get("paths"), list)
    ]


def parse_controller(text: str) -> ControllerIdentity:
    """Of `id-ctrl -o json`. :raises Unreadable:"""
    record = _one(text)
    mdts = _number(record, "mdts")
    return ControllerIdentity(
        nqn=_text(record, "subnqn"),
        model=_text(record, "mn"),
        serial=_text(record, "sn"),
        firmware=_text(record, "fr"),
        transfer_limit=_MDTS_PAGE << mdts if mdts else None,
        volatile_cache=bool(_number(record, "vwc") & 1),
        ana=bool(_number(record, "cmic") & 8),
    )


def parse_namespace(text: str) -> NamespaceIdentity:
    """Of `id-ns -o json`. :raises Unreadable:"""
    record = _one(text)
    formats, flbas = record.get("lbafs"), _number(record, "flbas")
    number = (flbas & 0xF) | (flbas >> 1 & 0x30)
    if not isinstance(formats, list) or number >= len(formats):
        raise Unreadable("id-ns tells no block format")
    block_size = 1 << _number(_lowered(formats[number]), "ds")
    nguid = str(record.get("nguid", "")).replace("-", "").lower()
    return NamespaceIdentity(
        size=_number(record, "nsze") * block_size,
        block_size=block_size,
        shared=bool(_number(record, "nmic") & 1),
        nguid=nguid if nguid.strip("0") else None,
    )


def parse_smart(text: str) -> SmartLog:
    """Of `smart-log -o json`. :raises Unreadable:"""
    record = _one(text)
    warning = record.get("critical_warning", 0)
    if isinstance(warning, Mapping):  # -v spells the bits out
        warning = _lowered(warning).get("value", 0)
    return SmartLog(
        critical_warning=_whole(warning),
        temperature=_number(record, "temperature") or None,
        spare=_number(record, "avail_spare"),
        used=_number(record, "percent_used" if "percent_used" in record else "percentage_used"),
        read=_number(record, "data_units_read") * _DATA_UNIT,
        written=_number(record, "data_units_written") * _DATA_UNIT,
        media_errors=_number(record, "media_errors"),
    )


def parse_version(text: str) -> tuple[int, int]:
    """Of `version`: major and minor. :raises Unreadable:"""
    for word in text.split():
        numbers = word.split(".")
        if (
            len(numbers) >= 2
            and numbers[0].isdecimal()
            and numbers[1].rstrip("-abcdefghijklmnopqrstuvwxyz").isdecimal()
        ):
            return int(numbers[0]), int(numbers[1].rstrip("-abcdefghijklmnopqrstuvwxyz"))
    raise Unreadable(f"'{text.strip()}' names no version")


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────

_Object = dict[str, Any]


def _entry(record: _Object) -> DiscoveryEntry:
    subtype = _text(record, "subtype")
    return DiscoveryEntry(
        transport=_text(record, "trtype"),
        address=_text(record, "traddr"),
        service=_text(record, "trsvcid"),
        nqn=_text(record, "subnqn"),
        port=_number(record, "portid"),
        discovery="discovery" in subtype or "referral" in subtype,
        secure=_text(record, "treq").startswith("required"),
    )


def _path(path: object) -> PathEntry:
    record = _lowered(path)
    parts = dict(part.split("=", 1) for part in _text(record, "address").split(",") if "=" in part)
    address = parts.get("traddr", _text(record, "address"))
    name, transport, state = (_text(record, key) for key in ("name", "transport", "state"))
    return PathEntry(name, transport, address, parts.get("trsvcid", ""), state)


def _namespace(record: _Object, around: _Object) -> NamespaceEntry:
    named = record.get("devicepath") or record.get("namespace") or record.get("name")
    number = record.get("nsid", record.get("namespace"))
    if not isinstance(named, str):
        raise Unreadable("list tells no name of a namespace")
    return NamespaceEntry(
        name=named.removeprefix("/dev/"),
        namespace=_whole(number),
        size=_number(record, "physicalsize"),
        block_size=_number(record, "sectorsize"),
        model=_text({**around, **record}, "modelnumber"),
        serial=_text({**around, **record}, "serialnumber"),
        firmware=_text({**around, **record}, "firmware"),
    )


def _load(text: str) -> object:
    if not text.strip():
        return []
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unreadable(f"it is no JSON: {error}") from error


def _one(text: str) -> _Object:
    loaded = _load(text)
    if not isinstance(loaded, dict):
        raise Unreadable("an object was expected")
    return _lowered(loaded)


def _lowered(value: object) -> _Object:
    if not isinstance(value, Mapping):
        raise Unreadable("an object was expected")
    return {str(key).lower(): item for key, item in value.items()}


def _objects(value: object) -> Iterator[_Object]:
    """Every object in it, outer ones first."""
    return (record for record, _ in _walk(value, {}))


def _walk(value: object, around: _Object) -> Iterator[tuple[_Object, _Object]]:
    """Every object in it, with the plain values of those around it, and of the controllers beside it."""
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, around)
    elif isinstance(value, dict):
        record = _lowered(value)
        yield record, around
        inner = {**around, **{k: v for k, v in record.items() if isinstance(v, str)}, **_drive_of(record)}
        for item in record.values():
            yield from _walk(item, inner)


def _drive_of(record: _Object) -> _Object:
    """Namespaces of several controllers stand beside them, and of one drive these all tell the same."""
    for key in ("controllers", "paths"):
        beside = record.get(key)
        if isinstance(beside, list) and beside and isinstance(beside[0], dict):
            return {
                k: v
                for k, v in _lowered(beside[0]).items()
                if k in ("modelnumber", "serialnumber", "firmware")
            }
    return {}


def _text(record: _Object, key: str) -> str:
    return str(record.get(key, "") or "").strip()


def _number(record: _Object, key: str) -> int:
    if key not in record:
        raise Unreadable(f"'{key}' is missing")
    return _whole(record[key])


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Unreadable(f"{value!r} is no number")
    try:
        return int(value) if isinstance(value, int) else int(value.replace(",", ""), 0)
    except ValueError:
        raise Unreadable(f"{value!r} is no number") from None
