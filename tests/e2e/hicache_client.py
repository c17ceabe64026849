"""Runs SGLang's own HiCacheFile, in the engine's virtual environment: a request of JSON a line on stdin, an answer a
line on stdout. Not a test, and imported by none: `tests/e2e/test_sglang_hicache.py` starts it.

    {"call": "open", "path": …, "extra": {…}}        true
    {"call": "set", "keys": […], "size": …}          [true if stored or there already, …]
    {"call": "get", "keys": […], "size": …}          ["hit" | "miss" | "wrong" | the error's name, …]
    {"call": "exists", "keys": […]}                  how many of the keys, from the first on, are there
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig


def page(key: str, size: int) -> torch.Tensor:
    """`size` bytes of bfloat16 that belong to `key` alone."""
    generator = torch.Generator().manual_seed(int(key[:12], 16))
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(torch.bfloat16)


def backend(path: str, extra: dict[str, Any]) -> HiCacheFile:
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="Qwen/Qwen3-8B",
        extra_config=extra,
    )
    return HiCacheFile(config, path)


def get(store: HiCacheFile, key: str, size: int) -> str:
    try:
        found = store.get(key, torch.zeros(size // 2, dtype=torch.bfloat16))
    except OSError as error:  # what would kill the engine's prefetch thread
        return type(error).__name__
    if found is None:
        return "miss"
    return "hit" if torch.equal(found.view(torch.uint8), page(key, size).view(torch.uint8)) else "wrong"


def answer(store: HiCacheFile, call: str, keys: list[str], size: int) -> object:
    if call == "set":
        return [store.set(key, page(key, size)) for key in keys]
    if call == "get":
        return [get(store, key, size) for key in keys]
    return store.batch_exists_v2(keys).kv_hit_pages


def main() -> None:
    store = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["call"] == "open":
            store = backend(request["path"], request["extra"])
            result: object = True
        else:
            result = answer(store, request["call"], request["keys"], request.get("size", 0))
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
