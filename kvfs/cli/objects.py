"""`kvfs ls` and `kvfs stat`: what is in a pool, read from its media, mounted or not."""

from __future__ import annotations

import mmap
import os
import stat as stat_bits
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import trio

from blockdev.errors import ChecksumError, DeviceError, Raced, Unavailable
from blockdev.types import PAGE, ROOT, DirectoryId, Kind
from kvfs.assemble import reading
from kvfs.cli.options import ParameterType, styled
from kvfs.cli.render import Column, Row, Style, Unit, as_json, fields, table, write
from kvfs.cli.running import ask_each
from kvfs.errors import NoObject
from kvfs.report import devices_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockdev.pool import Pool
    from blockdev.types import Descriptor, ExtentRef
    from kvfs.state import PoolFolder, StateDirectory

_TYPES = {Kind.HEAD: "file", Kind.DIRECTORY: "directory", Kind.SYMLINK: "symlink"}

LS_COLUMNS = (
    Column("type"),
    Column("size", Unit.BYTES),
    Column("mtime", Unit.TIME),
    Column("name"),
    Column("mode", Unit.OCTAL, shown=False),
    Column("uid", Unit.COUNT, shown=False),
    Column("gid", Unit.COUNT, shown=False),
    Column("id", shown=False),
)

STAT_COLUMNS = (
    Column("path"),
    Column("type"),
    Column("size", Unit.BYTES),
    Column("stored", Unit.BYTES),
    Column("mode", Unit.OCTAL),
    Column("uid", Unit.COUNT),
    Column("gid", Unit.COUNT),
    Column("mtime", Unit.TIME),
    Column("id"),
    Column("device", Unit.COUNT),
    Column("region", Unit.COUNT),
    Column("slot", Unit.COUNT),
    Column("predecessor"),
    Column("target"),
)

