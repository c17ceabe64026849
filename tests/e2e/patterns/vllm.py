"""vLLM: the tiering `fs` tier (file per block) and SimpleCPUOffload's `disk` (one slab)."""

from __future__ import annotations

import json
import os
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.patterns.toolkit import (
    PAGE,
    Outcome,
    Sizes,
    aligned,
    attempt,
    content,
    key_of,
    opened,
    present,
    read_direct,
    read_once,
    tree,
    write_all,
    write_direct,
)

CRC = "user.vllm.kv_crc32c"
MODEL = "meta-llama_Llama-3.1-8B_0123456789ab"


def block_path(root: Path, number: int, rank: int = 0) -> Path:
    """`<model>_<fingerprint>_r<rank>/<hhh>/<hh>_g<group>/<64 hex>.bin`, as file_mapper.py lays it out."""
    name = key_of(f"block {number}")
    return root / f"{MODEL}_r{rank}" / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"


def probe(root: Path) -> str:
    """probe_o_direct: "OK", or why the whole tier falls back to buffered calls."""
    path = root / f".o_direct_probe_{threading.get_ident():x}.tmp"
    result = attempt(lambda: write_direct(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, bytes(PAGE)))
    path.unlink()
    return result


def store(path: Path, data: bytes, *, direct: bool, crc: bool = False) -> str:
    """One block: access, mkdirs, O_EXCL temp, one write, close, rename. "skipped" when it is there already."""
    if os.access(path, os.F_OK):
        return "skipped"
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f"{path.name}_{threading.get_ident():x}{os.urandom(4).hex()}.tmp")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC
    written = write_direct(temp, flags, data) if direct else write_all(temp, data, flags)
    if written != len(data):
        return f"short write: {written}"
    if crc:
        os.setxattr(temp, CRC, f"{zlib.crc32(data):08x}".encode())
    temp.rename(path)
    return "stored"


def load(path: Path, size: int, *, direct: bool) -> bytes | None:
    """One block in one read, or None for what the engine calls a miss."""
    try:
        data = read_direct(path, size) if direct else read_once(path, size)
    except FileNotFoundError:
        return None
    if len(data) != size:  # only a provable short read unlinks
        path.unlink()
        return None
    return data


def _tier(root: Path, sizes: Sizes, *, direct: bool) -> Outcome:
    size = sizes.aligned if direct else sizes.block
    paths = [block_path(root, number, rank) for number in range(sizes.count) for rank in (0, 1)]
    blocks = [content(path.name + path.parts[-4], size) for path in paths]
    config = root / MODEL / "config.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    with config.open("w") as file:
        json.dump({"model": MODEL, "tp": 1}, file)
    before = present(paths)
    stored = [store(path, data, direct=direct) for path, data in zip(paths, blocks, strict=True)]
    again = store(paths[0], blocks[0], direct=direct)
    loaded = [load(path, size, direct=direct) for path in paths]
    return {
        "probe": probe(root),
        "before": before,
        "stored": stored,
        "again": again,
        "after": present(paths),
        "intact": loaded == blocks,
        "missing": load(block_path(root, -1), size, direct=direct),
        "sizes": [path.stat().st_size for path in paths],
        "config": json.loads(config.read_text()),
        "tree": tree(root),
    }


def fs_tier_direct(root: Path, sizes: Sizes) -> Outcome:
    """The tier as it runs where the probe succeeds."""
    return _tier(root, sizes, direct=True)


def fs_tier_buffered(root: Path, sizes: Sizes) -> Outcome:
    """The tier as it runs where the probe fails."""
    return _tier(root, sizes, direct=False)


def fs_tier_crc(root: Path, sizes: Sizes) -> Outcome:
    """The variant that keeps a checksum in an extended attribute, and refuses to start without them."""
    root.mkdir(parents=True, exist_ok=True)
    probed = root / ".xattr_probe.tmp"
    write_all(probed, b"")
    supported = attempt(lambda: os.setxattr(probed, CRC, b"probe"))
    probed.unlink()
    paths = [block_path(root, number) for number in range(sizes.count)]
    blocks = [content(path.name, sizes.aligned) for path in paths]
    for path, data in zip(paths, blocks, strict=True):
        store(path, data, direct=True, crc=True)
    plain = block_path(root, sizes.count)
    store(plain, b"without one", direct=False)
    loaded = [load(path, sizes.aligned, direct=True) for path in paths]
    sums = [int(os.getxattr(path, CRC), 16) for path in paths]
    os.removexattr(paths[-1], CRC)
    return {
        "supported": supported,
        "intact": loaded == blocks and sums == [zlib.crc32(block) for block in blocks],
        "listed": [os.listxattr(path) for path in paths],
        "none": attempt(lambda: os.getxattr(plain, CRC)),
        "exists": attempt(lambda: os.setxattr(paths[0], CRC, b"x", os.XATTR_CREATE)),
        "read back": load(paths[-1], sizes.aligned, direct=False) == blocks[-1],
    }


