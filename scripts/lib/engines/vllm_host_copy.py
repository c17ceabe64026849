"""vLLM's tiering offloading for a machine without a GPU: the only part of it that needs one, replaced.

vLLM's own spec refuses the CPU platform because its copies between device and host are CUDA kernels, streams and
events. Where the "device" is host memory they are memmoves. Scheduler, tiers, look-ups and file I/O stay vLLM's; it
loads this module by its option `spec_module_path`. Runs in the engine's environment, and is imported by vLLM alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostCopySpec(TieringOffloadingSpec):  # type: ignore[misc] # vLLM is not in .venv, where the types are checked
    """vLLM's TieringOffloadingSpec, with a worker for host memory."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self.config.canonical_layout:
            raise ValueError(
                "canonical_layout is not supported here: leave it out of kv_connector_extra_config"
            )
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostCopyWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker


class HostCopyWorker(OffloadingWorker):  # type: ignore[misc] # as above
    """Copies KV blocks to and from the primary tier's chunks. A copy is done when the call that asks for it returns;
    the answers are collected by `get_finished`, as vLLM wants them.
    """

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion, blocks_per_chunk: int) -> None:
        """:param region: owned by the worker from now on"""
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._groups = caches.group_data_refs
        self._device = [cache.tensor for cache in caches.tensors]
        """Per tensor (blocks, bytes of a page)."""
        self._pages = [cache.page_size_bytes for cache in caches.tensors]
        self._host = [region.create_next_worker_view(page * blocks_per_chunk) for page in self._pages]
        """Per tensor (chunks, bytes of as many pages as a chunk has blocks)."""
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: CPULoadStoreSpec) -> bool:
        for device, host in self._pages_of(src_spec, dst_spec):
            host.copy_(device)
        self._finished.append(TransferResult(job_id, success=True))
        return True

    def submit_load(self, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        for device, host in self._pages_of(dst_spec, src_spec):
            device.copy_(host)
        self._finished.append(TransferResult(job_id, success=True))
        return True

    def _pages_of(
        self, blocks: GPULoadStoreSpec, chunks: CPULoadStoreSpec
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Both ends of every page: its bytes in a block of the device and in a chunk of the host. A request's first
        block may lie in the middle of its chunk: `block_indices` says how far into the request it is.
        """
        block_ids = iter(blocks.block_ids.tolist())
        first_chunk = 0
        for refs, count, index in zip(self._groups, blocks.group_sizes, blocks.block_indices, strict=True):
            if not count:
                continue
            skipped = index % self._blocks_per_chunk
            for position in range(skipped, skipped + count):
                block = next(block_ids)
                chunk = int(chunks.block_ids[first_chunk + position // self._blocks_per_chunk])
                for ref in refs:
                    at = position % self._blocks_per_chunk * self._pages[ref.tensor_idx]
                    yield (
                        self._device[ref.tensor_idx][block, : ref.page_size_bytes],
                        self._host[ref.tensor_idx][chunk, at : at + ref.page_size_bytes],
                    )
            first_chunk += -(-(skipped + count) // self._blocks_per_chunk)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        self._host.clear()
        self._region.cleanup()
