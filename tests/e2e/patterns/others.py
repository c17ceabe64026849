"""llm-d's fs backend, Mooncake's storage, safetensors files, and spoolcache."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import time
from pathlib import Path

from tests.e2e.patterns.toolkit import (
    DT_DIR,
    DT_REG,
    PAGE,
    Outcome,
    Sizes,
    aligned,
    attempt,
    content,
    digest,
    entry_types,
    fallocate,
    opened,
    read_once,
    touch_atime,
    tree,
    write_all,
)


def _llmd_store(path: Path, data: bytes) -> str:
    """Probe by opening; there: only its access time moves. Not there: one writev to a temp, rename, then close."""
    if attempt(lambda: os.close(os.open(path, os.O_RDONLY))) == "OK":
        touch_atime(path)
        return "touched"
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f"{path.name}_{os.urandom(4).hex()}.tmp")
    with opened(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        head = len(data) // 3
        if os.writev(fd, [data[:head], data[head:]]) != len(data):
            return "short write"
        temp.rename(path)
    return "stored"


def _llmd_load(path: Path, size: int) -> bytes:
    """Opened at its end, the last `size` bytes."""
    with opened(path, os.O_RDONLY) as fd:
        end = os.lseek(fd, 0, os.SEEK_END)
        os.lseek(fd, end - size, os.SEEK_SET)
        return os.read(fd, size)


def llmd_fs(root: Path, sizes: Sizes) -> Outcome:
    """Store, touch, load of whole files and of tails, and the evictor's look at access times."""
    paths = [root / f"{number:03x}" / "00_g0" / f"{number:064x}.bin" for number in range(sizes.count)]
    blocks = [content(f"llm-d {number}", sizes.block) for number in range(sizes.count)]
    stored = [_llmd_store(path, block) for path, block in zip(paths, blocks, strict=True)]
    dated = paths[0].stat().st_mtime_ns
    os.utime(paths[0], ns=(10**18, dated))  # long ago
    aged = paths[0].stat().st_atime_ns
    again = _llmd_store(paths[0], blocks[0])
    status = paths[0].stat()
    tail = sizes.block // 2
    return {
        "stored": stored,
        "again": again,
        "aged": aged,
        "accessed now": abs(time.time() - status.st_atime) < 60,
        "date kept": status.st_mtime_ns == dated,
        "intact": [_llmd_load(path, sizes.block) for path in paths] == blocks,
        "tails": [_llmd_load(path, tail) == block[-tail:] for path, block in zip(paths, blocks, strict=True)],
        "tree": tree(root),
    }


