"""What the mount needs of the pool; `blockdev.pool.Pool` fits structurally."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypedDict, Unpack

from blockdev.device import Begun
from blockdev.publication import NewObject
from blockdev.publisher import Arrived
from blockdev.types import Descriptor, DirectoryId, ExtentRef, Foreign, SlotRef

Xattrs = tuple[tuple[bytes, bytes], ...]


class MustWait(Exception):
    """It cannot be done at once, and nothing was changed."""


class Attributes(TypedDict, total=False):
    """What `update` may change."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    xattrs: Xattrs


class TotalsLike(Protocol):
    """Payload bytes."""

    @property
    def total(self) -> int: ...

    @property
    def used(self) -> int: ...

    @property
    def held(self) -> int:
        """Reserved or pinned: what cannot be evicted now."""


class PoolPort(Protocol):
    """See `blockdev.pool.Pool`, which says what each raises."""

    @property
    def name(self) -> str: ...

    @property
    def extent_size(self) -> int: ...

    @property
    def on_gone(self) -> list[Callable[[Descriptor], None]]: ...

    @property
    def on_changed(self) -> list[Callable[[Foreign | None], None]]: ...

    @property
    def alone(self) -> bool: ...

    def lookup(self, directory: DirectoryId, name: bytes) -> Descriptor | None: ...

    def published_after(self, predecessor: bytes, limit: int) -> list[Descriptor]: ...

    def entries(self, directory: DirectoryId, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...

    def directory(self, directory: DirectoryId) -> Descriptor | None: ...

    def is_empty(self, directory: DirectoryId) -> bool: ...

    def touch(self, record: Descriptor) -> None: ...

    def pin(self, record: Descriptor) -> None: ...

    def unpin(self, record: Descriptor) -> None: ...

    def totals(self) -> TotalsLike: ...

    async def extents(self, record: Descriptor) -> tuple[ExtentRef, ...]: ...

    async def read_extent(self, record: Descriptor, index: int, into: memoryview) -> int: ...

    async def reserve(self, length: int) -> SlotRef: ...

    def try_reserve(self, length: int) -> SlotRef | None: ...

    def slot_size(self, length: int) -> int: ...

    def give_back(self, ref: SlotRef) -> None: ...

    def is_lost(self, ref: SlotRef) -> bool: ...

    async def write(self, ref: SlotRef, data: memoryview, at: int = 0) -> None: ...

    def begin_write(self, ref: SlotRef, data: memoryview) -> Begun | None: ...

    async def read_reserved(self, ref: SlotRef, into: memoryview) -> None: ...

    def inline_limit(self, name: bytes, xattrs: Xattrs = ()) -> int: ...

    async def publish(self, new: NewObject, arrived: Arrived | None = None) -> Descriptor: ...

    async def rename(
        self, record: Descriptor, directory: DirectoryId, name: bytes, *, replace: bool = True
    ) -> Descriptor: ...

    async def remove(self, record: Descriptor) -> None: ...

    async def update(self, record: Descriptor, **attributes: Unpack[Attributes]) -> Descriptor: ...

    async def update_root(self, mode: int, uid: int, gid: int) -> Descriptor: ...

    async def make_directory(
        self, directory: DirectoryId, name: bytes, mode: int, uid: int, gid: int
    ) -> Descriptor: ...

    async def make_symlink(
        self, directory: DirectoryId, name: bytes, target: bytes, uid: int, gid: int
    ) -> Descriptor: ...
