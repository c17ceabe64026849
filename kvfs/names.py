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


_HASH = re.compile(rb"(?P<hash>[0-9a-f]{16,128})(?![0-9a-f])(?P<rest>.*)", re.DOTALL)
"""vLLM, llm-d: HASH.bin; SGLang: HASH[.POOL]_MODEL_RANK_RANKS.bin; NIXL: as SGLang, and _k or _v; we: HASH."""
_PARTS = re.compile(rb"(?:_[0-9]+)*(?:_[kv])?\Z")
"""Ranks and halves, behind the model."""
_ENDING = re.compile(rb"(?:\.bin|(?:\.[0-9]+|\.[0-9a-f-]{32,36})?\.tmp).*", re.DOTALL)
"""And what temporary names add."""
_POOL = re.compile(rb"\.[a-z0-9-]+(?=_)")
_LMCACHE = re.compile(
    rb"""
    (?P<model> .+? ) @ (?: [0-9]+ @ )? (?: 0x )? [0-9]+ @ (?: [0-9]+ @ )?  # how many ranks, the rank, the group of layers
    (?P<hash> -? [0-9a-f]{4,} ) (?: @ (?P<salt> [^.]* ) )? \. .*          # or the data type
    """,
    re.VERBOSE | re.DOTALL,
)


def block_of(name: bytes) -> bytes:
    """What the files of one block have in common, whatever the rank, group of layers or half (keys, values) that each is
    of, and whether it has its final name yet: hash, model, and what else makes bytes differ. Other names as they are.
    """
    match = _HASH.fullmatch(name)
    if match is not None:
        return b"@".join((match["hash"], _model(match["rest"])))
    match = _LMCACHE.fullmatch(name)
    return name if match is None else b"@".join(part for part in match.groups() if part is not None)


def _model(rest: bytes) -> bytes:
    """What a name that begins with a hash says of the model."""
    rest = _ENDING.sub(b"", rest, count=1)
    rest = _PARTS.sub(b"", rest, count=1)
    pool = _POOL.match(rest)
    return rest[pool.end() :] if pool else rest


def is_temporary(name: bytes) -> bool:
    """Whether an engine gives a file this name only until it is complete, or only as long as it has it open."""
    return _TEMPORARY.fullmatch(name) is not None


def kind_of(name: bytes) -> str:
    """Whose manner of naming it is: `temporary`, `hash`, `lmcache` or `other`."""
    if is_temporary(name):
        return "temporary"
    if _HASH.fullmatch(name):
        return "hash"
    return "lmcache" if _LMCACHE.fullmatch(name) else "other"
