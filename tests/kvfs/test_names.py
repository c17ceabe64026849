from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfs.names import block_of, is_temporary

HASH = b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
UUID = b"0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.parametrize(
    "name",
    [
        HASH + b".bin_140213_17.tmp",
        b".o_direct_probe_k3x9.tmp",
        HASH + b"_llama_0_1.bin.tmp.4711.140213990881024." + UUID.replace(b"-", b""),
        HASH + b"_llama_0_1.bin." + UUID + b".tmp",
        HASH + b"_llama_0_1.bin.tmp." + UUID,
        b"meta-llama-SEP-Llama@0x1@0@1f2e.tmp",
        b"key.kvcache.safetensors.tmp0a1b2c3d",
        b"dynamo-kvbm-disk-cache-a1B2c3",
        b"with\nnewline.tmp",
    ],
)
def test_names_that_engines_give_files_they_are_writing(name: bytes) -> None:
    assert is_temporary(name)


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b".tmp",
        HASH + b".bin",
        HASH + b"_llama_0_1.bin",
        b"config.json",
        b"meta-llama-SEP-Llama@0x1@0@1f2e.data",
        b"key.kvcache.safetensors",
        b"model.tmp.bin",
        b"tmp",
        b"x.tmp.",
        b"x.tmp0a1b2c3",
        b"x.tmpl",
        b"dynamo-kvbm-disk-cache-",
    ],
)
def test_names_that_are_final(name: bytes) -> None:
    assert not is_temporary(name)


@given(st.binary(max_size=255))
def test_a_name_is_final_unless_it_says_otherwise(name: bytes) -> None:
    assert not is_temporary(name) or b".tmp" in name or name.startswith(b"dynamo-kvbm-disk-cache-")


@given(st.binary(min_size=1, max_size=200).filter(lambda name: not is_temporary(name)))
def test_what_ends_in_tmp_is_temporary(name: bytes) -> None:
    assert is_temporary(name + b".tmp")


SAME = [
    [HASH, HASH + b".bin", HASH + b".bin_140213_17.tmp", HASH + b"_k", HASH + b"_v"],
    [
        HASH + part
        for part in (
            b"_llama-3.1-8b_0_2.bin",
            b"_llama-3.1-8b_1_2.bin",
            b".kv_llama-3.1-8b_1_2.bin",
            b"_llama-3.1-8b_0_2.bin.tmp.4711.140213990881024." + UUID.replace(b"-", b""),
            b"_llama-3.1-8b_0_2.bin." + UUID + b".tmp",
            b"_llama-3.1-8b_0_2_k",
            b"_llama-3.1-8b_0_2_v." + UUID + b".tmp",
            b"_llama-3.1-8b_1_2_k.17.tmp",
            b"_llama-3.1-8b.bin",
        )
    ],
    [b"meta-SEP-Llama@0x0@0@1f2e.data", b"meta-SEP-Llama@0x1@0@1f2e.data", b"meta-SEP-Llama@0x1@0@1f2e.tmp"],
    [b"vllm@meta@8@3@-1f2e33@half.pt", b"vllm@meta@8@0@-1f2e33@half.pt"],
    [b"meta-SEP-Llama@0x0@0@1f2e@salt.data", b"meta-SEP-Llama@0x3@0@1f2e@salt.data"],
    [HASH[:-1] + b"9.bin"],
    [HASH + b"_qwen_0_2.bin"],
]
"""Names of one block, and of others."""


def test_names_of_one_block_and_of_others() -> None:
    blocks = [{block_of(name) for name in names} for names in SAME]
    assert [len(block) for block in blocks] == [1] * len(SAME)
    assert len(set().union(*blocks)) == len(SAME)


@pytest.mark.parametrize(
    "name", [b"config.json", b"chain-0007", b"f", b"deadbeef", b"17.bin", b"a@b", b"\xff.tmp"]
)
def test_names_that_say_nothing_stand_for_themselves(name: bytes) -> None:
    assert block_of(name) == name


@given(st.binary(max_size=255))
def test_every_name_is_of_a_block(name: bytes) -> None:
    assert block_of(name) or not name