def fs_tier_unlinks_what_fails(root: Path, sizes: Sizes) -> Outcome:
    """A block that is too short is unlinked and stored again; others that read it keep what they opened."""
    path = block_path(root, 0)
    data = content("whole", sizes.aligned)
    store(path, data[: sizes.aligned // 2], direct=False)
    short = load(path, sizes.aligned, direct=True)
    gone = attempt(lambda: os.open(path, os.O_RDONLY | os.O_DIRECT))
    stored = store(path, data, direct=True)
    with opened(path, os.O_RDONLY) as reader:
        path.unlink()  # an older build, after any failure
        unlinked = attempt(path.unlink)
        kept = os.pread(reader, sizes.aligned, 0)
        replaced = store(path, content("other", sizes.aligned), direct=True)
        still = os.pread(reader, sizes.aligned, 0)
    return {
        "short": short,
        "gone": gone,
        "stored": stored,
        "unlinked twice": unlinked,
        "replaced": replaced,
        "intact": kept == data and still == data,
        "new": load(path, sizes.aligned, direct=True) == content("other", sizes.aligned),
    }


def fs_tier_threads(root: Path, sizes: Sizes) -> Outcome:
    """16 threads store while 16 load, two jobs for each block: a load sees the whole block or a miss."""
    numbers = [number for number in range(max(sizes.count, 8)) for _ in range(2)]
    blocks = {number: content(f"threads {number}", sizes.aligned) for number in numbers}

    def write_job(number: int) -> str:
        return store(block_path(root, number), blocks[number], direct=True)

    def read_job(number: int) -> bool:
        data = load(block_path(root, number), sizes.aligned, direct=True)
        return data is None or data == blocks[number]

    with ThreadPoolExecutor(16) as writers, ThreadPoolExecutor(16) as readers:
        stores = [writers.submit(write_job, number) for number in numbers]
        loads = [readers.submit(read_job, number) for number in numbers * 2]
        stored = {future.result() for future in stores} <= {"stored", "skipped"}
        whole = all(future.result() for future in loads)
    final = [load(block_path(root, number), sizes.aligned, direct=True) for number in blocks]
    return {
        "stored": stored,
        "while writing": whole,
        "intact": final == list(blocks.values()),
        "files": sorted(path.name for path in root.rglob("*") if path.is_file()),
    }


def _vectors(view: memoryview, parts: int) -> list[memoryview]:
    step = len(view) // PAGE // parts * PAGE or PAGE
    return [view[at : at + step] for at in range(0, len(view), step)]


def simple_cpu_offload(root: Path, sizes: Sizes) -> Outcome:
    """One slab, unlinked while open: slots written and read with many vectors, over and over."""
    root.mkdir(parents=True, exist_ok=True)
    path, size = root / "vllm_offload_rank0.bin", sizes.aligned
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT
    fresh = attempt(path.unlink)
    data = [content(f"slot {slot}", size) for slot in range(sizes.count)]
    renewed = content("slot 0 again", size)
    view = aligned(size)
    with opened(path, flags, 0o600) as fd:
        os.ftruncate(fd, (sizes.count + 1) * size)
        exists = attempt(lambda: os.open(path, flags))
        mode = f"{path.stat().st_mode:o}"
        written = []
        for slot in reversed(range(sizes.count)):
            view[:] = data[slot]
            written.append(os.pwritev(fd, _vectors(view, 7), slot * size))
        path.unlink()
        read = []
        for slot in range(sizes.count + 1):
            filled = os.preadv(fd, _vectors(view, 5), slot * size)
            read.append(bytes(view[:filled]))
        view[:] = renewed
        os.pwritev(fd, [view], 0)
        os.preadv(fd, [view], 0)
        status = os.fstat(fd)
        intact = read == [*data, bytes(size)] and view == renewed
    link = root / "link.bin"
    link.symlink_to(path)
    return {
        "fresh": fresh,
        "exists": exists,
        "mode": mode,
        "written": written,
        "intact": intact,
        "size": status.st_size,
        "links": status.st_nlink,
        "gone": attempt(path.stat),
        "no follow": attempt(lambda: os.open(link, os.O_RDWR | os.O_NOFOLLOW)),
    }
