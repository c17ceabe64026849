"""Files and loop devices that tests use as devices, and a file whose calls can be held up."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blockdev.begun import BegunTransfers
from blockdev.file_device import FileDevice
from blockdev.raw_file import RawFile
from blockdev.types import PAGE

_ENVIRONMENT = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}


def run(*command: str) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=_ENVIRONMENT
    ).stdout.strip()


def allocated(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return path


@contextmanager
def loop_device(backing: Path, sector: int = 512) -> Iterator[Path]:
    """A kernel block device over a file; for tests marked `loop`."""
    device = run("losetup", "--find", "--show", "--sector-size", str(sector), str(backing))
    try:
        yield Path(device)
    finally:
        run("losetup", "--detach", device)


class GatedFile(RawFile):
    """Its calls return only while the gate is open; `closed` is set when the descriptor is."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        super().__init__(fd, size=path.stat().st_size // PAGE * PAGE, block_size=PAGE, is_file=True)
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0
        self.fd = fd

    def _pass(self) -> None:
        self.calls += 1
        if not self.gate.wait(60):
            raise AssertionError("the test left the gate closed")

    def read(self, offset: int, buffer: memoryview) -> None:
        self._pass()
        super().read(offset, buffer)

    def write(self, offset: int, buffer: memoryview) -> None:
        self._pass()
        super().write(offset, buffer)

    def flush(self) -> None:
        self._pass()
        super().flush()

    def discard(self, offset: int, length: int) -> None:
        self._pass()
        super().discard(offset, length)


class GatedWrites(BegunTransfers):
    """Writes that are begun, whose ends the kernel does not tell between `hold` and `let_go`."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth, in_memory=False)
        self._held: list[tuple[int, int]] | None = None

    def hold(self) -> None:
        self._held = self._held or []

    def let_go(self) -> None:
        held, self._held = self._held or [], None
        for number, result in held:
            super()._end(number, result)

    def _end(self, number: int, result: int) -> None:
        if self._held is None:
            super()._end(number, result)
        else:
            self._held.append((number, result))


class GatedDevice(FileDevice):
    """A FileDevice that shows its GatedFile.

    :param begun: it begins writes, which `hold` holds up, too
    """

    def __init__(
        self,
        path: Path,
        *,
        io_timeout: float = 60.0,
        queue_depth: int = 4,
        begun: GatedWrites | None = None,
    ) -> None:
        self.file = GatedFile(path)
        self._gated = begun
        super().__init__(str(path), self.file, io_timeout=io_timeout, queue_depth=queue_depth, begun=begun)

    def hold(self) -> None:
        """Let nothing end until `let_go`."""
        self.file.gate.clear()
        if self._gated is not None:
            self._gated.hold()

    def let_go(self) -> None:
        self.file.gate.set()
        if self._gated is not None:
            self._gated.let_go()
