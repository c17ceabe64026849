"""Published files that are open for reading.

Opening a file of ordinary size fetches and verifies all of it, so that what can go wrong goes wrong in open(2), where
every client takes it for a miss, and reading it is slicing. Larger files are read as they go.
"""

from __future__ import annotations

from collections import Counter

from blockdev.errors import BlockError
from blockdev.types import MIB, Descriptor, ExtentRef, stored
from kvfs.frames import Frame
from kvfs.fuse.ports import MustWait, PoolPort
from kvfs.fuse.versions import Versions


class PinnedShare:
    """Counts the frames that open files keep, each once, up to a limit.

    Room is promised before the frames are fetched: many files are opened at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._promised = 0
        self._pins: Counter[Frame] = Counter()

    def promise(self, count: int) -> bool:
        """Promise room for that many frames, if there is; each is then added or forgone."""
        if len(self._pins) + self._promised + count > self._limit:
            return False
        self._promised += count
        return True

    def forgo(self, count: int) -> None:
        self._promised -= count

    def add(self, frame: Frame) -> None:
        """Keep a frame for which room was promised."""
        self._promised -= 1
        self._pins[frame] += 1

    def remove(self, frame: Frame) -> None:
        self._pins[frame] -= 1
        if not self._pins[frame]:
            del self._pins[frame]


class Readers:
    """Opens published files.

    :param whole_limit: bytes up to which a file is fetched whole when it is opened
    :param pinned_limit: most frames that open files keep at once
    :param read_ahead: how many extents to read ahead of whoever reads a file that is not fetched whole
    """

    def __init__(
        self,
        pool: PoolPort,
        versions: Versions,
        *,
        whole_limit: int = 32 * MIB,
        pinned_limit: int,
        read_ahead: int = 2,
    ) -> None:
        self._pool = pool
        self._versions = versions
        self._whole_limit = whole_limit
        self._share = PinnedShare(pinned_limit)
        self._ahead = read_ahead
        self._zeros = memoryview(bytes(pool.extent_size))

    async def open(self, record: Descriptor) -> Reader:
        """Open a version.

        :raises BlockError, FramesError: it cannot be read: a miss
        """
        self._versions.pin(record)
        reader = Reader(self._pool.extent_size, record, self._versions, self._zeros, self._ahead)
        try:
            reader.extents = await self._pool.extents(record)
            if record.size <= self._whole_limit:
                held = [index for index, _ in stored(reader.extents)]
                if self._share.promise(len(held)):
                    await self._fetch(reader, held)
        except BaseException:
            self.close(reader)
            raise
        self._pool.touch(record)
        return reader

    def open_now(self, record: Descriptor) -> Reader:
        """As `open`, of what is in memory whole. :raises MustWait: it is not, or is not there"""
        held = [index for index, _ in stored(record.extents)]
        if record.indexed or record.size > self._whole_limit or self.must_wait_to_close:
            raise MustWait
        if not self._share.promise(len(held)):
            raise MustWait
        frames: list[Frame] = []
        try:
            frames = self._versions.get_now(record.extents[index] for index in held)
            self._versions.pin(record)
        except (MustWait, BlockError) as error:
            self._share.forgo(len(held))
            for frame in frames:
                self._versions.unpin_frame(frame)
            raise MustWait from error
        reader = Reader(self._pool.extent_size, record, self._versions, self._zeros, self._ahead)
        reader.extents = record.extents
        for index, frame in zip(held, frames, strict=True):
            reader.frames[index] = frame
            self._share.add(frame)
        self._pool.touch(record)
        return reader

    @property
    def must_wait_to_close(self) -> bool:
        """Whether to close one wakes up who waits for its memory."""
        return self._versions.frames_are_awaited

    async def _fetch(self, reader: Reader, stored: list[int]) -> None:
        if len(stored) > 1:  # all at once: they are on different devices
            self._versions.read_ahead(reader.record, [(n, reader.extents[n]) for n in stored[1:]])
        try:
            for index in stored:
                frame = await self._versions.get(reader.record, index, reader.extents[index])
                reader.frames[index] = frame
                self._share.add(frame)
        finally:
            self._share.forgo(len(stored) - len(reader.frames))

    def close(self, reader: Reader) -> None:
        """Give back what the reader keeps."""
        for frame in reader.frames.values():
            self._share.remove(frame)
            self._versions.unpin_frame(frame)
        reader.frames.clear()
        self._versions.unpin(reader.record)


class Reader:
    """An open version of a file.

    :ivar frames: its stored extents, if they were fetched when it was opened
    """

    __slots__ = ("_ahead", "_extent_size", "_versions", "_zeros", "extents", "frames", "record")

    def __init__(
        self, extent_size: int, record: Descriptor, versions: Versions, zeros: memoryview, ahead: int
    ) -> None:
        self._ahead = ahead
        self.record = record
        self.extents: tuple[ExtentRef, ...] = ()
        self.frames: dict[int, Frame] = {}
        self._extent_size = extent_size
        self._versions = versions
        self._zeros = zeros

    async def read(self, offset: int, length: int) -> memoryview | bytes:
        """Bytes of the file; fewer only at its end. A memoryview is valid until the next checkpoint.

        :raises BlockError, FramesError: it broke after it was opened
        """
        length = min(length, self.record.size - offset)
        if length <= 0:
            return b""
        if self.record.inline:
            return self.record.inline[offset : offset + length]
        index, start = divmod(offset, self._extent_size)
        if start + length <= self._extent_size:
            return await self._slice(index, start, start + length)
        parts = []
        while length:
            stop = min(self._extent_size, start + length)
            parts.append(bytes(await self._slice(index, start, stop)))
            length -= stop - start
            index, start = index + 1, 0
        return b"".join(parts)

    def views(self, offset: int, length: int) -> list[memoryview | bytes] | None:
        """What `read` returns, in parts; None if some of it was not fetched when the file was opened.

        Changes nothing and looks only at what stays as it is until the file is closed: for any thread.
        """
        length = max(0, min(length, self.record.size - offset))
        if self.record.inline:
            return [self.record.inline[offset : offset + length]]
        parts: list[memoryview | bytes] = []
        index, start = divmod(offset, self._extent_size)
        while length:
            stop = min(self._extent_size, start + length)
            frame = self.frames.get(index)
            if frame is None and not self.extents[index].is_hole:
                return None
            parts.append(self._zeros[: stop - start] if frame is None else frame.view[start:stop])
            length -= stop - start
            index, start = index + 1, 0
        return parts

    async def _slice(self, index: int, start: int, stop: int) -> memoryview:
        frame = self.frames.get(index)
        if frame is not None:
            return frame.view[start:stop]
        if self.extents[index].is_hole:
            return self._zeros[: stop - start]
        following = enumerate(self.extents[index + 1 : index + 1 + self._ahead], index + 1)
        self._versions.read_ahead(self.record, [one for one in following if not one[1].is_hole])
        frame = await self._versions.get(self.record, index, self.extents[index])
        self._versions.unpin_frame(frame)  # nobody else gets it before the caller's next checkpoint
        return frame.view[start:stop]
