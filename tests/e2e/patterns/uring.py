"""io_uring as NIXL and Mooncake use it: a batch of reads or writes submitted at once, with registered buffers too."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.patterns.toolkit import Outcome, Sizes, aligned, attempt, content, opened, system_call

READ_FIXED, WRITE_FIXED, READ, WRITE = 4, 5, 22, 23
_SETUP, _ENTER, _REGISTER = 425, 426, 427  # of every architecture
_SQES_OFFSET = 0x10000000
_SQE, _CQE = struct.Struct("=BBHiQQIIQHHiQQ"), struct.Struct("=QiI")


class Ring:
    """A ring that takes one batch at a time."""

    def __init__(self, fd: int, parameters: bytes) -> None:
        self._fd = fd
        entries, completions = struct.unpack_from("=II", parameters)
        self._sq = struct.unpack_from(
            "=7I", parameters, 40
        )  # head, tail, mask, entries, flags, dropped, array
        self._cq = struct.unpack_from("=6I", parameters, 80)  # head, tail, mask, entries, overflow, cqes
        size = max(self._sq[6] + 4 * entries, self._cq[5] + _CQE.size * completions)
        self._ring = mmap.mmap(fd, size)
        self._sqes = mmap.mmap(fd, entries * _SQE.size, offset=_SQES_OFFSET)

    def submit(self, opcode: int, fd: int, requests: Sequence[tuple[int, memoryview]]) -> list[int]:
        """Submit all (offset, buffer) at once and wait for all; each one's result, in order. For the fixed operations
        the buffers are the registered ones.
        """
        (tail,) = struct.unpack_from("=I", self._ring, self._sq[1])
        (mask,) = struct.unpack_from("=I", self._ring, self._sq[2])
        for number, (offset, view) in enumerate(requests):
            slot = (tail + number) & mask
            fields = (opcode, 0, 0, fd, offset, _address(view), len(view), 0, number, number, 0, 0, 0, 0)
            _SQE.pack_into(self._sqes, slot * _SQE.size, *fields)
            struct.pack_into("=I", self._ring, self._sq[6] + 4 * slot, slot)
        struct.pack_into("=I", self._ring, self._sq[1], tail + len(requests))
        system_call(_ENTER, self._fd, len(requests), len(requests), 1, None, 0)
        return self._reap(len(requests))

    def _reap(self, count: int) -> list[int]:
        (head,) = struct.unpack_from("=I", self._ring, self._cq[0])
        (mask,) = struct.unpack_from("=I", self._ring, self._cq[2])
        results: dict[int, int] = {}
        for number in range(count):
            at = self._cq[5] + _CQE.size * ((head + number) & mask)
            request, result, _ = _CQE.unpack_from(self._ring, at)
            results[request] = result
        struct.pack_into("=I", self._ring, self._cq[0], head + count)
        return [results[number] for number in range(count)]

    def register(self, views: Sequence[memoryview]) -> None:
        """Pin buffers for the fixed operations: number n of a batch uses the nth."""
        vectors = b"".join(struct.pack("=QQ", _address(view), len(view)) for view in views)
        system_call(_REGISTER, self._fd, 0, vectors, len(views))

    def close(self) -> None:
        self._ring.close()
        self._sqes.close()


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@contextmanager
def ring(entries: int) -> Iterator[Ring]:
    """A ring for batches of up to `entries`.

    :raises OSError: ENOSYS or EPERM where the system does not offer it
    """
    parameters = ctypes.create_string_buffer(120)
    fd = system_call(_SETUP, entries, parameters)
    try:
        made = Ring(fd, parameters.raw)
        try:
            yield made
        finally:
            made.close()
    finally:
        os.close(fd)


def batches(root: Path, sizes: Sizes) -> Outcome:
    """Writes and reads in batches, plain and from registered buffers, buffered and direct; "unavailable" by errno."""
    root.mkdir(parents=True, exist_ok=True)
    outcome: Outcome = {"intact": True}

    def run() -> None:
        for name, flags in (("buffered", 0), ("direct", os.O_DIRECT)):
            for kind, write, read in (("plain", WRITE, READ), ("fixed", WRITE_FIXED, READ_FIXED)):
                done = _batch(root / f"{name}-{kind}", flags, (write, read), sizes)
                outcome[f"{name} {kind}"] = done[:2]
                outcome["intact"] = outcome["intact"] and done[2]

    return {"available": attempt(run), **outcome}


def _batch(
    path: Path, flags: int, opcodes: tuple[int, int], sizes: Sizes
) -> tuple[list[int], list[int], bool]:
    size = sizes.aligned
    blocks = [content(f"{path.name} {number}", size) for number in range(sizes.count)]
    requests = [(number * size, aligned(size, block)) for number, block in enumerate(blocks)]
    with ring(sizes.count) as batch, opened(path, os.O_RDWR | os.O_CREAT | flags) as fd:
        batch.register([view for _, view in requests])
        written = batch.submit(opcodes[0], fd, requests)
        for _, view in requests:
            view[:] = bytes(size)
        read = batch.submit(opcodes[1], fd, requests)
    return written, read, [bytes(view) for _, view in requests] == blocks
