"""Runs inside a guest: starts what the lab asks for and tells what it prints and how it ends. See wire.py.

A command ends when its process does, even if something that it left in the background still holds its output.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from scripts.lib.lab.wire import (
    ABSENT,
    EXIT,
    HELLO,
    PORT,
    RUN,
    SIGNAL,
    STDERR,
    STDOUT,
    Frame,
    encode,
    receive,
)

PIECE = 1 << 16
"""Most bytes of output in a frame."""


class Agent:
    """Commands that run now, and the port over which they are asked for."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sending = threading.Lock()
        self._groups: dict[int, int] = {}

    def serve(self) -> None:
        """Until the lab hangs up."""
        self._send(0, HELLO)
        while frame := receive(lambda length: os.read(self._port, length)):
            if frame.kind == RUN:
                threading.Thread(target=self._run, args=(frame,), daemon=True).start()
            elif frame.kind == SIGNAL and frame.command in self._groups:
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.killpg(self._groups[frame.command], int(frame.payload))

    def _run(self, frame: Frame) -> None:
        head, _, text = frame.payload.partition(b"\n")
        asked = json.loads(head)
        try:
            with _file_with(text) as stdin:
                process = subprocess.Popen(
                    asked["argv"],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **asked["env"]},
                    start_new_session=True,
                )
        except OSError as error:
            self._send(frame.command, ABSENT, str(error).encode())
            return
        self._groups[frame.command] = process.pid
        self._pass_on(frame.command, process)
        del self._groups[frame.command]
        self._send(frame.command, EXIT, str(process.returncode).encode())

    def _pass_on(self, command: int, process: subprocess.Popen[bytes]) -> None:
        """What the process prints, until it ends."""
        assert process.stdout
        assert process.stderr
        kinds: dict[IO[bytes], int] = {process.stdout: STDOUT, process.stderr: STDERR}
        ended = os.pidfd_open(process.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            for stream, kind in kinds.items():
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, (stream, kind))
            while process.poll() is None:
                for key, _ in selector.select():
                    if key.data and not self._pass_on_piece(command, *key.data):
                        selector.unregister(key.fileobj)
        os.close(ended)
        for stream, kind in kinds.items():
            while self._pass_on_piece(command, stream, kind):
                pass
            stream.close()

    def _pass_on_piece(self, command: int, stream: IO[bytes], kind: int) -> bool:
        """False at the end of the stream, or when there is nothing in it now."""
        try:
            piece = os.read(stream.fileno(), PIECE)
        except BlockingIOError:
            return False
        if piece:
            self._send(command, kind, piece)
        return bool(piece)

    def _send(self, command: int, kind: int, payload: bytes = b"") -> None:
        with self._sending:
            rest = memoryview(encode(Frame(command, kind, payload)))
            while rest:
                rest = rest[os.write(self._port, rest) :]


def _file_with(text: bytes) -> IO[bytes]:
    """In memory, at its beginning: a pipe would have to be fed."""
    file = os.fdopen(os.memfd_create("stdin"), "w+b")
    file.write(text)
    file.seek(0)
    return file


def main() -> None:
    name = next(
        f.parent.name for f in Path("/sys/class/virtio-ports").glob("*/name") if f.read_text().strip() == PORT
    )
    Agent(os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)).serve()


if __name__ == "__main__":
    main()
