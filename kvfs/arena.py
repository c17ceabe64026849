"""The memory of the DRAM tier: one mapping, cut into aligned frames."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

from blockdev.types import MIB, PAGE

_HUGE_PAGE = 2 * MIB
# Linux's numbers; the mmap module of Python 3.11 has no names for them.
_MADV_WIPEONFORK = 18
_MADV_POPULATE_WRITE = 23


class Arena:
    """One anonymous mapping, cut into page-aligned frames, faulted in once.

    The memory goes back to the system with the last view of it: an I/O that is stuck in a thread holds its
    view, so its memory is never given to anybody else.

    :param size: bytes; rounded down to whole frames
    :param frame_size: bytes; a multiple of 4 KiB
    :param huge_pages: ask for transparent huge pages; where they are not allowed, it works without
    :raises ValueError: no room for one frame, or `frame_size` is not whole pages
    :raises OSError: the system has not that much memory
    """

    def __init__(self, size: int, frame_size: int, *, huge_pages: bool = True) -> None:
        if frame_size <= 0 or frame_size % PAGE:
            raise ValueError(f"frame size {frame_size} is not a multiple of {PAGE} bytes")
        count = size // frame_size
        if count < 1:
            raise ValueError(f"{size} bytes do not hold one frame of {frame_size} bytes")
        self.frame_size = frame_size
        self.size = count * frame_size
        # Private, since the system grants shared mappings transparent huge pages only when set up for it.
        memory = mmap.mmap(-1, self.size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_PAGE
        _prepare(memory, start, self.size, huge_pages=huge_pages)
        whole = memoryview(memory)[start : start + self.size]
        self.views = tuple(whole[at : at + frame_size] for at in range(0, self.size, frame_size))


def _prepare(memory: mmap.mmap, start: int, size: int, *, huge_pages: bool) -> None:
    # A child of fork() gets zeros: if it shared these pages copy-on-write while the kernel reads into them, the
    # data could land in the copy that only the child sees. Advice that a kernel lacks is no error.
    for advice in (_MADV_WIPEONFORK, mmap.MADV_DONTDUMP):
        with suppress(OSError):
            memory.madvise(advice, start, size)
    if huge_pages:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE, start, size)
    try:
        memory.madvise(_MADV_POPULATE_WRITE, start, size)
    except OSError:
        for page in range(start, start + size, PAGE):
            memory[page] = 0
