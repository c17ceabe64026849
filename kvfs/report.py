"""What components say of themselves, as plain values: the JSON of the control socket and of the command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from blockdev.file_device import FileDevice
from blockdev.nvme import LIVE as NVME_LIVE
from blockdev.scrub import scrub
from blockdev.types import DeviceNo, SlotClass
from kvfs import targets
from kvfs.rdma_device import RdmaDevice
from kvfs.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from blockdev.device import Device
    from blockdev.media import Attached
    from blockdev.nvme import Namespace, Subsystem
    from blockdev.pool import Pool
    from blockdev.space import SpaceTotals
    from kvfs.cache import Cache
    from kvfs.frames import FrameCache
    from kvfs.fuse.mount import Mount

Json = dict[str, Any]

GAUGES = (
    "room.",
    "space.",
    "devices.",
    "limbo.slots",
    "limbo.bytes",
    "eviction.sample",
    "eviction.trusted",
    *(
        f"frames.{name}"
        for name in ("frames", "frame_size", "free", "idle", "pinned", "zombies", "waiting", "loading")
    ),
    *(
        f"prefetch.{name}"
        for name in ("accuracy", "coverage", "interference", "expected", "unused", "window")
    ),
    *(f"mount.{name}" for name in ("inodes", "open_files", "drafts", "notify.queued")),
    *(f"cache.stream.{name}" for name in ("waiting", "running", "bytes_running")),
)
"""Which names of `statistics_of_mount` and `statistics_of_cache` go up and down; the others count since that began."""

LIVE = "live"
MISSING = "missing"
LOST = "lost"
CONNECTING = "connecting"
SLOW = "slow"


def plain(value: object) -> Any:  # noqa: ANN401 (JSON has no narrower type)
    """A snapshot (dataclasses, named tuples, enums, UUIDs, nested) as what JSON has. Bytes become hexadecimal.

    :raises TypeError: something that is not a snapshot
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, (int, float)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is not part of a snapshot")


