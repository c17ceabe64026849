"""Flips bytes of payloads on the pool's devices, below the mounts and past every cache.

Payloads are found by the headings that all contents have, so what is hit is known by name; the records that make the
objects exist are never touched.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scripts.lib.soak.contents import Heading, Subject

PAGE = mmap.PAGESIZE
WINDOW = 1 << 20
"""Bytes that are searched at a time."""
WINDOWS = 64
"""Searched for something to damage, before that is given up."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A byte that was flipped, of a file's payload; maybe of a version that is there no more."""

    name: str
    device: Path
    offset: int


class Damager:
    """Flips bytes, where `rng` has it.

    :param extent: bytes of an extent: payloads are contiguous up to multiples of it
    """

    def __init__(
        self, devices: list[Path], subjects: Iterable[Subject], extent: int, rng: random.Random
    ) -> None:
        self._devices = devices
        self._subjects = {subject.key: subject for subject in subjects}
        self._extent = extent
        self._rng = rng

    def flip(self) -> Hit | None:
        """One byte of one page of a payload. None if none was found.

        :raises OSError:
        """
        device = self._rng.choice(self._devices)
        size = device.stat().st_size
        descriptor = os.open(device, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        try:
            with mmap.mmap(-1, WINDOW) as window:
                for _ in range(WINDOWS):
                    start = self._rng.randrange(0, size - WINDOW, PAGE)
                    os.preadv(descriptor, [window], start)
                    if (hit := self._in_window(window, start)) is not None:
                        name, offset = hit
                        _flip(descriptor, offset)
                        return Hit(name, device, offset)
        finally:
            os.close(descriptor)
        return None

    def _in_window(self, window: mmap.mmap, start: int) -> tuple[str, int] | None:
        """A file with a part that begins here, and the device's offset of one of the part's bytes."""
        pages = list(range(0, WINDOW, PAGE))
        self._rng.shuffle(pages)
        for at in pages:
            heading = Heading.of(window[at : at + PAGE])
            subject = self._subjects.get(heading.key) if heading is not None else None
            if heading is None or subject is None:
                continue
            begin, end = subject.span(heading.part)
            contiguous = min(end - begin, self._extent - begin % self._extent)
            return subject.name, start + at + self._rng.randrange(contiguous)
        return None


def _flip(descriptor: int, offset: int) -> None:
    """By reading and writing the page, at once: the mounts write past the page cache, so this must too."""
    page = offset // PAGE * PAGE
    with mmap.mmap(-1, PAGE) as buffer:
        os.preadv(descriptor, [buffer], page)
        buffer[offset - page] ^= 0x10
        os.pwritev(descriptor, [buffer], page)
