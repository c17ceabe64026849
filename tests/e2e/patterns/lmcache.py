"""LMCache: the `fs` adapter, `local_disk`, and the `gds` backend with and without mmap."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.patterns.toolkit import (
    PAGE,
    Outcome,
    Sizes,
    aligned,
    attempt,
    content,
    fallocate,
    key_of,
    mapped,
    msync,
    opened,
    present,
    read_direct,
    read_once,
    tree,
    write_all,
    write_direct,
)

IN_PLACE = os.O_CREAT | os.O_WRONLY


def key_path(root: Path, number: int, suffix: str = ".data") -> Path:
    """`<model>@<world>@<rank>@<hash>` in one flat directory."""
    key = key_of(f"lmcache {number}")[:16]
    return root / f"meta-llama-SEP-Llama-3.1-8B@0x00000001@0@{key}{suffix}"


def _goes_direct(root: Path, size: int) -> bool:
    """O_DIRECT only if the size is a multiple of what statvfs says: a large f_bsize turns it off for good."""
    return size % os.statvfs(root).f_bsize == 0


def _put(path: Path, data: bytes) -> None:
    """The temp file's name is fixed; neither O_EXCL nor, under O_DIRECT, O_TRUNC."""
    if path.exists():
        return
    temp = path.with_suffix(".tmp")
    if _goes_direct(path.parent, len(data)):
        write_direct(temp, IN_PLACE, data)
    else:
        with temp.open("wb") as file:
            file.write(data)
    temp.replace(path)


def _get(path: Path, size: int, first: int = 0) -> bytes | None:
    """readinto until the buffer is full, perhaps with a small read ahead of the rest; short is a miss."""
    target = bytearray(size)
    view, filled = memoryview(target), 0
    try:
        with path.open("rb", buffering=0) as file:
            while filled < size:
                end = first if filled < first else size
                got = file.readinto(view[filled:end])
                if not got:
                    return None
                filled += got
    except FileNotFoundError:
        return None
    return bytes(target)


def fs(root: Path, sizes: Sizes) -> Outcome:
    """exists, put, get, delete, for sizes that go direct and sizes that do not."""
    root.mkdir(parents=True, exist_ok=True)
    paths = [key_path(root, number) for number in range(sizes.count * 2)]
    chunks = [
        content(path.name, sizes.aligned if number % 2 else sizes.aligned - 100)
        for number, path in enumerate(paths)
    ]
    missing = [path.exists() for path in paths]
    for path, chunk in zip(paths, chunks, strict=True):
        _put(path, chunk)
    loaded = [_get(path, len(chunk)) for path, chunk in zip(paths, chunks, strict=True)]
    ahead = [_get(path, len(chunk), PAGE) for path, chunk in zip(paths, chunks, strict=True)]
    with opened(paths[0], os.O_RDONLY) as fd:
        terminal = attempt(lambda: fcntl.ioctl(fd, termios.TCGETS, bytes(60)))
    longer = _get(paths[0], len(chunks[0]) + 1)
    with ThreadPoolExecutor(16) as pool:
        deleted = list(pool.map(lambda path: (path.stat().st_size, attempt(path.unlink)), paths[1:]))
    return {
        "direct": [_goes_direct(root, len(chunk)) for chunk in chunks],
        "missing": missing,
        "intact": loaded == chunks and ahead == chunks,
        "terminal": terminal,
        "longer": longer,
        "deleted": deleted,
        "left": sorted(path.name for path in root.iterdir()),
    }


