"""One life of a vLLM process: it starts, answers a few prompts one after the other, waits until what it offloads is
in files, and ends. Runs in the engine's environment, started by `vllm_trial.py`.

    vllm_life.py MODEL ROOT ENGINE_ID PROMPTS ANSWERS

ROOT is the folder of vLLM's `fs` tier, PROMPTS a JSON list of texts. ANSWERS gets a JSON list of objects:

    cached_tokens        of the prompt, as vLLM reports them
    output               token ids
    first_token_seconds  from the request's arrival
    blocks               the files of the prompt's KV blocks, in the prompt's order, relative to ROOT
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm import LLM, RequestOutput, SamplingParams
from vllm.config import KVTransferConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import hash_block_tokens, init_none_hash

MIB = 1 << 20
BLOCK_TOKENS = 64
"""Of a block in vLLM's own memory."""
FILE_TOKENS = 2 * BLOCK_TOKENS
"""Of a block in the tier: so many to a file that files are not small."""
OUTPUT_TOKENS = 32
STORED_WITHIN = 60
"""Seconds until all that is offloaded must be in files."""
POLL_SECONDS = 0.02


def offloading(root: Path, engine_id: str) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id=engine_id,
        kv_connector_extra_config={
            "spec_name": "HostCopySpec",
            "spec_module_path": "vllm_host_copy",
            "block_size": FILE_TOKENS,
            "cpu_bytes_to_use": 48 * MIB,  # in /dev/shm, of which a container often has 64 MiB
            "secondary_tiers": [{"type": "fs", "root_dir": str(root)}],
        },
    )


def start(model: str, root: Path, engine_id: str) -> LLM:
    llm = LLM(
        model=model,
        block_size=BLOCK_TOKENS,
        enforce_eager=True,  # no compiler needed
        max_model_len=2048,
        kv_cache_memory_bytes=256 * MIB,
        disable_log_stats=False,  # else there is no time of the first token
        kv_transfer_config=offloading(root, engine_id),
    )
    llm.generate(
        "shorter than a block", SamplingParams(max_tokens=1), use_tqdm=False
    )  # warms up, stores nothing
    return llm


def answer(llm: LLM, prompt: str) -> dict[str, Any]:
    greedy = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    result: RequestOutput
    (result,) = llm.generate(prompt, greedy, use_tqdm=False)
    return {
        "cached_tokens": result.num_cached_tokens,
        "output": list(result.outputs[0].token_ids),
        "first_token_seconds": result.metrics.first_token_latency,
        "blocks": list(blocks(result.prompt_token_ids)),
    }


def blocks(tokens: list[int]) -> Iterator[str]:
    """The names that the `fs` tier gives to the full blocks of a prompt, below `…_r0`: a file is called by vLLM's hash of
    the last of its blocks, which covers all before it.
    """
    parent = None
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        parent = hash_block_tokens(sha256, parent, tokens[end - BLOCK_TOKENS : end])
        if end % FILE_TOKENS == 0:
            name = parent.hex()
            yield f"{name[:3]}/{name[3:5]}_g0/{name}.bin"


def main(model: str, root: Path, engine_id: str, prompts: list[str]) -> list[dict[str, Any]]:
    """
    :raises TimeoutError: vLLM does not store what it offloads
    """
    llm = start(model, root, engine_id)
    init_none_hash(sha256)
    answers = [answer(llm, prompt) for prompt in prompts]
    (folder,) = root.glob("*_r0")
    files = [folder / name for one in answers for name in one["blocks"]]
    deadline = time.monotonic() + STORED_WITHIN
    while missing := [file for file in files if not file.exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(missing)} of {len(files)} blocks are not stored after {STORED_WITHIN} s"
            )
        time.sleep(POLL_SECONDS)
    for one in answers:
        one["blocks"] = [f"{folder.name}/{name}" for name in one["blocks"]]
    return answers


if __name__ == "__main__":
    _, model, root, engine_id, prompts, answers = sys.argv
    found = main(model, Path(root), engine_id, json.loads(Path(prompts).read_text()))
    Path(answers).write_text(json.dumps(found))
