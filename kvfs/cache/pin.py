"""Objects that are not to be evicted for a while."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from blockdev.pool import Pool
    from blockdev.types import Descriptor


class Pin:
    """Keeps a version of an object from being evicted, until `close` or the end of its `with` block.

    :ivar size: bytes of the object
    """

    def __init__(self, pool: Pool, record: Descriptor) -> None:
        pool.pin(record)
        self._pool = pool
        self._record: Descriptor | None = record
        self.size = record.size

    def close(self) -> None:
        """Let it go; harmless when repeated."""
        record, self._record = self._record, None
        if record is not None:
            self._pool.unpin(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
