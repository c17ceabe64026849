"""What the names that engines give their files say. Pure."""

from __future__ import annotations

import re

_TEMPORARY = re.compile(
    rb"""
    .+ \.tmp                                     # vLLM, llm-d, LMCache, NIXL; SGLang's NAME.UUID.tmp
    | .+ \.tmp [0-9a-f]{8}                       # LMCache's GDS backend
    | .+ \.tmp (?: \. [0-9a-f]+ (?: - [0-9a-f]+)* )+   # SGLang's NAME.tmp.PID.THREAD.UUID
    | dynamo-kvbm-disk-cache- [A-Za-z0-9]{6}     # Dynamo's slab, open as long as its engine lives
    """,
    re.VERBOSE | re.DOTALL,
)


def is_temporary(name: bytes) -> bool:
    """Whether an engine gives a file this name only until it is complete, or only as long as it has it open."""
    return _TEMPORARY.fullmatch(name) is not None
