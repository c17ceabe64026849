"""SGLang HiCache: the `file` backend with its evictor, the `nixl` backend with its cleaner, the `hf3fs` slab."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.patterns.toolkit import (
    DT_REG,
    Outcome,
    Sizes,
    aligned,
    attempt,
    content,
    entry_types,
    key_of,
    opened,
    read_direct,
    tree,
)

SUFFIX = "_Qwen3-8B_0_1.bin"


def page_path(root: Path, number: int) -> Path:
    """`<hash>_<model>_<tp rank>_<tp size>.bin` in one flat directory."""
    return root / f"{key_of(f'page {number}')}{SUFFIX}"


def set_page(path: Path, data: bytes) -> bool:
    """HiCacheFile.set: numpy's tofile writes to a duplicate of the descriptor and closes that first."""
    if path.exists():
        return False
    temp = path.with_name(f"{path.name}.tmp.{os.getpid()}.{threading.get_ident()}.{uuid.uuid4().hex}")
    with temp.open("wb") as file:
        file.flush()
        copy = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 0)
        with os.fdopen(copy, "wb") as duplicate:
            duplicate.write(data)
            duplicate.flush()
            position = os.lseek(duplicate.fileno(), 0, os.SEEK_CUR)
        file.seek(position)
    temp.replace(path)
    return True


def get_page(path: Path, size: int) -> bytes | None:
    """HiCacheFile.get: unbuffered, one readinto; only a missing file is a miss, a short read is an error."""
    target = bytearray(size)
    try:
        with path.open("rb", buffering=0) as file:
            if file.readinto(target) != size:
                raise OSError(0, "short read", str(path))
    except FileNotFoundError:
        return None
    return bytes(target)


def hicache_file(root: Path, sizes: Sizes) -> Outcome:
    """set, get, exists by scandir of the whole directory, clear."""
    root.mkdir(parents=True, exist_ok=True)
    paths = [page_path(root, number) for number in range(sizes.count)]
    pages = [content(path.name, sizes.block) for path in paths]
    missed = [get_page(path, sizes.block) for path in paths]
    stored = [set_page(path, page) for path, page in zip(paths, pages, strict=True)]
    again = [set_page(path, page) for path, page in zip(paths, pages, strict=True)]
    loaded = [get_page(path, sizes.block) for path in paths]
    with os.scandir(root) as entries:
        scanned = {entry.name for entry in entries if entry.is_file()}
    types = entry_types(root)
    paths[0].unlink()
    return {
        "missed": missed,
        "stored": stored,
        "again": again,
        "intact": loaded == pages,
        "exists": [path.name in scanned for path in paths],
        "types": set(types.values()) == {DT_REG},
        "removed": get_page(paths[0], sizes.block),
        "listed": sorted(path.name for path in root.iterdir()),
    }


def hicache_evictor(root: Path, sizes: Sizes) -> Outcome:
    """LRUFileEvictor: the order of modification times at start, statvfs at each admission, remove of victims."""
    root.mkdir(parents=True, exist_ok=True)
    paths = [page_path(root, number) for number in range(max(sizes.count, 4))]
    started = time.time()
    for path in paths:
        set_page(path, content(path.name, sizes.block))
    found = {entry.name: entry.stat() for entry in os.scandir(root)}
    seeds = [found[path.name].st_mtime_ns for path in paths]
    room = os.statvfs(root)
    total = room.f_blocks * room.f_frsize
    while_open = []
    with paths[1].open("rb", buffering=0) as reader:
        for victim in paths[:2]:
            victim.unlink()
        while_open.append(reader.read(sizes.block) == content(paths[1].name, sizes.block))
    return {
        "oldest first": seeds == sorted(seeds),
        "dated": all(started - 1 < seed / 1e9 < time.time() + 1 for seed in seeds),
        "sizes": [found[path.name].st_size for path in paths],
        "clamped": min(1 << 62, total) == total and total >= sizes.block * len(paths),
        "block": (room.f_bsize, room.f_frsize),
        "available": 0 < room.f_bavail <= room.f_bfree <= room.f_blocks,
        "intact": all(while_open),
        "twice": attempt(paths[0].unlink),
        "left": sorted(path.name for path in root.iterdir()),
    }


def nixl_path(root: Path, number: int, part: str) -> Path:
    """`<hash bucket>/<key>_<suffix>_k|_v`: two files for each page."""
    key = key_of(f"nixl {number}")
    return root / key[:2] / f"{key}_Qwen3-8B_0_1_{part}"


