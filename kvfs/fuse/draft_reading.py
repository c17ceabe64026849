"""Reading files that are being written, without waiting for who writes or publishes them."""

from __future__ import annotations

from blockdev.errors import BlockError
from kvfs.errors import FramesClosed
from kvfs.fuse.content import DraftContent, DraftExtent, Piece
from kvfs.fuse.memory import DraftMemory
from kvfs.fuse.versions import Versions


class DraftReading:
    """Reads one draft. Where the bytes are is asked again after every wait."""

    def __init__(self, content: DraftContent, memory: DraftMemory, versions: Versions) -> None:
        self._content = content
        self._memory = memory
        self._versions = versions

    async def read(self, offset: int, length: int) -> memoryview | bytes:
        """Bytes that lie in the file. A memoryview is valid until the next checkpoint.

        :raises BlockError, FramesError:
        """
        if length <= 0:
            return b""
        pieces = list(self._content.pieces(offset, length))
        if len(pieces) == 1:
            return await self._read(pieces[0])
        return b"".join([bytes(await self._read(piece)) for piece in pieces])

    async def _read(self, piece: Piece) -> memoryview | bytes:
        found = None
        while found is None:
            extent = self._content.extents.get(piece.extent)
            found = await (self._read_base(piece) if extent is None else self._read_own(piece, extent))
        return found

    async def _read_own(self, piece: Piece, extent: DraftExtent) -> memoryview | bytes | None:
        """From the draft's extent; None if that was published or cut off meanwhile."""
        memory, content = self._memory, self._content
        try:
            if extent.written.covers(piece.start, piece.stop):
                frame = await memory.bring(extent)
            else:
                frame = await memory.complete(extent)
        except FramesClosed:
            if content.extents.get(piece.extent) is extent:
                raise
            return None
        stop = min(piece.stop, extent.used)
        if content.extents.get(piece.extent) is not extent or not extent.written.covers(piece.start, stop):
            return None
        return self._padded(frame.view[piece.start : stop], piece)

    async def _read_base(self, piece: Piece) -> memoryview | bytes | None:
        """From the published version; None if the draft went on to another one or wrote to the extent meanwhile."""
        content, versions, base = self._content, self._versions, self._content.base
        stop = min(piece.stop, content.base_used(piece.extent))
        if base is None or stop <= piece.start:
            return self._memory.zeros[: piece.stop - piece.start]
        if base.inline:
            return self._padded(memoryview(base.inline)[piece.start : stop], piece)
        try:
            frame = await versions.get(base, piece.extent, content.base_extents[piece.extent])
        except BlockError:
            if content.base is base:
                raise
            return None
        versions.unpin_frame(frame)  # nobody else gets it before the caller's next checkpoint
        if content.base is not base or piece.extent in content.extents:
            return None
        stop = min(stop, content.base_used(piece.extent))
        return self._padded(frame.view[piece.start : max(piece.start, stop)], piece)

    @staticmethod
    def _padded(view: memoryview, piece: Piece) -> memoryview | bytes:
        """With zeros for what the file does not have there."""
        missing = piece.stop - piece.start - len(view)
        return bytes(view) + bytes(missing) if missing else view
