"""How callers of the Cache API name objects. Pure.

A key is one of

- a path, `str`: `/engine/blocks/17.bin`, as the mount shows it; parents are made by what is put there
- a hash, `bytes`: of a block, in the namespace with which the cache was opened
- a `Block`: the same, with its namespace

A namespace keeps what does not fit together apart: other models, ranks, layer groups. Its blocks are files, too, named
by their hash's hexadecimal digits, in a directory of their own: `/kvfs-blocks/MODEL/r0/g0/0123…`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote

from blockdev.types import NAME_MAX
from kvfs.errors import BadKey, WrongNamespace

BLOCKS: Final = b"kvfs-blocks"
"""The directory of all namespaces."""
_HASH_MAX: Final = 64
_NUMBER_MAX: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Namespace:
    """What a block's bytes depend on beside the tokens that its hash covers.

    :ivar model: its name, and whatever else makes bytes differ: data type, revision
    :ivar rank: of the tensor-parallel worker
    :ivar group: of layers
    :ivar parents: the directories from the root to its blocks

    :raises BadKey: not a name, or a number that is not from 0 to 2^32 - 1
    """

    model: str
    rank: int = 0
    group: int = 0
    parents: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        folder = _escaped(self.model)
        if not 0 < len(folder) <= NAME_MAX:
            raise BadKey(f"a model's name has 1 to {NAME_MAX} bytes when it is escaped, not {len(folder)}")
        for what, number in (("rank", self.rank), ("group", self.group)):
            if not 0 <= number < _NUMBER_MAX:
                raise BadKey(f"{what} {number} is not between 0 and {_NUMBER_MAX - 1}")
        parents = (BLOCKS, folder, b"r%d" % self.rank, b"g%d" % self.group)
        object.__setattr__(self, "parents", parents)  # once: it is needed for every key

    def __str__(self) -> str:
        return f"{self.model}, rank {self.rank}, group {self.group}"


def _escaped(model: str) -> bytes:
    escaped = quote(model, safe=" +,:=@").encode()
    return escaped.replace(b".", b"%2E") if escaped in (b".", b"..") else escaped


class Block(NamedTuple):
    """A block of a namespace, by its hash."""

    namespace: Namespace
    digest: bytes


Key = str | bytes | Block


class Place(NamedTuple):
    """Where an object is: the names of its directories from the root on, and its own."""

    parents: tuple[bytes, ...]
    name: bytes

    def __str__(self) -> str:
        return "/" + b"/".join((*self.parents, self.name)).decode(errors="backslashreplace")


def place_of(key: Key, namespace: Namespace | None) -> Place:
    """Where the object of a key is.

    :param namespace: the one that the caller works in
    :raises BadKey: it names nothing that could be there
    :raises WrongNamespace: it is of another namespace
    """
    if isinstance(key, str):
        return _path(key, namespace)
    if isinstance(key, Block):
        if key.namespace != namespace:
            raise WrongNamespace(
                f"a block of namespace ({key.namespace}) is not for a cache of ({namespace})"
            )
        digest = key.digest
    elif isinstance(key, bytes):
        digest = key
    else:
        raise BadKey(f"a key is a path (str), a hash (bytes) or a Block, not {type(key).__name__}")
    if namespace is None:
        raise BadKey("a hash names a block of a namespace: give open_cache one, or use paths")
    if not 0 < len(digest) <= _HASH_MAX:
        raise BadKey(f"a hash has 1 to {_HASH_MAX} bytes, not {len(digest)}")
    return Place(namespace.parents, digest.hex().encode())


def _path(key: str, namespace: Namespace | None) -> Place:
    try:
        parts = tuple(part.encode() for part in key.split("/") if part)
    except UnicodeEncodeError:
        raise BadKey(f"path {key!r} is not text that can be a name") from None
    if not parts or key.endswith("/"):
        raise BadKey(f"path {key!r} names no object: it must end with a name")
    for part in parts:
        if part in (b".", b"..") or b"\0" in part or len(part) > NAME_MAX:
            raise BadKey(f"path {key!r} has a part that cannot be a name: {part!r}")
    own = () if namespace is None else namespace.parents
    if parts[0] == BLOCKS and parts[: len(own)] != own:
        raise WrongNamespace(f"path {key!r} is in another namespace than ({namespace})")
    return Place(parts[:-1], parts[-1])
