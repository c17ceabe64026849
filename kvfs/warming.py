"""Bringing files into a mount's memory because an operator says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from blockdev.tasks import for_each
from blockdev.types import ROOT, DirectoryId, Kind
from kvfs.errors import FramesError, NoObject
from kvfs.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from typing import Any

    from blockdev.pool import Pool
    from blockdev.types import Descriptor, ExtentRef
    from kvfs.frames import FrameCache

Json = dict[str, "Any"]

AT_ONCE = 4
"""Extents on their way."""
SHARE = 0.75
"""Of the frames, that may be filled so: the rest is for whoever uses the mount meanwhile."""


async def warm(
    pool: Pool, frames: FrameCache, paths: Sequence[str], report: Callable[[Json], Awaitable[None]]
) -> Json:
    """Bring files, and all that are in directories and below, into the DRAM tier.

    :param paths: from the pool's root
    :param report: given what is done and how much there is, in bytes of whole extents
    :returns: how many `files` that are, and their `bytes`
    :raises NoObject: one is not there
    :raises FramesError: that is more than memory takes; nothing was brought
    :raises BlockError: one cannot be read; others may be there
    """
    files = [record for path in paths for record in _files(pool, _found(pool, path))]
    extents = [
        (record, index, extent)
        for record in files
        for index, extent in enumerate(await pool.extents(record))
        if not extent.is_hole
    ]
    room = int(frames.count * SHARE)
    if len(extents) > room:
        raise FramesError(
            f"these files fill {format_size(len(extents) * frames.frame_size)} of memory, and the mount takes "
            f"{format_size(room * frames.frame_size)} of them: name fewer, or give it more 'memory'"
        )
    done, telling = 0, trio.Lock()

    async def bring(one: tuple[Descriptor, int, ExtentRef]) -> None:
        nonlocal done
        record, index, extent = one
        frames.unpin(await frames.get(record, index, extent.ref))
        done += 1
        async with telling:
            await report({"done": done * frames.frame_size, "total": len(extents) * frames.frame_size})

    if extents:
        await for_each(extents, bring, at_once=min(AT_ONCE, len(extents)))
    return {"files": len(files), "bytes": sum(record.size for record in files)}


def _found(pool: Pool, path: str) -> Descriptor | None:
    """What a path names; None for the root. :raises NoObject:"""
    found: Descriptor | None = None
    for name in filter(None, os.fsencode(path).split(b"/")):
        inside = found is None or found.kind is Kind.DIRECTORY
        found = pool.lookup(_id(found), name) if inside else None
        if found is None:
            raise NoObject(f"{path} is not there")
    return found


def _id(directory: Descriptor | None) -> DirectoryId:
    return ROOT if directory is None else DirectoryId(directory.object_id)


def _files(pool: Pool, found: Descriptor | None) -> Iterator[Descriptor]:
    if found is not None and found.kind is not Kind.DIRECTORY:
        if found.kind is Kind.HEAD:
            yield found
        return
    for child in pool.children(_id(found)):
        yield from _files(pool, child)