def _publish_metadata(path: Path, document: object) -> str:
    """Temp, fsync, rename, fsync of the directory."""
    temp = path.with_suffix(".tmp")
    with opened(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        os.write(fd, json.dumps(document).encode())
        os.fsync(fd)
    temp.rename(path)
    with opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as fd:
        return attempt(lambda: os.fsync(fd))


def mooncake_buckets(root: Path, sizes: Sizes) -> Outcome:
    """Buckets of many keys, written buffered over what was there, read by O_DIRECT, found again by iteration."""
    folder = root / "mooncake" / "segment_0"
    folder.mkdir(parents=True, exist_ok=True)
    size, outcome = sizes.aligned, Outcome()
    keys = [content(f"mooncake {number}", size) for number in range(sizes.count)]
    bucket, meta = folder / "0001.bucket", folder / "0001.meta"
    for data in (keys[::-1], keys):
        with opened(bucket, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            outcome["written"] = [os.pwritev(fd, [data[n]], n * size) for n in range(sizes.count)]
    outcome["synced"] = _publish_metadata(meta, {"keys": [digest(key) for key in keys]})
    view = aligned(size)
    read = []
    with opened(bucket, os.O_RDONLY | os.O_DIRECT) as fd:
        for number in range(sizes.count):
            os.preadv(fd, [view[: size // 2 // PAGE * PAGE], view[size // 2 // PAGE * PAGE :]], number * size)
            read.append(bytes(view))
    room = os.statvfs(folder)
    outcome["quota"] = room.f_blocks * room.f_frsize * 0.9 > sizes.count * size
    outcome["intact"] = read == keys
    outcome["index"] = json.loads(meta.read_text()) == {"keys": [digest(key) for key in keys]}
    outcome["types"] = {
        name: kind for at in (root, root / "mooncake", folder) for name, kind in entry_types(at).items()
    } == {"mooncake": DT_DIR, "segment_0": DT_DIR, "0001.bucket": DT_REG, "0001.meta": DT_REG}
    outcome["tree"] = tree(root)
    return outcome


def mooncake_file_per_key(root: Path, sizes: Sizes) -> Outcome:
    """A file for each key, written over in place by O_TRUNC, whatever its new length."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "a%2Fkey"
    lengths = (sizes.block, sizes.block // 2, sizes.block + 1, 0, 1)
    results = []
    for length in lengths:
        data = content(f"key of {length}", length)
        write_all(path, data)
        results.append((path.stat().st_size, read_once(path, sizes.block * 2) == data))
    return {"results": [size for size, _ in results], "intact": all(whole for _, whole in results)}


def mooncake_offsets(root: Path, sizes: Sizes) -> Outcome:
    """The offset allocator: one file, fallocate or else ftruncate, values of any length packed into it."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "offsets.data"
    values = [content(f"offset {number}", sizes.block - number * 37) for number in range(sizes.count)]
    places, end = [], 0
    for value in values:
        places.append(end)
        end += -(-len(value) // 64) * 64
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        allocated = attempt(lambda: fallocate(fd, end))
        if allocated == "EOPNOTSUPP":
            os.ftruncate(fd, end)
        written = [os.pwrite(fd, value, at) for at, value in reversed(list(zip(places, values, strict=True)))]
        read = [os.pread(fd, len(value), at) for at, value in zip(places, values, strict=True)]
    with opened(path, os.O_RDONLY) as fd:
        later = [os.preadv(fd, [bytearray(len(value))], at) for at, value in zip(places, values, strict=True)]
    return {
        "fallocate": allocated,
        "written": written,
        "intact": read == values,
        "later": later,
        "synced": _publish_metadata(root / "offsets.meta", {"places": places}),
        "tree": tree(root),
    }


def safetensors(root: Path, sizes: Sizes) -> Outcome:
    """ftruncate, two writes, rename with the descriptor still open; a private mapping outlives the close, the
    file's name and its successor."""
    root.mkdir(parents=True, exist_ok=True)
    path, data = root / "layer_0.safetensors", content("tensor", sizes.block)
    text = json.dumps(
        {"kv": {"dtype": "U8", "shape": [sizes.block], "data_offsets": [0, sizes.block]}}
    ).encode()
    header = struct.pack("<Q", len(text)) + text
    temp = root / f".{path.name}.{os.urandom(3).hex()}"
    with opened(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600) as fd:
        os.ftruncate(fd, len(header) + len(data))
        written = [os.write(fd, header), os.write(fd, data)]
        temp.rename(path)
    with opened(path, os.O_RDONLY) as fd:
        advised = attempt(lambda: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED))
        (length,) = struct.unpack("<Q", os.pread(fd, 8, 0))
        mapped = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    with mapped:
        write_all(temp, content("successor", sizes.block))
        temp.replace(path)
        mapped[:8] = bytes(8)  # private: nobody else sees it
        successor = read_once(path, sizes.block) == content("successor", sizes.block)
        path.unlink()
        loaded = mapped[8 + length :]
        parsed = json.loads(mapped[8 : 8 + length])
    return {
        "written": written == [len(header), len(data)],
        "advised": advised,
        "intact": loaded == data and successor,
        "header": parsed == json.loads(text),
        "left": [entry.name for entry in root.iterdir()],
    }


def spoolcache(root: Path, sizes: Sizes) -> Outcome:
    """Publishes by link(2), which kvfs refuses; leases are byte-range locks of open descriptions."""
    root.mkdir(parents=True, exist_ok=True)
    temp, final, data = root / ".spool.tmp", root / "token_0", content("spool", sizes.block)
    with opened(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600) as fd:
        os.write(fd, data)
        os.fsync(fd)
    linked = attempt(lambda: final.hardlink_to(temp))
    final_there = final.exists()
    with opened(root, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)
    intact = read_once(temp, sizes.block) == data
    lease = root / "leases"
    with opened(lease, os.O_RDWR | os.O_CREAT) as first, opened(lease, os.O_RDWR) as second:
        locks = [
            attempt(lambda: _lock(first, 0, 1)),
            attempt(lambda: _lock(second, 0, 1)),
            attempt(lambda: _lock(second, 1, 1)),
        ]
    with opened(lease, os.O_RDWR) as third:
        locks.append(attempt(lambda: _lock(third, 0, 2)))
    return {
        "link": linked,
        "final": final_there,
        "intact": intact,
        "locks": locks,
        "unlinked": attempt(temp.unlink),
    }


def _lock(fd: int, start: int, length: int) -> None:
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
