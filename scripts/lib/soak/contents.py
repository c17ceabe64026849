"""What the files hold: bytes that follow from a name and a version, so that whatever is read can be judged. Pure.

    file    part 0 · part 1 · …                 parts of equal size, the last one takes what is left over
    part    magic · key of the name · part · version · noise, rotated by a distance that the four decide

A file that is always stored whole has one part. A slab has several, of which each new version rewrites one: part p of
version v was written by the latest version up to v that leaves p when it is divided by the number of parts. So a mixture
of two versions is no version, and a reader can tell.
"""

from __future__ import annotations

import hashlib
import random
import struct
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

MAGIC = b"kvfsoak1"
_HEADER = struct.Struct("<8s16sQQ")
HEADER_SIZE = _HEADER.size
"""Bytes; the least size of a part."""
PART_MAX = 4 << 20
"""Bytes; the most that a part may have."""


@dataclass(frozen=True)
class Subject:
    """A file that may be there.

    :ivar name: what its content follows from
    :ivar size: bytes
    :ivar parts: how many; a version rewrites one of them
    """

    name: str
    size: int
    parts: int = 1

    @cached_property
    def key(self) -> bytes:
        """The name, in 16 bytes."""
        return hashlib.blake2b(self.name.encode(), digest_size=16).digest()

    @property
    def first_version(self) -> int:
        """The least that a version may be: every part has been written by one."""
        return self.parts

    def span(self, part: int) -> tuple[int, int]:
        """Where a part begins and ends, in bytes."""
        step = self.size // self.parts
        return part * step, self.size if part == self.parts - 1 else (part + 1) * step

    def written_by(self, part: int, version: int) -> int:
        """The version that wrote a part of this version."""
        return version - (version - part) % self.parts

    def part(self, part: int, version: int) -> bytes:
        """A part as this version has it."""
        begin, end = self.span(part)
        writer = self.written_by(part, version)
        header = _HEADER.pack(MAGIC, self.key, part, writer)
        at = int.from_bytes(hashlib.blake2b(header, digest_size=8).digest(), "little") % PART_MAX
        return header + _noise()[at : at + end - begin - HEADER_SIZE]

    def content(self, version: int) -> bytes:
        """The whole file."""
        return b"".join(self.part(part, version) for part in range(self.parts))

    def changed(self, old: int, new: int) -> list[int]:
        """The parts that differ between two versions."""
        return [p for p in range(self.parts) if self.written_by(p, old) != self.written_by(p, new)]


class Heading(NamedTuple):
    """What a part says of itself."""

    key: bytes
    part: int
    version: int

    @staticmethod
    def of(data: bytes, at: int = 0) -> Heading | None:
        """None where there is none."""
        if data[at : at + len(MAGIC)] != MAGIC or len(data) < at + HEADER_SIZE:
            return None
        _, key, part, version = _HEADER.unpack_from(data, at)
        return Heading(key, part, version)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was read: a version, whole; or what is wrong with it."""

    version: int | None
    complaint: str = ""


def judge(subject: Subject, data: bytes) -> Judgement:
    """Which version of the file this is."""
    if len(data) != subject.size:
        return Judgement(None, f"{len(data)} bytes of {subject.size}")
    versions = []
    for part in range(subject.parts):
        heading = Heading.of(data, subject.span(part)[0])
        if heading is None:
            return Judgement(None, f"part {part} does not begin as any part does")
        key, number, version = heading
        if key != subject.key:
            return Judgement(None, f"part {part} is another file's")
        if number != part:
            return Judgement(None, f"part {number} in the place of part {part}")
        versions.append(version)
    version = max(versions)
    expected = subject.content(version)
    if data == expected:
        return Judgement(version)
    for part, found in enumerate(versions):
        if found != subject.written_by(part, version):
            return Judgement(None, f"mixed: part {part} is of version {found} in version {version}")
    wrong = [at for at in range(len(data)) if data[at] != expected[at]]
    return Judgement(None, f"{len(wrong)} wrong bytes in version {version}, from {wrong[0]} to {wrong[-1]}")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Versions that a reader may be given.

    :ivar least: the newest that had been acknowledged, long enough for the reader to know, before it asked
    :ivar most: the newest that anybody had begun to write when it was answered
    """

    least: int
    most: int

    def complaint(self, version: int) -> str:
        """Why not this one; empty if it is right."""
        if version < self.least:
            return f"stale: version {version} after {self.least} was stored"
        if version > self.most:
            return f"version {version} before it was written; {self.most} was the newest"
        return ""


@cache
def _noise() -> bytes:
    noise = random.Random(0).randbytes(PART_MAX)
    return noise + noise
