"""NIXL's file plugins and Dynamo KVBM: descriptors that stay open and are read and written at offsets."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.patterns.toolkit import (
    Outcome,
    Sizes,
    aligned,
    attempt,
    content,
    fallocate,
    opened,
    read_once,
    system_call,
)

_SETUP, _DESTROY, _SUBMIT, _EVENTS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}.get(
    os.uname().machine, (0, 0, 0, 0)
)
_PREAD, _PWRITE = 0, 1


def kernel_aio(fd: int, kind: int, requests: Sequence[tuple[int, memoryview]]) -> list[int]:
    """io_submit(2) of all requests (offset, buffer) at once; each one's result, in order."""
    context = ctypes.c_ulong(0)
    system_call(_SETUP, len(requests), ctypes.byref(context))
    blocks, pointers = [], (ctypes.c_void_p * len(requests))()
    for number, (offset, view) in enumerate(requests):
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        packed = struct.pack("=QIIHhIQQqQII", number, 0, 0, kind, 0, fd, address, len(view), offset, 0, 0, 0)
        blocks.append(ctypes.create_string_buffer(packed, 64))
        pointers[number] = ctypes.addressof(blocks[-1])
    try:
        system_call(_SUBMIT, context, len(requests), pointers)
        events = ctypes.create_string_buffer(32 * len(requests))
        system_call(_EVENTS, context, len(requests), len(requests), events, None)
    finally:
        system_call(_DESTROY, context)
    done = {number: result for number, _, result, _ in struct.iter_unpack("=QQqq", events.raw)}
    return [done[number] for number in range(len(requests))]


def _requests(size: int, count: int) -> list[tuple[int, memoryview]]:
    return [(number * size, aligned(size)) for number in range(count)]


def nixl_libaio(root: Path, sizes: Sizes) -> Outcome:
    """The POSIX plugin as it comes: a batch in one io_submit, on an O_RDWR|O_CREAT file, direct and not."""
    root.mkdir(parents=True, exist_ok=True)
    size, outcome = sizes.aligned, Outcome()
    for name, flags in (("buffered", 0), ("direct", os.O_DIRECT)):
        path = root / f"nixl_{name}.bin"
        blocks = [content(f"nixl {name} {number}", size) for number in range(sizes.count)]
        with opened(path, os.O_RDWR | os.O_CREAT | flags) as fd:
            requests = _requests(size, sizes.count)
            for (_, view), block in zip(requests, blocks, strict=True):
                view[:] = block
            written = kernel_aio(fd, _PWRITE, requests[::-1])
            requests = _requests(size, sizes.count)
            read = kernel_aio(fd, _PREAD, requests)
            intact = [view == block for (_, view), block in zip(requests, blocks, strict=True)]
        outcome |= {f"written {name}": written, f"read {name}": read, f"size {name}": path.stat().st_size}
        outcome["intact"] = all(intact) and outcome.get("intact", True)
    outcome["existing"] = [attempt((root / "nixl_direct.bin").stat), attempt((root / "none").stat)]
    return outcome


def nixl_posix_aio(root: Path, sizes: Sizes) -> Outcome:
    """POSIX AIO: threads of pread and pwrite on one descriptor, with path-mode's sync and noatime."""
    root.mkdir(parents=True, exist_ok=True)
    path, size = root / "nixl_posix.bin", sizes.aligned
    blocks = {number: content(f"posix {number}", size) for number in range(sizes.count)}
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_SYNC) as fd, ThreadPoolExecutor(8) as pool:
        written = list(
            pool.map(lambda number: os.pwrite(fd, blocks[number], number * size), reversed(blocks))
        )
        read = list(pool.map(lambda number: os.pread(fd, size, number * size), blocks))
    with opened(path, os.O_RDONLY | os.O_NOATIME | os.O_DIRECT) as fd:
        view = aligned(size)
        direct = os.preadv(fd, [view], size * (sizes.count - 1))
        past = os.preadv(fd, [view], size * sizes.count)
    return {
        "written": written,
        "intact": read == list(blocks.values()) and view == blocks[sizes.count - 1],
        "direct": direct,
        "past the end": past,
        "size": path.stat().st_size,
        "write only": attempt(lambda: _write_to_reader(path)),
    }


def _write_to_reader(path: Path) -> None:
    with opened(path, os.O_RDONLY) as fd:
        os.pwrite(fd, b"x", 0)


def kvbm_disk(root: Path, sizes: Sizes) -> Outcome:
    """mkostemp, O_DIRECT by F_SETFL, fallocate or else ftruncate or zeros, unlinked while it is used."""
    root.mkdir(parents=True, exist_ok=True)
    path, size = root / "dynamo-kvbm-disk-cache-a1B2c3", sizes.aligned
    total = (sizes.count + 1) * size
    blocks = [content(f"kvbm {number}", size) for number in range(sizes.count)]
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600) as fd:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
        direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
        allocated = attempt(lambda: fallocate(fd, total))
        if allocated == "EOPNOTSUPP":
            os.ftruncate(fd, total)
        view = aligned(size)
        for number, block in enumerate(blocks):
            view[:] = block
            os.pwritev(fd, [view], number * size)
        os.fsync(fd)
        path.unlink()
        read = []
        for number in range(sizes.count + 1):
            os.preadv(fd, [view], number * size)
            read.append(bytes(view))
        view[:] = blocks[0]
        os.pwritev(fd, [view], size)
        os.preadv(fd, [view], size)
        status = os.fstat(fd)
    return {
        "direct": direct,
        "fallocate": allocated,
        "intact": read == [*blocks, bytes(size)] and view == blocks[0],
        "size": status.st_size,
        "mode": f"{status.st_mode:o}",
        "left": [entry.name for entry in root.iterdir()],
    }


def kvbm_zero_fill(root: Path, sizes: Sizes) -> Outcome:
    """DYN_KVBM_DISK_ZEROFILL_FALLBACK: the whole file written with zeros first."""
    root.mkdir(parents=True, exist_ok=True)
    path, size = root / "dynamo-kvbm-disk-cache-z0Z0z0", sizes.aligned
    zeros, block = aligned(size), content("zero fill", size)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600) as fd:
        filled = [os.write(fd, zeros) for _ in range(sizes.count)]
        os.fsync(fd)
        os.pwrite(fd, block, size)
        os.fsync(fd)
        read = os.pread(fd, size * sizes.count, 0)
    whole = bytes(size) + block + bytes(size * (sizes.count - 2))
    return {
        "filled": filled,
        "intact": read == whole == read_once(path, len(whole)),
        "tail": path.stat().st_size,
    }