def flat(snapshot: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested objects as (dotted name, value); a list of objects is numbered, or named by their `name`."""
    rows: list[tuple[str, Any]] = []
    for key, value in snapshot.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += flat(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                rows += flat(item, f"{name}.{item.get('name', number)}.")
        elif isinstance(value, list):
            rows.append((name, ",".join(str(item) for item in value) or None))
        else:
            rows.append((name, value))
    return rows


def devices_of(pool: Pool) -> list[Json]:
    """Every device of the pool's table, those that are not here included."""
    sysfs = targets.fabric().sysfs
    rows: list[Json] = []
    for number, entry in enumerate(pool.superblock.devices):
        attached = pool.media.devices.get(DeviceNo(number))
        row: Json = {
            "number": number,
            "state": MISSING,
            "size": entry.size,
            "path": None,
            "uuid": str(entry.uuid),
        }
        row |= {"ways": None, "ana": None, "nqn": None, "via": None}
        if attached is not None:
            row |= {"state": _state_of(attached), "path": attached.device.name}
            held = sysfs.holding(attached.device.name)
            if isinstance(attached.device, RdmaDevice):
                row |= _own_connection(attached.device)
            elif held is not None:
                row["via"] = via(attached.device)
                row |= _fabric_of(*held)
                if attached.lost and targets.health(*held) == "connecting":
                    row["state"] = CONNECTING
        rows.append(row)
    return rows


def _own_connection(device: RdmaDevice) -> Json:
    """Of its addresses one is used at a time."""
    inner = device.inner
    return {"via": via(device), "ways": f"{int(device.is_connected)}/{inner.ways}", "nqn": inner.subsystem}


def _state_of(attached: Attached) -> str:
    if attached.lost:
        return LOST
    device = attached.device
    if isinstance(device, RdmaDevice):
        return LIVE if device.is_connected else CONNECTING
    return SLOW if isinstance(device, FileDevice) and device.statistics().zombies else LIVE


def via(device: Device) -> str:
    """Who moves its bytes: the kernel, or this process over RDMA."""
    return "rdma" if isinstance(device, RdmaDevice) else "kernel"


def _fabric_of(subsystem: Subsystem, namespace: Namespace) -> Json:
    live = {one.name for one in subsystem.controllers if one.state == NVME_LIVE}
    ways = {way.controller: way.ana for way in namespace.ways}
    return {
        "ways": f"{len(live & ways.keys())}/{len(subsystem.controllers)}",
        "ana": ",".join(dict.fromkeys(ana for name, ana in ways.items() if ana and name in live)) or None,
        "nqn": subsystem.nqn,
    }


def describe_pool(pool: Pool) -> Json:
    """What `pool status` shows of an open pool."""
    statistics = pool.statistics()
    return {
        "name": pool.name,
        "uuid": str(pool.uuid),
        "domain": pool.superblock.domain,
        "extent_size": pool.extent_size,
        "region_size": pool.superblock.region_size,
        "objects": statistics.objects,
        "total": statistics.totals.total,
        "used": statistics.totals.used,
        "devices": devices_of(pool),
    }


_STATES = ("free", "reserved", "live", "limbo", "bad", "unknown")


def space_of(space: SpaceTotals) -> Json:
    """Payload bytes by state, and slots by state and class; `unknown` is what was not looked at since the mount began."""
    shown = plain(space)
    classes = {class_name(row.slot_class): row for row in space.classes}
    del shown["classes"]
    shown["regions_by_class"] = {name: row.regions for name, row in classes.items()}
    for state in _STATES:
        shown[f"{state}_slots_by_class"] = {name: getattr(row, state) for name, row in classes.items()}
    return cast("Json", shown)


def class_name(slot_class: SlotClass) -> str:
    """The size of what its slots hold: `4 MiB`, or `inline` where that is in the record."""
    return format_size(slot_class.payload_size, " ") if slot_class.payload_size else "inline"


def statistics_of_mount(pool: Pool, frames: FrameCache, mount: Mount) -> Json:
    """What `kvfs stats` and the metrics show of a mount: a section a component."""
    prefetch = plain(mount.prefetcher.statistics())
    return _statistics(pool, frames, {"mount": plain(mount.statistics()), "prefetch": prefetch})


def statistics_of_cache(pool: Pool, frames: FrameCache, cache: Cache) -> Json:
    """The same of a process that uses the Cache API."""
    own = plain(cache.statistics())
    prefetch = own.pop("prefetch")
    return _statistics(pool, frames, {"cache": own, "prefetch": prefetch})


def _statistics(pool: Pool, frames: FrameCache, of_user: Json) -> Json:
    of_pool = pool.statistics()
    return {
        "pool": plain(of_pool.pool),
        "room": plain(of_pool.totals) | {"objects": of_pool.objects},
        "reads": plain(of_pool.reads),
        "regions": plain(of_pool.room),
        "limbo": plain(of_pool.limbo),
        "eviction": plain(of_pool.eviction),
        "space": space_of(of_pool.space),
        "frames": plain(frames.statistics()),
        **of_user,
        "devices": {"unreachable": len(of_pool.unreachable_devices)} | _paths(pool),
    }


def _paths(pool: Pool) -> Json:
    """How many devices are used by each path, and how often connections of ours were made."""
    used = [attached.device for attached in pool.media.devices.values() if not attached.lost]
    ours = [device for device in used if isinstance(device, RdmaDevice)]
    connected = sum(device.inner.sessions for device in ours)
    return {"rdma": len(ours), "kernel": len(used) - len(ours), "rdma_connected": connected}


async def scrub_report(pool: Pool, report: Callable[[Json], Awaitable[None]]) -> Json:
    """Scrub the pool; `report` is given what is done and how much there is, in bytes."""

    async def progress(done: int, total: int) -> None:
        await report({"done": done, "total": total})

    result = await scrub(pool, progress)
    damaged: list[Json] = [
        {"path": "/" + os.fsdecode(one.path), "size": one.size, "dropped": one.dropped, "reason": one.reason}
        for one in result.damaged
    ]
    counts: Json = plain(result)
    return counts | {"damaged": damaged}
