"""The files that the engines use, all of them: a working set larger than the pool. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from scripts.lib.soak.contents import Subject

KIB = 1 << 10
MIB = 1 << 20
SMALL_FILES = 200


class Engine(StrEnum):
    """Whose manner of using files."""

    VLLM = "vllm"
    """`fs` tier: a file a block in nested directories, O_DIRECT, one write, renamed."""
    SGLANG = "sglang"
    """HiCache's file backend: a flat directory, buffered, renamed."""
    LMCACHE = "lmcache"
    """`fs` adapter: sizes that are no multiple of anything; touched when used."""
    NOTES = "notes"
    """Small files, as engines keep beside their blocks."""
    REPLACED = "replaced"
    """Files that one engine stores anew, over the old one."""
    SLAB = "slab"
    """NIXL's and KVBM's manner: parts of a large file overwritten in place, O_DIRECT."""

    @property
    def versioned(self) -> bool:
        """Whether contents change. If so, one member alone writes the file; else any may, always the same."""
        return self in (Engine.REPLACED, Engine.SLAB)


SHARES = {
    Engine.VLLM: (0.50, 4 * MIB, 1),
    Engine.SGLANG: (0.20, MIB, 1),
    Engine.LMCACHE: (0.15, 1_500_007, 1),
    Engine.REPLACED: (0.05, 600 * KIB, 1),
    Engine.SLAB: (0.10, 8 * MIB, 8),
}
"""Of the working set's bytes, size of a file, parts."""
NOTE_SIZE = 3000


@dataclass(frozen=True)
class File:
    """One of the files.

    :ivar number: its place in the list of all
    :ivar path: relative to the mount point
    """

    number: int
    engine: Engine
    path: str
    subject: Subject

    def owner(self, members: int) -> int:
        """The member that writes it, if one alone does."""
        return self.number % members


def files(working_set: int) -> list[File]:
    """Every file of a working set of so many bytes; the same ones for the same size."""
    found: list[File] = []
    counts = {engine: max(2, int(working_set * share / size)) for engine, (share, size, _) in SHARES.items()}
    for engine, count in (*counts.items(), (Engine.NOTES, SMALL_FILES)):
        _, size, parts = SHARES.get(engine, (0, NOTE_SIZE, 1))
        for number in range(count):
            name = f"{engine} {number}"
            found.append(File(len(found), engine, _path(engine, name), Subject(name, size, parts)))
    return found


def _path(engine: Engine, name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    if engine is Engine.VLLM:
        return f"vllm/model_5f1c0a7be2d4_r0/{digest[:1]}/{digest[1:2]}_g0/{digest}.bin"
    return f"{engine}/{digest[:32]}.data"
