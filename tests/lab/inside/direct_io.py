"""Write and read block devices past the page cache.

direct_io write DEVICE SEED MIB     write so many MiB of bytes that SEED determines
direct_io read DEVICE SEED MIB      read them back; exit code 1 if any is wrong
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys

PIECE = 1 << 20


def content(seed: str, number: int) -> bytes:
    """The bytes of one piece."""
    return hashlib.shake_128(f"{seed} {number}".encode()).digest(PIECE)


def main(verb: str, device: str, seed: str, pieces: int) -> int:
    file = os.open(device, os.O_RDWR | os.O_DIRECT)
    buffer = mmap.mmap(-1, PIECE)  # aligned, as O_DIRECT wants it
    for number in range(pieces):
        buffer[:] = content(seed, number) if verb == "write" else bytes(PIECE)
        move = os.pwritev if verb == "write" else os.preadv
        moved = move(file, [buffer], number * PIECE)
        if moved != PIECE:
            print(f"{device}: {verb} moved {moved} bytes of MiB {number}", file=sys.stderr)
            return 1
        if buffer[:] != content(seed, number):
            print(f"{device}: wrong bytes in MiB {number}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