EXTENT_COLUMNS = (
    Column("index", Unit.COUNT),
    Column("offset", Unit.BYTES),
    Column("length", Unit.BYTES),
    Column("device", Unit.COUNT),
    Column("region", Unit.COUNT),
    Column("slot", Unit.COUNT),
    Column("generation", Unit.COUNT, shown=False),
    Column("xxh3"),
    Column("state"),
    Column("path"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """POOL or POOL:PATH."""

    pool: str
    parts: tuple[bytes, ...]

    @property
    def path(self) -> str:
        return "/" + os.fsdecode(b"/".join(self.parts))


class TargetType(ParameterType):
    """POOL[:PATH]; `.` and `..` are resolved as in a shell, from the pool's root."""

    name = "target"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        if isinstance(value, Target):
            return value
        pool, _, path = str(value).partition(":")
        if not pool:
            self.fail(f"'{value}' names no pool: write POOL:PATH", param, ctx)
        whole = os.path.normpath("/" + path)
        return Target(pool, tuple(part for part in os.fsencode(whole).split(b"/") if part))


@click.command(short_help="List a directory of a pool, mounted or not.")
@click.argument("target", metavar="POOL[:PATH]", type=TargetType())
@styled(LS_COLUMNS)
@click.pass_obj
def ls(state: StateDirectory, target: Target, style: Style) -> None:
    """List a directory of a pool as its media have it, whether it is mounted or not."""
    trio.run(_ls, _current(state, target), target, style)


def _current(state: StateDirectory, target: Target) -> PoolFolder:
    """The pool's folder; running mounts have put into the catalogue there what they published last."""
    folder = state.known(target.pool)
    ask_each(folder, "commit")
    return folder


async def _ls(folder: PoolFolder, target: Target, style: Style) -> None:
    async with reading(folder) as pool:
        found = _find(pool, target)
        rows = (
            _row(record) for record in (pool.children(_id(found)) if _is_directory(found) else _only(found))
        )
        if style.json:
            write(as_json("ls", {"pool": pool.name, "path": target.path, "entries": list(rows)}))
        elif style.bare:
            for row in rows:  # a directory may have millions: nothing is collected
                write(table(LS_COLUMNS, [row], style))
        else:
            write(table(LS_COLUMNS, list(rows), style))


def _find(pool: Pool, target: Target) -> Descriptor | None:
    """What the path names; None for the root, which needs no record.

    :raises NoObject:
    """
    found: Descriptor | None = None
    for part in target.parts:
        found = (
            pool.catalog.get(_id(found), part) if _is_directory(found) else None
        )  # also what is not reachable now
        if found is None:
            raise NoObject(
                f"{target.pool}:{target.path}: no such file or directory; 'kvfs ls {target.pool}' lists the root"
            )
    return found


def _is_directory(record: Descriptor | None) -> bool:
    return record is None or record.kind is Kind.DIRECTORY


def _id(directory: Descriptor | None) -> DirectoryId:
    return ROOT if directory is None else DirectoryId(directory.object_id)


def _only(record: Descriptor | None) -> Iterator[Descriptor]:
    if record is not None:
        yield record


def _row(record: Descriptor) -> Row:
    return {
        "name": os.fsdecode(record.name),
        "type": _TYPES.get(record.kind, "other"),
        "size": record.size,
        "mtime": record.mtime_ns / 1e9,
        "mode": stat_bits.S_IMODE(record.mode),
        "uid": record.uid,
        "gid": record.gid,
        "id": record.object_id.hex(),
    }


@click.command(short_help="Show where an object lies and whether its bytes are right.")
@click.argument("target", metavar="POOL:PATH", type=TargetType())
@styled(EXTENT_COLUMNS)
@click.pass_obj
def stat(state: StateDirectory, target: Target, style: Style) -> None:
    """Show an object's record and its extents: where each lies, and whether its bytes match their checksum.

    Every extent is read. Its state is `ok`, `hole`, `inline`, `damaged`, `missing` (its device is not there), `failed`
    (its device reports an error) or `raced` (replaced while it was looked at). -H, -p and -o apply to the extents.
    """
    trio.run(_stat, _current(state, target), target, style)


async def _stat(folder: PoolFolder, target: Target, style: Style) -> None:
    async with reading(folder) as pool:
        found = _find(pool, target)
        row = _record_row(target, found)
        extents = [] if found is None else await _extents(pool, found)
    if style.json:
        write(as_json("stat", {"pool": target.pool, "object": row, "extents": extents}))
        return
    if not style.bare:
        used: Row = {key: value for key, value in row.items() if value is not None}
        write(
            fields([column for column in STAT_COLUMNS if column.key in used], used, Style(exact=style.exact))
        )
    if extents:
        write(table(EXTENT_COLUMNS, extents, style))


def _record_row(target: Target, record: Descriptor | None) -> Row:
    if record is None:
        return {"path": target.path, "type": "directory"}
    row = _row(record)
    del row["name"]
    return row | {
        "path": target.path,
        "stored": record.stored_size,
        "device": record.address.device,
        "region": record.address.region,
        "slot": record.address.slot,
        "predecessor": record.predecessor.hex() if any(record.predecessor) else None,
        "target": os.fsdecode(record.inline) if record.kind is Kind.SYMLINK else None,
    }


async def _extents(pool: Pool, record: Descriptor) -> list[Row]:
    if record.kind is not Kind.HEAD:
        return []
    paths = {device["number"]: device["path"] for device in devices_of(pool)}
    buffer = memoryview(mmap.mmap(-1, max(pool.extent_size, PAGE)))
    rows: list[Row] = []
    for index, extent in enumerate(await pool.extents(record)):
        length = min(pool.extent_size, record.size - index * pool.extent_size)
        row: Row = {"index": index, "offset": index * pool.extent_size, "length": length}
        if not extent.is_hole:
            row |= _place(extent, paths)
        rows.append(row | {"state": await _state(pool, record, index, extent, buffer)})
    if record.inline:
        rows.append({"index": 0, "offset": 0, "length": len(record.inline), "state": "inline"})
    return rows


def _place(extent: ExtentRef, paths: dict[int, str]) -> Row:
    return {
        "device": extent.device,
        "region": extent.region,
        "slot": extent.slot,
        "generation": extent.generation,
        "xxh3": f"{extent.xxh3:016x}",
        "path": paths.get(extent.device),
    }


async def _state(pool: Pool, record: Descriptor, index: int, extent: ExtentRef, buffer: memoryview) -> str:
    if extent.is_hole:
        return "hole"
    try:
        await pool.read_extent(record, index, buffer)
    except ChecksumError:
        return "damaged"
    except Raced:
        return "raced"
    except Unavailable:
        return "missing"
    except DeviceError:
        return "failed"
    return "ok"
