"""The memory of the DRAM tier: one mapping, cut into aligned frames."""

from __future__ import annotations

from blockdev.types import PAGE
from rdma.host_memory import host_memory


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
        self.whole = host_memory(self.size, huge_pages=huge_pages)
        """All of it, for who registers it."""
        self.views = tuple(self.whole[at : at + frame_size] for at in range(0, self.size, frame_size))