def _transfer_in(path: Path, data: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    view = aligned(len(data), data)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
        return os.pwrite(fd, view, 0)


def hicache_nixl(root: Path, sizes: Sizes) -> Outcome:
    """`rw,create,direct`: O_RDWR|O_CREAT at the final name, existence by stat, a batch open at once."""
    size = sizes.aligned
    paths = [nixl_path(root, number, part) for number in range(sizes.count) for part in "kv"]
    pages = [content(path.name, size) for path in paths]
    absent = [attempt(path.stat) for path in paths]
    written = [_transfer_in(path, page) for path, page in zip(paths, pages, strict=True)]
    views = [aligned(size) for _ in paths]
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC) for path in paths]
    read = [os.preadv(fd, [view], 0) for fd, view in zip(fds, views, strict=True)]
    for fd in fds:
        os.close(fd)
    rewritten = content("rewritten", size // 2)
    half = _transfer_in(paths[0], rewritten)  # no O_TRUNC: what follows stays
    mixed = rewritten + pages[0][half:]
    temp = paths[1].with_name(f"{paths[1].name}.tmp")
    _transfer_in(temp, pages[0])
    temp.replace(paths[1])
    return {
        "absent": absent,
        "written": written,
        "read": read,
        "intact": [bytes(view) for view in views] == pages,
        "sizes": [path.stat().st_size for path in paths],
        "mixed": read_direct(paths[0], size) == mixed,
        "replaced": read_direct(paths[1], size) == pages[0],
        "tree": tree(root),
    }


def hicache_nixl_unaligned(root: Path, sizes: Sizes) -> Outcome:
    """Pages that are no multiple of 4096, packed into one file under O_DIRECT: local file systems refuse them, and
    the engine drops its cache without a word."""
    root.mkdir(parents=True, exist_ok=True)
    path, size = root / "packed", sizes.aligned - 1000
    pages = [content(f"unaligned {number}", size) for number in range(3)]
    view = aligned(size)
    results: list[str] = []

    def put(number: int) -> None:
        view[:] = pages[number]
        if os.pwrite(fd, view, number * size) != size:
            raise OSError(0, "short write")

    with opened(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
        results = [attempt(lambda number=number: put(number)) for number in range(len(pages))]  # type: ignore[misc]
    with path.open("rb") as file:
        whole = file.read() == b"".join(pages)
    return {"put": results, "whole": whole, "intact": whole == (results == ["OK"] * 3)}


def hicache_nixl_cleaner(root: Path, sizes: Sizes) -> Outcome:
    """The cleaner that runs by default: statvfs, then scandir and stat of the tree, oldest unlinked by 8 threads."""
    paths = [nixl_path(root, number, part) for number in range(max(sizes.count, 4)) for part in "kv"]
    for path in paths:
        _transfer_in(path, content(path.name, sizes.aligned))
    room = os.statvfs(root)
    used = 1 - room.f_bavail / room.f_blocks
    aged: list[tuple[int, Path]] = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            aged.append((path.stat().st_mtime_ns, path))
    order = {path: paths.index(path) for _, path in aged}
    aged.sort(key=lambda item: (item[0], order[item[1]]))
    victims = [path for _, path in aged[: len(aged) // 2]]
    with ThreadPoolExecutor(8) as pool:
        unlinked = list(pool.map(lambda path: attempt(path.unlink), victims))
    left = [path for path in paths if path.exists()]
    return {
        "used": 0 <= used <= 1,
        "oldest": [path.name for path in victims],
        "unlinked": unlinked,
        "intact": victims == paths[: len(victims)]
        and all(read_direct(path, sizes.aligned) == content(path.name, sizes.aligned) for path in left),
        "left": [path.name for path in left],
        "again": attempt(victims[0].unlink),
    }


def hf3fs_slab(root: Path, sizes: Sizes) -> Outcome:
    """A sparse file of a terabyte, page slots written all over it, fsync, and again after a reopen."""
    root.mkdir(parents=True, exist_ok=True)
    path, size = root / "hicache_rank0.bin", sizes.aligned
    last = sizes.slab // size - 1
    slots = {slot: content(f"hf3fs {slot}", size) for slot in (0, 1, 7, last // 2, last)}
    renewed = content("hf3fs renewed", size)
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.ftruncate(fd, sizes.slab)
        for slot, data in reversed(slots.items()):
            os.pwrite(fd, data, slot * size)
        os.fsync(fd)
        before = [os.pread(fd, size, slot * size) for slot in slots]
        hole = os.pread(fd, size, 3 * size)
        os.pwrite(fd, renewed, 0)
        os.fsync(fd)
        extent = os.fstat(fd).st_size
    expected = [renewed, *list(slots.values())[1:]]
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.ftruncate(fd, sizes.slab)
        after = [os.pread(fd, size, slot * size) for slot in slots]
        os.pwrite(fd, slots[0], 2 * size)
        os.fsync(fd)
        overwritten = os.pread(fd, size, 2 * size) == slots[0] and os.pread(fd, size, size) == slots[1]
    return {
        "intact": before == list(slots.values()) and after == expected and overwritten,
        "hole": hole == bytes(size),
        "sizes": (extent, path.stat().st_size),
        "sparse": path.stat().st_blocks * 512 < sizes.slab // 64,
        "unlinked": attempt(path.unlink),
    }
