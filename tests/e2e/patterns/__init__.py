"""The file calls of every engine kvfs serves, as functions of a root directory: each returns what it saw, and the
same is demanded of a plain directory and of a mount, but for the exceptions documented here.

`python -m tests.e2e.patterns PLAIN MOUNT` runs the suite without pytest, standard library only.
"""

from __future__ import annotations

from tests.e2e.patterns import lmcache, others, sglang, slabs, uring, vllm
from tests.e2e.patterns.toolkit import Outcome, Pattern, Sizes, tree

NO_FALLOCATE = {"fallocate": "EOPNOTSUPP"}

PATTERNS = (
    Pattern("vllm-fs-direct", vllm.fs_tier_direct),
    Pattern("vllm-fs-buffered", vllm.fs_tier_buffered),
    Pattern("vllm-fs-crc-xattr", vllm.fs_tier_crc),
    Pattern("vllm-fs-unlink-on-failure", vllm.fs_tier_unlinks_what_fails),
    Pattern("vllm-fs-threads", vllm.fs_tier_threads),
    Pattern("vllm-simple-cpu-offload", vllm.simple_cpu_offload),
    Pattern("sglang-file", sglang.hicache_file),
    Pattern("sglang-file-evictor", sglang.hicache_evictor),
    Pattern("sglang-nixl", sglang.hicache_nixl),
    # a local file system refuses unaligned direct I/O; kvfs takes it, so that no engine drops its cache silently
    Pattern("sglang-nixl-unaligned", sglang.hicache_nixl_unaligned, {"put": ["OK"] * 3, "whole": True}),
    Pattern("sglang-nixl-cleaner", sglang.hicache_nixl_cleaner),
    Pattern("sglang-hf3fs-slab", sglang.hf3fs_slab),
    Pattern("lmcache-fs", lmcache.fs),
    Pattern("lmcache-fs-collision", lmcache.fs_collision),
    Pattern("lmcache-local-disk", lmcache.local_disk),
    Pattern("lmcache-gds-mapped", lmcache.gds_mapped),
    Pattern("lmcache-gds-mapped-late", lmcache.gds_mapped_late),
    Pattern("lmcache-gds-slab", lmcache.gds_slab, NO_FALLOCATE),
    Pattern("llm-d-fs", others.llmd_fs),
    Pattern("nixl-libaio", slabs.nixl_libaio),
    Pattern("nixl-posix-aio", slabs.nixl_posix_aio),
    Pattern("nixl-io-uring", uring.batches),
    Pattern("kvbm-disk", slabs.kvbm_disk, NO_FALLOCATE),
    Pattern("kvbm-zero-fill", slabs.kvbm_zero_fill),
    Pattern("mooncake-buckets", others.mooncake_buckets),
    Pattern("mooncake-file-per-key", others.mooncake_file_per_key),
    Pattern("mooncake-offsets", others.mooncake_offsets, NO_FALLOCATE),
    Pattern("safetensors", others.safetensors),
    # no hard links: an object has one name
    Pattern("spoolcache", others.spoolcache, {"link": "EPERM", "final": False}),
)

__all__ = ["PATTERNS", "Outcome", "Pattern", "Sizes", "tree"]