def fs_collision(root: Path, sizes: Sizes) -> Outcome:
    """Two writers of one key share the temp file's name, and find one that a dead writer left."""
    root.mkdir(parents=True, exist_ok=True)
    path, data = key_path(root, 0), content("collision", sizes.aligned)
    temp = path.with_suffix(".tmp")
    write_all(temp, content("dead", sizes.aligned // 2))
    view = aligned(len(data), data)
    with opened(temp, IN_PLACE | os.O_DIRECT) as first, opened(temp, IN_PLACE | os.O_DIRECT) as second:
        written = [os.write(first, view), os.write(second, view)]
    replaced = [attempt(lambda: temp.replace(path)), attempt(lambda: temp.replace(path))]
    return {
        "written": written,
        "replaced": replaced,
        "intact": _get(path, len(data)) == data,
        "tree": tree(root),
    }


def local_disk(root: Path, sizes: Sizes) -> Outcome:
    """Written in place at the final name, again and again, under O_DIRECT without O_TRUNC."""
    root.mkdir(parents=True, exist_ok=True)
    buffered, direct = key_path(root, 0, ".pt"), key_path(root, 1, ".pt")
    old, new = content("old", sizes.aligned), content("new", sizes.aligned)
    results = []
    for data in (old, new):
        with buffered.open("wb") as file:
            file.write(data)
        write_direct(direct, IN_PLACE, data)
        results.append(_get(buffered, len(data)) == data and read_direct(direct, len(data)) == data)
    write_direct(direct, IN_PLACE, old[:PAGE])
    return {
        "intact": all(results),
        "not truncated": read_once(direct, sizes.aligned) == old[:PAGE] + new[PAGE:],
        "removed": [attempt(buffered.unlink), attempt(buffered.unlink)],
        "tree": tree(root),
    }


def _gds_paths(root: Path, number: int) -> tuple[Path, Path]:
    key = key_of(f"gds {number}")
    data = root / key[:2] / key[2:4] / f"meta%2Dllama@1@0@{key}.kvcache.safetensors"
    return data, data.with_name(f"{data.name}.metadata")


def _gds_header(size: int) -> bytes:
    text = json.dumps(
        {"kvcache": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    ).encode()
    return (struct.pack("<Q", PAGE - 8) + text).ljust(PAGE, b" ")


def _gds_store(path: Path, data: bytes, *, flush: bool) -> None:
    """Header and data in one file through a shared mapping, a twin with the header, both by rename."""
    data_path, twin = path, path.with_name(f"{path.name}.metadata")
    data_path.parent.mkdir(parents=True, exist_ok=True)
    unique = f".tmp{os.urandom(4).hex()}"
    temp = data_path.with_name(data_path.name + unique)
    size = PAGE + len(data)
    with opened(temp, os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, size)
        with mapped(fd, size, mmap.MAP_SHARED) as view:
            view[:PAGE] = _gds_header(len(data))
            view[PAGE:] = data
            if flush:
                msync(view)
    temp.replace(data_path)
    temp = twin.with_name(twin.name + unique)
    write_all(temp, _gds_header(len(data)))
    temp.replace(twin)


def _gds_load(path: Path, size: int) -> bytes:
    populate = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
    with opened(path, os.O_RDONLY) as fd:
        memory = mmap.mmap(fd, size, populate, mmap.PROT_READ, offset=PAGE)
    with memory:
        return memory[:]


def _gds_scan(root: Path) -> dict[str, int]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".metadata"):
                with opened(Path(folder, name), os.O_RDONLY | os.O_NOATIME) as fd:
                    (length,) = struct.unpack("<Q", os.read(fd, PAGE)[:8])
                found[name] = length
    return dict(sorted(found.items()))


def gds_mapped(root: Path, sizes: Sizes) -> Outcome:
    """`use_gds: false`: store by MAP_SHARED, load by MAP_PRIVATE|MAP_POPULATE, twin files, a scan at start."""
    keys = [_gds_paths(root, number) for number in range(sizes.count)]
    chunks = [content(data.name, sizes.aligned) for data, _ in keys]
    for number, ((data, _), chunk) in enumerate(zip(keys, chunks, strict=True)):
        _gds_store(data, chunk, flush=number % 2 == 0)
    loaded = [_gds_load(data, sizes.aligned) for data, _ in keys]
    return {
        "intact": loaded == chunks,
        "scanned": _gds_scan(root),
        "present": present(path for pair in keys for path in pair),
        "tree": tree(root),
    }


def gds_mapped_late(root: Path, sizes: Sizes) -> Outcome:
    """Mappings that outlive their descriptor, or the file's first name: what is written through them then is in the
    file all the same, once they are synced or gone.
    """
    root.mkdir(parents=True, exist_ok=True)
    outcome: Outcome = {"intact": True}
    for name in ("close first", "close first, synced", "rename first", "rename first, synced"):
        temp, final, data = root / f"{name}.tmp", root / name, content(name, sizes.block)
        fd = os.open(temp, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, len(data))
        with mapped(fd, len(data), mmap.MAP_SHARED) as view:
            view[:PAGE] = data[:PAGE]
            os.close(fd)
            if name.startswith("rename"):
                temp.rename(final)
            view[PAGE:] = data[PAGE:]
            if name.endswith("synced"):
                msync(view)
        if temp.exists():
            temp.rename(final)
        outcome[name] = read_once(final, len(data) + 1) == data
        outcome["intact"] = outcome["intact"] and outcome[name]
    return outcome | {"tree": tree(root)}


def gds_slab(root: Path, sizes: Sizes) -> Outcome:
    """O_TRUNC and posix_fallocate, which the C library emulates where the file system cannot."""
    root.mkdir(parents=True, exist_ok=True)
    path, size, slots = root / "gds_slab_0.bin", sizes.aligned, 4
    chunks = [content(f"gds slot {slot}", size) for slot in range(slots)]
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        plain = attempt(lambda: fallocate(fd, size))
        emulated = attempt(lambda: os.posix_fallocate(fd, 0, slots * size))
        for slot in (2, 0, 3, 1):
            os.pwrite(fd, chunks[slot], slot * size)
        read = [os.pread(fd, size, slot * size) for slot in range(slots)]
        status = os.fstat(fd)
    again = [read_once(path, size * slots) == b"".join(chunks)]
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        again.append(os.pread(fd, size, 0) == b"")
    return {
        "fallocate": plain,
        "emulated": emulated,
        "intact": read == chunks and all(again),
        "size": status.st_size,
        "emptied": path.stat().st_size,
    }
